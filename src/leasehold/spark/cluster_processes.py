"""Which processes of this machine are executors, and what they have started."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

_PROC: Final = Path("/proc")
_BACKEND: Final = "CoarseGrainedExecutorBackend"
_ID: Final = re.compile(r"--executor-id (\S+)")
_APPLICATION: Final = re.compile(r"--app-id (\S+)")
_HOST: Final = re.compile(r"--hostname (\S+)")


class Process(NamedTuple):
    """A process of this machine."""

    pid: int
    parent: int
    command: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Executor:
    """A process that runs tasks of one application."""

    id: str
    """Counted by Spark from 0 within the application; a successor has another."""
    application: str
    host: str
    pid: int


def processes() -> list[Process]:
    """Return all processes that this user may see."""
    if _PROC.joinpath("self/stat").exists():
        return [found for each in _PROC.glob("[0-9]*") if (found := _from_proc(each)) is not None]
    listing = subprocess.run(
        ("ps", "-axww", "-o", "pid=,ppid=,args="),  # noqa: S607 - where it is differs by system
        capture_output=True,
        text=True,
        check=True,
    )
    return [parse_ps(line) for line in listing.stdout.splitlines() if line.strip()]


def _from_proc(folder: Path) -> Process | None:
    try:
        stat = (folder / "stat").read_text()
        command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return None  # it has ended
    # The name before it is in brackets and may have blanks in it.
    parent = int(stat.rpartition(")")[2].split()[1])
    return Process(int(folder.name), parent, command.strip())


def parse_ps(line: str) -> Process:
    """Return the process in one line of ``ps -o pid=,ppid=,args=``."""
    pid, parent, command = line.split(maxsplit=2)
    return Process(int(pid), int(parent), command)


def executors_among(all_of_them: Iterable[Process], workers: Sequence[int]) -> list[Executor]:
    """Return the executors that the workers with these process ids have started."""
    found = []
    for each in all_of_them:
        if each.parent in workers and _BACKEND in each.command:
            numbers = (pattern.search(each.command) for pattern in (_ID, _APPLICATION, _HOST))
            number, application, host = (one[1] if one else "" for one in numbers)
            found.append(Executor(id=number, application=application, host=host, pid=each.pid))
    return sorted(found, key=lambda each: (each.application, each.id))


def with_descendants(all_of_them: Sequence[Process], pid: int) -> list[int]:
    """Return *pid* and all processes that come from it, the eldest first."""
    found = [pid]
    for one in found:
        found += [each.pid for each in all_of_them if each.parent == one]
    return found


def signal_all(pids: Iterable[int], number: signal.Signals) -> None:
    """Send a signal to each process that is still there."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
