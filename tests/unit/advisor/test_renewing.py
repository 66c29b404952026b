"""Whether workers renew their leases, as far as a log can tell."""

from __future__ import annotations

from dataclasses import replace

import pytest

from leasehold.advisor.apply import Current, change_for
from leasehold.advisor.attempts import Attempt
from leasehold.advisor.recommendation import Asked, Today, recommend, renews_of
from leasehold.advisor.summaries import QueueSummary, Work
from leasehold.domain.queue_settings import Advised
from tests.unit.advisor.support import log_normal, work

NOW_MS = 1_767_225_600_000
CRASHES = 6


def lazily(attempts: list[Attempt], first_s: float, guard_s: float = 5) -> QueueSummary:
    """Return what a log shows of workers that renew as late as they can."""
    renewed = sum(each.seconds > first_s - guard_s for each in attempts)
    return QueueSummary(
        queue="orders",
        works=(
            work(
                attempts,
                crashes=CRASHES,
                lapsed=CRASHES,
                renewed=renewed,
                usual_lease_s=float(first_s),
                deliveries=len(attempts) + CRASHES,
            ),
        ),
    )


@pytest.mark.parametrize(("median_s", "sigma"), [(2, 1.0), (20, 0.3), (60, 1.0), (120, 0.5)])
def test_workers_that_follow_the_plan_are_seen_to_renew(median_s: float, sigma: float) -> None:
    """Its first lease is one that most work needs no renewal of: day after day it stays a plan."""
    attempts = log_normal(median_s, sigma, 3_000, seed=4)
    current = Current(visibility_timeout_s=30)
    first_s = 10.0
    for day in range(4):
        known = None if current.advised is None else current.advised.first_lease_s
        today = Today(visibility_timeout_s=30, lease_s=30, first_lease_s=known)
        found = recommend(lazily(attempts, first_s), Asked(today={"orders": today}))
        assert found.renews, f"day {day}: first lease of {first_s} s"
        change = change_for(found, current, now_ms=NOW_MS)
        assert "visibility_timeout_s" not in (change.patch or {})
        assert found.renewal is not None
        if change.patch is not None:
            current = replace(current, advised=Advised(**change.patch["advised"]))
        assert current.advised is not None
        assert current.advised.first_lease_s is not None
        first_s = current.advised.first_lease_s


def test_only_attempts_that_outlasted_their_lease_tell() -> None:
    """Short work is never renewed, whoever does it; work that is late, by workers that do not."""
    quick = Work(completed=9_000, deliveries=9_000, renewed=40, late=3, usual_lease_s=30)
    assert renews_of(QueueSummary(queue="q", works=(quick,)), Asked())
    late = replace(quick, late=60)
    assert not renews_of(QueueSummary(queue="q", works=(late,)), Asked())
    hardly = replace(quick, renewed=3, late=1)
    assert not renews_of(QueueSummary(queue="q", works=(hardly,)), Asked())
    # What was renewed and late all the same is no sign of workers that do not renew.
    counted = replace(late, unrenewed=3)
    assert renews_of(QueueSummary(queue="q", works=(counted,)), Asked())


def test_the_dead_say_nothing_of_the_living() -> None:
    """Leases of workers that died lapse; that is not counted against those that renew."""
    died = Work(deliveries=900, renewed=8, lapsed=30, crashes=30, usual_lease_s=30)
    assert renews_of(QueueSummary(queue="q", works=(died,)), Asked())
    gave_up = replace(died, crashes=5)
    assert not renews_of(QueueSummary(queue="q", works=(gave_up,)), Asked())


def test_leases_that_begin_as_was_advised_are_renewed_if_need_be() -> None:
    """With nothing in the log that lasted so long, the first lease tells whose advice it was."""
    short = QueueSummary(
        queue="q", works=(Work(deliveries=900, completed=900, usual_lease_s=88.0),)
    )

    def told(first_s: int | None, lease_s: int = 30) -> bool:
        today = Today(visibility_timeout_s=lease_s, lease_s=lease_s, first_lease_s=first_s)
        return renews_of(short, Asked(today={"q": today}))

    assert told(88)
    assert not told(40)
    assert not told(None)
    assert not told(88, lease_s=88)


def test_a_type_with_little_to_show_is_taken_as_its_queue() -> None:
    """Its workers are those of the queue."""
    slow = Work(message_type="slow", deliveries=500, renewed=300, usual_lease_s=30)
    quick = Work(message_type="quick", deliveries=500, completed=500, usual_lease_s=30)
    queue = QueueSummary(queue="q", works=(slow, quick))
    assert renews_of(queue, Asked(), (quick,))
