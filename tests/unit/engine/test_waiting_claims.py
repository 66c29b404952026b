"""Claims that wait: steps, turns, and how the wait ends."""

from __future__ import annotations

import asyncio

import pytest

from leasehold.domain import admin as o
from leasehold.domain import claims as k
from leasehold.domain import commands as c
from leasehold.domain.command import MAX_BATCH, AnyCommand
from leasehold.domain.errors import (
    ClaimOutOfTurn,
    StaleToken,
    StreamNotFound,
)
from leasehold.domain.limits import MAX_CLAIM
from leasehold.engine.commit_policy import weight_of
from leasehold.stores.memory import MemoryStore
from tests.unit.engine.support import World, bodies, claim, claimed, play, put, receive


@pytest.mark.parametrize("wait_s", [0.0, 60.0])
def test_what_is_there_is_claimed_at_once(wait_s: float) -> None:
    """One command is enough, whether the caller would have waited or not."""

    async def scenario(world: World) -> None:
        await world.attach()
        await world.do(put(b"1"), put(b"2"))
        task = world.begin_claim(wait_s=wait_s)
        await world.rest()
        assert claimed(task).size == 2
        assert claimed(task).state is k.ClaimState.OPEN
        assert len(world.store.commands(k.OpenClaim)) == 1

    play(scenario)


def test_without_a_wait_nothing_is_an_answer() -> None:
    """There is no claim then, and nothing is left behind."""

    async def scenario(world: World) -> None:
        await world.attach()
        assert await world.engine.open_claim(claim()) == k.Opened(None)
        assert not world.engine.waiting.by_queue

    play(scenario)


