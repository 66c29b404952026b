"""The worker processes, and the accidents that happen to them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Final, Self

from examples.video_pipeline.worker import CONNECTION_VARIABLE

REPOSITORY: Final = Path(__file__).resolve().parents[2]


class Crew:
    """Starts workers ``w1``, ``w2``, … and ends all of them when the block ends.

    Each worker leads a process group of its own, with its ffmpeg in it: a signal to the group
    strikes as a power cut or a suspended machine would, and Ctrl-C does not reach it. The groups
    stay in our session: should we be killed, the system ends those that stand still.
    """

    def __init__(
        self, root: Path, *, connection_string: str, queue: str, lease_s: int, began_s: float
    ) -> None:
        self._root = root
        self._environment = {
            **os.environ,
            CONNECTION_VARIABLE: connection_string,
            "PYTHONPATH": str(REPOSITORY),
        }
        self._arguments = (str(root), queue, str(lease_s), repr(began_s))
        self._workers: dict[str, subprocess.Popen[bytes]] = {}
        self._killed: set[str] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for name in self._workers:
            self._signal(name, signal.SIGKILL)
        for process in self._workers.values():
            process.communicate()

    def start(self) -> str:
        """Start one more worker and return its name; names are never used again."""
        name = f"w{len(self._workers) + 1}"
        command = (sys.executable, "-m", "examples.video_pipeline.worker", name)
        with (self._root / "logs" / f"{name}.log").open("wb") as log:
            self._workers[name] = subprocess.Popen(
                (*command, *self._arguments),
                cwd=REPOSITORY,
                env=self._environment,
                stdin=subprocess.PIPE,  # which breaks when we are gone, whatever the reason
                stdout=log,
                stderr=subprocess.STDOUT,
                process_group=0,
            )
        return name

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
