"""Large bodies that are gone, as clients and people see them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from leasehold.cli import main
from leasehold.client import Client, QueueHandle
from tests.e2e.server import Endpoint, Server

LARGE = b"\xff" * 100_000


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Endpoint]:
    """A server of our own, because we take away what it has."""
    with Server(tmp_path / "server") as started:
        yield started


def run(own: Endpoint, *words: str, stdin: bytes | None = None) -> Result:
    """Run a command against it."""
    found = own.connection_string
    return CliRunner().invoke(
        main, words, input=stdin, env={"AZURE_STORAGE_CONNECTION_STRING": found}
    )


def the_queue(client: Client) -> QueueHandle:
    """Make a queue that takes large bodies."""
    queue = client.queue("scans")
    queue.create(settings={"max_body_bytes": 1_000_000})
    return queue


def test_a_missing_body_is_not_an_empty_one(own: Endpoint, tmp_path: Path) -> None:
    """Whoever looks is told what is the matter, and how large the body was."""
    with Client.from_connection_string(own.connection_string) as client:
        queue = the_queue(client)
        sent = queue.put_body(LARGE)
        queue.put("small")
        (body,) = (each for each in tmp_path.rglob("bodies/*/*/*") if each.is_file())
        body.unlink()
        for shown in (queue.get(sent.id), next(queue.inspect()), queue.peek(1)[0]):
            assert (shown.body, shown.body_problem, shown.body_bytes) == (b"", "missing", 100_000)
        received = [each for _ in range(2) for each in queue.receive(5)]
        assert [(each.text, each.body_bytes) for each in received] == [("small", 5)]
    assert "Body (missing, 97.7 KiB)" in run(own, "message", "show", "scans", sent.id).output
    listed = run(own, "message", "list", "scans", "--json").output.splitlines()
    assert "body" not in json.loads(listed[0])
    assert run(own, "message", "body", "scans", sent.id).exit_code == 1


def test_a_large_body_goes_there_and_back(own: Endpoint) -> None:
    """As it is, through standard input and output."""
    with Client.from_connection_string(own.connection_string) as client:
        the_queue(client)
    sent = run(own, "send", "scans", "-", "--json", stdin=LARGE)
    message_id = json.loads(sent.output)["id"]
    assert run(own, "message", "body", "scans", message_id).stdout_bytes == LARGE
