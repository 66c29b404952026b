"""SQL of two dialects: the statements of the history table, and names that are quoted safely."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any, Final, Literal, TypeAlias

from leasehold.worker.once.rules import Entry

Dialect: TypeAlias = Literal["sqlite", "postgresql"]

DEFAULT_TABLE: Final = "leasehold_processed"
_NAME: Final = re.compile(r"^-- name: (\w+)$", re.MULTILINE)
_PLACE: Final = re.compile(r"\{(\w+)\}")
_PARAMETER: Final = re.compile(r"(?<![:\w]):(\w+)")
_DATABASE_CLOCK: Final = "CAST(extract(epoch FROM clock_timestamp()) * 1000 AS BIGINT)"
"""``clock_timestamp`` and not ``now``: a transaction may have waited long for its turn."""


def quote_identifier(name: str) -> str:
    """Return *name* as an SQL identifier, whatever characters it has.

    Raises:
        ValueError: It is empty or has a NUL, which no dialect can quote.
    """
    if not name or "\0" in name:
        raise ValueError(f"{name!r} cannot be the name of a table or column")
    return '"' + name.replace('"', '""') + '"'


def quote_table(table: str | Sequence[str]) -> str:
    """Return the quoted name of a table.

    Args:
        table: A name, ``schema.table``, or its parts if one of them has a dot in it.
    """
    parts = table.split(".") if isinstance(table, str) else table
    return ".".join(quote_identifier(part) for part in parts)


def for_psycopg(statement: str) -> str:
    """Return a statement with ``:name`` parameters in the form that psycopg takes."""
    return _PARAMETER.sub(r"%(\1)s", statement.replace("%", "%%"))


def read_statements(file_name: str) -> dict[str, str]:
    """Return the statements of a file of this package by name, without their comments.

    Each stands under a line ``-- name: NAME``; what comes before the first is for the reader.
    """
    text = files(__package__).joinpath(file_name).read_text(encoding="utf-8")
    pieces = _NAME.split(text)
    return {
        name: "\n".join(line for line in body.splitlines() if line and not line.startswith("--"))
        for name, body in zip(pieces[1::2], pieces[2::2], strict=True)
    }


def load_statements(
    dialect: Dialect,
    table: str | Sequence[str] = DEFAULT_TABLE,
    *,
    database_clock: bool = False,
    file_name: str = "queries.sql",
) -> dict[str, str]:
    """Return the statements of a file by name, for one dialect and table.

    Args:
        dialect: Whose parameters and expressions to use.
        table: See :func:`quote_table`.
        database_clock: Take the time from the database (PostgreSQL only) instead of ``:now_ms``.
        file_name: In this package.
    """
    parts = table.split(".") if isinstance(table, str) else list(table)
    index = f"{parts[-1]}_expires_at_ms"
    # PostgreSQL puts an index beside its table; SQLite wants the schema before the index instead.
    in_schema = [*parts[:-1], index] if dialect == "sqlite" else [index]
    names = {
        "table": quote_table(parts),
        "index": quote_table(in_schema),
        "indexed": quote_table(parts[-1:] if dialect == "sqlite" else parts),
    }
    fragments = {
        "now": _DATABASE_CLOCK if database_clock else ":now_ms",
        "skip_locked": "FOR UPDATE SKIP LOCKED" if dialect == "postgresql" else "",
    }
    if dialect == "postgresql":
        names = {place: name.replace("%", "%%") for place, name in names.items()}
        fragments = {place: for_psycopg(text) for place, text in fragments.items()}
    statements = read_statements(file_name)
    if dialect == "postgresql":
        statements = {name: for_psycopg(text) for name, text in statements.items()}
    return {name: _fill(text, names | fragments) for name, text in statements.items()}


def entry_of(row: Sequence[Any]) -> Entry:
    """Return a row of the statement ``look`` as an entry."""
    source, fence, run, done, result, since_ms, held_until_ms, expires_at_ms = row
    return Entry(
        source=source,
        fence=fence,
        run=run,
        is_done=bool(done),
        result=result,
        since_ms=since_ms,
        held_until_ms=held_until_ms,
        expires_at_ms=expires_at_ms,
    )


def _fill(statement: str, texts: Mapping[str, str]) -> str:
    return _PLACE.sub(lambda found: texts[found[1]], statement)
