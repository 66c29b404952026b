"""The group of a message by every way in, and wherever messages are shown."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from azure.storage.queue import QueueClient
from click.testing import CliRunner

from leasehold.cli import main
from leasehold.client import NewMessage, ServerProblem
from leasehold.client.errors import LeaseholdClientError, OutOfRange
from leasehold.testing import InProcessServer
from leasehold.worker.adapters.native import NativeQueue
from leasehold.worker.adapters.protocol import Outgoing

GROUP = "Größe/1 %"
ENCODED = "Gr%C3%B6%C3%9Fe%2F1%20%25"


@pytest.mark.parametrize("store", ["memory", "sqlite"])
def test_every_way_in(store: str, tmp_path: Path) -> None:
    """Client, raw body, command line with and without a file, worker, and the Azure SDK."""
    items = tmp_path / "items.ndjson"
    items.write_text(json.dumps({"body": "items", "group_id": GROUP}), encoding="utf-8")
    with InProcessServer(store=store) as server, server.client() as client:
        queue = client.queue("orders")
        queue.create()
        queue.put("put", group_id=GROUP)
        queue.put_many([NewMessage("many", group_id=GROUP), "none"])
        queue.put_body(b"raw", group_id=GROUP)
        connection = {"AZURE_STORAGE_CONNECTION_STRING": server.connection_string}
        for words in (
            ["send", "orders", "cli", "--group", GROUP],
            ["send", "orders", "--file", str(items), "--items"],
        ):
            done = CliRunner().invoke(main, words, env=connection)
            assert done.exit_code == 0, done.output
        assert NativeQueue(queue).put([Outgoing(body=b"worker", group_id=GROUP)]) == [None]
        with QueueClient.from_connection_string(server.connection_string, "orders") as sdk:
            sdk.send_message("sdk", headers={"x-ms-leasehold-group-id": ENCODED})

        groups = {message.text: message.group_id for message in queue.peek(32)}
        named = ("put", "many", "raw", "cli", "items", "worker", "sdk")
        assert groups == {"none": None} | dict.fromkeys(named, GROUP)
        assert {view.text: view.group_id for view in queue.inspect()} == groups
        received = {message.text: message for message in queue.receive(32)}
        assert {text: message.group_id for text, message in received.items()} == groups
        shown = CliRunner().invoke(
            main, ["message", "show", "orders", received["sdk"].id], env=connection
        )
        assert GROUP in shown.output
        told = CliRunner().invoke(main, ["trace", "orders", received["sdk"].id], env=connection)
        assert GROUP in told.output, told.output
        explained = queue.explain_message(received["sdk"].id)
        assert explained.evidence["group_id"] == GROUP


def test_names_that_will_not_do() -> None:
    """They are refused by all with the limit, and nothing is put."""
    with InProcessServer() as server, server.client() as client:
        queue = client.queue("orders")
        queue.create()
        for name in ("", "g" * 129):
            with pytest.raises(OutOfRange, match="128"):
                queue.put("x", group_id=name)
            (refused,) = queue.put_many([NewMessage("x", group_id=name)])
            assert isinstance(refused, ServerProblem)
            assert refused.field == "$.messages[0].group_id"
        with pytest.raises(OutOfRange, match="128"):
            queue.put_body(b"x", group_id="g" * 129)
        assert queue.counts().total == 0


@pytest.mark.parametrize("store", ["memory", "sqlite"])
def test_a_queue_that_groups_share(store: str) -> None:
    """Set on the command line, kept by the server, and explained to whoever asks."""
    with InProcessServer(store=store) as server, server.client() as client:
        connection = {"AZURE_STORAGE_CONNECTION_STRING": server.connection_string}
        words = "queue create orders --group-order fifo --group-fair --group-weight acme=3"
        words += " --group-in-flight 5 --group-in-flight-of acme=2"
        done = CliRunner().invoke(main, words.split(), env=connection)
        assert done.exit_code == 0, done.output
        queue = client.queue("orders")
        groups = queue.info().settings.groups
        assert groups is not None
        assert (groups.order, groups.fair, groups.max_in_flight) == ("fifo", True, 5)
        assert (groups.weights, groups.max_in_flight_of) == ({"acme": 3}, {"acme": 2})
        shown = CliRunner().invoke(main, ["queue", "show", "orders"], env=connection).output
        assert "in order, served in turn, acme with weight 3" in " ".join(shown.split())

        first = queue.put("first", group_id="acme")
        second = queue.put("second", group_id="acme")
        with QueueClient.from_connection_string(server.connection_string, "orders") as sdk:
            (received,) = list(sdk.receive_messages(messages_per_page=1, max_messages=1))
            assert received.id == first.id
            assert list(sdk.receive_messages()) == []
            told = CliRunner().invoke(main, ["explain", "orders", second.id], env=connection)
            assert f"waits behind message {first.id}" in " ".join(told.output.split())
            sdk.delete_message(received)
        assert [message.text for message in queue.receive(5, wait_s=5)] == ["second"]

        changed = queue.update(settings={"groups": {"weights": {"acme": None, "blue": 2}}})
        assert changed.settings.groups is not None
        assert changed.settings.groups.weights == {"blue": 2}
        for bad in ({"order": "lifo"}, {"weights": {"a": 0}}, {"max_in_flight": 0}, {"x": 1}):
            with pytest.raises(LeaseholdClientError):
                queue.update(settings={"groups": bad})
        reset = "queue set orders --reset groups"
        assert CliRunner().invoke(main, reset.split(), env=connection).exit_code == 0
        assert queue.info().settings.groups is None
