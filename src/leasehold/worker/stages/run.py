"""One message on its way through the stages: what to do next, without doing it.

:meth:`Run.steps` yields what is to be done, and gets what came of it, so that an ordinary and an
asynchronous caller share all rules.
"""

from __future__ import annotations

import heapq
import json
import logging
import threading
from asyncio import CancelledError
from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, Final, NamedTuple, TypeAlias

from leasehold.clock import Clock
from leasehold.domain.wording import times_of
from leasehold.worker.adapters.protocol import (
    BodyTooLarge,
    Forward,
    NotSupported,
    Outgoing,
    QueueError,
    Saved,
    Unreachable,
)
from leasehold.worker.errors import LeaseLost, Poison, WorkerError
from leasehold.worker.message import ORIGIN, Message
from leasehold.worker.stages.declared import (
    Begin,
    Done,
    Goto,
    Layout,
    Stage,
    StageHooks,
    StageMessage,
    StageOverdue,
    as_json,
)
from leasehold.worker.stages.isolated import IsolatedStage
from leasehold.worker.timing import SystemTime, Time

_MOST_STAGES: Final = 1000
"""So many stages in one delivery are a circle of Gotos."""
_DONE: Final = "leasehold.stages"
"""Property of a message that was sent on: stages that are done, as results have them."""
_MOST_TOLD: Final = 4_096
"""Bytes of that."""


class Call(NamedTuple):
    """Call a stage; send back what it returns."""

    stage: Stage
    message: StageMessage
    state: Any
    stoppable: bool
    """Whether it is to be stopped when it is overdue."""


class Prepare(NamedTuple):
    """Have a process ready for a stage that runs in one; its time begins only then."""

    run: IsolatedStage
    message: StageMessage


class Save(NamedTuple):
    """Save it with the message; None: what was deferred."""

    saved: Saved | None


class Wait(NamedTuple):
    """Wait, and no longer than until the work is to stop."""

    seconds: float


Step: TypeAlias = Call | Prepare | Save | Wait
Steps: TypeAlias = Generator[Step, Any, None]


