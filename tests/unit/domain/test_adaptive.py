"""The visibility timeout that follows the work: quick up, slow down, never out of bounds."""

from __future__ import annotations

import heapq
import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasehold.domain.adaptive import Window, decide
from leasehold.domain.queue_settings import Adapted, Adaptive

BOUNDS = Adaptive(floor_s=5, cap_s=3_600)
START_MS = 1_700_000_000_000
WORKERS = 8
DECIDE_EVERY_MS = 10_000
MINUTE_MS = 60_000


class Simulation:
    """Workers that never idle; work that outlives its lease is completed too late."""

    def __init__(self, timeout_s: int, *, durations_known: bool = True, sigma: float = 0.2) -> None:
        self.window = Window()
        self.timeout_s = timeout_s
        self.now_ms = START_MS
        self.changes: list[Adapted] = []
        self.random = random.Random(20)
        self.durations_known = durations_known
        self.sigma = sigma
        self.running: list[tuple[int, int, int]] = []

    def run(self, minutes: int, mean_s: float) -> None:
        """Go on for so long with work of about so many seconds."""
        end_ms = self.now_ms + minutes * MINUTE_MS
        while self.now_ms < end_ms:
            while len(self.running) < WORKERS:
                self.start(self.now_ms, mean_s)
            self.now_ms += DECIDE_EVERY_MS
            while self.running[0][0] <= self.now_ms:
                finished_ms = self.finish(*heapq.heappop(self.running))
                self.start(finished_ms, mean_s)
            change = decide(self.window, BOUNDS, self.timeout_s, self.now_ms)
            if change is not None:
                self.changes.append(change)
                self.timeout_s = change.visibility_timeout_s

    def start(self, at_ms: int, mean_s: float) -> None:
        took_ms = round(1000 * mean_s * self.random.lognormvariate(0, self.sigma))
        heapq.heappush(self.running, (at_ms + took_ms, took_ms, self.timeout_s))

    def finish(self, finished_ms: int, took_ms: int, lease_s: int) -> int:
        took_s = took_ms / 1000
        if took_s <= lease_s:
            self.window.observe_completed(took_s)
        else:
            self.window.observe_late(took_s if self.durations_known else None)
        return finished_ms


def turns(changes: list[Adapted], first_s: int) -> int:
    """Count how often growing turned into shrinking or the other way round."""
    values = [first_s, *(change.visibility_timeout_s for change in changes)]
    ups = [after > before for before, after in pairwise(values)]
    return sum(one is not other for one, other in pairwise(ups))


@pytest.mark.parametrize(("durations_known", "settled_after"), [(True, 40), (False, 90)])
def test_a_step_up_and_down_settles_both_ways(durations_known: bool, settled_after: int) -> None:
    """From 1 s to 300 s of work and back the timeout follows, without swinging."""
    queue = Simulation(30, durations_known=durations_known)
    queue.run(60, 1.0)
    assert queue.timeout_s <= 8
    assert turns(queue.changes, 30) == 0
    low_s, seen = queue.timeout_s, len(queue.changes)

    queue.run(120, 300.0)
    rises = queue.changes[seen:]
    assert 400 <= queue.timeout_s <= 1_200
    assert rises[-1].at_ms - START_MS <= (60 + settled_after) * MINUTE_MS
    assert turns(rises, low_s) == 0
    high_s, seen = queue.timeout_s, len(queue.changes)

    queue.run(180, 1.0)
    falls = queue.changes[seen:]
    assert queue.timeout_s <= 8
    assert turns(falls, high_s) == 0
    assert all(
        after.visibility_timeout_s > 0.75 * before.visibility_timeout_s - 1
        for before, after in pairwise(falls)
    )


@pytest.mark.parametrize(("sigma", "mean_s"), [(0.2, 20.0), (0.2, 120.0), (0.8, 5.0)])
def test_steady_work_is_left_alone(sigma: float, mean_s: float) -> None:
    """Once it fits, the timeout of work that varies but does not change hardly moves."""
    queue = Simulation(30, sigma=sigma)
    queue.run(3 * 60, mean_s)
    seen = len(queue.changes)
    queue.run(8 * 60, mean_s)
    assert len(queue.changes) - seen <= (sigma > 0.5)
    assert queue.timeout_s > 1.5 * mean_s


