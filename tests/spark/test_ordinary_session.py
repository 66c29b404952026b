"""``SparkSession.builder.getOrCreate()`` where ``python3`` is another Python, as in notebooks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest

from leasehold.client import Client
from leasehold.testing import InProcessServer

pytestmark = [pytest.mark.long, pytest.mark.timeout(400)]

JOB: Final = Path(__file__).with_name("ordinary_job.py")
WITHIN_S: Final = 360
COUNT: Final = 10


def surroundings(folder: Path) -> dict[str, str]:
    """Return an environment in which ``python3`` has no libraries, and nothing of Spark is set."""
    bare = folder / "bare"
    subprocess.run((sys.executable, "-m", "venv", "--without-pip", bare), check=True)
    path = os.pathsep.join((str(bare / "bin"), os.environ["PATH"]))
    unset = {"PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "PYTHONPATH", "SPARK_CONF_DIR"}
    return {**{k: v for k, v in os.environ.items() if k not in unset}, "PATH": path}


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Run the job, and return what it printed."""
    folder = tmp_path_factory.mktemp("ordinary")
    environ = surroundings(folder)
    found = subprocess.run(
        ("python3", "-c", "import leasehold"), env=environ, capture_output=True, check=False
    )
    assert found.returncode == 1, "python3 must be a Python without Leasehold"
    with InProcessServer() as server:
        with Client.from_connection_string(server.connection_string) as client:
            queue = client.queue("orders")
            queue.create()
            queue.put_many(str(number) for number in range(COUNT))
        done = subprocess.run(
            (sys.executable, str(JOB), str(folder)),
            env={**environ, "AZURE_STORAGE_CONNECTION_STRING": server.connection_string},
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
            timeout=WITHIN_S,
        )
    lines = [line for line in done.stdout.splitlines() if line.startswith("answers ")]
    assert len(lines) == 1, done.stdout + done.stderr
    return dict(json.loads(lines[0].removeprefix("answers ")))


def test_by_name_alone_the_format_is_not_there(answers: dict[str, Any]) -> None:
    """Spark looks for formats with ``python3``; this is the error that the documentation shows."""
    assert "[DATA_SOURCE_NOT_FOUND]" in answers["by_name"]


def test_registered_it_is_read(answers: dict[str, Any]) -> None:
    """One call makes the format known in the session that is there already."""
    assert answers["is_same"] is True
    assert answers["snapshot"] == COUNT


def test_registered_it_is_written(answers: dict[str, Any]) -> None:
    """The sink runs in the same Python."""
    assert answers["send"] == COUNT + 1


def test_registered_it_is_a_stream(answers: dict[str, Any]) -> None:
    """So do the process of a stream and the tasks."""
    assert answers["stream"] == COUNT + 1


def test_functions_of_the_user_run_beside_it(answers: dict[str, Any]) -> None:
    """What is done with the messages needs the same libraries."""
    assert answers["function"] == sys.prefix
