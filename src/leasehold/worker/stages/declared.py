"""What a stage is, and what it may return to leave the order of the sequence."""

from __future__ import annotations

import asyncio
import inspect
import json
import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Final, Literal, NamedTuple, TypeAlias, TypedDict

from leasehold.worker.adapters.protocol import Saved
from leasehold.worker.errors import Poison, Retry
from leasehold.worker.message import KEEP, Message

COMPLETED: Final = "(completed)"
"""Stands for the stage after the last: all work is done, only the message is left to be removed."""

StageTimeout: TypeAlias = "float | Literal['learned'] | None"
"""Seconds; "learned" from how long the stage took before; None: it may take any time."""

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}")


class StageOverdue(Exception):
    """A stage took longer than it may; the message is tried again like after any failure.

    Args:
        stage: Its name.
        limit_s: How long it may take, in seconds.
    """

    def __init__(self, stage: str, limit_s: float) -> None:
        super().__init__(f"stage {stage!r} took longer than {limit_s:g} s")
        self.stage = stage
        self.limit_s = limit_s

    def __reduce__(self) -> tuple[type[StageOverdue], tuple[str, float]]:
        return type(self), (self.stage, self.limit_s)


@dataclass(frozen=True, slots=True)
class Goto:
    """Returned by a stage: go on with the stage *stage*, before or after this one."""

    stage: str
    state: Any = None
    """What that stage gets."""


@dataclass(frozen=True, slots=True)
class Done:
    """Returned by a stage: all work is done, the stages after it are left out."""


