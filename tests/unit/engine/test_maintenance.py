"""Maintenance of sessions, claims and staged sends: dead workers are noticed, live ones left."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from structlog.testing import capture_logs

from leasehold.clock import VirtualClock
from leasehold.domain import admin as o
from leasehold.domain import claims as k
from leasehold.domain import commands as c
from leasehold.domain import sessions as s
from leasehold.domain import transactions as t
from leasehold.domain.command import AnyCommand, Perform
from leasehold.domain.limits import DEFAULT_SESSION_TIMEOUT_S
from leasehold.engine.maintenance import Maintenance, MaintenancePlan
from leasehold.stores.base import StoreHealth
from leasehold.stores.memory import MemoryStore
from leasehold.testing import ManualClock
from tests.patience import PATIENCE_S
from tests.unit.engine.support import World, bodies, claim, play, put

HOUR_S = 3600


async def work(world: World, messages: int = 1, **settings: Any) -> str:
    """Begin a session that leases messages for an hour; return its id."""
    (session,) = await world.do(s.OpenSession("a", "worker", b"0123456789", **settings))
    await world.do(*[put()] * messages)
    await world.do(c.Receive("a", "queue", messages, HOUR_S, None, session.session_id))
    session_id: str = session.session_id
    return session_id


async def live(world: World, session_id: str, seconds: int, *, beats: bool) -> None:
    """Let seconds pass as on a server, with the heartbeats of a worker or without."""
    for second in range(seconds):
        await world.advance(s=1)
        if beats and second % (DEFAULT_SESSION_TIMEOUT_S // s.HEARTBEATS_PER_TIMEOUT) == 0:
            await world.do(s.Heartbeat("a", session_id))
        await world.engine.sweep()
        await world.rest()


def test_messages_of_a_dead_worker_come_back_within_20_seconds() -> None:
    """However long its leases are; whoever waits is given them."""

    async def scenario(world: World) -> None:
        session_id = await work(world)
        await live(world, session_id, 60, beats=True)
        task = await world.wait()
        await live(world, session_id, 20, beats=False)
        assert bodies(task) == [b"x"]

    play(scenario)


def test_a_live_worker_that_stalls_for_10_seconds_loses_nothing() -> None:
    """With the default timeout, whenever the stall begins."""

    async def scenario(world: World) -> None:
        session_id = await work(world)
        task = await world.wait()
        for _ in range(8):
            await live(world, session_id, 10, beats=False)
            await live(world, session_id, 3, beats=True)
        assert not task.done()
        beat = (await world.do(s.Heartbeat("a", session_id, {})))[0]
        assert isinstance(beat, s.Beat)

    play(scenario)


def test_leases_of_a_dead_worker_end_in_slices_to_the_last() -> None:
    """One sweep ends them all, however many there are."""

    async def scenario(world: World) -> None:
        await work(world, messages=s.LOST_STEP * 2 + 7)
        await world.advance(s=17)
        await world.engine.sweep()
        (counts,) = await world.do(o.CountMessages("a", "queue"))
        assert (counts.leased, counts.visible) == (0, s.LOST_STEP * 2 + 7)
        assert len(world.store.commands(s.LoseSessions)) == 3

    play(scenario)


def test_a_heartbeat_in_the_batch_of_the_sweep_is_in_time() -> None:
    """What a worker has said counts, whatever came first."""

    async def scenario(world: World) -> None:
        session_id = await work(world)
        await world.advance(s=17)
        await asyncio.gather(
            world.engine.perform(s.LoseSessions()),
            world.engine.perform(s.Heartbeat("a", session_id)),
        )
        (session,) = await world.do(s.GetSession("a", session_id))
        assert session.state is s.SessionState.LIVE

    play(scenario)


def test_the_watchdog_ends_what_does_not_get_on() -> None:
    """A worker that lives and reports nothing loses its message in the end."""

    async def scenario(world: World) -> None:
        session_id = await work(world, progress_timeout_s=30)
        task = await world.wait()
        await live(world, session_id, 29, beats=True)
        assert not task.done()
        await live(world, session_id, 3, beats=True)
        assert bodies(task) == [b"x"]

    play(scenario)


def test_claims_lapse_where_nobody_receives(monkeypatch: pytest.MonkeyPatch) -> None:
    """And of very many, the oldest are dissolved by the sweep."""
    monkeypatch.setattr(k, "MAX_LAPSED", 2)

    async def scenario(world: World) -> None:
        await world.attach()
        for number in range(1, 6):
            await world.do(put())
            await world.do(claim(number=number, lease_s=10))
            world.clock.advance(s=1)
        await world.advance(s=10)
        await world.engine.sweep()
        (stream,) = await world.do(k.GetStream("a", "queue", "s"))
        assert [each.state for each in stream.claims] == [k.ClaimState.BROKEN] * 3 + [
            k.ClaimState.LAPSED
        ] * 2

    play(scenario)


def test_staged_sends_vanish_when_their_time_is_up() -> None:
    """And what was published is forgotten a week later."""

    async def scenario(world: World) -> None:
        for name in "abcdefg":
            await world.do(t.Stage("a", name, "p", 0, (put(),), timeout_s=60))
        await world.do(t.Publish("a", "a"))
        await world.advance(s=60)
        await world.engine.sweep()
        (left,) = await world.do(t.ListTransactions("a"))
        assert [each.name for each in left] == ["a"]
        await world.advance(s=t.REMEMBER_S)
        await world.engine.sweep()
        assert await world.do(t.ListTransactions("a")) == [()]

    play(scenario)


def test_under_a_doubtful_clock_nothing_staged_vanishes() -> None:
    """What is gone cannot be brought back when the clock is put right."""

    async def scenario(world: World) -> None:
        await world.do(t.Stage("a", "name", "p", 0, (put(),), timeout_s=60))
        assert world.engine._maintenance is not None
        world.engine._maintenance._last_seen_ms = world.clock.now_ms() - 400 * 86_400_000
        await world.advance(s=61)
        await world.engine.sweep()
        (left,) = await world.do(t.ListTransactions("a"))
        assert [each.name for each in left] == ["name"]

    play(scenario)


# --- the rounds ------------------------------------------------------------------------------


class WallClock:
    """A clock that goes by itself, as far as anybody can tell."""

    def __init__(self) -> None:
        self._now_ms = 1_000_000

    def now_ms(self) -> int:
        return self._now_ms

    def monotonic_s(self) -> float:
        return self._now_ms / 1000

    def wall_drift_s(self) -> float:
        return 0.0

    def advance(self, *, s: float) -> None:
        self._now_ms += round(s * 1000)


class FillableStore(MemoryStore):
    """A store that may have no room."""

    is_full = False

    def health(self) -> StoreHealth:
        return replace(super().health(), writable=not self.is_full)


class Rounds:
    """Maintenance over a stub, with a clock that sleeping moves."""

    def __init__(self, clock: WallClock | VirtualClock | None = None) -> None:
        self.clock = clock or WallClock()
        self.performed: list[AnyCommand] = []
        self.slept: list[float] = []
        self.stalls: list[float] = []
        """By how much the next sleeps of the watch are longer than asked."""
        self.asked = asyncio.Event()
        self.hangs_at: type | None = None
        self.fails_at: type | None = None
        self.store = FillableStore()
        self.dropped = 0
        """Rows that are to be freed."""
        self.waits_s: list[float] = []
        """For an idle store; of each it takes as much as was asked for."""
        self.maintenance = Maintenance(
            self.store,
            self.clock,
            MaintenancePlan(),
            perform=self.perform,
            wait_for_idle=self.wait_for_idle,
            relieve=_relieved,
            adapt=_not_adapted,
            sleep=self.sleep,
        )

    async def perform(self, command: AnyCommand) -> Any:
        self.performed.append(command)
        if type(command) is self.hangs_at:
            await asyncio.Event().wait()
        if type(command) is self.fails_at:
            raise OSError
        if isinstance(command, c.ReapDropped):
            freed = min(self.dropped, command.limit)
            self.dropped -= freed
            return c.Swept(freed)
        return c.Swept(0)

    async def wait_for_idle(self, quiet_s: float, most_s: float) -> None:
        """Stand in for a store that is never idle."""
        assert quiet_s < most_s
        self.waits_s.append(most_s)
        self.clock.advance(s=most_s)

    async def sleep(self, delay_s: float) -> None:
        """Only the watch sleeps here: a clean-up takes for ever, and rows are freed once."""
        task = asyncio.current_task()
        if task is not None and task.get_name() == "maintenance-free":
            await asyncio.Event().wait()
        self.slept.append(delay_s)
        self.clock.advance(s=delay_s + (self.stalls.pop(0) if self.stalls else 0))
        if len(self.slept) == 20:
            self.asked.set()
            await asyncio.Event().wait()

    async def run(self) -> None:
        """Let twenty rounds pass."""
        task = asyncio.create_task(self.maintenance.run())
        async with asyncio.timeout(PATIENCE_S):
            await self.asked.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    def count(self, kind: type) -> int:
        return sum(type(each) is kind for each in self.performed)


async def _relieved() -> bool:
    return True


async def _not_waited(_quiet_s: float, _most_s: float) -> None:
    pass


async def _not_adapted(perform: Perform, now_ms: int) -> None:
    del perform, now_ms


def test_rows_are_freed_in_idle_moments_but_not_for_ever() -> None:
    """Each step lets clients go first for a moment; after some seconds it takes its turn."""
    rounds = Rounds()
    rounds.dropped = 1_000_000
    asyncio.run(rounds.maintenance._free_dropped(5.0))
    steps = rounds.count(c.ReapDropped)
    assert rounds.dropped == 0
    assert set(rounds.waits_s) == {0.05}
    assert 90 < len(rounds.waits_s) < 110 < steps
    before = len(rounds.waits_s)
    asyncio.run(rounds.maintenance._free_dropped(5.0))
    assert len(rounds.waits_s) == before  # there was nothing to free


def test_rows_are_freed_without_a_pause_where_there_is_no_room() -> None:
    """Clients that may not put until then wait for it."""
    rounds = Rounds()
    rounds.dropped = 10_000
    rounds.store.is_full = True
    asyncio.run(rounds.maintenance._free_dropped(5.0))
    assert rounds.dropped == 0
    assert rounds.waits_s == []


@pytest.mark.parametrize("clock", [WallClock, lambda: VirtualClock(1_000_000)])
def test_a_sweep_frees_rows_without_a_pause(clock: Callable[[], WallClock | VirtualClock]) -> None:
    """It is asked for by whoever lets time pass, and a clock that stands still is no measure."""
    rounds = Rounds(clock())
    rounds.dropped = 10_000
    asyncio.run(rounds.maintenance.sweep())
    assert rounds.dropped == 0
    assert rounds.waits_s == []


def test_freeing_a_million_rows_holds_up_nothing_else() -> None:
    """Expiry goes on meanwhile."""

    async def scenario() -> None:
        rounds = Rounds()
        rounds.hangs_at = c.ReapDropped
        await rounds.run()
        assert rounds.count(c.ReapDropped) == 1
        assert rounds.count(c.RetireExpired) > 1

    asyncio.run(scenario())


def test_a_long_clean_up_does_not_hold_up_the_watch() -> None:
    """While millions of messages expire, dead workers are noticed all the same."""

    async def scenario() -> None:
        rounds = Rounds()
        rounds.hangs_at = c.RetireExpired
        await rounds.run()
        assert rounds.count(s.LoseSessions) == rounds.count(k.LapseClaims) == 19
        assert rounds.count(c.RetireExpired) == 1

    asyncio.run(scenario())


def test_a_failed_round_is_not_the_last() -> None:
    """Whatever the store says, the watch goes on."""

    async def scenario() -> None:
        rounds = Rounds()
        rounds.hangs_at, rounds.fails_at = c.RetireExpired, s.LoseSessions
        await rounds.run()
        assert rounds.count(s.LoseSessions) == 19

    asyncio.run(scenario())


def test_after_a_standstill_heartbeats_are_read_first() -> None:
    """Nobody is silent who could not be heard; but that is no excuse for ever."""

    async def scenario() -> None:
        rounds = Rounds()
        rounds.hangs_at = c.RetireExpired
        rounds.stalls = [0.1, 3.0, 0.0, 0.0, 600.0, 9.0]
        await rounds.run()
        assert rounds.slept[:7] == [1.0, 1.0, 3.0, 1.0, 1.0, 5.0, 1.0]
        assert rounds.count(s.LoseSessions) == 17

    asyncio.run(scenario())


def test_virtual_time_that_moves_is_no_standstill() -> None:
    """A virtual clock goes in leaps, which says nothing of who is heard."""

    async def scenario() -> None:
        rounds = Rounds(VirtualClock(1_000_000))
        rounds.hangs_at = c.RetireExpired
        rounds.stalls = [600.0] * 10
        await rounds.run()
        assert set(rounds.slept) == {1.0}

    asyncio.run(scenario())


class Disk(MemoryStore):
    """A store that is full when told."""

    is_full = False

    def health(self) -> StoreHealth:
        return replace(super().health(), writable=not self.is_full)


@pytest.mark.parametrize("leads", [None, lambda: False])
def test_a_full_disk_is_logged_once_and_its_end_too(leads: Callable[[], bool] | None) -> None:
    """However many rounds it lasts, and by each of several servers for itself."""
    disk, relieved = Disk(), 0
    sleeps, over = 0, asyncio.Event()

    async def relieve() -> bool:
        nonlocal relieved
        relieved += 1
        return False

    async def sleep(_: float) -> None:
        nonlocal sleeps
        await asyncio.sleep(0)
        sleeps += 1
        disk.is_full = 20 < sleeps < 60 or sleeps > 80
        if sleeps > 120:
            over.set()
            await asyncio.Event().wait()

    maintenance = Maintenance(
        disk,
        ManualClock(),
        MaintenancePlan(),
        perform=_nothing_to_do,
        wait_for_idle=_not_waited,
        relieve=relieve,
        adapt=_not_adapted,
        leads=leads,
        sleep=sleep,
    )

    async def scenario() -> None:
        task = asyncio.create_task(maintenance.run())
        async with asyncio.timeout(PATIENCE_S):
            await over.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    with capture_logs() as logs:
        asyncio.run(scenario())
    told = [each["event"] for each in logs if each["event"].startswith("store.")]
    assert told == ["store.full", "store.has_room", "store.full"]
    assert relieved > 10


async def _nothing_to_do(command: AnyCommand) -> Any:
    del command
    return c.Swept(0)
