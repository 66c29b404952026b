"""Deliveries of one message to a handler, without a queue."""

from __future__ import annotations

import asyncio
import base64
import copy
import dis
import inspect
import json
import math
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, Final

from leasehold.worker.adapters.protocol import Delivery, Saved
from leasehold.worker.message import Message
from leasehold.worker.timing import SystemTime


@dataclass(frozen=True, slots=True)
class Draft:
    """What is the same at each delivery."""

    queue: str = "rehearsal"
    body: bytes = b""
    type: str | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    decode: Callable[[bytes], Any] | None = None


class Shelf:
    """The message as its queue would keep it: its progress, and the newest fence.

    Args:
        draft: Of the message.
        message_id: Its id.
    """

    def __init__(self, draft: Draft, message_id: str) -> None:
        self._draft = draft
        self._id = message_id
        self._newest = 0
        self._saved: Saved | None = None

    def deliver(self, fence: int) -> Message:
        """Return the message as a worker with that lease has it."""
        self._newest = max(self._newest, fence)
        draft = self._draft
        delivery = Delivery(
            queue=draft.queue,
            message_id=self._id,
            receipt="rehearsal",
            body=draft.body,
            dequeue_count=fence,
            fence=fence,
            type=draft.type,
            properties=draft.properties,
            saved=self._saved,
        )
        return Message(delivery, _Unaware(self, fence), SystemTime(), draft.decode)

    def save(self, fence: int, saved: Saved) -> None:
        """Keep the progress of the newest holder. A queue refuses that of any other."""
        if fence == self._newest:
            self._saved = saved


class _Unaware:
    """The lease of a worker that does not notice when it has ended: the worst there is."""

    def __init__(self, shelf: Shelf, fence: int) -> None:
        self._shelf = shelf
        self._fence = fence

    @property
    def deadline_s(self) -> float:
        """It never seems to end."""
        return math.inf

    def check(self) -> None:
        """Notice nothing."""

    def extend(self, visibility_timeout_s: int) -> None:
        """Believe that it worked."""

    def save(self, saved: Saved) -> None:
        """Believe that it worked."""
        self._shelf.save(self._fence, saved)


def call(handler: Callable[[Any], Any], message: Message) -> None:
    """Run a handler, synchronous or not, to its end."""
    answer = handler(message)
    if inspect.isawaitable(answer):
        asyncio.run(_wait_for(answer))


async def _wait_for(answer: Any) -> None:
    await answer


