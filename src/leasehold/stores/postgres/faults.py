"""What an error of PostgreSQL means for the batch that met it."""

from __future__ import annotations

from enum import Enum, auto
from typing import Final

import psycopg
from psycopg import errors


class Fault(Enum):
    """What is to be done about it; the batch is undone in any case."""

    AGAIN = auto()
    """It came from what others did at the same moment: play the batch again."""
    LOST = auto()
    """This connection is of no more use: connect anew, and play the batch again."""
    FULL = auto()
    """The disk is full."""
    BUSY = auto()
    """The database cannot do that now; the same may work later."""
    OURS = auto()
    """The statement is wrong, or the database is damaged: somebody has to look into it."""


# https://www.postgresql.org/docs/current/errcodes-appendix.html
_AGAIN: Final = (errors.DeadlockDetected, errors.SerializationFailure)
_LOST: Final = (
    # The server was made read-only, or has become a standby: another host may be the primary.
    errors.ReadOnlySqlTransaction,
    # Somebody has changed a table, or thrown away what was prepared; a new connection has neither.
    errors.FeatureNotSupported,
    errors.InvalidSqlStatementName,
)


def fault_of(error: psycopg.Error, *, closed: bool) -> Fault:
    """Return what to do about *error*.

    Args:
        error: What was raised.
        closed: Whether the connection is closed now; not every error that ends it says so.
    """
    if closed or isinstance(error, _LOST):
        return Fault.LOST
    if isinstance(error, _AGAIN):
        return Fault.AGAIN
    if isinstance(error, errors.DiskFull):
        return Fault.FULL
    if isinstance(error, psycopg.OperationalError):
        return Fault.BUSY
    return Fault.OURS
