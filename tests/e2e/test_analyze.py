"""``leasehold analyze`` with Spark, against the log of a real server."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from azure.storage.queue import QueueClient
from benchmarks.tuning_log import summary_of

from leasehold.client import Client
from leasehold.testing import InProcessServer
from tests.patience import PROGRAM_S
from tests.reliability.advice_drive import Drive

NAME = "hidden"


@pytest.fixture(scope="module")
def played() -> Any:
    """Return a server with a log: workers whose work often outlasts the timeout."""
    with InProcessServer() as server, server.client() as client:
        queue = client.queue(NAME)
        queue.create()
        drive = Drive(server, queue, _lengths, crash_rate=1 / 2_000)
        drive.play(150)
        yield server, client


def _lengths(random: np.random.Generator, many: int) -> Any:
    return 20 * np.exp(0.7 * random.standard_normal(many))


def run(server: InProcessServer, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command as a user does."""
    command = [sys.executable, "-m", "leasehold.cli", "analyze", *arguments]
    command += ["--connection-string", server.connection_string]
    return subprocess.run(command, capture_output=True, text=True, timeout=PROGRAM_S, check=False)


def when(server: InProcessServer) -> list[str]:
    """Return the stretch of time of a log whose clock is not the machine's."""
    until = (server.now() + timedelta(seconds=1)).isoformat()
    return ["--since", "2025-12-31T00:00", "--until", until]


@pytest.mark.long
def test_from_the_log_to_the_settings_and_back(
    played: tuple[InProcessServer, Client], tmp_path: Path
) -> None:
    """The log is read, a report written, the advice applied, told to any SDK, and undone."""
    server, client = played
    folder = tmp_path / "report"
    # The server's clock stands months away from the machine's: the log ends where it stands.
    arguments = ["--cores", "2", "--report", str(folder), "--apply", "--yes"]
    done = run(server, *arguments, "--json")
    assert done.returncode == 0, done.stderr
    for word in ("Traceback", "BrokenPipe", "atplotlib"):
        assert word not in done.stderr
    told = json.loads(done.stdout)
    whole = told["queues"][0]["whole"]
    assert whole["basis"] == "model"
    assert [each["state"] for each in told["changes"]] == ["done"]

    expected = summary_of(client.events(), NAME, server.now_ms()).queues[0].works[0]
    assert whole["seen"]["redeliveries"] == expected.redeliveries > 0
    assert whole["seen"]["messages"] == expected.messages
    assert whole["seen"]["late"] == expected.late > 0
    assert whole["seen"]["crashes"] == expected.crashes

    page = (folder / "report.html").read_text()
    assert page.count("<svg") == 3  # the backlog has no forecast, and is not drawn
    assert not re.search(r"""(src|href)=["'](?!#)""", page)

    info = client.queue(NAME).info()
    assert info.visibility_timeout_s == whole["timeout_s"] == 60
    with QueueClient.from_connection_string(server.connection_string, NAME) as sdk:
        metadata = sdk.get_queue_properties().metadata or {}
        assert metadata["leasehold_visibility_timeout_s"] == "60"
        assert int(metadata["leasehold_first_lease_s"]) > 5
    # To a program that creates its queue at each start it is the same queue as before.
    client.queue(NAME).create(metadata={})

    undone = run(server, "--undo", "--yes", "--json")
    assert undone.returncode == 0, undone.stderr
    assert client.queue(NAME).info().visibility_timeout_s == 30


SECONDS = {"clip": 2.0, "film": 200.0}
EACH = 40


@pytest.fixture(scope="module")
def mixed() -> Any:
    """Return a server with a queue of two types of messages, three of which were given up."""
    with InProcessServer() as server, server.client() as client:
        queue = client.queue("mixed")
        queue.create(settings={"visibility_timeout_s": 600, "failure_policy": {"max_failures": 1}})
        for number in range(EACH):
            for kind, seconds in SECONDS.items():
                queue.put(kind, type=kind)
                (message,) = queue.receive(holder="w1")
                server.advance(seconds * (1 + number / EACH))
                queue.complete(message)
        for wrong in (KeyError("codec"), KeyError("frame"), OSError("disk")):
            queue.put("film", type="film")
            (message,) = queue.receive(holder="w1")
            server.advance(1)
            queue.release(message, outcome="failed", error=wrong)
        yield server


@pytest.mark.slow
def test_types_and_errors_are_in_the_log(mixed: InProcessServer, tmp_path: Path) -> None:
    """Advice for each type and errors that gave messages up need no other file; one may correct."""
    arguments = [*when(mixed), "--cores", "2", "--queue", "mixed", "--json"]
    done = run(mixed, *arguments)
    assert done.returncode == 0, done.stderr
    (found,) = json.loads(done.stdout)["queues"]
    types = {each["message_type"]: each for each in found["types"]}
    assert {name: each["seen"]["messages"] for name, each in types.items()} == {
        "clip": EACH,
        "film": EACH + 3,
    }
    assert types["clip"]["wanted_s"] * 4 < types["film"]["wanted_s"]
    assert Counter(told_of(each) for each in found["poison"]) == {
        ("KeyError", "film", 2): 1,
        ("OSError", "film", 1): 1,
    }
    assert all(each["fingerprint"] for each in found["poison"])

    disk = next(each for each in found["poison"] if each["error_type"] == "OSError")
    (message_id,) = disk["sample_ids"]
    details = tmp_path / "details.parquet"
    pq.write_table(pa.table({"message_id": [message_id], "error_type": ["DiskFull"]}), details)
    done = run(mixed, *arguments, "--details", str(details))
    assert done.returncode == 0, done.stderr
    (found,) = json.loads(done.stdout)["queues"]
    assert {each["error_type"] for each in found["poison"]} == {"KeyError", "DiskFull"}
    assert {each["message_type"] for each in found["poison"]} == {"film"}


def told_of(cluster: dict[str, Any]) -> tuple[Any, ...]:
    """Return error, type and number of messages of a cluster."""
    return cluster["error_type"], cluster["message_type"], cluster["count"]
