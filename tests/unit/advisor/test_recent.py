"""Advice from the newest events of one queue."""

from __future__ import annotations

import random
from typing import Any

import pytest

from leasehold.advisor.attempts import Ending
from leasehold.advisor.recent import advice_from, leases_of
from leasehold.domain.events import Event, EventType

NOW_MS = 10_000_000


def event(kind: EventType, message: str | None, at_s: float, **more: Any) -> Event:
    """Return an event of a message, at so many seconds."""
    return Event(1, 0, round(at_s * 1000), kind, "a", "q", message, **more)


def done(message: str, at_s: float, took_s: float, **more: Any) -> list[Event]:
    """Return the events of a delivery that was completed."""
    since = round((at_s - took_s) * 1000)
    return [
        event(EventType.RECEIVED, message, at_s - took_s, dequeue_count=1),
        event(EventType.COMPLETED, message, at_s, dequeue_count=1, since_ms=since, **more),
    ]


@pytest.mark.parametrize(
    ("last", "ending", "seconds"),
    [
        (event(EventType.COMPLETED, "m", 30, since_ms=10_000), Ending.COMPLETED, 20),
        (event(EventType.REFUSED, "m", 30, since_ms=5_000), Ending.LATE, 25),
        (
            event(EventType.LAPSED, "m", 50, since_ms=10_000, visible_at_ms=40_000),
            Ending.LAPSED,
            30,
        ),
        (event(EventType.LEASE_ENDED, "m", 15, since_ms=10_000, reason="session lost"), "died", 5),
        (event(EventType.LEASE_ENDED, "m", 15, since_ms=10_000, reason="operator"), "left", 5),
        (event(EventType.RELEASED, "m", 15, since_ms=10_000, reason="failed"), "left", 5),
        (event(EventType.POISONED, "m", 15, since_ms=10_000, reason="max_lapses"), "lapsed", 5),
        (event(EventType.POISONED, "m", 15, since_ms=10_000, reason="buried"), "left", 5),
    ],
)
def test_how_leases_end(last: Event, ending: str, seconds: float) -> None:
    """Each end of a lease is what the statistics call it."""
    leases, renewed = leases_of([event(EventType.RECEIVED, "m", 10), last], NOW_MS)
    assert (leases[0].ending, leases[0].seconds, renewed) == (ending, seconds, 0)


def test_what_goes_on_is_open() -> None:
    """So is what nothing was heard of since it was received; other events are passed over."""
    events = [
        event(EventType.QUEUE_CREATED, None, 1),
        event(EventType.PUT, "m", 1),
        event(EventType.RECEIVED, "m", 9_990, dequeue_count=2),
        event(EventType.REFUSED, "n", 5),
    ]
    [lease], _ = leases_of(events, NOW_MS)
    assert (lease.ending, lease.seconds, lease.delivery) == (Ending.OPEN, 10, 2)


def test_enough_work_gives_curves_and_what_would_change() -> None:
    """A timeout far above the work is shortened, by half at most; the curve falls."""
    drawn = random.Random(5)
    events: list[Event] = []
    for number in range(400):
        events += done(str(number), 100.0 + 3 * number, drawn.lognormvariate(1.0, 0.4))
    found = advice_from(events, 1_200, NOW_MS)
    assert (found["basis"], found["is_enough"], found["renews"]) == ("model", True, False)
    assert 600 <= found["advised_s"] < 1_200
    assert found["then"]["worst_recovery_s"] < found["now"]["worst_recovery_s"]
    shares = [point["share"] for point in found["survival"]]
    assert shares == sorted(shares, reverse=True)
    assert found["cost"]
    short = advice_from(events, 2, NOW_MS)
    assert short["advised_s"] > 2
    assert short["then"]["redeliveries"] < short["now"]["redeliveries"]


def test_little_and_nothing_say_so() -> None:
    """Without data the advice is a start, and has no curves."""
    for events in ([], done("m", 10, 3)):
        found = advice_from(events, 30, NOW_MS)
        assert (found["is_enough"], found["survival"], found["now"]) == (False, [], None)
        assert found["because"]


def test_workers_that_renew_keep_their_timeout() -> None:
    """Their leases may be short however long the work takes."""
    events: list[Event] = []
    for number in range(200):
        events += done(str(number), 100.0 + number, 50 + number % 7, renewals=3)
    found = advice_from(events, 30, NOW_MS)
    assert (found["renews"], found["advised_s"]) == (True, 30)
