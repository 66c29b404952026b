"""Long polling: how a wait ends without a message."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from leasehold.domain import commands as c
from leasehold.domain.claims import Opened
from leasehold.domain.errors import LeaseholdError, QueueNotFound, StoreFailed
from tests.unit.engine.support import World, bodies, play, put, receive


def test_the_queue_is_deleted() -> None:
    """Whoever waits is told; so is whoever comes later."""

    async def scenario(world: World) -> None:
        await world.attach()
        tasks: list[asyncio.Task[Any]] = [await world.wait() for _ in range(2)]
        tasks.append(await world.wait_to_claim())
        await world.do(c.DeleteQueue("a", "queue"))
        tasks.append(await world.wait())
        for task in tasks:
            assert isinstance(task.exception(), QueueNotFound)
        errors = {id(task.exception()) for task in tasks}
        assert len(errors) == 4, "an error that many raise collects all their tracebacks"

    play(scenario)


def test_a_queue_made_anew_is_another_queue() -> None:
    """Who waited for the old one is told, and who waits for the new one is served."""

    async def scenario(world: World) -> None:
        old = await world.wait()
        results = world.do(c.DeleteQueue("a", "queue"), c.CreateQueue("a", "queue", {}))
        await results
        assert isinstance(old.exception(), QueueNotFound)
        new = await world.wait()
        await world.do(put())
        assert len(bodies(new)) == 1

    play(scenario)


def test_draining_ends_all_waits_with_nothing() -> None:
    """At once, for those who wait and those who come; receives under way get their answer."""

    async def scenario(world: World) -> None:
        await world.attach()
        idle, idle_claim = await world.wait(), await world.wait_to_claim()
        world.engine.drain()
        late, late_claim = world.begin(wait_s=60), world.begin_claim()
        await world.rest()
        assert bodies(idle) == bodies(late) == []
        assert idle_claim.result() == late_claim.result() == Opened(None)

    play(scenario)


@pytest.mark.parametrize("with_message", [False, True])
def test_draining_lets_a_receive_under_way_end(with_message: bool) -> None:
    """What was begun is answered with what it got, and does not wait afterwards."""

    async def scenario(world: World) -> None:
        if with_message:
            await world.do(put(b"1"))
        task = world.begin()
        await asyncio.sleep(0)
        world.engine.drain()
        await world.rest()
        assert bodies(task) == ([b"1"] if with_message else [])

    play(scenario)


def test_a_failed_store_ends_all_waits() -> None:
    """Those who wait are told, not left waiting for a store that is gone."""

    async def scenario(world: World) -> None:
        await world.attach()
        tasks: list[asyncio.Task[Any]] = [await world.wait() for _ in range(3)]
        tasks.append(await world.wait_to_claim())
        world.store.errors.append(StoreFailed())
        await world.do(put())
        assert all(isinstance(task.exception(), StoreFailed) for task in tasks)

    play(scenario)


def test_a_failed_batch_ends_no_wait_but_those_in_it() -> None:
    """An unforeseen error is told to whoever was being served; the others are served next."""

    async def scenario(world: World) -> None:
        first, second = await world.wait(), await world.wait()
        world.store.errors.append(ValueError("surprise"))
        await world.do(put(b"1"))
        assert type(first.exception()) is LeaseholdError
        assert not second.done()
        await world.do(put(b"2"))
        assert bodies(second) == [b"2"]

    play(scenario)


# --- who goes --------------------------------------------------------------------------------


def test_nothing_is_leased_to_who_has_gone() -> None:
    """A waiter cancelled before its turn takes no message, and the next one gets it."""

    async def scenario(world: World) -> None:
        gone, stays = await world.wait(receive("gone")), await world.wait(receive("stays"))
        world.store.batches.clear()
        gone.cancel()  # in the same turn of the loop: it has had no chance to leave
        await world.do(put())
        assert len(bodies(stays)) == 1
        assert [each.holder for each in world.store.commands(c.Receive)] == ["stays"]

    play(scenario)


def test_who_goes_while_being_served_leaves_the_others_unharmed() -> None:
    """Its message is a lost answer, like any other; the next message goes to the next waiter."""

    async def scenario(world: World) -> None:
        gone, stays = world.begin(receive("gone")), world.begin(receive("stays"))
        await asyncio.sleep(0)
        gone.cancel()
        await world.do(put(b"1"))
        if not stays.done():
            await world.do(put(b"2"))
        assert len(bodies(stays)) == 1

    play(scenario)


def test_a_client_that_hangs_up_ends_its_wait() -> None:
    """When what ``gone`` returns is done, the receive ends with nothing and takes nothing."""

    async def scenario(world: World) -> None:
        hung_up = asyncio.Event()
        task = await world.wait(receive("gone"), gone=hung_up.wait)
        other = await world.wait(receive("other"))
        hung_up.set()
        await world.rest()
        assert bodies(task) == []
        await world.do(put())
        assert len(bodies(other)) == 1

    play(scenario)


def test_a_broken_watch_ends_the_wait() -> None:
    """If nobody can tell whether the client is there, the wait is over."""

    async def scenario(world: World) -> None:
        async def gone() -> None:
            raise OSError

        task = await world.wait(gone=gone)
        assert bodies(task) == []

    play(scenario)


def test_the_watch_ends_with_the_wait() -> None:
    """It begins with the wait, not with the receive, and nothing of it is left afterwards."""

    async def scenario(world: World) -> None:
        watched: list[str] = []

        async def gone() -> None:
            watched.append("begun")
            try:
                await asyncio.Event().wait()
            finally:
                watched.append("ended")

        await world.do(put())
        assert len(bodies(await world.wait(gone=gone))) == 1
        assert watched == []
        task = await world.wait(gone=gone)
        await world.do(put())
        assert len(bodies(task)) == 1
        assert watched == ["begun", "ended"]

    play(scenario)


def test_time_that_is_up_while_being_served_does_not_lose_the_message() -> None:
    """A receive under way is waited for, and what it brings is given."""

    async def scenario(world: World) -> None:
        hung_up = asyncio.Event()
        for with_message in (True, False):
            task = await world.wait(gone=hung_up.wait)
            (waiter,) = world.engine.waiting.by_queue["a", "queue"]._waiters
            world.engine.waiting.wake("a", "queue")
            assert waiter.is_trying
            waiter._give_up()
            assert not task.done()
            if with_message:
                await world.do(put())
            await world.rest()
            assert len(bodies(task)) == with_message

    play(scenario)


def test_what_was_leased_for_somebody_who_has_gone_is_given_back() -> None:
    """A client that goes while its message is being committed leaves it to the next in line."""

    async def scenario(world: World) -> None:
        gone = asyncio.Event()
        first = await world.wait(gone=gone.wait)
        second = await world.wait(receive("w2"))
        world.store.held = c.Put
        sending = asyncio.create_task(world.engine.perform(put(b"m")))
        await turns()  # the commit is under way now, and the loop is free
        gone.set()
        await turns()
        world.store.let_go.set()
        await sending
        assert await first == ()
        assert [lease.message.body for lease in await second] == [b"m"]

    play(scenario, on_thread=True)


async def turns() -> None:
    """Let the loop turn a few times."""
    for _ in range(50):
        await asyncio.sleep(0)
