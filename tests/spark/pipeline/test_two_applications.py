"""One declaration, whose stages two applications of Spark do, each on executors of its own."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from leasehold.client import Client
from tests.e2e.server import Server
from tests.patience import PROGRAM_S
from tests.spark.pipeline.apart import AT_ONCE
from tests.spark.pipeline.applications import (
    Application,
    kill,
    kill_an_executor,
    notes,
    start,
    wait,
)

FILMS = 48


@pytest.mark.slow
def test_a_killed_executor_and_a_killed_application_end_each_message_once(tmp_path: Path) -> None:
    """One is lost where films are encoded, the other whole, with all that it was scanning."""
    shutil.copy(Path(__file__).with_name("apart.py"), tmp_path / "apart_here.py")
    for name in ("hold-scan", "hold-encode"):
        (tmp_path / name).touch()
    with Server(tmp_path / "data") as endpoint:
        client = Client.from_connection_string(endpoint.connection_string)
        for name in ("films", "films-gpu"):
            client.queue(name).create()
        sent = {client.queue("films").put(str(number)).id for number in range(FILMS)}

        def run(queue: str, executors: int) -> Application:
            options = ("--queue", queue, "--at-once", "6")
            master = f"local-cluster[{executors},1,640]"
            given = (tmp_path, "apart_here:pipeline", endpoint.connection_string, *options)
            running.append(start(*given, master=master, variable="APART_FOLDER"))
            return running[-1]

        running: list[Application] = []
        try:
            first, second = run("films", 1), run("films-gpu", 2)
            wait(lambda: len({each.pid for each in notes(tmp_path, "encode")}) == 2, first, second)
            lost = kill_an_executor(second, of=2)
            (tmp_path / "hold-encode").unlink()
            wait(lambda: len(notes(tmp_path, "scan")) > AT_ONCE, first, second)
            lost |= kill(first)
            (tmp_path / "hold-scan").unlink()
            again = run("films", 1)
            told = [each.communicate(timeout=PROGRAM_S) for each in (again, second)]
        finally:
            kill(*running)
        assert [each.returncode for each in (again, second)] == [0, 0], told
        assert client.queue("films").counts().total == client.queue("films-gpu").counts().total == 0
        ended = list(_ended(client))
        client.close()
    assert sorted(origin for origin, _ in ended) == sorted(sent)
    assert {output for _, output in ended} == {("films", "films-gpu", "shipped")}
    done = [json.loads(output.splitlines()[-1])["done"] for output, _ in told]
    assert FILMS - AT_ONCE <= done[0] < FILMS, "the first application had done some"
    _check(tmp_path, lost)


def _ended(client: Client) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the first id of each message that has come to its end, and what came of it."""
    for event in client.events():
        result: dict[str, Any] = json.loads(event.result or "{}")
        if event.type == "completed" and "output" in result:
            yield result["origin_id"], tuple(result["output"])


def _check(folder: Path, lost: set[int]) -> None:
    """Both kills have hit films in work, whose stage was done again, and no other was."""
    for stage in ("scan", "encode"):
        noted = notes(folder, stage)
        hit = {each.film for each in noted if each.pid in lost}
        assert hit, f"none was hit in {stage}"
        assert {each.film for each in noted} == set(map(str, range(FILMS)))
        for film in map(str, range(FILMS)):
            tries = [each for each in noted if each.film == film]
            assert len(tries) == 1 or film in hit
            assert [each.fence for each in tries] == sorted({each.fence for each in tries})
            assert tries[-1].pid not in lost or len(tries) == 1
