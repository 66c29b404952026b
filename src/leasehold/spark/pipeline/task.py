"""What one task of Spark does: it is a worker, until there is nothing left or it is told to stop.

The task returns next to nothing. What it does goes to the driver over a connection of its own, and
only what the driver has not confirmed is handed to Spark as the task's result.
"""

from __future__ import annotations

import logging
import os
import secrets
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from types import FrameType
from typing import Any, Final

import msgspec
import pyarrow as pa

from leasehold import spans
from leasehold.clock import Clock, SystemClock
from leasehold.spark.connection import SERVICE
from leasehold.spark.pipeline.backlog import Backlog
from leasehold.spark.pipeline.channel import Address, Answer, Link, TaskResult
from leasehold.spark.pipeline.report import UNFINISHED, Figures, Row, StageFigures, StageRun, Who
from leasehold.worker.adapters import Unreachable
from leasehold.worker.adapters.protocol import Delivery
from leasehold.worker.adapters.specs import QueueSpec
from leasehold.worker.errors import WorkerError
from leasehold.worker.hooks import Hooks
from leasehold.worker.leases import LeaseSettings
from leasehold.worker.message import Message
from leasehold.worker.options import MAX_CONCURRENCY
from leasehold.worker.outcomes import Kind, Outcome
from leasehold.worker.retry_policy import PoisonRule, RetryRule
from leasehold.worker.stages import StageHooks, Stages
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

    name: str
    """Of the pipeline."""
    stage_names: tuple[str, ...]
    make_stages: Callable[[Sequence[StageHooks]], Stages]
    batch_rows: int
    """Messages that the largest batch of a stage has; 0: no stage works on batches."""
    queue: QueueSpec
    before: tuple[str, ...] = ()
    """Other queues from which messages go on in it."""
    address: Address | None
    drains: bool
    at_once: int | None
    lease: LeaseSettings
    lease_as_set: bool = False
    prefetch: int | None
    retries: RetryRule
    poison: PoisonRule
    grace_s: float
    hand_over_s: float = 60.0
    tracing: bool = False
    """Whether this process sends spans, if it does not anyway."""

    def __call__(self, batches: Iterator[pa.RecordBatch], job: int) -> Iterator[pa.RecordBatch]:
        """Work; what Spark calls in each task of a job."""
        for _ in batches:
            pass  # the number of the task, which its context has too
        if self.tracing:
            spans.start(SERVICE)
        task = Task(self, current(job))
        with leaving_on_signals(task.leave):
            left = task.run()
        if self.tracing:
            spans.flush()  # Spark may end this process at any time from now on
        yield pa.RecordBatch.from_pydict({"content": [msgspec.json.encode(left)]})


_SIGNALS: Final = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]


