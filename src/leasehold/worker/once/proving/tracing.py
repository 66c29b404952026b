"""Stops a handler at a line of its own: to wait there, or to die there."""

from __future__ import annotations

import dis
import sys
import threading
from collections.abc import Callable, Collection
from pathlib import Path
from types import FrameType
from typing import Any


class Killed(BaseException):
    """The end of a worker, played by an exception that nobody expects."""


class LineSteps:
    """Counts the lines of some files that one thread comes to, and does something at each.

    The end of a function counts too: what comes next may be a decorator's.

    Args:
        files: The files whose lines count.
        at_step: Called before a line runs, with its number, from 1, and its place.
    """

    def __init__(
        self, files: Collection[str], at_step: Callable[[int, str], object] | None = None
    ) -> None:
        self._files = frozenset(files)
        self._at_step = at_step
        self.count = 0

    def install(self) -> None:
        """Begin, in the thread that calls."""
        sys.settrace(self._at_call)

    def _at_call(self, frame: FrameType, event: str, arg: Any) -> Any:
        del event, arg
        return self._at_event if frame.f_code.co_filename in self._files else None

    def _at_event(self, frame: FrameType, event: str, arg: Any) -> Any:
        del arg
        if event == "line" or (event == "return" and _is_leaving(frame)):
            self.count += 1
            if self._at_step is not None:
                name = Path(frame.f_code.co_filename).name
                end = "" if event == "line" else " (its end)"
                self._at_step(self.count, f"{name}:{frame.f_lineno}{end}")
        return self._at_event


def _is_leaving(frame: FrameType) -> bool:
    """Tell a return from an await, a yield and an exception, which are the same event."""
    name = dis.opname[frame.f_code.co_code[frame.f_lasti]]
    return name.startswith("RETURN_") and name != "RETURN_GENERATOR"


class Pause:
    """Holds a thread at one step until it may go on.

    Args:
        step: From 1.
    """

    def __init__(self, step: int) -> None:
        self._step = step
        self._reached = threading.Event()
        self._released = threading.Event()
        self.place: str | None = None
        """Where it waits; None if it has not come so far."""

    def __call__(self, step: int, place: str) -> None:
        """See :class:`LineSteps`."""
        if step == self._step:
            self.place = place
            self._reached.set()
            self._released.wait()

    def pass_by(self) -> None:
        """Say that the thread has ended, whether it came so far or not."""
        self._reached.set()

    def wait(self, timeout_s: float) -> bool:
        """Wait until the thread is there, or has ended; return whether either is so in time."""
        return self._reached.wait(timeout_s)

    def release(self) -> None:
        """Let it go on."""
        self._released.set()
