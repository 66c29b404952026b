"""Long polling: who is woken, when, in which order, and by what."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from leasehold.domain import admin as o
from leasehold.domain import commands as c
from leasehold.domain.command import AnyCommand
from leasehold.domain.errors import LeaseholdError
from leasehold.domain.model import NEVER_MS, Detail, Outcome
from leasehold.domain.queue_settings import (
    FailurePolicy,
    GroupOrder,
    GroupSettings,
    QueueSettings,
)
from leasehold.stores.memory import MemoryStore
from tests.unit.engine.support import Acts, World, bodies, play, put, receive


@pytest.mark.parametrize("wait_s", [0.0, 60.0])
def test_what_is_there_is_given_at_once(wait_s: float) -> None:
    """A receive that may wait is answered like any other if there is something."""

    async def scenario(world: World) -> None:
        await world.do(put(b"1"), put(b"2"))
        task = world.begin(receive(limit=2), wait_s)
        await world.rest()
        assert bodies(task) == [b"1", b"2"]
        assert len(world.store.commands(c.Receive)) == 1

    play(scenario)


def test_without_a_wait_nothing_is_an_answer() -> None:
    """A receive that does not wait gets an empty answer, also while others wait."""

    async def scenario(world: World) -> None:
        await world.wait()
        task = world.begin(wait_s=0)
        await world.rest()
        assert bodies(task) == []

    play(scenario)


def test_a_wait_ends_with_nothing_when_its_time_is_up() -> None:
    """The deadline of each waiter is its own."""

    async def scenario(world: World) -> None:
        longer = world.begin(wait_s=60)
        assert await world.begin(wait_s=0.001) == ()
        assert not longer.done()

    play(scenario)


@pytest.mark.parametrize("on_thread", [False, True])
def test_a_new_message_wakes_whoever_came_first(on_thread: bool) -> None:
    """First come, first served; nobody else is disturbed."""

    async def scenario(world: World) -> None:
        tasks = [await world.wait(receive(f"w{number}")) for number in range(4)]
        world.store.batches.clear()
        await world.do(put(b"1"))
        await world.do(put(b"2"), put(b"3"))
        assert [bodies(task) for task in tasks[:3]] == [[b"1"], [b"2"], [b"3"]]
        assert not tasks[3].done()
        assert [each.holder for each in world.store.commands(c.Receive)] == ["w0", "w1", "w2"]

    play(scenario, on_thread=on_thread)


def test_a_message_and_its_receive_share_a_commit() -> None:
    """Who waits gets a new message in the transaction that puts it."""

    async def scenario(world: World) -> None:
        await world.wait()
        world.store.batches.clear()
        await world.do(put())
        assert [[type(each) for each in batch] for batch in world.store.batches] == [
            [c.Put, c.Receive]
        ]

    play(scenario)


def test_newcomers_do_not_overtake() -> None:
    """A newcomer's look at the queue is made for whoever waits longest."""

    async def scenario(world: World) -> None:
        first = await world.wait(receive("first"))
        world.store.batches.clear()
        newcomer = world.begin(receive("newcomer"))
        await asyncio.sleep(0)
        await world.do(put(b"1"))
        assert bodies(first) == [b"1"]
        assert not newcomer.done()
        await world.do(put(b"2"))
        assert bodies(newcomer) == [b"2"]

    play(scenario)


def test_a_complete_lets_the_next_of_a_group_through() -> None:
    """So does whatever else frees it: the removal by an operator, and the end of a lease."""

    async def scenario(world: World) -> None:
        await world.set(groups=GroupSettings(order=GroupOrder.FIFO))
        in_group = Detail(group_id="a")
        await world.do(*(put(b"%d" % n)._replace(detail=in_group) for n in range(4)))
        (leased,) = await world.engine.receive(receive(), 0)
        waits = await world.wait()
        assert not waits.done()
        named = "a", "queue", leased.message.message_id
        await world.do(c.Complete(*named, leased.receipt))
        assert bodies(waits) == [b"1"]
        (held,) = waits.result()
        waits = await world.wait(receive())
        await world.do(o.Remove("a", "queue", held.message.message_id, force=True))
        assert bodies(waits) == [b"2"]
        waits = await world.wait()
        await world.advance(s=29)
        assert not waits.done()
        await world.advance(s=1)
        assert bodies(waits) == [b"2"]

    play(scenario)


def test_one_receive_takes_many() -> None:
    """A receive of many takes all that is put at once; the others go on waiting."""

    async def scenario(world: World) -> None:
        many, other = await world.wait(receive(limit=3)), await world.wait()
        await world.do(c.Batch((put(b"1"), put(b"2"), put(b"3"))))
        assert bodies(many) == [b"1", b"2", b"3"]
        assert not other.done()

    play(scenario)