class StageSettings(TypedDict, total=False):
    """Settings of a :class:`Stage`, as :meth:`Stages.stage` takes them."""

    when: Callable[[Any, Any], bool] | None
    retries: int
    retry_delay_s: float
    exhausted: Literal["fail", "poison"]
    timeout_s: StageTimeout
    must_save: bool
    weight: float
    queue: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One stage, as it was declared; see :meth:`Stages.stage` for its settings.

    Raises:
        ValueError: A setting is out of its range.
    """

    name: str
    run: Callable[[Any, Any], Any]
    """Takes the message and the state, returns the state for the next stage."""
    when: Callable[[Any, Any], bool] | None = None
    retries: int = 0
    retry_delay_s: float = 0
    exhausted: Literal["fail", "poison"] = "fail"
    timeout_s: StageTimeout = None
    must_save: bool = False
    weight: float = 1
    queue: str | None = None
    is_async: bool = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "is_async", is_async(self.run))
        timeout_s = self.timeout_s
        if not _NAME.fullmatch(self.name):
            raise ValueError(
                f"{self.name!r} is not a valid name of a stage: 1 to 64 letters, digits, '_', "
                "'.', '-', "
                "beginning with a letter or '_'"
            )
        if self.retries < 0 or not self.retry_delay_s >= 0:
            wrong = "retries and retry_delay_s must be 0 or more"
        elif isinstance(timeout_s, str) and timeout_s != "learned":
            wrong = f"timeout_s is {timeout_s!r}; seconds or 'learned'"
        elif isinstance(timeout_s, int | float) and not timeout_s > 0:
            wrong = f"timeout_s is {timeout_s}; it must be above 0"
        elif not self.weight > 0:
            wrong = f"weight is {self.weight}; it must be above 0"
        else:
            return
        raise ValueError(f"stage {self.name!r}: {wrong}")


def is_async(run: Callable[..., Any]) -> bool:
    """Return whether calling *run* gives an awaitable; objects with an async call included."""
    called = run if inspect.isroutine(run) else getattr(run, "__call__", run)  # noqa: B004 - not whether it can be called, but what is called
    return inspect.iscoroutinefunction(run) or inspect.iscoroutinefunction(called)


# --- hooks -------------------------------------------------------------------------------------
#
# What a pipeline tells those who watch it.


class StageHooks:
    """Does nothing at each step of a pipeline; override what is of interest.

    The methods are called in the thread that works, *overdue* in one of its own. An exception is
    logged and otherwise ignored.
    """

    def begun(self, message: Any, stage: str) -> None:
        """Run before each attempt at a stage."""

    def finished(self, message: Any, stage: str, took_s: float) -> None:
        """Run when a stage has succeeded, before its state is saved.

        Args:
            message: The message.
            stage: Name of the stage.
            took_s: Seconds that the attempt took.
        """

    def skipped(self, message: Any, stage: str) -> None:
        """Run when a stage is left out because of its *when*."""

    def failed(self, message: Any, stage: str, error: BaseException, *, again: bool) -> None:
        """Run when an attempt at a stage has failed.

        Args:
            message: The message.
            stage: Name of the stage.
            error: What it raised.
            again: Whether it is tried again at once.
        """

    def overdue(self, message: Any, stage: str, limit_s: float) -> None:
        """Run while a stage is still at work, once it has taken longer than *limit_s* seconds."""

    def not_saved(self, message: Any, stage: str, error: Exception) -> None:
        """Run when the work goes on although it could not be saved that *stage* comes next."""

    def restarted(self, message: Any, why: str) -> None:
        """Run when saved progress is not used and the work begins anew."""


# --- resuming ----------------------------------------------------------------------------------
#
# Where a holder goes on: pure functions from what was saved to the stage to begin with.
#
# A stage is saved under its name; a version of the pipeline above 1 follows it, as in
# ``encode@2``.


Migration: TypeAlias = Callable[[str, Any], "tuple[str, Any]"]
"""From the stage and the state of one version to those of the next."""
Older: TypeAlias = Literal["restart", "keep", "poison"]
"""What becomes of progress of an older version that nothing migrates: begin anew, take it as it is,
or set the message aside."""


class Begin(NamedTuple):
    """Where to begin."""

    place: int
    """Index of the stage; the number of stages if nothing is left to be done."""
    state: Any
    decided: bool
    """Whether it is known already that this stage is to be done."""
    dropped: str | None = None
    """Why what was saved is not used; None if it is, or if nothing was saved."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The order of the stages, and what earlier orders have become."""

    names: tuple[str, ...]
    weights: tuple[float, ...]
    version: int = 1
    renamed: Mapping[str, str] = field(default_factory=dict)
    migrations: Mapping[int, Migration] = field(default_factory=dict)
    """By the version that each begins from."""
    older: Older = "restart"

    def check(self) -> None:
        """Raise ValueError if there is no stage, or a name leads nowhere."""
        if not self.names:
            raise ValueError("the pipeline has no stage")
        if self.version < 1:
            raise ValueError(f"version is {self.version}; it must be 1 or more")
        for old, new in self.renamed.items():
            if old in self.names:
                raise ValueError(f"renamed: the stage {old!r} still exists")
            if new not in self.names and new != COMPLETED:
                raise ValueError(f"renamed: the stage {new!r} does not exist")
        for version in self.migrations:
            if not 1 <= version < self.version:
                raise ValueError(
                    f"a migration starts from version {version}; this is version {self.version}"
                )

    def place(self, name: str) -> int:
        """Return the index of a stage.

        Raises:
            ValueError: There is none of that name.
        """
        if name == COMPLETED:
            return len(self.names)
        try:
            return self.names.index(name)
        except ValueError:
            raise ValueError(
                f"{name!r} is not a stage; the stages are {', '.join(self.names)}"
            ) from None

    def saved(self, place: int, state: Any, fraction: float) -> Saved:
        """Return what to save when the stage at *place* is to be done next.

        Args:
            place: Its index; the number of stages if all is done.
            state: What it gets.
            fraction: How much of that stage is done.
        """
        name = COMPLETED if place == len(self.names) else self.names[place]
        label = name if self.version == 1 else f"{name}@{self.version}"
        return Saved(stage=label, state=state, fraction=self.fraction(place, fraction))

    def fraction(self, place: int, within: float) -> float:
        """Return how much of the whole is done when *within* of the stage at *place* is."""
        if place >= len(self.names):
            return 1
        before = [0, *accumulate(self.weights)]
        within = min(max(within, 0), 1)
        return (before[place] + within * self.weights[place]) / before[-1]

    def begin(self, saved: Saved | None) -> Begin:
        """Return where to begin.

        Raises:
            Poison: What was saved leads to no stage.
            Retry: A newer version of the pipeline has saved it; somebody who runs that shall go on.
        """
        if saved is None or saved.stage is None:
            return Begin(0, None if saved is None else saved.state, decided=False)
        name, version = split_label(saved.stage)
        state = saved.state
        if version > self.version:
            raise Retry(
                reason=f"version {version} of the pipeline has saved the progress; "
                f"this worker runs version {self.version}"
            )
        while version < self.version:
            migration = self.migrations.get(version)
            if migration is not None:
                name, state = migration(name, state)
            elif self.older != "keep":
                return self._old(version)
            version += 1
        return self._found(self.renamed.get(name, name), state)

    def _old(self, version: int) -> Begin:
        why = (
            f"version {version} of the pipeline saved the progress, and no migration leads to "
            f"version {self.version}"
        )
        if self.older == "poison":
            raise Poison(why)
        return Begin(0, None, decided=False, dropped=why)

    def _found(self, name: str, state: Any) -> Begin:
        if name == COMPLETED:
            return Begin(len(self.names), None, decided=True)
        if name not in self.names:
            raise Poison(
                f"the saved stage {name!r} is unknown; the stages are {', '.join(self.names)}"
            )
        return Begin(self.names.index(name), state, decided=True)


def split_label(label: str) -> tuple[str, int]:
    """Return the name of a stage and the version of its pipeline, of a label as it is saved."""
    name, mark, version = label.rpartition("@")
    if mark and version.isascii() and version.isdigit():
        return name, int(version)
    return label, 1


