"""A recommendation for a queue, or for one type of message in it, with all that supports it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

import numpy as np

from leasehold.advisor import Advice, Basis, Bounds, Growth, Lengths, Prices, Question, advise
from leasehold.advisor.advice import DEFAULT_TIMEOUT_S, price
from leasehold.advisor.attempts import Floats, repeats_are_alike
from leasehold.advisor.costs import FIXED, RenewalPlan
from leasehold.advisor.forecast import replay
from leasehold.advisor.simulate import Handling
from leasehold.advisor.statistics import BAR, DurationModel, Evidence, fit
from leasehold.advisor.summaries import (
    QueueSummary,
    Work,
    WorkChange,
    aged,
    count_of,
    drift_of,
    naive_choices,
    sample_of,
    together,
    unrenewed_of,
)
from leasehold.domain.queue_settings import LapsedReceipts, QueueSettings, TimeoutSource

_MOST_POINTS: Final = 240
_LEAST_SHARE: Final = 1e-5
_RENEWING: Final = 0.5
"""If more than this of the attempts that outlasted their lease were renewed, the workers renew."""
MOST_APART: Final = 0.1
"""If log and model are further apart, the model has to say which of its assumptions differs."""
_PLAYED: Final = frozenset({"advice", "today"})
SURE: Final = 0.1
"""Where the error bar of a cost, the work included, reaches further to either side, as a share of
it, the data are called thin."""
_LEAST_OUTLASTED: Final = 5
"""With fewer of them nothing can be said."""


class CostPoint(NamedTuple):
    """One point of the cost curve."""

    timeout_s: float
    cost: float
    """Per message, beyond the work itself, in seconds of waiting."""


class SurvivalPoint(NamedTuple):
    """One point of the survival curve."""

    seconds: float
    share: float
    """Of the work that takes longer, 0 to 1."""
    low: float
    """Where the band of 95 % begins; beyond the glue point there is none, and it is the share."""
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """When to renew leases; see :class:`leasehold.advisor.costs.RenewalPlan`."""

    first_s: float
    every_s: float
    lease_s: float
    guard_s: float
    cost: float
    renewals_per_attempt: float

    @classmethod
    def of(cls, plan: RenewalPlan) -> Plan:
        """Return the same as plain data."""
        return cls(**{name: getattr(plan, name) for name in cls.__dataclass_fields__})


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What the log shows: not calculated. Counts are of attempts unless said."""

    messages: int
    deliveries: int
    redeliveries: int
    completed: int
    late: int
    lapsed: int
    session_lost: int
    failed: int
    buried: int
    renewed: int
    crashes: float
    work_s: float
    wasted_work_s: float
    worst_hidden_s: float
    late_accepted: int = 0
    """Completed when the lease was over, before anybody else had received the message."""
    done: int | None = None
    """Messages that were completed; None if they were not counted."""
    set_aside: int = 0
    """Messages that went to the poison queue."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """The log beside the model of the same messages with the timeout in force."""

    redeliveries: int
    """In the log."""
    modelled: float
    """As calculated."""
    never_done: float
    """Messages that the calculation never gets done: their work is longer than the timeout."""
    apart: float
    """How far the two are apart, as a share of the larger one, 0 to 1."""
    between: tuple[float, float]
    """Error bar of the model: nine of ten such logs have so many redeliveries."""
    workers: int | None
    """With so many the log was played; None: it was calculated, with workers who are always free.
    """
    because: str | None
    """Which assumption differs, as a sentence; None if they are as good as alike."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation:
    """What to set, and why."""

    queue: str
    message_type: str | None
    of_queue: bool
    """Whether it is for all types of the queue together."""
    basis: Basis
    because: str
    today_s: float | None
    """The timeout in force; None if nothing says."""
    timeout_s: int
    """What to set now; today's, where workers renew."""
    wanted_s: float
    """The best one, before bounds and steps."""
    observed: float
    """Messages that there is an observation of, whatever its age; the choices are for so many."""
    finished: float
    """Observations, old ones counted for less; and those that were cut off."""
    censored: float
    crash_every_s: float
    """Seconds of work between two deaths of a worker."""
    promise: str
    """What can be promised, as a sentence."""
    change: WorkChange | None
    """Since when the work differs from before; None if it does not."""
    renews: bool
    """Whether the workers renew already."""
    seen: Seen
    mean_s: float | None = None
    median_s: float | None = None
    p99_s: float | None = None
    as_good_s: tuple[float, float] | None = None
    """Shortest and longest timeout that cost at most 5 % more, as estimated."""
    longest_s: float | None = None
    """The longest attempt seen, finished or not; what is beyond it is extrapolated."""
    renewal: Plan | None = None
    batch: int = 1
    promise_s: float | None = None
    glue_s: float | None = None
    """Where what was seen ends, and the tail begins."""
    curve: tuple[CostPoint, ...] = ()
    survival: tuple[SurvivalPoint, ...] = ()
    choices: tuple[WhatIf, ...] = ()
    """Advice, today's timeout, renewal and what is often chosen, each as the log's messages would
    have met it."""

    @property
    def is_enough(self) -> bool:
        """Whether there are data enough for more than a start."""
        return self.basis is Basis.MODEL

    @property
    def account(self) -> Account | None:
        """The log beside the model; None without a model of today's timeout."""
        today = self.choice("today")
        return None if today is None else account_of(self.seen, today)

    def choice(self, name: str) -> WhatIf | None:
        """Return one of the choices by its name."""
        return next((each for each in self.choices if each.name == name), None)


