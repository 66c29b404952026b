"""When to renew a lease: as seldom as crashes allow."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from leasehold.tuning.costs import Prices, cost_renewed
from leasehold.tuning.model import DurationModel

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
        raise ValueError("no round trip was measured")
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