@contextmanager
def leaving_on_signals(leave: Callable[[], None]) -> Iterator[None]:
    """Have *leave* called when the executor is ended from outside, as by a preemption.

    The system may tell this process itself with SIGTERM. If it tells only the executor, the process
    that its Python workers come from sends SIGHUP to all of them. Both would end them at once.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def heard(_number: int, _frame: FrameType | None) -> None:
        leave()

    before = {each: signal.signal(each, heard) for each in _SIGNALS}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def current(job: int) -> Who:
    """Return which task this is.

    Args:
        job: The number of its job within the run.
    """
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
        job=job,
        stage=-1 if context is None else context.stageId(),
        spark_task=-1 if context is None else context.taskAttemptId(),
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
        self._leaves = False
        self._link = Link(
            plan.address, who, figures=self._figures, heard=self._heard, time=SystemTime()
        )
        self._recorder = Recorder(plan.stage_names, self._clock, self._link.tell)
        self._stages = plan.make_stages([self._recorder])
        self._hands: Hands | None = None

    def leave(self) -> None:
        """Have it hand over what it has in work and end, since its executor goes.

        Takes no lock: signals call it.
        """
        self._leaves = True

    def run(self) -> TaskResult:
        """Work until it is over; return what the driver has to know still."""
        failure: str | None = None
        self._link.start()
        try:
            self._hands = Hands(self._worker, self._at_once())
            with Backlog(self._plan.queue, self._plan.before) as backlog:
                failure = self._work(self._hands, backlog)
        except Exception as error:  # noqa: BLE001 - a message's failure does not come here
            # Another attempt would end in the same way, so Spark is not to make one.
            _log.exception("the task cannot go on")
            failure = f"{type(error).__name__}: {error}"
        finally:
            self._stages.close()
            first, rows = self._link.close()
        return TaskResult(self._who, first, rows, self._figures(), failure)

    # --- inside ------------------------------------------------------------------------------

    def _work(self, hands: Hands, backlog: Backlog) -> str | None:
        hands.start()
        try:
            while not hands.is_over:
                with self._wishes:
                    if self._stop_s is None and not self._leaves:
                        self._wishes.wait(_LOOK_S)
                    grace_s = self._stop_s
                if grace_s is not None:
                    self._end(hands, grace_s)
                elif self._leaves or os.getppid() != self._parent:
                    # Without its executor the driver does not wait for this process any more.
                    self._end(hands, self._plan.hand_over_s, hands_over=True)
                elif self._plan.drains and hands.is_idle and self._is_drained(backlog):
                    hands.stop(self._plan.grace_s)
                else:
                    hands.look()
        finally:
            hands.stop(0)
        error = hands.failure
        return None if error is None else f"{type(error).__name__}: {error}"

    def _end(self, hands: Hands, grace_s: float, *, hands_over: bool = False) -> None:
        """Stop, and hear meanwhile whether it has to be faster."""
        stopping = threading.Thread(target=hands.stop, args=(grace_s,), daemon=True)
        stopping.start()
        if hands_over:
            # Not before, or what is given back at once would come round.
            while hands.is_receiving and stopping.is_alive():
                stopping.join(_MOMENT_S)
            self._recorder.hand_over()
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
            return backlog.is_drained()
        except Unreachable:
            return False

    def _at_once(self) -> int | None:
        given, rows = self._plan.at_once, self._plan.batch_rows
        # One batch is worked on while the next one comes together.
        return given if given is not None or not rows else min(2 * rows, MAX_CONCURRENCY)

    def _worker(self, at_once: int) -> Worker:
        plan = self._plan
        return Worker(
            self._stages.acall if self._stages.is_async else self._stages,
            plan.queue,
            concurrency=at_once,
            runner="asyncio" if self._stages.is_async else "threads",
            lease=plan.lease,
            lease_as_set=plan.lease_as_set,
            prefetch=plan.prefetch,
            retries=plan.retries,
            poison=plan.poison,
            hooks=(self._recorder,),
            name=f"{plan.name} {self._who.task}.{self._who.attempt} {self._who.link}",
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
            self._leaves = self._leaves or answer.leave
            self._wishes.notify_all()


# --- hands -------------------------------------------------------------------------------------
#
# The workers of one task: how many messages it works on at once.


FEW: Final = 8
"""Messages at once, as long as it is unknown how long they take."""
MORE: Final = 248
"""Further ones where each takes next to no time, so that their saves can share requests."""
SHORT_S: Final = 0.1
LONG_S: Final = 2.0
_ENOUGH: Final = 50
_LEAVE_S: Final = 300.0
_MOMENT_S: Final = 0.005


def wants_more(handling_s: float, *, has_more: bool) -> bool:
    """Return whether a task should work on many messages at once.

    What takes long is better left to tasks that are free; what takes no time mostly waits for the
    server to note its progress, and that is shared by all who wait.

    Args:
        handling_s: How long the last messages took on average, waiting included.
        has_more: Whether it does so now.
    """
    return handling_s < (LONG_S if has_more else SHORT_S)


class Hands:
    """Runs one worker, and a second, larger one while messages take next to no time.

    Args:
        make: Makes a worker that works on so many messages at once.
        at_once: How many; None: that is found out.
    """

    def __init__(self, make: Callable[[int], Worker], at_once: int | None) -> None:
        self._make = make
        self._adapts = at_once is None
        self._first = make(FEW if at_once is None else at_once)
        self._second: Worker | None = None
        self._leaving: threading.Thread | None = None
        self._seen = 0
        self._seen_s = 0.0
        self.failure: BaseException | None = None
        """Why the work cannot go on."""
        self._thread = threading.Thread(target=self._run, name="leasehold-first", daemon=True)

    def start(self) -> None:
        """Begin; the first worker runs when this returns, or has failed."""
        self._thread.start()
        while not self._first.is_running and self._thread.is_alive():
            self._thread.join(_MOMENT_S)

    @property
    def is_over(self) -> bool:
        """Whether the first worker has ended, by itself or because it was told to."""
        return not self._thread.is_alive()

    @property
    def is_receiving(self) -> bool:
        """Whether more messages may come."""
        return any(each.is_running for each in self._workers())

    @property
    def waiting(self) -> int:
        """How many messages were received and wait for a hand."""
        return sum(each.snapshot().buffered for each in self._workers())

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing in hand."""
        found = [each.snapshot() for each in self._workers()]
        return not any(each.in_work or each.buffered for each in found)

    def look(self) -> None:
        """See whether there should be more hands, or fewer; called several times a second."""
        if not self._adapts or self.is_over:
            return
        queue = self._first.stats.queues[0]
        many, took_s = sum(queue.handled) - self._seen, queue.handling_s - self._seen_s
        if many < _ENOUGH and took_s < LONG_S:
            return
        self._seen += many
        self._seen_s += took_s
        if wants_more(took_s / max(many, 1), has_more=self._second is not None):
            self._add()
        else:
            self._drop()

    def stop(self, grace_s: float) -> None:
        """Stop all, and return when that is done."""
        second = self._second
        self._first.request_stop(grace_s)
        if second is not None:
            second.stop(grace_s)
        self._first.stop(grace_s)
        if self._leaving is not None:
            self._leaving.join()

    def hurry(self) -> None:
        """Have a stop that is under way wait for messages in work no longer."""
        for each in self._workers():
            each.hurry()

    # --- inside ------------------------------------------------------------------------------

    def _workers(self) -> list[Worker]:
        second = self._second
        return [self._first] if second is None else [self._first, second]

    def _run(self) -> None:
        try:
            self._first.run(install_signals=False)
        except BaseException as error:  # noqa: BLE001 - for the thread of the task
            self.failure = error

    def _add(self) -> None:
        if self._second is None and (self._leaving is None or not self._leaving.is_alive()):
            try:
                second = self._make(MORE)
                second.start()
            except (RuntimeError, WorkerError, ValueError) as error:
                # Such as a limit on threads. The first worker does it all, only slower.
                _log.warning("no more than %d messages at once: %s", FEW, error)
                self._adapts = False
                return
            self._second = second
            _log.info("messages take next to no time: %d at once", FEW + MORE)

    def _drop(self) -> None:
        second, self._second = self._second, None
        if second is not None:
            self._leaving = threading.Thread(
                target=second.stop, args=(_LEAVE_S,), name="leasehold-leaving", daemon=True
            )
            self._leaving.start()