@dataclass(slots=True, kw_only=True)
class Run:
    """One message and its pipeline."""

    message: Message
    stages: Sequence[Stage]
    layout: Layout
    save_end: bool
    save_within_s: float
    """See :class:`Stages`."""
    telling: Telling
    durations: Durations
    watch: Watch
    savings: Watch
    """Calls back what is to be saved; a thread of its own, since a save may take its time."""
    time: Time
    trail: Trail | None = None
    """Takes note of the stages, for the result; None: there is to be none."""
    _since_s: float = 0.0
    """When the first stage was begun whose end is not saved."""
    _saving: Watched | None = None
    """Saves what was deferred, if nothing else has done so by then."""

    def steps(self) -> Steps:
        """Go through the stages that are left.

        However that ends, unless all is done: what was deferred is saved, so that the next holder
        goes on where this one stopped.
        """
        try:
            yield from self._all()
        except (Exception, CancelledError) as error:
            if self.message.is_deferred and not isinstance(error, LeaseLost):
                yield from self._save_deferred()
            raise
        finally:
            if self._saving is not None:
                self._saving.end()

    def _all(self) -> Steps:
        begin = self.layout.begin(self.message.saved)
        if begin.dropped is not None:
            self.telling.restarted(self.message, begin.dropped)
        place, state = self._first(begin)
        # A message that was delivered before may have died in the stage that is first now.
        resumed = self.message.dequeue_count > 1
        for _ in range(_MOST_STAGES):
            if place >= len(self.stages):
                if self.trail is not None:
                    self.message.set_stages(state, self.trail.stages)
                return
            stage = self.stages[place]
            queue = stage.queue or self.message.origin[0]
            if queue != self.message.queue:
                self._forward(queue, self.layout.saved(place, state, 0))
                return
            seen = StageMessage(self.message, self.layout, place, state, resumed=resumed)
            returned = yield from self._attempts(stage, seen)
            try:
                place, state = self._next(place, returned)
            except Exception as error:
                error.add_note(f"after stage {stage.name!r}")
                raise
            if self._can_wait(stage, place):
                self._defer(place, state)
            elif place < len(self.stages) or self.save_end:
                yield from self._save(stage, place, state)
            resumed = False
        raise Poison(f"the stages form a loop: {_MOST_STAGES:,} stages ran without an end")

    def _forward(self, queue: str, saved: Saved) -> None:
        given, done = self.message.delivery, self.trail.stages if self.trail else []
        properties = {**given.properties, ORIGIN: "/".join(self.message.origin)}
        told = json.dumps(done, separators=(",", ":"))
        if done and len(told) <= _MOST_TOLD:
            properties[_DONE] = told
        outgoing = Outgoing(
            body=given.body,
            type=given.type,
            properties=properties,
            traceparent=given.traceparent,
            group_id=given.group_id,
        )
        self.message.forward = Forward(queue=queue, outgoing=outgoing, saved=saved)

    def _first(self, begin: Begin) -> tuple[int, Any]:
        if begin.decided:
            return begin.place, begin.state
        return self._wanted(begin.place, begin.state), begin.state

    def _next(self, place: int, returned: Any) -> tuple[int, Any]:
        if isinstance(returned, Done) or returned is Done:
            return len(self.stages), None
        if isinstance(returned, Goto):
            return self.layout.place(returned.stage), as_json(returned.state)
        state = as_json(returned)
        return self._wanted(place + 1, state), state

    def _wanted(self, place: int, state: Any) -> int:
        """Return the first stage from *place* on that is to be done."""
        while place < len(self.stages):
            stage = self.stages[place]
            if stage.when is None or stage.when(self.message, state):
                break
            self.telling.tell("skipped", self.message, stage.name)
            if self.trail is not None:
                self.trail.skipped(stage.name)
            place += 1
        return place

    def _attempts(self, stage: Stage, seen: StageMessage) -> Generator[Step, Any, Any]:
        if not self.message.is_deferred:
            self._since_s = self.time.monotonic_s()
        while True:
            self.message.check()
            try:
                return (yield from self._attempt(stage, seen))
            except WorkerError:
                raise  # the stage says itself what shall become of the message
            except Exception as error:
                error.add_note(f"in stage {stage.name!r}, attempt {seen.attempt}")
                again = seen.attempt <= stage.retries and not isinstance(error, StageOverdue)
                self.telling.failed(self.message, stage.name, error, again=again)
                if not again:
                    if stage.exhausted == "poison" and not isinstance(error, StageOverdue):
                        raise Poison(
                            f"stage {stage.name!r} failed {times_of(seen.attempt)}: {error!r}"
                        ) from error
                    raise
            if stage.retry_delay_s:
                yield Wait(stage.retry_delay_s)
            seen.attempt += 1

    def _attempt(self, stage: Stage, seen: StageMessage) -> Generator[Step, Any, Any]:
        self.telling.tell("begun", self.message, stage.name)
        if isinstance(stage.run, IsolatedStage):
            yield Prepare(stage.run, seen)
        stoppable = isinstance(stage.timeout_s, int | float)
        watched = self._watched(stage, seen, stoppable=stoppable)
        began_s = self.time.monotonic_s()
        if self.trail is not None:
            self.trail.begun(stage.name, seen.attempt)
        try:
            # Whatever a failed attempt does to the state must not reach the next one.
            state = as_json(seen.state) if stage.retries else seen.state
            returned = yield Call(stage, seen, state, stoppable)
        finally:
            if watched is not None:
                watched.end()
            took_s = self.time.monotonic_s() - began_s
            if self.trail is not None:
                self.trail.ended(took_s)
        self.durations.add(stage.name, took_s)
        self.telling.tell("finished", self.message, stage.name, took_s)
        return returned

    def _watched(self, stage: Stage, seen: StageMessage, *, stoppable: bool) -> Watched | None:
        if isinstance(stage.timeout_s, str):
            limit_s = self.durations.limit_s(stage.name)
        else:
            limit_s = stage.timeout_s
        if limit_s is None:
            return None

        def overdue() -> None:
            if stoppable:
                seen.set_overdue(limit_s)
            self.telling.overdue(self.message, stage.name, limit_s)

        return self.watch.start(limit_s, overdue)

    # --- saving --------------------------------------------------------------------------------

    def _can_wait(self, stage: Stage, place: int) -> bool:
        """Return whether the end of *stage* need not be saved before the stage at *place* begins.

        That is so while little work would be lost, and not much is expected to go by before the
        next look. A stage of which that is not known may take long.
        """
        if stage.must_save or place >= len(self.stages):
            return False
        left_s = self._since_s + self.save_within_s - self.time.monotonic_s()
        return left_s > 0 and self.durations.is_short(self.stages[place].name, self.save_within_s)

    def _defer(self, place: int, state: Any) -> None:
        is_first = not self.message.is_deferred
        self.message.defer(self.layout.saved(place, state, 0))
        if is_first:
            if self._saving is not None:
                self._saving.end()
            left_s = self._since_s + self.save_within_s - self.time.monotonic_s()
            self._saving = self.savings.start(left_s, self._save_overdue)

    def _save_overdue(self) -> None:
        """Save what was deferred while a stage takes longer than it used to; in another thread."""
        try:
            self.message.save_deferred()
        except LeaseLost:
            pass  # whoever keeps the lease tells the handler
        except QueueError as error:
            self._tell_not_saved(error)

    def _save_deferred(self) -> Generator[Step, Any, None]:
        try:
            yield Save(None)
        except LeaseLost:
            pass  # what ends the work already says enough
        except QueueError as error:
            self._tell_not_saved(error)

    def _tell_not_saved(self, error: QueueError) -> None:
        saved = self.message.saved
        self.telling.not_saved(self.message, (saved.stage if saved else None) or "", error)

    def _save(self, stage: Stage, place: int, state: Any) -> Generator[Step, Any, None]:
        saved = self.layout.saved(place, state, 0)
        try:
            yield Save(saved)
        except NotSupported as error:
            raise NotSupported(
                f"the queue {self.message.queue} does not store progress; see Stages.check_queue"
            ) from error
        except (Unreachable, BodyTooLarge) as error:
            if stage.must_save:
                raise
            self.telling.not_saved(self.message, saved.stage or "", error)


