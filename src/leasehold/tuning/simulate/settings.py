"""What a simulation plays: the queue, its workers, the work."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from leasehold.domain.queue_settings import LapsedReceipts

NEVER_S = float("inf")


class PopOrder(StrEnum):
    """Which visible message is received next."""

    BY_VISIBLE = "visible"
    """The one that has been visible for longest, as Leasehold does."""
    BY_ID = "id"
    """The one that was put first."""


class Outage(NamedTuple):
    """A time in which no worker receives, seconds from the start."""

    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Renewal:
    """How workers renew; see :class:`leasehold.tuning.renewal.RenewalPlan`."""

    every_s: float
    """From one renewal to the next, above 0."""
    guard_s: float
    """How long before its end the first lease is renewed; each renewal asks for both together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Handling:
    """How messages are leased: what is to be tried."""

    timeout_s: float
    """The visibility timeout, or the first lease if leases are renewed; above 0."""
    growth: float = 1.0
    """Delivery k has ``timeout_s * growth**(k-1)``, 1 or more."""
    timeout_cap_s: float = 604_800.0
    batch: int = 1
    """Messages to receive at once, 1 to 1,000."""
    renewal: Renewal | None = None
    detect_s: float | None = None
    """With sessions: seconds until a dead worker's leases end; None: when they run out."""
    skip_late: bool = False
    """Whether a worker passes over messages that would likely be late."""
    order: PopOrder = PopOrder.BY_VISIBLE
    lapsed_receipts: LapsedReceipts = LapsedReceipts.UNTIL_RETAKEN
    max_deliveries: int | None = None
    """After so many a message is set aside; None for never."""

    def __post_init__(self) -> None:
        if not self.timeout_s > 0:
            raise ValueError(f"timeout_s is {self.timeout_s}; it must be above 0")
        if not 1 <= self.batch <= 1_000:  # noqa: PLR2004 - as the field says
            raise ValueError(f"batch is {self.batch}; it must be 1 to 1000")
        if self.growth < 1:
            raise ValueError(f"growth is {self.growth}; it must be 1 or more")

    def lease_s(self, delivery: int) -> float:
        """Return the length of the first lease of a delivery, 1 for the first."""
        if self.growth == 1:
            return self.timeout_s
        return min(self.timeout_cap_s, self.timeout_s * self.growth ** (delivery - 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class Crew:
    """Who works."""

    workers: int = 8
    """Each works on one message at a time."""
    crash_rate: float = 0.0
    """Crashes per second of work of one worker."""
    restart_s: float = 0.0
    """Seconds until one that crashed is back."""
    outages: tuple[Outage, ...] = ()
