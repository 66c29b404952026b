"""Large bodies go with their messages, whatever ends these and whoever crashes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from leasehold.domain import admin as o
from leasehold.domain import commands as c
from leasehold.domain.errors import (
    OutcomeUnknown,
    StoreFailed,
    StoreFull,
    Unavailable,
)
from leasehold.domain.model import Lease, Outcome
from leasehold.engine import Engine
from leasehold.engine.large_bodies import ORPHAN_AGE_MS, SEARCH_INTERVAL_S, STEP
from leasehold.engine.maintenance import MaintenancePlan
from tests.unit.engine.bodies_support import (
    LARGE,
    LARGER,
    QUEUE,
    World,
    body_of,
    complete,
    play,
    puts,
    until,
)
from tests.unit.engine.support import ENTROPY, put

# --- removing ------------------------------------------------------------------------------------


async def _clear(world: World, _: Lease) -> None:
    await world.do(c.Clear(*QUEUE))


async def _delete_queue(world: World, _: Lease) -> None:
    await world.do(c.DeleteQueue(*QUEUE))


async def _remove(world: World, lease: Lease) -> None:
    await world.do(o.Remove(*QUEUE, lease.message.message_id, force=True))


async def _purge(world: World, _: Lease) -> None:
    plan = o.JobPlan(kind=o.JobKind.PURGE)
    job = await world.do(o.StartJob(*QUEUE, "job", plan))
    await world.engine.jobs.wait("a", job.job_id, 10)


async def _expire(world: World, _: Lease) -> None:
    world.clock.advance(s=100)
    await world.engine.sweep()
    assert len(world.kept.kept) == 1, "it can still be put back"
    world.clock.advance(s=86_500)
    await world.engine.sweep()


@pytest.mark.parametrize("end", [complete, _clear, _delete_queue, _remove, _purge, _expire])
def test_a_body_goes_with_its_message(end: Callable[[World, Lease], Awaitable[None]]) -> None:
    """However a message ends, its body is removed by the maintenance that follows."""

    async def scenario(world: World) -> None:
        await world.do(put(LARGE)._replace(time_to_live_s=99))
        (lease,) = await world.receive()
        await end(world, lease)
        await world.engine.sweep()
        await world.engine.sweep()
        assert world.kept.kept == {}
        garbage = await world.do(c.ReadBodyGarbage(10))
        assert garbage == c.BodyKeys(())

    play(scenario)


def test_a_body_stays_with_a_poisoned_and_redriven_message() -> None:
    """Being set aside and brought back is no end."""

    async def scenario(world: World) -> None:
        await world.put()
        (lease,) = await world.receive()
        acts = (*QUEUE, lease.message.message_id, lease.receipt)
        await world.do(c.Release(*acts, Outcome.BURIED))
        await world.engine.sweep()
        plan = o.JobPlan(kind=o.JobKind.REDRIVE)
        await world.do(o.StartJob(*QUEUE, "job", plan))
        await world.engine.jobs.wait("a", "job", 10)
        await world.engine.sweep()
        (lease,) = await world.receive()
        assert body_of(lease.message) == LARGE

    play(scenario)


def test_much_garbage_is_collected_in_steps() -> None:
    """More than one step's worth goes in one round."""

    async def scenario(world: World) -> None:
        await world.do(c.Batch(puts(*[LARGE] * (STEP + 1))))
        await world.do(c.Clear(*QUEUE))
        await world.engine.sweep()
        assert world.kept.kept == {}
        assert world.bodies.removed == STEP + 1

    play(scenario)


def test_garbage_that_cannot_be_removed_is_tried_again() -> None:
    """While the body store is away its garbage stays noted, and the round ends."""

    async def scenario(world: World) -> None:
        lease = await world.put()
        await complete(world, lease)
        world.kept.delete_error = Unavailable()
        await world.engine.sweep()
        assert len(world.kept.kept) == 1
        assert (world.bodies.pending, world.bodies.remove_failures) == (1, 1)
        world.kept.delete_error = None
        await world.engine.sweep()
        assert world.kept.kept == {}
        assert (world.bodies.pending, world.bodies.remove_failures) == (0, 1)

    play(scenario)


def test_a_body_in_use_is_never_collected() -> None:
    """If the store should list a key that a message refers to, the body stays."""

    async def scenario(world: World) -> None:
        await world.put()
        (key,) = world.kept.kept
        world.store.answers = {c.ReadBodyGarbage: c.BodyKeys((key,))}
        collecting = asyncio.create_task(world.engine.sweep())
        await until(lambda: world.store.commands(c.ForgetBodyGarbage))
        world.store.answers.clear()
        await collecting
        assert list(world.kept.kept) == [key]

    play(scenario)


# --- crashes -------------------------------------------------------------------------------------


