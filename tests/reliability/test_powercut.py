"""A power cut at any moment loses no acknowledged batch and leaves none half done."""

from __future__ import annotations

import pytest

from .powercut import frequent_checkpoints, replay


def test_every_crash_state_comes_up_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """The quick part: 1,500 crash states of 10 workloads."""
    frequent_checkpoints(monkeypatch)
    outcome = replay(range(10), 150)
    assert outcome.violations == []
    assert outcome.states == 1500
    assert outcome.after_acknowledged > 300
    assert outcome.after_next > 30


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_many_crash_states_come_up_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """The slow part: 15,000 crash states of 100 workloads."""
    frequent_checkpoints(monkeypatch)
    outcome = replay(range(1000, 1100), 150)
    print(f"crash states {outcome.states}, violations {len(outcome.violations)}")  # noqa: T201
    assert outcome.violations == []
    assert outcome.states == 15_000


def test_the_harness_finds_a_store_that_does_not_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    """Positive control: with synchronous=NORMAL acknowledged batches must be seen to be lost."""
    frequent_checkpoints(monkeypatch, synchronous=1)
    assert replay(range(3), 60).violations != []