def test_a_large_claim_is_opened_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others have their turn between two steps; the caller sees the claim when it is whole."""
    monkeypatch.setattr(k, "CLAIM_STEP", 10)

    async def scenario(world: World) -> None:
        await world.attach()
        await world.do(*[put()] * 35)
        world.store.batches.clear()
        task = world.begin_claim()
        for _ in range(40):
            await asyncio.sleep(0)
            await world.engine.perform(c.GetQueue("a", "queue"))
        assert claimed(task).size == 35
        assert claimed(task).state is k.ClaimState.OPEN
        kinds = [type(each) for batch in world.store.batches for each in batch]
        assert kinds.count(k.OpenClaim) == 4
        first = kinds.index(k.OpenClaim)
        assert c.GetQueue in kinds[first : len(kinds) - kinds[::-1].index(k.OpenClaim)]

    play(scenario)


def test_a_step_goes_alone() -> None:
    """A claim of very many messages shares its batch with nothing behind it."""

    async def scenario(world: World) -> None:
        await world.attach()
        world.store.batches.clear()
        big = [world.engine.perform(claim(number=1, limit=MAX_CLAIM)) for _ in range(2)]
        await asyncio.gather(*big, world.engine.perform(put()))
        assert [[type(each) for each in batch] for batch in world.store.batches] == [
            [k.OpenClaim],
            [k.OpenClaim],
            [c.Put],
        ]

    play(scenario)
    assert weight_of(claim(limit=k.CLAIM_STEP)) > MAX_BATCH


def test_a_new_message_wakes_whoever_came_first() -> None:
    """Those who claim and those who receive wait in one line."""

    async def scenario(world: World) -> None:
        await world.attach()
        token = await world.attach("t")
        first = await world.wait(receive("first"))
        second = await world.wait_to_claim()
        third = await world.wait(receive("third"))
        fourth = await world.wait_to_claim(claim(stream="t", token=token))
        await world.do(put(b"1"))
        assert bodies(first) == [b"1"]
        assert not second.done()
        await world.do(put(b"2"), put(b"3"))
        assert claimed(second).size == 2
        await world.do(put(b"4"))
        assert bodies(third) == [b"4"]
        await world.do(put(b"5"))
        assert claimed(fourth).size == 1

    play(scenario)


def test_a_claim_may_be_small() -> None:
    """What is more than it may have goes to the next in line."""

    async def scenario(world: World) -> None:
        await world.attach()
        small = await world.wait_to_claim(claim(limit=2))
        other = await world.wait(receive(limit=9))
        await world.do(c.Batch((put(b"1"), put(b"2"), put(b"3"))))
        assert claimed(small).size == 2
        assert bodies(other) == [b"3"]

    play(scenario)


def test_a_claim_that_is_there_is_found_at_once() -> None:
    """Also while others wait for messages, and there are none."""

    async def scenario(world: World) -> None:
        await world.attach()
        await world.do(put())
        opened = await world.engine.open_claim(claim())
        await world.wait()
        again = world.begin_claim()
        await world.rest()
        assert again.result() == opened._replace(claim=again.result().claim, replayed=True)
        assert claimed(again).size == 1

    play(scenario)


@pytest.mark.parametrize("waits", [True, False], ids=["both-wait", "one-waits"])
def test_two_that_ask_for_one_claim_both_get_it(waits: bool) -> None:
    """A client that has lost its first answer asks again; the claim is the same."""

    async def scenario(world: World) -> None:
        await world.attach()
        tasks = [await world.wait_to_claim(), await world.wait_to_claim()]
        if waits:
            await world.do(put())
        else:
            await world.do(put(), claim())
        assert [claimed(task).size for task in tasks] == [1, 1]
        assert len(await world.do(c.GetQueue("a", "queue"))) == 1

    play(scenario)


@pytest.mark.parametrize("deleted", [False, True])
def test_what_is_given_back_is_visible_when_that_is_answered(
    *,
    deleted: bool,
) -> None:
    """Though it goes in steps, and others have their turn in between."""
    count = 3 * k.FOLD_STEP

    async def scenario(world: World) -> None:
        await world.attach()
        await world.do(*[put()] * count)
        await world.do(claim(limit=count))
        world.store.batches.clear()
        command: AnyCommand = k.GiveBackClaim("a", "queue", "s", 1, 1)
        if deleted:
            command = k.DeleteStream("a", "queue", "s")
        given_back, taken = await asyncio.gather(
            world.engine.perform(command), world.engine.perform(receive(limit=count))
        )
        assert given_back == c.DONE
        assert isinstance(taken, tuple)
        assert 0 < len(taken) < count
        (rest,) = await world.do(receive(limit=count))
        assert len(taken) + len(rest) == count

    play(scenario)


def test_idle_claims_ask_for_nothing() -> None:
    """As with receives, the store does not hear of those who only wait."""

    async def scenario(world: World) -> None:
        for number in range(20):
            token = await world.attach(f"s{number}")
            await world.wait_to_claim(claim(stream=f"s{number}", token=token))
        world.store.batches.clear()
        for _ in range(100):
            await world.advance(s=60)
        assert world.store.batches == []
        assert world.engine.waiting.count == 20

    play(scenario)


# --- how the wait ends -----------------------------------------------------------------------


def test_the_time_is_up() -> None:
    """The answer is that there is no claim."""

    async def scenario(world: World) -> None:
        await world.attach()
        assert await world.begin_claim(wait_s=0.001) == k.Opened(None)

    play(scenario)


def test_who_attaches_later_fences_who_waits() -> None:
    """The older one learns it at once, and not when its time is up."""

    async def scenario(world: World) -> None:
        await world.attach()
        theirs = await world.attach("other")
        old = await world.wait_to_claim()
        other = await world.wait_to_claim(claim(stream="other", token=theirs))
        token = await world.attach()
        await world.rest()
        error = old.exception()
        assert isinstance(error, StaleToken)
        assert error.token == token
        assert not other.done()

    play(scenario)


def test_the_stream_is_forgotten() -> None:
    """Whoever waits for it is told."""

    async def scenario(world: World) -> None:
        await world.attach()
        task = await world.wait_to_claim()
        await world.do(k.DeleteStream("a", "queue", "s"))
        assert isinstance(task.exception(), StreamNotFound)

    play(scenario)


def test_the_claim_before_is_given_back() -> None:
    """The number that is waited for is then out of turn, which is told at once."""

    async def scenario(world: World) -> None:
        await world.attach()
        await world.do(put(), claim())
        task = await world.wait_to_claim(claim(number=2))
        await world.do(k.GiveBackClaim("a", "queue", "s", 1, 1))
        error = task.exception()
        assert isinstance(error, ClaimOutOfTurn)
        assert error.expected == 1

    play(scenario)


def test_a_client_that_hangs_up_claims_nothing() -> None:
    """Nothing is begun for it any more."""

    async def scenario(world: World) -> None:
        await world.attach()
        hung_up = asyncio.Event()
        task = world.begin_claim(gone=hung_up.wait)
        await world.rest()
        hung_up.set()
        await world.rest()
        assert task.result() == k.Opened(None)
        world.store.batches.clear()
        await world.do(put())
        assert world.store.commands(k.OpenClaim) == []

    play(scenario)


def test_a_claim_opened_for_somebody_who_has_gone_stays_open() -> None:
    """It may be found again by its number, and nobody else is given its messages."""

    async def scenario(world: World) -> None:
        await world.attach()
        gone = asyncio.Event()
        task = world.begin_claim(gone=gone.wait)
        await world.rest()
        other = await world.wait()
        world.store.held = k.OpenClaim
        world.store.batches.clear()
        sending = asyncio.create_task(world.engine.perform(put(b"m")))
        while not world.store.commands(k.OpenClaim):  # noqa: ASYNC110 - there is no event
            await asyncio.sleep(0)
        gone.set()
        for _ in range(20):
            await asyncio.sleep(0)
        world.store.let_go.set()
        await sending
        await world.rest()
        assert task.result() == k.Opened(None)
        assert not other.done()
        found = await world.engine.open_claim(claim())
        assert found.replayed
        assert found.claim is not None
        assert found.claim.size == 1

    play(scenario, on_thread=True)


def test_a_claim_of_another_server_is_found() -> None:
    """News from outside have the line looked at, claims included."""

    async def scenario(world: World) -> None:
        await world.attach()
        task = await world.wait_to_claim()
        MemoryStore.execute(world.store, [put()], now_ms=world.clock.now_ms())
        world.engine.waiting.wake("a", "queue")
        await world.rest()
        assert claimed(task).size == 1

    play(scenario)


def test_a_pause_makes_claims_wait() -> None:
    """They are served when it ends, as receives are."""

    async def scenario(world: World) -> None:
        await world.attach()
        await world.set(paused_until_ms=world.clock.now_ms() + 5000)
        await world.do(put())
        task = await world.wait_to_claim()
        assert not task.done()
        await world.advance(s=5)
        assert claimed(task).size == 1
        assert isinstance((await world.do(o.CountMessages("a", "queue")))[0], o.Counts)

    play(scenario)
