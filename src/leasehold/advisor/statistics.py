"""How long work takes: what was seen as far as it goes, and a tail beyond it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy as np
from scipy import optimize, special

from leasehold.advisor.attempts import HALF_LIFE_ATTEMPTS, Booleans, Floats, Sample

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
    """Of the longest attempts, if it does not fit all of them."""
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
    likelihood of the longest attempts that it fits) and a Pareto tail (censored Hill estimate),
    both joined without a step.

    Args:
        sample: At least one attempt.

    Raises:
        ValueError: There is no attempt.
    """
    if not len(sample.seconds):
        raise ValueError("there are no attempts to analyze")
    curve, pareto = kaplan_meier(sample), fit_pareto(sample)
    log_normal = fit_log_normal_tail(sample, curve)
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


# --- kaplan meier ------------------------------------------------------------------------------
#
# How likely work is to last longer than so many seconds, from attempts some of which are censored.
#
# Source: E. L. Kaplan and P. Meier, "Nonparametric estimation from incomplete observations",
# JASA 53 (1958).


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


# --- tails -------------------------------------------------------------------------------------
#
# How work goes on where the data end: the two tails between which the heavier is taken.


_LEAST_SD: Final = 0.02
"""Of the logarithm of a time: nothing takes exactly as long each time, and times that were put into
bins look more alike than they are."""
_MOST_SD: Final = 10.0
_TAIL_LEAST: Final = 200
"""With fewer attempts a log-normal is fitted to all of them."""
_TAIL_SHARES: Final = (0.2, 0.1, 0.05)
_TAIL_FINISHED: Final = 40
_MISFIT: Final = 1.0
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


def fit_log_normal_tail(sample: Sample, curve: KaplanMeier) -> LogNormal:
    """Fit a log-normal to all attempts or, where it does not fit, to the longest of them.

    Work of several kinds, or that is mostly done at once, is no log-normal; its longest part may be
    one. A fit to all of it then has a tail that is far too heavy, or too light. The longest fifth
    is tried, then a tenth, then a twentieth, given that an attempt is among them; the first that
    the data do not contradict is taken, or the last for which there are enough.

    Args:
        sample: At least one attempt.
        curve: Kaplan and Meier's estimate of them.
    """
    found = fit_log_normal(sample)
    if float(sample.count.sum()) < _TAIL_LEAST or _misfit(sample, curve, found, 0.0) <= _MISFIT:
        return found
    count = np.cumsum(sample.count)
    for share in _TAIL_SHARES:
        place = min(int(np.searchsorted(count, (1.0 - share) * count[-1])), len(count) - 1)
        above_s = float(sample.seconds[place])
        finished = (sample.seconds > above_s) & sample.finished
        if float(sample.count[finished].sum()) < _TAIL_FINISHED:
            break
        found = _fit_above(sample, above_s)
        if _misfit(sample, curve, found, above_s) <= _MISFIT:
            break
    return found


def _fit_above(sample: Sample, above_s: float) -> LogNormal:
    """Fit a log-normal to the attempts that are longer than this, given that they are."""
    above = sample.seconds > above_s
    logs, done = np.log(sample.seconds[above]), sample.finished[above]
    weight = sample.weight[above] / sample.weight[above].sum()
    least = math.log(above_s)

    def loss(point: Floats) -> float:
        mu, scale = float(point[0]), math.exp(float(point[1]))
        z = (logs - mu) / scale
        each = np.where(done, -0.5 * z * z - point[1], special.log_ndtr(-z))
        return float(special.log_ndtr((mu - least) / scale) - weight @ each)

    mean = float(weight @ logs)
    sd = max(_LEAST_SD, math.sqrt(float(weight @ (logs - mean) ** 2)))
    bounds = [(least - 20.0, least + 20.0), (math.log(_LEAST_SD), math.log(_MOST_SD))]
    # From two sides: the middle may be within what is seen, or far below it.
    tried = [
        optimize.minimize(
            loss, np.array([mu, math.log(min(scale, _MOST_SD))]), method="L-BFGS-B", bounds=bounds
        )
        for mu, scale in ((mean, sd), (least, 2 * sd))
    ]
    best = min(tried, key=lambda each: float(each.fun))
    return LogNormal(float(best.x[0]), math.exp(float(best.x[1])))


def _misfit(sample: Sample, curve: KaplanMeier, model: LogNormal, above_s: float) -> float:
    """Return how far a model is from what was seen above some length: the greatest difference of
    the shares that last longer, times the root of the attempts that finished there.

    Source: A. N. Kolmogorov (1933); about 1 is rare where the parameters were fitted, see
    H. W. Lilliefors, JASA 62 (1967).
    """
    place = int(np.searchsorted(curve.times, above_s, side="right"))
    times = curve.times[place:]
    start = curve.survival_at(above_s)
    if not len(times) or start <= 0:
        return 0.0
    after = curve.survival[place:] / start
    before = np.concatenate([[1.0], after[:-1]])
    logs = model.log_survival(times)
    if above_s > 0:
        logs -= model.log_survival(np.array([above_s]))
    share = np.exp(logs)
    # Within a step nothing is known: times may have been put into bins.
    apart = np.maximum(after - share, share - before).max()
    finished = (sample.seconds > above_s) & sample.finished
    return max(0.0, float(apart)) * math.sqrt(float(sample.count[finished].sum()))


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


# --- crashes -----------------------------------------------------------------------------------
#
# How often workers die at work.