def test_a_crowd_is_served_in_few_batches() -> None:
    """Hundreds that wait for hundreds of messages are not served one commit after the other."""

    async def scenario(world: World) -> None:
        tasks = [await world.wait(), *(world.begin() for _ in range(299))]
        await world.rest()
        asked = len(world.store.commands(c.Receive))
        world.store.batches.clear()
        await world.do(*(put(delay_s=5) for _ in range(300)))
        await world.advance(s=5)
        assert all(task.done() for task in tasks)
        assert asked < 10
        assert len(world.store.batches) < 20

    play(scenario)


def test_those_who_need_not_wait_do_not_wait_for_each_other() -> None:
    """Receives that may wait share a batch like any others while there is something for all."""

    async def scenario(world: World) -> None:
        await world.do(*(put() for _ in range(100)))
        world.store.batches.clear()
        tasks = [world.begin() for _ in range(100)]
        await world.rest()
        assert all(task.done() for task in tasks)
        assert [len(batch) for batch in world.store.batches] == [100]

    play(scenario)


def test_idle_waiters_ask_for_nothing() -> None:
    """A thousand that wait, in one queue or many, are not heard of in the store."""

    async def scenario(world: World) -> None:
        await world.do(*(c.CreateQueue("a", f"queue{number}", {}) for number in range(10)))
        for number in range(1000):
            world.begin(receive(queue=f"queue{number % 10}"))
        await world.rest()
        world.store.batches.clear()
        for _ in range(100):
            await world.advance(s=60)
        assert world.store.batches == []
        assert world.engine.waiting.count == 1000

    play(scenario)


async def leased(world: World) -> Acts:
    """Put a message and have it received; return what acts on it."""
    await world.do(put())
    ((lease,),) = await world.do(receive("other", lease_s=600))
    return "a", "queue", lease.message.message_id, lease.receipt


async def nothing(world: World) -> None:
    del world


async def far_away(world: World) -> str:
    message_id: str = (await world.do(put(delay_s=600)))[0].message.message_id
    return message_id


async def out_of_tokens(world: World) -> None:
    await world.set(max_receives_per_s=0.2)
    await leased(world)


async def with_a_short_lease(world: World) -> None:
    await world.do(put())
    await world.do(receive("other", lease_s=5))


async def put_delayed(world: World, _: Any) -> None:
    await world.do(put(delay_s=5))


async def put_one(world: World, _: Any) -> None:
    await world.do(put())


async def defer(world: World, acts: Acts) -> None:
    await world.do(c.Release(*acts, delay_s=5))


async def shorten(world: World, acts: Acts) -> None:
    await world.do(c.Renew(*acts, 5))


async def end_later(world: World, acts: Acts) -> None:
    await world.do(o.EndLease(*acts[:3], delay_s=5))


async def amend(world: World, message_id: str) -> None:
    await world.do(o.Amend("a", "queue", message_id, delay_s=5))


async def pause(world: World, _: Any) -> None:
    await world.set(paused_until_ms=world.clock.now_ms() + 5000)
    await world.do(put())


async def leave_alone(world: World, _: Any) -> None:
    del world


@pytest.mark.parametrize("waits_first", [False, True])
@pytest.mark.parametrize(
    ("prepare", "act"),
    [
        (nothing, put_delayed),
        (with_a_short_lease, leave_alone),
        (leased, defer),
        (leased, shorten),
        (leased, end_later),
        (far_away, amend),
        (nothing, pause),
        (out_of_tokens, put_one),
    ],
)
def test_what_becomes_due_wakes(
    prepare: Callable[[World], Awaitable[Any]],
    act: Callable[[World, Any], Awaitable[None]],
    waits_first: bool,
) -> None:
    """Delays, leases, pauses and tokens end at their moment, whichever came first."""

    async def scenario(world: World) -> None:
        prepared = await prepare(world)
        if waits_first:
            task = await world.wait()
            await act(world, prepared)
        else:
            await act(world, prepared)
            task = await world.wait()
        other = await world.wait()
        await world.advance(ms=4999)
        assert not task.done()
        await world.advance(ms=1)
        assert len(bodies(task)) == 1
        assert not other.done()

    play(scenario)


def test_the_lease_of_a_waiter_ends_for_the_next() -> None:
    """What one that waited was given comes to the next one when its lease lapses."""

    async def scenario(world: World) -> None:
        first, second = await world.wait(receive(lease_s=5)), await world.wait()
        await world.do(put(b"1"))
        assert bodies(first) == [b"1"]
        await world.advance(s=5)
        assert bodies(second) == [b"1"]

    play(scenario)


GIVE_BACK: dict[str, Callable[[Acts], AnyCommand]] = {
    "renew": lambda acts: c.Renew(*acts, 0),
    "release": lambda acts: c.Release(*acts),
    "batch": lambda acts: c.Batch((c.Release(*acts, delay_s=0),)),
    "end-lease": lambda acts: o.EndLease(*acts[:3]),
    "amend": lambda acts: o.Amend(*acts[:3], delay_s=0, force=True),
}


