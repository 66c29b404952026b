"""What the messages of a log would have met with another timeout. Counted, not drawn."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from leasehold.tuning import Growth
from leasehold.tuning.attempts import Floats
from leasehold.tuning.model import DurationModel
from leasehold.tuning.renewal import RenewalPlan

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
    """Work done twice: what was completed when somebody else had the message already."""
    given_up: float
    """Messages whose work never fits into a lease."""
    worst_recovery_s: float
    """How long a message stays hidden at most after its worker died at its first delivery."""
    mean_recovery_s: float
    renewals: float = 0.0


def deliveries_needed(lengths_s: Floats, timeout_s: float, growth: Growth) -> Floats:
    """Return the delivery at which work of these lengths fits; infinite if at none."""
    needed = np.full(len(lengths_s), math.inf)
    for delivery in range(growth.tries, 0, -1):
        lease_s = min(growth.cap_s, timeout_s * growth.factor ** (delivery - 1))
        needed[lengths_s <= lease_s] = delivery
    return needed


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
    slow = float(((tries - 1) * p).sum())
    wasted = float((np.where(never, tries, tries - 1) * x * p).sum())
    seen = np.minimum(x, timeout_s)
    died = float((-np.expm1(-crash_rate * x) * p).sum())
    return WhatIf(
        name=name,
        timeout_s=timeout_s,
        cost=cost,
        redeliveries=messages * (slow + died),
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
