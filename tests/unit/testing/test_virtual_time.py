"""Time that is moved on: what becomes due on the way is done on the way."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from leasehold.domain import admin as o
from leasehold.domain import commands as c
from leasehold.domain.claims import AttachStream, OpenClaim, Stream
from leasehold.domain.model import Outcome
from leasehold.domain.queue_settings import QueueSettings
from leasehold.domain.sessions import OpenSession, Session
from leasehold.engine import Engine
from leasehold.http.test_mode import EXACT_STEPS
from leasehold.stores.base import Store
from leasehold.stores.memory import MemoryStore
from leasehold.stores.sqlite import SqliteStore
from tests.unit.testing.support import ENTROPY, World, play


def test_a_wait_ends_by_the_virtual_clock() -> None:
    """Not a millisecond early, and whatever the time on the wall."""

    async def scenario(world: World) -> None:
        waiting = asyncio.create_task(world.receive(wait_s=20))
        await world.pass_s(19.999)
        assert not waiting.done()
        await world.pass_s(0.001)
        assert await waiting == ()
        assert world.now_s == 20

    play(scenario)


def test_what_was_asked_for_before_happens_before() -> None:
    """A command handed in and not yet carried out has the time from before the journey."""

    async def scenario(world: World) -> None:
        began_ms = world.clock.now_ms()
        putting = asyncio.create_task(world.put())
        await asyncio.sleep(0)
        await world.pass_s(3600)
        assert (await putting).message.inserted_at_ms == began_ms

    play(scenario)


def test_a_message_due_before_the_wait_ends_is_given() -> None:
    """One long journey is like two short ones: the clock stops where something is due."""

    async def scenario(world: World) -> None:
        await world.put(b"late", delay_s=10)
        waiting = asyncio.create_task(world.receive(wait_s=20, lease_s=5))
        await world.pass_s(86_400)
        (lease,) = await waiting
        assert lease.message.visible_at_ms == world.clock.now_ms() - 86_400_000 + 15_000

    play(scenario)


def test_those_who_wait_are_served_one_after_the_other() -> None:
    """Each message goes to who came first, at its own moment."""

    async def scenario(world: World) -> None:
        for second in (3, 1, 2):
            await world.put(str(second).encode(), delay_s=second)
        tasks = []
        for _ in range(3):
            tasks.append(asyncio.create_task(world.receive(wait_s=60)))
            await world.engine.settle()
        await world.pass_s(60)
        bodies = [(await task)[0].message.body for task in tasks]
        assert bodies == [b"1", b"2", b"3"]

    play(scenario)


def test_expired_messages_are_set_aside_on_arrival() -> None:
    """Maintenance is done when the journey ends, also where nobody waits."""

    async def scenario(world: World) -> None:
        await world.put(time_to_live_s=60)
        await world.put()
        await world.pass_s(59)
        assert world.inner.message_counts() == [("a", "queue", 2)]
        await world.pass_s(2)
        assert world.inner.message_counts() == [("a", "queue", 1)]

    play(scenario)


def test_a_rated_job_goes_at_its_rate() -> None:
    """Ten a second, by the virtual clock; a caller who waits for it waits by that, too."""

    async def scenario(world: World) -> None:
        for _ in range(30):
            await world.put()
        for lease in await world.receive(limit=30):
            named = ("a", "queue", lease.message.message_id, lease.receipt)
            await world.engine.perform(c.Release(*named, Outcome.BURIED))
        plan = o.JobPlan(kind=o.JobKind.REDRIVE, rate_per_s=10)
        await world.engine.perform(o.StartJob("a", "queue", "job", plan))
        waiting = asyncio.create_task(world.engine.jobs.wait("a", "job", 2))
        await world.pass_s(1.95)
        job = await world.engine.jobs.wait("a", "job", 0)
        assert 15 <= job.moved <= 21
        assert not waiting.done()
        await world.pass_s(0.05)
        assert (await waiting).state is o.JobState.RUNNING
        await world.pass_s(1.2)
        job = await world.engine.jobs.wait("a", "job", 0)
        assert (job.state, job.moved) == (o.JobState.DONE, 30)

    play(scenario)


class CountingEngine:
    """An engine that counts how often it was to settle."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.settled = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def settle(self) -> None:
        """See ``Engine``."""
        self.settled += 1
        await self._engine.settle()


