"""Where the newest fence of each message is remembered, apart from what it guards."""

from __future__ import annotations

import heapq
import os
import threading
from typing import Any, Final, Protocol

from leasehold.clock import Clock, SystemClock
from leasehold.worker.once.errors import Fenced
from leasehold.worker.once.keys import join_key
from leasehold.worker.once.links import (
    Statement,
    Steps,
    adrive,
    check_transaction,
    dialect_of,
    drive,
)
from leasehold.worker.once.protocol import (
    DEFAULT_WINDOW_S,
    SWEEP_STEP,
    Delivered,
    check_window,
    milliseconds,
)
from leasehold.worker.once.rules import check_fence_number
from leasehold.worker.once.sql import Dialect, load_statements
from leasehold.worker.once.sqlite_file import DEFAULT_PATIENCE_S, SqliteFile

DEFAULT_FENCE_TABLE: Final = "leasehold_fence"
_FILE: Final = "fences.sql"
_SWEEP_EVERY: Final = 64
_SWEEP_AT_ONCE: Final = 4


class FenceStore(Protocol):
    """Remembers the newest fence of each name for a window, which begins anew with each use."""

    def admit(self, name: str, fence: int) -> None:
        """Let *fence* in if it is not older than the newest under *name*, and remember it.

        Raises:
            Fenced: It is older.
            ValueError: It cannot be a fence.
        """
        ...


class MemoryFences:
    """See :class:`FenceStore`. For tests, and for a receiver of one process that may forget.

    Args:
        window_s: How long a name is remembered, in seconds, above 0.
        clock: That the window is measured by.
    """

    def __init__(self, window_s: float = DEFAULT_WINDOW_S, *, clock: Clock | None = None) -> None:
        self._window_ms = milliseconds(check_window(window_s))
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._newest: dict[str, tuple[int, int]] = {}
        self._expiries: list[tuple[int, str]] = []

    def admit(self, name: str, fence: int) -> None:
        """See :class:`FenceStore`."""
        check_fence_number(fence)
        with self._lock:
            now_ms = self._clock.now_ms()
            self._sweep(now_ms)
            newest, _ = self._newest.get(name, (-1, 0))
            if newest > fence:
                raise Fenced(name, fence, newest)
            expires_at_ms = now_ms + self._window_ms
            self._newest[name] = (fence, expires_at_ms)
            heapq.heappush(self._expiries, (expires_at_ms, name))

    def __len__(self) -> int:
        """How many names are kept."""
        return len(self._newest)

    def _sweep(self, now_ms: int) -> None:
        while self._expiries and self._expiries[0][0] <= now_ms:
            expires_at_ms, name = heapq.heappop(self._expiries)
            if self._newest[name][1] == expires_at_ms:
                del self._newest[name]


