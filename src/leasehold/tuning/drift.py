"""Whether work takes as long as it used to."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from leasehold.tuning.attempts import HALF_LIFE_ATTEMPTS, Booleans, Floats

WINDOW: Final = 200
"""Attempts that are compared with those before them; also the half-life after a change."""
ALARM: Final = 4.0
"""|z| beyond this is a change: by chance one comparison in 16,000 gets there."""
_MEMORY: Final = 4
"""After a change the half-life is the attempts since then divided by this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """The newest change in how long work takes."""

    z: float
    """Above 0: work got quicker; below 0: slower."""
    attempts_ago: int
    """About where it was, a multiple of WINDOW; rows, where rows have weights."""

    @property
    def half_life(self) -> float:
        """Attempts after which one counts for half: short at first, then longer again."""
        return min(max(WINDOW, self.attempts_ago / _MEMORY), HALF_LIFE_ATTEMPTS)


def log_rank(newer: tuple[Floats, Booleans], older: tuple[Floats, Booleans]) -> float:
    """Return z of the log-rank test: above 0 if the newer attempts were finished sooner.

    At each time at which something was finished, the newer ones that were are compared with their
    share of those still at risk; z is the sum of the differences over its standard deviation. Both
    sides are samples. To take the older ones as the truth would count their own chance errors as
    drift.

    Args:
        newer: Seconds, and whether they were finished.
        older: The same.

    Source: N. Mantel (1966); J. D. Kalbfleisch and R. L. Prentice, 1.5.
    """
    seconds = np.concatenate([newer[0], older[0]])
    finished = np.concatenate([newer[1], older[1]]).astype(np.float64)
    is_newer = np.concatenate([np.ones(len(newer[0])), np.zeros(len(older[0]))])
    order = np.argsort(seconds)
    _, starts = np.unique(seconds[order], return_index=True)
    if not len(starts):
        return 0.0
    ended = np.add.reduceat(finished[order], starts)
    ended_newer = np.add.reduceat((finished * is_newer)[order], starts)
    at_risk = len(seconds) - starts.astype(np.float64)
    newer_at_risk = np.cumsum(is_newer[order][::-1])[::-1][starts]
    share = newer_at_risk / at_risk
    spread = ended * share * (1 - share) * (at_risk - ended) / np.maximum(at_risk - 1, 1)
    variance = float(spread.sum())
    if variance <= 0:
        return 0.0
    return float((ended_newer - ended * share).sum()) / math.sqrt(variance)


def find_drift(seconds: Floats, finished: Booleans) -> Drift | None:
    """Return the newest change, or None if there was none.

    Blocks of 200 attempts are looked at from the newest back. The first that does not go with all
    the newer ones is older than the change.

    Args:
        seconds: Lengths, the oldest first.
        finished: Whether each was finished.
    """
    total = len(seconds)
    horizon = min(total, 2 * _MEMORY * HALF_LIFE_ATTEMPTS)
    for since in range(WINDOW, horizon, WINDOW):
        start, middle = max(0, total - since - WINDOW), total - since
        if middle - start < WINDOW // 2:
            return None
        z = log_rank(
            (seconds[middle:], finished[middle:]),
            (seconds[start:middle], finished[start:middle]),
        )
        if abs(z) > ALARM:
            return Drift(z=z, attempts_ago=since)
    return None