def observed(duration_s: float, count: int = 100) -> Window:
    window = Window()
    for _ in range(count):
        window.observe_completed(duration_s)
    return window


def settled(window: Window, current_s: int, duration_s: float, periods: int = 10) -> list[Adapted]:
    """Go on with work of one length for some periods and collect the changes."""
    changes = []
    for period in range(periods):
        for _ in range(100):
            window.observe_completed(duration_s)
        change = decide(window, BOUNDS, current_s, START_MS + period * MINUTE_MS)
        if change is not None:
            changes.append(change)
            current_s = change.visibility_timeout_s
    return changes


def test_it_lengthens_before_work_is_late() -> None:
    """Work that takes up most of the timeout lengthens it, and the reason is told."""
    change = decide(observed(25.0), BOUNDS, 30, START_MS)
    assert change == Adapted(
        visibility_timeout_s=38,
        because="lengthened from 30 s: 99 % of the work took up to 25 s",
        at_ms=START_MS,
    )
    assert decide(observed(20.0), BOUNDS, 30, START_MS) is None


def test_a_few_late_ones_are_enough() -> None:
    """Five late completions that say how long they took lengthen it at once."""
    window = Window()
    for _ in range(4):
        window.observe_late(100.0)
    assert decide(window, BOUNDS, 30, START_MS) is None
    window.observe_late(100.0)
    change = decide(window, BOUNDS, 30, START_MS)
    assert change is not None
    assert 100 < change.visibility_timeout_s <= 120
    assert change.because == (
        "lengthened from 30 s: 99 % of the work took up to 101 s, and 5 came too late"
    )


def test_late_ones_that_do_not_say_how_long_double_it() -> None:
    """A share of late completions above 1 % doubles it, once for each length of the lease."""
    window = observed(2.0, 98)
    window.observe_late(None)
    window.observe_late(None)
    change = decide(window, BOUNDS, 30, START_MS)
    assert change is not None
    assert change.visibility_timeout_s == 60
    assert change.because == "lengthened from 30 s: 2 % of the completions came too late"
    for _ in range(50):
        window.observe_late(None)
    assert decide(window, BOUNDS, 60, START_MS + 59_000) is None
    again = decide(window, BOUNDS, 60, START_MS + 60_000)
    assert again is not None
    assert again.visibility_timeout_s == 120


def test_one_late_one_among_many_changes_nothing() -> None:
    """A share of late completions that is small is let pass."""
    window = observed(2.0, 200)
    window.observe_late(None)
    window.observe_late(29.0)
    assert decide(window, BOUNDS, 30, START_MS) is None


def test_one_long_one_among_few_changes_nothing() -> None:
    """The longest of fewer than a hundred is not taken for the rule."""
    window = observed(2.0, 40)
    window.observe_completed(3_000.0)
    assert decide(window, BOUNDS, 30, START_MS) is None


def test_too_little_is_known() -> None:
    """With fewer than twenty completions nothing is changed, however long they took."""
    assert decide(observed(29.0, 19), BOUNDS, 30, START_MS) is None
    assert decide(observed(29.0, 20), BOUNDS, 30, START_MS) is not None
    assert settled(Window(), 3_600, 1.0, periods=3) == []


def test_it_grows_fourfold_at_most() -> None:
    """One step does not go further than four times, and there is a pause after it."""
    window = observed(600.0)
    change = decide(window, BOUNDS, 10, START_MS)
    assert change is not None
    assert change.visibility_timeout_s == 40
    assert decide(window, BOUNDS, 40, START_MS + 29_999) is None
    again = decide(window, BOUNDS, 40, START_MS + 30_000)
    assert again is not None
    assert again.visibility_timeout_s == 160


def test_it_shrinks_by_a_quarter_at_most_and_not_often() -> None:
    """Short work shortens it step by step, three quiet periods apart, and says so."""
    changes = settled(Window(), 400, 1.0, periods=12)
    assert [change.visibility_timeout_s for change in changes] == [300, 225, 168]
    assert changes[0].because == (
        "shortened from 400 s: 99 % of the work took up to 1.0 s, and none came too late"
    )
    assert all(after.at_ms - before.at_ms >= 180_000 for before, after in pairwise(changes))


