"""Those who do the work, and the accidents that happen to them. Here: plain worker processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Protocol, Self

from examples.video_pipeline.results import Results
from examples.video_pipeline.worker import CONNECTION_VARIABLE

REPOSITORY: Final = Path(__file__).resolve().parents[2]


class Crew(Protocol):
    """Whoever works on the messages; a context manager that ends all it has started."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...

    def prepare(self, say: Callable[[str], None]) -> None:
        """Start what must be there before the first message.

        Args:
            say: Tells people what is being done, and in the end what is there.
        """
        ...

    def begin(self, began_s: float) -> None:
        """Begin to work. The story began at *began_s*, monotonic seconds."""
        ...

    def replace(self) -> None:
        """Start somebody in place of one who was killed, as a supervisor would."""
        ...

    def kill(self, name: str) -> None:
        """End one, with its ffmpeg, without a chance to say anything."""
        ...

    def suspend(self, name: str) -> None:
        """Let one stand still, with its ffmpeg."""
        ...

    def wake(self, name: str) -> None:
        """Let it go on as if no time had passed."""
        ...

    def vanished(self) -> list[str]:
        """Return those that ended although nobody killed them."""
        ...

    def dismiss(self, within_s: float) -> list[str]:
        """Ask all to finish; return what went wrong with that."""
        ...

    def report(self) -> list[dict[str, Any]]:
        """Return a row for each delivery, where somebody keeps them."""
        ...

    def results(self) -> Results | None:
        """Return what became of the messages, where that is gathered."""
        ...


class WorkerCrew:
    """Starts workers ``w1``, ``w2``, … and ends all of them when the block ends.

    Each worker leads a process group of its own, with its ffmpeg in it: a signal to the group
    strikes as a power cut or a suspended machine would, and Ctrl-C does not reach it. The groups
    stay in our session: should we be killed, the system ends those that stand still.
    """

    def __init__(
        self, root: Path, *, connection_string: str, queue: str, lease_s: int, workers: int
    ) -> None:
        self._root = root
        self._count = workers
        self._environment = {
            **os.environ,
            CONNECTION_VARIABLE: connection_string,
            "PYTHONPATH": str(REPOSITORY),
        }
        self._arguments = (str(root), queue, str(lease_s))
        self._began_s = 0.0
        self._workers: dict[str, subprocess.Popen[bytes]] = {}
        self._killed: set[str] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for name in self._workers:
            self._signal(name, signal.SIGKILL)
        for process in self._workers.values():
            process.communicate()

    def prepare(self, say: Callable[[str], None]) -> None:
        """Say how many there will be; they need no preparation."""
        say(f"{self._count} workers")

    def begin(self, began_s: float) -> None:
        """Start the workers."""
        self._began_s = began_s
        for _ in range(self._count):
            self.replace()

    def report(self) -> list[dict[str, Any]]:
        """Return nothing: workers report to nobody."""
        return []

    def results(self) -> None:
        """Return nothing: it is Spark that gathers them."""

    def replace(self) -> None:
        """Start one more worker; names are never used again."""
        name = f"w{len(self._workers) + 1}"
        command = (sys.executable, "-m", "examples.video_pipeline.worker", name)
        with (self._root / "logs" / f"{name}.log").open("wb") as log:
            self._workers[name] = subprocess.Popen(
                (*command, *self._arguments, repr(self._began_s)),
                cwd=REPOSITORY,
                env=self._environment,
                stdin=subprocess.PIPE,  # which breaks when we are gone, whatever the reason
                stdout=log,
                stderr=subprocess.STDOUT,
                process_group=0,
            )

    def kill(self, name: str) -> None:
        """End a worker and its ffmpeg at once, without a chance to say anything."""
        self._killed.add(name)
        self._signal(name, signal.SIGKILL)

    def suspend(self, name: str) -> None:
        """Let a worker and its ffmpeg stand still, as a suspended virtual machine does."""
        self._signal(name, signal.SIGSTOP)

    def wake(self, name: str) -> None:
        """Let a suspended worker go on as if no time had passed."""
        self._signal(name, signal.SIGCONT)

    def vanished(self) -> list[str]:
        """Return the workers that ended although nobody killed them."""
        ended = (name for name, process in self._workers.items() if process.poll() is not None)
        return [name for name in ended if name not in self._killed]

    def dismiss(self, within_s: float) -> list[str]:
        """Ask all workers to finish; return those that did not, within *within_s*, or did badly."""
        for process in self._workers.values():
            process.terminate()
        give_up_at_s = time.monotonic() + within_s
        bad = []
        for name, process in self._workers.items():
            try:
                code = process.wait(max(give_up_at_s - time.monotonic(), 0))
            except subprocess.TimeoutExpired:
                bad.append(f"{name} did not end when asked")
            else:
                if code and name not in self._killed:
                    bad.append(f"{name} ended with {code}")
        return bad

    def _signal(self, name: str, number: signal.Signals) -> None:
        process = self._workers[name]
        if process.poll() is None:  # the number of a process already waited for may be another's
            os.killpg(process.pid, number)
