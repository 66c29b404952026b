"""A handler that works through a declared sequence of stages, and goes on where another stopped."""

from __future__ import annotations

import asyncio
import logging
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from itertools import pairwise
from typing import Any, Final, Literal, TypeAlias, TypeVar

from leasehold.clock import Clock, SystemClock
from leasehold.spans import DESTINATION, MESSAGE_ID, fail, is_used, tracer_of
from leasehold.worker.adapters.protocol import NotSupported, QueueClient, Saved
from leasehold.worker.message import Message
from leasehold.worker.stages.declared import (
    COMPLETED,
    Layout,
    Migration,
    Older,
    Stage,
    StageHooks,
    StageOverdue,
    StageTimeout,
    split_label,
)
from leasehold.worker.stages.isolated import IsolatedStage
from leasehold.worker.stages.run import (
    Call,
    Durations,
    Prepare,
    Run,
    Save,
    Step,
    Steps,
    Telling,
    Trail,
    Watch,
    done_before,
)
from leasehold.worker.timing import SystemTime, Time

SAVE_WITHIN_S: Final = 0.1
"""Little beside the lease that is waited for after a crash; a save takes a hundredth of it."""
_SAVER: Final = "leasehold-saves"
_log: Final = logging.getLogger("leasehold.worker.stages")
F = TypeVar("F", bound=Callable[..., Any])


