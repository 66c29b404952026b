"""What is recorded of which lease."""

from __future__ import annotations

import math

import numpy as np
import pytest

from leasehold.advisor.attempts import Attempt, Ending, Lease, observe, silent_after_s


def test_late_completion_is_a_full_observation() -> None:
    """It tells how long the work took, although it was refused."""
    seen = observe([Lease("a", 95.0, Ending.LATE)], late_seen=True)
    assert seen.attempts == (Attempt(95.0, finished=True),)
    assert seen.crashes == 0


def test_dead_worker_is_a_crash_and_cuts_off() -> None:
    """Up to its last sign of life the work was going on."""
    seen = observe([Lease("a", 12.0, Ending.DIED)], late_seen=True)
    assert seen.attempts == (Attempt(12.0, finished=False),)
    assert (seen.crashes, seen.silent, seen.work_s) == (1, 0, 12.0)


@pytest.mark.parametrize(
    ("late_seen", "since_s", "attempts", "crashes"),
    [
        (True, 3_600.0, 0, 1),
        (True, 3_599.0, 1, 0),
        (False, 1e9, 1, 0),
    ],
)
def test_lapse_is_a_crash_once_nobody_will_complete_it(
    late_seen: bool, since_s: float, attempts: int, crashes: int
) -> None:
    """But only where late completions would have been seen."""
    lapse = Lease("a", 30.0, Ending.LAPSED, since_s=since_s)
    seen = observe([lapse], late_seen=late_seen)
    assert (len(seen.attempts), seen.crashes, seen.silent) == (attempts, crashes, crashes)


def test_silence_is_four_timeouts_but_an_hour_at_least() -> None:
    """So that slow work is not taken for dead."""
    assert [silent_after_s(each) for each in (30.0, 1_800.0)] == [3_600.0, 7_200.0]


def test_message_is_one_observation() -> None:
    """However often it was delivered; a lease that the work would have fitted was a crash."""
    leases = [
        Lease("slow", 30.0, Ending.LAPSED, 1),
        Lease("dead", 30.0, Ending.LAPSED, 1),
        Lease("dead", 20.0, Ending.COMPLETED, 2),
        Lease("slow", 45.0, Ending.COMPLETED, 2),
    ]
    seen = observe(leases, late_seen=False)
    assert set(seen.attempts) == {Attempt(45.0, True), Attempt(20.0, True)}
    assert (seen.crashes, seen.silent) == (1, 0)


def test_attempts_stand_for_themselves_where_each_takes_its_own_time() -> None:
    """Then a second delivery says nothing about the first."""
    leases = [Lease("a", 30.0, Ending.LAPSED), Lease("a", 20.0, Ending.COMPLETED, 2)]
    seen = observe(leases, late_seen=False, own_length=False)
    assert seen.attempts == (Attempt(30.0, False), Attempt(20.0, True))
    assert seen.crashes == 0


def test_what_kills_workers_and_what_is_given_back_is_left_out() -> None:
    """Sixth deliveries, unless the message was done at last."""
    leases = [
        Lease("back", 3.0, Ending.LEFT),
        Lease("killer", 1.0, Ending.DIED, 6),
        Lease("done", 4.0, Ending.COMPLETED, 3),
    ]
    seen = observe(leases, late_seen=True)
    assert seen.attempts == (Attempt(4.0, True),)
    assert (seen.left_out, seen.crashes) == (2, 0)


def test_work_that_goes_on_is_no_crash() -> None:
    """Not even if another worker has needed less time for the message meanwhile."""
    leases = [Lease("a", 40.0, Ending.LATE), Lease("a", 50.0, Ending.OPEN, 2, since_s=0.0)]
    seen = observe(leases, late_seen=True)
    assert seen.attempts == (Attempt(40.0, finished=True),)
    assert (seen.crashes, seen.work_s) == (0, 90.0)
    alone = observe(leases[1:], late_seen=True)
    assert alone.attempts == (Attempt(50.0, finished=False),)


def test_a_message_that_was_given_up_is_no_crash() -> None:
    """When each of its leases lapsed nobody can tell slow work from dead workers."""
    leases = [Lease("slow", 30.0, Ending.LAPSED, n, given_up=n == 5) for n in range(1, 6)]
    seen = observe(leases, late_seen=True)
    assert seen.attempts == (Attempt(30.0, finished=False),)
    assert (seen.crashes, seen.silent, seen.given_up, seen.left_out) == (0, 0, 1, 0)
    killer = observe([*leases, Lease("slow", 9.0, Ending.DIED, 2)], late_seen=True)
    assert killer.given_up == 0
    assert killer.crashes == 6
    late = observe([*leases, Lease("slow", 300.0, Ending.LATE, 1)], late_seen=True)
    assert late.attempts == (Attempt(300.0, finished=True),)
    assert late.given_up == 0


def test_deaths_of_what_was_done_at_last_all_count() -> None:
    """Those from the sixth delivery on as well, for its work is counted too."""
    leases = [Lease("a", 9.0, Ending.DIED, n) for n in range(1, 8)]
    assert observe(leases, late_seen=True).crashes == 5
    done = observe([*leases, Lease("a", 20.0, Ending.COMPLETED, 8)], late_seen=True)
    assert (done.crashes, done.work_s, done.left_out) == (7, 83.0, 0)


def test_the_rate_of_deaths_is_right_where_messages_are_given_up() -> None:
    """Workers that die once in 100 s, five deliveries, work of 60 s: many are never done."""
    random = np.random.default_rng(7)
    leases = []
    for message in range(2_000):
        for delivery in range(1, 6):
            life = float(random.exponential(100))
            done = life > 60
            ending = Ending.COMPLETED if done else Ending.DIED
            leases.append(Lease(message, min(life, 60.0), ending, delivery))
            if done:
                break
    seen = observe(leases, late_seen=True)
    assert seen.left_out == 0
    assert seen.crashes / seen.work_s == pytest.approx(0.01, rel=0.06)
    cut = [each for each in seen.attempts if not each.finished]
    assert len(cut) == pytest.approx(2_000 * (1 - math.exp(-0.6)) ** 5, abs=25)
