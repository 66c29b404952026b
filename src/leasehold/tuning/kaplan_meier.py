"""How likely work is to last longer than so many seconds, from attempts some of which are censored.

Source: E. L. Kaplan and P. Meier, "Nonparametric estimation from incomplete observations",
JASA 53 (1958).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import special

from leasehold.tuning.attempts import Floats, Sample


@dataclass(frozen=True, slots=True, kw_only=True)
class KaplanMeier:
    """A survival function that steps down at the times at which attempts were finished."""

    times: Floats
    """Seconds, rising; each is a time at which at least one attempt was finished."""
    survival: Floats
    """Share that lasts longer than each of these times, 0 to 1."""
    at_risk: Floats
    """Weight of the attempts that lasted at least so long."""
    finished: Floats
    """Weight of those finished at just that time."""
    total: float
    """Weight of all."""

    def survival_at(self, seconds: float) -> float:
        """Return the share that lasts longer than this."""
        place = int(np.searchsorted(self.times, seconds, side="right"))
        return 1.0 if place == 0 else float(self.survival[place - 1])

    def variance_of_log(self) -> Floats:
        """Return the variance of the logarithm of the survival, for each of the times.

        ``sum of d/(n*(n-d))`` over the times so far, with d finished out of n at risk; infinite
        where nothing survives. Weights of at most 1 make it too large rather than too small.

        Source: M. Greenwood, "The errors of sampling of the survivorship tables" (1926).
        """
        left = self.at_risk - self.finished
        alive = left > 1e-9 * self.at_risk
        steps = np.full_like(left, np.inf)
        steps[alive] = self.finished[alive] / (self.at_risk[alive] * left[alive])
        return np.cumsum(steps)

    def band(self, confidence: float = 0.95) -> tuple[Floats, Floats]:
        """Return the lower and upper bounds of the survival, for each of the times.

        ``S**exp(-+ z*sqrt(V)/ln S)``, which stays between 0 and 1. Where nothing survives the
        lower bound is 0, and the upper one stays what it was.

        Args:
            confidence: Chance that a bound's pair holds the truth at a given time, 0 to 1.

        Source: J. D. Kalbfleisch and R. L. Prentice, "The Statistical Analysis of Failure Time
        Data", 1.4 (the log-log transform).
        """
        z = float(special.ndtri(0.5 + confidence / 2))
        lower, upper = np.zeros_like(self.survival), np.ones_like(self.survival)
        inside = (self.survival > 0) & (self.survival < 1)
        survival = self.survival[inside]
        width = z * np.sqrt(self.variance_of_log()[inside]) / np.log(survival)
        lower[inside] = survival ** np.exp(-width)
        upper[inside] = survival ** np.exp(width)
        if len(upper) and not inside[-1] and len(upper) > 1:
            upper[-1] = upper[-2]
        return lower, upper


def kaplan_meier(sample: Sample) -> KaplanMeier:
    """Estimate how long work lasts: ``S(t)`` is the product of ``1 - d/n`` over times up to t.

    At a time with both, what was finished counts before what was censored: the censored ones were
    still at risk.

    Args:
        sample: Attempts; their weights count as so many attempts.
    """
    times, starts = np.unique(sample.seconds, return_index=True)
    if not len(times):
        empty = np.zeros(0)
        return KaplanMeier(times=empty, survival=empty, at_risk=empty, finished=empty, total=0.0)
    finished = np.add.reduceat(sample.weight * sample.finished, starts)
    # Sums from the end: differences from the start would leave dust where nothing is at risk.
    at_risk = np.cumsum(sample.weight[::-1])[::-1][starts]
    seen = finished > 0
    times, finished, at_risk = times[seen], finished[seen], at_risk[seen]
    kept: Floats = np.maximum(0.0, 1.0 - finished / at_risk)
    survival = np.cumprod(kept, dtype=np.float64)
    # All of the last ones: the difference is rounding, and would have a logarithm.
    survival[survival < 1e-12] = 0.0  # noqa: PLR2004 - as above
    return KaplanMeier(
        times=times,
        survival=survival,
        at_risk=at_risk,
        finished=finished,
        total=float(sample.weight.sum()),
    )
