"""What the harness asks of a server under measurement."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from benchmarks.load.job import Dialect
from benchmarks.workspace import REPOSITORY, Workspace, disk_bytes, environment

_READY_S = 60
_STOP_S = 60
_POLL_S = 0.002


class Absent(Exception):
    """This subject cannot be measured here; the text says why."""


class SubjectFailed(Exception):
    """The server did not start or did not live; the text holds the end of its log."""


class Subject(ABC):
    """One server with its data, started once and kept for all rounds."""

    dialect: ClassVar[Dialect]

    def __init__(self, name: str, title: str, workspace: Workspace, *, waiting: int = 0) -> None:
        self.name = name
        self.title = title
        self.waiting = waiting
        """Messages that wait in its queue throughout."""
        self.workspace = workspace
        self.folder = workspace.run / name
        self.port = _free_port()
        self.version = ""
        self.fill: Mapping[str, float] = {}
        self._process: subprocess.Popen[bytes] | None = None

    @abstractmethod
    def prepare(self) -> None:
        """Get everything ready that is not part of a start.

        Raises:
            Absent: It cannot be had.
        """

    @abstractmethod
    def command(self) -> list[str]:
        """Return the command that runs the server in the foreground."""

    @abstractmethod
    def is_ready(self) -> bool:
        """Tell whether the server answers; may raise OSError."""

    def after_start(self) -> None:  # noqa: B027 - most subjects have nothing to do here
        """Bring the waiting messages in, for a server that can only be filled from outside."""

    @property
    def conninfo(self) -> str:
        """Where PostgreSQL listens, in the words of libpq; empty for other servers."""
        return ""

    @property
    def pids(self) -> tuple[int, ...]:
        """The server's process."""
        return (self._process.pid,) if self._process else ()

    def start(self) -> float:
        """Start the server; return the seconds until it was ready.

        Raises:
            SubjectFailed: It ended, or was not ready in time.
        """
        self.folder.mkdir(exist_ok=True)
        log = self.workspace.run / f"{self.name}.log"
        began = time.perf_counter()
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                self.command(),
                stdout=output,
                stderr=output,
                stdin=subprocess.DEVNULL,
                cwd=REPOSITORY,
                env=environment(),
            )
        while True:
            with contextlib.suppress(OSError):
                if self.is_ready():
                    return time.perf_counter() - began
            if self._process.poll() is not None:
                raise SubjectFailed(f"{self.title} ended: {_tail(log)}")
            if time.perf_counter() - began > _READY_S:
                self.kill()
                raise SubjectFailed(f"{self.title} was not ready in {_READY_S} s: {_tail(log)}")
            time.sleep(_POLL_S)

    def kill(self) -> None:
        """End the server at once, as a power cut would end the process."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
            self._process = None

    def stop(self) -> None:
        """Ask the server to end, and make it."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self.kill()
        self._process = None

    def disk_bytes(self) -> int:
        """Return what its data take on disk."""
        return disk_bytes(self.folder)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def accepts(port: int) -> bool:
    """Tell whether something listens on *port*; raises OSError where nothing does."""
    socket.create_connection(("127.0.0.1", port), timeout=1).close()
    return True


def _tail(log: Path) -> str:
    return log.read_text(errors="replace")[-2000:].strip() or "it said nothing"