class Attempt:
    """A handler at work on one delivery, in a thread.

    Args:
        handler: Of the user.
        message: For it.
        steps: Watches its lines.
        at_end: Called when it has ended.
    """

    def __init__(
        self,
        handler: Callable[[Any], Any],
        message: Message,
        steps: LineSteps | None = None,
        at_end: Callable[[], object] | None = None,
    ) -> None:
        self._handler = handler
        self._message = message
        self._steps = steps
        self._at_end = at_end
        self.error: BaseException | None = None
        """What it raised."""
        # One that is stuck for good must not keep the program from ending.
        self._thread = threading.Thread(
            target=self._run, name=f"leasehold-rehearsal-{message.fence}", daemon=True
        )
        self._thread.start()

    def join(self, timeout_s: float) -> bool:
        """Wait for its end; return whether it came in time."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    @property
    def failure(self) -> str:
        """What it raised, for people."""
        return f"{type(self.error).__name__}: {self.error}"

    def _run(self) -> None:
        try:
            if self._steps is not None:
                self._steps.install()
            call(self._handler, self._message)
        except BaseException as error:  # noqa: BLE001 - whatever it is, it is the end of this attempt
            self.error = error
        finally:
            if self._at_end is not None:
                self._at_end()


# --- dying -------------------------------------------------------------------------------------
#
# A handler in a process of its own that is killed at one of its lines.
#
# What is to be played is given on standard input as JSON, by :func:`die_at`.


_LONGEST_S: Final = 120.0


class ChildFailed(Exception):
    """The process ended in another way than it should."""


def name_of(handler: Callable[..., Any]) -> str:
    """Return ``module:name`` of a handler that another process can import.

    Raises:
        ValueError: None can.
    """
    module = getattr(handler, "__module__", None)
    name = getattr(handler, "__qualname__", None)
    if module is None or name is None or module == "__main__" or "<" in name:
        raise ValueError(
            f"{handler!r} has no name in a module that another process could import: "
            f"use death='raise'"
        )
    return f"{module}:{name}"


def find(name: str) -> Callable[..., Any]:
    """Return what ``module:name`` names."""
    module_name, _, path = name.partition(":")
    found: Any = __import__(module_name, fromlist=["_"])
    for part in path.split("."):
        found = getattr(found, part)
    handler: Callable[..., Any] = found
    return handler


def die_at(  # noqa: PLR0913 - all by name
    step: int, *, name: str, draft: Draft, message_id: str, fence: int, files: Collection[str]
) -> tuple[str | None, Saved | None]:
    """Run a handler in another process, and kill that before line number *step*.

    Returns:
        Which line that was, None if the handler was over before; and what progress it had saved.

    Raises:
        ChildFailed: It did not start, or took too long.
    """
    with tempfile.TemporaryDirectory(prefix="leasehold-rehearsal-") as folder:
        saved_at, died_at = Path(folder, "saved.json"), Path(folder, "place")
        task = {
            "step": step,
            "name": name,
            "queue": draft.queue,
            "body": base64.b64encode(draft.body).decode(),
            "type": draft.type,
            "properties": dict(draft.properties),
            "message_id": message_id,
            "fence": fence,
            "files": list(files),
            "saved_at": str(saved_at),
            "died_at": str(died_at),
            "path": sys.path,
        }
        try:
            done = subprocess.run(  # noqa: S603 - this very program
                [sys.executable, "-c", _START],
                input=json.dumps(task),
                capture_output=True,
                text=True,
                check=False,
                timeout=_LONGEST_S,
            )
        except subprocess.TimeoutExpired as error:
            raise ChildFailed(f"the handler took over {_LONGEST_S:.0f} s") from error
        saved = Saved(**json.loads(saved_at.read_text())) if saved_at.exists() else None
        place = died_at.read_text() if died_at.exists() else None
    if done.returncode not in {0, -signal.SIGKILL}:
        last = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
        raise ChildFailed(last[0])
    return place, saved


# The search path comes with the task: without it the library itself might not be found.
_START: Final = """\
import json, sys
task = json.load(sys.stdin)
sys.path[:] = task["path"]
from leasehold.testing.fencing_runs import play
play(task)
"""


def play(task: dict[str, Any]) -> None:
    """Do what :func:`die_at` wrote down."""
    handler = find(task["name"])
    draft = Draft(
        queue=task["queue"],
        body=base64.b64decode(task["body"]),
        type=task["type"],
        properties=task["properties"],
    )
    shelf = _KeepingShelf(draft, task["message_id"], Path(task["saved_at"]))
    message = shelf.deliver(task["fence"])

    def at_step(step: int, place: str) -> None:
        if step == task["step"]:
            Path(task["died_at"]).write_text(place)
            os.kill(os.getpid(), signal.SIGKILL)

    LineSteps(task["files"], at_step).install()
    try:
        call(handler, message)
    finally:
        sys.settrace(None)


class _KeepingShelf(Shelf):
    """Keeps progress where it outlives the process."""

    def __init__(self, draft: Draft, message_id: str, path: Path) -> None:
        super().__init__(draft, message_id)
        self._path = path

    def save(self, fence: int, saved: Saved) -> None:
        """See :class:`Shelf`."""
        super().save(fence, saved)
        self._path.write_text(json.dumps(asdict(saved)))


# --- tracing -----------------------------------------------------------------------------------
#
# Stops a handler at a line of its own: to wait there, or to die there.


class Killed(BaseException):
    """The end of a worker, played by an exception that is not expected."""


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


# --- world -------------------------------------------------------------------------------------
#
# The world that a proof plays in: the user's handler, and the user's look at its effects.


_SHOWN: Final = 160
_TRIES: Final = 3
"""Deliveries to a handler that asks for another try."""


class CannotProve(Exception):
    """The proof would prove nothing: the handler fails, or the probe does not see its effect."""


@dataclass(slots=True)
class World:
    """What the user gave; see :func:`~leasehold.testing.fencing_proof.prove`."""

    handler: Callable[[Any], Any]
    probe: Callable[[], Any]
    draft: Draft
    reset: Callable[[], object] | None
    patience_s: float
    files: Sequence[str]
    reference: Any = None
    """What the probe shows after one delivery, where each scenario starts from the same state."""
    _token: str = field(default_factory=lambda: secrets.token_hex(4))
    _made: int = 0

    def begin(self) -> Shelf:
        """Start a scenario: put the state back, or take a message that no worker has seen."""
        if self.reset is not None:
            self.reset()
            return Shelf(self.draft, "rehearsal")
        self._made += 1
        return Shelf(self.draft, f"rehearsal-{self._token}-{self._made}")

    def message_id(self) -> str:
        """Return the id of the message of the scenario that began last."""
        return "rehearsal" if self.reset else f"rehearsal-{self._token}-{self._made}"

    def look(self) -> Any:
        """Return what the probe shows, apart from what changes later."""
        return copy.deepcopy(self.probe())

    def run(self, shelf: Shelf, fence: int, steps: LineSteps | None = None) -> Attempt:
        """Deliver a message and wait for the end of the handler.

        Raises:
            CannotProve: It does not end.
        """
        attempt = Attempt(self.handler, shelf.deliver(fence), steps)
        if not attempt.join(self.longest_s):
            raise CannotProve(f"the handler was not done after {self.longest_s:.0f} s")
        return attempt

    def run_until_done(self, shelf: Shelf, fence: int) -> Attempt:
        """Deliver a message as a queue does: again, with newer fences, while the handler fails."""
        attempt = self.run(shelf, fence)
        for newer in range(fence + 1, fence + _TRIES):
            if attempt.error is None:
                break
            attempt = self.run(shelf, newer)
        return attempt

    @property
    def longest_s(self) -> float:
        """How long a delivery may take that is not held up."""
        return max(60.0, self.patience_s * 10)

    def calibrate(self) -> int:
        """Run the handler once; return how many of its lines ran.

        Raises:
            CannotProve: It fails, its effect is not seen, or two runs leave two states.
        """
        steps = LineSteps(self.files)
        shelf = self.begin()
        before = self.look()
        if self.look() != before:
            raise CannotProve("the probe shows something else each time, with no worker running")
        attempt = self.run(shelf, 1, steps)
        if attempt.error is not None:
            raise CannotProve(f"the handler failed at a plain delivery: {attempt.failure}")
        after = self.look()
        if after == before:
            raise CannotProve("the probe does not see that the handler did anything")
        if self.reset is not None:
            self.run(self.begin(), 1)
            again = self.look()
            if again != after:
                raise CannotProve(
                    f"two plain deliveries, each from the start, leave two states: does the probe "
                    f"show a time, or reset forget something? {difference(after, again)}"
                )
            self.reference = after
        return steps.count


def difference(before: Any, after: Any) -> str:
    """Return both states for people."""
    return f"{_short(before)} became {_short(after)}"


def _short(state: Any) -> str:
    text = repr(state)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."


def source_of(handler: Callable[..., Any]) -> str | None:
    """Return the file whose lines are those of *handler*; None if there is none."""
    inner: Any = handler
    while True:
        if isinstance(inner, partial):
            inner = inner.func
        elif hasattr(inner, "__wrapped__"):
            inner = inner.__wrapped__
        else:
            break
    if not (inspect.isfunction(inner) or inspect.ismethod(inner)):
        inner = getattr(type(inner), "__call__", inner)  # noqa: B004 - not whether, but what
    code = getattr(inner, "__code__", None)
    return None if code is None else code.co_filename


def chosen(count: int, most: int) -> list[int]:
    """Return up to *most* of the numbers from 1 to *count*, the first and the last among them."""
    if count <= most:
        return list(range(1, count + 1))
    if most == 1:
        return [1]
    return sorted({1 + round(index * (count - 1) / (most - 1)) for index in range(most)})
