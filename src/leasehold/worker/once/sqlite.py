"""A history in a file of SQLite."""

from __future__ import annotations

import os
import sqlite3
from typing import Any, Final

from leasehold.clock import Clock, SystemClock
from leasehold.worker.once.errors import Fenced
from leasehold.worker.once.protocol import (
    DEFAULT_WINDOW_S,
    SWEEP_STEP,
    check_window,
    may_pass,
    milliseconds,
)
from leasehold.worker.once.rules import Entry, Holder, newest_of
from leasehold.worker.once.sql import DEFAULT_TABLE, entry_of, load_statements
from leasehold.worker.once.sqlite_file import DEFAULT_PATIENCE_S, SqliteFile

_PASSING: Final = frozenset(
    (
        *(sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED),
        *(sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR),
    )
)
_PRIMARY: Final = 0xFF
"""The part of a code that says its kind (https://sqlite.org/rescode.html)."""
_SWEEP_EVERY: Final = 64
"""Keys done between two sweeps; a sweep removes more than that, so that the file does not grow."""


class SqliteProcessed:
    """See :class:`~leasehold.worker.once.protocol.Processed`.

    Any number of threads and processes of one machine may use one file. What is recorded as done is
    on the disk before :meth:`finish` returns. That somebody began is not waited for: a power cut
    that loses it ends every process that could have known of it.

    Args:
        path: The file; it is created if need be. Two more appear beside it in WAL mode, and a
            third for the lock of writers.
        window_s: How long a key is remembered, in seconds, above 0.
        clock: That the window is measured by.
        patience_s: How long to wait for other writers before a TimeoutError, in seconds.
        table: Name of the table.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        window_s: float = DEFAULT_WINDOW_S,
        *,
        clock: Clock | None = None,
        patience_s: float = DEFAULT_PATIENCE_S,
        table: str = DEFAULT_TABLE,
    ) -> None:
        self.window_s = check_window(window_s)
        self._clock = clock or SystemClock()
        self._sql = load_statements("sqlite", table)
        setup = (self._sql["create_table"], self._sql["create_index"])
        self._file = SqliteFile(path, setup, patience_s=patience_s)
        self._finished = 0

    def begin(self, key: str, holder: Holder, hold_s: float | None = None) -> Entry | None:
        """See :class:`~leasehold.worker.once.protocol.Processed`."""
        hold_ms = milliseconds(self.window_s if hold_s is None else hold_s)
        with self._file.writing(durable=False) as connection:
            values = self._values(key, holder) | {"done": 0, "hold_ms": hold_ms}
            while not connection.execute(self._sql["begin"], values).fetchall():
                row = connection.execute(self._sql["look"], values).fetchone()
                # A connection of somebody else's may have removed the row in between.
                if row is not None:
                    return entry_of(row)
            return None

    def finish(self, key: str, holder: Holder, result: str | None) -> None:
        """See :class:`~leasehold.worker.once.protocol.Processed`."""
        with self._file.writing() as connection:
            values = self._values(key, holder) | {"result": result}
            while not connection.execute(self._sql["finish"], values).fetchall():
                row = connection.execute(self._sql["look"], values).fetchone()
                if row is not None:
                    raise Fenced(key, holder.fence, newest_of(entry_of(row), holder))
            self._finished += 1
            if self._finished % _SWEEP_EVERY == 0:
                connection.execute(self._sql["sweep"], values | {"limit": SWEEP_STEP})

    def abandon(self, key: str, holder: Holder) -> None:
        """See :class:`~leasehold.worker.once.protocol.Processed`."""
        with self._file.writing(durable=False) as connection:
            connection.execute(self._sql["abandon"], {"key": key, "run": holder.run})

    def look(self, key: str) -> Entry | None:
        """See :class:`~leasehold.worker.once.protocol.Processed`."""
        values = {"key": key, "now_ms": self._clock.now_ms()}
        with self._file.writing() as connection:
            row = connection.execute(self._sql["look"], values).fetchone()
        return None if row is None else entry_of(row)

    def forget(self, key: str) -> bool:
        """See :class:`~leasehold.worker.once.protocol.Processed`."""
        with self._file.writing() as connection:
            return connection.execute(self._sql["forget"], {"key": key}).rowcount > 0

    def sweep(self, limit: int = SWEEP_STEP) -> int:
        """See :class:`~leasehold.worker.once.protocol.Processed`."""
        values = {"now_ms": self._clock.now_ms(), "limit": limit}
        with self._file.writing() as connection:
            return connection.execute(self._sql["sweep"], values).rowcount

    def may_pass(self, error: Exception) -> bool:
        """See :class:`~leasehold.worker.once.protocol.KnowsItsErrors`."""
        if isinstance(error, sqlite3.OperationalError):
            return getattr(error, "sqlite_errorcode", 0) & _PRIMARY in _PASSING
        return may_pass(error)

    def close(self) -> None:
        """See :class:`~leasehold.worker.once.protocol.Processed`."""
        self._file.close()

    def _values(self, key: str, holder: Holder) -> dict[str, Any]:
        return {
            "key": key,
            "source": holder.source,
            "fence": holder.fence,
            "run": holder.run,
            "now_ms": self._clock.now_ms(),
            "window_ms": milliseconds(self.window_s),
        }
