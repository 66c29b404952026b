"""How a run is doing, put together from what its tasks tell. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from leasehold.spark.pipeline.rows import Figures, StageFigures, Who

_OVER_S: Final = 5.0
"""The rate is that of the last so many seconds."""
_ENDS: Final = ("done", "poisoned", "cancelled")
"""Outcomes after which a message does not come again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """A run at one moment. Messages are counted by deliveries: one that came twice counts twice."""

    at_ms: int
    seconds: float
    """Since the start of the run."""
    tasks: int
    """That are at work, as far as the driver knows."""
    executors: int
    """That these tasks are on."""
    stages: Mapping[str, StageFigures]
    """In their order."""
    outcomes: Mapping[str, int]
    in_work: int
    waiting: int
    """Received by a task, and not begun yet."""
    resumed: int
    dropped: int
    """Rows that are missing in the report."""
    backlog: int | None
    """Messages in the queue that nobody has; None: that is not known."""
    per_s: float
    """Messages done in each of the last few seconds."""

    @property
    def done(self) -> int:
        """Messages completed."""
        return self.outcomes.get("done", 0)

    @property
    def failed(self) -> int:
        """Deliveries that failed, and whose message comes again."""
        return self.outcomes.get("failed", 0)

    @property
    def poisoned(self) -> int:
        """Messages set aside, those included whose work an operator has cancelled."""
        return self.outcomes.get("poisoned", 0) + self.outcomes.get("cancelled", 0)

    @property
    def lost(self) -> int:
        """Deliveries whose lease was lost."""
        return self.outcomes.get("lost", 0)

    @property
    def expected(self) -> int:
        """How many messages there are in all, as far as is known: those that are over too."""
        ended = sum(self.outcomes.get(name, 0) for name in _ENDS)
        return ended + self.in_work + self.waiting + (self.backlog or 0)

    @property
    def left_s(self) -> float | None:
        """Seconds until all is done if it goes on like this; None: that cannot be said."""
        left = self.expected - self.done - self.poisoned
        if self.backlog is None or self.per_s <= 0:
            return None
        return left / self.per_s

    def members(self) -> dict[str, Any]:
        """Return all of it as JSON can say it."""
        return {
            "at_ms": self.at_ms,
            "seconds": round(self.seconds, 3),
            "tasks": self.tasks,
            "executors": self.executors,
            "done": self.done,
            "failed": self.failed,
            "poisoned": self.poisoned,
            "lost": self.lost,
            "given_back": self.outcomes.get("returned", 0) + self.outcomes.get("interrupted", 0),
            "in_work": self.in_work,
            "waiting": self.waiting,
            "resumed": self.resumed,
            "backlog": self.backlog,
            "done_per_second": round(self.per_s, 1),
            "stages": {
                name: {
                    "working": each.working,
                    "done": each.done,
                    "failed": each.failed,
                    "skipped": each.skipped,
                    "overdue": each.overdue,
                    "mean_s": round(each.seconds / each.done, 6) if each.done else None,
                }
                for name, each in self.stages.items()
            },
        }


@dataclass(slots=True)
class _Task:
    who: Who
    figures: Figures = field(default_factory=Figures)
    is_there: bool = True


class Board:
    """The last figures of each task. For one thread at a time.

    Args:
        stages: Their names, in order.
        began_s: When the run began, monotonic.
    """

    def __init__(self, stages: Sequence[str], began_s: float) -> None:
        self._stages = tuple(stages)
        self._began_s = began_s
        self._tasks: dict[str, _Task] = {}
        self._history: deque[tuple[float, int]] = deque([(began_s, 0)])

    def came(self, who: Who) -> None:
        """Take note that a task is there, or there again."""
        self._tasks.setdefault(who.link, _Task(who)).is_there = True

    def went(self, link: str) -> None:
        """Take note that a task has ended, or is not heard of any more."""
        self._tasks[link].is_there = False

    def told(self, link: str, figures: Figures) -> None:
        """Take note of the figures of a task."""
        self._tasks[link].figures = figures

    def add(self, link: str, outcome: str) -> None:
        """Count one more delivery of a task."""
        outcomes = self._tasks[link].figures.outcomes
        outcomes[outcome] = outcomes.get(outcome, 0) + 1

    def progress(self, *, now_ms: int, now_s: float, backlog: int | None) -> Progress:
        """Return how the run is doing."""
        every = list(self._tasks.values())
        here = [each for each in every if each.is_there]
        outcomes = _summed(each.figures.outcomes for each in every)
        return Progress(
            at_ms=now_ms,
            seconds=now_s - self._began_s,
            tasks=len(here),
            executors=len({each.who.executor for each in here}),
            stages={name: self._stage(name) for name in self._stages},
            outcomes=outcomes,
            in_work=sum(each.figures.in_work for each in here),
            waiting=sum(each.figures.waiting for each in here),
            resumed=sum(each.figures.resumed for each in every),
            dropped=sum(each.figures.dropped for each in every),
            backlog=backlog,
            per_s=self._rate(now_s, outcomes.get("done", 0)),
        )

    def _stage(self, name: str) -> StageFigures:
        made = StageFigures()
        for task in self._tasks.values():
            found = task.figures.stages.get(name)
            if found is None:
                continue
            made.working += found.working if task.is_there else 0
            made.done += found.done
            made.failed += found.failed
            made.skipped += found.skipped
            made.overdue += found.overdue
            made.seconds += found.seconds
        return made

    def _rate(self, now_s: float, done: int) -> float:
        history = self._history
        history.append((now_s, done))
        while len(history) > 2 and history[1][0] <= now_s - _OVER_S:  # noqa: PLR2004 - one before
            history.popleft()
        before_s, before = history[0]
        return max(0.0, (done - before) / (now_s - before_s)) if now_s > before_s else 0.0


def _summed(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total: dict[str, int] = {}
    for each in counts:
        for name, count in each.items():
            total[name] = total.get(name, 0) + count
    return total
