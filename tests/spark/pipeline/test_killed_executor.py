"""An executor that is killed in the middle: what it had goes on elsewhere, and nothing twice."""

from __future__ import annotations

import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from leasehold.client import Client
from leasehold.worker.idempotency import Once
from tests.e2e.server import Server
from tests.patience import PROGRAM_S
from tests.spark.pipeline.applications import (
    Application,
    kill,
    kill_an_executor,
    notes,
    start,
    wait,
)

FILMS = 12


@pytest.mark.slow
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
        process = start(
            tmp_path,
            "films_here:pipeline",
            endpoint.connection_string,
            *("--at-once", "4", "--report", "report.json", "--each", "delivery"),
            master="local-cluster[2,1,640]",
            variable="FILMS_FOLDER",
        )
        try:
            victim = _kill_one_that_encodes(tmp_path, process)
            (tmp_path / "hold").unlink()
            output, errors = process.communicate(timeout=PROGRAM_S)
        finally:
            kill(process)
        assert process.returncode == 0, errors
        assert queue.counts().total == 0
        client.close()
    _check(tmp_path, victim, output, errors)


def _kill_one_that_encodes(folder: Path, process: Application) -> set[int]:
    """Wait until both executors are in the middle, kill one, and return its Python processes."""

    def encoders() -> set[int]:
        return {each.pid for each in notes(folder, "encode")}

    wait(lambda: len(encoders()) >= 2, process)
    before = encoders()
    victims = kill_an_executor(process, of=2)
    assert before.intersection(victims)
    assert before.difference(victims)
    return before.intersection(victims)


def _check(folder: Path, victim: set[int], output: str, errors: str) -> None:
    with closing(sqlite3.connect(folder / "films.db")) as database:
        rows = database.execute("SELECT film, effects, scanned, encoded FROM shipped").fetchall()
    assert sorted(row[0] for row in rows) == sorted(f"film-{number}" for number in range(FILMS))
    assert {row[1] for row in rows} == {1}
    resumed = [row for row in rows if row[2] in victim]
    assert resumed, "nothing was scanned by the executor that was killed"
    assert all(row[3] not in victim for row in resumed), "a dead executor has encoded"
    scans = [each.film for each in notes(folder, "scan")]
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
