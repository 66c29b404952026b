"""What is invisible, and until when: the numbers that make counts cheap."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from leasehold.domain.model import Phase
from leasehold.stores.sql.catalog import Timeline

NOW_MS = 1_767_225_600_000
SECOND = NOW_MS // 1000


def by_phase(**numbers: int) -> list[int]:
    """Return numbers as a timeline gives them."""
    return [numbers.get(phase.name.lower(), 0) for phase in Phase]


def test_rows_of_before_are_counted_by_phase() -> None:
    """What it is made from is there, and rows of one second and phase add up."""
    rows = [(SECOND, Phase.LEASED, 2), (SECOND + 9, Phase.LEASED, 3), (SECOND + 9, Phase.LEASED, 1)]
    timeline = Timeline(NOW_MS + 400, [*rows, (SECOND + 1, Phase.DELAYED, 5)])
    assert timeline.ahead == by_phase(leased=6, delayed=5)
    assert timeline.in_this_second() == by_phase(leased=2)


def test_a_second_counts_until_it_is_over() -> None:
    """Within it somebody has to look at the rows; from the next one on all of them are visible."""
    timeline = Timeline(NOW_MS, [])
    timeline.add(NOW_MS + 1_500, Phase.DELAYED, 1)
    assert timeline.advance(NOW_MS + 1_999)
    assert timeline.ahead == by_phase(delayed=1)
    assert timeline.in_this_second() == by_phase(delayed=1)
    assert timeline.advance(NOW_MS + 2_000)
    assert timeline.ahead == by_phase()
    assert timeline.in_this_second() == by_phase()


def test_what_is_visible_by_now_is_not_counted() -> None:
    """Neither coming nor going, whatever phase it was in."""
    timeline = Timeline(NOW_MS, [])
    timeline.add(NOW_MS + 500, Phase.LEASED, 1)
    assert timeline.advance(NOW_MS + 3_000)
    timeline.add(NOW_MS + 500, Phase.LEASED, -1)
    timeline.add(NOW_MS + 2_999, Phase.DEFERRED, 4)
    assert timeline.ahead == by_phase()


def test_what_goes_is_taken_off() -> None:
    """One of several stays counted, the last one leaves nothing behind."""
    timeline = Timeline(NOW_MS, [(SECOND + 5, Phase.LEASED, 2)])
    timeline.add(NOW_MS + 5_999, Phase.LEASED, -1)
    assert timeline.ahead == by_phase(leased=1)
    timeline.add(NOW_MS + 5_000, Phase.LEASED, -1)
    assert timeline.ahead == by_phase()
    assert timeline._numbers == {}


def test_time_that_goes_back_ends_it() -> None:
    """By a second; within the same one nothing is lost."""
    timeline = Timeline(NOW_MS + 5_500, [])
    assert timeline.advance(NOW_MS + 5_000)
    assert not timeline.advance(NOW_MS + 4_999)


@pytest.mark.parametrize("leap_ms", [1, 999, 1_000, 10_000, 10_000_000])
def test_it_agrees_with_a_list_of_all(leap_ms: int) -> None:
    """Whatever comes and goes, by small steps of time or by leaps, the numbers are right."""
    rng = random.Random(leap_ms)
    now_ms = NOW_MS
    timeline = Timeline(now_ms, [])
    there: list[tuple[int, Phase]] = []
    for _ in range(400):
        if rng.random() < 0.6 or not there:
            phase = rng.choice(list(Phase))
            there.append((now_ms + rng.choice([0, 1, 700, 5_000, 3 * leap_ms]), phase))
            timeline.add(*there[-1], 1)
        else:
            timeline.add(*there.pop(rng.randrange(len(there))), -1)
        now_ms += rng.randrange(leap_ms + 1)
        assert timeline.advance(now_ms)
        second = now_ms // 1000
        ahead = Counter(phase for at_ms, phase in there if at_ms // 1000 >= second)
        soon = Counter(phase for at_ms, phase in there if at_ms // 1000 == second)
        assert timeline.ahead == [ahead[phase] for phase in Phase]
        assert timeline.in_this_second() == [soon[phase] for phase in Phase]


@pytest.mark.parametrize("leap_ms", [10_000, 10**9])
def test_time_that_has_passed_takes_no_room(leap_ms: int) -> None:
    """Both ways of letting time pass forget what is behind."""
    timeline = Timeline(NOW_MS, [])
    for second in range(100):
        timeline.add(NOW_MS + second * 100, Phase.LEASED, 1)
    assert len(timeline._numbers) == 10
    timeline.advance(NOW_MS + leap_ms)
    assert len(timeline._numbers) == 0
