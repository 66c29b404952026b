"""A handler in a process of its own that is killed at one of its lines.

What is to be played is given on standard input as JSON, by :func:`die_at`.
"""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from leasehold.worker.once.proving.deliveries import Draft, Shelf, call
from leasehold.worker.once.proving.tracing import LineSteps
from leasehold.worker.queues.protocol import Saved

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
from leasehold.worker.once.proving.dying import play
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
