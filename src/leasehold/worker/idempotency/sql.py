"""SQL of two dialects: the statements of the history table, and names that are quoted safely."""

from __future__ import annotations

import re
import sqlite3
import sys
from collections.abc import Generator, Mapping, Sequence
from importlib.resources import files
from typing import Any, Final, Literal, NamedTuple, TypeAlias, TypeVar

from leasehold.worker.idempotency.history import Entry

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


# --- links -------------------------------------------------------------------------------------
#
# The connections of users: which database it is, and statements run one after the other.
#
# What is to be run is written once, as a generator that yields statements and is sent what came of
# them, and driven over a synchronous or an asynchronous connection.


_T = TypeVar("_T")


class Statement(NamedTuple):
    """What is to be run."""

    sql: str
    values: Mapping[str, Any] | Sequence[Any] = ()


class Outcome(NamedTuple):
    """What came of it."""

    changed: int
    """Rows inserted, changed or removed."""
    rows: list[Any]
    """What it returned, as tuples."""


Steps: TypeAlias = Generator[Statement, Outcome, _T]


def dialect_of(connection: Any) -> Dialect:
    """Return which database *connection* leads to.

    Raises:
        TypeError: It is neither a ``sqlite3.Connection`` nor one of psycopg 3.
    """
    if isinstance(connection, sqlite3.Connection):
        return "sqlite"
    psycopg: Any = sys.modules.get("psycopg")
    if psycopg is not None and isinstance(
        connection, (psycopg.Connection, psycopg.AsyncConnection)
    ):
        return "postgresql"
    kind = type(connection)
    raise TypeError(
        f"a connection of sqlite3 or of psycopg 3 is needed, not {kind.__module__}.{kind.__name__};"
        f" higher-level libraries expose it, for example as driver_connection"
    )


def check_transaction(connection: Any) -> None:
    """Refuse a connection whose next statement would be a transaction by itself.

    Raises:
        RuntimeError: It commits each statement, and no transaction is open.
    """
    if dialect_of(connection) == "sqlite":
        # From Python 3.12 on there is a second way to say so; -1 leaves it to the first.
        mode = getattr(connection, "autocommit", -1)
        commits = connection.isolation_level is None if mode == -1 else bool(mode)
        is_outside = commits and not connection.in_transaction
    else:
        idle: Any = sys.modules["psycopg"].pq.TransactionStatus.IDLE
        is_outside = connection.autocommit and connection.info.transaction_status == idle
    if is_outside:
        raise RuntimeError(
            "open a transaction first: a check outside a transaction protects nothing"
        )


def drive(connection: Any, steps: Steps[_T]) -> _T:
    """Run the statements of *steps* over a synchronous connection; return what it returns."""
    dialect = dialect_of(connection)
    try:
        statement = next(steps)
        while True:
            cursor = _cursor(connection, dialect)
            try:
                cursor.execute(statement.sql, statement.values)
                rows = [] if cursor.description is None else cursor.fetchall()
                outcome = Outcome(cursor.rowcount, rows)
            finally:
                cursor.close()
            statement = steps.send(outcome)
    except StopIteration as end:
        result: _T = end.value
        return result


async def adrive(connection: Any, steps: Steps[_T]) -> _T:
    """Run the statements of *steps* over an asynchronous connection of psycopg."""
    dialect = dialect_of(connection)
    try:
        statement = next(steps)
        while True:
            async with _cursor(connection, dialect) as cursor:
                await cursor.execute(statement.sql, statement.values)
                rows = [] if cursor.description is None else await cursor.fetchall()
                outcome = Outcome(cursor.rowcount, rows)
            statement = steps.send(outcome)
    except StopIteration as end:
        result: _T = end.value
        return result


def _cursor(connection: Any, dialect: Dialect) -> Any:
    """Return a cursor that gives tuples, whatever its connection gives otherwise."""
    if dialect == "sqlite":
        cursor = connection.cursor()
        cursor.row_factory = None
        return cursor
    rows: Any = sys.modules["psycopg.rows"]
    return connection.cursor(row_factory=rows.tuple_row)