class Trail:
    """The stages of one delivery that is done, as its result has them.

    Args:
        clock: Gives the times.
        before: Stages that were done in other queues.
    """

    __slots__ = ("_clock", "stages")

    def __init__(self, clock: Clock, before: Sequence[dict[str, Any]] = ()) -> None:
        self._clock = clock
        self.stages: list[dict[str, Any]] = [*before]
        """In order: ``stage``, ``began_at_ms``, ``seconds`` with all attempts, ``attempts``, and as
        ``outcome`` done or skipped."""

    def begun(self, stage: str, attempt: int) -> None:
        """Note that an attempt begins: the first adds the stage."""
        if attempt == 1:
            self._add(stage, "done")
        self.stages[-1]["attempts"] = attempt

    def ended(self, took_s: float) -> None:
        """Note that it has ended, be it with an error: then another follows, or no result does."""
        self.stages[-1]["seconds"] = round(self.stages[-1]["seconds"] + took_s, 3)

    def skipped(self, stage: str) -> None:
        """Note that a stage is not done."""
        self._add(stage, "skipped")

    def _add(self, stage: str, outcome: str) -> None:
        began_at_ms = self._clock.now_ms()
        self.stages.append(
            {
                "stage": stage,
                "began_at_ms": began_at_ms,
                "seconds": 0.0,
                "attempts": 0,
                "outcome": outcome,
            }
        )


