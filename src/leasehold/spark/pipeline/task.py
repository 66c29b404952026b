"""What one task of Spark does: it is a worker, until there is nothing left or it is told to stop.

The task returns next to nothing. What it does goes to the driver over a connection of its own, and
only what the driver has not confirmed is handed to Spark as the task's result.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import pyarrow as pa

from leasehold.clock import SystemClock
from leasehold.spark.pipeline.backlog import Backlog
from leasehold.spark.pipeline.declared import Pipeline
from leasehold.spark.pipeline.hands import Hands
from leasehold.spark.pipeline.link import Link
from leasehold.spark.pipeline.recording import Recorder
from leasehold.spark.pipeline.rows import Figures, Who
from leasehold.spark.pipeline.wire import Address, Answer, Left
from leasehold.worker.leases import LeaseSettings
from leasehold.worker.queues import Unreachable
from leasehold.worker.queues.specs import QueueSpec
from leasehold.worker.retrying import PoisonRule, RetryRule
from leasehold.worker.timing import SystemTime
from leasehold.worker.worker import Worker

_log: Final = logging.getLogger("leasehold.spark.pipeline")
RESULT: Final = "content binary"
"""Columns of what tasks return."""
_LOOK_S: Final = 0.25
_WAIT_S: Final = 0.5
"""Short, since a receive that is under way holds up the end of a task."""
_LONG_WAIT_S: Final = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What all tasks of a run are told. It is pickled, and holds the credentials of the queue."""

    pipeline: Pipeline
    queue: QueueSpec
    address: Address | None
    drains: bool
    at_once: int | None
    lease: LeaseSettings
    prefetch: int | None
    retries: RetryRule
    poison: PoisonRule
    grace_s: float

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Work; what Spark calls in each task."""
        for _ in batches:
            pass  # the number of the task, which its context has too
        left = Task(self, current()).run()
        yield pa.RecordBatch.from_pydict({"content": [msgspec.json.encode(left)]})


def current() -> Who:
    """Return which task this is."""
    from pyspark import TaskContext  # noqa: PLC0415 - the rest needs no Spark

    context: Any = TaskContext.get()
    host = socket.gethostname()
    return Who(
        link=secrets.token_hex(8),
        executor=f"{host}:{os.getppid()}",
        host=host,
        pid=os.getpid(),
        task=0 if context is None else context.partitionId(),
        attempt=0 if context is None else context.attemptNumber(),
    )


class Task:
    """One attempt at a task.

    Args:
        plan: What to do.
        who: Which task it is.
    """

    def __init__(self, plan: Plan, who: Who) -> None:
        self._plan = plan
        self._who = who
        self._clock = SystemClock()
        self._parent = os.getppid()
        self._wishes = threading.Condition()
        self._stop_s: float | None = None
        self._hurries = False
        self._link = Link(
            plan.address, who, figures=self._figures, heard=self._heard, time=SystemTime()
        )
        self._recorder = Recorder(plan.pipeline.names, self._clock, self._link.tell)
        self._stages = plan.pipeline.stages([self._recorder])
        self._hands: Hands | None = None

    def run(self) -> Left:
        """Work until it is over; return what the driver has to know still."""
        failure: str | None = None
        self._link.start()
        try:
            self._hands = Hands(self._worker, self._at_once())
            with Backlog(self._plan.queue) as backlog:
                failure = self._work(self._hands, backlog)
        except Exception as error:  # noqa: BLE001 - a message's failure does not come here
            # Another attempt would end in the same way, so Spark is not to make one.
            _log.exception("the task cannot go on")
            failure = f"{type(error).__name__}: {error}"
        finally:
            self._stages.close()
            first, rows = self._link.close()
        return Left(self._who, first, rows, self._figures(), failure)

    # --- inside ------------------------------------------------------------------------------

    def _work(self, hands: Hands, backlog: Backlog) -> str | None:
        hands.start()
        try:
            while not hands.is_over:
                with self._wishes:
                    if self._stop_s is None:
                        self._wishes.wait(_LOOK_S)
                    grace_s = self._stop_s
                if grace_s is not None:
                    self._end(hands, grace_s)
                elif os.getppid() != self._parent:
                    # The executor is gone, and nobody waits for this process any more.
                    hands.stop(0)
                elif self._plan.drains and hands.is_idle and self._is_drained(backlog):
                    hands.stop(self._plan.grace_s)
                else:
                    hands.look()
        finally:
            hands.stop(0)
        error = hands.failure
        return None if error is None else f"{type(error).__name__}: {error}"

    def _end(self, hands: Hands, grace_s: float) -> None:
        """Stop, and hear meanwhile whether it has to be faster."""
        stopping = threading.Thread(target=hands.stop, args=(grace_s,), daemon=True)
        stopping.start()
        with self._wishes:
            while stopping.is_alive():
                if self._hurries:
                    hands.hurry()
                self._wishes.wait(_LOOK_S)
        stopping.join()

    @staticmethod
    def _is_drained(backlog: Backlog) -> bool:
        """Return whether nothing is left, whoever has it.

        Raises:
            QueueError: The queue is gone, or counting is not allowed.
        """
        try:
            return not backlog.look().unsettled
        except Unreachable:
            return False

    def _at_once(self) -> int | None:
        given, rows = self._plan.at_once, self._plan.pipeline.batch_rows
        # One batch is worked on while the next one comes together.
        return given if given is not None or not rows else 2 * rows

    def _worker(self, at_once: int) -> Worker:
        plan = self._plan
        return Worker(
            self._stages.acall if self._stages.is_async else self._stages,
            plan.queue,
            concurrency=at_once,
            runner="asyncio" if self._stages.is_async else "threads",
            lease=plan.lease,
            prefetch=plan.prefetch,
            retries=plan.retries,
            poison=plan.poison,
            hooks=(self._recorder,),
            name=f"{plan.pipeline.name} {self._who.task}.{self._who.attempt} {self._who.link}",
            wait_s=_WAIT_S if plan.drains else _LONG_WAIT_S,
        )

    def _figures(self) -> Figures:
        hands = self._hands
        waiting = 0 if hands is None or hands.is_over else hands.waiting
        return self._recorder.figures(waiting=waiting, dropped=self._link.dropped)

    def _heard(self, answer: Answer) -> None:
        with self._wishes:
            if answer.stop_s is not None and self._stop_s is None:
                self._stop_s = answer.stop_s
            self._hurries = self._hurries or answer.hurry
            self._wishes.notify_all()
