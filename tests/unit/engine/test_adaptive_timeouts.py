"""Timeouts that follow the work: what is observed, and what comes of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import pytest

from leasehold.domain import commands as c
from leasehold.domain.adaptive import Window
from leasehold.domain.errors import MessageNotFound
from leasehold.domain.model import Detail, Lease, Outcome
from leasehold.domain.queue_settings import Adaptive, FailurePolicy, QueueSettings, TypeTimeout
from leasehold.engine.maintenance import MAX_FOLLOWED, AdaptiveTimeouts, _Followed

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
        assert ("a", "queue") in adaptive.watched
        await world.engine.perform(c.SetQueueSettings("a", "queue", QueueSettings()))
        assert not adaptive.watched

    play(scenario)


def test_leases_followed_are_bounded() -> None:
    """A queue that is received from and never completed does not fill the memory."""
    adaptive = AdaptiveTimeouts(lambda _account, _queue: None)
    for number in range(MAX_FOLLOWED + 10):
        adaptive._follow(str(number), _Followed(0, 0, Window()))
    assert len(adaptive._followed) == MAX_FOLLOWED
    assert "9" not in adaptive._followed


def test_what_was_seen_of_a_queue_is_forgotten_with_it() -> None:
    """A queue that is created anew under the name begins without what its namesake has shown."""

    async def scenario(world: World) -> None:
        lease = await leased(world)
        world.clock.advance(s=9)
        await world.engine.perform(c.Complete(*named(lease)))
        seen = world.engine.adaptive.watched["a", "queue"]
        await world.engine.perform(c.DeleteQueue("a", "queue"))
        assert not world.engine.adaptive.watched
        await world.engine.perform(c.CreateQueue("a", "queue", {}, ADAPTIVE))
        assert world.engine.adaptive.watched["a", "queue"] is not seen

    play(scenario)


# --- by type -----------------------------------------------------------------------------------


async def work(world: World, kind: str | None, seconds: float, own_s: int | None = None) -> None:
    """Do the work on 40 messages of a type, each for so long."""
    sent = Detail(message_type=kind, visibility_timeout_s=own_s)
    for _ in range(40):
        await world.engine.perform(put()._replace(detail=sent))
        (lease,) = await world.engine.receive(DEFAULT, 0)
        world.clock.advance(s=seconds)
        await world.engine.perform(c.Complete(*named(lease)))


async def adapted(world: World) -> QueueSettings:
    """Let the server choose, and return the settings."""
    await world.engine.adaptive.adapt(world.engine.perform, world.clock.now_ms())
    queue = world.engine.find_queue("a", "queue")
    assert queue is not None
    return queue.settings


def test_slow_work_of_one_type_lengthens_no_other_timeout() -> None:
    """Each rule that adapts goes by its own messages, and so does the queue."""

    async def scenario(world: World) -> None:
        rules = {name: TypeTimeout(adaptive=Adaptive(cap_s=600)) for name in ("slow.*", "quick")}
        settings = replace(ADAPTIVE, timeouts_by_type=rules)
        await world.engine.perform(c.SetQueueSettings("a", "queue", settings))
        await work(world, "slow.a", 9)
        await work(world, "quick", 3)
        await work(world, None, 3)
        found = await adapted(world)
        assert found.adapted is None
        assert set(found.adapted_by_type) == {"slow.*"}
        assert found.lease_of("slow.b", None) > 10
        assert found.lease_of("quick", None) == found.lease_of(None, None) == 10
        assert "99 % of the work" in found.adapted_by_type["slow.*"].because

    play(scenario)


@pytest.mark.parametrize(
    ("kind", "own_s"),
    [("fixed", None), ("adapts", 10), (None, 10)],
    ids=["rule", "own", "typeless"],
)
def test_leases_of_a_fixed_length_say_nothing_of_the_others(
    kind: str | None, own_s: int | None
) -> None:
    """Neither those of a rule that does not adapt nor those whose producer named a timeout."""

    async def scenario(world: World) -> None:
        rules = {
            "fixed": TypeTimeout(visibility_timeout_s=10),
            "adapts": TypeTimeout(adaptive=Adaptive()),
        }
        settings = replace(ADAPTIVE, timeouts_by_type=rules)
        await world.engine.perform(c.SetQueueSettings("a", "queue", settings))
        await work(world, kind, 9, own_s)
        found = await adapted(world)
        assert found.adapted is None
        assert not found.adapted_by_type

    play(scenario)


def test_a_type_adapts_where_the_queue_does_not() -> None:
    """And begins again at the timeout that is set when it stops; what was seen goes with the rule.

    The other way round, other settings keep what was seen.
    """

    async def scenario(world: World) -> None:
        rules = {"a": TypeTimeout(visibility_timeout_s=10, adaptive=Adaptive(cap_s=600))}
        settings = QueueSettings(timeouts_by_type=rules)
        await world.engine.perform(c.SetQueueSettings("a", "queue", settings))
        await work(world, "a", 9)
        other = replace(settings, dedup_window_s=5)
        await world.engine.perform(c.SetQueueSettings("a", "queue", other))
        found = await adapted(world)
        assert found.lease_of("a", None) > 10
        assert found.lease_of("b", None) == 30
        fixed = QueueSettings(timeouts_by_type={"a": TypeTimeout(visibility_timeout_s=10)})
        await world.engine.perform(c.SetQueueSettings("a", "queue", fixed))
        assert (await adapted(world)).lease_of("a", None) == 10
        assert not world.engine.adaptive.watched

    play(scenario)