def done_before(message: Message) -> list[dict[str, Any]]:
    """Return the stages that were done in other queues before the message was sent on."""
    if ORIGIN not in message.properties:
        return []
    found: list[dict[str, Any]] = json.loads(message.properties.get(_DONE, "[]"))
    return found


# --- telling -----------------------------------------------------------------------------------
#
# Calls the hooks of a pipeline; what goes wrong in one is logged and does no harm.


_log: Final = logging.getLogger("leasehold.worker.stages")


class Telling:
    """All hooks of a pipeline as one, and its log."""

    __slots__ = ("_hooks",)

    def __init__(self, hooks: Sequence[StageHooks]) -> None:
        self._hooks = hooks

    def tell(self, turn: str, *what: Any, **more: Any) -> None:
        """Call the method *turn* of each hook."""
        for hook in self._hooks:
            try:
                getattr(hook, turn)(*what, **more)
            except Exception:  # noqa: BLE001 - whoever watches must not stop the work
                _log.exception("stage_hook_failed", extra={"hook": type(hook).__name__})

    def failed(self, message: Message, stage: str, error: Exception, *, again: bool) -> None:
        """See the hooks; only what is tried again is logged, since the worker logs the rest."""
        if again:
            self._warn("stage_retried", message, stage, f"{type(error).__name__}: {error}")
        self.tell("failed", message, stage, error, again=again)

    def overdue(self, message: Message, stage: str, limit_s: float) -> None:
        """See the hooks."""
        self._warn("stage_overdue", message, stage, f"running for more than {limit_s:g} s")
        self.tell("overdue", message, stage, limit_s)

    def not_saved(self, message: Message, stage: str, error: Exception) -> None:
        """See the hooks."""
        self._warn("stage_not_saved", message, stage, f"the work continues: {error}")
        self.tell("not_saved", message, stage, error)

    def restarted(self, message: Message, why: str) -> None:
        """See the hooks."""
        self._warn("stages_restarted", message, "", why)
        self.tell("restarted", message, why)

    @staticmethod
    def _warn(action: str, message: Message, stage: str, text: str) -> None:
        where = f"{stage} of {message.id}" if stage else message.id
        _log.warning(
            "%s: %s",
            where,
            text,
            extra={
                "action": action,
                "queue": message.queue,
                "message_id": message.id,
                "stage": stage,
            },
        )


# --- watching ----------------------------------------------------------------------------------
#
# One thread that notices when something takes too long.


_LINGER_S: Final = 5.0
"""How long the thread stays when there is nothing to watch."""
_SLACK: Final = 64
_PATIENCE_S: Final = 1.0


class Watched:
    """Something with a limit."""

    __slots__ = ("_watch", "callback", "deadline_s", "ended")

    def __init__(self, watch: Watch, deadline_s: float, callback: Callable[[], None]) -> None:
        self._watch = watch
        self.deadline_s = deadline_s
        self.callback = callback
        self.ended = False

    def end(self) -> None:
        """It is over; nobody is to be called any more. Harmless when it is repeated."""
        self._watch.forget(self)