def test_a_long_journey_makes_few_stops() -> None:
    """A job that looks twice a second does not make an advance over years take hours."""

    async def scenario(world: World) -> None:
        stops = 0

        def stop() -> None:
            nonlocal stops
            stops += 1
            world.clock.call_later(0.5, stop)

        world.clock.call_later(0.5, stop)
        counting: Any = CountingEngine(world.engine)
        world.engine = counting
        await world.pass_s(86_400)
        assert stops == 172_800
        assert counting.settled < 5 * EXACT_STEPS

    play(scenario)


def test_nothing_happens_in_no_time() -> None:
    """A journey of no length finishes what is under way and leaves the clock alone."""

    async def scenario(world: World) -> None:
        putting = asyncio.create_task(world.put())
        await asyncio.sleep(0)
        await world.pass_s(0)
        assert putting.done()
        assert world.now_s == 0

    play(scenario)


def test_the_lease_of_a_queue_counts_by_the_virtual_clock() -> None:
    """A message comes back when its lease is over, and is counted once more."""

    async def scenario(world: World) -> None:
        await world.put()
        await world.receive(lease_s=None)
        await world.pass_s(3599)
        assert await world.receive() == ()
        await world.pass_s(1)
        (again,) = await world.receive()
        assert again.message.dequeue_count == 2

    play(scenario, settings=QueueSettings(visibility_timeout_s=3600))


# --- sessions and claims ---------------------------------------------------------------------


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """Give each kind of store in turn; the world closes it."""
    return MemoryStore() if request.param == "memory" else SqliteStore(tmp_path)


async def lease_to_session(world: World, **timeouts: int) -> None:
    """Have a message leased for an hour by a worker that then says nothing more."""
    await world.put(b"held")
    opened = await world.engine.perform(OpenSession("a", "w1", ENTROPY, **timeouts))
    assert isinstance(opened, Session)
    received = c.Receive("a", "queue", 1, 3600, None, opened.session_id)
    assert len(await world.engine.receive(received, 0)) == 1


def test_a_silent_session_ends_on_the_way(store: Store) -> None:
    """Whoever waits gets its message when the session is lost, not when the journey is over."""

    async def scenario(world: World) -> None:
        await lease_to_session(world, timeout_s=15)
        waiting = asyncio.create_task(world.receive(wait_s=20, lease_s=5))
        await world.engine.settle()
        await world.pass_s(600)
        (lease,) = await waiting
        assert lease.message.visible_at_ms == world.clock.now_ms() - 600_000 + 15_001 + 5_000

    play(scenario, store)


def test_a_stuck_worker_is_noticed_on_the_way(store: Store) -> None:
    """The watchdog looks when it would have, too."""

    async def scenario(world: World) -> None:
        await lease_to_session(world, timeout_s=3600, progress_timeout_s=30)
        waiting = asyncio.create_task(world.receive(wait_s=40))
        await world.engine.settle()
        await world.pass_s(600)
        assert [lease.message.body for lease in await waiting] == [b"held"]

    play(scenario, store)


def test_a_session_that_nobody_waits_for_is_lost_on_arrival(store: Store) -> None:
    """The next one who asks gets its message."""

    async def scenario(world: World) -> None:
        await lease_to_session(world, timeout_s=15)
        await world.pass_s(15)
        assert await world.receive() == ()
        await world.pass_s(1)
        assert [lease.message.body for lease in await world.receive()] == [b"held"]

    play(scenario, store)


def test_a_claim_lapses_on_the_way(store: Store) -> None:
    """Its members go to whoever waits, from the moment on when it was to be extended."""

    async def scenario(world: World) -> None:
        await world.put(b"claimed")
        stream = await world.engine.perform(AttachStream("a", "queue", "s"))
        assert isinstance(stream, Stream)
        await world.engine.perform(OpenClaim("a", "queue", "s", stream.token, 1, 10, 30))
        waiting = asyncio.create_task(world.receive(wait_s=60, lease_s=5))
        await world.engine.settle()
        await world.pass_s(600)
        (lease,) = await waiting
        assert lease.message.visible_at_ms == world.clock.now_ms() - 600_000 + 35_000

    play(scenario, store)