@pytest.mark.parametrize("act", GIVE_BACK.values(), ids=GIVE_BACK)
def test_what_is_given_back_wakes(act: Callable[[Acts], AnyCommand]) -> None:
    """A message that somebody lets go of goes to whoever waits."""

    async def scenario(world: World) -> None:
        acts = await leased(world)
        task = await world.wait()
        await world.do(act(acts))
        assert len(bodies(task)) == 1

    play(scenario)


def test_a_queue_that_is_resumed_wakes() -> None:
    """A pause without an end makes receivers wait; its end serves them."""

    async def scenario(world: World) -> None:
        await world.set(paused_until_ms=NEVER_MS)
        await world.do(put())
        task = await world.wait()
        await world.advance(s=86_400)
        assert not task.done()
        await world.set()
        assert len(bodies(task)) == 1

    play(scenario)


@pytest.mark.parametrize("how", ["receive", "release"])
def test_a_poisoned_message_wakes_who_waits_for_poison(how: str) -> None:
    """Messages also come into the poison queue without being put."""

    async def scenario(world: World) -> None:
        await world.set(failure_policy=FailurePolicy(max_deliveries=1))
        await world.do(c.CreateQueue("a", "queue-poison", {}))
        task = await world.wait(receive(queue="queue-poison"))
        acts = await leased(world)
        if how == "release":
            await world.do(c.Release(*acts, Outcome.BURIED))
        else:
            await world.advance(s=600)
            await world.do(receive("other"))
        assert len(bodies(task)) == 1

    play(scenario)


def test_a_redrive_wakes() -> None:
    """Messages that a job brings back are given to whoever waits for them."""

    async def scenario(world: World) -> None:
        await world.do(c.Release(*await leased(world), Outcome.BURIED))
        task = await world.wait()
        plan = o.JobPlan(kind=o.JobKind.REDRIVE)
        await world.do(o.StartJob("a", "queue", "job", plan))
        await world.do(o.StepJob("job", 10))
        assert len(bodies(task)) == 1

    play(scenario)


def test_news_from_outside_wake() -> None:
    """Another server on the same store can say that something happened in a queue."""

    async def scenario(world: World) -> None:
        task = await world.wait()
        world.store.execute([put()], now_ms=world.clock.now_ms())
        await world.rest()
        assert not task.done()
        world.engine.waiting.wake("a", "missing")
        world.engine.waiting.wake("a", "queue")
        await world.rest()
        assert len(bodies(task)) == 1

    play(scenario)


def test_news_from_outside_tell_what_is_due() -> None:
    """After such news the next moment is asked for anew."""

    async def scenario(world: World) -> None:
        task = await world.wait()
        world.store.execute([put(delay_s=5)], now_ms=world.clock.now_ms())
        world.engine.waiting.wake("a", "queue")
        await world.rest()
        await world.advance(s=5)
        assert len(bodies(task)) == 1

    play(scenario)


@pytest.mark.parametrize("delay_s", [0, 5])
@pytest.mark.parametrize("asked", ["receive", "next-due"])
def test_news_from_outside_during_a_commit_are_not_lost(asked: str, delay_s: int) -> None:
    """What the store said before the news does not count, though it is told only after them."""

    async def scenario(world: World) -> None:
        store = world.store
        store.held = c.Receive if asked == "receive" else o.NextDue
        task = world.begin()
        while not store.commands(store.held):  # noqa: ASYNC110 - the store has no event for it
            await asyncio.sleep(0)
        MemoryStore.execute(store, [put(delay_s=delay_s)], now_ms=world.clock.now_ms())
        world.engine.waiting.wake("a", "queue")
        store.let_go.set()
        await world.rest()
        assert task.done() == (delay_s == 0)
        await world.advance(s=delay_s)
        assert len(bodies(task)) == 1

    play(scenario, on_thread=True)


def test_a_store_that_cannot_say_what_is_due_is_asked_again() -> None:
    """The question is repeated a second later, and nothing is missed."""

    async def scenario(world: World) -> None:
        await world.do(put(delay_s=5))
        task = world.begin()
        await asyncio.sleep(0)

        world.store.answers = {o.NextDue: LeaseholdError()}
        await world.rest()
        world.store.answers.clear()
        await world.advance(s=1)
        await world.advance(s=4)
        assert len(bodies(task)) == 1

    play(scenario)


def test_a_store_that_calls_due_what_it_never_gives_is_not_asked_without_end() -> None:
    """Looks that find nothing become rarer; the loop is not held up."""

    async def scenario(world: World) -> None:
        world.store.answers = {o.NextDue: o.Due(0)}
        task = await world.wait()
        first = len(world.store.batches)
        for _ in range(1000):
            await world.advance(ms=1)
        assert first < 10
        assert len(world.store.batches) - first < 40
        await world.do(put())
        assert len(bodies(task)) == 1

    play(scenario)


def test_settings_that_do_not_matter_do_not_end_waits() -> None:
    """Changing a queue's settings only makes it look again."""

    async def scenario(world: World) -> None:
        task = await world.wait()
        await world.do(c.SetQueueSettings("a", "queue", QueueSettings(visibility_timeout_s=5)))
        assert not task.done()
        assert world.missed() == []

    play(scenario)