class SqliteFences:
    """See :class:`FenceStore`. For receivers with any number of processes on one machine.

    Args:
        path: The file; see :class:`~leasehold.worker.once.sqlite.SqliteProcessed`.
        window_s: How long a name is remembered, in seconds, above 0.
        clock: That the window is measured by.
        patience_s: How long to wait for other writers before a TimeoutError, in seconds.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        window_s: float = DEFAULT_WINDOW_S,
        *,
        clock: Clock | None = None,
        patience_s: float = DEFAULT_PATIENCE_S,
    ) -> None:
        self._ledger = FenceLedger(window_s, clock=clock, sweep_step=0)
        statements = load_statements("sqlite", DEFAULT_FENCE_TABLE, file_name=_FILE)
        setup = (statements["create_table"], statements["create_index"])
        self._file = SqliteFile(path, setup, patience_s=patience_s)
        self._admitted = 0

    def admit(self, name: str, fence: int) -> None:
        """See :class:`FenceStore`. It is on the disk when this returns."""
        with self._file.writing() as connection:
            self._ledger.admit(connection, name, fence)
            self._admitted += 1
            if self._admitted % _SWEEP_EVERY == 0:
                self._ledger.sweep(connection)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class FenceLedger:
    """The newest fence of each message, in a database of the user and in the user's transactions.

    ::

        with connection:
            ledger.enter(connection, message)       # an older delivery gets Fenced, and rolls back
            connection.execute("UPDATE account SET balance = balance + ...")

    It guards whatever else the transaction writes, also rows that many messages write to, and
    handlers of many transactions. It does not make a message happen once: for that see
    :meth:`~leasehold.worker.once.running.Once.in_transaction`, which guards as well.

    Until the transaction ends, other deliveries of the message wait in :meth:`enter`.

    Args:
        window_s: How long a message is remembered, in seconds, above 0.
        table: Name of the table, or ``schema.table``.
        clock: That the window is measured by. None: for PostgreSQL the database's own, for SQLite
            that of the machine.
        sweep_step: Expired rows that each :meth:`enter` removes; 0: none.
    """

    def __init__(
        self,
        window_s: float = DEFAULT_WINDOW_S,
        *,
        table: str = DEFAULT_FENCE_TABLE,
        clock: Clock | None = None,
        sweep_step: int = _SWEEP_AT_ONCE,
    ) -> None:
        self._window_ms = milliseconds(check_window(window_s))
        self._clock = clock
        self._sqlite_clock = clock or SystemClock()
        self._sweep_step = sweep_step
        self._sql: dict[Dialect, dict[str, str]] = {
            "sqlite": load_statements("sqlite", table, file_name=_FILE),
            "postgresql": load_statements(
                "postgresql", table, file_name=_FILE, database_clock=clock is None
            ),
        }

    def create(self, connection: Any) -> None:
        """Create the table, unless it is there."""
        drive(connection, self._creating(dialect_of(connection)))

    async def acreate(self, connection: Any) -> None:
        """See :meth:`create`; over a ``psycopg.AsyncConnection``."""
        await adrive(connection, self._creating(dialect_of(connection)))

    def enter(self, connection: Any, message: Delivered) -> None:
        """Go on only if no newer delivery of *message* has been here.

        Raises:
            Fenced: One has. Roll the transaction back.
            RuntimeError: No transaction is open, and none will be opened.
        """
        check_transaction(connection)
        self.admit(connection, join_key(message.queue, message.id), message.fence)

    async def aenter(self, connection: Any, message: Delivered) -> None:
        """See :meth:`enter`; over a ``psycopg.AsyncConnection``."""
        check_transaction(connection)
        name = join_key(message.queue, message.id)
        await adrive(connection, self._admitting(dialect_of(connection), name, message.fence))

    def admit(self, connection: Any, name: str, fence: int) -> None:
        """See :class:`FenceStore`."""
        drive(connection, self._admitting(dialect_of(connection), name, fence))

    def on(self, connection: Any) -> FenceStore:
        """Return a store, for ``check_fence``, that writes in the transaction of *connection*."""
        return _Bound(self, connection)

    def sweep(self, connection: Any, limit: int = SWEEP_STEP) -> int:
        """Remove up to *limit* expired rows; return how many."""
        return drive(connection, self._sweeping(dialect_of(connection), limit))

    def _creating(self, dialect: Dialect) -> Steps[None]:
        for name in ("create_table", "create_index"):
            yield Statement(self._sql[dialect][name])

    def _admitting(self, dialect: Dialect, name: str, fence: int) -> Steps[None]:
        check_fence_number(fence)
        values = {"name": name, "fence": fence, "window_ms": self._window_ms}
        while not (yield self._statement(dialect, "admit", values)).rows:
            found = yield self._statement(dialect, "look", {"name": name})
            if found.rows and found.rows[0][0] > fence:
                raise Fenced(name, fence, found.rows[0][0])
        if self._sweep_step:
            yield from self._sweeping(dialect, self._sweep_step)

    def _sweeping(self, dialect: Dialect, limit: int) -> Steps[int]:
        done = yield self._statement(dialect, "sweep", {"limit": limit})
        return done.changed

    def _statement(self, dialect: Dialect, name: str, values: dict[str, Any]) -> Statement:
        clock = self._sqlite_clock if dialect == "sqlite" else self._clock
        now = {} if clock is None else {"now_ms": clock.now_ms()}
        return Statement(self._sql[dialect][name], values | now)


class _Bound:
    """A ledger and a connection."""

    def __init__(self, ledger: FenceLedger, connection: Any) -> None:
        self._ledger = ledger
        self._connection = connection

    def admit(self, name: str, fence: int) -> None:
        """See :class:`FenceStore`."""
        check_transaction(self._connection)
        self._ledger.admit(self._connection, name, fence)
