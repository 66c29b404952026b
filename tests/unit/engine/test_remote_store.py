"""A store behind a network: the event loop goes on while a batch is carried out."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

from leasehold.domain import commands as c
from leasehold.domain.errors import Unavailable
from leasehold.engine import Engine
from leasehold.stores.memory import MemoryStore
from leasehold.testing import ManualClock
from tests.unit.engine.support import put, receive

PATIENCE_S = 10


class SlowStore(MemoryStore):
    """A store whose batches wait until they are let go."""

    is_remote = True

    def __init__(self) -> None:
        super().__init__()
        self.may_go = threading.Event()
        self.may_go.set()
        self.under_way = threading.Event()
        self.batches: list[int] = []
        self.threads: set[str] = set()
        self.commit_errors: list[Exception] = []

    def execute(self, batch: Sequence[c.Command], *, now_ms: int) -> list[c.Result]:
        """See ``Store``."""
        self.threads.add(threading.current_thread().name)
        self.batches.append(len(batch))
        self.under_way.set()
        assert self.may_go.wait(PATIENCE_S)
        return super().execute(batch, now_ms=now_ms)

    def commit(self) -> bool:
        """See ``Store``."""
        self.threads.add(threading.current_thread().name)
        if self.commit_errors:
            raise self.commit_errors.pop(0)
        return True


async def started(store: SlowStore) -> Engine:
    """Return an engine with a queue."""
    engine = Engine(store, ManualClock())
    await engine.start()
    await engine.perform(c.CreateQueue("a", "queue", {}))
    store.batches.clear()
    return engine


def test_the_loop_gathers_while_a_batch_is_under_way() -> None:
    """Commands that come while the store is waited for share the next batch; nothing blocks."""

    async def scenario() -> None:
        store = SlowStore()
        engine = await started(store)
        store.may_go.clear()
        store.under_way.clear()
        first = asyncio.create_task(engine.perform(put()))
        await asyncio.to_thread(store.under_way.wait, PATIENCE_S)
        others = [asyncio.create_task(engine.perform(put())) for _ in range(9)]
        for _ in range(100):
            await asyncio.sleep(0)
        assert engine.find_queue("a", "queue") is not None
        assert engine.message_counts() == [("a", "queue", 0)]
        assert not first.done()
        store.may_go.set()
        await asyncio.gather(first, *others)
        assert store.batches == [1, 9]
        assert store.threads == {"commit"}
        await engine.stop()

    asyncio.run(scenario())


def test_a_failed_commit_is_an_answer_and_not_the_end() -> None:
    """All of a batch are told that the store is unavailable; the next batch is carried out."""

    async def scenario() -> None:
        store = SlowStore()
        engine = await started(store)
        store.commit_errors.append(Unavailable())
        told = await asyncio.gather(
            engine.perform(put()), engine.perform(receive()), return_exceptions=True
        )
        assert [type(each) for each in told] == [Unavailable, Unavailable]
        assert not engine.failed.is_set()
        await engine.perform(put())
        await engine.stop()

    asyncio.run(scenario())


def test_who_waits_is_served_from_the_batch_that_puts() -> None:
    """Long polls work as over an embedded store, receive and put in one batch."""

    async def scenario() -> None:
        store = SlowStore()
        engine = await started(store)
        waiting = asyncio.create_task(engine.receive(receive(), 60))
        await engine.settle()
        store.batches.clear()
        await engine.perform(put())
        assert len(await waiting) == 1
        assert store.batches[0] == 2
        await engine.stop()

    asyncio.run(scenario())


def test_what_was_taken_is_finished_before_the_end() -> None:
    """An engine that stops waits for the batch that is under way."""

    async def scenario() -> None:
        store = SlowStore()
        engine = await started(store)
        store.may_go.clear()
        store.under_way.clear()
        last = asyncio.create_task(engine.perform(put()))
        await asyncio.to_thread(store.under_way.wait, PATIENCE_S)
        stopping = asyncio.create_task(engine.stop())
        await asyncio.sleep(0)
        assert not stopping.done()
        store.may_go.set()
        await stopping
        assert last.done()
        assert last.exception() is None

    asyncio.run(scenario())
