"""Names of queues that a shell completes."""

from __future__ import annotations

import httpx
import pytest
from click.shell_completion import ShellComplete

from leasehold.cli import main
from leasehold.cli.remote import Surroundings
from tests.unit.cli.support import QUEUE, Server
from tests.unit.client.support import problem


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    """A server with some queues."""
    monkeypatch.delenv("AZURE_STORAGE_CONNECTION_STRING", raising=False)
    server = Server()
    server.on("GET", "/queues", {"queues": [QUEUE, QUEUE | {"name": "orders-eu"}]})
    return server


def completed(server: Server, *words: str) -> list[str]:
    """Return what the last word can become."""
    around = Surroundings(clock=None, transport=httpx.MockTransport(server))  # type: ignore[arg-type]
    shell = ShellComplete(main, {"obj": around}, "leasehold", "_LEASEHOLD_COMPLETE")
    return [item.value for item in shell.get_completions(list(words[:-1]), words[-1])]


@pytest.mark.parametrize(
    "words",
    [
        ("send", "or"),
        ("queue", "delete", "or"),
        ("message", "receive", "--max", "5", "or"),
        ("job", "list", "--queue", "or"),
        ("events", "tail", "--queue", "or"),
        ("worker", "run", "jobs:handle", "--queue", "or"),
        ("redrive", "orders", "--target", "or"),
        ("stream", "show", "or"),
    ],
)
def test_queues_are_completed(server: Server, words: tuple[str, ...]) -> None:
    """The server is asked for names that begin so, once."""
    assert completed(server, *words) == ["orders", "orders-eu"]
    (request,) = server.requests
    assert request.url.params["prefix"] == "or"


def test_the_options_of_the_line_are_used(server: Server) -> None:
    """The server that is asked is the one that the command will speak to."""
    completed(server, "queue", "show", "--url", "http://queues.test:1", "or")
    assert str(server.requests[-1].url).startswith("http://queues.test:1/")


@pytest.mark.parametrize("reply", [httpx.ConnectError("refused"), problem("forbidden", 403)])
def test_a_failure_is_silent(
    server: Server, reply: httpx.Response | Exception, capfd: pytest.CaptureFixture[str]
) -> None:
    """Nothing is printed into the line that is typed, and nothing is tried again."""
    server.on("GET", "/queues", reply)
    assert completed(server, "queue", "show", "or") == []
    assert len(server.requests) == 1
    assert capfd.readouterr() == ("", "")
