"""What came of a simulation."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from leasehold.tuning.observing import Lease


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Counts are of messages unless said otherwise; lengths are in seconds."""

    arrived: int
    done: int
    """Completed, with a completion that counted."""
    wasted: int
    """Completions that came to nothing."""
    deliveries: int
    redeliveries: int
    """Deliveries that were not a message's first."""
    set_aside: int
    crashes: int
    renewals: int
    skipped: int
    """Deliveries that were passed over, since they would have been late."""
    backlog: int
    """Not done when the simulation ended."""
    per_s_at_end: float
    """Messages done per second in the last sixth."""
    work_s: float
    wasted_work_s: float
    """Spent on completions that came to nothing, and lost in crashes."""
    wait_mean_s: float
    """From put to done."""
    wait_p99_s: float
    recovery_mean_s: float
    """From a worker's death until its message was visible again."""
    recovery_worst_s: float
    backlog_over_time: tuple[tuple[float, int], ...]
    """Moments, and how many were not done by then."""
    leases: tuple[Lease, ...] = ()
    """What a log would have shown, for feeding it back into advice; only if asked for."""

    @property
    def wasted_share(self) -> float:
        """Completions that came to nothing, of all; the alarm of a collapse."""
        return self.wasted / max(1, self.done + self.wasted)

    def to_json(self) -> dict[str, Any]:
        """Return it for scripts, without the leases."""
        members = asdict(self)
        del members["leases"]
        return {"wasted_share": self.wasted_share, **members}


def mean_and_top(values: list[float], share: float) -> tuple[float, float]:
    """Return the mean and a quantile; 0 for no values."""
    if not values:
        return 0.0, 0.0
    found = np.asarray(values)
    return float(found.mean()), float(np.quantile(found, share))