def account_of(seen: Seen, today: WhatIf) -> Account:
    """Compare what the log shows with what the model makes of the same messages.

    Args:
        seen: Of the log.
        today: The model, with the timeout in force.
    """
    modelled = today.redeliveries
    larger = max(float(seen.redeliveries), modelled)
    apart = abs(modelled - seen.redeliveries) / larger if larger else 0.0
    low, high = today.redeliveries_between
    inside = low - 1 < seen.redeliveries < high + 1
    told = None if inside or apart <= MOST_APART else _why_apart(seen, modelled, today.workers)
    return Account(
        redeliveries=seen.redeliveries,
        modelled=modelled,
        never_done=today.given_up,
        apart=apart,
        between=(low, high),
        workers=today.workers,
        because=told,
    )


def _why_apart(seen: Seen, modelled: float, workers: int | None) -> str:
    """Return which assumption of the model the log does not bear out."""
    if modelled > seen.redeliveries and workers is not None:
        return (
            f"the model has {workers:,} workers, all leases of this timeout, and lapsed leases "
            "are retaken as soon as a worker is free; in the log leases had other lengths or "
            "were renewed, or there were fewer workers"
        )
    if modelled > seen.redeliveries and seen.late_accepted:
        return (
            "the model assumes that a lapsed lease is retaken immediately, but that needs a free "
            f"worker: in the log {seen.late_accepted:,} completions of lapsed leases were accepted "
            "because no worker had received the message again"
        )
    if modelled > seen.redeliveries:
        return (
            "the model assumes that all leases had this timeout and were retaken immediately; in "
            "the "
            "log leases had other lengths or were renewed, or lapsed ones waited for a worker"
        )
    if seen.failed or seen.session_lost:
        return (
            "the model includes only redeliveries after a lapse or a death; in the log "
            f"{seen.failed:,} attempts failed and were released, and {seen.session_lost:,} ended "
            "with their session"
        )
    return (
        "the model assumes that all leases had this timeout and each worker took one message at a "
        "time; in the log leases were shorter, or messages waited in the worker before processing"
    )


def seen_of(works: Sequence[Work]) -> Seen:
    """Add up what the log shows of some kinds of work."""
    done = [each.done for each in works]
    return Seen(
        worst_hidden_s=max((each.worst_hidden_s for each in works), default=0.0),
        done=None if None in done else sum(filter(None, done)),
        **{
            name: sum(getattr(each, name) for each in works)
            for name in Seen.__dataclass_fields__
            if name not in {"worst_hidden_s", "done"}
        },
    )


