"""Counting sessions, claims and the log; and what is counted of claims and commits."""

from __future__ import annotations

import asyncio
from typing import Any

from leasehold.domain import claims as k
from leasehold.domain import commands as c
from leasehold.domain import sessions as s
from leasehold.domain import transactions as t
from leasehold.domain.admin import CountGroups, CountMessages, GroupPage, GroupPlace
from leasehold.domain.command import AnyCommand
from leasehold.domain.errors import LeaseholdError, QueueNotFound
from leasehold.domain.events import Extent, LogExtent
from leasehold.domain.model import GroupFigures, Outcome
from leasehold.domain.queue_settings import Adaptive
from leasehold.engine.stats import NOTHING, GroupsCounter, TotalsCounter
from leasehold.stores.memory import MemoryStore
from leasehold.testing import ManualClock
from tests.unit.engine.support import World, claim, play, put, receive

LIVE, LOST, ENDED = s.SessionState


def opened(number: int, account: str = "a", timeout_s: int = 16) -> s.OpenSession:
    return s.OpenSession(account, f"w{number}", number.to_bytes(10), timeout_s)


def test_sessions_are_counted_by_state() -> None:
    """Those lost since the start are added up for good; every account has all states."""

    async def scenario(world: World) -> None:
        first, _, third = await world.do(opened(1), opened(2), opened(3, timeout_s=600))
        await world.do(s.EndSession("a", first.session_id))
        await world.advance(s=17)
        await world.do(s.LoseSessions())
        for _ in range(2):
            totals = await world.engine.totals()
            assert totals.sessions == {("a", LIVE): 1, ("a", LOST): 1, ("a", ENDED): 1}
            assert totals.lost_sessions == 1
        await world.advance(s=601)
        await world.do(s.LoseSessions())
        assert (await world.engine.totals()).lost_sessions == 2
        await world.advance(ms=s.REMEMBER_SESSION_MS)
        await world.do(s.LoseSessions())
        totals = await world.engine.totals()
        assert totals.sessions == {("a", LIVE): 0, ("a", LOST): 0, ("a", ENDED): 0}
        assert totals.lost_sessions == 2
        assert third.session_id

    play(scenario)


def test_an_account_without_queues_may_have_sessions() -> None:
    """It is known from the session that was begun in it."""

    async def scenario(world: World) -> None:
        await world.do(opened(1, "b"))
        assert (await world.engine.totals()).sessions["b", LIVE] == 1

    play(scenario)


def test_sessions_lost_before_the_start_are_not_counted() -> None:
    """They are shown by state for as long as they are remembered."""

    async def scenario(world: World) -> None:
        await world.do(opened(1))
        await world.advance(s=17)
        await world.do(s.LoseSessions())
        taker = TotalsCounter(world.clock.now_ms() + 1)
        totals = await taker.take(world.engine.perform, [("a", "queue")])
        assert (totals.sessions["a", LOST], totals.lost_sessions) == (1, 0)

    play(scenario)


def test_claims_are_counted_by_state() -> None:
    """Of all streams of a queue together."""

    async def scenario(world: World) -> None:
        for stream in ("s", "t"):
            token = await world.attach(stream)
            for number in (1, 2):
                await world.do(put(), put())
                await world.do(claim(stream=stream, token=token, number=number, lease_s=10))
        await world.do(k.ExtendClaim("a", "queue", "s", 1, 1, 600, park=True))
        await world.advance(s=11)
        await world.do(receive(limit=2, lease_s=600))
        await world.do(claim(stream="s", number=3, limit=1))
        totals = await world.engine.totals()
        counts = {str(state): number for state, number in totals.claims["a", "queue"].items()}
        assert counts == {"opening": 0, "open": 1, "parked": 1, "lapsed": 1, "broken": 2}

    play(scenario)