def test_a_late_one_puts_off_shortening() -> None:
    """After a late completion it takes three periods without any before it is shortened."""
    window = Window()
    for period in range(12):
        for _ in range(100):
            window.observe_completed(1.0)
        if period % 3 == 0:
            window.observe_late(1.0)
        assert decide(window, BOUNDS, 400, START_MS + period * MINUTE_MS) is None


def test_the_change_must_be_worth_it() -> None:
    """A timeout that is less than a fifth too long, or too short, stays."""
    assert settled(Window(), 30, 17.0) == []
    window = Window()
    narrow = Adaptive(floor_s=390, cap_s=400)
    for period in range(6):
        for _ in range(100):
            window.observe_completed(1.0)
        assert decide(window, narrow, 400, START_MS + period * MINUTE_MS) is None
    assert decide(observed(3.0), Adaptive(floor_s=5, cap_s=34), 30, START_MS) is None
    assert decide(observed(29.0), Adaptive(floor_s=5, cap_s=34), 30, START_MS) is None
    assert decide(observed(29.0), Adaptive(floor_s=5, cap_s=36), 30, START_MS) is not None


def test_a_burst_of_failures_freezes_it() -> None:
    """While much of the work fails nothing is changed, and what was seen then is forgotten."""
    window = observed(29.0)
    for _ in range(26):
        window.observe_failed()
    assert decide(window, BOUNDS, 30, START_MS) is None
    assert decide(window, BOUNDS, 30, START_MS + MINUTE_MS) is None
    assert window.finished == 0
    some = observed(29.0)
    for _ in range(24):
        some.observe_failed()
    assert decide(some, BOUNDS, 30, START_MS) is not None


def test_two_failures_are_no_burst() -> None:
    """On a slow queue it takes three failures to freeze it."""
    window = Window()
    for _ in range(5):
        window.observe_late(100.0)
    for _ in range(2):
        window.observe_failed()
    assert decide(window, BOUNDS, 30, START_MS) is not None
    window.observe_failed()
    assert decide(window, BOUNDS, 100, START_MS + MINUTE_MS) is None
    assert window.finished == 0


def test_what_is_over_counts_less() -> None:
    """Ten late completions count as seven at the end of the next period."""
    window = observed(10.0, 200)
    for _ in range(10):
        window.observe_late(12.0)
    assert decide(window, BOUNDS, 30, START_MS) is None
    assert decide(window, BOUNDS, 30, START_MS + MINUTE_MS) is None
    assert (window.late, window.finished) == (10.0, 210.0)
    for _ in range(20):
        window.observe_completed(10.0)
    assert decide(window, BOUNDS, 30, START_MS + 2 * MINUTE_MS) is None
    assert window.late == pytest.approx(7.0)
    assert window.finished == pytest.approx(167.0)
    for _ in range(50):
        window.observe_completed(29.0)
    change = decide(window, BOUNDS, 30, START_MS + 2 * MINUTE_MS)
    assert change is not None
    assert change.because.endswith("took up to 30 s, and 7 came too late")


def test_quick_failures_do_not_shorten_it() -> None:
    """Work that fails at once says nothing about work that does not."""
    window = Window()
    for period in range(10):
        for _ in range(70):
            window.observe_completed(0.1)
        for _ in range(30):
            window.observe_failed()
        assert decide(window, BOUNDS, 400, START_MS + period * MINUTE_MS) is None


def test_slow_renewals_lengthen_it() -> None:
    """Renewals a minute apart, on leases of ten seconds, lengthen it after the second."""
    window = observed(1.2)
    window.observe_renewed(60.0)
    assert decide(window, BOUNDS, 50, START_MS) is None
    window.observe_renewed(60.0)
    change = decide(window, BOUNDS, 50, START_MS)
    assert change is not None
    assert 180 <= change.visibility_timeout_s <= 200
    assert change.because == "lengthened from 50 s: renewals come up to 60 s apart"
    window = Window()
    window.observe_renewed(60.0)
    window.observe_renewed(60.0)
    first = decide(window, BOUNDS, 10, START_MS)
    assert first is not None
    assert first.visibility_timeout_s == 40


