"""Everything that a log tells, in figures and in sentences."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

import numpy as np

from leasehold.advisor import Lengths, Question
from leasehold.advisor.advice import price, timeout_grid
from leasehold.advisor.attempts import Floats
from leasehold.advisor.costs import plan_renewal
from leasehold.advisor.forecast import Forecast, forecast
from leasehold.advisor.recommendation import Asked, Recommendation, recommend, without_renewal
from leasehold.advisor.rules import ENOUGH_FINISHED
from leasehold.advisor.statistics import DurationModel, crash_rate, fit
from leasehold.advisor.summaries import (
    Groups,
    Hour,
    LogSummary,
    PoisonCluster,
    QueueSummary,
    Timeline,
    Work,
    Worker,
    count_of,
    folded,
    sample_of,
    together,
)
from leasehold.domain.queue_settings import POISON_SUFFIX
from leasehold.domain.wording import time_of

_DAY_MS: Final = 86_400_000
_LIKELY: Final = 0.05
"""A chance that messages expire which is worth telling."""
_LATE_SHARE: Final = 0.01
_WASTED: Final = 0.05
_MOST_CLUSTERS: Final = 3
_GAIN: Final = 0.03
_EVEN: Final = 0.9
"""Jain's index of message groups from which on they count as served alike."""


