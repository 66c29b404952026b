"""Workers beside each other: who is slow, who loses leases, who fails."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from leasehold.analysis.summaries import Worker

LEAST_ATTEMPTS: Final = 20
"""Of fewer, nothing is said."""
ALARM: Final = 4.0
"""Standard errors that a share must be above that of the others: by chance one in 30,000 is."""
TIMES: Final = 2.0
"""...and so many times it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """One worker."""

    queue: str
    worker: Worker
    per_h: float
    """Attempts per hour between the first and the last."""
    bad_share: float
    """Of its attempts: late, lapsed, failed or lost with its session."""
    strikes: tuple[str, ...]
    """What sets it apart from the others, as sentences; empty for nothing."""


def standings(queue: str, workers: Sequence[Worker]) -> tuple[Standing, ...]:
    """Compare the workers of a queue, those with most attempts first.

    A share is told of as high if it is more than twice that of all the others together and four
    standard errors above it (a test of two proportions); a median as long if it is more than twice
    the median of all medians.
    """
    medians = [
        each.p50_s
        for each in workers
        if each.p50_s is not None and each.completed >= LEAST_ATTEMPTS
    ]
    usual_s = float(np.median(medians)) if len(medians) > 2 else None  # noqa: PLR2004 - has a middle
    ranked = sorted(workers, key=lambda each: (-each.attempts, each.holder))
    return tuple(_standing(queue, each, ranked, usual_s) for each in ranked)


def _standing(
    queue: str, worker: Worker, workers: Sequence[Worker], usual_s: float | None
) -> Standing:
    strikes = [
        f"{_share(worker, kind):.1%} {word}, the others {_others(worker, workers, kind):.1%}"
        for kind, word in _KINDS.items()
        if _stands_out(worker, workers, kind)
    ]
    slow = (
        usual_s
        and worker.p50_s is not None
        and worker.completed >= LEAST_ATTEMPTS
        and worker.p50_s > TIMES * usual_s
    )
    if slow:
        strikes.append(f"half of its work takes {worker.p50_s:.3g} s, the others' {usual_s:.3g} s")
    hours = max(worker.last_seen_ms - worker.first_seen_ms, 1) / 3_600_000
    return Standing(
        queue=queue,
        worker=worker,
        per_h=worker.attempts / max(hours, 1 / 60),
        bad_share=sum(getattr(worker, kind) for kind in _KINDS) / max(1, worker.attempts),
        strikes=tuple(strikes),
    )


_KINDS: Final = {
    "late": "late",
    "lapsed": "lapsed",
    "failed": "failed",
    "lost": "lost with the worker's session",
}


def _share(worker: Worker, kind: str) -> float:
    return float(getattr(worker, kind)) / max(1, worker.attempts)


def _others(worker: Worker, workers: Sequence[Worker], kind: str) -> float:
    others = [each for each in workers if each is not worker]
    bad = sum(float(getattr(each, kind)) for each in others)
    return bad / max(1, sum(each.attempts for each in others))


def _stands_out(worker: Worker, workers: Sequence[Worker], kind: str) -> bool:
    """Test two proportions: a worker's and that of all the others."""
    others = sum(each.attempts for each in workers) - worker.attempts
    if worker.attempts < LEAST_ATTEMPTS or others < LEAST_ATTEMPTS:
        return False
    own, rest = _share(worker, kind), _others(worker, workers, kind)
    pooled = (own * worker.attempts + rest * others) / (worker.attempts + others)
    error = math.sqrt(pooled * (1 - pooled) * (1 / worker.attempts + 1 / others))
    return error > 0 and own > TIMES * rest and (own - rest) / error > ALARM