def test_a_server_killed_between_body_and_commit_leaves_an_orphan_that_is_found() -> None:
    """Nobody was told of the message; its body goes when it is an hour old, and no other."""

    async def scenario(world: World) -> None:
        await world.put(LARGER)
        world.kept.put_gate = asyncio.Event()  # it dies before it comes to the commit
        sending = asyncio.create_task(world.put())
        await until(lambda: len(world.kept.kept) == 2)
        await world.crash()
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        await world.bodies.search()
        assert len(world.kept.kept) == 2, "it may be another server's, about to be named"
        world.clock.advance(ms=ORPHAN_AGE_MS + 1)
        await world.bodies.search()
        assert list(world.kept.kept.values()) == [LARGER]
        assert world.bodies.orphans == 1
        (lease,) = await world.receive(10)
        assert body_of(lease.message) == LARGER

    play(scenario)


def test_a_server_killed_between_commit_and_removal_goes_on_where_it_was() -> None:
    """The garbage was noted with the commit, so the next server removes it."""

    async def scenario(world: World) -> None:
        lease = await world.put()
        await world.put(LARGER)
        await complete(world, lease)
        await world.crash()
        await world.engine.sweep()
        assert list(world.kept.kept.values()) == [LARGER]
        (kept,) = await world.receive(10)
        assert body_of(kept.message) == LARGER

    play(scenario)


def test_a_server_killed_between_removal_and_forgetting_removes_again() -> None:
    """A body that is gone already is no reason to stop."""

    async def scenario(world: World) -> None:
        lease = await world.put()
        await complete(world, lease)
        world.kept.kept.clear()
        await world.crash()
        await world.engine.sweep()
        assert await world.do(c.ReadBodyGarbage(10)) == c.BodyKeys(())

    play(scenario)


@pytest.mark.parametrize("error", [OutcomeUnknown, StoreFailed])
def test_a_commit_whose_fate_is_unknown_keeps_its_body(error: type[OutcomeUnknown]) -> None:
    """When the store fails while writing, the message may be there: the search decides later."""

    async def scenario(world: World) -> None:
        world.store.commit_errors = [error()]
        with pytest.raises(error):
            await world.put()
        await world.settle()
        assert len(world.kept.kept) == 1

    play(scenario)


async def _lost_to_the_disk(world: World) -> None:
    await world.put()
    world.store.commit_errors = [StoreFull(), StoreFull()]
    with pytest.raises(StoreFull):
        await world.put(LARGER)


def test_a_full_disk_at_the_commit_takes_the_body_back() -> None:
    """The message was not put, so its body is removed at once."""

    async def scenario(world: World) -> None:
        await _lost_to_the_disk(world)
        await world.settle()
        assert len(world.kept.kept) == 1

    play(scenario)


def test_the_search_spares_what_is_being_written() -> None:
    """However long a put takes, its body is not an orphan before it has ended."""

    async def scenario(world: World) -> None:
        await world.put()
        world.kept.put_gate = asyncio.Event()  # the next put does not come to its commit
        sending = asyncio.create_task(world.put(LARGER))
        await until(lambda: len(world.kept.kept) == 2)
        world.clock.advance(ms=2 * ORPHAN_AGE_MS)
        await world.bodies.search()
        assert len(world.kept.kept) == 2
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
        await world.bodies.search()
        assert list(world.kept.kept.values()) == [LARGE]

    play(scenario)


def test_the_rounds_collect_and_search_by_themselves() -> None:
    """A running server searches at its start and once a day, and collects all the time."""

    async def scenario() -> None:
        world = World()
        searched = 0
        real = world.kept.pages

        def counted() -> Any:
            nonlocal searched
            searched += 1
            return real()

        world.kept.pages = counted  # type: ignore[method-assign]
        engine = world.begin(MaintenancePlan(interval_s=0.001))
        await engine.start()
        await world.do(c.CreateQueue(*QUEUE, {}))
        lease = await world.put()
        await complete(world, lease)
        await until(lambda: not world.kept.kept and searched)
        assert searched == 1
        world.clock.advance(s=SEARCH_INTERVAL_S)
        await until(lambda: searched == 2)
        await engine.stop()
        assert world.kept.closed

    asyncio.run(scenario())


def test_a_round_that_fails_is_followed_by_another() -> None:
    """Trouble with a body store does not end the maintenance."""

    async def scenario() -> None:
        world = World()
        calls = 0

        async def failing() -> None:
            nonlocal calls
            calls += 1
            raise RuntimeError("trouble")

        engine = world.begin(MaintenancePlan(interval_s=0.001))
        world.bodies.collect = failing  # type: ignore[method-assign]
        await engine.start()
        await until(lambda: calls >= 2)
        await engine.stop()

    asyncio.run(scenario())


def test_an_engine_without_bodies_keeps_all_in_the_store() -> None:
    """Bodies of any size stay with their messages if there is no place for them."""

    async def scenario() -> None:
        world = World()
        engine = Engine(world.store, world.clock, inline_below_s=1.0)
        await engine.start()
        await engine.perform(c.CreateQueue(*QUEUE, {}))
        await engine.perform(c.Put(*QUEUE, LARGER, 0, None, ENTROPY))
        (lease,) = await engine.receive(c.Receive(*QUEUE, 1, 30), 0)
        assert lease.message.body == LARGER
        await engine.stop()

    asyncio.run(scenario())