class Watch:
    """Calls back what has not ended by its deadline.

    The thread is started when there is something to watch, and ends by itself some seconds after
    the last has ended.
    """

    def __init__(self, time: Time | None = None, name: str = "leasehold-stages") -> None:
        self._time = time or SystemTime()
        self._name = name
        self._changed = threading.Condition()
        self._due: list[tuple[float, int, Watched]] = []
        self._numbers = count()
        self._live = 0
        self._thread: threading.Thread | None = None
        self._closing = False
        self._resting = False

    def start(self, limit_s: float, callback: Callable[[], None]) -> Watched:
        """Call *callback* once, in the thread, unless it ends within *limit_s* seconds."""
        watched = Watched(self, self._time.monotonic_s() + limit_s, callback)
        with self._changed:
            heapq.heappush(self._due, (watched.deadline_s, next(self._numbers), watched))
            self._live += 1
            self._resting = False
            if self._thread is None:
                self._closing = False
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()
            elif self._due[0][2] is watched:
                self._changed.notify_all()
        return watched

    def forget(self, watched: Watched) -> None:
        """See :meth:`Watched.end`."""
        with self._changed:
            if watched.ended:
                return
            watched.ended = True
            self._live -= 1
            # Those that ended stay until their deadline; with long limits they would pile up.
            if len(self._due) > 2 * self._live + _SLACK:
                self._due = [each for each in self._due if not each[2].ended]
                heapq.heapify(self._due)

    def rest(self) -> None:
        """End the thread as soon as it watches nothing; whoever starts something has it back."""
        with self._changed:
            self._resting = True
            thread = None if self._live else self._thread
            self._changed.notify_all()
        if thread is not None and thread is not threading.current_thread():
            thread.join(_PATIENCE_S)

    def close(self) -> None:
        """End the thread; what is watched now is not called back. The next start begins anew."""
        with self._changed:
            thread, self._closing = self._thread, True
            self._changed.notify_all()
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                callbacks = self._wait()
                if callbacks is None:
                    self._thread = None
                    return
            for callback in callbacks:
                try:
                    callback()
                except Exception:  # noqa: BLE001 - the thread serves others as well
                    _log.exception("watch_callback_failed")

    def _wait(self) -> list[Callable[[], None]] | None:
        """Return the callbacks that are due, or None when the thread is to end."""
        leave_s = self._time.monotonic_s() + _LINGER_S
        while not self._closing:
            now_s = self._time.monotonic_s()
            found = []
            while self._due and (self._due[0][2].ended or self._due[0][0] <= now_s):
                watched = heapq.heappop(self._due)[2]
                if not watched.ended:
                    watched.ended = True
                    self._live -= 1
                    found.append(watched.callback)
            if found:
                return found
            until_s = self._due[0][0] if self._live else leave_s
            if until_s <= now_s or (self._resting and not self._live):
                return None
            self._time.wait(self._changed, until_s - now_s)
            if self._live:
                leave_s = self._time.monotonic_s() + _LINGER_S
        return None


# --- learning ----------------------------------------------------------------------------------
#
# How long a stage usually takes, to notice when it takes much longer.


REMEMBERED: Final = 50
"""So many of the latest successful attempts count."""
ENOUGH: Final = 10
"""With fewer nothing is known."""
_MOST_LONG: Final = 0.1
"""A stage is short as long as no more of its attempts than these were not."""
TIMES_LONGEST: Final = 4
LEAST_S: Final = 1.0


def learned_limit_s(durations_s: Sequence[float]) -> float | None:
    """Return after how many seconds a stage is taking unusually long; None: too early to say.

    It is four times the longest of the latest fifty successful attempts, and a second at least:
    attempts that vary little give a close limit, those that vary much a wide one.
    """
    if len(durations_s) < ENOUGH:
        return None
    return max(LEAST_S, TIMES_LONGEST * max(durations_s))


class Durations:
    """How long the latest attempts at each stage took. May be used by several threads."""

    def __init__(self) -> None:
        self._latest: dict[str, deque[float]] = {}

    def add(self, stage: str, took_s: float) -> None:
        """Remember an attempt that succeeded."""
        self._latest.setdefault(stage, deque(maxlen=REMEMBERED)).append(took_s)

    def limit_s(self, stage: str) -> float | None:
        """See :func:`learned_limit_s`."""
        latest = self._latest.get(stage)
        return None if latest is None else learned_limit_s(latest.copy())

    def is_short(self, stage: str, below_s: float) -> bool:
        """Return whether nine of ten attempts took less than *below_s*; not before it is known."""
        latest = self._latest.get(stage)
        if latest is None or len(latest) < ENOUGH:
            return False
        long = sum(1 for each in latest.copy() if each >= below_s)
        return long <= _MOST_LONG * len(latest)
