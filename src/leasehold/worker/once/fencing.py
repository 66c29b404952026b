"""Fenced writes: a worker whose lease has ended cannot undo what the next one wrote.

The fence of a message rises with each delivery. A row keeps the fence of its last writer, and a
write is done only if its own is not older:

=============================  ============================  =====================
the fence of the row           a write                       with once_per_lease
=============================  ============================  =====================
is older or NULL               is done                       is done
is the same                    is done                       ``REPEATED``
is newer                       raises Fenced                 raises Fenced
there is no row                upsert: is done               upsert: is done
there is no row                update: ``NO_ROW``            update: ``NO_ROW``
=============================  ============================  =====================

The same fence means the same lease. By default it may write again: to repeat a write whose answer
was lost, or to write further. That does no harm, because values are set and never added to. With
``once_per_lease`` the first write of a lease is the only one, for rows with triggers or counters
behind them.

Fences of two messages cannot be compared. For rows that several messages write to there is
:class:`~leasehold.worker.once.fences.FenceLedger`, whose own rows belong to one message each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any, Final

from leasehold.worker.once.errors import Fenced
from leasehold.worker.once.fenced_sql import Shape
from leasehold.worker.once.links import Statement, Steps, adrive, dialect_of, drive
from leasehold.worker.once.sql import Dialect
from leasehold.worker.once.table_checks import checking

_TRIES: Final = 8
"""Attempts at a row that others insert and remove at the same time."""


class Written(Enum):
    """What became of a write that was not too old. True if it was applied."""

    APPLIED = "applied"
    REPEATED = "repeated"
    """Nothing was done: this lease has written before, and may do so once."""
    NO_ROW = "no row"
    """Nothing was done: there is no row to update."""

    def __bool__(self) -> bool:
        return self is Written.APPLIED


class FencedTable:
    """A table of the user with a column for the fence.

    Connections are those of ``sqlite3`` and psycopg 3; the transaction is the caller's business.
    Names are quoted and may have any characters; values are bound.

    Args:
        table: ``name``, ``schema.name``, or its parts.
        key: The column or columns that name a row; unique together where ``upsert`` is used.
        fence: The column of the fence: an integer of 64 bits, which may be NULL.
        once_per_lease: See the table above.

    Raises:
        ValueError: A name is empty or has a NUL, or a column has two meanings.
    """

    def __init__(
        self,
        table: str | Sequence[str],
        key: str | Sequence[str] = "id",
        fence: str = "fence",
        *,
        once_per_lease: bool = False,
    ) -> None:
        self._shape = Shape(table, key, fence, strict=once_per_lease)
        self._once_per_lease = once_per_lease

    def update(
        self, connection: Any, key: Any, values: Mapping[str, Any], *, fence: int
    ) -> Written:
        """Set columns of a row, and its fence.

        Args:
            connection: Of sqlite3 or psycopg.
            key: Value of the key; a tuple if it has several columns.
            values: By column; may be empty.
            fence: Of the message.

        Raises:
            Fenced: The row has a newer fence; nothing was written.
        """
        return drive(connection, self._updating(dialect_of(connection), key, values, fence))

    def upsert(
        self, connection: Any, key: Any, values: Mapping[str, Any], *, fence: int
    ) -> Written:
        """Insert a row, or set columns of the one that is there; see :meth:`update`."""
        return drive(connection, self._upserting(dialect_of(connection), key, values, fence))

    async def aupdate(
        self, connection: Any, key: Any, values: Mapping[str, Any], *, fence: int
    ) -> Written:
        """See :meth:`update`; over a ``psycopg.AsyncConnection``."""
        return await adrive(connection, self._updating(dialect_of(connection), key, values, fence))

    async def aupsert(
        self, connection: Any, key: Any, values: Mapping[str, Any], *, fence: int
    ) -> Written:
        """See :meth:`upsert`; over a ``psycopg.AsyncConnection``."""
        return await adrive(connection, self._upserting(dialect_of(connection), key, values, fence))

    def update_statement(
        self, dialect: Dialect, key: Any, values: Mapping[str, Any], *, fence: int
    ) -> Statement:
        """Return the UPDATE and its values, to be run by other means.

        It changes one row if it was applied, and none otherwise.
        """
        return self._shape.update(dialect, key, values, fence)

    def upsert_statement(
        self, dialect: Dialect, key: Any, values: Mapping[str, Any], *, fence: int
    ) -> Statement:
        """Return the INSERT ... ON CONFLICT; see :meth:`update_statement`."""
        return self._shape.upsert(dialect, key, values, fence)

    def check(self, connection: Any, columns: Sequence[str] = ()) -> None:
        """Find out at the start of a program whether writes can work.

        Args:
            connection: Of sqlite3 or psycopg.
            columns: What will be written beside key and fence.

        Raises:
            LookupError: There is no such table, or a column is missing.
            ValueError: The fence is no integer of 64 bits, or the key is not unique.
        """
        drive(connection, checking(dialect_of(connection), self._shape, columns))

    async def acheck(self, connection: Any, columns: Sequence[str] = ()) -> None:
        """See :meth:`check`; over a ``psycopg.AsyncConnection``."""
        await adrive(connection, checking(dialect_of(connection), self._shape, columns))

    def _updating(
        self, dialect: Dialect, key: Any, values: Mapping[str, Any], fence: int
    ) -> Steps[Written]:
        statement = self._shape.update(dialect, key, values, fence)
        written = yield from self._writing(dialect, key, fence, statement)
        return Written.NO_ROW if written is None else written

    def _upserting(
        self, dialect: Dialect, key: Any, values: Mapping[str, Any], fence: int
    ) -> Steps[Written]:
        statement = self._shape.upsert(dialect, key, values, fence)
        for _ in range(_TRIES):
            written = yield from self._writing(dialect, key, fence, statement)
            if written is not None:
                return written
        raise TimeoutError(f"{self._row(key)} comes and goes too fast to be written")

    def _writing(
        self, dialect: Dialect, key: Any, fence: int, statement: Statement
    ) -> Steps[Written | None]:
        """Run *statement*; return None if there is no row."""
        for _ in range(_TRIES):
            done = yield statement
            if done.changed:
                return Written.APPLIED
            found = yield self._shape.look(dialect, key)
            if not found.rows:
                return None
            newest = found.rows[0][0]
            if newest is not None and newest > fence:
                raise Fenced(self._row(key), fence, newest)
            if newest == fence and self._once_per_lease:
                return Written.REPEATED
            # The row has come, or has changed, since the write did not find it: once more.
        raise TimeoutError(f"{self._row(key)} changes too fast to be written")

    def _row(self, key: Any) -> str:
        return f"{'.'.join(self._shape.table)} {key}"
