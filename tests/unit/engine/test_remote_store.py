"""A store behind a network: the event loop goes on while a batch takes its time."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

import pytest

from leasehold.domain import commands as c
from leasehold.domain.command import AnyCommand
from leasehold.domain.errors import Unavailable
from leasehold.engine import Engine
from leasehold.engine.commit_policy import STAND_BACK_S
from leasehold.stores.memory import MemoryStore
from leasehold.testing import ManualClock
from tests.patience import PATIENCE_S
from tests.unit.engine.support import put, receive


class SlowStore(MemoryStore):
    """A store whose batches wait until they are let go, unless the loop is to wait for them."""

    is_quick = False
    """Whether it carries out batches for which the loop waits."""
    is_late = False
    """Whether it commits too late for the loop."""

    def __init__(self) -> None:
        super().__init__()
        self.may_go = threading.Event()
        self.may_go.set()
        self.under_way = threading.Event()
        self.batches: list[int] = []
        self.threads: set[str] = set()
        self.commit_errors: list[Exception] = []
        self.limits_s: list[float] = []

    def try_execute(
        self, batch: Sequence[AnyCommand], *, now_ms: int, within_s: float
    ) -> list[c.Result] | None:
        """See ``RemoteStore``."""
        self.limits_s.append(within_s)
        return self.execute(batch, now_ms=now_ms) if self.is_quick else None

    def execute(self, batch: Sequence[AnyCommand], *, now_ms: int) -> list[c.Result]:
        """See ``Store``."""
        self.threads.add(threading.current_thread().name)
        self.batches.append(len(batch))
        self.under_way.set()
        assert self.may_go.wait(PATIENCE_S)
        return super().execute(batch, now_ms=now_ms)

    def try_commit(self, *, within_s: float) -> bool:
        """See ``RemoteStore``."""
        self.limits_s.append(within_s)
        return not self.is_late and self.commit()

    def commit(self) -> bool:
        """See ``Store``."""
        self.threads.add(threading.current_thread().name)
        if self.commit_errors:
            raise self.commit_errors.pop(0)
        return True


class PassingClock(ManualClock):
    """Time passes while a store that is not quick is at work."""

    store: SlowStore

    def monotonic_s(self) -> float:
        """See ``Clock``."""
        if not self.store.is_quick:
            self.advance(s=STAND_BACK_S)
        return super().monotonic_s()


async def started(store: SlowStore, clock: ManualClock | None = None) -> Engine:
    """Return an engine with a queue."""
    if isinstance(clock, PassingClock):
        clock.store = store
    engine = Engine(store, clock or ManualClock())
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


def test_a_quick_store_is_waited_for() -> None:
    """Nobody else's thread is needed, and the store is told when to give up."""

    async def scenario() -> None:
        store = SlowStore()
        engine = await started(store)
        store.is_quick = True
        store.threads.clear()
        store.limits_s.clear()
        await asyncio.gather(*(engine.perform(put()) for _ in range(3)))
        assert store.threads == {threading.current_thread().name}
        assert store.batches == [3]
        assert store.limits_s == [STAND_BACK_S, STAND_BACK_S]
        await engine.stop()

    asyncio.run(scenario())


def test_a_late_commit_goes_on_on_the_thread() -> None:
    """What was executed is not executed again; the answer is that of the commit."""

    async def scenario() -> None:
        store = SlowStore()
        engine = await started(store)
        store.is_quick = store.is_late = True
        store.threads.clear()
        await engine.perform(put())
        assert store.batches == [1]
        assert store.threads == {threading.current_thread().name, "commit"}
        assert engine.message_counts() == [("a", "queue", 1)]
        store.commit_errors.append(Unavailable())
        with pytest.raises(Unavailable):
            await engine.perform(put())
        await engine.stop()

    asyncio.run(scenario())


def test_a_store_that_is_typically_late_is_not_waited_for() -> None:
    """A pause now and then changes nothing; many do, until batches have been quick for a while."""

    async def scenario() -> None:
        store = SlowStore()
        engine = await started(store, PassingClock())
        store.is_quick = True

        async def is_waited_for() -> bool:
            store.limits_s.clear()
            await engine.perform(put())
            return bool(store.limits_s)

        assert await is_waited_for()
        store.is_quick = False
        assert await is_waited_for()
        assert await is_waited_for()
        for _ in range(100):
            await engine.perform(put())
        store.is_quick = True
        assert not await is_waited_for()
        for _ in range(100):
            await engine.perform(put())
        assert await is_waited_for()
        await engine.stop()

    asyncio.run(scenario())
