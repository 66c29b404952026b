"""Messages, tasks and rows for tests of pipelines."""

from __future__ import annotations

from typing import Any

from leasehold.spark.pipeline.report import Row, StageRun, Who
from leasehold.worker.adapters.protocol import Delivery, Saved
from leasehold.worker.message import Message


class StillClock:
    """Stands still until it is moved."""

    def __init__(self) -> None:
        self.s = 1000.0

    def now_ms(self) -> int:
        return int(self.s * 1000)

    def monotonic_s(self) -> float:
        return self.s

    def wall_drift_s(self) -> float:
        return 0.0


def who(link: str = "a", executor: str = "vm:1", task: int = 0) -> Who:
    """Return a task."""
    return Who(link=link, executor=executor, host="vm", pid=7, task=task, attempt=0)


def row(message_id: str, *, delivery: int = 1, outcome: str = "done", **more: Any) -> Row:
    """Return a delivery that took a second."""
    members: dict[str, Any] = {
        "queue": "films",
        "fence": delivery,
        "reason": None,
        "resumed_at": None,
        "began_at_ms": delivery * 10_000,
        "ended_at_ms": delivery * 10_000 + 1000,
        "stages": [StageRun("scan", delivery * 10_000, 1.0, 1, "done")],
    }
    return Row(message_id=message_id, delivery=delivery, outcome=outcome, **(members | more))


def delivery(message_id: str = "m1", *, count: int = 1, saved: Saved | None = None) -> Delivery:
    """Return a message as it was received."""
    return Delivery(
        queue="films",
        message_id=message_id,
        receipt=f"r-{message_id}-{count}",
        body=b"harvest",
        dequeue_count=count,
        fence=count,
        saved=saved,
    )


def message(given: Delivery) -> Message:
    """Return what a handler would get; nothing is held."""
    return Message(given, None, None)  # type: ignore[arg-type]  # hooks look at neither
