"""Timeouts that follow the work: what is observed, and what comes of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import pytest

from leasehold.domain import commands as c
from leasehold.domain.errors import MessageNotFound
from leasehold.domain.model import Lease, Outcome
from leasehold.domain.queue_settings import Adaptive, FailurePolicy, QueueSettings
from leasehold.engine.maintenance import MAX_FOLLOWED, AdaptiveTimeouts

from .support import World, put

ADAPTIVE = QueueSettings(visibility_timeout_s=10, adaptive=Adaptive(floor_s=5, cap_s=600))
DEFAULT = c.Receive("a", "queue", 1, None)


def play(scenario: Callable[[World], Coroutine[Any, Any, None]], way: str = "set") -> None:
    async def run() -> None:
        async with World() as world:
            if way == "set":
                await world.engine.perform(c.SetQueueSettings("a", "queue", ADAPTIVE))
            else:
                await world.engine.perform(c.DeleteQueue("a", "queue"))
                await world.engine.perform(c.CreateQueue("a", "queue", {}, ADAPTIVE))
            await scenario(world)

    asyncio.run(run())


async def leased(world: World) -> Lease:
    await world.engine.perform(put())
    (lease,) = await world.engine.receive(DEFAULT, 0)
    return lease


def named(lease: Lease) -> tuple[str, str, str, str]:
    return "a", "queue", lease.message.message_id, lease.receipt


@pytest.mark.parametrize("way", ["set", "created"])
def test_slow_work_lengthens_the_timeout(way: str) -> None:
    """Completions near the end of the lease are a reason, whichever way the queue was told to."""

    async def scenario(world: World) -> None:
        for _ in range(40):
            lease = await leased(world)
            world.clock.advance(s=9)
            await world.engine.perform(c.Complete(*named(lease)))
        await world.engine.adaptive.adapt(world.engine.perform, world.clock.now_ms())
        queue = world.engine.find_queue("a", "queue")
        assert queue is not None
        assert queue.settings.adapted is not None
        assert queue.settings.lease_s() > 10
        assert "99 % of the work took up to 9" in queue.settings.adapted.because

    play(scenario, way)


def test_late_completions_are_seen_with_their_true_length() -> None:
    """A receipt that is refused because the message was taken again tells how long work takes."""

    async def scenario(world: World) -> None:
        for _ in range(10):
            lease = await leased(world)
            world.clock.advance(s=12)
            (again,) = await world.engine.receive(c.Receive("a", "queue", 1, 3600), 0)
            (result,) = await asyncio.gather(
                world.engine.perform(c.Complete(*named(lease))), return_exceptions=True
            )
            assert isinstance(result, Exception)
            await world.engine.perform(c.Complete(*named(again)))
        await world.engine.adaptive.adapt(world.engine.perform, world.clock.now_ms())
        queue = world.engine.find_queue("a", "queue")
        assert queue is not None
        assert queue.settings.adapted is not None
        assert "took up to 13 s, and 10 came too late" in queue.settings.adapted.because

    play(scenario)


def test_completions_after_the_move_to_the_poison_queue_are_seen_too() -> None:
    """Where the budget of deliveries is used up, no other worker takes the message again."""

    async def scenario(world: World) -> None:
        limited = replace(ADAPTIVE, failure_policy=FailurePolicy(max_deliveries=1))
        await world.engine.perform(c.SetQueueSettings("a", "queue", limited))
        for _ in range(10):
            lease = await leased(world)
            world.clock.advance(s=60)
            assert await world.engine.receive(DEFAULT, 0) == ()
            (result,) = await asyncio.gather(
                world.engine.perform(c.Complete(*named(lease))), return_exceptions=True
            )
            assert isinstance(result, MessageNotFound)
        await world.engine.adaptive.adapt(world.engine.perform, world.clock.now_ms())
        queue = world.engine.find_queue("a", "queue")
        assert queue is not None
        assert queue.settings.lease_s() > 10

    play(scenario)


def test_a_lease_of_a_chosen_length_is_not_observed() -> None:
    """It says nothing about the default."""

    async def scenario(world: World) -> None:
        for _ in range(40):
            await world.engine.perform(put())
            (lease,) = await world.engine.receive(c.Receive("a", "queue", 1, 100), 0)
            world.clock.advance(s=90)
            await world.engine.perform(c.Complete(*named(lease)))
        await world.engine.adaptive.adapt(world.engine.perform, world.clock.now_ms())
        queue = world.engine.find_queue("a", "queue")
        assert queue is not None
        assert queue.settings.adapted is None

    play(scenario)


def test_renewals_are_followed_to_the_new_receipt() -> None:
    """The duration counts from the receive, not from the last renewal."""

    async def scenario(world: World) -> None:
        for _ in range(40):
            lease = await leased(world)
            for _ in range(3):
                world.clock.advance(s=8)
                renewed = await world.engine.perform(c.Renew(*named(lease), 10))
                assert isinstance(renewed, Lease)
                lease = renewed
            await world.engine.perform(c.Complete(*named(lease)))
        await world.engine.adaptive.adapt(world.engine.perform, world.clock.now_ms())
        queue = world.engine.find_queue("a", "queue")
        assert queue is not None
        assert queue.settings.lease_s() > 24

    play(scenario)


def test_failures_are_observed_through_batches_too() -> None:
    """A burst of failures freezes the timeout."""

    async def scenario(world: World) -> None:
        for _ in range(40):
            lease = await leased(world)
            world.clock.advance(s=9)
            release = c.Release(*named(lease), Outcome.FAILED, 0)
            await world.engine.perform(c.Batch((release,)))
            (again,) = await world.engine.receive(DEFAULT, 0)
            world.clock.advance(s=9)
            await world.engine.perform(c.Complete(*named(again)))
        await world.engine.adaptive.adapt(world.engine.perform, world.clock.now_ms())
        queue = world.engine.find_queue("a", "queue")
        assert queue is not None
        assert queue.settings.adapted is None

    play(scenario)


def test_a_queue_that_does_not_adapt_is_not_watched() -> None:
    """Switching it off forgets what was seen, and the timeout is the one set."""

    async def scenario(world: World) -> None:
        adaptive = world.engine.adaptive
        assert ("a", "queue") in adaptive.windows
        await world.engine.perform(c.SetQueueSettings("a", "queue", QueueSettings()))
        assert not adaptive.windows

    play(scenario)


def test_leases_followed_are_bounded() -> None:
    """A queue that is received from and never completed does not fill the memory."""
    adaptive = AdaptiveTimeouts(lambda _account, _queue: None)
    for number in range(MAX_FOLLOWED + 10):
        adaptive._follow(str(number), 0, 0)
    assert len(adaptive._followed) == MAX_FOLLOWED
    assert "9" not in adaptive._followed


def test_what_was_seen_of_a_queue_is_forgotten_with_it() -> None:
    """A queue that is created anew under the name begins without what its namesake has shown."""

    async def scenario(world: World) -> None:
        lease = await leased(world)
        world.clock.advance(s=9)
        await world.engine.perform(c.Complete(*named(lease)))
        seen = world.engine.adaptive.windows["a", "queue"]
        await world.engine.perform(c.DeleteQueue("a", "queue"))
        assert not world.engine.adaptive.windows
        await world.engine.perform(c.CreateQueue("a", "queue", {}, ADAPTIVE))
        assert world.engine.adaptive.windows["a", "queue"] is not seen

    play(scenario)
