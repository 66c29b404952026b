"""Where messages come from besides sends: sessions, claims, staged transactions."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from leasehold.domain import claims as k
from leasehold.domain import commands as c
from leasehold.domain import sessions as s
from leasehold.domain import transactions as t
from leasehold.domain.command import AnyCommand
from leasehold.domain.model import Outcome
from leasehold.domain.queue_settings import FailurePolicy
from tests.unit.engine.support import World, bodies, claim, claimed, play, put, receive

Prepare = Callable[[World], Awaitable[Any]]
Act = Callable[[World, Any], Awaitable[object]]


async def nothing(world: World) -> None:
    del world


async def open_claim(world: World) -> str:
    """Have a message claimed by another stream, for ten seconds; return its id."""
    await world.attach("other")
    (lease,) = await world.do(put())
    await world.do(claim(stream="other", lease_s=10))
    message_id: str = lease.message.message_id
    return message_id


async def in_session(world: World) -> str:
    """Have a message leased for an hour by a session that lives for five seconds."""
    (session,) = await world.do(s.OpenSession("a", "worker", b"0123456789", 5))
    await world.do(put())
    await world.do(c.Receive("a", "queue", 1, 3600, None, session.session_id))
    session_id: str = session.session_id
    return session_id


async def watched(world: World) -> str:
    """The same, and who makes no progress for ten seconds is given up."""
    (session,) = await world.do(s.OpenSession("a", "worker", b"0123456789", 3600, 10))
    await world.do(put())
    await world.do(c.Receive("a", "queue", 1, 3600, None, session.session_id))
    session_id: str = session.session_id
    return session_id


async def staged(world: World) -> None:
    await world.do(t.Stage("a", "job/1", "p", 0, (put(),)))


async def leased(world: World) -> tuple[str, str, str, str]:
    await world.do(put())
    ((lease,),) = await world.do(receive("other", lease_s=600))
    return "a", "queue", lease.message.message_id, lease.receipt


async def give_back(world: World, _: Any) -> None:
    await world.do(k.GiveBackClaim("a", "queue", "other", 1, 1))


async def delete_stream(world: World, _: Any) -> None:
    await world.do(k.DeleteStream("a", "queue", "other"))


async def let_lapse(world: World, _: Any) -> None:
    await world.advance(s=10)


async def shorten(world: World, _: Any) -> None:
    await world.do(k.ExtendClaim("a", "queue", "other", 1, 1, 3, park=True))
    await world.advance(s=3)


async def lengthen(world: World, _: Any) -> None:
    await world.advance(s=9)
    await world.do(k.ExtendClaim("a", "queue", "other", 1, 1, 10))
    await world.advance(s=9)
    assert world.missed() == []
    await world.advance(s=1)


async def exempt(world: World, message_id: str) -> None:
    exemption = k.Exemption(1, message_id, Outcome.RETURNED)
    await world.do(k.SettleClaims("a", "queue", "other", 1, 1, (exemption,)))


async def exempt_for_later(world: World, message_id: str) -> None:
    exemption = k.Exemption(1, message_id, Outcome.FAILED, delay_s=5)
    await world.do(k.SettleClaims("a", "queue", "other", 1, 1, (exemption,)))
    await world.advance(s=5)


async def send_with_settling(world: World, _: Any) -> None:
    await world.do(k.SettleClaims("a", "queue", "other", 1, 1, sends=(put(),)))


async def send_later_with_settling(world: World, _: Any) -> None:
    await world.do(k.SettleClaims("a", "queue", "other", 1, 1, sends=(put(delay_s=5),)))
    await world.advance(s=5)


async def publish_with_settling(world: World, _: Any) -> None:
    await staged(world)
    await world.do(k.SettleClaims("a", "queue", "other", 1, 1, publish=("job/1",)))


async def bound(world: World) -> str:
    """Have a claim of one message that is bound to a transaction; return the message's id."""
    message_id = await open_claim(world)
    await world.do(k.BindClaim("a", "queue", "other", 1, 1, "job/2"))
    return message_id


async def note_and_publish(world: World, message_id: str) -> None:
    noted = k.Exemption(1, message_id, Outcome.RETURNED)
    await world.do(k.ExemptMembers("a", "queue", "other", 1, 1, (noted,)))
    await world.do(t.Publish("a", "job/2"))


async def note_and_commit(world: World, message_id: str) -> None:
    noted = k.Exemption(1, message_id, Outcome.RETURNED)
    await world.do(k.ExemptMembers("a", "queue", "other", 1, 1, (noted,)))
    await world.do(t.CommitTogether("a", (put(delay_s=9),), name="job/2"))


async def publish(world: World, _: Any) -> None:
    await world.do(t.Publish("a", "job/1"))


async def commit_together(world: World, _: Any) -> None:
    await world.do(t.CommitTogether("a", (put(),)))


async def release_together(world: World, acts: tuple[str, str, str, str]) -> None:
    await world.do(t.CommitTogether("a", (c.Release(*acts),)))


async def publish_together(world: World, _: Any) -> None:
    await world.do(t.CommitTogether("a", (), ("job/1",)))


async def lose_session(world: World, _: Any) -> None:
    await world.advance(s=6)
    assert world.missed() == []
    await world.do(s.LoseSessions())


async def end_session(world: World, session_id: str) -> None:
    await world.do(s.EndSession("a", session_id))


async def make_no_progress(world: World, session_id: str) -> None:
    await world.advance(s=9)
    await world.do(s.Heartbeat("a", session_id), s.LoseSessions())
    assert world.missed() == []
    await world.advance(s=2)
    await world.do(s.Heartbeat("a", session_id), s.LoseSessions())


