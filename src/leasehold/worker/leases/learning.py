"""Lengths of leases learned from what the work takes, with brakes.

A long lease hides a message for long after a crash; a short one has to be renewed often, and is
lost when a renewal takes its time. What is learned is about as long as the work takes, and never
so short that slow renewals could not keep it.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from dataclasses import dataclass, field
from typing import Final

from leasehold.domain.wording import count_of

DEFAULT_FLOOR_S: Final = 10
DEFAULT_CAP_S: Final = 600
DEFAULT_START_S: Final = 30
DEFAULT_QUANTILE: Final = 0.99
DEFAULT_SLACK_S: Final = 1.0
"""For clocks that do not run alike, and for waiting threads."""
RENEWALS_IN_A_LEASE: Final = 3
"""A lease is never shorter than so many of the slowest renewals."""
MAX_TYPES: Final = 256
"""Types of message that are told apart; all others count as one."""

_MESSAGES: Final = 128
_ENOUGH_MESSAGES: Final = 16
_RENEWALS: Final = 64
_OUTCOMES: Final = 20
_BURST: Final = 0.3
"""Of the last outcomes failures: nothing gets shorter."""
_LEAST_OUTCOMES: Final = 3
_RENEWAL_QUANTILE: Final = 0.99
_FRESH: Final = 8
_OTHERS: Final = "\0others"


@dataclass(slots=True)
class _Kind:
    """What is known of one type of message."""

    lasted_s: deque[float] = field(default_factory=lambda: deque(maxlen=_MESSAGES))
    work_s: float = 0.0
    fresh: int = 0
    lease_s: int = 0
    """The last one."""


class LeaseLearner:
    """Learns how long leases should be, for each type of message; to be shared by threads.

    Args:
        floor_s: No lease is shorter, whole seconds.
        cap_s: No lease is longer, unless renewals are so slow that it has to be.
        start_s: Until enough is known.
        quantile: Of the messages, such a share is done within one lease; 0 to 1.
        slack_s: Added for clocks that do not run alike.
    """

    def __init__(
        self,
        *,
        floor_s: int = DEFAULT_FLOOR_S,
        cap_s: int = DEFAULT_CAP_S,
        start_s: int = DEFAULT_START_S,
        quantile: float = DEFAULT_QUANTILE,
        slack_s: float = DEFAULT_SLACK_S,
    ) -> None:
        if not 1 <= floor_s <= cap_s:
            raise ValueError(f"floor_s is {floor_s}, cap_s {cap_s}; it must be 1 <= floor <= cap")
        if not 0 < quantile <= 1:
            raise ValueError(f"quantile is {quantile}; it must be above 0, up to 1")
        self._floor_s = floor_s
        self._cap_s = cap_s
        self._start_s = min(max(start_s, floor_s), cap_s)
        self._quantile = quantile
        self._slack_s = slack_s
        self._lock = threading.Lock()
        self._kinds: dict[str, _Kind] = {}
        self._renewals: deque[float] = deque(maxlen=_RENEWALS)
        self._failed: deque[bool] = deque(maxlen=_OUTCOMES)
        self._renewal_s = 0.0

    @property
    def renewal_s(self) -> float:
        """What the slowest of recent renewals took, seconds; 0 if there were none."""
        return self._renewal_s

    @property
    def is_frozen(self) -> bool:
        """Whether so many renewals fail that no lease is made shorter."""
        with self._lock:
            return self._is_frozen()

    def handled(self, message_type: str | None, seconds: float) -> None:
        """Learn how long a message took, from its receive until it was completed."""
        with self._lock:
            kind = self._kind(message_type)
            kind.lasted_s.append(seconds)
            kind.fresh += 1
            if seconds > kind.work_s or kind.fresh >= _FRESH or len(kind.lasted_s) < _FRESH:
                kind.work_s = _quantile(kind.lasted_s, self._quantile)
                kind.fresh = 0

    def renewal_took(self, seconds: float, *, failed: bool = False) -> None:
        """Learn how long a request that renews took.

        One that failed may have been about to take any time longer: it counts double if that is
        the most there was, and not at all otherwise, since failures can also be quick.
        """
        with self._lock:
            self._failed.append(failed)
            if failed:
                seconds *= 2
                if seconds <= self._renewal_s:
                    return
            self._renewals.append(seconds)
            self._renewal_s = _quantile(self._renewals, _RENEWAL_QUANTILE)

    def lease_s(self, message_type: str | None = None) -> int:
        """Return how long a lease should be now, whole seconds."""
        with self._lock:
            return self._decide(message_type)[0]

    def explain(self, message_type: str | None = None) -> str:
        """Return in a sentence how long a lease is now, and why."""
        with self._lock:
            lease_s, reasons = self._decide(message_type)
        return f"lease {lease_s} s because {', '.join(reasons)}"

    def _decide(self, message_type: str | None) -> tuple[int, list[str]]:
        kind = self._kind(message_type)
        count = len(kind.lasted_s)
        wanted_s = math.ceil(kind.work_s + self._renewal_s + self._slack_s)
        which = f" of type {message_type}" if message_type else ""
        share = f"{self._quantile:.0%} of the last {count_of(count, 'message')}{which}"
        reasons = [
            f"{share} took up to {kind.work_s:.3g} s",
            f"renewals take up to {self._renewal_s:.3g} s",
            f"the clock margin is {self._slack_s:g} s",
        ]
        if count < _ENOUGH_MESSAGES and wanted_s <= self._start_s:
            wanted_s = self._start_s
            were = "was" if count == 1 else "were"
            reasons = [f"there {were} {count_of(count, 'message')} so far, too few for an estimate"]
        if self._is_frozen() and wanted_s < kind.lease_s:
            wanted_s = kind.lease_s
            share = f"{sum(self._failed)} of the last {len(self._failed)} renewals failed"
            reasons = [f"{share}, and until renewals succeed no lease gets shorter"]
        if wanted_s > self._cap_s:
            wanted_s = self._cap_s
            reasons.append(f"and no more than {self._cap_s} s is allowed")
        if wanted_s < self._floor_s:
            wanted_s = self._floor_s
            reasons.append(f"and no less than {self._floor_s} s is allowed")
        least_s = math.ceil(RENEWALS_IN_A_LEASE * self._renewal_s)
        if wanted_s < least_s:
            wanted_s = least_s
            reasons.append(f"and a lease has to last for {RENEWALS_IN_A_LEASE} such renewals")
        kind.lease_s = wanted_s
        return wanted_s, reasons

    def _is_frozen(self) -> bool:
        failed = sum(self._failed)
        return failed >= _LEAST_OUTCOMES and failed >= _BURST * len(self._failed)

    def _kind(self, message_type: str | None) -> _Kind:
        name = message_type or ""
        kind = self._kinds.get(name)
        if kind is None:
            if len(self._kinds) >= MAX_TYPES:
                name = _OTHERS
            kind = self._kinds.setdefault(name, _Kind())
        return kind


def _quantile(values: deque[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[math.ceil(share * len(ordered)) - 1]