class Stages:
    """A sequence of stages; call it with a message, as a worker does with its handler.

    ::

        pipeline = Stages()

        @pipeline.stage("scan")
        def scan(message, state):
            return {"clean": is_clean(message.text)}

        @pipeline.stage("encode", retries=2, timeout_s=600)
        def encode(message, state):
            for frame in range(state.get("frame", 0), FRAMES, CHUNK):
                encode_chunk(frame)
                message.checkpoint({**state, "frame": frame + CHUNK}, fraction=frame / FRAMES)
            return state

        Worker(pipeline, queues=[...])

    After each stage the name of the next and what the stage returned are saved with the message.
    Whoever gets the message after a crash begins with that stage and that state. The end of the
    last stage is not saved by itself: the message is completed then. A stage can be done more than
    once, if its holder dies before its end is saved, so its effects must bear that.

    Stages that take next to no time share a save, or need none if the message is completed soon:
    the end of a stage may wait until *save_within_s* after the first stage was begun whose end is
    not saved. It is saved at once if that time is over, if the stage must be saved, or if the next
    one is not known to take less, from ten attempts at it in this process. It is saved by a thread
    when the time is over while another stage is at work, and whenever the work ends otherwise than
    done. So a crash repeats the stage that was at work, from its last checkpoint, and besides it
    only stages that were begun less than *save_within_s* and the length of a request before.

    Stages may have queues of their own. Then a worker does those of its queue, and when another one
    is next, the message is completed and goes on in the queue of that stage, in one transaction. So
    workers of each queue, in any place, run the same pipeline.

    A stage is an ordinary or an asynchronous function of the message (a :class:`StageMessage`) and
    the state. It returns the state for the next one, which must be what JSON can say, or
    :class:`Goto` or :class:`Done`. The first stage gets None.

    A worker runs a pipeline with asynchronous stages in its event loop, unless it is told
    otherwise, and ordinary stages of it in threads beside that: it calls :meth:`acall`. Called like
    a function, such a pipeline runs an event loop of its own for each message.

    A pipeline can be shared by several workers, at the same time and one after the other; none of
    them closes it. Who uses one without a worker calls :meth:`close` at the end.

    Args:
        version: Of the pipeline, 1 or more; saved with the stage from 2 on. Progress that a newer
            version has saved is left to those who run it.
        renamed: New names of stages by those under which they may be saved.
        older: What becomes of progress of an older version that no :meth:`migration` brings up to
            this one: "restart" begins anew, "keep" takes it as it is, "poison" sets the message
            aside.
        save_end: Also save that all is done, before the message is completed: a holder that dies
            in between leaves nothing to be repeated. Costs one more request for each message.
        results: Have the event log keep what came of each message: the last state, and how long
            which stage took; see :meth:`leasehold.worker.Message.set_result`. Some 100 bytes for
            each stage, and no request.
        save_within_s: How long after its beginning a stage that has ended is saved at the latest,
            in seconds; 0 or more. 0: always before the next stage begins.
        hooks: Hear of what happens.
        time: That stages are measured by.
        clock: For the times in results; None: the machine's.
        name: For people, metrics and logs. None: the name in its module, as for a function.
    """

    def __init__(  # noqa: PLR0913 - each is a setting of its own
        self,
        *,
        version: int = 1,
        renamed: Mapping[str, str] | None = None,
        older: Older = "restart",
        save_end: bool = False,
        results: bool = False,
        save_within_s: float = SAVE_WITHIN_S,
        hooks: Iterable[StageHooks] = (),
        time: Time | None = None,
        clock: Clock | None = None,
        name: str | None = None,
    ) -> None:
        self._name = name
        self._version = version
        self._renamed = dict(renamed or {})
        self._older: Older = older
        self._save_end = save_end
        self._clock = (clock or SystemClock()) if results else None
        if not 0 <= save_within_s < math.inf:
            raise ValueError(f"save_within_s is {save_within_s}; it must be 0 or more")
        self._save_within_s = save_within_s
        self._hooks = tuple(hooks)
        self._time = time or SystemTime()
        self._stages: list[Stage] = []
        self._migrations: dict[int, Migration] = {}
        self._durations = Durations()
        self._layout: Layout | None = None
        self._watch = Watch(self._time)
        self._savings = Watch(self._time, _SAVER)
        self._has_warned = False
        self._made_spans: Spans | None = None

    def __getstate__(self) -> dict[str, Any]:
        watches = ("_watch", "_savings")
        state = {name: each for name, each in vars(self).items() if name not in watches}
        return {**state, "_made_spans": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        time = state["_time"]
        vars(self).update(state, _watch=Watch(time), _savings=Watch(time, _SAVER))

    def stage(  # noqa: PLR0913 - each is a setting of its own
        self,
        name: str,
        *,
        when: Callable[[Any, Any], bool] | None = None,
        retries: int = 0,
        retry_delay_s: float = 0,
        exhausted: Literal["fail", "poison"] = "fail",
        timeout_s: StageTimeout = None,
        must_save: bool = False,
        weight: float = 1,
        isolate: Literal["process"] | None = None,
        queue: str | None = None,
    ) -> Callable[[F], F]:
        """Return a decorator that makes a function the next stage; the function stays as it is.

        Args:
            name: Under which it is saved: letters, digits, ``_``, ``.``, ``-``.
            when: Of the message and the state: whether to do the stage. Otherwise it is skipped,
                and the state goes to the next.
            retries: How often it is tried again at once when it has failed, with the state that it
                has saved last. The lease is kept meanwhile.
            retry_delay_s: Seconds before each of these.
            exhausted: What follows when it has failed once more: "fail" has the whole message tried
                again, "poison" sets it aside.
            timeout_s: Seconds for one attempt. Past that it is reported, an asynchronous stage is
                cancelled, and an ordinary one is stopped at its next ``check`` or ``checkpoint``;
                it has failed and is not tried again at once. "learned": it is only reported, when
                it takes unusually long.
            must_save: Save the end of the stage before the next one begins, however short it was,
                and do not go on when that cannot be done, because the service did not answer or the
                state is too large. Otherwise the work goes on, and only a crash would repeat the
                stage.
            weight: How much of the whole work it is, compared with the others, for people who look
                at the fraction that is done.
            isolate: "process": the stage runs in a process of its own, which is killed at
                *timeout_s*, whatever it does, or ten seconds after its lease was lost. The message,
                the state and what it returns are pickled.
            queue: Name of the queue in which messages wait for it, of the same account; None: that
                of the stage before, or for the first that in which their producers put them.

        Raises:
            ValueError: A setting is out of its range, or the name is taken.
            RuntimeError: The pipeline is in use already.
        """

        def declare(run: F) -> F:
            if self._layout is not None:
                raise RuntimeError(f"stage {name!r} cannot be added: the pipeline is in use")
            if any(each.name == name for each in self._stages):
                raise ValueError(f"the stage {name!r} already exists")
            if isolate not in {None, "process"}:
                raise ValueError(f"stage {name!r}: isolate is {isolate!r}; 'process' or None")
            self._stages.append(
                Stage(
                    name=name,
                    run=run if isolate is None else IsolatedStage(run),
                    when=when,
                    retries=retries,
                    retry_delay_s=retry_delay_s,
                    exhausted=exhausted,
                    timeout_s=timeout_s,
                    must_save=must_save,
                    weight=weight,
                    queue=queue or (self._stages[-1].queue if self._stages else None),
                )
            )
            return run

        return declare

    def migration(self, from_version: int) -> Callable[[Migration], Migration]:
        """Return a decorator: the function brings progress to the version after *from_version*.

        It takes the saved stage and state, and returns those of the next version. Names are looked
        up in *renamed* after the last migration.
        """

        def declare(migrate: Migration) -> Migration:
            if self._layout is not None:
                raise RuntimeError("the migration cannot be added: the pipeline is already in use")
            if from_version in self._migrations:
                raise ValueError(f"a migration from version {from_version} already exists")
            self._migrations[from_version] = migrate
            return migrate

        return declare

    @property
    def layout(self) -> Layout:
        """The order of the stages. Asking for it ends the declaration.

        Raises:
            ValueError: There is no stage, or a name or a version leads nowhere.
        """
        if self._layout is None:
            layout = Layout(
                names=tuple(each.name for each in self._stages),
                weights=tuple(each.weight for each in self._stages),
                version=self._version,
                renamed=self._renamed,
                migrations=self._migrations,
                older=self._older,
            )
            layout.check()
            self._layout = layout
        return self._layout

    @property
    def handler_name(self) -> str:
        """What people call it: the name that it was given, or ``module:name``.

        The module is that of the first stage. If no name in it stands for the pipeline, as when a
        function has made it, the stages do.
        """
        if self._name is not None:
            return self._name
        if not self._stages:
            return type(self).__name__
        module = getattr(self._stages[0].run, "__module__", None) or type(self).__module__
        for name, each in tuple(vars(sys.modules.get(module, sys)).items()):
            if each is self:
                return f"{module}:{name}"
        ends = dict.fromkeys((self._stages[0].name, self._stages[-1].name))
        return f"{module}:{'-'.join(ends)}"

    @property
    def is_async(self) -> bool:
        """Whether one of the stages is an asynchronous function."""
        return any(each.is_async for each in self._stages)

    def __call__(self, message: Message) -> None:
        """Do the stages that are left.

        Raises:
            Poison: What was saved leads to no stage, or a stage has failed for good.
            Retry: A newer version of the pipeline has saved the progress.
            StageOverdue: A stage took longer than it may.
            Exception: What a stage raised.
        """
        if self.is_async:
            if _in_loop():
                raise RuntimeError("in an event loop, await acall(message)")
            asyncio.run(self.acall(message))
        else:
            drive(self._run(message).steps(), message, self._spans())

    async def acall(self, message: Message) -> None:
        """Do the stages that are left, from an event loop; see :meth:`__call__`."""
        await drive_async(self._run(message).steps(), message, self._spans())

    def _spans(self) -> Spans:
        """Return what makes a span of each stage; whether there are any is asked for once."""
        if self._made_spans is None:
            self._made_spans = spans_of_stages() if is_used() else no_span
        return self._made_spans

    def _run(self, message: Message) -> Run:
        if not self._has_warned and _looks_like_digits(message, len(self.layout.names)):
            self._has_warned = True
            _log.warning(
                "message %s of %s begins like two digits of state, %r, and is treated as plain "
                "text: if the queue uses this form, name the stages in its address "
                "(form=1:%s,2:...) or"
                " give its client a StagePrefixForm",
                *(message.delivery.message_id, message.queue, message.body[:2].decode()),
                self.layout.names[0],
            )
        return Run(
            message=message,
            stages=self._stages,
            layout=self.layout,
            save_end=self._save_end,
            save_within_s=self._save_within_s,
            telling=Telling(self._hooks),
            durations=self._durations,
            watch=self._watch,
            savings=self._savings,
            time=self._time,
            trail=None if self._clock is None else Trail(self._clock, done_before(message)),
        )

    def check_queue(self, client: QueueClient) -> None:
        """Make sure that progress can be kept; a worker asks before it begins.

        Raises:
            NotSupported: The service keeps none.
            ValueError: The pipeline is not complete.
        """
        if any(each.queue for each in self._stages) and not client.capabilities.forwards:
            raise NotSupported(
                f"{client.capabilities.service}, in this configuration, cannot forward messages "
                "to another queue in one step: leave out the queues of stages"
            )
        saves = len(self.layout.names) > 1 or self._save_end
        if saves and client.capabilities.saves == "no":
            raise NotSupported(
                f"{client.capabilities.service} does not store progress with its messages: give "
                "the worker KeepsProgress(client, SqliteProgress(path)) for the queue "
                f"{client.name}, "
                "with a file that all its workers share"
            )

    def where(self, saved: Saved | None) -> str:
        """Return for people how far saved progress is: ``stage 2 of 3, encode; 41 % of all``."""
        return where(self.layout, saved)

    def describe(self, form: Literal["text", "mermaid"] = "text") -> str:
        """Return the sequence for people, or as a flowchart in the language of Mermaid."""
        if form == "mermaid":
            return as_mermaid(self._stages)
        return as_text(self._stages, self._version)

    def worker_ended(self) -> None:
        """Hear that a worker calls it no more: its threads end, unless others need them.

        Workers call this. The pipeline can be used afterwards as before.
        """
        self._watch.rest()
        self._savings.rest()
        self._end_processes()

    def close(self) -> None:
        """End the threads that watch for stages that take too long, and save, if there are any.

        Stages that are at work are not watched any more, and the next one begins a new thread.
        """
        self._watch.close()
        self._savings.close()
        self._end_processes()

    def _end_processes(self) -> None:
        for each in self._stages:
            if isinstance(each.run, IsolatedStage):
                each.run.close()


def _in_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


# --- describing --------------------------------------------------------------------------------
#
# A pipeline for people: as text, and as a diagram.


def as_text(stages: Sequence[Stage], version: int) -> str:
    """Return one line for each stage."""
    width = max((len(each.name) for each in stages), default=0)
    lines = [f"{len(stages)} stages, version {version}"]
    for number, each in enumerate(stages, 1):
        lines.append(f"{number:>3}. {each.name:<{width}}  {'; '.join(_facts(each))}".rstrip())
    return "\n".join(lines)


def as_mermaid(stages: Sequence[Stage]) -> str:
    """Return a flowchart in the language of Mermaid; a stage that may be skipped is dashed."""
    lines = ["flowchart LR", "    received([received])"]
    for number, each in enumerate(stages, 1):
        facts = "<br/>".join([each.name, *_facts(each)])
        lines.append(f'    s{number}["{facts}"]')
    lines.append("    completed([completed])")
    places = ["received", *(f"s{number}" for number in range(1, len(stages) + 1)), "completed"]
    lines += [f"    {one} --> {next_}" for one, next_ in pairwise(places)]
    if any(each.when is not None for each in stages):
        lines.append("    classDef optional stroke-dasharray: 4 3")
        names = [f"s{n}" for n, each in enumerate(stages, 1) if each.when is not None]
        lines.append(f"    class {','.join(names)} optional")
    return "\n".join(lines)


def where(layout: Layout, saved: Saved | None) -> str:
    """Return where saved progress is, as in "stage 2 of 3, encode; 41 % of all"."""
    name = layout.names[0] if saved is None or saved.stage is None else split_label(saved.stage)[0]
    name = layout.renamed.get(name, name)
    done = ""
    if saved is not None and saved.fraction is not None:
        done = f"; {saved.fraction * 100:.0f} % of all"
    if name == COMPLETED:
        return "completed"
    if name not in layout.names:
        return f"stage {name}, which is unknown{done}"
    place = layout.names.index(name) + 1
    return f"stage {place} of {len(layout.names)}, {name}{done}"


def _facts(stage: Stage) -> list[str]:
    facts = []
    if stage.when is not None:
        facts.append("may be skipped")
    if stage.retries:
        after = f", {stage.retry_delay_s:g} s apart" if stage.retry_delay_s else ""
        facts.append(f"retries {stage.retries}{after}")
    if stage.exhausted == "poison":
        facts.append("then poison")
    if stage.timeout_s == "learned":
        facts.append("reported if unusually long")
    elif stage.timeout_s is not None:
        facts.append(f"at most {stage.timeout_s:g} s")
    if stage.must_save:
        facts.append("must be saved")
    if stage.queue is not None:
        facts.append(f"in queue {stage.queue}")
    return facts


# --- driving -----------------------------------------------------------------------------------
#
# Does what a run asks for: in this thread, or in an event loop.


def drive(steps: Steps, message: Message, spans: Spans) -> None:
    """Do all steps in this thread."""
    step = next(steps, None)
    while step is not None:
        try:
            answer = _do(step, message, spans)
        except BaseException as error:  # noqa: BLE001 - the run decides on it, and raises it
            step = _throw(steps, error)
        else:
            step = _send(steps, answer)


async def drive_async(steps: Steps, message: Message, spans: Spans) -> None:
    """Do all steps in the running event loop; what blocks is done in threads."""
    step = next(steps, None)
    while step is not None:
        try:
            answer = await _do_async(step, message, spans)
        except BaseException as error:  # noqa: BLE001 - the run decides on it, and raises it
            step = _throw(steps, error)
        else:
            step = _send(steps, answer)


Spans: TypeAlias = Callable[[Call], AbstractContextManager[None]]
"""Gives what is entered while a stage is at work."""
_NO_SPAN: Final = nullcontext()


def no_span(_: Call) -> AbstractContextManager[None]:
    """Return nothing to enter."""
    return _NO_SPAN


def spans_of_stages() -> Spans:
    """Return what makes a span of each attempt at a stage, below that of the message."""
    tracer = tracer_of("leasehold.worker.stages")

    @contextmanager
    def span(step: Call) -> Iterator[None]:
        attributes = {
            "leasehold.stage": step.stage.name,
            "leasehold.stage.attempt": step.message.attempt,
            DESTINATION: step.message.queue,
            MESSAGE_ID: step.message.id,
        }
        with tracer.start_as_current_span(
            f"stage {step.stage.name}",
            attributes=attributes,
            record_exception=False,
            set_status_on_exception=False,
        ) as made:
            try:
                yield
            except BaseException as error:
                fail(made, type(error).__qualname__)
                raise

    return span


def _send(steps: Steps, answer: Any) -> Step | None:
    try:
        return steps.send(answer)
    except StopIteration:
        return None


def _throw(steps: Steps, error: BaseException) -> Step | None:
    try:
        return steps.throw(error)
    except StopIteration:
        return None


def _do(step: Step, message: Message, spans: Spans) -> Any:
    if isinstance(step, Call):
        with spans(step):
            return step.stage.run(step.message, step.state)
    if isinstance(step, Save):
        return message.save_deferred() if step.saved is None else message.save(step.saved)
    if isinstance(step, Prepare):
        return step.run.prepare(step.message)
    return message.cancel_token.wait(step.seconds)


async def _do_async(step: Step, message: Message, spans: Spans) -> Any:
    if isinstance(step, Call):
        with spans(step):
            return await _call_async(step)
    if isinstance(step, Save):
        if step.saved is None:
            return await asyncio.to_thread(message.save_deferred)
        return await message.asave(step.saved)
    if isinstance(step, Prepare):
        return await asyncio.to_thread(step.run.prepare, step.message)
    return await asyncio.sleep(step.seconds)


async def _call_async(step: Call) -> Any:
    if not step.stage.is_async:
        return await _in_thread(step)
    if step.stoppable:
        return await _stoppable(step)
    return await step.stage.run(step.message, step.state)


async def _in_thread(step: Call) -> Any:
    call = asyncio.ensure_future(asyncio.to_thread(step.stage.run, step.message, step.state))
    try:
        return await asyncio.shield(call)
    except asyncio.CancelledError:
        # A thread cannot be cancelled. As long as it works, the message must not look free.
        await asyncio.wait([call])
        if not call.cancelled():
            call.exception()
        raise


async def _stoppable(step: Call) -> Any:
    loop = asyncio.get_running_loop()
    # A task of its own: the word that it is overdue may come when the next stage is at work.
    call = asyncio.ensure_future(step.stage.run(step.message, step.state))

    def stop() -> None:
        with suppress(RuntimeError):  # the loop is closed: it was overdue in its last moment
            loop.call_soon_threadsafe(call.cancel)

    step.message.on_overdue(stop)
    try:
        return await call
    except asyncio.CancelledError:
        task = asyncio.current_task()
        limit_s = step.message.limit_s
        if limit_s is None or (task is not None and task.cancelling()):
            raise
        raise StageOverdue(step.message.stage, limit_s) from None


def _looks_like_digits(message: Message, stages: int) -> bool:
    """Return whether a body that is taken as it is may begin with two digits of state.

    Nothing can tell for sure: there are names that begin with two digits.

    Args:
        message: One of which nothing is saved.
        stages: How many stages there are; a state beyond the end of the work is none.
    """
    body = message.delivery.body
    if message.saved is not None or not body[:2].isdigit() or len(body) < 2:  # noqa: PLR2004
        return False
    return not body[2:3].isdigit() and int(body[:2]) <= stages + 1
