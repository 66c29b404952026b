"""Handlers, good and bad, for proofs; another process can import them.

Each works on a database of SQLite, whose path is in the environment.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from leasehold.worker.errors import Retry
from leasehold.worker.idempotency import (
    FencedTable,
    FenceLedger,
    MemoryProcessed,
    Once,
    SqliteProcessed,
)

PATH = "LEASEHOLD_TEST_REHEARSAL"
_SCHEMA = """
CREATE TABLE effect (id TEXT, fence INTEGER);
CREATE TABLE video (id TEXT PRIMARY KEY, url TEXT, fence BIGINT);
CREATE TABLE account (id TEXT PRIMARY KEY, balance INTEGER);
CREATE TABLE flag (id TEXT PRIMARY KEY);
INSERT INTO account VALUES ('a', 0);
"""
once = Once()
ledger = FenceLedger()


@contextmanager
def connection() -> Iterator[sqlite3.Connection]:
    link = sqlite3.connect(os.environ[PATH], timeout=30)
    link.execute("PRAGMA synchronous = OFF")
    try:
        yield link
    finally:
        link.close()


def reset() -> None:
    in_memory._guard._given = MemoryProcessed()
    with connection() as link:
        names = [
            row[0] for row in link.execute("SELECT name FROM sqlite_master WHERE type='table'")
        ]
        for name in names:
            link.execute(f"DROP TABLE {name}")
        link.executescript(_SCHEMA)
        once.history.create(link)
        ledger.create(link)
        link.commit()


def probe() -> Any:
    """The effects, without the fences that they were written with."""
    with connection() as link:
        return [
            link.execute(sql).fetchall()
            for sql in (
                "SELECT id FROM effect",
                "SELECT id, url FROM video",
                "SELECT id, balance FROM account",
            )
        ]


def unfenced(message: Any) -> None:
    """Adds a row at each delivery."""
    with connection() as link:
        link.execute("INSERT INTO effect VALUES (?, ?)", [message.id, message.fence])
        link.commit()


def overwriting(message: Any) -> None:
    """Writes the same again, whatever is there: repeats are harmless, late workers are not."""
    message.check()
    with connection() as link:
        link.execute("INSERT OR REPLACE INTO video VALUES ('v', ?, NULL)", [message.text])
        link.commit()


def fenced(message: Any) -> None:
    """Writes with the fence."""
    message.checkpoint({"at": 1})
    with connection() as link:
        FencedTable("video").upsert(link, "v", {"url": message.text}, fence=message.fence)
        link.commit()


def later() -> None:
    """What somebody else writes to the row afterwards."""
    with connection() as link:
        link.execute("UPDATE video SET url = 'later'")
        link.commit()


def remembered(message: Any) -> None:
    """Looks into the history first; effect and record are apart."""
    store = SqliteProcessed(os.environ[PATH])
    with Once(store, wait_s=0)(message) as run:
        if run.first:
            unfenced(message)
    store.close()


in_memory = Once(MemoryProcessed(), wait_s=0)


@in_memory.handler
def decorated(message: Any) -> None:
    """The record comes after the last line."""
    unfenced(message)


@in_memory.handler
async def decorated_async(message: Any) -> None:
    """The same as a coroutine, which also waits."""
    await asyncio.sleep(0)
    unfenced(message)


def transactional(message: Any) -> None:
    """Effect and record in one transaction."""
    with connection() as link, once.in_transaction(link, message) as run:
        if run.first:
            link.execute("UPDATE account SET balance = balance + 1")
            link.execute("INSERT INTO effect VALUES (?, ?)", [message.id, message.fence])


async def transactional_async(message: Any) -> None:
    """The same as a coroutine."""
    transactional(message)


def guarded(message: Any) -> None:
    """Keeps late workers out, but does the work again at each new delivery."""
    with connection() as link:
        ledger.enter(link, message)
        link.execute("UPDATE account SET balance = balance + 1")
        link.commit()


def flag_first(message: Any) -> None:
    """Says that it is done before it is: a crash loses the effect."""
    with connection() as link:
        if link.execute("INSERT OR IGNORE INTO flag VALUES (?)", [message.id]).rowcount == 0:
            return
        link.commit()
    unfenced(message)


def resuming(message: Any) -> None:
    """Goes on from what was saved; each part is written with the fence."""
    done = message.saved.state if message.saved else 0
    for part in range(done, 3):
        with connection() as link:
            FencedTable("video").upsert(link, f"part{part}", {}, fence=message.fence)
            link.commit()
        message.checkpoint(part + 1)


def asking_again(message: Any) -> None:
    """Gets through at the third delivery only."""
    if message.fence < 3:
        raise Retry(1)
    unfenced(message)