class Weight(StrEnum):
    """How much a finding asks for."""

    ACT = "act"
    """Something is wrong or about to be."""
    LOOK = "look"
    """Worth a look."""
    NOTE = "note"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing to know, as a sentence."""

    weight: Weight
    kind: str
    """``timeout``, ``data``, ``drift``, ``waste``, ``split``, ``backlog``, ``poison``, ``worker``,
    ``group`` or ``repeats``."""
    queue: str
    message_type: str | None
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueFindings:
    """What there is to know of one queue."""

    queue: str
    whole: Recommendation
    types: tuple[Recommendation, ...]
    """By type, those with most messages first, up to MOST_TYPES; empty if there is but one."""
    split: Split | None
    forecast: Forecast
    poison: tuple[PoisonCluster, ...]
    workers: tuple[Standing, ...]
    groups: Groups | None
    timelines: tuple[Timeline, ...]
    hours: tuple[Hour, ...]
    findings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """What there is to know of a log."""

    source: str
    since_ms: int
    until_ms: int
    events: int
    queues: tuple[QueueFindings, ...]


def analyze(
    summary: LogSummary,
    asked: Asked | None = None,
    on_queue: Callable[[str], object] = lambda _: None,
) -> Findings:
    """Find out what a log tells.

    Args:
        summary: Of the log.
        asked: What to weigh; None for the defaults.
        on_queue: Called with the name of each queue before it is looked at.
    """
    wanted = replace(asked or Asked(), is_played=True)
    found = []
    for each in summary.queues:
        on_queue(each.queue)
        few = replace(each, works=folded(each.works))
        is_poison = is_poison_queue(each.queue)
        found.append(_queue(few, summary.until_ms, wanted, is_poison=is_poison))
    return Findings(
        source=summary.source,
        since_ms=summary.since_ms,
        until_ms=summary.until_ms,
        events=summary.events,
        queues=tuple(found),
    )


def is_poison_queue(name: str) -> bool:
    """Tell whether a queue is one to which others give messages up, by its name.

    Messages wait there until an operator looks at them: that they do is no emergency.
    """
    return name.endswith(POISON_SUFFIX)


def _queue(
    queue: QueueSummary, until_ms: int, asked: Asked, *, is_poison: bool = False
) -> QueueFindings:
    whole = recommend(queue, asked)
    types: tuple[Recommendation, ...] = ()
    if len(queue.works) > 1:
        order = sorted(queue.works, key=lambda each: (-each.messages, each.message_type or ""))
        types = tuple(recommend(queue, asked, each) for each in order)
    parted = split(queue, asked)
    ahead = forecast(queue, until_ms)
    ranked = standings(queue.queue, queue.workers)
    findings = [
        *_of_timeout(whole),
        *_of_work(whole, types),
        *_of_split(parted),
        *(_of_set_aside(queue) if is_poison else _of_backlog(queue, ahead, until_ms)),
        *_of_poison(queue, until_ms),
        *_of_workers(ranked),
        *_of_groups(queue),
    ]
    order_of = list(Weight)
    findings.sort(key=lambda each: order_of.index(each.weight))
    return QueueFindings(
        queue=queue.queue,
        whole=whole,
        types=types,
        split=parted,
        forecast=ahead,
        poison=queue.poison,
        workers=ranked,
        groups=queue.groups,
        timelines=queue.timelines,
        hours=queue.hours,
        findings=tuple(findings),
    )


def _of_timeout(whole: Recommendation) -> Iterator[Finding]:
    queue = whole.queue
    if not whole.is_enough:
        sentence = f"Not enough data yet to recommend a timeout: {whole.because}."
        yield _found(Weight.NOTE, "data", queue, sentence)
        return
    today, advice = whole.choice("today"), whole.choice("advice")
    if whole.renews:
        plan = whole.renewal
        if plan is not None:
            yield _found(
                Weight.NOTE,
                "timeout",
                queue,
                f"Its workers renew: a first lease of {plan.first_s:.0f} s, renewed every "
                f"{plan.every_s:.0f} s from {plan.first_s - plan.guard_s:.0f} s on, costs least.",
            )
        return
    if today is None or advice is None or whole.timeout_s == whole.today_s:
        return
    gain = 1 - advice.cost / today.cost if today.cost > 0 else 0.0
    word = "Lengthen" if whole.timeout_s > today.timeout_s else "Shorten"
    is_best = abs(whole.wanted_s - whole.timeout_s) < 1
    step = "" if is_best else f" (the best is {whole.wanted_s:,.0f} s)"
    weight = Weight.ACT if whole.timeout_s > today.timeout_s and gain > _GAIN else Weight.LOOK
    yield _found(
        weight,
        "timeout",
        queue,
        f"{word} the visibility timeout from {today.timeout_s:,.0f} s to {whole.timeout_s:,} s"
        f"{step}. In the log {_seen_told(whole)}. According to the model, for the same messages "
        f"it changes redeliveries from {today.redeliveries:,.0f} to {advice.redeliveries:,.0f}, "
        "repeated "
        f"work from {today.wasted_work_s:,.0f} s to {advice.wasted_work_s:,.0f} s, and the worst "
        f"recovery from {today.worst_recovery_s:,.0f} s to {advice.worst_recovery_s:,.0f} s."
        f"{_apart_told(whole)}",
    )


def _seen_told(whole: Recommendation) -> str:
    """Return what the log itself shows of redeliveries, and of what became of messages."""
    seen = whole.seen
    told = f"there were {seen.redeliveries:,} redeliveries"
    if seen.done is not None:
        told += f", {seen.done:,} of {seen.messages:,} messages were done"
    return f"{told}, and {seen.set_aside:,} went to the poison queue" if seen.set_aside else told


def _apart_told(whole: Recommendation) -> str:
    account = whole.account
    if account is None or account.because is None:
        return ""
    return (
        f" Log and model differ by {account.apart:.0%} for the current timeout: {account.because}."
    )


def _of_work(whole: Recommendation, types: tuple[Recommendation, ...]) -> Iterator[Finding]:
    for each in types or (whole,):
        if each.change is not None:
            told = each.change.told()
            sentence = f"{told[:1].upper()}{told[1:]}."
            yield _found(Weight.LOOK, "drift", each.queue, sentence, each.message_type)
    seen = whole.seen
    done = seen.completed + seen.late
    if done and seen.late > _LATE_SHARE * done:
        yield _found(
            Weight.ACT,
            "waste",
            whole.queue,
            f"{seen.late:,} of {done:,} completions arrived after the end of the lease "
            f"({seen.late / done:.1%}).",
        )
    if seen.work_s and seen.wasted_work_s > _WASTED * seen.work_s:
        yield _found(
            Weight.LOOK,
            "waste",
            whole.queue,
            f"{seen.wasted_work_s / seen.work_s:.0%} of the work was wasted.",
        )


def _of_split(parted: Split | None) -> Iterator[Finding]:
    if parted is not None and parted.is_worth_it:
        yield _found(Weight.LOOK, "split", parted.queue, _sentence(parted.because))


def _of_backlog(queue: QueueSummary, ahead: Forecast, until_ms: int) -> Iterator[Finding]:
    if not ahead.is_enough:
        if ahead.backlog:
            yield _found(
                Weight.NOTE, "backlog", queue.queue, f"No forecast of the backlog: {ahead.because}."
            )
        return
    if ahead.expiry_chance >= _LIKELY and ahead.expires_from_ms is not None:
        yield _found(
            Weight.ACT,
            "backlog",
            queue.queue,
            f"Messages will start to expire around {time_of(ahead.expires_from_ms)}, with a chance "
            f"of {ahead.expiry_chance:.0%}.{_drain(ahead)}",
        )
    elif ahead.put_per_h > ahead.capacity_per_h and ahead.points[-1].low > ahead.backlog:
        yield _found(
            Weight.ACT,
            "backlog",
            queue.queue,
            f"The backlog grows: {ahead.put_per_h:,.0f} messages arrive per hour, and "
            f"{ahead.capacity_per_h:,.0f} can be completed.{_drain(ahead)}",
        )
    lost = sum(each.expired for each in queue.hours if each.start_ms >= until_ms - _DAY_MS)
    if lost:
        sentence = f"{lost:,} messages expired in the last day without being completed."
        yield _found(Weight.ACT, "backlog", queue.queue, sentence)


def _of_set_aside(queue: QueueSummary) -> Iterator[Finding]:
    if queue.open_messages:
        many = f"{queue.open_messages:,} message{'s' if queue.open_messages > 1 else ''}"
        verb = "wait" if queue.open_messages > 1 else "waits"
        expiry = ""
        if queue.next_expiry_ms is not None:
            expiry = f"; the first expires at {time_of(queue.next_expiry_ms)}"
        sentence = f"{many} {verb} in this poison queue to be inspected or redriven{expiry}."
        yield _found(Weight.LOOK, "poison", queue.queue, sentence)


def _drain(ahead: Forecast) -> str:
    if not ahead.drains or ahead.busy_workers is None:
        return ""
    told = ", ".join(f"{each.workers:,} in {each.hours:.0f} h" for each in ahead.drains)
    return f" Workers needed to drain it: {told}; {ahead.busy_workers:,.1f} are busy today."


def _of_poison(queue: QueueSummary, until_ms: int) -> Iterator[Finding]:
    total = sum(each.count for each in queue.poison)
    # In a log of a day all of it is of the last day.
    begins_ms = min((each.start_ms for each in queue.hours), default=until_ms)
    is_long = begins_ms < until_ms - _DAY_MS
    for each in queue.poison[:_MOST_CLUSTERS]:
        new = is_long and each.first_ms >= until_ms - _DAY_MS
        name = each.error_type or "no known error"
        kind = "" if each.message_type is None else f" of the type {each.message_type}"
        since = "new, since" if new else "since"
        yield _found(
            Weight.ACT if new else Weight.LOOK,
            "poison",
            queue.queue,
            f"{each.count:,} of {total:,} messages that were given up{kind}: {name}, {since} "
            f"{time_of(each.first_ms)}.",
            each.message_type,
        )


def _of_workers(ranked: tuple[Standing, ...]) -> Iterator[Finding]:
    for each in ranked:
        if each.strikes:
            told = "; ".join(each.strikes)
            yield _found(Weight.LOOK, "worker", each.queue, f"Worker {each.worker.holder}: {told}.")


def _of_groups(queue: QueueSummary) -> Iterator[Finding]:
    """Say where groups are at the cost of others."""
    groups = queue.groups
    if groups is None or groups.fairness is None or groups.fairness >= _EVEN:
        return
    dwells = [each for each in groups.largest if each.dwell_p50_s is not None]
    told = ""
    if len(dwells) > 1:
        slowest = max(dwells, key=lambda each: each.dwell_p50_s or 0.0)
        busiest = max(groups.largest, key=lambda each: each.work_s)
        share = busiest.work_s / (sum(each.work_s for each in groups.largest) or 1.0)
        told = (
            f" Half of the messages of {slowest.group_id} waited {slowest.dwell_p50_s:,.3g} s; "
            f"{busiest.group_id} had {share:.0%} of the work."
        )
    yield _found(
        Weight.LOOK,
        "group",
        queue.queue,
        f"Message groups that waited at the same time were not served equally: Jain's index is "
        f"{groups.fairness:.2f}, where 1 is equal.{told} Enable fair turns (groups.fair).",
    )


def _found(
    weight: Weight, kind: str, queue: str, sentence: str, message_type: str | None = None
) -> Finding:
    return Finding(
        weight=weight, kind=kind, queue=queue, message_type=message_type, sentence=sentence
    )


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + "."


# --- league ------------------------------------------------------------------------------------
#
# Workers beside each other: who is slow, who loses leases, who fails.


LEAST_ATTEMPTS: Final = 20
"""Of fewer, nothing is said."""
ALARM: Final = 4.0
"""Standard errors that a share must be above that of the others: by chance one in 30,000 is."""
TIMES: Final = 2.0
"""...and so many times it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """One worker."""

    queue: str
    worker: Worker
    per_h: float
    """Attempts per hour between the first and the last."""
    bad_share: float
    """Of its attempts: late, lapsed, failed or lost with its session."""
    strikes: tuple[str, ...]
    """What sets it apart from the others, as sentences; empty for nothing."""


