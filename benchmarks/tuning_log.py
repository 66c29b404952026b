"""A summary of an event log without Spark, for small logs: what the loop of advice goes by."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from leasehold.advisor.attempts import Attempt, Ending, Lease, observe
from leasehold.advisor.summaries import (
    BIN_RATIO,
    SHORTEST_BIN_S,
    Bin,
    LogSummary,
    QueueSummary,
    Work,
)
from leasehold.client import models
from leasehold.domain import events
from leasehold.domain.failures import MAX_DELIVERIES, MAX_LAPSES
from leasehold.events.names import TYPE_NAMES


@dataclass
class _Held:
    delivery: int
    since_ms: int
    until_ms: int
    ended_ms: int | None = None
    ending: Ending | None = None
    given_up: bool = False


@dataclass
class _Message:
    leases: list[_Held] = field(default_factory=list)


def summary_of(
    told: Iterable[models.Event] | Iterable[events.Event], queue: str, now_ms: int
) -> LogSummary:
    """Summarize the events of one queue whose workers neither renew nor have sessions.

    Args:
        told: As a client reads them, or as a store gives them out.
        queue: Which one.
        now_ms: The end of the log, Unix milliseconds.
    """
    messages: dict[str, _Message] = defaultdict(_Message)
    read = late = 0
    for each in told:
        read += 1
        if each.queue == queue and each.message_id is not None:
            late += _add(messages[each.message_id].leases, each)
    leases = sorted(_leases(messages, now_ms), key=lambda each: -each.since_s)
    observed = observe(leases, late_seen=True)
    work = Work(
        bins=_binned(observed.attempts),
        crashes=observed.crashes,
        silent=observed.silent,
        work_s=observed.work_s,
        left_out=observed.left_out,
        given_up=observed.given_up,
        messages=sum(bool(each.leases) for each in messages.values()),
        deliveries=sum(len(each.leases) for each in messages.values()),
        redeliveries=sum(max(0, len(each.leases) - 1) for each in messages.values()),
        late=late,
        done=sum(
            any(lease.ending in {Ending.COMPLETED, Ending.LATE} for lease in each.leases)
            for each in messages.values()
        ),
    )
    return LogSummary(
        since_ms=0, until_ms=now_ms, events=read, queues=(QueueSummary(queue=queue, works=(work,)),)
    )


def _add(held: list[_Held], each: models.Event | events.Event) -> bool:
    """Take an event of a message into account; tell whether it is of a late completion."""
    kind = each.type if isinstance(each.type, str) else TYPE_NAMES[each.type]
    if kind == "received":
        assert each.dequeue_count is not None
        assert each.visible_at_ms is not None
        held.append(_Held(each.dequeue_count, each.at_ms, each.visible_at_ms))
    elif kind == "completed":
        last = held[-1]
        in_time = each.at_ms <= last.until_ms
        last.ended_ms, last.ending = each.at_ms, Ending.COMPLETED if in_time else Ending.LATE
        return not in_time
    elif kind == "refused":
        for lease in [each_lease for each_lease in held if each_lease.since_ms == each.since_ms]:
            is_first = lease.ending is None
            if is_first:
                lease.ended_ms, lease.ending = each.at_ms, Ending.LATE
            return is_first
    elif kind == "poisoned":
        held[-1].given_up = each.reason in {MAX_DELIVERIES, MAX_LAPSES}
    return False


def _leases(messages: dict[str, _Message], now_ms: int) -> Iterable[Lease]:
    for name, message in messages.items():
        for each in message.leases:
            end_ms, ending = each.ended_ms, each.ending
            if end_ms is None or ending is None:
                # Nothing was heard: it lapsed, or it is being worked on.
                end_ms, ending = min(each.until_ms, now_ms), Ending.LAPSED
            length_s = (end_ms - each.since_ms) / 1000
            since_s = (now_ms - end_ms) / 1000
            yield Lease(name, length_s, ending, each.delivery, since_s, each.given_up)


def _binned(attempts: Iterable[Attempt]) -> tuple[Bin, ...]:
    sums: dict[tuple[int, bool], list[float]] = defaultdict(lambda: [0.0, 0.0])
    for each in attempts:
        length = max(each.seconds, SHORTEST_BIN_S)
        held = sums[
            math.floor(math.log(length / SHORTEST_BIN_S) / math.log(BIN_RATIO)), each.finished
        ]
        held[0] += each.seconds
        held[1] += 1
    return tuple(
        Bin(seconds=total / count, finished=finished, count=count)
        for (_, finished), (total, count) in sums.items()
    )
