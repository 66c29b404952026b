"""What a worker has done so far, counted where it costs little: once for each batch."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from leasehold.worker.outcomes import Kind

BOUNDS_S: Final = (
    *(0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0),
    *(10.0, 30.0, 60.0, 300.0, 1800.0, 7200.0),
)
"""Upper bounds of the histogram of handling times, seconds."""


@dataclass(slots=True)
class QueueStats:
    """Of one queue. Written under the lock of :class:`Stats`, and read without it."""

    queue: str
    received: int = 0
    outcomes: dict[Kind, int] = field(default_factory=lambda: dict.fromkeys(Kind, 0))
    """By how they ended, settled ones only, except for those that were lost."""
    handled: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS_S) + 1))
    """Handlers by how long they took; see :data:`BOUNDS_S`, the last is for longer ones."""
    handling_s: float = 0.0
    """Time that handlers took, all together."""
    receive_errors: int = 0
    settle_errors: int = 0
    """Messages that could not be settled: their lease ends, and they are delivered again."""
    redone: int = 0
    """Messages that came again although they were done, and were completed without work."""

    @property
    def settled(self) -> int:
        """How many messages have come to an end here."""
        return sum(self.outcomes.values())


class Ended(NamedTuple):
    """A message that has come to an end."""

    kind: Kind
    handling_s: float | None
    """None: its handler was not called."""


class Stats:
    """Of all queues of a worker."""

    def __init__(self, queues: Sequence[str]) -> None:
        self.queues = [QueueStats(queue) for queue in queues]
        self.lost_sessions = 0
        self.dead_processes = 0
        self.late_renewals = 0
        """How often renewals were so late that leases were in danger."""
        self._lock = threading.Lock()

    def note_received(self, queue: int, count: int) -> None:
        """Count messages that were received."""
        with self._lock:
            self.queues[queue].received += count

    def note_receive_error(self, queue: int) -> None:
        """Count a receive that failed."""
        with self._lock:
            self.queues[queue].receive_errors += 1

    def note_settle_errors(self, queue: int, count: int = 1) -> None:
        """Count messages that could not be settled."""
        with self._lock:
            self.queues[queue].settle_errors += count

    def note_redone(self, queue: int) -> None:
        """Count a message that was done already."""
        with self._lock:
            self.queues[queue].redone += 1

    def note_dead_process(self) -> None:
        """Count a process that died with a message in work."""
        with self._lock:
            self.dead_processes += 1

    def note_lost_session(self) -> None:
        """Count a session that was lost."""
        with self._lock:
            self.lost_sessions += 1

    def note_late_renewals(self) -> None:
        """Count a round of renewals that was late."""
        with self._lock:
            self.late_renewals += 1

    def note_ended(self, queue: int, ended: Sequence[Ended]) -> None:
        """Count messages that have come to an end."""
        with self._lock:
            stats = self.queues[queue]
            outcomes, handled = stats.outcomes, stats.handled
            for kind, handling_s in ended:
                outcomes[kind] += 1
                if handling_s is not None:
                    handled[bisect_left(BOUNDS_S, handling_s)] += 1
                    stats.handling_s += handling_s

    def count(self, kind: Kind) -> int:
        """Return how many messages of all queues ended like that."""
        return sum(each.outcomes[kind] for each in self.queues)