def standings(queue: str, workers: Sequence[Worker]) -> tuple[Standing, ...]:
    """Compare the workers of a queue, those with most attempts first.

    A share is told of as high if it is more than twice that of all the others together and four
    standard errors above it (a test of two proportions); a median as long if it is more than twice
    the median of all medians.
    """
    medians = [
        each.p50_s
        for each in workers
        if each.p50_s is not None and each.completed >= LEAST_ATTEMPTS
    ]
    usual_s = float(np.median(medians)) if len(medians) > 2 else None  # noqa: PLR2004 - has a middle
    ranked = sorted(workers, key=lambda each: (-each.attempts, each.holder))
    return tuple(_standing(queue, each, ranked, usual_s) for each in ranked)


def _standing(
    queue: str, worker: Worker, workers: Sequence[Worker], usual_s: float | None
) -> Standing:
    strikes = [
        f"{_share(worker, kind):.1%} {word}, the others {_others(worker, workers, kind):.1%}"
        for kind, word in _KINDS.items()
        if _stands_out(worker, workers, kind)
    ]
    slow = (
        usual_s
        and worker.p50_s is not None
        and worker.completed >= LEAST_ATTEMPTS
        and worker.p50_s > TIMES * usual_s
    )
    if slow:
        strikes.append(f"half of its work takes {worker.p50_s:.3g} s, the others' {usual_s:.3g} s")
    hours = max(worker.last_seen_ms - worker.first_seen_ms, 1) / 3_600_000
    return Standing(
        queue=queue,
        worker=worker,
        per_h=worker.attempts / max(hours, 1 / 60),
        bad_share=sum(getattr(worker, kind) for kind in _KINDS) / max(1, worker.attempts),
        strikes=tuple(strikes),
    )


