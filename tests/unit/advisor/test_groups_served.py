"""How evenly the message groups of a log were served, and what is said of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from leasehold.advisor.findings import Weight, analyze
from leasehold.advisor.report import render
from leasehold.advisor.summaries import (
    Group,
    Groups,
    GroupStretch,
    LogSummary,
    QueueSummary,
    fairness,
    from_json,
    jain,
    to_json,
)
from tests.unit.advisor.support import UNTIL_MS, full_log, full_queue


def given(
    group_id: str, stretch: int, messages: int, least_s: float, most_s: float
) -> GroupStretch:
    """Return what a group was given in a stretch."""
    return GroupStretch(
        group_id=group_id, stretch=stretch, given=messages, least_s=least_s, most_s=most_s
    )


def test_groups_that_waited_together() -> None:
    """Of ten seconds: both had messages all the time, and were given as many, or nine of ten."""
    assert fairness([given("a", 3, 5, 40, 60), given("b", 3, 5, 10, 12)], 10) == pytest.approx(1)
    uneven = fairness([given("a", 3, 9, 40, 60), given("b", 3, 1, 10, 12)], 10)
    assert uneven == pytest.approx(100 / (2 * 82))


def test_who_did_not_wait_all_the_time_does_not_count() -> None:
    """It may have been given little as it had little."""
    assert fairness([given("a", 3, 9, 40, 60), given("b", 3, 1, 9.9, 60)], 10) is None
    assert fairness([], 10) is None


def test_who_was_given_nothing_counts() -> None:
    """What was received at last had waited all through the stretches before, from the second on."""
    busy = [given("a", stretch, 8, 90, 90) for stretch in range(5)]
    starved = [given("b", 4, 8, 10, 35)]
    # In the fourth both had eight; in two before it one of them had none.
    assert fairness([*busy, *starved], 10) == pytest.approx((1 * 16 + 2 * 0.5 * 8) / 32)
    again = [given("b", 2, 8, 10, 10), *starved]
    assert fairness([*busy, *again], 10) == pytest.approx((2 * 1 * 16 + 0.5 * 8) / 40)


def test_the_index_of_jain() -> None:
    """One for equal shares, one in n if one has all."""
    assert jain([3, 3, 3]) == pytest.approx(1.0)
    assert jain([1, 0, 0, 0]) == pytest.approx(0.25)
    assert jain([0, 0]) == 1.0


def of_groups(fair: float | None) -> LogSummary:
    """Return a log whose groups were served more or less evenly."""
    queue = full_queue()
    assert queue.groups is not None
    groups = replace(queue.groups, fairness=fair)
    return replace(full_log(), queues=(replace(queue, groups=groups),))


def test_what_is_said_of_groups() -> None:
    """Who waited longest, who had most of the work, and what to set; nothing if all is even."""
    (queue,) = analyze(of_groups(0.61)).queues
    (finding,) = [each for each in queue.findings if each.kind == "group"]
    assert finding.weight is Weight.LOOK
    for word in ("0.61", "small waited 70 s", "large had 90%", "groups.fair"):
        assert word in finding.sentence
    for even in (0.95, None):
        (queue,) = analyze(of_groups(even)).queues
        assert not [each for each in queue.findings if each.kind == "group"]


def test_the_page_has_groups() -> None:
    """Those with most messages, and how many there are."""
    page = render(analyze(of_groups(0.61)), UNTIL_MS)
    for word in ("Message groups", "240 groups", "the 3 with most messages", "0.610", "none yet"):
        assert word in page
    without = replace(full_log(), queues=(QueueSummary(queue="plain"),))
    assert "Message groups" not in render(analyze(without), UNTIL_MS)


def test_a_summary_with_groups_can_be_saved() -> None:
    """And one from before there were groups be read."""
    assert from_json(to_json(full_log())) == full_log()
    few = Groups(found=1, largest=(Group(group_id="a", messages=1),))
    one = replace(full_log(), queues=(QueueSummary(queue="q", groups=few),))
    assert from_json(to_json(one)) == one
