"""What a queue in memory consists of."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from leasehold.worker.queues.protocol import Delivery, Depth, Fault, Lease, Release, Saved
from leasehold.worker.timing import Time

if TYPE_CHECKING:
    from leasehold.worker.queues.memory import MemoryQueue

_START_MS: Final = 1_767_225_600_000
"""Midnight of 2026-01-01, UTC."""


class MovedClock:
    """A clock for time that is moved by hand: it begins with the year 2026."""

    def __init__(self, time: Time) -> None:
        self._time = time
        self._began_s = time.monotonic_s()

    def now_ms(self) -> int:
        """Return Unix milliseconds."""
        return _START_MS + round((self._time.monotonic_s() - self._began_s) * 1000)

    def monotonic_s(self) -> float:
        """Return seconds since an arbitrary moment."""
        return self._time.monotonic_s()

    def wall_drift_s(self) -> float:
        """Return 0: nobody moves the two apart."""
        return 0.0


@dataclass(slots=True, eq=False)
class Stored:
    """A message of a queue in memory."""

    number: int
    delivery: Delivery
    """What does not change."""
    ends_s: float | None
    """When it expires; None: never."""
    dequeue_count: int = 0
    fence: int = 0
    renewals: int = -1
    """Of the lease; -1: nobody has one."""
    visible_at_s: float = 0.0
    version: int = 0
    """Counts the changes, so that what was planned before one is known to be over."""
    session: MemorySession | None = None
    saved: Saved | None = None
    """The state in it is JSON text."""
    cancel: str | None = None
    faults: list[Fault] = field(default_factory=list)
    failures: int = 0
    lapses: int = 0

    def lives(self, now_s: float, longer_s: float = 0) -> bool:
        """Return whether it has not expired, nor will have after *longer_s*."""
        if self.ends_s is None:
            return True
        return now_s + longer_s <= self.ends_s if longer_s else now_s < self.ends_s

    def lease(self, session: MemorySession | None) -> None:
        """Begin a lease; one that nobody has ended has lapsed."""
        if self.renewals >= 0:
            self.lapse()
        self.dequeue_count += 1
        self.fence += 1
        self.renewals = 0
        self.session = session

    def end(self, release: Release) -> None:
        """End a lease as its holder says."""
        self.renewals = -1
        self.session = None
        self.failures += release.outcome == "failed"
        self.faults += [] if release.fault is None else [release.fault]

    def lapse(self) -> None:
        """End a lease without a word of its holder."""
        self.renewals = -1
        self.session = None
        self.lapses += 1

    @property
    def receipt(self) -> str:
        """The newest receipt; nobody has it while nobody has a lease."""
        return f"{self.delivery.message_id}.{self.fence}.{self.renewals}"

    def newest(self, lease: Lease) -> Lease | None:
        """Return the newest receipt of a lease for the one before that, if it is such a one."""
        before = f"{self.delivery.message_id}.{self.fence}.{self.renewals - 1}"
        if self.renewals < 1 or lease.receipt != before:
            return None
        return Lease(lease.message_id, self.receipt)

    def read_saved(self) -> Saved | None:
        """Return what was saved, as a value of its own."""
        return (
            None if self.saved is None else replace(self.saved, state=json.loads(self.saved.state))
        )

    def state(self, now_s: float) -> str:
        """Return ``visible``, ``leased`` or ``delayed``."""
        if now_s >= self.visible_at_s:
            return "visible"
        return "delayed" if self.renewals < 0 else "leased"


class MemorySession:
    """A session of a queue in memory; see :class:`WorkerSession`. It sends no heartbeats."""

    def __init__(self, session_id: str) -> None:
        self._session_id = session_id
        self._is_lost = False
        self.queues: set[MemoryQueue] = set()
        """Those that it has leases of."""
        self.progress: list[str] = []
        """Ids of messages whose work went on, in the order in which that was said."""

    @property
    def session_id(self) -> str:
        """See :class:`WorkerSession`."""
        return self._session_id

    @property
    def is_lost(self) -> bool:
        """See :class:`WorkerSession`."""
        return self._is_lost

    def cancelled(self, message_id: str) -> str | None:
        """See :class:`WorkerSession`."""
        for queue in self.queues:
            if (reason := queue.cancelled(message_id, self)) is not None:
                return reason
        return None

    def progressed(self, message_id: str) -> None:
        """See :class:`WorkerSession`."""
        self.progress.append(message_id)

    def lose(self) -> None:
        """End it as if its worker had died: its leases end at once."""
        self._is_lost = True
        for queue in self.queues:
            queue.end_leases(self)

    def close(self) -> None:
        """See :class:`WorkerSession`."""
        self.lose()


def depth_of(messages: Iterable[Stored], now_s: float) -> Depth:
    """Count messages by their state; those that have expired are none."""
    counts: Counter[str] = Counter(
        each.state(now_s) for each in messages if each.ends_s is None or now_s < each.ends_s
    )
    return Depth(
        visible=counts["visible"],
        leased=counts["leased"],
        delayed=counts["delayed"],
        total=counts.total(),
    )
