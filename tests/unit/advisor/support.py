"""Summaries made by hand, and from simulations: no Spark."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable

import numpy as np

from leasehold.advisor.attempts import Attempt
from leasehold.advisor.summaries import (
    BIN_RATIO,
    SHORTEST_BIN_S,
    Bin,
    Group,
    Groups,
    Hour,
    LogSummary,
    PoisonCluster,
    QueueSummary,
    Span,
    Timeline,
    Work,
    Worker,
)

HOUR_MS = 3_600_000
UNTIL_MS = 1_767_225_600_000
"""2026-01-01, midnight."""
WEEK_H = 168


def binned(attempts: Iterable[Attempt], day: float = 0) -> tuple[Bin, ...]:
    """Put attempts into bins as Spark does."""
    sums: dict[tuple[int, bool], list[float]] = defaultdict(lambda: [0.0, 0.0])
    for each in attempts:
        slot = max(
            0,
            math.floor(
                math.log(max(each.seconds, SHORTEST_BIN_S) / SHORTEST_BIN_S) / math.log(BIN_RATIO)
            ),
        )
        held = sums[slot, each.finished]
        held[0] += each.seconds * each.weight
        held[1] += each.weight
    return tuple(
        Bin(seconds=seconds / count, finished=finished, count=count, day=day)
        for (_, finished), (seconds, count) in sorted(sums.items())
    )


def log_normal(median_s: float, sigma: float, many: int, seed: int = 1) -> list[Attempt]:
    """Draw finished attempts."""
    draw = np.random.default_rng(seed)
    return [
        Attempt(float(x), finished=True)
        for x in median_s * np.exp(sigma * draw.standard_normal(many))
    ]


def work(
    attempts: list[Attempt],
    message_type: str | None = None,
    *,
    crashes: float = 2,
    **members: object,
) -> Work:
    """Return work of one type, each attempt a message of its own."""
    seconds = sum(each.seconds for each in attempts)
    known: dict[str, object] = {
        "bins": binned(attempts),
        "crashes": crashes,
        "work_s": seconds,
        "messages": len(attempts),
        "deliveries": len(attempts),
        "completed": sum(each.finished for each in attempts),
        "usual_lease_s": 30.0,
    }
    return Work(message_type=message_type, **(known | members))  # type: ignore[arg-type]  # by name


def steady_hours(
    put: int, completed: int, backlog: int = 0, many: int = WEEK_H
) -> tuple[Hour, ...]:
    """Return hours that are all alike, up to UNTIL_MS."""
    return tuple(
        Hour(
            start_ms=UNTIL_MS - (many - place) * HOUR_MS,
            put=put,
            leased=completed,
            completed=completed,
            backlog_end=backlog,
        )
        for place in range(many)
    )


def full_queue() -> QueueSummary:
    """Return a queue with something of everything, as the report has to show."""
    slow = log_normal(50.0, 0.6, 900, seed=2)
    cut = [
        Attempt(30.0, finished=False) if each.seconds > 30 and place % 3 else each
        for place, each in enumerate(slow)
    ]
    hours = growing_hours()
    video = work(
        cut,
        "video",
        crashes=6,
        late=120,
        lapsed=160,
        redeliveries=400,
        redelivered=200,
        deliveries=1_300,
        wasted_work_s=9_000.0,
        worst_hidden_s=30.0,
    )
    return QueueSummary(
        queue="media",
        works=(work(log_normal(1.0, 0.5, 6_000), "thumbnail"), video),
        hours=hours,
        open_messages=hours[-1].backlog_end + 40,
        oldest_open_ms=UNTIL_MS - 5 * HOUR_MS,
        time_to_live_s=7 * 3_600.0,
        timelines=tuple(redelivered(each) for each in range(8)),
        poison=(
            PoisonCluster(
                error_type="ValueError",
                fingerprint="a1b2",
                message_type="video",
                count=41,
                first_ms=UNTIL_MS - 2 * HOUR_MS,
                last_ms=UNTIL_MS - 60_000,
                sample_ids=("m1", "m2"),
            ),
            PoisonCluster(
                error_type=None,
                fingerprint=None,
                message_type=None,
                count=3,
                first_ms=UNTIL_MS - 90 * HOUR_MS,
                last_ms=UNTIL_MS - 80 * HOUR_MS,
            ),
        ),
        workers=tuple(worker(each) for each in range(1, 6)),
        groups=Groups(
            found=240,
            largest=(
                Group(
                    group_id="large",
                    messages=5_000,
                    open_messages=90,
                    received=4_900,
                    dwell_p50_s=2.0,
                    dwell_p99_s=9.0,
                    dwell_longest_s=11.0,
                    work_s=9_000.0,
                ),
                Group(group_id="small", messages=20, received=20, dwell_p50_s=70.0, work_s=1_000.0),
                Group(group_id="none yet", messages=3),
            ),
            fairness=0.61,
        ),
    )


def growing_hours() -> tuple[Hour, ...]:
    """Return a week in which more comes than is done, most of it by day."""
    draw = np.random.default_rng(5)
    backlog, hours = 0, []
    for place in range(WEEK_H):
        put = int(draw.poisson(60 + 40 * math.sin(place / 24 * 2 * math.pi)))
        done = min(backlog + put, 54 + place % 7)
        backlog += put - done
        hours.append(
            Hour(
                start_ms=UNTIL_MS - (WEEK_H - place) * HOUR_MS,
                put=put,
                leased=done + 3,
                completed=done,
                late=1,
                lapsed=2,
                backlog_end=backlog,
            )
        )
    return tuple(hours)


def redelivered(number: int) -> Timeline:
    """Return a message that was received three times; every third was given up."""
    started = UNTIL_MS - 3 * HOUR_MS + number * 400_000
    done = number % 3 > 0
    told = (
        (5_000, 52_000, "completed_late", "w-1"),
        (36_000, 60_000, "lapsed", "w-2"),
        (70_000, 95_000, "completed" if done else "failed", "w-3"),
    )
    return Timeline(
        message_id=f"00000000-0001-8abc-9def-0123456789{number:02x}",
        message_type="video",
        inserted_at_ms=started,
        outcome="completed" if done else "poisoned",
        attempts=tuple(
            Span(
                attempt=place,
                leased_at_ms=started + began,
                ended_at_ms=started + ended,
                lease_s=30,
                outcome=outcome,
                holder=holder,
                error_type="ValueError" if outcome == "failed" else None,
            )
            for place, (began, ended, outcome, holder) in enumerate(told, start=1)
        ),
    )


def worker(number: int) -> Worker:
    """Return a worker; the fourth is late more often than the others."""
    late = 65 if number == 4 else 5
    return Worker(
        holder=f"worker-{number}",
        attempts=500,
        completed=485 - late,
        late=late,
        lapsed=5,
        failed=4,
        lost=1,
        work_s=4_000,
        p50_s=1.2,
        p99_s=44.0,
        first_seen_ms=UNTIL_MS - 100 * HOUR_MS,
        last_seen_ms=UNTIL_MS - HOUR_MS,
    )


def full_log() -> LogSummary:
    """Return a log of that queue, and of one that hardly anybody uses."""
    quiet = QueueSummary(
        queue="rare", works=(work(log_normal(3, 0.3, 9), crashes=0),), hours=steady_hours(1, 1)
    )
    return LogSummary(
        since_ms=UNTIL_MS - WEEK_H * HOUR_MS,
        until_ms=UNTIL_MS,
        events=1_234_567,
        queues=(full_queue(), quiet),
        source="events/",
        accounts=("devstoreaccount1",),
    )
