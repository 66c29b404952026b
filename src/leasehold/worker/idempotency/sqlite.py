"""A history in a file of SQLite."""

from __future__ import annotations

import fcntl
import os
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from leasehold.clock import Clock, SystemClock
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

# --- sqlite file -------------------------------------------------------------------------------
#
# A file of SQLite that any number of threads and processes of one machine write to.


DEFAULT_PATIENCE_S: Final = 30.0
_FIRST_WAIT_S: Final = 0.001
_LONGEST_WAIT_S: Final = 0.02


class SqliteFile:
    """One connection, opened when it is needed, in WAL mode.

    Whoever writes holds a lock on a second file beside the first, named ``<file>.lock``. SQLite
    would order the writers by itself, but up to 3.51.2 two connections that commit and checkpoint
    at the same moment can corrupt a file in WAL mode (https://sqlite.org/wal.html#walresetbug),
    and Python is often built with such a version. With the lock only one writes or checkpoints.

    After a fork the child opens a connection of its own.

    Args:
        path: The file, on a disk of this machine: WAL does not work over a network.
        setup: Statements that create what is missing.
        patience_s: How long to wait for other writers, in seconds.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        setup: Sequence[str],
        *,
        patience_s: float = DEFAULT_PATIENCE_S,
    ) -> None:
        if os.fspath(path) in {"", ":memory:"}:
            raise ValueError("a file is needed; there are stores in memory too")
        self.path = Path(path).absolute()
        self._setup = tuple(setup)
        self._patience_s = patience_s
        self._start()

    def __reduce__(self) -> tuple[Any, ...]:
        return _open, (self.path, self._setup, self._patience_s)

    def _start(self) -> None:
        self._process = os.getpid()
        self._thread_lock = threading.Lock()
        self._lock_file: int | None = None
        self._connection: sqlite3.Connection | None = None
        self._closed = False

    @contextmanager
    def writing(self, *, durable: bool = True) -> Iterator[sqlite3.Connection]:
        """Give the connection to one thread at a time, each statement a transaction of its own.

        Args:
            durable: Whether a commit waits for the disk. One that does not may be lost when the
                machine loses power, but not when the process is killed.

        Raises:
            TimeoutError: Others wrote for longer than *patience_s*.
        """
        with self._exclusive():
            if self._connection is None:
                self._connection = self._open()
            # Costs microseconds and no access to the disk.
            self._connection.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
            yield self._connection

    def close(self) -> None:
        """Close the connection for good."""
        if self._closed or self._process != os.getpid():
            return
        with self._exclusive():
            self._closed = True
            if self._connection is not None:
                # The last one to close copies the log into the file, so the lock is held here, too.
                self._connection.close()
                self._connection = None
        if self._lock_file is not None:
            os.close(self._lock_file)
            self._lock_file = None

    @contextmanager
    def _exclusive(self) -> Iterator[None]:
        if self._process != os.getpid():
            self._leave_to_parent()
        if not self._thread_lock.acquire(timeout=self._patience_s):
            raise TimeoutError(f"{self.path}: other threads wrote for {self._patience_s} s")
        try:
            if self._closed:
                raise ValueError(f"{self.path} was closed")
            if self._lock_file is None:
                flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
                self._lock_file = os.open(f"{self.path}.lock", flags, 0o666)
            self._lock(self._lock_file)
            try:
                yield
            finally:
                fcntl.flock(self._lock_file, fcntl.LOCK_UN)
        finally:
            self._thread_lock.release()

    def _lock(self, file: int) -> None:
        """Lock between processes. The kernel ends the lock of one that is killed."""
        waited_s, wait_s = 0.0, _FIRST_WAIT_S
        pause = threading.Event()
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if waited_s >= self._patience_s:
                    text = f"{self.path}: other processes wrote for {self._patience_s} s"
                    raise TimeoutError(text) from None
                pause.wait(wait_s)
                waited_s += wait_s
                wait_s = min(wait_s * 2, _LONGEST_WAIT_S)
            else:
                return

    def _leave_to_parent(self) -> None:
        """Start anew after a fork.

        The parent's connection stays open here, unused: to close it would be to write.
        """
        _inherited.append(self._connection)
        if self._lock_file is not None:
            os.close(self._lock_file)
        self._start()

    def _open(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self.path,
            timeout=self._patience_s,
            isolation_level=None,
            check_same_thread=False,
        )
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            for statement in self._setup:
                connection.execute(statement)
        except BaseException:
            connection.close()
            raise
        return connection


_inherited: Final[list[sqlite3.Connection | None]] = []
"""Connections of parents, which must not be closed."""


def _open(path: Path, setup: Sequence[str], patience_s: float) -> SqliteFile:
    return SqliteFile(path, setup, patience_s=patience_s)


# --- sqlite ------------------------------------------------------------------------------------


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
    """See :class:`~leasehold.worker.idempotency.history.Processed`.

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
        """See :class:`~leasehold.worker.idempotency.history.Processed`."""
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
        """See :class:`~leasehold.worker.idempotency.history.Processed`."""
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
        """See :class:`~leasehold.worker.idempotency.history.Processed`."""
        with self._file.writing(durable=False) as connection:
            connection.execute(self._sql["abandon"], {"key": key, "run": holder.run})

    def look(self, key: str) -> Entry | None:
        """See :class:`~leasehold.worker.idempotency.history.Processed`."""
        values = {"key": key, "now_ms": self._clock.now_ms()}
        with self._file.writing() as connection:
            row = connection.execute(self._sql["look"], values).fetchone()
        return None if row is None else entry_of(row)

    def forget(self, key: str) -> bool:
        """See :class:`~leasehold.worker.idempotency.history.Processed`."""
        with self._file.writing() as connection:
            return connection.execute(self._sql["forget"], {"key": key}).rowcount > 0

    def sweep(self, limit: int = SWEEP_STEP) -> int:
        """See :class:`~leasehold.worker.idempotency.history.Processed`."""
        values = {"now_ms": self._clock.now_ms(), "limit": limit}
        with self._file.writing() as connection:
            return connection.execute(self._sql["sweep"], values).rowcount

    def may_pass(self, error: Exception) -> bool:
        """See :class:`~leasehold.worker.idempotency.history.KnowsItsErrors`."""
        if isinstance(error, sqlite3.OperationalError):
            return getattr(error, "sqlite_errorcode", 0) & _PRIMARY in _PASSING
        return may_pass(error)

    def close(self) -> None:
        """See :class:`~leasehold.worker.idempotency.history.Processed`."""
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
