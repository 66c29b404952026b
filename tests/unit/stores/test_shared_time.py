"""Servers and a database whose clocks a test moves: they agree on the time, whatever happens."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any, Final

import psycopg
import pytest

from leasehold.clock import (
    AGREED_WITHIN_S,
    CONFIRMED_AFTER_S,
    DOUBTED_AT_MOST_S,
    Verdict,
    judge,
)
from leasehold.domain.errors import Unavailable
from leasehold.stores.postgres.connection import Address, connect, migrate
from leasehold.stores.postgres.shared_time import LATE_S, NotTheTime, SharedTime, open_time
from tests.postgres import empty, find_programs, shared_cluster

pytestmark = pytest.mark.skipif(find_programs() is None, reason="no PostgreSQL is installed")

SCHEMA: Final = "shared_time"
NOON_US: Final = 1_767_268_800_000_000
US: Final = 1_000_000
TOGETHER_S: Final = 2 * AGREED_WITHIN_S
HOUR_S: Final = 3600


class World:
    """A database, and the time that passes for it and for all servers."""

    def __init__(self) -> None:
        self.address = Address.parse(f"{shared_cluster().url}&schema={SCHEMA}")
        self.connection = connect(self.address)
        migrate(self.connection, SCHEMA)
        empty(SCHEMA)
        self.run("CREATE TABLE IF NOT EXISTS shown (us bigint PRIMARY KEY)")
        self.run("DELETE FROM shown")
        self.run("INSERT INTO shown VALUES (0)")
        self.run(
            "CREATE OR REPLACE FUNCTION clock_us() RETURNS bigint LANGUAGE sql VOLATILE"
            " RETURN (SELECT us FROM shown)"
        )
        self.links: list[psycopg.Connection[Any]] = []
        """Of servers, to be closed in the end."""
        self.passed_us = 0
        self.set_by_us = 0
        self._show()

    def run(self, statement: str, *bounds: object) -> list[tuple[Any, ...]]:
        cursor = self.connection.execute(statement.encode(), bounds)
        return cursor.fetchall() if cursor.description else []

    def _show(self) -> None:
        self.run("UPDATE shown SET us = $1", NOON_US + self.passed_us + self.set_by_us)

    def pass_s(self, length_s: float) -> None:
        """Let time pass."""
        self.passed_us += round(length_s * US)
        self._show()

    def set_clock(self, by_s: float) -> None:
        """Set the clock of the database."""
        self.set_by_us += round(by_s * US)
        self._show()

    def close(self) -> None:
        for each in (self.connection, *self.links):
            each.close()


class Server:
    """What one server knows of the time, and the lock by which others know that it is alive."""

    def __init__(self, world: World, slot: int) -> None:
        self.world = world
        self.lost_us = 0
        """For how long its own clock stood still."""
        self.link = connect(world.address)
        world.links.append(self.link)
        self.time = SharedTime(self.run, world.pass_s, self.boot_ns)
        self.time.slot = slot
        self.run(
            "SELECT pg_advisory_lock(('change'::regclass::oid::bigint & 2147483647)::int, $1::int)",
            slot,
        )

    def run(self, statement: str, *bounds: object) -> list[tuple[Any, ...]]:
        cursor = self.link.execute(statement, bounds)
        return cursor.fetchall() if cursor.description else []

    def boot_ns(self) -> int:
        return (10**9 + self.world.passed_us - self.lost_us) * 1000

    def look(self) -> Verdict:
        return self.time.look(self.run)

    def shown_s(self) -> float:
        """Return its time, as seconds since the world began."""
        return (self.time.clock.now_ms() - NOON_US // 1000) / 1000

    def works(self) -> bool:
        """Tell whether it would carry out a batch now."""
        row = self.run("SELECT clock_us(), correction_us, generation FROM change")[0]
        try:
            self.time.check(self.time.clock.now_ms(), row, self.boot_ns())
        except NotTheTime:
            return False
        return True

    def die(self) -> None:
        self.link.close()


@pytest.fixture
def world() -> Iterator[World]:
    """A database without servers."""
    world = World()
    yield world
    world.close()


@pytest.fixture
def pair(world: World) -> tuple[Server, Server]:
    """Two servers that have been at work for a while."""
    first = Server(world, 1)
    first.look()
    second = Server(world, 2)
    for _ in range(3):
        world.pass_s(1)
        assert first.look() is second.look() is Verdict.AGREES
    return first, second


@pytest.mark.parametrize(
    ("gap_s", "is_known", "is_fresh", "doubted_for_s", "verdict"),
    [
        (0.5, False, False, 0, Verdict.AGREES),
        (-0.5, True, True, 0, Verdict.AGREES),
        (-0.6, True, True, 0, Verdict.CORRECT),
        (-0.6, False, True, 0, Verdict.FOLLOW),
        (0.6, True, True, 0, Verdict.FOLLOW),
        (0.6, True, False, 0, Verdict.CORRECT),
        (0.6, False, False, DOUBTED_AT_MOST_S - 0.1, Verdict.DOUBT),
        (0.6, False, False, DOUBTED_AT_MOST_S, Verdict.CORRECT),
    ],
)
def test_verdicts(
    gap_s: float, is_known: bool, is_fresh: bool, doubted_for_s: float, verdict: Verdict
) -> None:
    """Who is right follows from what a server has seen itself and what another one says."""
    found = judge(gap_s=gap_s, is_known=is_known, is_fresh=is_fresh, doubted_for_s=doubted_for_s)
    assert found is verdict


@pytest.mark.parametrize("jump_s", [2 * HOUR_S, -2 * HOUR_S, 60, -60, 3, -3])
def test_time_goes_on_when_the_clock_is_set(
    world: World, pair: tuple[Server, Server], jump_s: int
) -> None:
    """The first to look corrects it; the other one goes on without a word."""
    first, second = pair
    world.pass_s(0.5)
    world.set_clock(jump_s)
    assert not first.works()
    assert not second.works()
    assert first.look() is Verdict.AGREES
    assert second.works()
    assert first.shown_s() == second.shown_s() == world.passed_us / US
    assert first.time.clock.wall_drift_s() == jump_s
    world.set_clock(-jump_s)
    assert not second.works()
    assert second.look() is first.look() is Verdict.AGREES
    assert first.shown_s() == second.shown_s() == world.passed_us / US
    assert first.time.clock.wall_drift_s() == 0


@pytest.mark.parametrize("jump_s", [2 * HOUR_S, -2 * HOUR_S, 60, -60])
def test_a_server_that_is_started_has_the_time_of_the_others(
    world: World, pair: tuple[Server, Server], jump_s: int
) -> None:
    """Before anybody has seen that the clock was set it waits, and afterwards it need not."""
    first, second = pair
    world.set_clock(jump_s)
    waits = iter([second.look])

    def others_go_on(length_s: float) -> None:
        world.pass_s(length_s)
        for look in waits:
            assert look() is Verdict.AGREES

    link = connect(world.address)

    def run(statement: str, *bounds: object) -> list[tuple[Any, ...]]:
        cursor = link.execute(statement, bounds)
        return cursor.fetchall() if cursor.description else []

    third = SharedTime(run, others_go_on, first.boot_ns)
    assert next(waits, None) is None
    assert third.clock.now_ms() == first.time.clock.now_ms()
    link.close()
    fourth = Server(world, 4)
    assert fourth.shown_s() == first.shown_s()


def test_a_server_that_has_lost_time_follows(world: World, pair: tuple[Server, Server]) -> None:
    """A machine that was suspended without its clock counting is behind; it does not hold others.

    Until it has noticed it does nothing.
    """
    first, second = pair
    first.lost_us = 30 * US
    world.pass_s(1)
    assert second.look() is Verdict.AGREES
    assert not first.works()
    first.look()
    assert first.works()
    assert first.shown_s() == second.shown_s() == world.passed_us / US


def test_who_has_missed_a_correction_waits_for_a_word(
    world: World, pair: tuple[Server, Server]
) -> None:
    """The clock was corrected, and set again since: only who saw the former can correct that."""
    first, second = pair
    world.set_clock(60)
    assert first.look() is Verdict.AGREES
    world.pass_s(0.3)
    world.set_clock(-60)
    assert second.look() is Verdict.DOUBT
    assert not second.works()
    assert first.look() is Verdict.AGREES
    assert second.look() is Verdict.AGREES
    assert first.shown_s() == second.shown_s() == world.passed_us / US


def test_doubt_has_an_end(world: World, pair: tuple[Server, Server]) -> None:
    """If whoever has corrected the clock is gone, the one that is left trusts its own time."""
    first, second = pair
    world.set_clock(60)
    assert first.look() is Verdict.AGREES
    first.die()
    world.set_clock(-60)
    assert second.look() is Verdict.DOUBT
    world.pass_s(DOUBTED_AT_MOST_S)
    assert second.look() is Verdict.AGREES
    assert second.shown_s() == world.passed_us / US


def test_a_correction_is_forgotten_with_the_last_server(
    world: World, pair: tuple[Server, Server]
) -> None:
    """Whoever is started when there is no other has the time of the database's clock."""
    world.set_clock(60)
    assert pair[0].look() is Verdict.AGREES
    for each in pair:
        each.die()
    while world.run("SELECT 1 FROM pg_locks WHERE locktype = 'advisory'"):
        pass
    world.pass_s(10)
    fresh = Server(world, 3)
    assert fresh.shown_s() == world.passed_us / US + 60
    assert fresh.look() is Verdict.AGREES


