"""What is invisible, and until when: the numbers that make counts cheap."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from leasehold.domain.model import Phase
from leasehold.stores.sql.catalog import Timeline

NOW_MS = 1_767_225_600_000


def test_time_that_goes_back_ends_it() -> None:
    """By a second; within the same one nothing is lost."""
    timeline = Timeline(NOW_MS + 5_500, [])
    assert timeline.advance(NOW_MS + 5_000)
    assert not timeline.advance(NOW_MS + 4_999)


@pytest.mark.parametrize("leap_ms", [1, 999, 1_000, 10_000, 10_000_000])
def test_it_agrees_with_a_list_of_all(leap_ms: int) -> None:
    """Whatever is there, comes and goes, by small steps of time or by leaps."""
    rng = random.Random(leap_ms)
    now_ms = NOW_MS + 400

    def some() -> tuple[int, Phase]:
        at_ms = now_ms + rng.choice([-700, 0, 1, 700, 5_000, 3 * leap_ms])
        return at_ms, rng.choice(list(Phase))

    there = [some() for _ in range(20)]
    rows = Counter((at_ms // 1000, phase) for at_ms, phase in there if at_ms > now_ms)
    timeline = Timeline(now_ms, [(*key, number) for key, number in rows.items()])
    for each in there:
        if each[0] <= now_ms:
            timeline.add(*each, 1)
    for _ in range(400):
        if rng.random() < 0.6 or not there:
            there.append(some())
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
