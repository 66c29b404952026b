"""The stores that the contract holds for, and shorthand for asking them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from leasehold.domain import commands as c
from leasehold.domain.queue_settings import LapsedReceipts, QueueSettings
from leasehold.domain.types import Lease
from leasehold.stores.base import Store
from leasehold.stores.memory import MemoryStore
from leasehold.stores.sqlite import SqliteStore
from leasehold.testing import ManualClock

ACCOUNT = "coho"
QUEUE = "videos"


class Asker:
    """One store and one clock; each call is a batch of its own unless said otherwise."""

    def __init__(self, store: Store, clock: ManualClock) -> None:
        self.store = store
        self.clock = clock
        self._drawn = 0

    def batch(self, *commands: c.Command) -> list[c.Result]:
        results = self.store.execute(commands, now_ms=self.clock.now_ms())
        self.store.commit()
        return results

    def ask(self, command: c.Command) -> Any:
        return self.batch(command)[0]

    def put_command(self, body: bytes | str = b"work", **fields: Any) -> c.Put:
        self._drawn += 1
        settings: dict[str, Any] = {
            "account": ACCOUNT,
            "queue": QUEUE,
            "delay_s": 0,
            "time_to_live_s": 604_800,
            "entropy": self._drawn.to_bytes(10, "big"),
        }
        return c.Put(body=body.encode() if isinstance(body, str) else body, **(settings | fields))

    def create(self, queue: str = QUEUE, account: str = ACCOUNT, **metadata: str) -> Any:
        return self.ask(c.CreateQueue(account, queue, metadata))

    def create_strict(self) -> None:
        """Put a queue under the strict rule in place of the one that is there."""
        self.ask(c.DeleteQueue(ACCOUNT, QUEUE))
        strict = QueueSettings(lapsed_receipts=LapsedReceipts.STRICT)
        created = self.ask(c.CreateQueue(ACCOUNT, QUEUE, {}, strict))
        assert created == c.QueueCreated(created=True)

    def put(self, body: bytes | str = b"work", **fields: Any) -> Any:
        return self.ask(self.put_command(body, **fields))

    def receive(self, limit: int = 1, lease_s: int = 30, queue: str = QUEUE) -> Any:
        return self.ask(c.Receive(ACCOUNT, queue, limit, lease_s))

    def receive_one(self, lease_s: int = 30) -> Lease:
        (lease,) = self.receive(1, lease_s)
        assert isinstance(lease, Lease)
        return lease

    def peek(self, limit: int = 32, queue: str = QUEUE) -> Any:
        return self.ask(c.Peek(ACCOUNT, queue, limit))

    def bodies(self, limit: int = 32) -> list[bytes]:
        return [message.body for message in self.peek(limit)]

    def renew_command(
        self, lease: Lease, s: int, body: bytes | None = None, queue: str = QUEUE
    ) -> c.Renew:
        return c.Renew(ACCOUNT, queue, lease.message.message_id, lease.receipt, s, body)

    def renew(self, lease: Lease, s: int, body: bytes | None = None) -> Any:
        return self.ask(self.renew_command(lease, s, body))

    def complete_command(self, lease: Lease, queue: str = QUEUE) -> c.Complete:
        return c.Complete(ACCOUNT, queue, lease.message.message_id, lease.receipt)

    def complete(self, lease: Lease, queue: str = QUEUE) -> Any:
        return self.ask(self.complete_command(lease, queue))

    def count(self, queue: str = QUEUE) -> int:
        info = self.ask(c.GetQueue(ACCOUNT, queue))
        assert isinstance(info, c.QueueInfo)
        return info.message_count


Opener = Callable[[Path], Store]
STORES: dict[str, Opener] = {
    "memory": lambda _: MemoryStore(),
    "sqlite": lambda folder: SqliteStore(folder, cache_mib=2),
}


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    opened = STORES[request.param](tmp_path)
    yield opened
    opened.close()


@pytest.fixture
def empty(store: Store, clock: ManualClock) -> Asker:
    """A store without a queue."""
    return Asker(store, clock)


@pytest.fixture
def asker(empty: Asker) -> Asker:
    """A store with one queue."""
    assert empty.create() == c.QueueCreated(created=True)
    return empty