def test_a_correction_that_stands_is_worked_off(world: World, pair: tuple[Server, Server]) -> None:
    """After an hour it is taken back by a hundredth of the time, and all servers follow."""
    first, second = pair
    world.set_clock(5)
    for length_s in (0, CONFIRMED_AFTER_S - 10):
        world.pass_s(length_s)
        assert first.look() is second.look() is Verdict.AGREES
        first.time.work_off(first.run, 1)
    assert first.shown_s() == world.passed_us / US
    world.pass_s(10)
    for _ in range(60):
        for _ in range(10):
            world.pass_s(1)
            first.time.work_off(first.run, 1)
        for each in pair:
            assert each.look() is Verdict.AGREES
            each.time.measure(each.run)
        assert abs(first.shown_s() - second.shown_s()) <= 0.01
        if first.time.clock.wall_drift_s() == 0:
            break
    world.pass_s(10)
    assert first.shown_s() == pytest.approx(world.passed_us / US + 5, abs=0.01)


def test_a_batch_that_comes_late_is_refused(world: World, pair: tuple[Server, Server]) -> None:
    """A server that was stopped after a batch had got its time does not go on with that time."""
    first, _ = pair
    now_ms = first.time.clock.now_ms()
    world.pass_s(LATE_S + 0.1)
    row = first.run("SELECT clock_us(), correction_us, generation FROM change")[0]
    with pytest.raises(Unavailable):
        first.time.check(now_ms, row, first.boot_ns())


