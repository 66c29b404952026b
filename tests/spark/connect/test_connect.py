"""Spark Connect: a client that has no Spark of its own uses source, sink and listener."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest

from leasehold.testing import InProcessServer
from tests.e2e.server import DEV_KEY
from tests.patience import PROGRAM_S
from tests.spark.connect.connected_job import COUNT

pytestmark = pytest.mark.slow

JOB: Final = Path(__file__).with_name("connected_job.py")


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> subprocess.CompletedProcess[str]:
    """Run the job: a process has either a Spark of its own, as this one, or is a client."""
    pytest.importorskip("grpc", reason="Spark Connect needs the extra connect of pyspark")
    folder = tmp_path_factory.mktemp("connect")
    with InProcessServer() as server:
        return subprocess.run(
            (sys.executable, str(JOB), str(folder)),
            env={**os.environ, "AZURE_STORAGE_CONNECTION_STRING": server.connection_string},
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
            timeout=PROGRAM_S,
        )


@pytest.fixture
def told(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """Return what the job has told."""
    lines = [line for line in done.stdout.splitlines() if line.startswith("told ")]
    assert done.returncode == 0, done.stdout + done.stderr
    [line] = lines
    found = json.loads(line.removeprefix("told "))
    assert found["session"] == "pyspark.sql.connect.session"
    return dict(found)


def test_from_queue_to_queue(told: dict[str, Any]) -> None:
    """Source and sink run on the server of Connect, where the format is found by its name."""
    assert told["queues"] == {"left": 0, "sent": COUNT}


def test_a_registered_class_and_a_function_for_each_batch(told: dict[str, Any]) -> None:
    """The class travels by its name, the function by its value; each message comes once."""
    bodies = sorted(str(number) for number in range(COUNT))
    assert told["by_hand"] == {"left": 0, "bodies": bodies}


def test_batch_reads_and_writes(told: dict[str, Any]) -> None:
    """A snapshot, and a table that is sent."""
    assert told["table"] == {"seen": COUNT, "then": COUNT + 1}


def test_the_client_is_told_of_bad_options(told: dict[str, Any]) -> None:
    """With the nearest name, although they are read on the server."""
    assert "Did you mean maxMessagesPerTrigger?" in told["misspelt"]


def test_the_listener_settles(told: dict[str, Any]) -> None:
    """It lives in the client's process, and needs no trigger."""
    assert told["listener"] == {"left": 0}


def test_no_key_is_shown(done: subprocess.CompletedProcess[str]) -> None:
    """Neither in logs nor in what the client is told."""
    assert DEV_KEY not in done.stdout + done.stderr
