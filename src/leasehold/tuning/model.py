"""How long work takes: what was seen as far as it goes, and a tail beyond it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from leasehold.tuning.attempts import Floats, Sample
from leasehold.tuning.kaplan_meier import KaplanMeier, kaplan_meier
from leasehold.tuning.tails import LogNormal, fit_log_normal, fit_pareto

HORIZON_S: Final = 7_200.0
"""As far as the tail is followed at least..."""
HORIZON_FACTOR: Final = 8.0
"""...or so many times the longest attempt, if that is more."""

_AT_RISK_AT_GLUE: Final = 3
"""With 10 or 30, choices were worse in simulations: what was seen is better than a model of it."""
_LEFT_AT_GLUE: Final = 2
_FEW: Final = 6
_TAIL_STEPS: Final = 120
_MOST_ATOMS: Final = 4_000
_MERGED_RATIO: Final = 1.002


@dataclass(frozen=True, slots=True, kw_only=True)
class DurationModel:
    """Seconds that work takes, as a list of possible times with their chances.

    Costs are sums over this list, so that no shape of curve is assumed where there are data.
    """

    seconds: Floats
    """Rising."""
    chance: Floats
    """Sums to 1."""
    glue_s: float | None = None
    """Where what was seen ends and the tail begins; None if it was not made from attempts."""
    curve: KaplanMeier | None = None
    log_normal: LogNormal | None = None
    pareto: float | None = None
    """Exponent; None if too little is known."""

    @property
    def mean_s(self) -> float:
        """Mean seconds of one piece of work."""
        return float(self.seconds @ self.chance)

    @property
    def sd_s(self) -> float:
        """Standard deviation, seconds."""
        return math.sqrt(max(0.0, float(self.seconds**2 @ self.chance) - self.mean_s**2))

    def tail(self, seconds: float) -> float:
        """Return the chance that work takes longer than this."""
        return float(self.chance[self.seconds > seconds].sum())

    def quantile(self, share: float) -> float:
        """Return the seconds within which this share of the work is done, 0 to 1."""
        place = int(np.searchsorted(np.cumsum(self.chance), share * (1 - 1e-12)))
        return float(self.seconds[min(place, len(self.seconds) - 1)])


def fit(sample: Sample) -> DurationModel:
    """Make a model from attempts.

    Up to the glue point, where three attempts are still at risk, it is what Kaplan and Meier's
    estimate says. From there on it goes on with the heavier of a log-normal tail (censored maximum
    likelihood) and a Pareto tail (censored Hill estimate), both joined without a step.

    Args:
        sample: At least one attempt.

    Raises:
        ValueError: There is no attempt.
    """
    if not len(sample.seconds):
        raise ValueError("there are no attempts to learn from")
    curve, log_normal, pareto = kaplan_meier(sample), fit_log_normal(sample), fit_pareto(sample)
    glue = _glue(sample)
    drops = -np.diff(curve.survival, prepend=1.0)
    body = curve.times <= glue
    seconds, chance = curve.times[body], _with_rest(drops[body], sample, glue)
    left = 1.0 - float(chance.sum())
    horizon = max(HORIZON_S, HORIZON_FACTOR * float(sample.seconds[-1]))
    edges = np.geomspace(glue, horizon, _TAIL_STEPS + 1)
    share = np.exp(log_normal.log_survival(edges) - log_normal.log_survival(edges[:1]))
    if pareto is not None:
        share = np.maximum(share, (glue / edges) ** pareto)
    share = np.minimum.accumulate(np.minimum(share, 1.0))
    middles = np.sqrt(edges[1:] * edges[:-1])
    seconds = np.concatenate([seconds, middles, [horizon]])
    chance = np.concatenate([chance, -left * np.diff(share), [left * share[-1]]])
    kept = chance > 0
    return DurationModel(
        **_atoms(seconds[kept], chance[kept]),
        glue_s=glue,
        curve=curve,
        log_normal=log_normal,
        pareto=pareto,
    )


def from_chances(seconds: Floats, chance: Floats) -> DurationModel:
    """Make a model from times and their chances, which need not be sorted nor sum to 1.

    Raises:
        ValueError: They are not alike in number, there are none, or one is negative.
    """
    if len(seconds) != len(chance) or not len(seconds):
        raise ValueError("there must be as many chances as times, and at least one")
    if seconds.min() < 0 or chance.min() < 0 or not chance.sum() > 0:
        raise ValueError("times and chances are 0 or more")
    order = np.argsort(seconds)
    return DurationModel(seconds=seconds[order], chance=chance[order] / chance.sum())


def _glue(sample: Sample) -> float:
    before = np.concatenate([[0.0], np.cumsum(sample.count)[:-1]])
    total = before[-1] + sample.count[-1]
    if total <= _FEW:
        return float(sample.seconds[len(sample.seconds) // 2])
    enough = before <= total - _AT_RISK_AT_GLUE
    return float(sample.seconds[np.flatnonzero(enough)[-1]])


def _with_rest(chance: Floats, sample: Sample, glue_s: float) -> Floats:
    """Return the chances up to the glue point, with something left for the tail.

    Of times that are all different two are longer than the third from the end. Where many are alike
    (all work takes as long, or times were put into bins) none may be, and the advice would be no
    longer than what was seen: the least delay, and all the work would be done twice.
    """
    total = float(sample.count.sum())
    beyond = float(sample.count[sample.seconds > glue_s].sum())
    missing = (_LEFT_AT_GLUE - beyond) / total
    if not len(chance) or missing <= 0 or 1.0 - float(chance.sum()) > missing:
        return chance
    rest = chance.copy()
    rest[-1] -= min(missing, 0.5 * rest[-1])
    return rest


def _atoms(seconds: Floats, chance: Floats) -> dict[str, Floats]:
    """Merge times that hardly differ if there are very many."""
    if len(seconds) > _MOST_ATOMS:
        slots = np.floor(np.log(seconds) / math.log(_MERGED_RATIO))
        starts = np.flatnonzero(np.diff(slots, prepend=-np.inf))
        merged = np.add.reduceat(chance, starts)
        seconds = np.add.reduceat(seconds * chance, starts) / merged
        chance = merged
    return {"seconds": seconds, "chance": chance / chance.sum()}
