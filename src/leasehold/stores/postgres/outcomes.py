"""What has become of a transaction whose COMMIT had no answer.

The number of a transaction is not proof enough: a server that crashes, or a standby that takes
over, may give a number away again that it has never seen. The events that the batch has written
are proof, as nobody else writes the same; so they are looked for first.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto
from typing import Any, Final, NamedTuple

import psycopg

from leasehold.stores.postgres.direct import Direct
from leasehold.stores.sql_files import load_queries

_SQL: Final = load_queries("leasehold.stores.postgres", "outcomes.sql")
_ENDING_S: Final = (0.0, 0.01, 0.04, 0.1, 0.2, 0.4, 0.8)
"""Waits for a backend that was told to end."""


class Outcome(Enum):
    """Of a transaction."""

    COMMITTED = auto()
    UNDONE = auto()
    UNKNOWN = auto()


class Writer(NamedTuple):
    """Who ran a transaction: a backend, in one life of one server."""

    pid: int
    started: str
    life: str | None


class Trace(NamedTuple):
    """What a transaction has left behind, if it was committed."""

    seq: int | None = None
    """Number of the events it has written, None if it wrote none."""
    content: bytes = b""
    """Those events."""
    number: str | None = None
    """Of the transaction; None if it has none, as it changed nothing, or was not asked for."""


def writer_of(connection: psycopg.Connection[Any]) -> Writer:
    """Return who runs the transactions of a connection."""
    row = connection.execute(_SQL["writer"]).fetchone()
    assert row is not None
    return Writer(*row)


def number_of(direct: Direct) -> str | None:
    """Return the number of the open transaction, None while it has changed nothing."""
    rows = direct.execute(_SQL["transaction"], ())
    return rows[0][0] if rows else None


def outcome_of(connection: psycopg.Connection[Any], writer: Writer, trace: Trace) -> Outcome:
    """Find out what has become of a transaction.

    Args:
        connection: A new one, to whoever is the primary now.
        writer: Who ran the transaction; must have ended.
        trace: What it has left.

    Raises:
        psycopg.Error: This connection is lost as well, or does not allow to ask.
    """
    if trace.seq is None and trace.number is None:
        return Outcome.COMMITTED  # it has only read
    if trace.seq is not None:
        is_there = _ask(connection, "has_events", trace.seq, trace.content)
        outcome = Outcome.COMMITTED if is_there else Outcome.UNDONE
    elif writer_of(connection).life == writer.life:
        status = _ask(connection, "status", trace.number)
        outcome = _BY_STATUS.get(status, Outcome.UNKNOWN)
    else:
        outcome = Outcome.UNKNOWN
    if outcome is Outcome.COMMITTED:
        wait_for_standbys(connection)
    return outcome


def wait_for_standbys(connection: psycopg.Connection[Any]) -> None:
    """Return when all that was committed before is where a commit has to be, by the settings."""
    connection.execute(_SQL["wait_for_standbys"])


def end(
    connection: psycopg.Connection[Any], writer: Writer, sleep: Callable[[float], None]
) -> bool:
    """End a backend if it is still there, so that what it has begun is committed or undone.

    Returns:
        Whether it is gone.
    """
    for pause_s in _ENDING_S:
        sleep(pause_s)
        if not connection.execute(_SQL["end_writer"], writer[:2]).fetchall():
            return True
    return False


def _ask(connection: psycopg.Connection[Any], query: str, *bounds: object) -> Any:
    row = connection.execute(_SQL[query], bounds).fetchone()
    return None if row is None else row[0]


_BY_STATUS: Final = {"committed": Outcome.COMMITTED, "aborted": Outcome.UNDONE}
