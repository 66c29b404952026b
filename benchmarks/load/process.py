"""CPU time and memory of the server's processes."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable
from pathlib import Path

import psutil

from benchmarks.records import Memory


class ServerProcesses:
    """The processes of one server, with the children that they have now.

    Args:
        pids: The server's first processes.
        leave_out: Children with this in their command line come and go, and are not counted.
    """

    def __init__(self, pids: Iterable[int], leave_out: str = "") -> None:
        self._all = []
        self._cpu_s: dict[int, float] = {}
        for parent in map(psutil.Process, pids):
            children = parent.children(recursive=True)
            if leave_out:
                children = [one for one in children if leave_out not in _command(one.pid)]
            self._all += [parent, *children]

    def cpu_s(self) -> float:
        """Return the seconds of CPU used so far, user and kernel, to the nanosecond.

        The usual source, ``/proc/PID/stat``, counts in steps of 10 ms: too coarse for a phase that
        lasts a tenth of a second. A child that has ended counts with what it had used at the last
        call.
        """
        for process in self._all:
            with contextlib.suppress(OSError):
                self._cpu_s[process.pid] = time.clock_gettime(_cpu_clock(process.pid))
        return sum(self._cpu_s.values())

    def memory(self) -> Memory | None:
        """Return the memory used, or None when there is no process."""
        if not self._all:
            return None
        fields = [_status(process.pid) for process in self._all]
        return Memory(
            resident=sum(process.memory_info().rss for process in self._all),
            anonymous=sum(field.get("RssAnon", 0) for field in fields),
            peak=sum(field.get("VmHWM", 0) for field in fields),
        )


def _cpu_clock(pid: int) -> int:
    """Return what ``clock_getcpuclockid(3)`` returns on Linux, which Python does not offer."""
    return (~pid << 3) | 2


def _command(pid: int) -> str:
    """Return a process's command line; empty when it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""


def _status(pid: int) -> dict[str, int]:
    """Return the sizes in ``/proc/PID/status``, bytes."""
    found = {}
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if value.endswith(" kB"):
            found[name] = int(value.split()[0]) * 1024
    return found
