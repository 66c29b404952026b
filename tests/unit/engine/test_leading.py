"""What only the server that leads does, and how it begins when it has just begun to lead."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from leasehold.domain import commands as c
from leasehold.domain.claims import LapseClaims
from leasehold.domain.command import AnyCommand
from leasehold.domain.errors import Unavailable
from leasehold.domain.sessions import LoseSessions
from leasehold.engine.body_place import MarkedBodies
from leasehold.engine.event_export import Exporter
from leasehold.engine.large_bodies import LargeBodies
from leasehold.engine.maintenance import Maintenance, MaintenancePlan
from leasehold.stores.memory import MemoryStore
from leasehold.testing import ManualClock
from tests.unit.bodies.faulty import FaultyBodies
from tests.unit.engine.test_exporting import World

SWEEPS = (LoseSessions, LapseClaims)


class Sweeper:
    """A maintenance whose seconds pass when the test says so."""

    def __init__(self) -> None:
        self.leads = True
        self.is_away = False
        self.done: list[type] = []
        self.slept: list[float] = []
        self.rounds = 0
        self.on_round: Callable[[int], None] = lambda _: None
        self.maintenance = Maintenance(
            MemoryStore(),
            ManualClock(),
            MaintenancePlan(),
            perform=self.perform,
            wait_for_idle=self.wait_for_idle,
            relieve=self.relieve,
            adapt=self.adapt,
            leads=lambda: self.leads,
            sleep=self.sleep,
        )

    async def perform(self, command: AnyCommand) -> Any:
        """Stand in for the engine."""
        if self.is_away:
            raise Unavailable
        self.done.append(type(command))
        return c.Swept(0)

    async def wait_for_idle(self, quiet_s: float, most_s: float) -> None:
        """Not needed."""

    async def relieve(self) -> bool:
        """Not needed."""
        return True

    async def adapt(self, *_: object) -> None:
        """Not needed."""

    async def sleep(self, length_s: float) -> None:
        """Remember it; a round begins with each second."""
        self.slept.append(length_s)
        await asyncio.sleep(0)
        if length_s == 1.0:
            self.rounds += 1
            self.on_round(self.rounds)

    def watch(self, on_round: Callable[[int], None], rounds: int) -> None:
        """Let so many rounds pass of what ends silent sessions."""
        self.on_round = on_round

        async def run() -> None:
            task = asyncio.create_task(self.maintenance._watch())
            while self.rounds <= rounds:  # noqa: ASYNC110 - the rounds are the test's own
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

        asyncio.run(run())


def test_who_does_not_lead_ends_nothing() -> None:
    """Silent sessions are for the leader to end."""
    sweeper = Sweeper()
    sweeper.leads = False
    sweeper.watch(lambda _: None, 3)
    assert sweeper.done == []


def test_who_begins_to_lead_listens_first() -> None:
    """Workers whose server died have some seconds for a heartbeat to another one."""
    sweeper = Sweeper()
    sweeper.leads = False

    def lead(at_round: int) -> None:
        sweeper.leads = at_round >= 2

    sweeper.watch(lead, 3)
    assert 5.0 in sweeper.slept
    assert sweeper.slept.index(5.0) == 2  # of two rounds
    assert set(SWEEPS) < set(sweeper.done)


def test_who_leads_all_the_time_listens_once() -> None:
    """After the start, as others may have led before; then there is nothing to catch up on."""
    sweeper = Sweeper()
    sweeper.watch(lambda _: None, 5)
    assert sweeper.slept.count(5.0) == 1
    assert sweeper.done[:3] == [c.GetAccountDocument, *SWEEPS]


def test_after_a_store_was_away_workers_are_heard_first() -> None:
    """Nobody could send a heartbeat meanwhile, so nobody is taken for dead at once."""
    sweeper = Sweeper()

    def be_away(at_round: int) -> None:
        sweeper.is_away = 3 <= at_round < 6
        if at_round == 6:
            sweeper.done.clear()
            sweeper.slept.clear()

    sweeper.watch(be_away, 7)
    assert sweeper.done[0] is c.GetAccountDocument
    assert sweeper.slept.count(5.0) == 1
    assert set(SWEEPS) < set(sweeper.done)


def test_an_exporter_that_does_not_lead_exports_nothing(tmp_path: Path) -> None:
    """And once it leads it begins with what the store knows, not with what it knew before."""
    world = World(tmp_path)
    leading = [True, False]
    exporters = [world.exporter(leads=lambda at=at: leading[at]) for at in range(2)]
    world.add()
    for exporter in exporters:
        world.round(exporter)
    assert [each.files for each in exporters] == [1, 0]
    leading.reverse()
    world.add()
    for exporter in exporters:
        world.round(exporter)
    leading.reverse()
    world.add()
    for exporter in exporters:
        world.round(exporter)
    assert [each.files for each in exporters] == [2, 1]
    assert world.exported() == world.history
    assert all(each.lag_s() == 0 for each in exporters)


def test_an_exporter_that_leads_no_more_writes_no_further_file(tmp_path: Path) -> None:
    """It stops between two files; the next leader goes on with the rest."""
    world = World(tmp_path)
    for _ in range(4):
        world.add(2)
    written: list[Exporter] = []
    exporter = world.exporter(max_rows=2, leads=lambda: written[0].files < 2)
    written.append(exporter)
    world.round(exporter)
    assert exporter.files == 2
    world.round(world.exporter(max_rows=2))
    assert world.exported() == world.history


@pytest.mark.parametrize("leads", [False, True])
def test_only_the_leader_collects_bodies(leads: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bodies that nobody needs are removed by one server."""
    done: list[str] = []

    async def note(name: str) -> None:
        done.append(name)
        await asyncio.sleep(0)

    class Bodies(LargeBodies):
        def __init__(self) -> None:
            self._leads = lambda: leads
            self._clock = clock = ManualClock()
            self._next_search_s = 0.0
            self._place = MarkedBodies(FaultyBodies(clock))
            self._place.is_recognized = True

        def collect(self) -> Any:
            return note("collect")

        def search(self) -> Any:
            return note("search")

    rounds: list[float] = []
    pause = asyncio.sleep

    async def sleep(length_s: float) -> None:
        rounds.append(length_s)
        await pause(0)

    async def run() -> None:
        bodies = Bodies()
        task: Awaitable[Any] = asyncio.ensure_future(bodies._run(7.0))
        while rounds.count(7.0) < 3:
            await pause(0)
        task.cancel()  # type: ignore[attr-defined]
        await asyncio.gather(task, return_exceptions=True)

    monkeypatch.setattr("leasehold.engine.large_bodies.asyncio.sleep", sleep)
    asyncio.run(run())
    assert done[:3] == (["collect", "search", "collect"] if leads else [])