PRIOR_CRASHES: Final = 0.2
PRIOR_WORK_S: Final = 2_000.0
"""What is assumed before anything is known: a fifth of a crash in so many seconds of work."""


def crash_rate(crashes: float, work_s: float) -> float:
    """Return the crashes per second of work: ``(crashes + 1/5)/(work + 2000 s)``.

    Args:
        crashes: Attempts that ended because their worker died, 0 or more.
        work_s: Seconds of work in which that happened, 0 or more, over all workers.

    Raises:
        ValueError: One of them is negative.

    Source: the mean of the posterior with a Gamma prior (A. Gelman et al., "Bayesian Data
    Analysis", 2.6). The prior is weak, for messages are given up by the fifth power of the rate.
    """
    if crashes < 0 or work_s < 0:
        raise ValueError("crashes and seconds of work are 0 or more")
    return (crashes + PRIOR_CRASHES) / (work_s + PRIOR_WORK_S)


# --- evidence ----------------------------------------------------------------------------------
#
# How far off a model may be: what else the truth could be, given that these data came of it.


WORLDS: Final = 60
"""Truths that are drawn for an error bar."""
BAR: Final = (0.05, 0.95)
"""Between these shares of them: a bar of 90 %."""
_WORLDS_SEED: Final = 20_061


class Evidence(NamedTuple):
    """What a model of work and deaths rests on."""

    attempts: float
    """As many as all would be if none counted for less: ``sum(w)**2/sum(w**2)``."""
    crashes: float
    work_s: float

    def worlds(self, model: DurationModel) -> Iterator[tuple[DurationModel, float]]:
        """Yield distributions and rates of death that the data might as well have come from.

        The same ones each time. A share of the work is known as well as the attempts are many, a
        rate as the deaths are.

        Source: B. Efron, "Bootstrap methods", Annals of Statistics 7 (1979); the posterior of
        :func:`crash_rate`.
        """
        random = np.random.default_rng(_WORLDS_SEED)
        many = max(1, round(self.attempts))
        shape, scale = self.crashes + PRIOR_CRASHES, 1.0 / (self.work_s + PRIOR_WORK_S)
        for _ in range(WORLDS):
            chance = random.multinomial(many, model.chance) / many
            yield replace(model, chance=chance), float(random.gamma(shape, scale))


# --- drift -------------------------------------------------------------------------------------
#
# Whether work takes as long as it used to.


WINDOW: Final = 200
"""Attempts that are compared with those before them."""
ALARM: Final = 4.0
"""|z| beyond this is a change: by chance one comparison in 16,000 gets there."""
_GOES_ON: Final = 2.5
"""Once there is a change, |z| beyond this is one that goes on."""
ALIKE: Final = 2.0
"""Attempts whose |z| is below this are as before the change that lies between."""
_HORIZON: Final = 8 * HALF_LIFE_ATTEMPTS
"""Changes are looked for among so many attempts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """The newest change in how long work takes."""

    z: float
    """Above 0: work got quicker; below 0: slower."""
    attempts_ago: int
    """About where it was, a multiple of WINDOW; rows, where rows have weights."""
    returned: bool = False
    """Whether attempts before it were like the newest: the work comes and goes, as by day and by
    night, and what was before may be again."""


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
    horizon = min(total, _HORIZON)
    alarms: list[Drift] = []
    for since in range(WINDOW, horizon, WINDOW):
        newer = seconds[total - since :], finished[total - since :]
        start, middle = max(0, total - since - WINDOW), total - since
        if middle - start < WINDOW // 2:
            return None
        z = log_rank(newer, (seconds[start:middle], finished[start:middle]))
        alarms.append(Drift(z=z, attempts_ago=since))
        if abs(z) <= ALARM:
            continue
        for end in range(start, WINDOW - 1, -WINDOW):
            before = slice(end - WINDOW, end)
            if abs(log_rank(newer, (seconds[before], finished[before]))) < ALIKE:
                return replace(alarms[-1], returned=True)
        return next(each for each in alarms if each.z * z > 0 and abs(each.z) > _GOES_ON)
    return None


def caught_up(seconds: Floats, finished: Booleans, since: int) -> Floats:
    """Return lengths with what is older than a change as long as what is newer.

    The work has got slower or quicker; how much one piece differs from another is taken to be as
    before, so that older attempts still tell of it. Each block of 200 is moved by itself.

    Args:
        seconds: Lengths, the oldest first.
        finished: Whether each was finished.
        since: How many are newer than the change.
    """
    moved = seconds.copy()
    change = len(seconds) - since

    def level(block: slice) -> float:
        ones = np.ones(len(seconds[block]))
        return level_of(Sample.of_arrays(seconds[block], finished[block], ones))

    newer = level(slice(change, None))
    for end in range(change, 0, -WINDOW):
        block = slice(max(0, end - WINDOW), end)
        moved[block] *= math.exp(newer - level(block))
    return moved


def level_of(sample: Sample) -> float:
    """Return the mean logarithm of lengths, those cut off by Kaplan and Meier's estimate."""
    curve = kaplan_meier(sample)
    left = float(curve.survival[-1]) if len(curve.times) else 1.0
    drops = -np.diff(curve.survival, prepend=1.0)
    return float(drops @ np.log(curve.times)) + left * math.log(float(sample.seconds[-1]))


# --- suspicion ---------------------------------------------------------------------------------
#
# How surprising a silence is: for showing that a worker may be stuck, not for acting on it.


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
