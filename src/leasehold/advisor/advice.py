"""From attempts to a visibility timeout, with the reasons."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final, NamedTuple

import numpy as np

from leasehold.advisor import costs as batches
from leasehold.advisor.attempts import HALF_LIFE_ATTEMPTS, Attempt, Floats, Sample
from leasehold.advisor.costs import (
    DOUBLING,
    FIXED,
    Growth,
    Prices,
    RenewalPlan,
    cost_per_message,
    cost_redrawn,
    duplicates_per_message,
    plan_renewal,
)
from leasehold.advisor.rules import ENOUGH_FINISHED, Promise, naive_timeouts, promise, start_timeout
from leasehold.advisor.statistics import (
    Drift,
    DurationModel,
    Evidence,
    caught_up,
    find_drift,
    fit,
)
from leasehold.advisor.statistics import crash_rate as rate_of
from leasehold.domain.limits import AZURE

# --- bounds ------------------------------------------------------------------------------------
#
# What becomes of advice: limits, small steps, and who has the last word.
#
# The order is: what a user has set for a receive, what advice or a user has written into the
# queue's settings, the server's own adaptive mode within the bounds written there.


LEAST_GAIN: Final = 0.03
"""A change that saves less than this share of the cost is not worth making."""
MOST_STEP: Final = 2.0
"""One step lengthens or shortens to so many times at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Within what advice has to stay."""

    floor_s: int = AZURE.lease_s[0]
    """Shortest timeout, whole seconds, 1 or more."""
    cap_s: int = AZURE.lease_s[1]
    """Longest timeout, whole seconds."""
    user_s: int | None = None
    """A timeout that a user insists on; it wins over everything."""

    def __post_init__(self) -> None:
        if not 1 <= self.floor_s <= self.cap_s:
            raise ValueError(
                f"floor_s is {self.floor_s}, cap_s {self.cap_s}; it must be 1 <= floor <= cap"
            )
        if self.user_s is not None and self.user_s < 1:
            raise ValueError(f"user_s is {self.user_s}; it must be 1 or more")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """The timeout to set, and what has changed it on the way."""

    timeout_s: int
    reasons: tuple[str, ...]


def settle(
    wanted_s: float, today_s: int | None, bounds: Bounds, gain: float | None = None
) -> Settled:
    """Turn the best timeout into the one to set.

    Args:
        wanted_s: The best one, seconds.
        today_s: The one in force; None if there is none to be careful with.
        bounds: Within what to stay.
        gain: Share of today's cost that the best one saves, 0 to 1; None if not known.

    Returns: Whole seconds, rounded up.
    """
    if bounds.user_s is not None:
        return Settled(timeout_s=bounds.user_s, reasons=("set by a user, which takes precedence",))
    reasons = []
    chosen = math.ceil(wanted_s - 1e-9)
    if today_s is not None and chosen != today_s:
        allowed = bounds.floor_s <= today_s <= bounds.cap_s
        if gain is not None and gain <= LEAST_GAIN and allowed:
            chosen = today_s
            reasons.append(f"kept: a change would save {max(0.0, 100 * gain):.1f} % only")
        elif not today_s / MOST_STEP <= chosen <= today_s * MOST_STEP:
            longest = chosen > today_s
            far = today_s * MOST_STEP if longest else today_s / MOST_STEP
            chosen = math.ceil(far)
            word = "twice" if longest else "half"
            reasons.append(f"only {word} of today's {today_s} s in one step")
    if chosen < bounds.floor_s:
        chosen = bounds.floor_s
        reasons.append("this is the floor")
    if chosen > bounds.cap_s:
        chosen = bounds.cap_s
        reasons.append("this is the cap")
    return Settled(timeout_s=chosen, reasons=tuple(reasons))


# --- advice ------------------------------------------------------------------------------------


DEFAULT_TIMEOUT_S: Final = 30.0
"""Azure, "Get Messages": the lease of a receive that names none."""
GRID_RATIO: Final = 1.05
TIE: Final = 1.003
"""Of timeouts that cost up to so many times the least the shortest is taken: the curve is flat
there, and noise would choose. In 12 sets of 12 cases the worst regret fell from 1.063 to 1.048."""
AS_GOOD: Final = 1.05
"""Timeouts that cost up to this many times the least, as estimated, are as good."""
EXTRAPOLATED: Final = 4.0
"""Of timeouts that are longer than so many times the longest attempt seen none is the best one:
what they cost is a matter of the tail that was fitted, and not of what was seen."""

_UNSEEN: Final = 0.02
_BEYOND: Final = 0.02
"""If so large a share of the work fits into no lease, the longest one is the least harmful: with a
short one it would come again and again, to every worker at once."""
_CHANCE_UNSEEN: Final = 3.0
"""Attempts beyond the glue point of data in which nothing is censored."""


class Basis(StrEnum):
    """What advice rests on."""

    DEFAULT = "default"
    """Nothing was finished: the default."""
    START = "start"
    """Few were finished: a smoothed mean with a margin (RFC 6298)."""
    MODEL = "model"
    """Enough were finished for costs to be weighed."""


class Lengths(StrEnum):
    """To what the time that work takes belongs."""

    OF_MESSAGE = "message"
    """A message takes as long each time: the usual case, and the default (J2)."""
    OF_ATTEMPT = "attempt"
    """Each attempt is a new throw of the dice (J1)."""


class Point(NamedTuple):
    """One point of the cost curve."""

    timeout_s: float
    cost: float
    """Per message, in seconds of delay; it includes the work itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What a timeout would cost."""

    name: str
    timeout_s: float
    cost: float
    duplicates: float
    """Pieces of work done twice, per message."""
    hidden_s: float
    """Seconds that a message stays hidden at worst after its first worker died."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What advice depends on besides the attempts; the defaults suit a queue of one kind of work.

    All costs are in seconds of delay; see :class:`~leasehold.advisor.costs.Prices`.
    """

    prices: Prices = field(default_factory=Prices)
    bounds: Bounds = field(default_factory=Bounds)
    today_s: int | None = None
    """The timeout in force, which is left in small steps only; None to go to the best at once."""
    in_force_s: float | None = None
    """The timeout in force, also where it is left at once; it is not shortened while messages are
    given up of which it is unknown whether their work takes longer. None if it is not known."""
    default_s: float = DEFAULT_TIMEOUT_S
    """While nothing is known."""
    lengths: Lengths = Lengths.OF_MESSAGE
    growth: Growth = DOUBLING
    """Of timeouts with deliveries; counts where the length is the message's."""
    guard_s: float = 5.0
    """How long before its end a lease has to be renewed."""
    late_share: float = 0.01
    """For the promise: share of the messages that may be worked on twice."""
    confidence: float = 0.95
    half_life: float | None = HALF_LIFE_ATTEMPTS
    """Attempts after which one counts for half; None where weights are all that counts, and for
    attempts that are not in order. Then no drift is looked for."""
    most_per_receive: int = batches.MOST


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """A visibility timeout and a plan for renewal, with what they rest on."""

    timeout_s: int
    """What to set, whole seconds, within the bounds and in a small step."""
    wanted_s: float
    """The best one, before bounds and steps."""
    basis: Basis
    because: str
    finished: float
    """Attempts that were seen to end."""
    censored: float
    """Attempts that were not."""
    crash_rate: float
    """Crashes per second of work."""
    as_good_s: tuple[float, float] | None = None
    """Shortest and longest timeout that cost up to 5 % more than the best, as estimated: nothing is
    promised, for the estimate is as uncertain as the data are few."""
    longest_s: float | None = None
    """The longest attempt seen, finished or not; what is beyond it is extrapolated."""
    curve: tuple[Point, ...] = ()
    choices: tuple[Choice, ...] = ()
    """The advice, today's and what is chosen without much thought, each with its cost."""
    renewal: RenewalPlan | None = None
    """For workers that can renew: the better way. None also if no lease may be longer than the
    guard."""
    batch: int = 1
    """Messages to receive at once at most, without renewal."""
    promise: Promise | None = None
    drift: Drift | None = None
    model: DurationModel | None = None
    evidence: Evidence | None = None
    """What the model rests on."""