def test_queues_without_streams_are_asked_once_only() -> None:
    """At the first count; later ones ask where somebody has attached since."""

    async def scenario(world: World) -> None:
        for number in range(5):
            await world.do(c.CreateQueue("a", f"queue{number}", {}))
        await world.attach("s", "queue3")
        await world.engine.totals()
        await world.attach("s", "queue1")
        world.store.batches.clear()
        totals = await world.engine.totals()
        assert [each.queue for each in world.store.commands(k.ListStreams)] == ["queue1", "queue3"]
        assert sorted(totals.claims) == [("a", "queue1"), ("a", "queue3")]
        await world.do(c.DeleteQueue("a", "queue1"))
        world.store.batches.clear()
        await world.engine.totals()
        assert [each.queue for each in world.store.commands(k.ListStreams)] == ["queue3"]

    play(scenario)


def test_what_cannot_be_counted_is_left_out() -> None:
    """And asked for again the next time."""

    async def scenario(world: World) -> None:
        await world.attach()
        refused: set[type] = {k.ListStreams, s.ListSessions, LogExtent}

        async def perform(command: AnyCommand) -> Any:
            if type(command) in refused:
                raise LeaseholdError
            return await world.engine.perform(command)

        taker = TotalsCounter(0)
        totals = await taker.take(perform, [("a", "queue")])
        assert (sum(totals.sessions.values()), totals.claims, totals.log) == (0, {}, None)
        refused.clear()
        assert ("a", "queue") in (await taker.take(perform, [("a", "queue")])).claims

    play(scenario)


def test_the_log_is_measured() -> None:
    """As the store says."""

    async def scenario(world: World) -> None:
        extent = Extent(3, 9, 700, 1)
        world.store.answers = {LogExtent: extent}
        assert (await world.engine.totals()).log == extent

    play(scenario)


def test_a_queue_that_cannot_be_counted_is_left_out() -> None:
    """The others are counted all the same."""

    async def scenario(world: World) -> None:
        await world.do(put())
        assert [each.queue for each in await world.engine.counts()] == ["queue"]
        world.store.answers = {CountMessages: LeaseholdError()}
        assert await world.engine.counts() == []

    play(scenario)


def test_an_engine_that_is_not_running_has_nothing_to_count() -> None:
    """A scrape of a stopping server is answered."""

    async def scenario() -> None:
        async with World() as world:
            await world.attach()
            engine = world.engine
        assert await engine.totals() == NOTHING

    asyncio.run(scenario())


# --- counters of a queue ---------------------------------------------------------------------


def test_members_of_claims_are_counted_when_they_are_all_there(monkeypatch: Any) -> None:
    """Once, however many steps and repeated calls it took."""
    monkeypatch.setattr(k, "CLAIM_STEP", 2)

    async def scenario(world: World) -> None:
        await world.attach()
        sent = await world.do(*[put()] * 5)
        for _ in range(2):
            await world.engine.open_claim(claim())
        stats = world.engine.stats.queues["a", "queue"]
        assert stats.received == 5
        activity = world.engine.activity("a", "queue")
        assert activity.last_receiver == "s"
        world.clock.advance(s=1)
        exemption = k.Exemption(1, sent[0].message.message_id, Outcome.RETURNED)
        settle = k.SettleClaims("a", "queue", "s", 1, 1, (exemption,), (), (put(),))
        await world.do(settle)
        await world.do(settle)
        assert (stats.completed, stats.released, stats.sent) == (4, 1, 6)
        now_ms = world.clock.now_ms()
        activity = world.engine.activity("a", "queue")
        assert (activity.last_complete_ms, activity.last_send_ms) == (now_ms, now_ms)

    play(scenario)


def test_what_is_committed_together_is_counted() -> None:
    """Each part as if it had come alone; a name that was used counts nothing."""

    async def scenario(world: World) -> None:
        await world.do(put())
        ((lease,),) = await world.do(receive())
        acts = "a", "queue", lease.message.message_id, lease.receipt
        commit = t.CommitTogether("a", (put(), c.Complete(*acts)), name="once")
        await world.do(commit)
        await world.do(commit)
        stats = world.engine.stats.queues["a", "queue"]
        assert (stats.sent, stats.completed) == (2, 1)

    play(scenario)


