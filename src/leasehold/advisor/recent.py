"""Advice from the newest events of one queue: less than a whole log tells, and at once.

The summary of a whole log is made on Spark. Some thousand events are enough for a first answer, and
can be gone over in one process; what is said tells how thin the data are.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import numpy as np

from leasehold.advisor import Advice, Lease, Question, advise, observe
from leasehold.advisor.advice import Basis
from leasehold.advisor.attempts import Ending, Observed
from leasehold.advisor.costs import FIXED
from leasehold.advisor.recommendation import redeliveries_of, survival_of, without_renewal
from leasehold.advisor.statistics import BAR
from leasehold.domain.events import Event, EventType
from leasehold.domain.failures import MAX_DELIVERIES, MAX_LAPSES
from leasehold.domain.sessions import SESSION_LOST

MOST_POINTS: Final = 200
"""Of a curve."""
_RENEWING: Final = 0.5
"""Share of leases that were renewed from which on workers count as such that renew."""
_GIVEN_UP: Final = frozenset({MAX_DELIVERIES, MAX_LAPSES})
_MS: Final = 1000


def leases_of(events: Iterable[Event], now_ms: int) -> tuple[list[Lease], float]:
    """Return the leases that events tell of, by their ends, and the share that was renewed.

    Args:
        events: Of one queue, the oldest first.
        now_ms: For leases that go on, Unix milliseconds.
    """
    leases: list[Lease] = []
    going_on: dict[str, Event] = {}
    renewed = 0
    for event in events:
        message_id, since_ms = event.message_id, event.since_ms
        if message_id is None:
            continue
        if event.type is EventType.RECEIVED:
            going_on[message_id] = event
            continue
        ending = _ending_of(event)
        if ending is None or not since_ms:
            continue
        if event.type is not EventType.REFUSED:
            going_on.pop(message_id, None)
        over_ms = event.at_ms
        if event.type is EventType.LAPSED and event.visible_at_ms is not None:
            over_ms = event.visible_at_ms
        renewed += bool(event.renewals)
        leases.append(
            Lease(
                message_id,
                max(0, over_ms - since_ms) / _MS,
                ending,
                event.dequeue_count or 1,
                max(0, now_ms - over_ms) / _MS,
                event.type is EventType.POISONED,
            )
        )
    ended = len(leases)
    for message_id, event in going_on.items():
        seconds = max(0, now_ms - event.at_ms) / _MS
        leases.append(Lease(message_id, seconds, Ending.OPEN, event.dequeue_count or 1, 0.0))
    return leases, renewed / max(1, ended)


def _ending_of(event: Event) -> Ending | None:
    """Return how a lease ended with an event; None if none did."""
    kind = event.type
    if kind in {EventType.COMPLETED, EventType.SETTLED}:
        return Ending.COMPLETED
    if kind is EventType.REFUSED:
        return Ending.LATE
    if kind is EventType.LAPSED:
        return Ending.LAPSED
    if kind is EventType.LEASE_ENDED:
        return Ending.DIED if event.reason == SESSION_LOST else Ending.LEFT
    if kind is EventType.POISONED and event.reason in _GIVEN_UP:
        return Ending.LAPSED
    return Ending.LEFT if kind in {EventType.RELEASED, EventType.POISONED} else None


def advice_from(events: Iterable[Event], today_s: int, now_ms: int) -> dict[str, Any]:
    """Return what to set for a queue and why, as JSON can say it.

    Args:
        events: Of the queue, the oldest first.
        today_s: The visibility timeout in force, seconds.
        now_ms: The time, Unix milliseconds.
    """
    leases, renewed_share = leases_of(events, now_ms)
    observed = observe(leases, late_seen=True)
    question = Question(today_s=today_s, in_force_s=float(today_s), growth=FIXED)
    advice = advise(
        observed.attempts,
        crashes=observed.crashes,
        silent=observed.silent,
        work_s=observed.work_s,
        given_up=observed.given_up,
        question=question,
    )
    renews = renewed_share > _RENEWING
    # Leases of workers that renew may be short however long the work takes.
    advised_s = today_s if renews else advice.timeout_s
    return {
        "basis": advice.basis.value,
        "is_enough": advice.basis is Basis.MODEL,
        "because": advice.because,
        "promise": None if advice.promise is None else advice.promise.told(),
        "leases": len(leases),
        "redeliveries": sum(each.delivery > 1 for each in leases),
        "messages": len(observed.attempts),
        "finished": round(advice.finished, 1),
        "censored": round(advice.censored, 1),
        "crashes": observed.crashes,
        "given_up": observed.given_up,
        "renews": renews,
        "today_s": today_s,
        "advised_s": advised_s,
        "wanted_s": round(advice.wanted_s, 3),
        "as_good_s": advice.as_good_s,
        "longest_s": advice.longest_s,
        **_of_model(advice, observed, today_s, advised_s),
    }


def _of_model(advice: Advice, observed: Observed, today_s: int, advised_s: int) -> dict[str, Any]:
    """Return the curves, and what each timeout would have meant for the same messages."""
    model, plan = advice.model, advice.renewal
    evidence = advice.evidence
    if model is None or evidence is None:
        nothing: dict[str, Any] = dict.fromkeys(("now", "then", "renewal", "mean_s", "p99_s"))
        return {**nothing, "survival": [], "cost": []}
    messages = float(len(observed.attempts))

    def meant(name: str, timeout_s: int) -> dict[str, Any]:
        nearest = min(advice.curve, key=lambda point: abs(point.timeout_s - timeout_s))
        choice = without_renewal(
            model,
            name=name,
            timeout_s=float(timeout_s),
            messages=messages,
            crash_rate=advice.crash_rate,
            growth=FIXED,
            cost=max(0.0, nearest.cost - model.mean_s),
        )
        again = [
            messages * redeliveries_of(each, float(timeout_s), rate, FIXED)
            for each, rate in evidence.worlds(model)
        ]
        low, high = np.quantile(again, BAR)
        return {
            "timeout_s": timeout_s,
            "redeliveries": round(choice.redeliveries, 2),
            "redeliveries_between": (round(float(low), 2), round(float(high), 2)),
            "wasted_work_s": round(choice.wasted_work_s, 2),
            "given_up": round(choice.given_up, 2),
            "worst_recovery_s": round(choice.worst_recovery_s, 2),
            "mean_recovery_s": round(choice.mean_recovery_s, 2),
        }

    step = max(1, len(advice.curve) // MOST_POINTS)
    return {
        "now": meant("now", today_s),
        "then": meant("then", advised_s),
        "renewal": None
        if plan is None
        else {"first_s": round(plan.first_s, 2), "every_s": round(plan.every_s, 2)},
        "mean_s": round(model.mean_s, 3),
        "p99_s": round(model.quantile(0.99), 3),
        "survival": [
            {"s": point[0], "share": point[1], "low": point[2], "high": point[3]}
            for point in survival_of(model)
        ],
        "cost": [
            {"timeout_s": point.timeout_s, "cost_s": round(point.cost - model.mean_s, 6)}
            for point in advice.curve[::step]
            if point.cost < float("inf")
        ],
    }
