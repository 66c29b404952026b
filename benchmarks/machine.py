"""What the figures were measured on: the machine, its disk, and the source."""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
import sys
from pathlib import Path
from time import perf_counter
from typing import Any, Final

import apsw
import psutil

import leasehold
from benchmarks.workspace import REPOSITORY, measured_python

_PAGE: Final = bytes(4096)
_SYNCS: Final = 200


def describe_machine(folder: Path) -> dict[str, Any]:
    """Return facts about the machine, and how fast the disk of *folder* syncs."""
    return {
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
        "kernel": platform.release(),
        "python": platform.python_version(),
        "measured_python": _describe_python(),
        "sqlite": apsw.sqlite_lib_version(),
        "load_average": round(os.getloadavg()[0], 2),
        "fsync_us": measure_fsync(folder),
    }


def _describe_python() -> str:
    """Return which Python runs the servers, and the clients of batches."""
    tell = "import platform, sys; print(platform.python_version(), sys.executable)"
    done = subprocess.run(measured_python("-c", tell), capture_output=True, text=True, check=True)
    return done.stdout.strip()


def measure_fsync(folder: Path) -> dict[str, float]:
    """Append pages to a file in *folder*, each made durable; return the percentiles."""
    path = folder / "fsync-probe"
    descriptor = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
    taken = []
    try:
        for _ in range(_SYNCS):
            began = perf_counter()
            os.write(descriptor, _PAGE)
            os.fdatasync(descriptor)
            taken.append((perf_counter() - began) * 1e6)
    finally:
        os.close(descriptor)
        path.unlink()
    percentiles = statistics.quantiles(taken, n=100)
    return {"p50": round(percentiles[49], 1), "p99": round(percentiles[98], 1)}


def describe_source() -> dict[str, Any]:
    """Return which source was measured; ``commit`` is None outside a repository."""
    commit = _git("rev-parse", "HEAD")
    # A result written by an earlier run is no change of what is measured.
    status = _git("status", "--porcelain", "--", "src", "benchmarks", ":!benchmarks/results")
    return {
        "version": leasehold.__version__,
        "commit": commit or None,
        "dirty": None if status is None else bool(status),
        "command": " ".join(["python -m benchmarks", *sys.argv[1:]]),
    }


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=REPOSITORY, capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()