_KINDS: Final = {
    "late": "late",
    "lapsed": "lapsed",
    "failed": "failed",
    "lost": "lost with the worker's session",
}


def _share(worker: Worker, kind: str) -> float:
    return float(getattr(worker, kind)) / max(1, worker.attempts)


def _others(worker: Worker, workers: Sequence[Worker], kind: str) -> float:
    others = [each for each in workers if each is not worker]
    bad = sum(float(getattr(each, kind)) for each in others)
    return bad / max(1, sum(each.attempts for each in others))


def _stands_out(worker: Worker, workers: Sequence[Worker], kind: str) -> bool:
    """Test two proportions: a worker's and that of all the others."""
    others = sum(each.attempts for each in workers) - worker.attempts
    if worker.attempts < LEAST_ATTEMPTS or others < LEAST_ATTEMPTS:
        return False
    own, rest = _share(worker, kind), _others(worker, workers, kind)
    pooled = (own * worker.attempts + rest * others) / (worker.attempts + others)
    error = math.sqrt(pooled * (1 - pooled) * (1 / worker.attempts + 1 / others))
    return error > 0 and own > TIMES * rest and (own - rest) / error > ALARM


# --- queues to be parted -----------------------------------------------------------------------
#
# Which types of messages deserve a queue of their own, and what that saves.
#
# A queue has one visibility timeout. If some of its messages take a second and others ten minutes,
# it is too long for the ones or too short for the others.