@pytest.mark.parametrize("seed", range(8))
def test_whoever_works_has_the_time(world: World, seed: int) -> None:
    """However the clock is set and servers come and go: no two that work are far apart."""
    random = Random(seed)
    servers = [Server(world, 1)]
    servers[0].look()
    slot = 1
    for _ in range(120):
        what = random.random()
        if what < 0.2:
            world.set_clock(random.choice([-1, 1]) * random.choice([1, 5, 60, 2 * HOUR_S]))
        elif what < 0.3 and len(servers) < 4:
            slot += 1
            for each in servers:
                each.look()
            servers.append(Server(world, slot))
        elif what < 0.35 and len(servers) > 1:
            servers.pop(random.randrange(len(servers))).die()
        else:
            world.pass_s(random.choice([0.05, 0.5, 1.0]))
        for each in random.sample(servers, random.randint(0, len(servers))):
            each.look()
        shown = [each.shown_s() for each in servers if each.works()]
        assert not shown or max(shown) - min(shown) <= TOGETHER_S
    for _ in range(6):
        world.pass_s(1)
        verdicts = [each.look() for each in servers]
    assert set(verdicts) == {Verdict.AGREES}


def test_a_store_is_made_to_ask_it_for_the_time() -> None:
    """The first server finds no tables yet."""
    schema = "shared_time_new"
    address = Address.parse(f"{shared_cluster().url}&schema={schema}")
    with connect(address) as connection:
        connection.execute(f"DROP SCHEMA IF EXISTS {schema} CASCADE".encode(), prepare=False)
    assert open_time(address).clock.now_ms() > NOON_US // 1000
    with connect(address) as connection, pytest.raises(psycopg.errors.UndefinedTable):
        connection.execute("SELECT 1 FROM nothing")
