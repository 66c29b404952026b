"""The connections of users: which database it is, and statements run one after the other.

What is to be run is written once, as a generator that yields statements and is sent what came of
them, and driven over a synchronous or an asynchronous connection.
"""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Generator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar

from leasehold.worker.once.sql import Dialect

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
        f" libraries above these give it away, as driver_connection for example"
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
        alone = commits and not connection.in_transaction
    else:
        idle: Any = sys.modules["psycopg"].pq.TransactionStatus.IDLE
        alone = connection.autocommit and connection.info.transaction_status == idle
    if alone:
        raise RuntimeError("open a transaction first: what is checked outside of it guards nothing")


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
