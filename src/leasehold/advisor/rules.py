"""A timeout from a promise: at most such a share of the messages is worked on twice."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np
from scipy import special

from leasehold.advisor.attempts import Attempt, Floats
from leasehold.advisor.statistics import KaplanMeier
from leasehold.domain.limits import AZURE

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
                f"not enough data yet: of {self.seen:,.0f} attempts too many are unfinished, or "
                f"too few are long, to guarantee that at most {share} take longer"
            )
        if self.timeout_s is None:
            return (
                f"not enough data yet: a guarantee that at most {share} take longer needs at "
                f"least {self.needed:,} attempts; there are {self.seen:,.0f}"
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
        raise ValueError(
            "late_share must be between 0 and 1, confidence between 0.5 and 1, ends excluded"
        )
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


# --- naive -------------------------------------------------------------------------------------
#
# What is often chosen without much thought: for comparison, not to be taken.


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


# --- starting ----------------------------------------------------------------------------------
#
# A timeout for the time in which there is next to nothing to go by.


ENOUGH_FINISHED: Final = 30
"""Attempts to finish before the model takes over."""
_GAIN: Final = 1 / 8
_DEVIATION_GAIN: Final = 1 / 4
_DEVIATIONS: Final = 4.0


def start_timeout(
    attempts: Iterable[Attempt], *, default_s: float, cap_s: float = 604_800.0
) -> float:
    """Return a timeout from few attempts, seconds.

    ``SRTT + 4*RTTVAR``, both smoothed over the finished attempts. A lapse doubles the timeout that
    has lapsed, until another attempt is finished; many lapses of the same timeout say no more than
    one. It needs one attempt, but is poor later on: with enough data a model is better by more than
    half.

    Args:
        attempts: The oldest first. One with a weight counts as so many that are alike.
        default_s: The answer without any.
        cap_s: No answer is longer.

    Source: RFC 6298, section 2 and 5.5. Its rule to leave out repeated transmissions is not
    needed: receipts tell attempts apart.
    """
    smoothed: float | None = None
    deviation, timeout = 0.0, default_s
    for attempt in attempts:
        if not attempt.finished:
            # What lapsed is what has to be doubled, and not what came of doubling it before.
            timeout = min(max(timeout, min(2 * timeout, 2 * attempt.seconds)), cap_s)
            continue
        length = attempt.seconds
        if smoothed is None:
            smoothed, deviation = length, length / 2
        else:
            # So many steps at once; the deviation is taken from where the first one finds it.
            kept, kept_mean = (1 - _DEVIATION_GAIN) ** attempt.weight, (1 - _GAIN) ** attempt.weight
            deviation = abs(smoothed - length) * (1 - kept) + deviation * kept
            smoothed = length + (smoothed - length) * kept_mean
        timeout = min(smoothed + _DEVIATIONS * deviation, cap_s)
    return timeout