def today_of(queue: QueueSummary, asked: Asked, kind: str | None = None) -> float | None:
    """Return the timeout in force: as set, or else the lease that was usual at the end of the log.

    One that adapts has had many lengths, and the one that was used most may be long gone.

    Args:
        queue: Its summary.
        asked: With the timeouts that are set.
        kind: The message type, which may have a timeout of its own; None for the queue.
    """
    known = asked.today.get(queue.queue)
    if known is not None:
        return float(known.lease_s if kind is None else known.by_type.get(kind, known.lease_s))
    newest = [
        (each.newest_hour, each.deliveries, each.newest_lease_s)
        for each in queue.works
        if each.newest_lease_s is not None
    ]
    return max(newest)[2] if newest else _usual_of(queue)


def _usual_of(queue: QueueSummary) -> float | None:
    usual = [
        (each.deliveries, each.usual_lease_s)
        for each in queue.works
        if each.usual_lease_s is not None
    ]
    return max(usual)[1] if usual else None


def renews_of(queue: QueueSummary, asked: Asked, works: Sequence[Work] | None = None) -> bool:
    """Tell whether workers renew their leases.

    Only attempts that outlasted the lease they began with can tell: whoever renews as late as
    possible seldom has to. If there are hardly any, those of the whole queue tell. If there are
    none there either, workers whose leases begin with the first lease that was advised go by that
    advice.

    Args:
        queue: Its summary.
        asked: With what was advised.
        works: Only these kinds of work; None for all.
    """
    for each in (queue.works if works is None else works, queue.works):
        told = _renewing(each)
        if told is not None:
            return told
    known, usual = asked.today.get(queue.queue), _usual_of(queue)
    if known is None or known.first_lease_s is None or usual is None:
        return False
    # Where the timeout is just as long, it need not have been the advice.
    return abs(usual - known.first_lease_s) < 1 <= abs(usual - known.lease_s)


def _renewing(works: Sequence[Work]) -> bool | None:
    renewed = sum(each.renewed for each in works)
    over = 0.0
    for each in works:
        # The dead renew nothing, and say nothing of what the living do.
        over += max(0.0, unrenewed_of(each) - max(0.0, each.crashes - each.session_lost))
    if renewed + over < _LEAST_OUTLASTED:
        return None
    return renewed > _RENEWING * (renewed + over)


def recommend(queue: QueueSummary, asked: Asked, only: Work | None = None) -> Recommendation:
    """Recommend a timeout for a queue, or for one type of its messages.

    Args:
        queue: Its summary.
        asked: What to weigh.
        only: The type; None for all together, those left out that have a timeout of their own. How
            often workers die is taken from the whole queue in any case, for its types share them.
    """
    works = _sharing(queue, asked) if only is None else (only,)
    whole, part = together(queue.works), together(works)
    lengths = Lengths.OF_MESSAGE if repeats_are_alike(part.repeats) else Lengths.OF_ATTEMPT
    kind = None if only is None else only.message_type
    today_s = today_of(queue, asked, kind)
    seen = seen_of(queue.works if only is None else works)
    renews = renews_of(queue, asked, works)
    question = asked.question(None if renews else today_s, lengths)
    change = drift_of(part.bins)
    advice = advise(
        aged(part.bins, changed=change),
        crashes=whole.crashes,
        silent=whole.silent,
        work_s=whole.work_s,
        given_up=part.given_up,
        question=question,
    )
    keeps = renews and today_s is not None
    known = Recommendation(
        queue=queue.queue,
        message_type=kind,
        of_queue=only is None,
        basis=advice.basis,
        because=advice.because if change is None else f"{advice.because}; {change.told()}",
        today_s=today_s,
        # A timeout without renewal is many times the first lease of workers that do renew, and
        # would hide the messages of those that die for as long.
        timeout_s=max(1, round(today_s)) if keeps and today_s is not None else advice.timeout_s,
        wanted_s=advice.wanted_s,
        observed=count_of(part.bins),
        finished=advice.finished,
        censored=advice.censored,
        crash_every_s=1 / advice.crash_rate,
        promise=f"not enough data yet: {advice.finished:,.0f} attempts have finished"
        if advice.promise is None
        else advice.promise.told(),
        change=change,
        renews=renews,
        seen=seen,
    )
    if advice.model is None:
        return known
    played = queue if asked.is_played and only is None and works is queue.works else None
    log = _Log(works, question, played, asked.today.get(queue.queue))
    return _with_model(known, advice, advice.model, log)