def test_it_stays_above_three_gaps_between_renewals() -> None:
    """Short work does not shorten it below three times the gap of those who renew."""
    window, current_s = Window(), 400
    for period in range(60):
        for _ in range(100):
            window.observe_completed(1.0)
        for _ in range(5):
            window.observe_renewed(40.0)
        change = decide(window, BOUNDS, current_s, START_MS + period * MINUTE_MS)
        current_s = change.visibility_timeout_s if change is not None else current_s
    assert 120 <= current_s <= 180


@pytest.mark.parametrize("share", [0.5, 0.75, 0.95])
def test_workers_that_renew_in_time_do_not_drive_it_up(share: float) -> None:
    """Renewing at a share of the lease, as clients do, does not make the lease grow for ever."""
    window, current_s = Window(), 30
    for period in range(60):
        for _ in range(100):
            window.observe_completed(10.0)
            window.observe_renewed(share * current_s)
        change = decide(window, BOUNDS, current_s, START_MS + period * MINUTE_MS)
        current_s = change.visibility_timeout_s if change is not None else current_s
    assert current_s == 30


def test_the_bounds_hold() -> None:
    """At the cap and at the floor it stops and says so; outside of them it comes back at once."""
    rising = settled(Window(), 1_000, 4_000.0)
    assert rising[-1].visibility_timeout_s == 3_600
    assert rising[-1].because.endswith("; this is the cap")
    bounds = Adaptive(floor_s=40, cap_s=300)
    falling = decide(Window(), bounds, 500, START_MS)
    assert falling == Adapted(
        visibility_timeout_s=300, because="lowered from 500 s: this is the cap", at_ms=START_MS
    )
    raised = decide(Window(), bounds, 30, START_MS)
    assert raised == Adapted(
        visibility_timeout_s=40, because="raised from 30 s: this is the floor", at_ms=START_MS
    )
    sinking = settled(Window(), 8, 0.25)
    assert [change.because for change in sinking] == [
        "shortened from 8 s: 99 % of the work took up to 0.3 s, and none came too late"
    ]


def test_a_clock_that_goes_back_does_not_hold_it_up() -> None:
    """After an hour was taken back, changes come as before."""
    window = observed(600.0)
    assert decide(window, BOUNDS, 10, START_MS) is not None
    back_ms = START_MS - 3_600_000
    assert decide(window, BOUNDS, 40, back_ms) is None
    assert decide(window, BOUNDS, 40, back_ms + 30_000) is not None


LENGTHS = st.floats(0, 1e9)
EVENTS = st.one_of(
    st.tuples(st.just("completed"), LENGTHS, st.integers(1, 60)),
    st.tuples(st.just("late"), st.none() | LENGTHS, st.integers(1, 20)),
    st.tuples(st.just("renewed"), LENGTHS, st.integers(1, 5)),
    st.tuples(st.just("failed"), st.none(), st.integers(1, 30)),
    st.tuples(st.just("pause"), st.none(), st.integers(-100_000, 400_000)),
)


@given(
    events=st.lists(EVENTS, max_size=40),
    floor_s=st.integers(1, 100),
    width_s=st.integers(0, 7_000),
    current_s=st.integers(1, 604_800),
)
def test_whatever_happens_it_stays_within_bounds(
    events: list[tuple[str, float | None, int]], floor_s: int, width_s: int, current_s: int
) -> None:
    """A change ends within the bounds, is worth it, and is neither wild nor without a reason."""
    bounds = Adaptive(floor_s=floor_s, cap_s=floor_s + width_s)
    window, now_ms = Window(), START_MS
    for kind, length_s, count in events:
        if kind == "pause":
            now_ms += count
        for _ in range(count):
            if kind == "completed":
                window.observe_completed(length_s or 0.0)
            elif kind == "late":
                window.observe_late(length_s)
            elif kind == "renewed":
                window.observe_renewed(length_s or 0.0)
            elif kind == "failed":
                window.observe_failed()
        change = decide(window, bounds, current_s, now_ms)
        if change is None:
            assert bounds.floor_s <= current_s <= bounds.cap_s
            continue
        new_s = change.visibility_timeout_s
        assert bounds.floor_s <= new_s <= bounds.cap_s
        assert change.because
        if bounds.floor_s <= current_s <= bounds.cap_s:
            assert 0.75 * current_s - 1 < new_s <= 4 * current_s
            assert abs(new_s - current_s) >= 0.2 * current_s
        current_s = new_s