def advise(  # noqa: PLR0913 - keyword-only but for the attempts
    attempts: Iterable[Attempt],
    *,
    crashes: float = 0.0,
    silent: float = 0.0,
    work_s: float | None = None,
    given_up: float = 0.0,
    question: Question | None = None,
) -> Advice:
    """Recommend a visibility timeout, and how to renew leases where workers can.

    Args:
        attempts: The oldest first; see :class:`~leasehold.advisor.attempts.Attempt` for what to
            record. Messages that were tried three times or more do not belong here.
        crashes: Attempts that ended because their worker died.
        silent: Those of them of which it is unknown when, and which are not among the attempts.
        work_s: Seconds of work in which that happened; None for the sum of the attempts.
        given_up: Messages that were given up when each of their leases had lapsed; see
            :func:`leasehold.advisor.attempts.observe`. While there are any, the timeout in force
            is not shortened.
        question: What else it depends on.

    Raises:
        ValueError: An attempt, a price or a bound is out of range.
    """
    asked = question or Question()
    rows = list(attempts)
    exposure = sum(each.seconds * each.weight for each in rows) if work_s is None else work_s
    rate = rate_of(crashes, exposure)
    whole = Sample.of(rows)
    if whole.finishes < ENOUGH_FINISHED:
        return _start(rows, whole, rate, asked, given_up)
    half_life, drift = asked.half_life, None
    if half_life is not None:
        seconds, finished, weight = (np.array(each) for each in zip(*rows, strict=True))
        drift = find_drift(seconds, finished)
        if drift is not None and drift.returned:
            half_life, drift = None, None
    if drift is not None:
        moved = caught_up(seconds, finished, drift.attempts_ago)
        rows = [each._replace(seconds=s) for each, s in zip(rows, moved.tolist(), strict=True)]
        # A row with a weight is several attempts.
        drift = replace(drift, attempts_ago=round(float(weight[-drift.attempts_ago :].sum())))
    sample = Sample.of(rows, half_life).with_silent(rate * silent / max(crashes, silent, 1.0))
    count = float(sample.weight.sum() ** 2 / (sample.weight**2 / sample.count).sum())
    evidence = Evidence(count, crashes, exposure)
    return _from_model(rows, sample, _Deaths(evidence, rate, given_up), asked, drift)