class _Log(NamedTuple):
    """What choices are weighed for."""

    works: Sequence[Work]
    question: Question
    played: QueueSummary | None
    """The queue that is played; None: what its messages would have met is calculated."""
    today: Today | None

    def handling(self, timeout_s: float) -> Handling:
        """Return how messages are leased with a timeout, all else as it is."""
        growth, known = self.question.growth, self.today or Today(visibility_timeout_s=0, lease_s=0)
        return Handling(
            timeout_s=timeout_s,
            growth=growth.factor,
            timeout_cap_s=growth.cap_s,
            lapsed_receipts=known.lapsed,
            max_deliveries=known.max_deliveries,
        )


def _sharing(queue: QueueSummary, asked: Asked) -> tuple[Work, ...]:
    """Return the work that goes by the timeout of the queue; all of it if there is no other."""
    known = asked.today.get(queue.queue)
    if known is None or not known.by_type:
        return queue.works
    shared = [each for each in queue.works if each.message_type not in known.by_type]
    return tuple(shared) or queue.works


def _with_model(
    known: Recommendation, advice: Advice, model: DurationModel, log: _Log
) -> Recommendation:
    plan = advice.renewal
    choices = _choices(known, advice, model, log)
    return replace(
        known,
        because=_with_uncertainty(known.because, choices, model.mean_s),
        mean_s=model.mean_s,
        median_s=model.quantile(0.5),
        p99_s=model.quantile(0.99),
        as_good_s=advice.as_good_s,
        longest_s=advice.longest_s,
        renewal=None if plan is None else Plan.of(plan),
        batch=advice.batch,
        promise_s=None if advice.promise is None else advice.promise.timeout_s,
        glue_s=model.glue_s,
        curve=tuple(
            CostPoint(each.timeout_s, max(0.0, each.cost - model.mean_s))
            for each in advice.curve
            if math.isfinite(each.cost)
        ),
        survival=survival_of(model),
        choices=choices,
    )


def _with_uncertainty(because: str, choices: Iterable[WhatIf], mean_s: float) -> str:
    """Return the reasons, and how uncertain the cost is if the data are thin for it."""
    for each in choices:
        if each.name == "advice" and each.cost_between is not None:
            low, high = each.cost_between
            if high - low > 2 * SURE * (each.cost + mean_s):
                return (
                    f"{because}; the data are thin for what it costs: {low:,.3g} s to {high:,.3g} s"
                )
    return because


def survival_of(model: DurationModel) -> tuple[SurvivalPoint, ...]:
    """Return the survival curve with its band up to the glue point, and the tail beyond it."""
    curve, glue = model.curve, model.glue_s
    if curve is None or glue is None or not len(curve.times):
        return ()
    low, high = curve.band(0.95)
    inside = np.flatnonzero(curve.times <= glue)
    if len(inside) > _MOST_POINTS:
        # Even in the share, not in the time: where it is steep there is most to see.
        wanted = np.linspace(0, len(inside) - 1, _MOST_POINTS).astype(int)
        inside = inside[wanted]
    points = [
        SurvivalPoint(
            float(curve.times[each]),
            float(curve.survival[each]),
            float(low[each]),
            float(high[each]),
        )
        for each in inside
    ]
    beyond = model.seconds[model.seconds > glue]
    for seconds in beyond:
        share = model.tail(float(seconds))
        if share < _LEAST_SHARE:
            break
        points.append(SurvivalPoint(float(seconds), share, share, share))
    return tuple(points)


