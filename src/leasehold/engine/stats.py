"""What the engine counts: plain integers, added up on the hot path and read at scrape time."""

from __future__ import annotations

from bisect import bisect_left
from typing import Final, cast

from leasehold.domain import commands as c
from leasehold.domain.errors import LeaseLost, QueueNotFound
from leasehold.domain.types import Lease

LATENCY_BUCKETS_S: Final = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5,
)  # fmt: skip


class Histogram:
    """Counts of durations in the buckets of LATENCY_BUCKETS_S and one for all above."""

    __slots__ = ("counts", "sum_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(LATENCY_BUCKETS_S) + 1)
        self.sum_s = 0.0

    def observe(self, duration_s: float) -> None:
        """Count one duration, in seconds."""
        self.counts[bisect_left(LATENCY_BUCKETS_S, duration_s)] += 1
        self.sum_s += duration_s


class QueueStats:
    """What happened in one queue since the server started."""

    __slots__ = ("completed", "received", "redelivered", "rejected_receipts", "renewed", "sent")

    def __init__(self) -> None:
        self.sent = 0
        self.received = 0
        self.redelivered = 0
        """Messages received for the second time or later."""
        self.renewed = 0
        self.completed = 0
        self.rejected_receipts = 0


class EngineStats:
    """Counters of one engine."""

    def __init__(self) -> None:
        self.batches = 0
        self.commands = 0
        self.commit_seconds = Histogram()
        self.queues: dict[tuple[str, str], QueueStats] = {}

    def count(self, command: c.Command, result: c.Result) -> None:
        """Count what one command did."""
        if not isinstance(command, _COUNTED):
            if type(command) is c.DeleteQueue:
                self.queues.pop((command.account, command.queue), None)
            return
        key = (command.account, command.queue)
        stats = self.queues.get(key)
        if stats is None:
            if type(result) is QueueNotFound:
                return  # anybody can ask for queues that are not there
            stats = self.queues[key] = QueueStats()
        if isinstance(result, Exception):
            stats.rejected_receipts += type(result) is LeaseLost
        elif type(command) is c.Put:
            stats.sent += 1
        elif type(command) is c.Complete:
            stats.completed += 1
        elif type(command) is c.Renew:
            stats.renewed += 1
        else:
            for lease in cast("tuple[Lease, ...]", result):
                stats.received += 1
                stats.redelivered += lease.message.dequeue_count > 1


_COUNTED: Final = (c.Put, c.Receive, c.Renew, c.Complete)
