"""What a visibility timeout costs, in seconds of delay.

Too long, and a crash hides a message for longer than need be. Too short, and work is done twice.
With a price for each the two add up, and the best timeout is where the sum is least. Everything is
counted in seconds of delay of one message; so the price of such a second is 1 unless told.

All functions take many timeouts at once and sum over the times of a
:class:`~leasehold.advisor.statistics.DurationModel`; nothing is sampled.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from scipy import special

from leasehold.advisor.attempts import Floats
from leasehold.advisor.statistics import DurationModel

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


# --- renewal -----------------------------------------------------------------------------------
#
# When to renew a lease: as seldom as crashes allow.


JITTER: Final = 0.1
"""A renewal is sent up to this share of its period earlier or later, so that many are not sent at
once."""
_STEP: Final = 1.05
_SHORTEST_PERIOD_S: Final = 1.0
_ROUND_TRIP_SHARE: Final = 0.999


@dataclass(frozen=True, slots=True, kw_only=True)
class RenewalPlan:
    """A long first lease that most work needs no renewal of, and then short ones."""

    first_s: float
    """The first lease (v0)."""
    every_s: float
    """From one renewal to the next (h)."""
    lease_s: float
    """What each renewal asks for."""
    guard_s: float
    """How long before its end a lease is renewed (g)."""
    cost: float
    """Per attempt beyond the work itself, in seconds of delay."""
    renewals_per_attempt: float

    @property
    def first_renewal_s(self) -> float:
        """Seconds from the receive to the first renewal."""
        return self.first_s - self.guard_s


def renewal_period(crash_rate: float, prices: Prices, mean_s: float, *, missed: int = 1) -> float:
    """Return the best time from one renewal to the next, seconds.

    ``h = sqrt(2*(c_h + p*c_d)/(l*c_w))``. If a lease is to outlive *missed* renewals in a row it
    lasts ``missed*h + g``, and ``h = sqrt((c_h + p*c_d)/(l*c_w*(missed - 1/2)))``.

    Args:
        crash_rate: Crashes per second of work, above 0.
        prices: What things cost.
        mean_s: Mean length of the work, for the price of a duplicate.
        missed: Renewals in a row that a lease lasts for, 1 or more.

    Source: Young's law (CACM 17, 1974): half a period is what a crash loses.
    """
    return math.sqrt(prices.renewal_of(mean_s) / (crash_rate * prices.delay * (missed - 0.5)))


def heartbeat_period(crash_rate: float, prices: Prices, mean_s: float, leases: int) -> float:
    """Return the best time from one heartbeat of a session to the next, seconds.

    ``h = sqrt(2*(c_h + p*N*c_d)/(l*N*c_w))``: one heartbeat stands for N leases, and all N wait if
    the process dies. That is noticed within a period and the guard.

    Args:
        crash_rate: Crashes of the process per second, above 0.
        prices: What things cost; a heartbeat costs as much as a renewal.
        mean_s: Mean length of the work, for the price of a duplicate.
        leases: How many the session holds (N), 1 or more.

    Source: Young's law; and W. Chen, S. Toueg and M. K. Aguilera, "On the quality of service of
    failure detectors", IEEE TC 51 (2002), for the bound on detection.
    """
    risk = prices.late_renewal * leases * prices.duplicate_of(mean_s)
    return math.sqrt(2 * (prices.renewal + risk) / (crash_rate * leases * prices.delay))


def guard(round_trips_s: Sequence[float], stalls_s: Sequence[float], late_share: float) -> float:
    """Return how long before its end a lease has to be renewed, seconds (g).

    The 99.9th percentile of the round trips and the ``1 - late_share`` quantile of the stalls of
    the process. The chance of a late renewal is then known, not guessed.

    Args:
        round_trips_s: Seconds that requests took, measured; at least one.
        stalls_s: Seconds by which timers of the worker were late, measured; may be empty.
        late_share: Chance that a renewal may come too late (p), 0 to 1.

    Raises:
        ValueError: There are no round trips.

    Source: the safety margin of Chen, Toueg and Aguilera (2002).
    """
    if not len(round_trips_s):
        raise ValueError("no round trips were measured")
    trip = float(np.quantile(np.asarray(round_trips_s), _ROUND_TRIP_SHARE, method="higher"))
    if not len(stalls_s):
        return trip
    stall = np.quantile(np.asarray(stalls_s), 1.0 - late_share, method="higher")
    return trip + float(stall)


def plan_renewal(  # noqa: PLR0913 - what a plan depends on
    model: DurationModel,
    crash_rate: float,
    prices: Prices,
    *,
    guard_s: float,
    floor_s: float = 1.0,
    cap_s: float = 604_800.0,
    every_s: float | None = None,
) -> RenewalPlan | None:
    """Return the cheapest lazy renewal; None if no lease may be as long as the guard and a second.

    The period is Young's; the first lease is searched for, in steps of 5 %. To first order it ends
    where the density of finishing has fallen to ``q*c_w/(c_h + p*c_d)``, q the chance of a crash.

    Args:
        model: How long work takes.
        crash_rate: Crashes per second of work, above 0.
        prices: What things cost.
        guard_s: See :func:`guard`.
        floor_s: Shortest lease, seconds.
        cap_s: Longest lease, seconds.
        every_s: A period to keep to; None for the best.
    """
    if cap_s < guard_s + _SHORTEST_PERIOD_S:
        return None
    every = renewal_period(crash_rate, prices, model.mean_s) if every_s is None else every_s
    every = min(max(every, floor_s - guard_s, _SHORTEST_PERIOD_S), cap_s - guard_s)
    least = max(floor_s, guard_s + _SHORTEST_PERIOD_S)
    steps = math.ceil(math.log(max(cap_s / least, 1.0)) / math.log(_STEP))
    firsts = np.minimum(least * _STEP ** np.arange(steps + 1), cap_s)
    costs = cost_renewed(model, firsts, crash_rate, prices, every_s=every, guard_s=guard_s)
    best = int(np.argmin(costs))
    first = float(firsts[best])
    sent = np.ceil(np.maximum(model.seconds - (first - guard_s), 0.0) / every)
    return RenewalPlan(
        first_s=first,
        every_s=every,
        lease_s=every + guard_s,
        guard_s=guard_s,
        cost=float(costs[best]),
        renewals_per_attempt=float(sent @ model.chance),
    )


# --- batches -----------------------------------------------------------------------------------
#
# How many messages to receive at once, if their leases are not renewed.
#
# The lease of the last one runs while all the others are worked on. Batches that are too large are
# what makes a queue collapse after an outage: work comes too late, is done again, and comes later.


LATE_SHARE: Final = 0.01
"""Share of the batches whose last message may be late."""
MOST: Final = 32
"""Messages that one receive may ask for (Azure, "Get Messages"; MNS allows 16)."""
_DRAWS: Final = 5_000
_SEED: Final = 20_061


def largest_batch(
    mean_s: float, sd_s: float, timeout_s: float, late_share: float = LATE_SHARE, most: int = MOST
) -> int:
    """Return the largest n with ``n*mean + z*sd*sqrt(n) <= timeout``, at least 1.

    Args:
        mean_s: Of one piece of work, seconds.
        sd_s: Its standard deviation, seconds.
        timeout_s: The lease.
        late_share: Share of the batches whose last message may be late; sets z.
        most: No batch is larger.

    Source: the central limit theorem. It is too hopeful about work with a heavy tail; see
    :func:`largest_batch_drawn`.
    """
    z = float(special.ndtri(1 - late_share))
    fits = [n for n in range(1, most + 1) if n * mean_s + z * sd_s * math.sqrt(n) <= timeout_s]
    return max(fits, default=1)


def largest_batch_drawn(
    model: DurationModel, timeout_s: float, late_share: float = LATE_SHARE, most: int = MOST
) -> int:
    """Return the largest batch by drawing 5,000 of them from the model, at least 1.

    The same draws each time, so that the answer does not flicker.
    """
    draw = np.random.default_rng(_SEED)
    edges = np.cumsum(model.chance)
    places = np.searchsorted(edges, draw.random((_DRAWS, most)) * edges[-1], side="right")
    ends = np.cumsum(model.seconds[np.minimum(places, len(edges) - 1)], axis=1)
    late = (ends > timeout_s).mean(axis=0)
    return max(1, int(np.searchsorted(late, late_share, side="right")))