def _choices(
    known: Recommendation, advice: Advice, model: DurationModel, log: _Log
) -> tuple[WhatIf, ...]:
    question = log.question
    bins = together(log.works).bins
    if known.renews:
        # What the log shows was not done with such timeouts, so nothing here is called today's.
        named = {"best without renewal": advice.wanted_s}
        if known.today_s is not None:
            named["today's lease, never renewed"] = known.today_s
    else:
        named = {"advice": float(advice.timeout_s)}
        if abs(advice.wanted_s - advice.timeout_s) >= 1:
            named["best, if set at once"] = advice.wanted_s
        if known.today_s is not None:
            named["today"] = known.today_s
    naive = naive_choices(bins, DEFAULT_TIMEOUT_S)
    named |= naive
    # The week as it was, old days counted in full; what is weighed is the work as it is now.
    week = fit(sample_of(bins))
    messages, rate = count_of(bins), advice.crash_rate
    # As they are, also where the bounds would not allow them: they are shown, and not set.
    timeouts = np.array(list(named.values()))
    costs = price(model, timeouts, rate, question) - model.mean_s
    found = [
        without_renewal(
            week,
            name=name,
            timeout_s=float(timeout),
            messages=messages,
            crash_rate=rate,
            growth=question.growth,
            cost=max(0.0, float(cost)),
        )
        for name, timeout, cost in zip(named, timeouts, costs, strict=True)
    ]
    assert advice.evidence is not None
    of_week = advice.evidence._replace(attempts=messages)
    worlds = list(advice.evidence.worlds(model))
    for place, each in enumerate(found[: len(found) - len(naive)]):
        at = np.array([each.timeout_s])
        beyond = [price(one, at, of, question)[0] - one.mean_s for one, of in worlds]
        barred = replace(each, cost_between=_bar(np.maximum(0.0, beyond)))
        found[place] = _with_redeliveries(barred, week, of_week, log)
    if advice.renewal is not None:
        renewed = with_renewal(
            week,
            advice.renewal,
            name="renewal",
            messages=messages,
            crash_rate=rate,
            late_share=question.prices.late_renewal,
        )
        found.insert(0 if known.renews else 1, renewed)
    return tuple(found)


def _bar(values: Floats) -> tuple[float, float]:
    low, high = np.quantile(values, BAR)
    return float(low), float(high)


def _with_redeliveries(known: WhatIf, week: DurationModel, of_week: Evidence, log: _Log) -> WhatIf:
    """Return a choice with the error bar of its redeliveries.

    They are played with the workers, the backlog and the rule for lapsed receipts, if those are
    known. Plays that are further apart than what they come to say less than the calculation.
    """
    messages, played = of_week.attempts, None
    if log.played is not None and known.name in _PLAYED:
        played = replay(log.played, week, of_week, log.handling(known.timeout_s))
    if played is None or played.high - played.low > played.per_message:
        again = [
            messages * redeliveries_of(each, known.timeout_s, rate, log.question.growth)
            for each, rate in of_week.worlds(week)
        ]
        return replace(known, redeliveries_between=_bar(np.array(again)))
    return replace(
        known,
        redeliveries=messages * played.per_message,
        redeliveries_between=(messages * played.low, messages * played.high),
        workers=played.workers,
    )


# --- whatif ------------------------------------------------------------------------------------
#
# What the messages of a log would have met with another timeout. Counted, not drawn.


