"""Where handlers of a rehearsal leave what they did: a ledger in SQLite, and journals."""

from __future__ import annotations

import json
import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol, Self

from leasehold.worker.idempotency import FencedTable, Once
from tests.patience import PATIENCE_S

_LEDGER: Final = "ledger.db"
_JOURNAL: Final = "journal-*.jsonl"
_TABLES: Final = (
    # The effect, which must happen once. Nothing in the table itself keeps it from happening twice.
    "CREATE TABLE effect (name TEXT NOT NULL, fence INTEGER NOT NULL, worker TEXT NOT NULL)",
    # The state of each piece of work, which only its newest holder may write.
    "CREATE TABLE work (id TEXT PRIMARY KEY, status TEXT, worker TEXT, fence INTEGER)",
)
WORK: Final = FencedTable("work")


class Delivered(Protocol):
    """What the ledger needs of a message."""

    @property
    def id(self) -> str:
        """Its id."""
        ...

    @property
    def queue(self) -> str:
        """Name of its queue."""
        ...

    @property
    def fence(self) -> int:
        """Rises with each delivery."""
        ...

    @property
    def text(self) -> str:
        """What names the piece of work."""
        ...

    def check(self) -> None:
        """Raise if it is lost."""
        ...


class Ledger:
    """The effects; one for each process, which threads share.

    Writes are not flushed to the disk: processes are killed here, and not the machine.

    Args:
        folder: Where the file is.
        worker: Who writes.
    """

    def __init__(self, folder: Path, worker: str) -> None:
        self._worker = worker
        self._lock = threading.Lock()
        self._once = Once()
        self._connection = _connect(folder)

    @classmethod
    def create(cls, folder: Path) -> None:
        """Make the file."""
        connection = _connect(folder)
        for table in _TABLES:
            connection.execute(table)
        Once().history.create(connection)
        connection.close()

    def begin(self, message: Delivered) -> None:
        """Write that the work has begun.

        Raises:
            Fenced: A newer holder was there.
        """
        with self._transaction():
            self._note(message, "begun")

    def effect_once(self, message: Delivered) -> bool:
        """Do the effect, unless it is done; return whether it was done now.

        Raises:
            Fenced: A newer holder was there.
        """
        with self._lock, self._once.in_transaction(self._connection, message) as run:
            self._note(message, "done")
            if run.first:
                self._do(message)
        return run.first

    def effect(self, message: Delivered) -> bool:
        """Do the effect, whoever has done it before."""
        with self._transaction():
            self._do(message)
        return True

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with self._lock:
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield
            except BaseException:
                self._connection.execute("ROLLBACK")
                raise
            self._connection.execute("COMMIT")

    def _note(self, message: Delivered, status: str) -> None:
        values = {"status": status, "worker": self._worker}
        WORK.upsert(self._connection, message.id, values, fence=message.fence)

    def _do(self, message: Delivered) -> None:
        values = (message.text, message.fence, self._worker)
        self._connection.execute("INSERT INTO effect VALUES (?, ?, ?)", values)


def _connect(folder: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(
        folder / _LEDGER, isolation_level=None, check_same_thread=False, timeout=PATIENCE_S
    )
    connection.execute("PRAGMA synchronous = OFF")
    return connection


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One line of a journal."""

    what: str
    """begun, effect, repeated, ended, or whatever a handler wants to be known."""
    name: str = ""
    """The piece of work."""
    fence: int = 0
    dequeue_count: int = 0
    worker: str = ""
    at_s: float = 0
    """Of the shared time."""
    told: str = ""
    """What came of it."""


class Journal:
    """What one process has seen, written at once, so that SIGKILL takes nothing of it away.

    Args:
        folder: Where the file is.
        worker: Who writes.
    """

    def __init__(self, folder: Path, worker: str) -> None:
        self._worker = worker
        path = folder / f"journal-{worker}-{os.getpid()}.jsonl"
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def note(self, what: str, **fields: Any) -> None:
        """Write a line; the fields are those of :class:`Entry`."""
        line = json.dumps({"what": what, "worker": self._worker, **fields})
        os.write(self._file, f"{line}\n".encode())

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


@dataclass(frozen=True, slots=True, kw_only=True)
class Accounts:
    """All that was left behind."""

    effects: tuple[tuple[str, int, str], ...]
    """Name of the work, fence and worker of each effect."""
    work: tuple[tuple[str, str, int], ...]
    """Id, status and fence of each piece of work."""
    entries: tuple[Entry, ...]
    """Of all journals."""

    @classmethod
    def of(cls, folder: Path) -> Self:
        """Read them."""
        connection = _connect(folder)
        try:
            effects = connection.execute("SELECT name, fence, worker FROM effect").fetchall()
            work = connection.execute("SELECT id, status, fence FROM work").fetchall()
        finally:
            connection.close()
        return cls(effects=tuple(effects), work=tuple(work), entries=tuple(entries(folder)))

    def noted(self, what: str) -> list[Entry]:
        """Return the entries of a kind."""
        return [entry for entry in self.entries if entry.what == what]


def entries(folder: Path) -> Iterator[Entry]:
    """Yield what stands in the journals; a line that was cut off by SIGKILL does not count."""
    for path in sorted(folder.glob(_JOURNAL)):
        for line in path.read_text().splitlines(keepends=True):
            if line.endswith("\n"):
                yield Entry(**json.loads(line))