class _Deaths(NamedTuple):
    """Of workers."""

    evidence: Evidence
    rate: float
    """Per second of work."""
    given_up: float = 0.0
    """Messages at which a worker may have died, or may have worked for longer."""


def _start(
    rows: list[Attempt], whole: Sample, rate: float, asked: Question, given_up: float
) -> Advice:
    finishes = whole.finishes
    wanted = start_timeout(rows, default_s=asked.default_s, cap_s=asked.bounds.cap_s)
    kept = _not_shortened(wanted, given_up, asked)
    wanted = max(wanted, kept.timeout_s)
    # So few data are no reason for a large step, not even where one may be taken.
    today_s = None if asked.in_force_s is None else max(1, round(asked.in_force_s))
    settled = settle(wanted, today_s, asked.bounds)
    because = start_told(finishes, whole.censored)
    if kept.because is not None:
        because = f"{because}; {kept.because}"
    return Advice(
        timeout_s=settled.timeout_s,
        wanted_s=wanted,
        basis=Basis.START if finishes else Basis.DEFAULT,
        because="; ".join((because, *settled.reasons)),
        finished=finishes,
        censored=whole.censored,
        crash_rate=rate,
    )


def _from_model(
    rows: list[Attempt], sample: Sample, deaths: _Deaths, asked: Question, drift: Drift | None
) -> Advice:
    model, rate = fit(sample), deaths.rate
    assert model.curve is not None
    bounds = asked.bounds
    grid = timeout_grid(bounds.floor_s, bounds.cap_s)
    costs = price(model, grid, rate, asked)
    longest_s = float(sample.seconds[-1])
    tried = max(1, int(np.searchsorted(grid, EXTRAPOLATED * longest_s, side="right")))
    best = int(np.flatnonzero(costs[:tried] <= TIE * costs[:tried].min())[0])
    least = _least(model, sample, asked)
    wanted, gain = max(float(grid[best]), least.timeout_s), None
    kept = _not_shortened(wanted, deaths.given_up, asked)
    wanted = max(wanted, kept.timeout_s)
    if asked.today_s is not None and least.because is None:
        today = float(price(model, np.array([float(asked.today_s)]), rate, asked)[0])
        gain = 1 - float(costs[best]) / today if math.isfinite(today) else None
    settled = settle(wanted, asked.today_s, bounds, gain)
    good_from, good_to = _as_good(grid[:tried], costs[:tried], best)
    # What is cheap by a tail that is a guess is not as good.
    good_from = max(good_from, least.timeout_s, kept.timeout_s)
    good_to = max(good_to, wanted)
    notes = [each.because for each in (least, kept) if each.because is not None]
    if best == tried - 1 < len(grid) - 1 and wanted <= grid[best]:
        notes.append(extrapolated_told(EXTRAPOLATED, longest_s))
    if drift is not None:
        notes.append(drift_told(drift))
    batch = min(
        batches.largest_batch(
            model.mean_s, model.sd_s, settled.timeout_s, most=asked.most_per_receive
        ),
        batches.largest_batch_drawn(model, settled.timeout_s, most=asked.most_per_receive),
    )
    return Advice(
        timeout_s=settled.timeout_s,
        wanted_s=wanted,
        basis=Basis.MODEL,
        because="; ".join(
            (shape_told(model, wanted, rate, deaths.evidence.crashes), *notes, *settled.reasons)
        ),
        finished=sample.finishes,
        censored=sample.censored,
        crash_rate=rate,
        as_good_s=(good_from, good_to),
        longest_s=longest_s,
        curve=tuple(Point(float(v), float(c)) for v, c in zip(grid, costs, strict=True)),
        choices=_choices(rows, model, rate, asked, settled),
        renewal=plan_renewal(
            model,
            rate,
            asked.prices,
            guard_s=asked.guard_s,
            floor_s=float(bounds.floor_s),
            cap_s=float(bounds.cap_s),
        ),
        batch=batch,
        promise=promise(model.curve, asked.late_share, asked.confidence),
        drift=drift,
        model=model,
        evidence=deaths.evidence,
    )


