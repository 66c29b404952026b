"""How many messages to receive at once, if their leases are not renewed.

The lease of the last one runs while all the others are worked on. Batches that are too large are
what makes a queue collapse after an outage: work comes too late, is done again, and comes later.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from scipy import special

from leasehold.tuning.model import DurationModel

LATE_SHARE: Final = 0.01
"""Share of the batches whose last message may be late."""
MOST: Final = 32
"""Messages that one receive may ask for (Azure, "Get Messages"; MNS allows 16)."""
_DRAWS: Final = 5_000
_SEED: Final = 20_061


def largest_batch(
    mean_s: float, sd_s: float, timeout_s: float, late_share: float = LATE_SHARE, most: int = MOST
) -> int:
    """Return the largest n with ``n*mean + z*sd*sqrt(n) <= timeout``, at least 1.

    Args:
        mean_s: Of one piece of work, seconds.
        sd_s: Its standard deviation, seconds.
        timeout_s: The lease.
        late_share: Share of the batches whose last message may be late; sets z.
        most: No batch is larger.

    Source: the central limit theorem. It is too hopeful about work with a heavy tail; see
    :func:`largest_batch_drawn`.
    """
    z = float(special.ndtri(1 - late_share))
    fits = [n for n in range(1, most + 1) if n * mean_s + z * sd_s * math.sqrt(n) <= timeout_s]
    return max(fits, default=1)


def largest_batch_drawn(
    model: DurationModel, timeout_s: float, late_share: float = LATE_SHARE, most: int = MOST
) -> int:
    """Return the largest batch by drawing 5,000 of them from the model, at least 1.

    The same draws each time, so that the answer does not flicker.
    """
    draw = np.random.default_rng(_SEED)
    edges = np.cumsum(model.chance)
    places = np.searchsorted(edges, draw.random((_DRAWS, most)) * edges[-1], side="right")
    ends = np.cumsum(model.seconds[np.minimum(places, len(edges) - 1)], axis=1)
    late = (ends > timeout_s).mean(axis=0)
    return max(1, int(np.searchsorted(late, late_share, side="right")))
