"""What a planned hand-over costs: the harness that measures it finds what is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks import hand_over
from benchmarks.hand_over import Step, handed_over, summary

STEPS = [Step(1, 7, number, number / 10) for number in range(1, 71)]
"""Seven seconds of work under the first fence; after five of them it was saved."""


def test_what_is_done_again_is_lost() -> None:
    """From the step after the checkpoint; the gap is between steps on the two executors."""
    found = handed_over([*STEPS, Step(2, 8, 51, 7.4)], 1, 6.5)
    assert found is not None
    assert found == pytest.approx((2.0, 2.0, 0.4, 0.5))
    assert handed_over(STEPS, 1, 6.5) is None


def test_what_begins_anew_has_lost_all() -> None:
    """There was a checkpoint, and it was not found."""
    found = handed_over([*STEPS, Step(2, 8, 1, 7.1)], 1, 7.0)
    assert found is not None
    assert found.lost_s == pytest.approx(7.0)


@pytest.mark.parametrize(
    ("number", "at_s", "is_good"),
    [(51, 7.4, True), (71, 7.1, True), (1, 7.4, False), (51, 30.0, False), (73, 7.4, False)],
    ids=["saved", "nothing lost", "lost", "waited", "skipped"],
)
def test_one_message_can_fail_a_try(number: int, at_s: float, is_good: bool) -> None:
    """It lost more than five seconds, waited for something, or was not done in part."""
    good = {"lost_s": 1.0, "lost_wall_s": 1.0, "gap_s": 0.1, "stop_s": 0.1}
    found = handed_over([*STEPS, Step(2, 8, number, at_s)], 1, 6.5)
    assert found is not None
    tries = [{"messages": [good, found._asdict()]}, {"messages": [good]}]
    assert summary(tries)["tries_that_met_both"] == 1 + is_good


@pytest.mark.slow
@pytest.mark.timeout(1_200)
def test_decommissioned_executors_hand_over_and_a_killed_one_does_not(tmp_path: Path) -> None:
    """By signal and by the driver; the control is missed only when its session is lost."""
    with hand_over.running(tmp_path, 1) as bench:
        tries = [
            bench.one_try(number, how)
            for number, how in enumerate((*hand_over.HOWS, hand_over.CONTROL))
        ]
    assert [summary([one])["tries_that_met_both"] for one in tries] == [1, 1, 0], tries