MOST_QUEUES: Final = 4
"""More than so many queues instead of one are not proposed."""
LEAST_SAVED: Final = 0.10
"""Share of what is lost today that one more queue has to save."""
LEAST_SAVED_S: Final = 0.01
"""Seconds of waiting per message that it has to save."""
_MOST_TYPES: Final = 40
"""Of more types, those with the fewest messages are not parted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One of the queues that would be."""

    types: tuple[str | None, ...]
    messages: float
    timeout_s: float
    """The best one for it."""
    cost: float
    """Per message of its own, beyond the work, in seconds of waiting."""
    redeliveries: float
    worst_recovery_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """What parting a queue by types would save."""

    queue: str
    is_worth_it: bool
    because: str
    now: Part
    """All together, with the timeout that is best for all."""
    parts: tuple[Part, ...]
    """The queues that would be, the quickest work first; one if it is not worth it."""
    saved_s: float
    """Per message of the whole queue, in seconds of waiting."""
    saved_share: float
    """Of what is lost beyond the work, 0 to 1."""
    with_renewal_cost: float | None
    """What lazy renewal would cost per message, all in one queue; None if leases are too short."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind:
    types: tuple[str | None, ...]
    messages: float
    model: DurationModel
    costs: Floats
    """Per message beyond the work, for each timeout that is tried."""


def split(queue: QueueSummary, asked: Asked) -> Split | None:
    """Find the best way to part a queue, or None if there is nothing to compare.

    The types are sorted by the timeout that is best for each alone. Neighbours go together; where
    to cut is found exactly, by dynamic programming. One more queue is proposed as long as it saves
    at least a tenth of what all in one queue lose.

    Args:
        queue: With at least two types, each with 30 finished observations or more; smaller ones are
            taken together.
        asked: What to weigh.
    """
    question = asked.question(None, Lengths.OF_MESSAGE)
    whole = together(queue.works)
    rate = crash_rate(whole.crashes, whole.work_s)
    grid = timeout_grid(asked.bounds.floor_s, asked.bounds.cap_s)
    kinds = [_kind(works, grid, rate, question) for works in _groups(queue.works)]
    if len(kinds) <= 1:
        return None
    kinds.sort(key=lambda each: int(each.costs.argmin()))
    ways = _cuts(kinds, min(MOST_QUEUES, len(kinds)))
    together_cost = ways[0][0]
    chosen = 0
    for place in range(1, len(ways)):
        saved = ways[chosen][0] - ways[place][0]
        if saved < max(LEAST_SAVED * together_cost, LEAST_SAVED_S):
            break
        chosen = place
    parts = tuple(_part(kinds[a:b], grid, rate, question) for a, b in ways[chosen][1])
    now = _part(kinds, grid, rate, question)
    saved_s = together_cost - ways[chosen][0]
    model = fit(sample_of(whole.bins))
    plan = plan_renewal(
        model,
        rate,
        asked.prices,
        guard_s=asked.guard_s,
        floor_s=float(asked.bounds.floor_s),
        cap_s=float(asked.bounds.cap_s),
    )
    renewed_cost = None if plan is None else plan.cost
    return Split(
        queue=queue.queue,
        is_worth_it=chosen > 0,
        because=_because(now, parts, saved_s, saved_s / max(together_cost, 1e-9), renewed_cost),
        now=now,
        parts=parts,
        saved_s=saved_s,
        saved_share=saved_s / max(together_cost, 1e-9),
        with_renewal_cost=renewed_cost,
    )


def _groups(works: Sequence[Work]) -> list[list[Work]]:
    """Part the types that are known well enough from the others, which stay together."""
    order = sorted(works, key=lambda each: -count_of(each.bins))
    known = [each for each in order if count_of(each.bins, finished=True) >= ENOUGH_FINISHED]
    known = known[:_MOST_TYPES]
    rest = [each for each in order if each not in known and each.bins]
    groups = [[each] for each in known]
    if sum(count_of(each.bins, finished=True) for each in rest) >= ENOUGH_FINISHED:
        groups.append(rest)
    elif rest and groups:
        groups[-1] += rest
    return groups


def _kind(works: list[Work], grid: Floats, rate: float, question: Question) -> _Kind:
    bins = together(works).bins
    model = fit(sample_of(bins))
    return _Kind(
        types=tuple(each.message_type for each in works),
        messages=count_of(bins),
        model=model,
        costs=np.maximum(0.0, price(model, grid, rate, question) - model.mean_s),
    )


def _cuts(kinds: list[_Kind], most: int) -> list[tuple[float, list[tuple[int, int]]]]:
    """Return for 1, 2, ... queues the least cost per message and which kinds share one."""
    many, total = len(kinds), sum(each.messages for each in kinds)
    sums = np.cumsum([each.messages * each.costs for each in kinds], axis=0)

    def cost(start: int, end: int) -> float:
        curve = sums[end - 1] - (sums[start - 1] if start else 0.0)
        return float(curve.min()) / total

    best = [cost(0, end) if end else 0.0 for end in range(many + 1)]
    cuts: list[list[tuple[int, int]]] = [[(0, end)] for end in range(many + 1)]
    found = [(best[many], cuts[many])]
    for _ in range(1, most):
        shorter, ways = best, cuts
        best, cuts = list(shorter), list(ways)
        for end in range(2, many + 1):
            for cut in range(1, end):
                value = shorter[cut] + cost(cut, end)
                if value < best[end]:
                    best[end], cuts[end] = value, [*ways[cut], (cut, end)]
        found.append((best[many], cuts[many]))
    return found


def _part(kinds: Sequence[_Kind], grid: Floats, rate: float, question: Question) -> Part:
    messages = sum(each.messages for each in kinds)
    costs = np.sum([each.messages * each.costs for each in kinds], axis=0) / messages
    place = int(costs.argmin())
    timeout = float(grid[place])
    told = [
        without_renewal(
            each.model,
            name="",
            timeout_s=timeout,
            messages=each.messages,
            crash_rate=rate,
            growth=question.growth,
            cost=0.0,
        )
        for each in kinds
    ]
    return Part(
        types=tuple(name for each in kinds for name in each.types),
        messages=messages,
        timeout_s=timeout,
        cost=float(costs[place]),
        redeliveries=sum(each.redeliveries for each in told),
        worst_recovery_s=timeout,
    )


def _because(
    now: Part, parts: tuple[Part, ...], saved_s: float, share: float, renewed_cost: float | None
) -> str:
    renewal = (
        "leases are too short to be renewed"
        if renewed_cost is None
        else f"with lazy renewal it loses {renewed_cost:.2g} s in one queue"
    )
    if len(parts) == 1:
        return (
            f"one queue is enough: another would save less than {LEAST_SAVED:.0%} of the "
            f"{now.cost:.2g} s that a message loses; {renewal}"
        )
    timeouts = ", ".join(f"{each.timeout_s:.3g} s" for each in parts)
    return (
        f"{len(parts)} queues with timeouts of {timeouts} instead of {now.timeout_s:.3g} s save "
        f"{saved_s:.2g} of the {now.cost:.2g} s that a message loses ({share:.0%}); {renewal}"
    )