class _Least(NamedTuple):
    """The timeout that it must be at least, whatever the least cost."""

    timeout_s: float = 0.0
    because: str | None = None


def _not_shortened(wanted_s: float, given_up: float, asked: Question) -> _Least:
    """Keep to the timeout in force while messages are given up that it may have been too short for.

    It is unknown how long their work takes, and a shorter timeout would give up more of them.
    """
    in_force_s = asked.in_force_s
    if not given_up or in_force_s is None or wanted_s >= in_force_s:
        return _Least()
    return _Least(min(in_force_s, float(asked.bounds.cap_s)), given_up_told(given_up))


def _least(model: DurationModel, sample: Sample, asked: Question) -> _Least:
    cap_s, growth = float(asked.bounds.cap_s), asked.growth
    own = asked.lengths is Lengths.OF_MESSAGE
    longest_s = cap_s
    if own:
        longest_s = min(growth.cap_s, cap_s * growth.factor ** (growth.tries - 1))
    beyond = model.tail(longest_s)
    if beyond > _BEYOND:
        return _Least(cap_s, beyond_told(beyond, longest_s))
    to_see = _least_to_see(model, sample, cap_s) if own else None
    if to_see is None or to_see <= asked.bounds.floor_s:
        return _Least()
    return _Least(to_see, blind_told())


def _as_good(grid: Floats, costs: Floats, best: int) -> tuple[float, float]:
    """Return the shortest and longest timeout up to which nothing around the best costs more.

    A curve can have two hollows, and what is between them is not as good.
    """
    good = costs <= AS_GOOD * costs[best]
    above = np.flatnonzero(~good[best:])
    below = np.flatnonzero(~good[: best + 1])
    low = int(below[-1]) + 1 if len(below) else 0
    high = best + int(above[0]) - 1 if len(above) else len(grid) - 1
    return float(grid[low]), float(grid[high])


def _least_to_see(model: DurationModel, sample: Sample, cap_s: float) -> float | None:
    """Return the least timeout with which more can be learned, or None if enough is known.

    Where much of the work outlasts all that was seen, its tail is a guess. A timeout that rests on
    it can settle where it never sees the rest: with 10 % of the work at 60 s it went from 30 s to
    7 s, at six times the least cost. A longer one costs little, and shows.
    """
    assert model.glue_s is not None
    assert model.curve is not None
    unseen = model.curve.survival_at(model.glue_s) - _CHANCE_UNSEEN / float(sample.count.sum())
    return min(2 * model.glue_s, cap_s) if unseen > _UNSEEN else None


def timeout_grid(floor_s: float, cap_s: float) -> Floats:
    """Return the timeouts that are tried, each 5 % longer than the one before."""
    steps = math.ceil(math.log(max(cap_s / floor_s, 1.0)) / math.log(GRID_RATIO))
    grid: Floats = np.minimum(floor_s * GRID_RATIO ** np.arange(steps + 1), cap_s)
    return grid


def price(model: DurationModel, timeouts_s: Floats, rate: float, asked: Question) -> Floats:
    """Return what timeouts cost by the formula that the question asks for."""
    if asked.lengths is Lengths.OF_ATTEMPT:
        return cost_redrawn(model, timeouts_s, rate, asked.prices)
    return cost_per_message(model, timeouts_s, rate, asked.prices, asked.growth)


