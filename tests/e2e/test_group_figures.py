"""The groups of a queue, as a client and the command line show them."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from leasehold.cli.root import main
from leasehold.client.errors import LeaseholdClientError, QueueNotFound
from leasehold.client.models import NewMessage
from leasehold.testing import InProcessServer


@pytest.mark.parametrize("store", ["memory", "sqlite"])
def test_the_groups_of_a_queue(store: str) -> None:
    """By backlog and by what is in flight; noisy ones alone; one with what holds it up."""
    with InProcessServer(store=store) as server, server.client() as client:
        queue = client.queue("orders")
        queue.create(settings={"groups": {"fair": True, "weights": {"big/1": 100}}})
        queue.put_many([_message("big/1", number) for number in range(50)])
        queue.put("x", group_id="small")
        held = [each for each in queue.receive(40) if each.group_id == "big/1"]
        assert len(held) > 30
        queue.put_many([_message("other", number) for number in range(20)])

        assert queue.groups().noisy == 0  # as much is its due
        queue.update(settings={"groups": {"weights": None}})
        found = queue.groups()
        assert (found.total, found.noisy) == (3, 1)
        assert found.groups[0].group_id == "other"
        assert [each.group_id for each in queue.groups(order="in_flight", limit=1).groups] == [
            "big/1"
        ]
        (noisy,) = queue.groups(noisy=True).groups
        assert noisy.noisy
        assert (noisy.group_id, noisy.in_flight) == ("big/1", len(held))
        one = queue.group("big/1")
        assert one.group == noisy
        assert {each.id for each in one.held} <= {each.id for each in held}
        assert len(one.held) == 10
        assert queue.group("none").group.waiting == 0
        with pytest.raises(QueueNotFound):
            client.queue("none").groups()
        with pytest.raises(LeaseholdClientError, match="not an order"):
            queue.groups(order="size")

        connection = {"AZURE_STORAGE_CONNECTION_STRING": server.connection_string}
        words = ["group", "list", "orders", "--order", "in-flight"]
        shown = CliRunner().invoke(main, words, env=connection)
        assert shown.exit_code == 0, shown.output
        lines = shown.output.splitlines()
        assert lines[0].split()[:3] == ["GROUP", "WAITING", "IN"]
        assert lines[2].split()[0] == "big/1"
        assert lines[-1].startswith("3 groups with messages")
        told = CliRunner().invoke(main, [*words, "--json", "--noisy"], env=connection)
        assert [each["group_id"] for each in json.loads(told.output)["groups"]] == ["big/1"]
        words = ["group", "show", "orders", "big/1"]
        whole = CliRunner().invoke(main, words, env=connection).output
        assert "noisy" in whole
        assert one.held[0].id in whole


def _message(group: str, number: int) -> NewMessage:
    return NewMessage(f"{number}", group_id=group)