_EPSILON: Final = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """What a choice would have meant. Counts are expected values, lengths seconds."""

    name: str
    timeout_s: float
    """Or the first lease, where leases are renewed."""
    cost: float
    """Per message, beyond the work itself, in seconds of waiting; what is weighed."""
    redeliveries: float
    """Deliveries that are not a message's first, those after the death of a worker included."""
    wasted_work_s: float
    """Work done twice: what was completed when another worker had the message already."""
    given_up: float
    """Messages whose work never fits into a lease."""
    worst_recovery_s: float
    """How long a message stays hidden at most after its worker died at its first delivery."""
    mean_recovery_s: float
    renewals: float = 0.0
    cost_between: tuple[float, float] | None = None
    """Error bar of 90 %; None for what is not advised and not in force."""
    redeliveries_between: tuple[float, float] = (0.0, 0.0)
    workers: int | None = None
    """With so many the log was played; None: calculated, with workers who are always free."""


def deliveries_needed(lengths_s: Floats, timeout_s: float, growth: Growth) -> Floats:
    """Return the delivery at which work of these lengths fits; infinite if at none."""
    needed = np.full(len(lengths_s), math.inf)
    for delivery in range(growth.tries, 0, -1):
        lease_s = min(growth.cap_s, timeout_s * growth.factor ** (delivery - 1))
        needed[lengths_s <= lease_s] = delivery
    return needed


def redeliveries_of(
    model: DurationModel, timeout_s: float, crash_rate: float, growth: Growth
) -> float:
    """Return how often a message is delivered again on average, workers being free at any time."""
    needed = np.minimum(deliveries_needed(model.seconds, timeout_s, growth), growth.tries)
    died = -np.expm1(-crash_rate * model.seconds)
    return float((needed - 1 + died) @ model.chance)


def without_renewal(  # noqa: PLR0913 - keyword-only, and each says something else
    model: DurationModel,
    *,
    name: str,
    timeout_s: float,
    messages: float,
    crash_rate: float,
    growth: Growth,
    cost: float,
) -> WhatIf:
    """Count what a visibility timeout would have meant.

    A lease that ends before the work does is taken to end in a redelivery at once, as it does while
    workers are idle, and the whole work to be done each time.

    Args:
        model: How long the work took; each possible length with its share of the messages.
        name: Of the choice.
        timeout_s: Of a first delivery, seconds.
        messages: How many there were.
        crash_rate: Crashes per second of work.
        growth: Of the timeout with deliveries, and after how many a message is given up.
        cost: Per message, beyond the work.
    """
    x, p = model.seconds, model.chance
    needed = deliveries_needed(x, timeout_s, growth)
    never = np.isinf(needed)
    tries = np.where(never, growth.tries, needed)
    wasted = float((np.where(never, tries, tries - 1) * x * p).sum())
    seen = np.minimum(x, timeout_s)
    return WhatIf(
        name=name,
        timeout_s=timeout_s,
        cost=cost,
        redeliveries=messages * redeliveries_of(model, timeout_s, crash_rate, growth),
        wasted_work_s=messages * wasted,
        given_up=messages * float(p[never].sum()),
        worst_recovery_s=timeout_s,
        mean_recovery_s=_mean_left(seen, p, timeout_s),
    )


def with_renewal(  # noqa: PLR0913 - keyword-only, and each says something else
    model: DurationModel,
    plan: RenewalPlan,
    *,
    name: str,
    messages: float,
    crash_rate: float,
    late_share: float = 0.0,
) -> WhatIf:
    """Count the same for leases that are renewed by a plan.

    Args:
        model: How long the work took.
        plan: When leases are renewed.
        name: Of the choice.
        messages: How many there were.
        crash_rate: Crashes per second of work.
        late_share: Chance that a renewal comes too late, so that the work is done twice.
    """
    x, p = model.seconds, model.chance
    start = plan.first_renewal_s
    # While the first lease runs, a death at u leaves first - u; later on half a period and a guard.
    before, beyond = np.minimum(x, start), np.maximum(x - start, 0.0)
    hidden = before * plan.first_s - before**2 / 2
    hidden += beyond * (plan.lease_s - plan.every_s / 2)
    sent = np.ceil(beyond / plan.every_s)
    died = float((-np.expm1(-crash_rate * x) * p).sum())
    return WhatIf(
        name=name,
        timeout_s=plan.first_s,
        cost=plan.cost,
        redeliveries=messages * (died + late_share * float(sent @ p)),
        wasted_work_s=messages * late_share * float((sent * x) @ p),
        given_up=0.0,
        worst_recovery_s=max(plan.first_s, plan.lease_s),
        mean_recovery_s=float((hidden * p).sum() / max(_EPSILON, float((x * p).sum()))),
        renewals=messages * plan.renewals_per_attempt,
    )


