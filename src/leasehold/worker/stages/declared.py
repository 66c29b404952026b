"""What a stage is, and what it may return to leave the order of the sequence."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One stage, as it was declared."""

    name: str
    run: Callable[[Any, Any], Any]
    """Takes the message and the state, returns the state for the next stage."""
    is_async: bool
    when: Callable[[Any, Any], bool] | None
    """Whether the stage is to be done; None: always."""
    retries: int
    retry_delay_s: float
    exhausted: Literal["fail", "poison"]
    timeout_s: StageTimeout
    must_save: bool
    weight: float


def make_stage(  # noqa: PLR0913 - each is a setting of its own
    name: str,
    run: Callable[[Any, Any], Any],
    *,
    when: Callable[[Any, Any], bool] | None = None,
    retries: int = 0,
    retry_delay_s: float = 0,
    exhausted: Literal["fail", "poison"] = "fail",
    timeout_s: StageTimeout = None,
    must_save: bool = False,
    weight: float = 1,
) -> Stage:
    """Return a stage, its settings checked; see :meth:`Stages.stage` for them."""
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"{name!r} is no name for a stage: 1 to 64 letters, digits, '_', '.', '-', "
            "beginning with a letter or '_'"
        )
    if retries < 0 or not retry_delay_s >= 0:
        raise ValueError(f"stage {name!r}: retries and retry_delay_s must be 0 or more")
    if isinstance(timeout_s, str):
        if timeout_s != "learned":
            raise ValueError(f"stage {name!r}: timeout_s is {timeout_s!r}; seconds or 'learned'")
    elif timeout_s is not None and not timeout_s > 0:
        raise ValueError(f"stage {name!r}: timeout_s is {timeout_s}; it must be above 0")
    if not weight > 0:
        raise ValueError(f"stage {name!r}: weight is {weight}; it must be above 0")
    return Stage(
        name=name,
        run=run,
        is_async=is_async(run),
        when=when,
        retries=retries,
        retry_delay_s=retry_delay_s,
        exhausted=exhausted,
        timeout_s=timeout_s,
        must_save=must_save,
        weight=weight,
    )


def is_async(run: Callable[..., Any]) -> bool:
    """Return whether calling *run* gives an awaitable; objects with an async call included."""
    called = run if inspect.isroutine(run) else getattr(run, "__call__", run)  # noqa: B004 - not whether it can be called, but what is called
    return inspect.iscoroutinefunction(run) or inspect.iscoroutinefunction(called)
