"""How work goes on where the data end: the two tails between which the heavier is taken."""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import numpy as np
from scipy import optimize, special

from leasehold.tuning.attempts import Floats, Sample

_LEAST_SD: Final = 0.02
"""Of the logarithm of a time: nothing takes exactly as long each time, and times that were put into
bins look more alike than they are."""
_MOST_SD: Final = 10.0
_HILL_SHARE: Final = 0.9
_HILL_LEAST: Final = 20
"""Attempts from which on their 90 % point means something."""
_HILL_FINISHED: Final = 5
_HALF_LOG_TWO_PI: Final = 0.5 * math.log(2 * math.pi)


class LogNormal(NamedTuple):
    """Work the logarithm of whose time is normal."""

    mu: float
    """Mean of the natural logarithm of the seconds."""
    sd: float
    """Its standard deviation."""

    def log_survival(self, seconds: Floats) -> Floats:
        """Return the logarithm of the share that lasts longer."""
        return special.log_ndtr((self.mu - np.log(seconds)) / self.sd)


def fit_log_normal(sample: Sample) -> LogNormal:
    """Fit a log-normal to attempts, censored ones included, by maximum likelihood.

    A finished attempt adds the logarithm of its density, a censored one that of its survival
    (the Tobit likelihood). Moments of the logarithms are where the search starts.

    Args:
        sample: At least one attempt. Without a finished one nothing can be fitted, and its
            logarithms are taken as if all had been finished.

    Source: J. Tobin, Econometrica 26 (1958); D. R. Cox and D. Oakes, "Analysis of Survival Data",
    section 3.
    """
    logs, weight = np.log(sample.seconds), sample.weight / sample.weight.sum()
    mean = float(weight @ logs)
    sd = max(_LEAST_SD, math.sqrt(max(0.0, float(weight @ (logs - mean) ** 2))))
    if sample.finished.all() or not sample.finished.any():
        return LogNormal(mean, min(sd, _MOST_SD))
    done, cut = sample.finished, ~sample.finished
    done_logs, done_weight = logs[done], weight[done]
    cut_logs, cut_weight = logs[cut], weight[cut]

    def loss(point: Floats) -> tuple[float, Floats]:
        mu, log_sd = float(point[0]), float(point[1])
        scale = math.exp(log_sd)
        z, y = (done_logs - mu) / scale, (cut_logs - mu) / scale
        log_left = special.log_ndtr(-y)
        hazard = np.exp(-0.5 * y * y - _HALF_LOG_TWO_PI - log_left)
        value = done_weight @ (0.5 * z * z + log_sd) - cut_weight @ log_left
        by_mu = -(done_weight @ z + cut_weight @ hazard) / scale
        by_log_sd = done_weight @ (1.0 - z * z) - cut_weight @ (hazard * y)
        return float(value), np.array([by_mu, by_log_sd])

    found = optimize.minimize(
        loss,
        np.array([mean, math.log(min(max(sd, 0.1), _MOST_SD))]),
        jac=True,
        method="L-BFGS-B",
        bounds=[(-40.0, 40.0), (math.log(_LEAST_SD), math.log(_MOST_SD))],
        options={"ftol": 1e-13, "gtol": 1e-9, "maxiter": 200},
    )
    return LogNormal(float(found.x[0]), math.exp(float(found.x[1])))


def fit_pareto(sample: Sample) -> float | None:
    """Return the exponent of a Pareto tail, or None if too little is known of the tail.

    The number finished above the 90 % point u, divided by the sum of ``ln(t/u)`` over all above
    it: each attempt that is still going on adds to the time, but not to the number.

    Source: B. M. Hill, Annals of Statistics 3 (1975); for censored data J. Beirlant, A. Guillou et
    al., "Estimation of the extreme value index and extreme quantiles under random censoring"
    (Extremes 10, 2007).
    """
    count = np.cumsum(sample.count)
    if not len(count) or count[-1] < _HILL_LEAST:
        return None
    place = min(int(np.searchsorted(count, _HILL_SHARE * count[-1])), len(count) - 1)
    least = float(sample.seconds[place])
    above = sample.seconds > least
    finished = above & sample.finished
    spent = float(sample.weight[above] @ np.log(sample.seconds[above] / least))
    if float(sample.count[finished].sum()) < _HILL_FINISHED or spent <= 0:
        return None
    return float(sample.weight[finished].sum()) / spent
