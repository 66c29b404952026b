"""The simulator and the real server, with the same messages, work and deaths."""

from __future__ import annotations

import pytest
from benchmarks.simulator_replay import COMPARED, SETTINGS, WORKS, both, differences

QUICK = [
    ("log-normal 20 s, sigma 0.8", "30 s"),
    ("85 % 8 s, 15 % 60 s", "300 s"),
    ("85 % 8 s, 15 % 60 s", "20 s, renewed every 10 s"),
]
ALL = [(work, setting) for work in WORKS for setting in SETTINGS]


@pytest.mark.parametrize(
    ("work", "setting"),
    [*QUICK, *(pytest.param(*each, marks=pytest.mark.slow) for each in ALL if each not in QUICK)],
)
def test_predictions_are_what_the_server_does(work: str, setting: str) -> None:
    """Redeliveries, work done twice, recovery, what gets done: each within 10 %."""
    predicted, seen = both(work, setting, messages=150)
    assert seen["done"] > 50
    assert seen["crashes"] >= 4
    assert seen["recovery_mean_s"] > 0
    off = differences(predicted, seen)
    assert set(off) == set(COMPARED)
    assert max(off.values()) <= 0.10, off
