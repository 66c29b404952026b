"""A queue in memory and messages on leases, without a worker."""

from __future__ import annotations

from typing import Any

from leasehold.testing import ManualTime
from leasehold.testing.memory_queue import MemoryQueue
from leasehold.worker.adapters import Delivery, Lease, Outgoing, QueueClient, QueueError, Saved
from leasehold.worker.errors import LeaseLost
from leasehold.worker.message import Message
from leasehold.worker.stages import StageHooks

LEASE_S = 30


class Holding:
    """A lease that nobody renews. A test may lose it, and have saves fail."""

    def __init__(self, client: QueueClient, delivery: Delivery, deadline_s: float) -> None:
        self.client = client
        self.delivery = delivery
        self.deadline_s = deadline_s
        self.receipt = delivery.receipt
        self.lost: str | None = None
        self.failures: list[QueueError] = []
        self.saves: list[Saved] = []

    def check(self) -> None:
        if self.lost is not None:
            raise LeaseLost(self.lost)

    def extend(self, visibility_timeout_s: int) -> None:
        self.deadline_s += visibility_timeout_s

    def save(self, saved: Saved) -> None:
        if self.failures:
            raise self.failures.pop(0)
        self.receipt = self.client.save(self.delivery, self.receipt, saved, LEASE_S).receipt
        self.saves.append(saved)


class Bench:
    """One queue with one message in it."""

    def __init__(self, client: QueueClient | None = None, time: ManualTime | None = None) -> None:
        self.time = time or ManualTime()
        self.client = client or MemoryQueue("videos", time=self.time)
        self.client.put([Outgoing(body="clip")])
        self.holding: Holding

    def receive(self) -> Message:
        """Receive the message, whoever held it before."""
        self.time.advance(LEASE_S + 1)
        [delivery] = self.client.receive(1, visibility_timeout_s=LEASE_S)
        self.holding = Holding(self.client, delivery, self.time.monotonic_s() + LEASE_S)
        return Message(delivery, self.holding, self.time)

    def complete(self, message: Message) -> None:
        """Complete the message."""
        [result] = self.client.complete([Lease(message.id, self.holding.receipt)])
        assert result is None

    @property
    def saves(self) -> list[tuple[str | None, Any]]:
        """Stage and state of all that was saved since the message was received."""
        return [(each.stage, each.state) for each in self.holding.saves]


class Died(BaseException):
    """Ends the work as the death of the process would: nothing handles it."""


class Diary(StageHooks):
    """Writes down what it is told."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def begun(self, message: Any, stage: str) -> None:
        self.lines.append(f"begun {stage}")

    def finished(self, message: Any, stage: str, took_s: float) -> None:
        self.lines.append(f"finished {stage} in {took_s:g}")

    def skipped(self, message: Any, stage: str) -> None:
        self.lines.append(f"skipped {stage}")

    def failed(self, message: Any, stage: str, error: BaseException, *, again: bool) -> None:
        self.lines.append(f"failed {stage}: {error}{', again' if again else ''}")

    def overdue(self, message: Any, stage: str, limit_s: float) -> None:
        self.lines.append(f"overdue {stage} after {limit_s:g}")

    def not_saved(self, message: Any, stage: str, error: Exception) -> None:
        self.lines.append(f"not saved {stage}: {error}")

    def restarted(self, message: Any, why: str) -> None:
        self.lines.append(f"restarted: {why}")
