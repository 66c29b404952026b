"""A strict queue in a file, which several processes can open, and which keeps who renewed when."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from leasehold.testing.memory_queue import MEMORY
from leasehold.worker.adapters.protocol import (
    Capabilities,
    Delivery,
    Denied,
    Lease,
    LeaseGone,
    QueueError,
    Renewed,
    Saved,
    Unreachable,
)
from leasehold.worker.adapters.specs import QueueSpec

_TABLES = """
CREATE TABLE messages (
    id INTEGER PRIMARY KEY, receipt INTEGER DEFAULT 0, ends_s REAL, saved TEXT, done INTEGER
);
CREATE TABLE renewals (id INTEGER, at_s REAL, lease_s INTEGER, pid INTEGER);
"""


@dataclass(frozen=True)
class FileSpec(QueueSpec):
    """Where the file is; with it another process opens the same queue."""

    def open(self) -> Any:
        """Open the queue."""
        if self.queue == "broken":
            raise RuntimeError("no such queue can be opened")
        path = Path(self.connection)
        with path.with_name("opened").open("a") as opened:
            opened.write("x")
        return FileQueue(path)


class FileQueue:
    """The part of a client that a manager of leases uses.

    While there is a FIFO called ``hold`` beside the file, renewals wait until somebody has opened
    it for writing, and closed it. While there is a file ``deaf``, they are carried out and not
    answered; those with the receipt before the newest are always answered.
    """

    name = "file"
    capabilities: Capabilities = MEMORY

    def __init__(self, path: Path, queue: str = "file") -> None:
        self.path = path
        self.spec = FileSpec("memory", queue, str(path))
        if not path.exists():
            with self._open() as database:
                database.executescript(_TABLES)

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        database = sqlite3.connect(self.path, timeout=30, isolation_level=None)
        try:
            database.execute("PRAGMA synchronous = OFF")
            yield database
        finally:
            database.close()

    def receive(self, count: int, lease_s: int, kind: str | None = None) -> list[Delivery]:
        """Put messages and lease them."""
        ends_s = time.monotonic() + lease_s
        with self._open() as database:
            ids = [
                database.execute("INSERT INTO messages (ends_s) VALUES (?)", (ends_s,)).lastrowid
                for _ in range(count)
            ]
        return [
            Delivery(queue="file", message_id=str(each), receipt="0", type=kind) for each in ids
        ]

    def renew(
        self, leases: Sequence[Lease], visibility_timeout_s: int, *, timeout_s: float | None = None
    ) -> list[Renewed | QueueError]:
        """Renew what is leased."""
        hold = self.path.with_name("hold")
        with contextlib.suppress(FileNotFoundError):
            hold.read_bytes()
        if self.path.with_name("unreachable").exists():
            raise Unreachable("nobody answers")
        if self.path.with_name("denied").exists():
            raise Denied("403")
        with self._open() as database:
            answers = [self._renew(database, lease, visibility_timeout_s) for lease in leases]
        if self.path.with_name("deaf").exists():
            raise Unreachable("the answer is lost")
        return answers

    def _renew(
        self, database: sqlite3.Connection, lease: Lease, lease_s: int
    ) -> Renewed | QueueError:
        now_s = time.monotonic()
        changed = database.execute(
            "UPDATE messages SET receipt = receipt + 1, ends_s = ? WHERE id = ? AND receipt = ?"
            " AND ends_s > ? AND done IS NULL",
            (now_s + lease_s, lease.message_id, lease.receipt, now_s),
        )
        newest = int(lease.receipt) + 1
        if not changed.rowcount:
            changed = database.execute(
                "UPDATE messages SET ends_s = ? WHERE id = ? AND receipt = ? AND ends_s > ?"
                " AND done IS NULL",
                (now_s + lease_s, lease.message_id, newest, now_s),
            )
        if not changed.rowcount:
            return LeaseGone("the lease is over, or the receipt is old")
        database.execute(
            "INSERT INTO renewals VALUES (?, ?, ?, ?)",
            (lease.message_id, now_s, lease_s, os.getpid()),
        )
        cancel = "wrong customer" if self.path.with_name("cancel").exists() else None
        return Renewed(str(newest), cancel)

    def save(
        self, delivery: Delivery, receipt: str, saved: Saved, visibility_timeout_s: int
    ) -> Renewed:
        """Save the stage, and renew."""
        with self._open() as database:
            result = self._renew(
                database, Lease(delivery.message_id, receipt), visibility_timeout_s
            )
            if isinstance(result, QueueError):
                raise result
            database.execute(
                "UPDATE messages SET saved = ? WHERE id = ?", (saved.stage, delivery.message_id)
            )
            return result

    def complete(self, lease: Lease) -> QueueError | None:
        """Complete what is leased."""
        with self._open() as database:
            changed = database.execute(
                "UPDATE messages SET done = 1 WHERE id = ? AND receipt = ? AND ends_s > ?"
                " AND done IS NULL",
                (lease.message_id, lease.receipt, time.monotonic()),
            )
        return None if changed.rowcount else LeaseGone("the lease is over, or the receipt is old")

    def renewals(self, message_id: str | None = None) -> list[tuple[float, int, int]]:
        """Return when something was renewed, for how long, and by which process."""
        with self._open() as database:
            found = database.execute(
                "SELECT at_s, lease_s, pid FROM renewals WHERE :id IS NULL OR id = :id"
                " ORDER BY at_s",
                {"id": message_id},
            )
            return found.fetchall()
