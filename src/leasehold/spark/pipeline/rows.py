"""What executors tell of their work: one row for each delivery of a message, and figures."""

from __future__ import annotations

from typing import Final

from msgspec import Struct, field

UNFINISHED: Final = "unfinished"
"""Outcome of a stage that was at work when its message was given up."""


class StageRun(Struct):
    """One stage of one delivery. Outcomes: done, failed, skipped, unfinished."""

    stage: str
    began_at_ms: int
    seconds: float = 0.0
    """Until its end, with all attempts."""
    attempts: int = 1
    outcome: str = UNFINISHED


class Row(Struct):
    """One delivery of a message, from when its work began until it was settled or lost."""

    message_id: str
    queue: str
    delivery: int
    """How often the message had been delivered by then, this time included."""
    fence: int
    outcome: str
    """A :class:`leasehold.worker.outcomes.Kind`."""
    reason: str | None
    resumed_at: str | None
    """The stage that an earlier holder had saved, with which this one began; None: it began anew.
    """
    began_at_ms: int
    ended_at_ms: int
    stages: list[StageRun]


class StageFigures(Struct):
    """One stage in one executor."""

    working: int = 0
    """Messages that are in it now."""
    done: int = 0
    failed: int = 0
    """Attempts that failed, those that were tried again at once included."""
    skipped: int = 0
    overdue: int = 0
    seconds: float = 0.0
    """All attempts that were done, together."""


class Figures(Struct):
    """One executor's task so far."""

    stages: dict[str, StageFigures] = field(default_factory=dict)
    outcomes: dict[str, int] = field(default_factory=dict)
    """Deliveries by how they ended."""
    in_work: int = 0
    waiting: int = 0
    """Received, and not begun yet."""
    resumed: int = 0
    """Deliveries that began with a stage that another had saved."""
    dropped: int = 0
    """Rows that nobody took, and that are not kept any more."""


class Who(Struct, frozen=True):
    """Which task tells it."""

    link: str
    """New for each attempt at a task."""
    executor: str
    """Machine, and the process that executors start their Python workers from."""
    host: str
    pid: int
    task: int
    attempt: int
