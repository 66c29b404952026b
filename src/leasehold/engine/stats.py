"""What the engine counts: plain integers, added up on the hot path and read at scrape time."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from typing import Any, Final, NamedTuple, cast

from leasehold.domain import claims as k
from leasehold.domain import commands as c
from leasehold.domain.errors import LeaseholdError, LeaseLost
from leasehold.domain.staging import (
    Committed,
    CommitTogether,
    Publish,
    Published,
    RowsByQueue,
    StreamSettled,
)
from leasehold.domain.types import Lease
from leasehold.engine.waiters import Taking

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


class _LastTimes:
    """When something last happened in one queue, Unix milliseconds; None: not since the start."""

    __slots__ = ("last_complete_ms", "last_receive_ms", "last_receiver", "last_send_ms")

    def __init__(self) -> None:
        self.last_receive_ms: int | None = None
        """When somebody last asked for messages, whether there were any or not."""
        self.last_receiver: str | None = None
        """Who that was, as far as they said."""
        self.last_send_ms: int | None = None
        self.last_complete_ms: int | None = None


class QueueStats(_LastTimes):
    """What happened in one queue since the server started."""

    __slots__ = (
        "completed",
        "poisoned",
        "received",
        "redelivered",
        "rejected_receipts",
        "released",
        "renewed",
        "sent",
    )

    def __init__(self) -> None:
        super().__init__()
        self.sent = 0
        """Messages put, sent along with something else, or published; not those only staged."""
        self.received = 0
        self.redelivered = 0
        """Messages received for the second time or later; members of claims are not looked at."""
        self.renewed = 0
        self.completed = 0
        self.released = 0
        """Messages given back, those that went to the poison queue then included."""
        self.poisoned = 0
        """Messages that went to the poison queue when they were given back."""
        self.rejected_receipts = 0


class QueueActivity(NamedTuple):
    """What happened in one queue, for people; see :class:`QueueStats`."""

    since_ms: int
    """Since when this has been counted."""
    last_receive_ms: int | None
    last_receiver: str | None
    last_send_ms: int | None
    last_complete_ms: int | None
    sent: int
    received: int
    redelivered: int
    completed: int
    released: int
    rejected_receipts: int
    poisoned: int
    waiting: int = 0
    """Receives that wait for messages now."""


class EngineStats:
    """Counters of one engine.

    Args:
        since_ms: When it was made.
    """

    def __init__(self, since_ms: int = 0) -> None:
        self.since_ms = since_ms
        self.now_ms = since_ms
        """The time of the batch being counted."""
        self.batches = 0
        self.commands = 0
        self.commit_seconds = Histogram()
        self.queues: dict[tuple[str, str], QueueStats] = {}

    def count(self, command: c.Command, result: c.Result) -> None:
        """Count what one command did."""
        kind = type(command)
        if kind not in _COUNTED:
            self._count_others(command, result)
            return
        asked: Any = command
        given: Any = result
        key: tuple[str, str] = asked[:2]
        stats = self.queues.get(key)
        if stats is None:
            # Anybody can ask for queues that are not there.
            if isinstance(result, LeaseholdError) and type(result) is not LeaseLost:
                return
            stats = self.queues[key] = QueueStats()
        gave = type(given)
        if gave is tuple:
            stats.last_receive_ms = self.now_ms
            stats.last_receiver = asked.holder
            for lease in given:
                stats.received += 1
                stats.redelivered += lease.message.dequeue_count > 1
        elif gave is Lease:
            if kind is c.Put:
                stats.sent += 1
                stats.last_send_ms = self.now_ms
            else:
                stats.renewed += 1
        elif gave is c.Done:
            stats.completed += 1
            stats.last_complete_ms = self.now_ms
        elif gave is c.Released:
            stats.released += 1
            stats.poisoned += given.poisoned is not None
        else:
            stats.rejected_receipts += gave is LeaseLost

    def _count_others(self, command: c.Command, result: c.Result) -> None:
        if type(command) is c.Batch:
            if type(result) is tuple:
                self._count_all(command.commands, cast("tuple[c.Result, ...]", result))
        elif type(command) is k.OpenClaim and type(result) is k.Opened:
            self._count_claim(command, result)
        elif type(command) is k.SettleClaims and type(result) is k.Settled:
            if not result.already:
                self._count_settled(command, result)
        elif type(command) is CommitTogether and type(result) is Committed:
            if not result.already:
                self._count_all(command.commands, result.results)
                self._count_published(command.account, result.by_queue)
                self._count_streams(command.account, result.settled)
        elif type(command) is Publish and type(result) is Published:
            self._count_published(command.account, result.by_queue)
            self._count_streams(command.account, result.settled)
        elif type(command) is c.DeleteQueue:
            self.queues.pop((command.account, command.queue), None)

    def _count_all(self, parts: Iterable[c.Command], results: Iterable[c.Result]) -> None:
        for part, result in zip(parts, results, strict=True):
            self.count(part, result)

    def _of(self, account: str, queue: str) -> QueueStats:
        return self.queues.setdefault((account, queue), QueueStats())

    def _count_claim(self, command: k.OpenClaim, opened: k.Opened) -> None:
        """Count the members once, when the last step has taken them all."""
        stats, claim = self._of(command.account, command.queue), opened.claim
        stats.last_receive_ms = self.now_ms
        stats.last_receiver = command.holder
        if claim is not None and not opened.replayed and claim.state is not k.ClaimState.OPENING:
            stats.received += claim.size

    def _count_settled(self, command: k.SettleClaims, settled: k.Settled) -> None:
        done = settled.last_settled, settled.completed, settled.exempted, settled.lost
        own = StreamSettled(command.queue, command.stream, *done)
        self._count_streams(command.account, (own, *settled.beside))
        for put in command.sends:
            self._count_sent(put.account, put.queue, 1)
        self._count_published(command.account, settled.published_by_queue)

    def _count_streams(self, account: str, streams: Iterable[StreamSettled]) -> None:
        for each in streams:
            stats = self._of(account, each.queue)
            stats.completed += each.completed
            stats.released += each.exempted
            if each.completed:
                stats.last_complete_ms = self.now_ms

    def _count_published(self, account: str, by_queue: RowsByQueue) -> None:
        for queue, rows in by_queue:
            self._count_sent(account, queue, rows)

    def _count_sent(self, account: str, queue: str, count: int) -> None:
        stats = self._of(account, queue)
        stats.sent += count
        stats.last_send_ms = self.now_ms

    def is_received(self, command: Taking, now_ms: int) -> None:
        """Note that somebody asks for messages, and may wait for them."""
        stats = self.queues.get((command.account, command.queue))
        if stats is not None:
            stats.last_receive_ms = now_ms
            stats.last_receiver = command.holder

    def activity(self, account: str, queue: str) -> QueueActivity:
        """Return what happened in a queue; all zero for one that nothing has happened in."""
        stats = self.queues.get((account, queue)) or QueueStats()
        figures = [getattr(stats, name) for name in QueueActivity._fields[1:-1]]
        return QueueActivity(self.since_ms, *figures)


_COUNTED: Final = frozenset({c.Put, c.Receive, c.Renew, c.Complete, c.Release})
