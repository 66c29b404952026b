"""``leasehold events check``: where the log comes from, what is printed, and how it ends."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from leasehold.cli import main
from leasehold.client import Client
from leasehold.events.check import Rule
from leasehold.testing import InProcessServer


@pytest.fixture
def server() -> Iterator[InProcessServer]:
    with InProcessServer(store="sqlite") as started:
        yield started


@pytest.fixture
def client(server: InProcessServer) -> Iterator[Client]:
    """A client, and a queue in which three messages were put and two completed."""
    with server.client() as made:
        queue = made.queue("orders")
        queue.create()
        queue.put_many(["a", "b", "c"])
        queue.complete_many(queue.receive(2, visibility_timeout_s=30))
        queue.receive(1, visibility_timeout_s=30)
        yield made


def check(*words: str) -> Result:
    return CliRunner().invoke(main, ["events", "check", *words])


def lines_of(client: Client, path: Path) -> list[dict[str, Any]]:
    """Write the log as ``leasehold events tail --json`` prints it, and return it."""
    events = [
        {name: value for name in event.__struct_fields__ if (value := getattr(event, name))}
        for event in client.events(0)
    ]
    events = [event | {"place": event.get("place", 0)} for event in events]
    path.write_text("\n".join(map(json.dumps, events)))
    return events


def test_the_log_of_a_server(server: InProcessServer, client: Client) -> None:
    """With what its queues have."""
    result = check("--live", "--connection-string", server.connection_string)
    assert result.exit_code == 0, result.output
    assert "9, 9 of them consumed" in " ".join(result.output.split())
    assert "nothing wrong" in result.output
    assert client.queue("orders").counts().total == 1


def test_the_log_of_a_server_for_programs(server: InProcessServer, client: Client) -> None:
    del client
    result = check("--json", "--connection-string", server.connection_string)
    report = json.loads(result.output)
    assert (report["events"], report["consumed"], report["whole"]) == (9, 9, True)
    assert (report["found"], report["violations"]) == ({}, [])
    assert [each["messages"] for each in report["counts"]] == [1]


def test_a_message_that_is_gone_is_found(server: InProcessServer, client: Client) -> None:
    """The log alone does not show it."""
    from proof.bugs import planted  # noqa: PLC0415 - only this test breaks a server

    with planted("lost-on-release"):
        client.queue("orders").put("d")
        (message,) = client.queue("orders").receive(1, visibility_timeout_s=30)
        client.queue("orders").release(message)
    text = server.connection_string
    assert check("--connection-string", text).exit_code == 0
    result = check("--live", "--connection-string", text)
    assert result.exit_code == 1
    assert Rule.NOTHING_LOST in result.output
    assert message.id in result.output


def test_a_file_of_lines(client: Client, tmp_path: Path) -> None:
    """What is wrong is printed with its place; a queue can be picked; all of it can be left out."""
    path = tmp_path / "log.jsonl"
    events = lines_of(client, path)
    assert check("--from", str(path)).exit_code == 0
    events[-1]["fence"] += 1
    path.write_text("\n".join(map(json.dumps, events)))
    result = check("--from", str(path))
    assert result.exit_code == 1
    assert f"{events[-1]['seq']}.0  fence-order  orders" in result.output
    assert "fence-order: 1" in result.output
    elsewhere = check("--from", str(path), "--queue", "mails")
    assert elsewhere.exit_code == 1
    assert "1 violation more" in elsewhere.output
    assert "1 violation more" in check("--from", str(path), "--limit", "0").output


def test_definitions_tell_what_queues_are_set_to(
    server: InProcessServer, client: Client, tmp_path: Path
) -> None:
    """A log whose queue had no budget breaks one that it is said to have."""
    path = tmp_path / "log.jsonl"
    server.advance(60)
    client.queue("orders").receive(1)
    lines_of(client, path)
    definitions = tmp_path / "definitions.json"
    settings = {"failure_policy": {"max_deliveries": 1}, "groups": None}
    told = {"queues": [{"name": "orders", "settings": settings}], "leasehold": "0.1.0"}
    definitions.write_text(json.dumps(told))
    assert check("--from", str(path)).exit_code == 0
    result = check("--from", str(path), "--definitions", str(definitions))
    assert result.exit_code == 1
    assert "poison-budget" in result.output


@pytest.mark.parametrize(
    ("text", "code", "told"),
    [
        ("", 2, "no events"),
        ("nonsense", 1, "line 1 is not an event"),
        ('{"seq":1,"place":0,"at_ms":1,"type":"teleported"}', 2, "does not know"),
    ],
)
def test_what_cannot_be_judged(tmp_path: Path, text: str, code: int, told: str) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text(text)
    result = check("--from", str(path))
    assert result.exit_code == code
    assert told in result.output


def test_a_folder_without_files(tmp_path: Path) -> None:
    result = check("--from", str(tmp_path))
    assert result.exit_code == 1
    assert "there are no files of events" in result.output


@pytest.mark.parametrize(
    "words",
    [
        ("--from", ".", "--live"),
        ("--of-account", "shop"),
        ("--definitions", __file__),
    ],
)
def test_options_that_do_not_go_together(words: tuple[str, ...]) -> None:
    assert check(*words).exit_code == 2