def as_json(state: Any) -> Any:
    """Return *state* as it comes back when it is saved: tuples as lists, keys as text.

    So a stage gets the same whether it follows at once or in another process.

    Raises:
        TypeError: JSON cannot say it.
    """
    if state is None or isinstance(state, str | bool | int):
        return state
    try:
        return json.loads(json.dumps(state, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise TypeError(f"a state must be representable in JSON: {error}") from error


# --- stage message -----------------------------------------------------------------------------
#
# The message as a stage gets it: the same, but what it saves belongs to the stage.


class StageMessage:
    """A message while one of its stages is done.

    It has all that a :class:`~leasehold.worker.message.Message` has. What a checkpoint saves leads
    back into this stage, and a fraction is one of this stage: how much that is of the whole is
    worked out.
    """

    def __init__(
        self, message: Message, layout: Layout, place: int, state: Any, *, resumed: bool
    ) -> None:
        self.message = message
        """The message itself."""
        self.stage = layout.names[place]
        """Name of the stage."""
        self.resumed = resumed
        """Whether another holder may have begun this stage: it is the first one since the message
        was delivered, and not for the first time."""
        self.attempt = 1
        """How often the stage was begun by this holder, this time included."""
        self.state = state
        """What the stage began with, or has saved since."""
        self._layout = layout
        self._place = place
        self._within = 0.0
        self.limit_s: float | None = None
        """After how many seconds the stage was found to take too long; None: it was not."""
        self._lock = threading.Lock()
        self._over: list[Callable[[], object]] = []

    def __repr__(self) -> str:
        return f"<StageMessage {self.stage} of {self.message!r}>"

    def __getattr__(self, name: str) -> Any:
        if name == "message":  # asked for by copy, before there is one
            raise AttributeError(name)
        return getattr(self.message, name)

    @property
    def overdue(self) -> bool:
        """Whether the stage has taken longer than it may."""
        return self.limit_s is not None

    @property
    def cancelled(self) -> bool:
        """Whether the stage is to stop."""
        return self.overdue or self.message.cancelled

    @property
    def cancel_reason(self) -> str | None:
        """Why the stage is to stop."""
        if self.limit_s is not None:
            return str(StageOverdue(self.stage, self.limit_s))
        return self.message.cancel_reason

    def check(self) -> None:
        """Go on only while the message is held, no operator wants the work to stop, and there is
        time.

        Raises:
            LeaseLost: Another worker has the message, or may have it soon.
            Cancelled: An operator, or the end of the worker, wants the work to stop.
            StageOverdue: The stage has taken longer than it may.
        """
        self.message.check()
        if self.limit_s is not None:
            raise StageOverdue(self.stage, self.limit_s)

    def checkpoint(
        self, state: Any = KEEP, *, stage: str | None = None, fraction: float | None = None
    ) -> None:
        """Save how far the stage has come; the next holder goes on in it with *state*.

        Args:
            state: Whatever JSON can say. If it is left out, the state saved last stays.
            stage: Another stage to be done next, instead of this one.
            fraction: How much of this stage is done, 0 to 1; None: as saved last.

        Raises:
            StageOverdue: The stage has taken longer than it may; it was saved.
            Exception: As :meth:`leasehold.worker.message.Message.checkpoint`.
        """
        place = self._place if stage is None else self._layout.place(stage)
        if state is not KEEP:
            self.state = as_json(state)
        if fraction is not None:
            self._within = fraction
        within = self._within if place == self._place else 0
        self.message.save(self._layout.saved(place, self.state, within))
        self.check()

    async def acheckpoint(
        self, state: Any = KEEP, *, stage: str | None = None, fraction: float | None = None
    ) -> None:
        """Do what :meth:`checkpoint` does, for asynchronous stages."""
        await asyncio.to_thread(self.checkpoint, state, stage=stage, fraction=fraction)

    def set_overdue(self, limit_s: float) -> None:
        """Have the stage stop, since it has taken longer than *limit_s* seconds."""
        with self._lock:
            self.limit_s = limit_s
            callbacks, self._over = self._over, []
        for callback in callbacks:
            callback()

    def portable(self) -> tuple[tuple[str, ...], tuple[float, ...], int, int, Any, bool, int]:
        """Return what another process needs for one of its own, besides the delivery.

        Names and weights of the stages, their version, which of them it is, the state, whether it
        is resumed, and the number of the attempt.
        """
        layout = self._layout
        return (
            *(layout.names, layout.weights, layout.version),
            *(self._place, self.state, self.resumed, self.attempt),
        )

    def on_overdue(self, callback: Callable[[], object]) -> None:
        """Call *callback* once when the stage has taken too long; at once if it has already."""
        with self._lock:
            if self.limit_s is None:
                self._over.append(callback)
                return
        callback()
