"""Which types of messages deserve a queue of their own, and what that saves.

A queue has one visibility timeout. If some of its messages take a second and others ten minutes, it
is too long for the ones or too short for the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from leasehold.advisor import Lengths, Question
from leasehold.advisor.advice import price, timeout_grid
from leasehold.advisor.attempts import Floats
from leasehold.advisor.costs import plan_renewal
from leasehold.advisor.recommendation import Asked, without_renewal
from leasehold.advisor.rules import ENOUGH_FINISHED
from leasehold.advisor.statistics import DurationModel, crash_rate, fit
from leasehold.advisor.summaries import QueueSummary, Work, count_of, sample_of, together

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
            f"one queue will do: another would save less than {LEAST_SAVED:.0%} of the "
            f"{now.cost:.2g} s that a message loses; {renewal}"
        )
    timeouts = ", ".join(f"{each.timeout_s:.3g} s" for each in parts)
    return (
        f"{len(parts)} queues with timeouts of {timeouts} in place of {now.timeout_s:.3g} s save "
        f"{saved_s:.2g} of the {now.cost:.2g} s that a message loses ({share:.0%}); {renewal}"
    )
