"""What becomes of advice: limits, small steps, and who has the last word.

The order is: what a user has set for a receive, what advice or a user has written into the queue's
settings, the server's own adaptive mode within the bounds written there.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from leasehold.domain.limits import AZURE

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
        return Settled(timeout_s=bounds.user_s, reasons=("set by a user, which wins",))
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
