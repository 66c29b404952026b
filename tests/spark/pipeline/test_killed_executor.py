"""An executor that is killed in the middle: what it had goes on elsewhere, and nothing twice."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from leasehold.client import Client
from leasehold.spark.cluster import processes, signal_all, spark_home, with_descendants
from leasehold.worker.idempotency import Once
from tests.e2e.server import Server

FILMS = 12
_EXECUTOR = "CoarseGrainedExecutorBackend"
_WITHIN_S = 200
"""Far more than it takes, unless the machine has much else to do."""


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_films_of_a_killed_executor_are_resumed_by_another_and_shipped_once(
    tmp_path: Path,
) -> None:
    """What a dead executor had begins with its saved stage elsewhere; each effect is there once."""
    shutil.copy(Path(__file__).with_name("films.py"), tmp_path / "films_here.py")
    (tmp_path / "hold").touch()
    with closing(sqlite3.connect(tmp_path / "films.db")) as database, database:
        database.execute(
            "CREATE TABLE shipped (film TEXT PRIMARY KEY, effects INT, scanned INT, encoded INT)"
        )
        Once().history.create(database)
    with Server(tmp_path / "data") as endpoint:
        client = Client.from_connection_string(endpoint.connection_string)
        queue = client.queue("films")
        queue.create()
        queue.put_many([f"film-{number}" for number in range(FILMS)])
        process = _run(tmp_path, endpoint.connection_string)
        try:
            victim = _kill_one_that_encodes(tmp_path, process)
            (tmp_path / "hold").unlink()
            output, errors = process.communicate(timeout=_WITHIN_S)
        finally:
            signal_all(with_descendants(processes(), process.pid), signal.SIGKILL)
            process.communicate()
        assert process.returncode == 0, errors
        assert queue.counts().total == 0
        client.close()
    _check(tmp_path, victim, output, errors)


def _run(folder: Path, connection: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "leasehold.cli", "pipeline", "run", "films_here:pipeline"]
    command += ["--master", "local-cluster[2,1,640]", "--at-once", "4", "--json"]
    command += ["--report", "report.json", "--each", "delivery"]
    for name, value in (
        ("spark.executor.memory", "640m"),
        ("spark.executorEnv.FILMS_FOLDER", str(folder)),
        ("spark.executorEnv.PYTHONPATH", str(Path(__file__).parents[3] / "src")),
    ):
        command += ["--conf", f"{name}={value}"]
    environment = {**os.environ, "AZURE_STORAGE_CONNECTION_STRING": connection}
    environment["FILMS_FOLDER"] = str(folder)
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
    folder.mkdir()
    for each in spark_home().iterdir():
        if each.name != "work":
            (folder / each.name).symlink_to(each)
    return folder


def _kill_one_that_encodes(folder: Path, process: subprocess.Popen[str]) -> set[int]:
    """Wait until both executors are in the middle, kill one, and return its Python processes."""

    def encoders() -> set[int]:
        return {pid for stage, _, pid, _ in _log(folder) if stage == "encode"}

    _wait(lambda: len(encoders()) >= 2, process)
    before = encoders()
    every = processes()
    ours = set(with_descendants(every, process.pid))
    executors = [each.pid for each in every if each.pid in ours and _EXECUTOR in each.command]
    assert len(executors) == 2
    victims = with_descendants(every, executors[0])
    signal_all(victims, signal.SIGKILL)
    assert before.intersection(victims)
    assert before.difference(victims)
    return before.intersection(victims)


def _wait(is_so: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    end_s = time.monotonic() + _WITHIN_S
    while not is_so():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end_s
        time.sleep(0.05)


def _log(folder: Path) -> list[tuple[str, str, int, int]]:
    try:
        lines = (folder / "log").read_text().splitlines()
    except OSError:
        return []
    parts = [line.split() for line in lines]
    return [(stage, film, int(pid), int(fence)) for stage, film, pid, fence in parts]


def _check(folder: Path, victim: set[int], output: str, errors: str) -> None:
    with closing(sqlite3.connect(folder / "films.db")) as database:
        rows = database.execute("SELECT film, effects, scanned, encoded FROM shipped").fetchall()
    assert sorted(row[0] for row in rows) == sorted(f"film-{number}" for number in range(FILMS))
    assert {row[1] for row in rows} == {1}
    resumed = [row for row in rows if row[2] in victim]
    assert resumed, "nothing was scanned by the executor that was killed"
    assert all(row[3] not in victim for row in resumed), "a dead executor has encoded"
    scans = [film for stage, film, _, _ in _log(folder) if stage == "scan"]
    assert len(scans) == len(set(scans)), "a saved stage was done again"
    last = json.loads(output.splitlines()[-1])
    assert last["event"] == "end"
    assert last["done"] == FILMS
    assert last["resumed"] >= len(resumed)
    report = [json.loads(line) for line in (folder / "report.json").read_text().splitlines()]
    found = {row["message_id"]: row for row in report if row["outcome"] == "done"}
    assert len(found) == FILMS
    again = [row for row in found.values() if row["resumed_at"] == "encode"]
    assert len(again) >= len(resumed)
    assert all([run["stage"] for run in row["stages"]] == ["encode", "ship"] for row in again)
    assert all(row["delivery"] > 1 for row in again)
