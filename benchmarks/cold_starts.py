"""What people wait for before anything runs: commands, imports and the server, each from cold.

``python -m benchmarks.cold_starts --out benchmarks/results/cold_starts.json`` starts each of them
in a new process 20 times, in turn, and writes down the medians of the wall clock's and of the
processor's time, children included. ``--setup`` also runs ``make setup`` once in a new checkout,
with what pip has kept. ``--before`` also measures another checkout's environment, in turn.

On a machine that does other work, processor time is what to look at; the bars are for one that
does not.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import Final, NamedTuple

from benchmarks.single import Record, print_bars
from benchmarks.workspace import REPOSITORY

ROUNDS: Final = 20
BARS_MS: Final[dict[str, float]] = {
    "--help": 150,
    "import leasehold.client": 100,
    "serve": 400,
    "setup": 60_000,
}
"""Wall clock; what is not named has none."""
_KEEPS_NOTHING: Final = "PYTHONDONTWRITEBYTECODE"


class Took(NamedTuple):
    """What one start took, milliseconds."""

    wall: float
    cpu: float
    """Of the processes that were started, in user and in kernel mode."""


def timed(work: Callable[[], float]) -> Took:
    """Time the child processes of some work, which returns its wall-clock seconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    wall_s = work()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Took(wall_s * 1000, cpu_s * 1000)


def run(*words: str | Path, folder: str = "/") -> float:
    """Run a command to its end; return the seconds it took."""
    began_s = monotonic()
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL, cwd=folder, env=environment())
    return monotonic() - began_s


def serve(program: Path) -> float:
    """Start a server on a new store and end it; return the seconds until it said it listens."""
    with tempfile.TemporaryDirectory() as folder:
        words: list[str | Path] = [program, "serve", "--port", "0", "--data", folder, "--json"]
        began_s = monotonic()
        with subprocess.Popen(
            words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment()
        ) as server:
            assert server.stdout is not None
            said = server.stdout.readline()
            took_s = monotonic() - began_s
            server.kill()  # to stop in order is no part of what is measured
        if b"server.ready" not in said:
            raise RuntimeError(f"the server did not start: {said!r}")
    return took_s


def environment() -> dict[str, str]:
    """Return the environment to start in: Python keeps what it has compiled, as it does unasked."""
    return {name: value for name, value in os.environ.items() if name != _KEEPS_NOTHING}


def setup() -> float:
    """Set a new checkout up."""
    with tempfile.TemporaryDirectory() as folder:
        run("git", "clone", "--quiet", str(REPOSITORY), "new", folder=folder)
        return run("make", "--silent", "setup", folder=f"{folder}/new")


def paths_of(folder: Path) -> dict[str, Callable[[], float]]:
    """Return what is measured, of the environment whose programs are in a folder."""
    python, program = folder / "python", folder / "leasehold"
    return {
        "python": lambda: run(python, "-c", "pass"),
        "--help": lambda: run(program, "--help"),
        "import leasehold.client": lambda: run(python, "-c", "import leasehold.client"),
        "first client": lambda: run(
            python, "-c", "from leasehold.client import Client; Client().close()"
        ),
        "serve": lambda: serve(program),
    }


def summarize(rounds: list[Took]) -> dict[str, float]:
    """Return the medians of some starts, and the least processor time."""
    return {
        "wall_ms": round(statistics.median(each.wall for each in rounds), 1),
        "cpu_ms": round(statistics.median(each.cpu for each in rounds), 1),
        "least_wall_ms": round(min(each.wall for each in rounds), 1),
        "least_cpu_ms": round(min(each.cpu for each in rounds), 1),
    }


def main() -> None:
    """Measure, print what was found beside its bar, and write it down."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--before", type=Path, help="bin of another checkout's .venv")
    parser.add_argument("--setup", action="store_true", help="also run make setup, once")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    record = Record("cold-starts")
    folders = {"now": Path(sys.executable).parent}
    if given.before:
        folders["before"] = given.before.absolute()
    works = {
        (form, path): work
        for form, folder in folders.items()
        for path, work in paths_of(folder).items()
    }
    taken: dict[tuple[str, str], list[Took]] = {key: [] for key in works}
    for number in range(given.rounds + 1):
        for key, work in works.items():
            took = timed(work)
            if number:  # the first has compiled what there was to compile
                taken[key].append(took)
    if given.setup:
        taken["now", "setup"] = [timed(setup)]
    found: dict[str, dict[str, dict[str, float]]] = {}
    for (form, path), rounds in taken.items():
        found.setdefault(path, {})[form] = summarize(rounds)
    for path, forms in found.items():
        for form, figures in forms.items():
            said = f"{figures['wall_ms']:9,.0f} ms, processor {figures['cpu_ms']:9,.0f} ms"
            print(f"{path:24} {form:7} {said}")
    summary = {f"{path}, ms": forms["now"]["wall_ms"] for path, forms in found.items()}
    promised = {f"{path}, ms": ("<=", bar_ms) for path, bar_ms in BARS_MS.items()}
    bars = print_bars(summary, {name: promised[name] for name in promised if name in summary}, 0)
    if given.out:
        record.write(given.out, {"rounds": given.rounds, "paths": found}, bars)


if __name__ == "__main__":
    main()
