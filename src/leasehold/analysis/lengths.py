"""From bins of lengths to what the statistics take."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from leasehold.analysis.summaries import Bin, Work
from leasehold.tuning import Attempt
from leasehold.tuning.attempts import (
    HALF_LIFE_ATTEMPTS,
    HALF_LIFE_S,
    Booleans,
    Floats,
    Sample,
    weight_by_age,
)
from leasehold.tuning.drift import ALARM, log_rank
from leasehold.tuning.naive import naive_timeouts

_DAY_S: Final = 86_400.0
_LEAST_WEIGHT: Final = 1e-6
_AFTER_CHANGE: Final = 1 / 16
"""What older days count for after a change: a sixteenth, as four half-lives."""
_MOST_COMPARED: Final = 2_000
_LEAST_COMPARED: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Together:
    """Several kinds of work taken as one."""

    bins: tuple[Bin, ...]
    crashes: float
    silent: float
    work_s: float
    given_up: int
    repeats: tuple[tuple[float, float], ...]


def together(works: Iterable[Work]) -> Together:
    """Take several kinds of work as one, as a queue does that all share."""
    parts = list(works)
    return Together(
        bins=tuple(each for part in parts for each in part.bins),
        crashes=sum(each.crashes for each in parts),
        silent=sum(each.silent for each in parts),
        work_s=sum(each.work_s for each in parts),
        given_up=sum(each.given_up for each in parts),
        repeats=tuple(pair for each in parts for pair in each.repeats),
    )


def count_of(bins: Iterable[Bin], *, finished: bool | None = None) -> float:
    """Return how many observations there are, of one sort or of both."""
    return sum(each.count for each in bins if finished is None or each.finished is finished)


def aged(bins: Sequence[Bin], *, changed: bool = False) -> list[Attempt]:
    """Return the bins as attempts, those of older days counting for less.

    Half after 2,000 newer ones, or after a day, whichever keeps more: so a quiet queue forgets
    nothing, and a busy one yesterday only by half.

    Args:
        bins: In any order.
        changed: Whether the work of the newest day differs from that of the days before.
    """
    newer: dict[int, float] = {}
    total = 0.0
    for day in sorted({each.day for each in bins}):
        newer[day] = total
        total += count_of(each for each in bins if each.day == day)
    attempts = []
    for each in bins:
        by_number = 0.5 ** (newer[each.day] / HALF_LIFE_ATTEMPTS)
        weight = max(by_number, weight_by_age(each.day * _DAY_S, HALF_LIFE_S))
        if changed and each.day > 0:
            weight *= _AFTER_CHANGE
        if weight >= _LEAST_WEIGHT:
            attempts.append(Attempt(each.seconds, each.finished, each.count * weight))
    return attempts


def sample_of(bins: Sequence[Bin]) -> Sample:
    """Return all of them alike, whatever their age: what the whole stretch was like."""
    return Sample.of_arrays(
        np.array([each.seconds for each in bins], dtype=np.float64),
        np.array([each.finished for each in bins], dtype=np.bool_),
        np.array([each.count for each in bins], dtype=np.float64),
    )


def drift_of(bins: Sequence[Bin]) -> float | None:
    """Return z if the work of the newest day differs from that before: above 0 for quicker.

    None if it does not, or if too little is known of either.

    Source: :func:`leasehold.tuning.drift.log_rank`, on up to 2,000 of each side.
    """
    newest = [each for each in bins if each.day == 0]
    older = [each for each in bins if each.day > 0]
    if min(count_of(newest), count_of(older)) < _LEAST_COMPARED:
        return None
    z = log_rank(_spread(newest), _spread(older))
    return z if abs(z) > ALARM else None


def _spread(bins: Sequence[Bin]) -> tuple[Floats, Booleans]:
    """Return one attempt for each observation, or as many as are compared at most."""
    order = sorted(bins, key=lambda each: (each.seconds, not each.finished))
    count = np.array([each.count for each in order])
    edges = np.cumsum(count)
    many = int(min(_MOST_COMPARED, edges[-1]))
    places = np.searchsorted(edges, (np.arange(many) + 0.5) * edges[-1] / many)
    seconds = np.array([each.seconds for each in order])[places]
    finished = np.array([each.finished for each in order])[places]
    return seconds, finished


def naive_choices(bins: Sequence[Bin], default_s: float) -> dict[str, float]:
    """Return what is often chosen, by name: :func:`leasehold.tuning.naive.naive_timeouts` of bins.

    All but the smoothed one, for bins are in no order.
    """
    attempts = [Attempt(each.seconds, each.finished, each.count) for each in bins]
    return naive_timeouts(attempts, default_s, in_order=False)
