"""One message on its way through the stages: what to do next, without doing it.

:meth:`Run.steps` yields what is to be done, and gets what came of it, so that an ordinary and an
asynchronous caller share all rules.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias

from leasehold.domain.wording import times_of
from leasehold.worker.errors import Poison, WorkerError
from leasehold.worker.message import Message
from leasehold.worker.queues.errors import BodyTooLarge, NotSupported, Unreachable
from leasehold.worker.queues.protocol import Saved
from leasehold.worker.stages.declared import Done, Goto, Stage, StageOverdue
from leasehold.worker.stages.learning import Durations
from leasehold.worker.stages.resuming import Begin, Layout, as_json
from leasehold.worker.stages.stage_message import StageMessage
from leasehold.worker.stages.telling import Telling
from leasehold.worker.stages.watching import Watch, Watched
from leasehold.worker.timing import Time

_MOST_STAGES: Final = 1000
"""So many stages in one delivery are a circle of Gotos."""


class Call(NamedTuple):
    """Call a stage; send back what it returns."""

    stage: Stage
    message: StageMessage
    state: Any
    stoppable: bool
    """Whether it is to be stopped when it is overdue."""


class Save(NamedTuple):
    """Save it with the message."""

    saved: Saved


class Wait(NamedTuple):
    """Wait, and no longer than until the work is to stop."""

    seconds: float


Step: TypeAlias = Call | Save | Wait
Steps: TypeAlias = Generator[Step, Any, None]


@dataclass(slots=True, kw_only=True)
class Run:
    """One message and its pipeline."""

    message: Message
    stages: Sequence[Stage]
    layout: Layout
    save_end: bool
    telling: Telling
    durations: Durations
    watch: Watch
    time: Time

    def steps(self) -> Steps:
        """Go through the stages that are left."""
        begin = self.layout.begin(self.message.saved)
        if begin.dropped is not None:
            self.telling.restarted(self.message, begin.dropped)
        place, state = self._first(begin)
        # A message that was delivered before may have died in the stage that is first now.
        resumed = self.message.dequeue_count > 1
        for _ in range(_MOST_STAGES):
            if place >= len(self.stages):
                return
            stage = self.stages[place]
            seen = StageMessage(self.message, self.layout, place, state, resumed=resumed)
            returned = yield from self._attempts(stage, seen)
            try:
                place, state = self._next(place, returned)
            except Exception as error:
                error.add_note(f"after stage {stage.name!r}")
                raise
            if place < len(self.stages) or self.save_end:
                yield from self._save(stage, place, state)
            resumed = False
        raise Poison(f"the stages go round in circles: {_MOST_STAGES} were done, and no end")

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
            place += 1
        return place

    def _attempts(self, stage: Stage, seen: StageMessage) -> Generator[Step, Any, Any]:
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
        stoppable = isinstance(stage.timeout_s, int | float)
        watched = self._watched(stage, seen, stoppable=stoppable)
        began_s = self.time.monotonic_s()
        try:
            # Whatever a failed attempt does to the state must not reach the next one.
            state = as_json(seen.state) if stage.retries else seen.state
            returned = yield Call(stage, seen, state, stoppable)
        finally:
            if watched is not None:
                watched.end()
        took_s = self.time.monotonic_s() - began_s
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

    def _save(self, stage: Stage, place: int, state: Any) -> Generator[Step, Any, None]:
        saved = self.layout.saved(place, state, 0)
        try:
            yield Save(saved)
        except NotSupported as error:
            raise NotSupported(
                f"the queue {self.message.queue} keeps no progress; see Stages.check_queue"
            ) from error
        except (Unreachable, BodyTooLarge) as error:
            if stage.must_save:
                raise
            self.telling.not_saved(self.message, saved.stage or "", error)
