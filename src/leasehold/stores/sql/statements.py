"""Loader of named SQL statements: a query is text in a ``.sql`` file, never a Python string.

A file is a row of statements, each under a comment line ``-- name: NAME``. What many have in common
is under ``-- part: NAME``, and they say ``{NAME}``. Lines before the first name, and further
comments, are for the reader.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from importlib.resources import files
from typing import Any, Final, Protocol

_NAME: Final = re.compile(r"^-- (name|part): (\w+)$", re.MULTILINE)


def load_queries(package: str, file_name: str = "queries.sql") -> dict[str, str]:
    """Return the statements of *file_name* in *package* by name, without their comments."""
    text = (files(package) / file_name).read_text(encoding="utf-8")
    found = _NAME.split(text)
    parts: dict[str, str] = {}
    queries: dict[str, str] = {}
    for kind, name, body in zip(found[1::3], found[2::3], found[3::3], strict=True):
        lines = [line for line in body.splitlines() if line.strip() and not line.startswith("--")]
        (parts if kind == "part" else queries)[name] = "\n".join(lines)
    for part, expression in parts.items():
        queries = {name: sql.replace(f"{{{part}}}", expression) for name, sql in queries.items()}
    return queries


def many_rows(statement: str, count: int) -> str:
    """Return an INSERT of one row as one of *count* rows."""
    head, row = statement.split("VALUES ")
    return head + "VALUES " + ", ".join([row.strip()] * count)


def load_migrations(package: str) -> list[tuple[int, str]]:
    """Return the numbered migrations of *package* in order; names look like ``0001_initial.sql``.

    The numbers must be 1, 2, 3 and so on without a gap.
    """
    found = sorted(entry.name for entry in files(package).iterdir() if entry.name.endswith(".sql"))
    migrations = [
        (int(name.split("_", 1)[0]), (files(package) / name).read_text(encoding="utf-8"))
        for name in found
    ]
    assert [number for number, _ in migrations] == list(range(1, len(migrations) + 1))
    return migrations


# --- cursor ------------------------------------------------------------------------------------
#
# What the verbs ask of a cursor; that of apsw is one.


class Rows(Protocol):
    """What a statement has found, each row once."""

    def fetchall(self) -> list[Any]:
        """Return the rows that are left."""
        ...

    def __iter__(self) -> Iterator[Any]:
        """Yield the rows that are left."""
        ...


class Reading(Protocol):
    """A cursor that reads while others write."""

    def execute(self, query: str, bounds: Any = ..., /) -> Any:
        """Run a statement."""
        ...

    def close(self) -> None:
        """Read no more."""
        ...


class Connection(Protocol):
    """What a cursor is of."""

    def cursor(self) -> Reading:
        """Return another cursor."""
        ...

    def changes(self) -> int:
        """Return how many rows the last statement changed."""
        ...


class Cursor(Protocol):
    """Runs statements."""

    @property
    def connection(self) -> Any:
        """What it is of: a :class:`Connection`."""
        ...

    def execute(self, query: str, bounds: Any = ..., /) -> Rows:
        """Run a statement."""
        ...

    def executemany(self, query: str, many: Iterable[Any], /) -> Rows:
        """Run a statement for each of many bounds; its rows are those of all."""
        ...


# --- setwise -----------------------------------------------------------------------------------
#
# Statements for many messages at once.


SET_WISE: Final = 8
"""From so many messages on, one statement for all costs less than one each."""
ROWS_AT_ONCE: Final = 50
"""Rows that one statement inserts."""
