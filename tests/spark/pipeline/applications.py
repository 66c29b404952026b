"""Applications of Spark that a test starts with the command, and kills."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from leasehold.spark.cluster import processes, signal_all, spark_home, with_descendants
from tests.patience import PROGRAM_S

_EXECUTOR = "CoarseGrainedExecutorBackend"
_ROOT = Path(__file__).parents[3]

Application = subprocess.Popen[str]


def start(
    folder: Path, pipeline: str, connection: str, *options: str, master: str, variable: str
) -> Application:
    """Run a pipeline with the command, on a master and executors of its own.

    Args:
        folder: Where it runs: that of the module of the pipeline.
        pipeline: ``module:name``.
        connection: String of the server.
        options: Of the command.
        master: Such as ``local-cluster[2,1,640]``.
        variable: Name of one that tells driver and executors the folder.
    """
    command = [sys.executable, "-m", "leasehold.cli", "pipeline", "run", pipeline]
    command += ["--master", master, "--json", *options]
    for name, value in (
        ("spark.executor.memory", "640m"),
        (f"spark.executorEnv.{variable}", str(folder)),
        ("spark.executorEnv.PYTHONPATH", str(_ROOT / "src")),
    ):
        command += ["--conf", f"{name}={value}"]
    environment = {**os.environ, "AZURE_STORAGE_CONNECTION_STRING": connection}
    environment[variable] = str(folder)
    environment["SPARK_HOME"] = str(_spark_home(folder / "spark"))
    return subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def _spark_home(folder: Path) -> Path:
    """Return a home from which Spark runs, and where it can leave its executors' files."""
    if not folder.exists():
        folder.mkdir()
        for each in spark_home().iterdir():
            if each.name != "work":
                (folder / each.name).symlink_to(each)
    return folder


def wait(is_so: Callable[[], bool], *running: Application) -> None:
    """Wait for what applications bring about that must not end before."""
    end_s = time.monotonic() + PROGRAM_S
    while not is_so():
        for each in running:
            assert each.poll() is None, each.communicate()
        assert time.monotonic() < end_s, "it does not come about"
        time.sleep(0.05)


def kill_an_executor(application: Application, of: int) -> set[int]:
    """Kill one of so many executors with its Python processes, and return the ids of all."""
    every = processes()
    ours = set(with_descendants(every, application.pid))
    executors = [each.pid for each in every if each.pid in ours and _EXECUTOR in each.command]
    assert len(executors) == of
    victims = with_descendants(every, executors[0])
    signal_all(victims, signal.SIGKILL)
    return set(victims)


def kill(*applications: Application) -> set[int]:
    """Kill applications with all their processes, and return the ids."""
    every = processes()
    victims = {pid for each in applications for pid in with_descendants(every, each.pid)}
    signal_all(victims, signal.SIGKILL)
    for each in applications:
        each.communicate()
    return victims


class Note(NamedTuple):
    """What a stage has noted when it began."""

    stage: str
    film: str
    pid: int
    fence: int


def notes(folder: Path, *stages: str) -> list[Note]:
    """Return what these stages have noted in the file ``log``."""
    try:
        lines: Iterable[str] = (folder / "log").read_text().splitlines()
    except OSError:
        return []
    parts = (line.split() for line in lines)
    found = (Note(stage, film, int(pid), int(fence)) for stage, film, pid, fence in parts)
    return [each for each in found if each.stage in stages]