def test_what_is_completed_together_tells_how_long_work_takes() -> None:
    """A timeout that adapts follows these completions as well."""

    async def scenario(world: World) -> None:
        await world.set(visibility_timeout_s=10, adaptive=Adaptive())
        for number in range(40):
            await world.do(put())
            ((lease,),) = await world.do(c.Receive("a", "queue", 1, None))
            world.clock.advance(s=9)
            acts = "a", "queue", lease.message.message_id, lease.receipt
            commit = t.CommitTogether("a", (c.Complete(*acts),), name=f"n{number}")
            await world.do(commit, commit)
        await world.engine.adaptive.adapt(world.engine.perform, world.clock.now_ms())
        queue = MemoryStore.find_queue(world.store, "a", "queue")
        assert queue is not None
        assert queue.settings.lease_s() > 10

    play(scenario)


# --- groups --------------------------------------------------------------------------------------

QUEUE = ("a", "q")


class Pages:
    """Answers counts of groups, two pages each; a queue called ``gone`` is not there."""

    def __init__(self) -> None:
        self.asked: list[CountGroups] = []
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def perform(self, command: Any) -> Any:
        self.asked.append(command)
        await self.may_answer.wait()
        if command.queue == "gone":
            raise QueueNotFound
        if command.after is None:
            place = GroupPlace(0, "b", 0, 0, 0)
            return GroupPage(
                {"a": GroupFigures(1, 1), "b": GroupFigures(2, oldest_ms=9)}, place, {}
            )
        return GroupPage({"b": GroupFigures(3, oldest_ms=5), "c": GroupFigures()}, None, {})


def test_groups_of_all_pages_are_added() -> None:
    """Those with most messages waiting are the first; what has nothing is left out."""

    async def scenario() -> None:
        pages, clock = Pages(), ManualClock()
        counter = GroupsCounter(pages.perform, clock, 5)
        found = await counter.take([("a", "gone"), QUEUE])
        assert [*found] == [QUEUE]
        totals = found[QUEUE]
        assert (totals.waiting, totals.in_flight, totals.noisy) == (2, 1, 0)
        assert totals.at_ms == clock.now_ms()
        assert totals.largest == [("b", GroupFigures(5, oldest_ms=5)), ("a", GroupFigures(1, 1))]

    asyncio.run(scenario())


def test_groups_are_not_counted_again_at_once() -> None:
    """Figures are told for 15 seconds, or for four times as long as the counting took."""

    async def scenario() -> None:
        pages, clock = Pages(), ManualClock()
        counter = GroupsCounter(pages.perform, clock, 5)
        before = await counter.take([QUEUE])
        assert len(pages.asked) == 2
        clock.advance(s=14)
        assert await counter.take([QUEUE]) == before
        assert len(pages.asked) == 2
        clock.advance(s=1)
        assert await counter.take([QUEUE]) != before
        assert len(pages.asked) == 4
        assert await counter.take([]) == {}

    asyncio.run(scenario())


def test_nobody_waits_long_for_groups() -> None:
    """What was counted before is told meanwhile; one count goes on at a time."""

    async def scenario() -> None:
        pages, clock = Pages(), ManualClock()
        counter = GroupsCounter(pages.perform, clock, 5)
        before = await counter.take([QUEUE])
        clock.advance(s=15)
        pages.may_answer.clear()
        assert await counter.take([QUEUE]) == before
        assert await counter.take([QUEUE]) == before
        assert len(pages.asked) == 3
        clock.advance(s=30)
        pages.may_answer.set()
        after = await counter.take([QUEUE])
        assert after[QUEUE].at_ms == before[QUEUE].at_ms + 15_000
        clock.advance(s=119)
        assert await counter.take([QUEUE]) == after
        clock.advance(s=1)
        assert await counter.take([QUEUE]) != after

    asyncio.run(scenario())