SOURCES: list[tuple[Prepare, Act]] = [
    (open_claim, give_back),
    (open_claim, delete_stream),
    (open_claim, let_lapse),
    (open_claim, shorten),
    (open_claim, lengthen),
    (open_claim, exempt),
    (open_claim, exempt_for_later),
    (open_claim, send_with_settling),
    (open_claim, send_later_with_settling),
    (open_claim, publish_with_settling),
    (bound, note_and_publish),
    (bound, note_and_commit),
    (staged, publish),
    (staged, publish_together),
    (nothing, commit_together),
    (leased, release_together),
    (in_session, lose_session),
    (in_session, end_session),
    (watched, make_no_progress),
]


@pytest.mark.parametrize("claims", [False, True], ids=["receive", "claim"])
@pytest.mark.parametrize(("prepare", "act"), SOURCES, ids=lambda each: each.__name__)
def test_what_becomes_visible_wakes(prepare: Prepare, act: Act, claims: bool) -> None:
    """Whoever waits for a message gets it, and whoever waits for another does not."""

    async def scenario(world: World) -> None:
        await world.attach()
        prepared = await prepare(world)
        if claims:
            claiming = await world.wait_to_claim()
        else:
            task = await world.wait()
        other = await world.wait()
        await act(world, prepared)
        if claims:
            assert claimed(claiming).size == 1
        else:
            assert len(bodies(task)) == 1
        assert not other.done()

    play(scenario)


def test_what_is_staged_wakes_nobody() -> None:
    """It is not visible yet: the store is not even asked."""

    async def scenario(world: World) -> None:
        task = await world.wait()
        world.store.batches.clear()
        await staged(world)
        await world.do(t.Discard("a", "job/1"))
        assert not task.done()
        assert len(world.store.batches) == 2

    play(scenario)


def test_what_is_sent_in_a_commit_is_received_in_it() -> None:
    """A message of several that are sent together shares its commit with who waits for it."""

    async def scenario(world: World) -> None:
        await world.attach("other")
        await world.do(put())
        await world.do(claim(stream="other"))
        first, second = await world.wait(), await world.wait()
        world.store.batches.clear()
        await world.do(t.CommitTogether("a", (put(b"1"),)))
        await world.do(k.SettleClaims("a", "queue", "other", 1, 1, sends=(put(b"2"),)))
        assert (bodies(first), bodies(second)) == ([b"1"], [b"2"])
        assert [[type(each) for each in batch] for batch in world.store.batches] == [
            [t.CommitTogether, c.Receive],
            [k.SettleClaims, c.Receive],
        ]

    play(scenario)


def test_what_was_done_before_wakes_nobody() -> None:
    """A repeated call changes nothing, so there is nothing to look at."""

    async def scenario(world: World) -> None:
        await open_claim(world)
        await staged(world)
        settle = k.SettleClaims("a", "queue", "other", 1, 1, sends=(put(),), publish=("job/1",))
        commit = t.CommitTogether("a", (put(),), name="job/2")
        again = (settle, commit, t.Publish("a", "job/1"))
        await world.do(*again)
        await world.do(receive(limit=9))
        task = await world.wait()
        world.store.batches.clear()
        await world.do(t.Publish("a", "job/1"))
        assert len(world.store.batches) == 1
        await world.do(*again)
        assert not task.done()

    play(scenario)


@pytest.mark.parametrize("how", ["exemption", "session"])
def test_what_is_poisoned_wakes_who_waits_for_poison(how: str) -> None:
    """Also when it is a claim or a session that ends with it."""

    async def scenario(world: World) -> None:
        await world.do(c.CreateQueue("a", "queue-poison", {}))
        await world.set(failure_policy=FailurePolicy(max_lapses=1))
        if how == "exemption":
            message_id = await open_claim(world)
            exemption = k.Exemption(1, message_id, Outcome.BURIED)
            command: AnyCommand = k.SettleClaims("a", "queue", "other", 1, 1, (exemption,))
        else:
            await in_session(world)
            command = s.LoseSessions()
        task = await world.wait(receive(queue="queue-poison"))
        if how == "session":
            await world.advance(s=6)
        await world.do(command)
        assert len(bodies(task)) == 1

    play(scenario)


def test_what_a_claim_leaves_is_given_to_who_waits() -> None:
    """A claim that another has opened says nothing of what it has left."""

    async def scenario(world: World) -> None:
        await world.attach("other")
        await world.set(paused_until_ms=world.clock.now_ms() + 5000)
        await world.do(put(b"1"), put(b"2"), put(b"3"))
        task = await world.wait()
        world.clock.advance(s=5)
        await asyncio.gather(world.engine.perform(claim(stream="other", limit=2)), world.rest())
        await world.rest()
        assert bodies(task) == [b"3"]

    play(scenario)


def test_messages_of_a_session_that_is_over_go_to_the_next() -> None:
    """One that waits for a session which is lost meanwhile is told, and takes nothing."""

    async def scenario(world: World) -> None:
        (session,) = await world.do(s.OpenSession("a", "worker", b"0123456789", 5))
        with_session = c.Receive("a", "queue", 1, 30, None, session.session_id)
        lost, other = await world.wait(with_session), await world.wait()
        await world.advance(s=6)
        await world.do(s.LoseSessions())
        await world.do(put(b"1"))
        assert lost.exception() is not None
        assert bodies(other) == [b"1"]

    play(scenario)
