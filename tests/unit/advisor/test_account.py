"""What the log shows comes first, and the model says how far it is from that, and why."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from leasehold.advisor.findings import Weight, analyze
from leasehold.advisor.recommendation import Account, Asked, Today, recommend
from leasehold.advisor.report import count, render, seconds
from leasehold.advisor.summaries import Hour, QueueSummary, Work, Worker
from leasehold.domain.queue_settings import LapsedReceipts
from tests.unit.advisor.support import (
    HOUR_MS,
    UNTIL_MS,
    binned,
    full_log,
    full_queue,
    log_normal,
    work,
)


def busy(**members: Any) -> QueueSummary:
    """Return a queue with long work, whose leases lapsed and were hardly ever retaken."""
    attempts = log_normal(30, 0.5, 700)
    known: dict[str, Any] = {
        "redeliveries": 31,
        "deliveries": 731,
        "done": 700,
        "late": 300,
        "late_accepted": 300,
    }
    return QueueSummary(queue="orders", works=(work(attempts, **(known | members)),))


def test_log_and_model_stand_beside_each_other() -> None:
    """And if they are more than a tenth apart, the assumption that differs is told."""
    account = recommend(busy(), Asked()).account
    assert account is not None
    assert account.redeliveries == 31
    assert account.modelled > 500
    assert account.apart > 0.9
    assert account.because is not None
    assert "300 completions of lapsed leases were accepted" in account.because
    alike = recommend(busy(redeliveries=round(account.modelled)), Asked()).account
    assert alike is not None
    assert (alike.because, alike.apart < 0.01) == (None, True)


@pytest.mark.parametrize(
    ("members", "word"),
    [
        ({"late_accepted": 0}, "had other lengths"),
        ({"redeliveries": 90_000, "failed": 700}, "700 attempts failed"),
        ({"redeliveries": 90_000}, "messages waited in the worker"),
    ],
)
def test_the_assumption_that_differs_is_the_one_of_the_log(
    members: dict[str, object], word: str
) -> None:
    """Leases that were retaken late, failures, or shorter leases than the timeout."""
    account = recommend(busy(**members), Asked()).account
    assert account is not None
    assert word in (account.because or "")


def test_the_page_begins_with_what_was_observed() -> None:
    """Redeliveries of the log and messages done, before anything that is calculated."""
    log = replace(full_log(), queues=(busy(),))
    page = render(analyze(log), UNTIL_MS)
    observed = page.index("31 redeliveries; 700 messages were done")
    assert observed < page.index("of the same messages with today")
    assert page.index("in the log, as it was") < page.index("today&#39;s timeout, as modelled")
    sentence = next(each.sentence for each in analyze(log).queues[0].findings)
    told = "In the log there were 31 redeliveries, 700 of 700 messages were done."
    assert told in sentence


def test_what_is_next_to_nothing_is_nothing() -> None:
    """An expected number of 2e-38 messages is none."""
    assert [count(each) for each in (2e-38, 0.0, 0.02, 0.3, 12.4)] == [
        "0",
        "0",
        "0.02",
        "0.3",
        "12",
    ]
    assert [seconds(each) for each in (1e-20, 0.42)] == ["0 s", "0.42 s"]


def test_today_is_the_lease_of_the_end_of_the_log() -> None:
    """A timeout that adapts has had many; the one that was used most may be long gone."""
    parts = (
        Work(deliveries=900, usual_lease_s=30.0, newest_lease_s=153.0, newest_hour=11),
        Work(message_type="b", deliveries=950, usual_lease_s=30.0, newest_lease_s=90.0),
    )
    queue = QueueSummary(queue="orders", works=parts)
    assert recommend(queue, Asked()).today_s == 153
    today = {"orders": Today(visibility_timeout_s=30, lease_s=160)}
    assert recommend(queue, Asked(today=today)).today_s == 160


def test_a_poison_queue_asks_for_a_look_and_for_nothing_more() -> None:
    """Messages wait there to be looked at, so that its backlog grows is no emergency."""
    poison = replace(full_queue(), queue="media-poison", works=(), workers=(), poison=())
    found = analyze(replace(full_log(), queues=(poison,))).queues[0]
    assert [each.weight for each in found.findings if each.weight is Weight.ACT] == []
    assert any("to be inspected" in each.sentence for each in found.findings)
    short = tuple(each for each in full_queue().hours[-8:])
    new = analyze(replace(full_log(), queues=(replace(full_queue(), hours=short),))).queues[0]
    weights = {each.weight for each in new.findings if each.kind == "poison"}
    assert weights == {Weight.LOOK}


def played(workers: int, lapsed: LapsedReceipts = LapsedReceipts.UNTIL_RETAKEN) -> Account:
    """Return what the model makes of work of 50 s and leases of 30 s, with so many workers."""
    bins = binned(log_normal(50, 0.2, 400))
    start_ms = UNTIL_MS - 4 * HOUR_MS
    hours = tuple(
        Hour(start_ms=start_ms + n * HOUR_MS, put=100, completed=100, backlog_end=0)
        for n in range(4)
    )
    queue = QueueSummary(
        queue="orders",
        works=(work([], bins=bins, messages=400, deliveries=420, redeliveries=20, done=400),),
        hours=hours,
        workers=tuple(Worker(holder=str(n), attempts=9) for n in range(workers)),
    )
    today = Today(visibility_timeout_s=30, lease_s=30, lapsed=lapsed, max_deliveries=5)
    asked = Asked(today={"orders": today}, is_played=True)
    account = recommend(queue, asked).account
    assert account is not None
    assert account.workers == workers
    low, high = account.between
    assert low <= account.modelled <= high
    return account


def test_workers_and_the_rule_for_lapsed_receipts_are_part_of_the_model() -> None:
    """Busy workers retake nothing, so late completions count; with strict receipts they do not."""
    few, many = played(2), played(40)
    assert few.modelled < 0.8 * many.modelled
    assert played(2, LapsedReceipts.STRICT).modelled > 1.5 * few.modelled


def test_the_error_bar_is_narrower_with_more_data() -> None:
    """Four times the attempts: half of it, for cost and redeliveries alike."""
    bars = []
    for many in (400, 6_400):
        found = recommend(QueueSummary(queue="q", works=(work(log_normal(9, 1, many)),)), Asked())
        advised = found.choices[0]
        assert advised.name == "advice"
        assert advised.cost_between is not None
        low, high = advised.cost_between
        assert low <= advised.cost <= high
        bars.append((high - low) / advised.cost)
        assert ("the data are thin" in found.because) == (many == 400)
    assert bars[1] < bars[0] / 2
