"""Queues with more types of messages than anybody looks at."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from leasehold.advisor.findings import analyze
from leasehold.advisor.recommendation import seen_of
from leasehold.advisor.summaries import (
    MOST_TYPES,
    OTHERS,
    QueueSummary,
    Work,
    as_one,
    count_of,
    folded,
)
from tests.unit.advisor.support import full_log, full_queue, log_normal, work


def many_types(many: int) -> tuple[Work, ...]:
    """Return work of so many types, each with less than the one before."""
    few = work(log_normal(3, 0.3, 5))
    return tuple(
        replace(few, message_type=f"type {each}", messages=many - each) for each in range(many)
    )


def test_the_largest_types_are_kept() -> None:
    """The others are one type, and nothing of them is lost."""
    works = many_types(250)
    few = folded(works)
    assert len(few) == MOST_TYPES
    assert [each.message_type for each in few[:2]] == ["type 0", "type 1"]
    assert few[-1].message_type == OTHERS
    told, all_told = seen_of(few), seen_of(works)
    assert told.work_s == pytest.approx(all_told.work_s)
    assert replace(told, work_s=0) == replace(all_told, work_s=0)
    assert count_of(one for each in few for one in each.bins) == 250 * 5
    # They are the same five lengths over and over.
    assert len(few[-1].bins) == len(works[0].bins)
    assert folded(works[:MOST_TYPES]) == works[:MOST_TYPES]


def test_work_as_one_has_every_figure() -> None:
    """Each member is the sum, the most or the first of its parts: none is left at its default."""
    first, second = full_queue().works
    parts = [
        Work(**{each.name: _some(each.name) for each in fields(Work)}),  # type: ignore[arg-type]
        replace(first, repeats=((1.0, 2.0),), done=40),
        replace(second, unrenewed=7, done=2),
    ]
    whole = as_one(parts, "all")
    for each in fields(Work):
        assert getattr(whole, each.name) != each.default, each.name
    assert whole.done == 45
    assert as_one([first, replace(second, done=2)], "all").done is None
    assert whole.deliveries == sum(each.deliveries for each in parts)
    assert whole.work_s == pytest.approx(sum(each.work_s for each in parts))
    assert whole.unrenewed == 3 + first.late + first.lapsed + 7


def _some(name: str) -> object:
    known = {"message_type": "t", "bins": full_queue().works[0].bins, "repeats": ((1.0, 2.0),)}
    return known.get(name, 3)


def test_a_queue_of_thousands_of_types_is_analyzed() -> None:
    """As one of a hundred is."""
    queue = QueueSummary(queue="q", works=many_types(3_000))
    (found,) = analyze(replace(full_log(), queues=(queue,))).queues
    assert len(found.types) == MOST_TYPES
    assert found.whole.seen.deliveries == 15_000
