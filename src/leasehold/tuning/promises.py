"""A timeout from a promise: at most such a share of the messages is worked on twice."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
from scipy import special

from leasehold.tuning.attempts import Floats
from leasehold.tuning.kaplan_meier import KaplanMeier

_LEAST_CONFIDENCE: Final = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """What can be promised on the data there are."""

    late_share: float
    confidence: float
    timeout_s: float | None
    """The shortest timeout that keeps it, seconds; None: not enough data yet."""
    needed: int
    """Attempts without which nothing can be promised..."""
    seen: float
    """...and how many there are, old ones counted for less."""

    def told(self) -> str:
        """Return it as a sentence."""
        share = f"{100 * self.late_share:g} %"
        if self.timeout_s is None and self.seen >= self.needed:
            return (
                f"not enough data yet: of {self.seen:,.0f} attempts too many took longer than was "
                f"seen, or too few took long, to promise that at most {share} do"
            )
        if self.timeout_s is None:
            return (
                f"not enough data yet: to promise that at most {share} take longer needs "
                f"{self.needed:,} attempts at least; there are {self.seen:,.0f}"
            )
        return (
            f"at most {share} take longer than {self.timeout_s:.3g} s "
            f"(confidence {100 * self.confidence:g} %)"
        )


def attempts_needed(late_share: float, confidence: float) -> int:
    """Return how many attempts it takes to promise anything: ``ln(1-confidence)/ln(1-share)``.

    With fewer, not even all of them in time would show it, whatever the shape of the curve: 299 for
    1 % at 95 %, 2,995 for 0.1 %.

    Source: S. S. Wilks, "Determination of sample sizes for setting tolerance limits" (1941).
    """
    return math.ceil(math.log(1 - confidence) / math.log1p(-late_share))


def promise(curve: KaplanMeier, late_share: float, confidence: float = 0.95) -> Promise:
    """Return the shortest timeout that at most *late_share* of the work outlasts.

    It is the first time at which the upper bound of the survival is that low. Two bounds are
    looked at and the higher counts: the log-log one of Kaplan and Meier's estimate, which is too
    low when only a few lasted longer, and the exact one of a share, with as many attempts as would
    give the same variance. No tail is assumed: beyond the data nothing is promised.

    Args:
        curve: What is known.
        late_share: Above 0, below 1.
        confidence: Chance that the promise holds, 0.5 or more, below 1.

    Raises:
        ValueError: One of them is out of range.

    Source: C. J. Clopper and E. S. Pearson (Biometrika 26, 1934); for censored data M. P. Fay and
    E. H. Brittain, "Finite sample pointwise confidence intervals for a survival distribution with
    right-censored data" (2016).
    """
    if not (0 < late_share < 1 and _LEAST_CONFIDENCE <= confidence < 1):
        raise ValueError("late_share is 0 to 1, confidence 0.5 to 1, the ends left out")
    needed = attempts_needed(late_share, confidence)
    found: float | None = None
    if curve.total >= needed:
        survival = curve.survival
        upper = np.maximum(curve.band(2 * confidence - 1)[1], _exact_upper(curve, confidence))
        if survival[-1] == 0 and len(survival) > 1:
            # Nothing outlasted the last one; the log-log bound has nothing to say there.
            upper[-1] = _exact_upper(curve, confidence)[-1]
        kept = np.flatnonzero(upper <= late_share)
        found = float(curve.times[kept[0]]) if len(kept) else None
    return Promise(
        late_share=late_share,
        confidence=confidence,
        timeout_s=found,
        needed=needed,
        seen=curve.total,
    )


def _exact_upper(curve: KaplanMeier, confidence: float) -> Floats:
    survival, variance = curve.survival, curve.variance_of_log()
    with np.errstate(divide="ignore", invalid="ignore"):
        attempts = (1.0 - survival) / (survival * variance)
    attempts = np.where(survival > 0, attempts, curve.total)
    if len(attempts) > 1 and survival[-1] == 0:
        attempts[-1] = attempts[-2]
    longer = attempts * survival
    bound = special.betaincinv(longer + 1.0, np.maximum(attempts - longer, 1e-9), confidence)
    return np.asarray(bound)
