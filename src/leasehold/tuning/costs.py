"""What a visibility timeout costs, in seconds of delay.

Too long, and a crash hides a message for longer than need be. Too short, and work is done twice.
With a price for each the two add up, and the best timeout is where the sum is least. Everything is
counted in seconds of delay of one message; so the price of such a second is 1 unless told.

All functions take many timeouts at once and sum over the times of a
:class:`~leasehold.tuning.model.DurationModel`; nothing is sampled.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from leasehold.tuning.attempts import Floats
from leasehold.tuning.model import DurationModel

LEAST_DUPLICATE_S: Final = 60.0
WORK_PER_DUPLICATE: Final = 5.0
_NEVER: Final = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """What things cost, in seconds of delay of one message unless said otherwise."""

    delay: float = 1.0
    """One second of delay of one message (c_w); above 0."""
    duplicate: float | None = None
    """One piece of work done twice (c_d). None: 60, or five times the mean work if that is more."""
    renewal: float = 0.05
    """One renewal (c_h)."""
    dead: float = 3_600.0
    """A message that no attempt gets done."""
    late_renewal: float = 1e-4
    """Chance that a renewal comes too late, so that a duplicate follows (p); 0 to 1."""

    def duplicate_of(self, mean_s: float) -> float:
        """Return the price of a duplicate, for work of this mean length in seconds."""
        if self.duplicate is not None:
            return self.duplicate
        return max(LEAST_DUPLICATE_S, WORK_PER_DUPLICATE * mean_s)

    def renewal_of(self, mean_s: float) -> float:
        """Return the price of a renewal with the duplicate that it risks: ``c_h + p*c_d``."""
        return self.renewal + self.late_renewal * self.duplicate_of(mean_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """How the timeout of a message grows with its deliveries, without renewal."""

    factor: float = 2.0
    """Delivery k has ``timeout * factor**(k-1)``; 1 for a fixed one."""
    tries: int = 5
    """Deliveries before the message is given up, 1 or more."""
    cap_s: float = 604_800.0
    """Longest timeout."""


FIXED: Final = Growth(factor=1.0)
DOUBLING: Final = Growth()


def cost_redrawn(
    model: DurationModel, timeouts_s: Floats, crash_rate: float, prices: Prices
) -> Floats:
    """Return the cost per message if each attempt takes a time of its own (J1).

    With s the chance that an attempt succeeds in time, F the times of work, l the crash rate::

        s = integral over x <= v of exp(-l*x) dF(x)
        J1 = [c_w*(v*(1-s) + integral of x*exp(-l*x) dF(x)) + c_d*P(S>v)*exp(-l*v)] / s

    Args:
        model: How long work takes.
        timeouts_s: Timeouts to price, seconds.
        crash_rate: Crashes per second of work.
        prices: What things cost.

    Returns: A cost for each timeout; infinite where nothing can be done in time.

    Source: A. P. A. van Moorsel and K. Wolter, "Analysis of restart mechanisms in software
    systems", IEEE TSE 32 (2006), with a price for duplicates.
    """
    x, p = model.seconds, model.chance
    alive = p * np.exp(-crash_rate * x)
    success, spent, mass = _cumulative(alive), _cumulative(alive * x), _cumulative(p)
    place = np.searchsorted(x, timeouts_s, side="right")
    ok, slow = success[place], 1.0 - mass[place]
    duplicates = prices.duplicate_of(model.mean_s) * slow * np.exp(-crash_rate * timeouts_s)
    total = prices.delay * (timeouts_s * (1.0 - ok) + spent[place]) + duplicates
    return np.where(ok > _NEVER, total / np.maximum(ok, _NEVER), np.inf)


def cost_per_message(
    model: DurationModel,
    timeouts_s: Floats,
    crash_rate: float,
    prices: Prices,
    growth: Growth = DOUBLING,
) -> Floats:
    """Return the cost per message if the time belongs to the message (J2): the usual case.

    A message whose work is longer than a fixed timeout would never be done, so delivery k has
    ``v_k = v*b**(k-1)``. Per message of length x::

        ok_k = [x <= v_k]*exp(-l*x)
        sum over k of product(1-ok_j, j<k) * (c_w*(ok_k*x + (1-ok_k)*v_k)
                                              + c_d*[x > v_k]*exp(-l*v_k))
        + P(no try succeeds)*c_dead

    Args:
        model: How long work takes.
        timeouts_s: Timeouts of the first delivery to price, seconds.
        crash_rate: Crashes per second of work.
        prices: What things cost.
        growth: How the timeout grows, and when a message is given up.

    Source: :func:`cost_redrawn` with the length held fixed. Doubling waits for less than twice the
    length in all: J. L. Bentley and A. C. Yao, "An almost optimal algorithm for unbounded
    searching" (1976).
    """
    x, p = model.seconds, model.chance
    first = np.asarray(timeouts_s, dtype=np.float64)
    duplicate = prices.duplicate_of(model.mean_s)
    survives = np.exp(-crash_rate * x)
    # Sums over all x up to some place, for i failures of tries that were long enough: with them a
    # timeout costs a few look-ups, whatever the number of times.
    fails = [p * (1.0 - survives) ** i for i in range(growth.tries + 1)]
    mass = np.stack([_cumulative(each) for each in fails])
    spent = np.stack([_cumulative(each * survives * x) for each in fails])
    leases = [np.minimum(growth.cap_s, first * growth.factor**k) for k in range(growth.tries)]
    below = np.zeros(len(first), dtype=np.intp)
    wasted, cost = np.zeros_like(first), np.zeros_like(first)
    for k, lease in enumerate(leases):
        # Those whose first lease that is long enough is this one.
        place = np.searchsorted(x, lease, side="right")
        part, work = mass[:, place] - mass[:, below], spent[:, place] - spent[:, below]
        cost += wasted * part[0] + prices.dead * part[growth.tries - k]
        for j in range(k, growth.tries):
            cost += prices.delay * (work[j - k] + leases[j] * part[j - k + 1])
        wasted = wasted + prices.delay * lease + duplicate * np.exp(-crash_rate * lease)
        below = place
    never: Floats = np.maximum(mass[0, -1] - mass[0, below], 0.0)
    total: Floats = cost + (wasted + prices.dead) * never
    return total


def cost_renewed(  # noqa: PLR0913 - the symbols of the formula
    model: DurationModel,
    firsts_s: Floats,
    crash_rate: float,
    prices: Prices,
    *,
    every_s: float,
    guard_s: float,
    lease_s: float | None = None,
) -> Floats:
    """Return what lazy renewal costs per attempt, beyond the work itself (J3).

    The first lease lasts v0. It is renewed at ``t_0 = v0 - g`` and then every h, each time for
    ``h + g``. With ``end(x)`` the end of the lease in force at x::

        J3 = c_w * integral of l*exp(-l*x)*P(S>x)*(end(x) - x) dx
             + (c_h + p*c_d) * sum over k of exp(-l*t_k)*P(S>t_k)

    Between two renewals the integral has a closed form, and whole periods make a geometric sum.

    Args:
        model: How long work takes.
        firsts_s: First leases to price, seconds, each longer than the guard.
        crash_rate: Crashes per second of work, above 0.
        prices: What things cost.
        every_s: Seconds from one renewal to the next (h), above 0.
        guard_s: Seconds before the end of a lease at which it is renewed (g).
        lease_s: Seconds that a renewal asks for; None for ``h + g``.

    Raises:
        ValueError: A length is out of its range.

    Source: J. W. Young, "A first order approximation to the optimum checkpoint interval", CACM 17
    (1974): a renewal is the checkpoint of a lease.
    """
    firsts = np.asarray(firsts_s, dtype=np.float64)
    if every_s <= 0 or crash_rate <= 0 or np.any(firsts <= guard_s):
        raise ValueError("a first lease must be longer than the guard, and rates above 0")
    lease = every_s + guard_s if lease_s is None else lease_s
    sending = prices.renewal_of(model.mean_s)
    x = model.seconds
    decay = math.exp(-crash_rate * every_s)
    in_period = _wait(np.array([every_s]), lease, crash_rate)[0]
    costs = np.empty_like(firsts)
    for place, first in enumerate(firsts):
        start = first - guard_s
        beyond = np.maximum(x - start, 0.0)
        renewals = np.ceil(beyond / every_s)
        whole = np.maximum(renewals - 1.0, 0.0)
        reached = math.exp(-crash_rate * start)
        # decay**n is exp(-l*t_n) over what it is at the start; its sums are geometric.
        last = np.where(renewals > 0, beyond - whole * every_s, 0.0)
        faded = decay**whole
        sent = (1.0 - decay**renewals) / (1.0 - decay)
        wait = in_period * (1.0 - faded) / (1.0 - decay) + faded * _wait(last, lease, crash_rate)
        wait = _wait(np.minimum(x, start), float(first), crash_rate) + reached * wait
        costs[place] = (prices.delay * wait + sending * reached * sent) @ model.chance
    return costs


def duplicates_per_message(
    model: DurationModel, timeouts_s: Floats, crash_rate: float, growth: Growth = DOUBLING
) -> Floats:
    """Return how often a message is done twice on average: J2 with all prices but one at 0."""
    only = Prices(delay=0.0, duplicate=1.0, dead=0.0)
    return cost_per_message(model, timeouts_s, crash_rate, only, growth)


def _cumulative(values: Floats) -> Floats:
    return np.concatenate([[0.0], np.cumsum(values)])


def _wait(length: Floats, end: float, rate: float) -> Floats:
    """Return the integral of ``l*exp(-l*u)*(end - u)`` over u from 0 to *length*."""
    gone = -np.expm1(-rate * length)
    return gone * (end - 1.0 / rate) + length * np.exp(-rate * length)
