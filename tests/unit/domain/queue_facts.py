"""Facts about a queue for the tests of explanations."""

from __future__ import annotations

from typing import Any

from leasehold.domain.admin import Counts
from leasehold.domain.explain import Activity, QueueFacts
from leasehold.domain.queue_settings import QueueSettings

S, MIN, H, D = 1_000, 60_000, 3_600_000, 86_400_000
NOW = 1_795_262_400_000  # 2026-11-21T12:00:00Z
STARTED = NOW - 2 * H
BUSY = Activity(since_ms=STARTED, last_receive_ms=NOW - 2 * S, last_receiver="worker-3")


def around(
    *,
    counts: dict[str, Any] | None = None,
    activity: Activity = BUSY,
    next_due_ms: int | None = None,
    **settings: Any,
) -> QueueFacts:
    numbers = dict.fromkeys(("visible", "leased", "delayed", "deferred", "poisoned"), 0)
    return QueueFacts(
        queue="orders",
        settings=QueueSettings(**settings),
        counts=Counts(**(numbers | {"since": {}} | (counts or {}))),
        activity=activity,
        now_ms=NOW,
        next_due_ms=next_due_ms,
    )
