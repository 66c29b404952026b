"""A clock that follows another one, both moved by hand."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import repeat

import pytest

from leasehold.clock import RemoteClock, slewed_ns

NOON_MS = 1_767_268_800_000
FOLLOWED_S = 5.0


class Machine:
    """A boot clock, and a database whose clock is ahead of it."""

    def __init__(self) -> None:
        self.boot_ns = 1_000_000_000_000
        self.ahead_ms = NOON_MS
        self.trips_ms: Iterator[tuple[int, int]] = repeat((0, 0))
        """How long each question is on its way, and each answer."""
        self.clock = RemoteClock(self.ask, lambda: self.boot_ns)

    def database_ms(self) -> int:
        return self.boot_ns // 1_000_000 + self.ahead_ms

    def ask(self) -> int:
        there_ms, back_ms = next(self.trips_ms)
        self.pass_s(there_ms / 1000)
        answer_us = self.database_ms() * 1000
        self.pass_s(back_ms / 1000)
        return answer_us

    def pass_s(self, length_s: float) -> None:
        self.boot_ns += round(length_s * 1e9)

    def error_ms(self) -> int:
        return self.clock.now_ms() - self.database_ms()


@pytest.fixture
def machine() -> Machine:
    """A machine whose clock has just read off the database's."""
    return Machine()


def test_it_shows_the_time_of_the_database(machine: Machine) -> None:
    """It agrees with the database at the start, and goes on by the boot clock."""
    assert machine.error_ms() == 0
    machine.pass_s(3600)
    assert machine.error_ms() == 0


def test_one_slow_answer_is_of_no_account(machine: Machine) -> None:
    """Of a few round trips the middle one counts, so a pause in one of them spoils nothing."""
    machine.trips_ms = iter([(1, 1), (0, 900), (1, 1), (700, 0), (1, 1)])
    ahead_s = machine.clock.measure(machine.ask, FOLLOWED_S)
    assert ahead_s == 0
    assert machine.error_ms() == 0


def test_a_round_trip_is_taken_to_be_even(machine: Machine) -> None:
    """Half of the way there and back is added to what the database said."""
    machine.trips_ms = repeat((10, 10))
    machine.clock.measure(machine.ask, FOLLOWED_S)
    assert machine.error_ms() == 0


@pytest.mark.parametrize("difference_ms", [800, -800])
def test_a_difference_is_made_up_for_little_by_little(machine: Machine, difference_ms: int) -> None:
    """A tenth of the time that passes goes into it, so leases end neither at once nor never."""
    machine.ahead_ms += difference_ms
    machine.clock.measure(machine.ask, FOLLOWED_S)
    assert machine.error_ms() == -difference_ms
    machine.pass_s(4)
    assert machine.error_ms() == -difference_ms // 2
    machine.pass_s(4)
    assert machine.error_ms() == 0
    machine.pass_s(100)
    assert machine.error_ms() == 0


def test_it_never_goes_back(machine: Machine) -> None:
    """If the time is behind what this clock shows, it only goes on more slowly."""
    machine.ahead_ms -= 4_000
    seen = [machine.clock.now_ms()]
    for _ in range(50):
        machine.clock.measure(machine.ask, FOLLOWED_S)
        machine.pass_s(0.01)
        seen.append(machine.clock.now_ms())
    assert seen == sorted(seen)
    assert seen[-1] - seen[0] == pytest.approx(450, abs=2)


@pytest.mark.parametrize("difference_ms", [6_000, -6_000])
def test_a_large_difference_is_not_followed(machine: Machine, difference_ms: int) -> None:
    """It is told of, and the clock goes on as it did."""
    machine.ahead_ms += difference_ms
    assert machine.clock.measure(machine.ask, FOLLOWED_S) == difference_ms / 1000
    machine.pass_s(100)
    assert machine.error_ms() == -difference_ms


def test_a_large_difference_is_taken_over_when_told_to(machine: Machine) -> None:
    """Then the clock shows the other time at once, be it ahead or behind."""
    for difference_ms in (6_000, -60_000):
        machine.ahead_ms += difference_ms
        machine.clock.set_to(machine.ask)
        assert machine.error_ms() == 0


def test_a_gap_is_one_at_any_moment_of_a_round_trip(machine: Machine) -> None:
    """What may be no more than the time of the way there and back is none."""
    before_ns = machine.boot_ns
    read_us = machine.ask()
    machine.pass_s(3)
    assert machine.clock.gap_s(read_us, before_ns) == 0
    assert machine.clock.gap_s(read_us + 3_000_000, before_ns) == 0
    assert machine.clock.gap_s(read_us + 4_000_000, before_ns) == 1
    assert machine.clock.gap_s(read_us - 1_000_000, before_ns) == -1


def test_a_change_of_course_begins_where_the_last_one_had_come(machine: Machine) -> None:
    """Measuring again before a difference is made up for neither jumps nor starts over."""
    machine.ahead_ms += 1_000
    machine.clock.measure(machine.ask, FOLLOWED_S)
    machine.pass_s(5)
    before_ms = machine.clock.now_ms()
    assert machine.clock.measure(machine.ask, FOLLOWED_S) == pytest.approx(0.5)
    assert machine.clock.now_ms() == before_ms
    machine.pass_s(5)
    assert machine.error_ms() == 0


@pytest.mark.parametrize(
    ("target_ns", "elapsed_ns", "expected_ns"),
    [(0, 100, 0), (50, 100, 10), (50, 1000, 50), (-50, 100, -10), (-50, 1000, -50)],
)
def test_slewing(target_ns: int, elapsed_ns: int, expected_ns: int) -> None:
    """An offset moves by a tenth of the time that passes, and no further than it is to."""
    assert slewed_ns(0, target_ns, elapsed_ns) == expected_ns