# --- recording ---------------------------------------------------------------------------------
#
# Takes note of what happens to each message in an executor: hooks of the worker and its stages.


HANDED_OVER: Final = "handed over, since the executor goes"
"""Why a message was given back that an executor had in work which was told to go."""


class _Life:
    """A message in work."""

    __slots__ = ("began_at_ms", "began_s", "error", "message", "resumed_at", "runs")

    def __init__(
        self, began_at_ms: int, resumed_at: str | None, message: Message | None = None
    ) -> None:
        self.message = message
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
        self._hands_over = False

    def hand_over(self) -> None:
        """Have each message in work stop at its next stage, ``check`` or ``checkpoint``.

        It is given back with what it has saved by then.
        """
        with self._lock:
            self._hands_over = True
            lives = list(self._lives.values())
        for each in lives:
            self._stop(each)

    def figures(self, waiting: int = 0, dropped: int = 0) -> Figures:
        """Return the figures so far; they are not changed any more."""
        now = self._figures
        with self._lock:
            return Figures(
                stages={name: copy(each) for name, each in now.stages.items()},
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
        life = _Life(self._clock.now_ms(), resumed_at, message)
        with self._lock:
            self._lives[_key(message.delivery)] = life
            # At its first delivery another queue has sent it on.
            self._figures.resumed += resumed_at is not None and message.dequeue_count > 1
            hands_over = self._hands_over
        if hands_over:
            self._stop(life)

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

    @staticmethod
    def _stop(life: _Life) -> None:
        life.error = life.error or HANDED_OVER
        if life.message is not None:
            life.message.cancel_token.set(HANDED_OVER)

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
                return  # no handler has begun with it
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
