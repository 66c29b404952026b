"""``leasehold analyze`` with Spark, against the log of a real server."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from azure.storage.queue import QueueClient

from leasehold.client import Client
from leasehold.testing import InProcessServer
from tests.reliability.advice_drive import Drive
from tests.reliability.advice_log import summary_of

pytestmark = [pytest.mark.timeout(600)]

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
    return subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)


def when(server: InProcessServer) -> list[str]:
    """Return the stretch of time of a log whose clock is not the machine's."""
    until = (server.now() + timedelta(seconds=1)).isoformat()
    return ["--since", "2025-12-31T00:00", "--until", until]


def test_from_the_log_to_the_settings_and_back(
    played: tuple[InProcessServer, Client], tmp_path: Path
) -> None:
    """The log is read, a report written, the advice applied, told to any SDK, and undone."""
    server, client = played
    folder = tmp_path / "report"
    arguments = [*when(server), "--cores", "2", "--report", str(folder), "--apply", "--yes"]
    done = run(server, *arguments, "--json")
    assert done.returncode == 0, done.stderr
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
    assert page.count("<svg") >= 4
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
