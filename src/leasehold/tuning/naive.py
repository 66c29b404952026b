"""What is often chosen without much thought: for comparison, not to be taken."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np

from leasehold.domain.limits import AZURE
from leasehold.tuning.attempts import Attempt
from leasehold.tuning.starting import start_timeout

_PERCENTILE: Final = 0.99


def naive_timeouts(
    attempts: Iterable[Attempt], default_s: float, *, in_order: bool = True
) -> dict[str, float]:
    """Return what is often chosen, by name, seconds.

    What was not finished is left out, as those do who choose a timeout by a percentile. Without a
    finished attempt there is the default only.

    Args:
        attempts: With their weights.
        default_s: The timeout while nothing is known.
        in_order: Whether the oldest come first, as the smoothed one needs; without, it is left out.

    Returns: Timeouts that can be set: 1 s to 7 days.
    """
    rows = list(attempts)
    done = sorted((each.seconds, each.weight) for each in rows if each.finished)
    found = {"default": default_s}
    if done:
        seconds, weight = (np.array(column, dtype=np.float64) for column in zip(*done, strict=True))
        edges = np.cumsum(weight)
        # The least that so large a share does not outlast; the factor takes rounding off.
        place = int(np.searchsorted(edges, _PERCENTILE * edges[-1] * (1 - 1e-12)))
        most = float(seconds[min(place, len(seconds) - 1)])
        found |= {
            "mean of completed, doubled": 2 * float(seconds @ weight / edges[-1]),
            # What Google's client for Pub/Sub keeps its leases at, with renewals.
            "99th percentile of completed": min(max(most, 10.0), 600.0),
            "99th percentile, doubled": 2 * most,
            "longest seen": float(seconds[-1]),
        }
        if in_order:
            found["smoothed (RFC 6298)"] = start_timeout(rows, default_s=default_s)
    least, longest = AZURE.lease_s
    return {name: min(max(value, float(least)), float(longest)) for name, value in found.items()}
