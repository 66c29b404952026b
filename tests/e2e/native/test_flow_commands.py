"""The commands about sessions, streams, transactions and events against a real server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest
from click.testing import CliRunner

from leasehold.cli import main
from leasehold.client import Client, QueueHandle
from tests.e2e.server import Endpoint


class Shell:
    """Runs ``leasehold`` with the server in the usual variable of the environment."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._environment = {"AZURE_STORAGE_CONNECTION_STRING": endpoint.connection_string}

    def __call__(self, *words: str, code: int = 0) -> str:
        """Run a command, fail unless it ends with *code*, and return what it printed."""
        done = CliRunner().invoke(main, words, env=self._environment | {"COLUMNS": "200"})
        assert done.exit_code == code, done.output
        return done.stdout

    def lines(self, *words: str) -> list[Any]:
        """Return what a command prints line by line."""
        return [json.loads(line) for line in self(*words, "--json").splitlines()]


@pytest.fixture
def shell(endpoint: Endpoint) -> Shell:
    """The command line."""
    return Shell(endpoint)


@pytest.fixture
def client(endpoint: Endpoint) -> Iterator[Client]:
    """A client of the server's account."""
    with Client(endpoint.url, endpoint.account, key=endpoint.key) as made:
        yield made


@pytest.fixture
def queue(client: Client) -> Iterator[QueueHandle]:
    """A queue with three messages."""
    made = client.queue(f"q-{uuid4().hex}")
    made.create()
    made.put_many(["a", "b", "c"])
    yield made
    made.delete()


def test_sessions(shell: Shell, client: Client, queue: QueueHandle) -> None:
    """Listed, shown, told to stop one message, ended."""
    holder = f"worker-{uuid4().hex}"
    with client.session(holder, heartbeat=None) as session:
        (message,) = queue.receive(session=session)
        assert f"{holder}  live" in shell("session", "list", "--live")
        assert session.id in [each["session_id"] for each in shell.lines("session", "list")]
        assert "lost after      16 s" in shell("session", "show", session.id)
        told = shell("message", "cancel", queue.name, message.id, "--reason", "wrong")
        assert told == f"{holder} is asked to stop work on message {message.id}.\n"
        assert "asked to stop" in shell("message", "show", queue.name, message.id)
        received = shell.lines("message", "receive", queue.name, "--session", session.id)
        assert [(each["session"], each["body"]) for each in received] == [(session.id, "b")]
        assert "ended" in shell("session", "end", session.id, "--yes")
    assert queue.get(message.id).state == "visible"
    shell("message", "receive", queue.name, "--session", session.id, code=1)


def test_streams(shell: Shell, queue: QueueHandle) -> None:
    """Listed, shown, read, parked, given back, settled, forgotten; the consumer is not fenced."""
    stream = queue.stream("totals")
    stream.attach()
    stream.open(1, limit=2, lease_s=60)
    stream.open(2, limit=2, lease_s=60)
    at = (queue.name, "totals")
    assert "totals" in shell("stream", "list", queue.name)
    assert [claim["size"] for claim in json.loads(shell("stream", "show", *at, "--json"))["claims"]]
    assert "holds   2 of at most 2 messages" in shell("claim", "show", *at, "1")
    bodies = [each["body"] for each in shell.lines("claim", "read", *at, "1")]
    assert bodies == ["a", "b"]
    assert "totals/1" in shell("message", "list", queue.name)
    assert "is kept until" in shell("stream", "park", *at, "1", "--for", "1h")
    assert "is dissolved" in shell("stream", "give-back", *at, "2", "-y")
    assert "leased in claims" in shell("queue", "counts", queue.name)
    assert shell("stream", "settle", *at, "1", "-y") == ("Settled up to 1: 2 messages completed.\n")
    assert stream.open(2, limit=1, lease_s=60) is not None
    assert shell("stream", "delete", *at, "-y") == "Stream totals is deleted.\n"
    shell("stream", "show", *at, code=1)


def test_transactions(shell: Shell, client: Client, queue: QueueHandle) -> None:
    """Listed, shown, published, discarded."""
    published, discarded = (client.transaction(f"t-{uuid4().hex}") for _ in range(2))
    for each in (published, discarded):
        each.stage(["x", "y"], queue=queue.name)
    assert "staged" in shell("transaction", "show", published.name)
    assert shell("inspect", queue.name, "--state", "staged").count("staged") >= 4
    assert shell("transaction", "publish", published.name, "-y") == "2 messages are published.\n"
    assert shell("transaction", "discard", discarded.name, "-y") == "2 messages discarded.\n"
    listed = shell.lines("transaction", "list", "--limit", "1000", "--state", "published")
    assert published.name in [each["name"] for each in listed]
    shell("transaction", "show", discarded.name, code=1)
    again = shell("transaction", "discard", discarded.name, "-y")
    assert again == "Nothing is staged under this name: nothing was discarded.\n"


def test_events(shell: Shell, queue: QueueHandle) -> None:
    """The life of a message in sentences, and the newest of the log."""
    (message,) = queue.receive(holder="worker-7")
    queue.complete(message)
    story = shell("trace", queue.name, message.id).splitlines()
    assert len(story) == 3
    assert "worker-7" in story[1]
    own = [each for each in shell.lines("events", "tail") if each.get("message_id") == message.id]
    assert [each["type"] for each in own] == ["put", "received", "completed"]
    after = str(own[-1]["seq"] - 1)
    assert message.id in shell("events", "tail", "--after", after)
    assert len(shell.lines("events", "tail", "--last", "2")) == 2
    waiting = queue.put("d")
    now = shell("trace", queue.name, waiting.id).splitlines()[-1]
    assert now.split()[:3] == ["now", "It", "has"]
    assert "knows nothing" in shell("trace", queue.name, str(uuid4()))