def _mean_left(seen: Floats, chance: Floats, timeout_s: float) -> float:
    """Return how much of a lease is left on average when a worker dies, at any moment of work."""
    worked = float((seen * chance).sum())
    return timeout_s - float((seen**2 * chance).sum()) / (2 * max(_EPSILON, worked))


# --- asking ------------------------------------------------------------------------------------
#
# What an analysis depends on besides the log.


@dataclass(frozen=True, slots=True, kw_only=True)
class Today:
    """How a queue is set today."""

    visibility_timeout_s: int
    """As set, seconds."""
    lease_s: int
    """In force: the same, or what the server's adaptive mode has chosen."""
    adaptive: tuple[int, int] | None = None
    """Floor and cap of the adaptive mode, seconds; None if it is off."""
    first_lease_s: int | None = None
    """The first lease that workers were advised to take; None without such advice."""
    lapsed: LapsedReceipts = LapsedReceipts.UNTIL_RETAKEN
    """What a receipt is worth when its lease is over."""
    max_deliveries: int | None = None
    """After which a message is given up; None for never."""
    by_type: Mapping[str, int] = field(default_factory=dict)
    """Leases in force, in seconds, of those message types that have a timeout of their own."""


def today_in(settings: QueueSettings, kinds: Iterable[str | None]) -> Today:
    """Return how a queue is set, and the types among *kinds* that have timeouts of their own."""
    adaptive, advised, policy = settings.adaptive, settings.advised, settings.failure_policy
    in_force = {kind: settings.timeout_of(kind, None) for kind in kinds if kind is not None}
    return Today(
        visibility_timeout_s=settings.visibility_timeout_s,
        lease_s=settings.lease_s(),
        adaptive=None if adaptive is None else (adaptive.floor_s, adaptive.cap_s),
        first_lease_s=None if advised is None else advised.first_lease_s,
        lapsed=settings.lapsed_receipts,
        max_deliveries=None if policy is None else policy.max_deliveries,
        by_type={
            kind: each.visibility_timeout_s
            for kind, each in in_force.items()
            if each.source is TimeoutSource.TYPE
        },
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What to weigh, and within which bounds."""

    prices: Prices = field(default_factory=Prices)
    bounds: Bounds = field(default_factory=Bounds)
    growth: Growth = FIXED
    """The server gives each delivery the same timeout, so that is what is weighed unless told."""
    guard_s: float = 5.0
    """How long before its end a lease is renewed."""
    late_share: float = 0.01
    """For the promise: share of the messages that may be worked on twice."""
    confidence: float = 0.95
    today: Mapping[str, Today] = field(default_factory=dict)
    """By queue; one that is missing is taken to have the lease that is usual in the log."""
    is_played: bool = False
    """Whether redeliveries are played with the workers and the backlog of the log, where it tells
    them; a second for each queue."""
    at_once: bool = False
    """Whether to go to the best timeout at once, and not by half or twice at most."""

    def question(self, today_s: float | None, lengths: Lengths) -> Question:
        """Return it as :func:`leasehold.advisor.advise` takes it.

        Args:
            today_s: The timeout in force; None if there is none.
            lengths: To what the length of work belongs.
        """
        step = None if today_s is None or self.at_once else max(1, round(today_s))
        return Question(
            prices=self.prices,
            bounds=self.bounds,
            today_s=step,
            in_force_s=today_s,
            growth=self.growth,
            lengths=lengths,
            guard_s=self.guard_s,
            late_share=self.late_share,
            confidence=self.confidence,
            # Bins are in no order; their weights say how old they are.
            half_life=None,
        )
