"""A history in PostgreSQL, through psycopg 3."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, TypeVar

from leasehold.extras import install

try:
    import psycopg
except ImportError as error:  # pragma: no cover - the tests have it
    raise ImportError(f"the history in PostgreSQL needs psycopg: {install('postgres')}") from error

from leasehold.clock import Clock
from leasehold.worker.idempotency.errors import Fenced
from leasehold.worker.idempotency.history import (
    DEFAULT_WINDOW_S,
    SWEEP_STEP,
    Entry,
    Holder,
    check_window,
    may_pass,
    milliseconds,
    newest_of,
)
from leasehold.worker.idempotency.sql import DEFAULT_TABLE, entry_of, load_statements

_SWEEP_EVERY: Final = 64
_PASSING: Final = (psycopg.OperationalError, psycopg.errors.ReadOnlySqlTransaction)
"""The second one is what a standby says that is not the primary yet, or not any more."""
_CREATION_LOCK: Final = 0x1EA5E_601D
"""Number of an advisory lock: two that create the same table at once would fail otherwise."""

_T = TypeVar("_T")


class PostgresProcessed:
    """See :class:`~leasehold.worker.idempotency.history.Processed`.

    Each call is a statement or two in a transaction of its own, with the session's
    ``synchronous_commit``. A failover to a standby that replicates asynchronously loses the last
    of them, and with them the memory of what was done.

    Connections are opened as threads need them at the same time, and kept. A request whose
    connection broke is sent once more over a new one.

    Args:
        conninfo: What libpq takes: a URL, or ``host=... dbname=...``.
        window_s: How long a key is remembered, in seconds, above 0.
        clock: That the window is measured by; None: the database's own, so that all machines agree.
        table: Name of the table, or ``schema.table``. It is created if need be.
        connect: Opens a connection, in place of *conninfo*.
    """

    def __init__(
        self,
        conninfo: str = "",
        window_s: float = DEFAULT_WINDOW_S,
        *,
        clock: Clock | None = None,
        table: str = DEFAULT_TABLE,
        connect: Callable[[], psycopg.Connection[Any]] | None = None,
    ) -> None:
        self.window_s = check_window(window_s)
        self._conninfo = conninfo
        self._connect = connect
        self._clock = clock
        self._sql = load_statements("postgresql", table, database_clock=clock is None)
        self._lock = threading.Lock()
        self._start()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in {"_lock", "_idle"}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._lock = threading.Lock()
        self._start()

    def _start(self) -> None:
        self._process = os.getpid()
        self._idle: list[psycopg.Connection[Any]] = []
        self._is_created = False
        self._finished = 0

    def begin(self, key: str, holder: Holder, hold_s: float | None = None) -> Entry | None:
        """See :class:`~leasehold.worker.idempotency.history.Processed`."""
        hold_ms = milliseconds(self.window_s if hold_s is None else hold_s)
        values = self._values(key, holder) | {"done": 0, "hold_ms": hold_ms}
        return self._do(lambda link: self._enter(link, "begin", values))

    def finish(self, key: str, holder: Holder, result: str | None) -> None:
        """See :class:`~leasehold.worker.idempotency.history.Processed`."""
        values = self._values(key, holder) | {"result": result}
        entry = self._do(lambda link: self._enter(link, "finish", values))
        if entry is not None:
            raise Fenced(key, holder.fence, newest_of(entry, holder))
        with self._lock:
            self._finished += 1
            is_time = self._finished % _SWEEP_EVERY == 0
        if is_time:
            self.sweep()

    def abandon(self, key: str, holder: Holder) -> None:
        """See :class:`~leasehold.worker.idempotency.history.Processed`."""
        self._count("abandon", {"key": key, "run": holder.run})

    def look(self, key: str) -> Entry | None:
        """See :class:`~leasehold.worker.idempotency.history.Processed`."""
        values = self._now() | {"key": key}
        row = self._do(lambda link: link.execute(self._statement("look"), values).fetchone())
        return None if row is None else entry_of(row)

    def forget(self, key: str) -> bool:
        """See :class:`~leasehold.worker.idempotency.history.Processed`."""
        return self._count("forget", {"key": key}) > 0

    def sweep(self, limit: int = SWEEP_STEP) -> int:
        """See :class:`~leasehold.worker.idempotency.history.Processed`."""
        return self._count("sweep", self._now() | {"limit": limit})

    def may_pass(self, error: Exception) -> bool:
        """See :class:`~leasehold.worker.idempotency.history.KnowsItsErrors`."""
        return isinstance(error, _PASSING) or may_pass(error)

    def close(self) -> None:
        """See :class:`~leasehold.worker.idempotency.history.Processed`."""
        with self._lock:
            idle, self._idle = self._idle, []
        if self._process == os.getpid():
            for connection in idle:
                connection.close()

    def _enter(
        self, link: psycopg.Connection[Any], name: str, values: Mapping[str, Any]
    ) -> Entry | None:
        """Run *name*; return None if it was done, or what stands in its way."""
        while link.execute(self._statement(name), values).fetchone() is None:
            row = link.execute(self._statement("look"), values).fetchone()
            # It may have been abandoned or forgotten in between: then there is another chance.
            if row is not None:
                return entry_of(row)
        return None

    def _count(self, name: str, values: Mapping[str, Any]) -> int:
        return self._do(lambda link: link.execute(self._statement(name), values).rowcount)

    def _do(self, work: Callable[[psycopg.Connection[Any]], _T]) -> _T:
        """Do *work*, once more if an idle connection turns out to be dead.

        It may have been done the first time: each statement here can be repeated by the same run.
        """
        link = self._idle_one()
        if link is not None:
            try:
                with self._kept(link):
                    return work(link)
            except psycopg.OperationalError:
                if not link.broken:
                    raise
        link = self._open()
        with self._kept(link):
            return work(link)

    def _idle_one(self) -> psycopg.Connection[Any] | None:
        if self._process != os.getpid():
            # After a fork the connections are the parent's. Closing them would end its sessions.
            _inherited.extend(self._idle)
            self._lock = threading.Lock()
            self._start()
        with self._lock:
            return self._idle.pop() if self._idle else None

    @contextmanager
    def _kept(self, link: psycopg.Connection[Any]) -> Iterator[None]:
        """Put *link* with the idle ones afterwards, unless it broke."""
        try:
            yield
        finally:
            if link.broken:
                link.close()
            else:
                with self._lock:
                    self._idle.append(link)

    def _open(self) -> psycopg.Connection[Any]:
        link = self._connect() if self._connect else psycopg.connect(self._conninfo)
        try:
            link.autocommit = True
            if not self._is_created:
                with link.transaction():
                    link.execute("SELECT pg_advisory_xact_lock(%s)", [_CREATION_LOCK])
                    link.execute(self._statement("create_table"))
                    link.execute(self._statement("create_index"))
                self._is_created = True
        except BaseException:
            link.close()
            raise
        return link

    def _statement(self, name: str) -> bytes:
        # As bytes: psycopg's types take text only if it is literal.
        return self._sql[name].encode()

    def _now(self) -> dict[str, Any]:
        return {} if self._clock is None else {"now_ms": self._clock.now_ms()}

    def _values(self, key: str, holder: Holder) -> dict[str, Any]:
        return self._now() | {
            "key": key,
            "source": holder.source,
            "fence": holder.fence,
            "run": holder.run,
            "window_ms": milliseconds(self.window_s),
        }


_inherited: Final[list[psycopg.Connection[Any]]] = []
"""Connections of parents, which must not be closed."""
