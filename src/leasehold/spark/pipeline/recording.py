"""Takes note of what happens to each message in an executor: hooks of the worker and its stages."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from leasehold.clock import Clock
from leasehold.spark.pipeline.rows import UNFINISHED, Figures, Row, StageFigures, StageRun
from leasehold.worker.hooks import Hooks
from leasehold.worker.message import Message
from leasehold.worker.outcomes import Kind, Outcome
from leasehold.worker.queues.protocol import Delivery
from leasehold.worker.stages import StageHooks


class _Life:
    """A message in work."""

    __slots__ = ("began_at_ms", "began_s", "error", "resumed_at", "runs")

    def __init__(self, began_at_ms: int, resumed_at: str | None) -> None:
        self.began_at_ms = began_at_ms
        self.resumed_at = resumed_at
        self.runs: list[StageRun] = []
        self.began_s = 0.0
        """When the stage at work began, monotonic."""
        self.error: str | None = None


class Recorder(Hooks, StageHooks):
    """Makes a row of each delivery, and keeps figures.

    Its methods are called from all threads of a worker.

    Args:
        stages: Their names, in order.
        clock: Gives the times.
        emit: Takes each row; must not block.
    """

    def __init__(self, stages: Sequence[str], clock: Clock, emit: Callable[[Row], None]) -> None:
        self._clock = clock
        self._emit = emit
        self._lock = threading.Lock()
        self._lives: dict[tuple[str, int], _Life] = {}
        self._figures = Figures(stages={name: StageFigures() for name in stages})

    def figures(self, waiting: int = 0, dropped: int = 0) -> Figures:
        """Return the figures so far; they are not changed any more."""
        now = self._figures
        with self._lock:
            return Figures(
                stages={
                    name: StageFigures(
                        each.working,
                        each.done,
                        each.failed,
                        each.skipped,
                        each.overdue,
                        each.seconds,
                    )
                    for name, each in now.stages.items()
                },
                outcomes=dict(now.outcomes),
                in_work=len(self._lives),
                waiting=waiting,
                resumed=now.resumed,
                dropped=dropped,
            )

    # --- hooks of the worker -----------------------------------------------------------------

    def before(self, message: Message) -> None:
        """See :class:`Hooks`."""
        saved = message.saved
        resumed_at = None if saved is None else saved.stage
        life = _Life(self._clock.now_ms(), resumed_at)
        with self._lock:
            self._lives[_key(message.delivery)] = life
            self._figures.resumed += resumed_at is not None

    def settled(self, delivery: Delivery, outcome: Outcome) -> None:
        """See :class:`Hooks`."""
        self._over(delivery, outcome.kind, None if outcome.fault is None else outcome.fault.text)

    def lost(self, delivery: Delivery, why: str) -> None:
        """See :class:`Hooks`."""
        self._over(delivery, Kind.LOST, why)

    # --- hooks of the stages -----------------------------------------------------------------

    def begun(self, message: Any, stage: str) -> None:
        """See :class:`StageHooks`."""
        with self._lock:
            life = self._lives.get(_key(message.delivery))
            if life is None:
                return
            self._figures.stages[stage].working += 1
            life.began_s = self._clock.monotonic_s()
            last = life.runs[-1] if life.runs else None
            if last is not None and last.stage == stage and last.outcome == "failed":
                last.attempts += 1
                last.outcome = UNFINISHED
            else:
                life.runs.append(StageRun(stage, self._clock.now_ms()))

    def finished(self, message: Any, stage: str, took_s: float) -> None:
        """See :class:`StageHooks`."""
        with self._lock:
            figures = self._end(message, stage, "done")
            if figures is not None:
                figures.done += 1
                figures.seconds += took_s

    def failed(self, message: Any, stage: str, error: BaseException, *, again: bool) -> None:
        """See :class:`StageHooks`."""
        del again
        with self._lock:
            figures = self._end(message, stage, "failed")
            if figures is not None:
                figures.failed += 1
            life = self._lives.get(_key(message.delivery))
            if life is not None:
                life.error = f"{type(error).__name__}: {error}"

    def skipped(self, message: Any, stage: str) -> None:
        """See :class:`StageHooks`."""
        with self._lock:
            self._figures.stages[stage].skipped += 1
            life = self._lives.get(_key(message.delivery))
            if life is not None:
                life.runs.append(StageRun(stage, self._clock.now_ms(), 0.0, 0, "skipped"))

    def overdue(self, message: Any, stage: str, limit_s: float) -> None:
        """See :class:`StageHooks`."""
        del message, limit_s
        with self._lock:
            self._figures.stages[stage].overdue += 1

    # --- inside ------------------------------------------------------------------------------

    def _end(self, message: Any, stage: str, outcome: str) -> StageFigures | None:
        """Note that a stage has ended; None: its message was settled before."""
        life = self._lives.get(_key(message.delivery))
        if life is None or not life.runs:
            return None
        run = life.runs[-1]
        run.outcome = outcome
        run.seconds += self._clock.monotonic_s() - life.began_s
        figures = self._figures.stages[stage]
        figures.working -= 1
        return figures

    def _over(self, delivery: Delivery, kind: Kind, reason: str | None) -> None:
        with self._lock:
            life = self._lives.pop(_key(delivery), None)
            if life is None and kind in {Kind.RETURNED, Kind.LOST}:
                return  # nobody has begun with it
            outcomes = self._figures.outcomes
            outcomes[kind.value] = outcomes.get(kind.value, 0) + 1
            now_ms = self._clock.now_ms()
            life = life or _Life(now_ms, None)
            if life.runs and life.runs[-1].outcome == UNFINISHED:
                run = life.runs[-1]
                run.seconds += self._clock.monotonic_s() - life.began_s
                self._figures.stages[run.stage].working -= 1
        self._emit(
            Row(
                message_id=delivery.message_id,
                queue=delivery.queue,
                delivery=delivery.dequeue_count,
                fence=delivery.fence,
                outcome=kind.value,
                reason=reason or (None if kind is Kind.DONE else life.error),
                resumed_at=life.resumed_at,
                began_at_ms=life.began_at_ms,
                ended_at_ms=now_ms,
                stages=life.runs,
            )
        )


def _key(delivery: Delivery) -> tuple[str, int]:
    return delivery.message_id, delivery.dequeue_count
