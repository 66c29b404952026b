"""Purges and redrives in the background."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from leasehold.domain import admin as o
from leasehold.domain import commands as c
from leasehold.domain.errors import StoreFull
from leasehold.domain.model import Outcome
from leasehold.engine import Engine, MaintenancePlan
from leasehold.engine.jobs import JobRunner

from .support import RecordingStore, World, put, receive

PURGE = o.JobPlan(kind=o.JobKind.PURGE)


class Pauses:
    """Stands in for sleep: remembers how long, and lets others run."""

    def __init__(self, then: Callable[[], None] = lambda: None) -> None:
        self.seconds: list[float] = []
        self._then = then

    async def __call__(self, seconds: float) -> None:
        self.seconds.append(seconds)
        self._then()
        await asyncio.sleep(0)


async def bury(world: World, count: int) -> None:
    for _ in range(count):
        await world.engine.perform(put())
    leases = await world.engine.receive(receive(limit=count), 0)
    for lease in leases:
        named = ("a", "queue", lease.message.message_id, lease.receipt)
        await world.engine.perform(c.Release(*named, Outcome.BURIED))


def test_a_purge_runs_in_the_background() -> None:
    """Starting it is enough; waiting for it gives its last state."""

    async def scenario() -> None:
        async with World() as world:
            for _ in range(600):
                await world.engine.perform(put())
            started = await world.engine.perform(o.StartJob("a", "queue", "job", PURGE))
            assert isinstance(started, o.Job)
            assert started.state is o.JobState.RUNNING
            over = await world.engine.jobs.wait("a", "job", 10)
            assert (over.state, over.moved, over.expected) == (o.JobState.DONE, 600, 600)
            assert len(world.store.commands(o.StepJob)) == 3

    asyncio.run(scenario())


def test_waiting_ends_before_the_job_does() -> None:
    """A caller without patience is told how far it is."""

    async def scenario() -> None:
        async with World() as world:
            await bury(world, 2)
            plan = o.JobPlan(kind=o.JobKind.REDRIVE, canary=1)
            await world.engine.perform(o.StartJob("a", "queue", "job", plan))
            job = await world.engine.jobs.wait("a", "job", 0.01)
            assert job.state in {o.JobState.RUNNING, o.JobState.CANARY}

    asyncio.run(scenario())


def test_a_rate_is_kept_by_pauses() -> None:
    """Twenty a second: two at a time, and a tenth of a second between."""

    async def scenario() -> None:
        async with World() as world:
            await bury(world, 5)
            pauses = Pauses()
            runner = JobRunner(world.engine.perform, pauses)
            plan = o.JobPlan(kind=o.JobKind.REDRIVE, rate_per_s=20)
            world.engine.jobs = JobRunner(world.engine.perform, Pauses())
            (job,) = world.store.execute(
                [o.StartJob("a", "queue", "job", plan)], now_ms=world.clock.now_ms()
            )
            assert isinstance(job, o.Job)
            runner.run(job)
            over = await runner.wait("a", "job", 120)
            assert (over.state, over.moved) == (o.JobState.DONE, 5)
            assert pauses.seconds[:2] == [0.1, 0.1]

    asyncio.run(scenario())


def test_a_canary_is_looked_at_until_its_fate_is_known() -> None:
    """The rest follows once it has been completed."""

    async def scenario() -> None:
        async with World() as world:
            await bury(world, 3)
            engine = world.engine
            looks = asyncio.Semaphore(0)
            runner = JobRunner(engine.perform, Pauses(looks.release))
            plan = o.JobPlan(kind=o.JobKind.REDRIVE, canary=1)
            (job,) = world.store.execute(
                [o.StartJob("a", "queue", "job", plan)], now_ms=world.clock.now_ms()
            )
            assert isinstance(job, o.Job)
            runner.run(job)
            for _ in range(3):
                await looks.acquire()
            assert (await runner.wait("a", "job", 0)).state is o.JobState.CANARY
            (lease,) = await engine.receive(receive(), 0)
            named = ("a", "queue", lease.message.message_id, lease.receipt)
            await engine.perform(c.Complete(*named))
            over = await runner.wait("a", "job", 120)
            assert (over.state, over.moved) == (o.JobState.DONE, 3)

    asyncio.run(scenario())


def test_jobs_go_on_after_a_restart() -> None:
    """What was running when the engine stopped runs when the next one starts."""

    async def scenario() -> None:
        async with World() as world:
            for _ in range(3):
                await world.engine.perform(put())
            world.store.execute(
                [o.StartJob("a", "queue", "job", PURGE)], now_ms=world.clock.now_ms()
            )
            following = Engine(world.store, world.clock, plan=MaintenancePlan())
            await following.start()
            over = await following.jobs.wait("a", "job", 10)
            assert (over.state, over.moved) == (o.JobState.DONE, 3)
            await following.stop()

    asyncio.run(scenario())


def test_a_full_disk_delays_a_job() -> None:
    """It is tried again, and nothing is skipped."""

    async def scenario() -> None:
        async with World() as world:
            await world.engine.perform(put())
            pauses = Pauses()
            runner = JobRunner(world.engine.perform, pauses)
            (job,) = world.store.execute(
                [o.StartJob("a", "queue", "job", PURGE)], now_ms=world.clock.now_ms()
            )
            assert isinstance(job, o.Job)
            world.store.errors = [StoreFull(), StoreFull()]
            runner.run(job)
            over = await runner.wait("a", "job", 120)
            assert (over.state, over.moved) == (o.JobState.DONE, 1)
            assert pauses.seconds[0] == 1.0

    asyncio.run(scenario())


def test_the_store_is_asked_for_jobs_only_with_maintenance() -> None:
    """A test's engine does nothing by itself."""

    async def scenario() -> None:
        async with World() as world:
            assert isinstance(world.store, RecordingStore)
            assert not world.store.commands(o.ListJobs)

    asyncio.run(scenario())


def test_a_job_that_keeps_failing_is_stopped() -> None:
    """What nobody foresaw is tried ten times, and not for ever."""

    async def scenario() -> None:
        async with World() as world:
            await world.engine.perform(put())
            runner = JobRunner(world.engine.perform, Pauses())
            (job,) = world.store.execute(
                [o.StartJob("a", "queue", "job", PURGE)], now_ms=world.clock.now_ms()
            )
            assert isinstance(job, o.Job)
            world.store.errors = [ValueError("unforeseen")] * 10
            runner.run(job)
            over = await runner.wait("a", "job", 120)
            assert (over.state, over.moved) == (o.JobState.STOPPED, 0)

    asyncio.run(scenario())
