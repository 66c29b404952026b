"""What an analysis depends on besides the log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from leasehold.tuning import Bounds, Growth, Lengths, Prices, Question
from leasehold.tuning.costs import FIXED


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
    at_once: bool = False
    """Whether to go to the best timeout at once, and not by half or twice at most."""

    def question(self, today_s: float | None, lengths: Lengths) -> Question:
        """Return it as :func:`leasehold.tuning.advise` takes it.

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