def price_of_worlds(
    model: DurationModel, timeouts_s: Floats, evidence: Evidence, asked: Question
) -> Floats:
    """Return what timeouts cost in each of the worlds that the data might as well have come from.

    Returns: A row for each world, a column for each timeout.
    """
    worlds = evidence.worlds(model)
    return np.stack([price(each, timeouts_s, rate, asked) for each, rate in worlds])


def _choices(
    rows: list[Attempt], model: DurationModel, rate: float, asked: Question, settled: Settled
) -> tuple[Choice, ...]:
    named = {"advice": float(settled.timeout_s)}
    if asked.today_s is not None:
        named["today"] = float(asked.today_s)
    named |= naive_timeouts(rows, asked.default_s)
    # As they are, also where the bounds would not allow them: they are shown, and not set.
    timeouts = np.array(list(named.values()))
    costs = price(model, timeouts, rate, asked)
    growth = FIXED if asked.lengths is Lengths.OF_ATTEMPT else asked.growth
    twice = duplicates_per_message(model, timeouts, rate, growth)
    return tuple(
        Choice(
            name=name,
            timeout_s=float(timeout),
            cost=float(cost),
            duplicates=float(many),
            hidden_s=float(timeout),
        )
        for name, timeout, cost, many in zip(named, timeouts, costs, twice, strict=True)
    )


# --- wording -----------------------------------------------------------------------------------
#
# Why advice is what it is, in sentences.


_LEAST_TOLD: Final = 1e-4
_WHOLE_FROM: Final = 100


def share_told(share: float) -> str:
    """Return a share for people: ``12 %``, ``0.31 %``, ``less than 0.01 %``."""
    if share < _LEAST_TOLD:
        return "less than 0.01 %"
    percent = min(100 * share, 100.0)
    return f"{percent:.3g} %" if percent > 99 else f"{percent:.2g} %"  # noqa: PLR2004 - 3 digits


def length_told(seconds: float) -> str:
    """Return a length for people: ``0.42 s``, ``12,300 s``."""
    return f"{seconds:,.0f} s" if seconds >= _WHOLE_FROM else f"{seconds:.3g} s"


def shape_told(model: DurationModel, timeout_s: float, crash_rate: float, crashes: float) -> str:
    """Return what the work is like, and how often workers die at it.

    Args:
        model: Of the work.
        timeout_s: The best one.
        crash_rate: Per second of work, as it was calculated with.
        crashes: How many were seen.
    """
    every = length_told(1 / crash_rate)
    if crashes:
        died = f"a worker dies once in {every} of work"
    else:
        died = f"no worker death was observed (one death in {every} of work is assumed)"
    return (
        f"{share_told(model.tail(timeout_s))} of the work takes longer than "
        f"{length_told(timeout_s)} (median {length_told(model.quantile(0.5))}, 99th percentile "
        f"{length_told(model.quantile(0.99))}), and {died}"
    )


def start_told(finished: float, censored: float) -> str:
    """Return why a timeout is no more than a start."""
    if finished:
        return f"only {finished:,.0f} attempts have finished, so this is a rough estimate"
    if censored:
        return (
            f"no attempt has finished yet, and {censored:,.0f} leases ended before their work "
            "did, so this is a guess"
        )
    return "no attempt has finished yet, so this is the default"


def blind_told() -> str:
    """Return why a timeout is twice as long as all that was seen."""
    return (
        "some of the work lasts longer than every observed attempt, so the timeout is at least "
        "twice the longest one"
    )


def given_up_told(messages: float) -> str:
    """Return why a timeout is no shorter than the one in force."""
    many = f"{messages:,.0f} message{'s' if messages > 1 else ''}"
    were, work = ("were", "their") if messages > 1 else ("was", "its")
    return (
        f"{many} {were} given up after every lease had run out: {work} work may take longer, so "
        "the "
        "timeout is not shortened"
    )


def extrapolated_told(times: float, longest_s: float) -> str:
    """Return why a timeout is no longer."""
    return (
        f"by the fitted tail a longer timeout might cost less, but the advice is at most "
        f"{times:g} times the longest observed attempt ({length_told(longest_s)})"
    )


def beyond_told(share: float, longest_s: float) -> str:
    """Return why a timeout is as long as can be."""
    return (
        f"{share_told(share)} of the work takes longer than {length_told(longest_s)}, the longest "
        "possible lease, so only renewed leases can complete it"
    )


def drift_told(drift: Drift) -> str:
    """Return how the work has changed."""
    word = "quicker" if drift.z > 0 else "slower"
    return f"the work got {word} about {drift.attempts_ago:,} attempts ago"
