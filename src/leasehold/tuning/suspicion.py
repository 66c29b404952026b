"""How surprising a silence is: for showing that a worker may be stuck, not for acting on it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np
from scipy import special

STUCK: Final = 4.0
"""From here on a worker is called stuck: by chance one silence in 10,000 is so long."""
_LEAST_SD_SHARE: Final = 0.1


def phi(silence_s: float, gaps_s: Sequence[float]) -> float:
    """Return ``-log10 P(gap > silence)``, the gaps taken as normal.

    Args:
        silence_s: Seconds since the last sign of progress.
        gaps_s: Seconds between the signs before it; at least one. Gaps that are almost alike are
            taken to vary by a tenth, so that the least delay is no alarm.

    Raises:
        ValueError: There are no gaps.

    Source: N. Hayashibara et al., "The phi accrual failure detector", SRDS (2004).
    """
    if not len(gaps_s):
        raise ValueError("no gap was measured")
    gaps = np.asarray(gaps_s, dtype=np.float64)
    mean = float(gaps.mean())
    sd = max(float(gaps.std()), _LEAST_SD_SHARE * mean, 1e-9)
    return -float(special.log_ndtr((mean - silence_s) / sd)) / math.log(10)
