"""From attempts to a visibility timeout, with the reasons."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple

import numpy as np

from leasehold.tuning import batches
from leasehold.tuning.attempts import HALF_LIFE_ATTEMPTS, Attempt, Floats, Sample
from leasehold.tuning.bounds import Bounds, Settled, settle
from leasehold.tuning.costs import (
    DOUBLING,
    FIXED,
    Growth,
    Prices,
    cost_per_message,
    cost_redrawn,
    duplicates_per_message,
)
from leasehold.tuning.crashes import crash_rate as rate_of
from leasehold.tuning.drift import Drift, find_drift
from leasehold.tuning.model import DurationModel, fit
from leasehold.tuning.promises import Promise, promise
from leasehold.tuning.renewal import RenewalPlan, plan_renewal
from leasehold.tuning.starting import ENOUGH_FINISHED, start_timeout

DEFAULT_TIMEOUT_S: Final = 30.0
"""Azure, "Get Messages": the lease of a receive that names none."""
GRID_RATIO: Final = 1.05
TIE: Final = 1.003
"""Of timeouts that cost up to so many times the least the shortest is taken: the curve is flat
there, and noise would choose. In 12 sets of 12 cases the worst regret fell from 1.063 to 1.048."""
AS_GOOD: Final = 1.05
"""Timeouts that cost up to this many times the least are as good."""

_UNSEEN: Final = 0.02
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

    All costs are in seconds of delay; see :class:`~leasehold.tuning.costs.Prices`.
    """

    prices: Prices = field(default_factory=Prices)
    bounds: Bounds = field(default_factory=Bounds)
    today_s: int | None = None
    """The timeout in force, which is left in small steps only; None to go to the best at once."""
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
    """Shortest and longest timeout that cost up to 5 % more than the best."""
    curve: tuple[Point, ...] = ()
    choices: tuple[Choice, ...] = ()
    """The advice, today's and what is chosen without much thought, each with its cost."""
    renewal: RenewalPlan | None = None
    """For workers that can renew: the better way."""
    batch: int = 1
    """Messages to receive at once at most, without renewal."""
    promise: Promise | None = None
    drift: Drift | None = None
    model: DurationModel | None = None


def advise(
    attempts: Iterable[Attempt],
    *,
    crashes: float = 0.0,
    silent: float = 0.0,
    work_s: float | None = None,
    question: Question | None = None,
) -> Advice:
    """Recommend a visibility timeout, and how to renew leases where workers can.

    Args:
        attempts: The oldest first; see :class:`~leasehold.tuning.attempts.Attempt` for what to
            record. Messages that were tried three times or more do not belong here.
        crashes: Attempts that ended because their worker died.
        silent: Those of them of which nobody knows when, and which are not among the attempts.
        work_s: Seconds of work in which that happened; None for the sum of the attempts.
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
        return _start(rows, whole, rate, asked)
    half_life, drift = asked.half_life, None
    if half_life is not None:
        drift = find_drift(
            np.array([each.seconds for each in rows]), np.array([each.finished for each in rows])
        )
        half_life = half_life if drift is None else min(half_life, drift.half_life)
    sample = Sample.of(rows, half_life).with_silent(rate * silent / max(crashes, silent, 1.0))
    return _from_model(rows, sample, rate, asked, drift)


def _start(rows: list[Attempt], whole: Sample, rate: float, asked: Question) -> Advice:
    finishes = whole.finishes
    wanted = start_timeout(rows, default_s=asked.default_s, cap_s=asked.bounds.cap_s)
    settled = settle(wanted, None, asked.bounds)
    if finishes:
        because = f"only {finishes:.0f} attempts were finished, so this is a rough start"
    else:
        because = "nothing was finished yet, so this is the default"
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
    rows: list[Attempt], sample: Sample, rate: float, asked: Question, drift: Drift | None
) -> Advice:
    model = fit(sample)
    assert model.curve is not None
    bounds = asked.bounds
    grid = timeout_grid(bounds.floor_s, bounds.cap_s)
    costs = price(model, grid, rate, asked)
    best = int(np.flatnonzero(costs <= TIE * costs.min())[0])
    wanted, blind = float(grid[best]), None
    if asked.lengths is Lengths.OF_MESSAGE:
        blind = _least_to_see(model, sample, bounds.cap_s)
        wanted = max(wanted, blind or wanted)
    gain = None
    if asked.today_s is not None:
        today = float(price(model, np.array([float(asked.today_s)]), rate, asked)[0])
        gain = None if blind is not None else 1 - float(costs[best]) / today
    settled = settle(wanted, asked.today_s, bounds, gain)
    notes = _notes(drift, blind)
    good = grid[costs <= AS_GOOD * costs[best]]
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
        because="; ".join((_shape(model, wanted, rate), *notes, *settled.reasons)),
        finished=sample.finishes,
        censored=sample.censored,
        crash_rate=rate,
        as_good_s=(float(good[0]), float(good[-1])),
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
    )


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


def naive_timeouts(attempts: Iterable[Attempt], default_s: float) -> dict[str, float]:
    """Return what is often chosen, by name, seconds: for comparison, not to be taken.

    Args:
        attempts: The oldest first, with at least one finished.
        default_s: The timeout while nothing is known.
    """
    rows = list(attempts)
    done = np.sort(np.array([each.seconds for each in rows if each.finished]))
    most = float(np.quantile(done, 0.99))
    return {
        "default": default_s,
        "mean of completed, doubled": 2 * float(done.mean()),
        # What Google's client for Pub/Sub keeps its leases at, with renewals.
        "99th percentile of completed": min(max(most, 10.0), 600.0),
        "99th percentile, doubled": 2 * most,
        "longest seen": float(done[-1]),
        "smoothed (RFC 6298)": start_timeout(rows, default_s=default_s),
    }


def _choices(
    rows: list[Attempt], model: DurationModel, rate: float, asked: Question, settled: Settled
) -> tuple[Choice, ...]:
    named = {"advice": float(settled.timeout_s)}
    if asked.today_s is not None:
        named["today"] = float(asked.today_s)
    named |= naive_timeouts(rows, asked.default_s)
    timeouts = np.clip(list(named.values()), asked.bounds.floor_s, asked.bounds.cap_s)
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


def _shape(model: DurationModel, wanted: float, rate: float) -> str:
    return (
        f"{100 * model.tail(wanted):.2g} % of the work takes longer than {wanted:.3g} s "
        f"(half of it {model.quantile(0.5):.3g} s, 99 % {model.quantile(0.99):.3g} s), "
        f"and a worker dies once in {1 / rate:,.0f} s of work"
    )


def _notes(drift: Drift | None, blind: float | None) -> list[str]:
    notes = []
    if blind is not None:
        notes.append("more of it outlasts all that was seen, so it is at least twice that")
    if drift is not None:
        word = "quicker" if drift.z > 0 else "slower"
        notes.append(f"the work got {word} about {drift.attempts_ago} attempts ago")
    return notes
