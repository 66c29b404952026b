"""Groups that sessions hold, as the client, the command line and explanations show them."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator

import pytest
from click.testing import CliRunner

from leasehold.cli import main
from leasehold.client import Client
from leasehold.client.errors import GroupNotHeld, NoGroups, OutOfRange
from leasehold.client.handles import QueueHandle
from leasehold.client.models import NEXT_GROUP
from leasehold.testing import InProcessServer
from tests.patience import PATIENCE_S

ORDERED = {"groups": {"order": "fifo"}}


@pytest.fixture
def server() -> Iterator[InProcessServer]:
    with InProcessServer(clock="system") as server:
        yield server


@pytest.fixture
def client(server: InProcessServer) -> Iterator[Client]:
    with server.client() as client:
        yield client


@pytest.fixture
def orders(client: Client) -> QueueHandle:
    queue = client.queue("orders")
    queue.create(settings=ORDERED)
    return queue


def test_a_worker_takes_over_what_another_saved(client: Client, orders: QueueHandle) -> None:
    """The state, the messages in their order, and a higher fence; the old one is out."""
    for step in ("a1", "a2", "a3"):
        orders.put(step, group_id="a")
    with client.session("w1") as one:
        held = orders.hold_group(session=one)
        assert held is not None
        assert (held.group_id, held.state) == ("a", b"")
        assert held.hold.holder == "w1"
        orders.complete(held.receive(1)[0])
        held.save(b"a1 is done")
        assert [message.text for message in held.receive(5)] == ["a2", "a3"]
        with client.session("w2") as two:
            assert orders.hold_group("a", session=two) is None
            assert orders.receive(1, session=two, group="a") == []
            assert orders.receive(1) == []
    with client.session("w3") as three:
        taken = orders.hold_group(NEXT_GROUP, session=three)
        assert taken is not None
        assert taken.state == b"a1 is done"
        assert taken.fence > held.fence
        assert [message.text for message in taken.receive(5)] == ["a2", "a3"]
        with pytest.raises(RuntimeError, match="closed"):
            held.receive()


def test_a_hold_ends_where_it_is_left(client: Client, orders: QueueHandle) -> None:
    """With the block, also if it was lost before; what is saved after that is refused."""
    with client.session("w1") as session:
        held = orders.hold_group("a", session=session)
        assert held is not None
        with held:
            held.save(b"x" * 65_536)
            with pytest.raises(OutOfRange, match="0 to 65"):
                held.save(b"x" * 65_537)
        with pytest.raises(GroupNotHeld):
            held.save(b"late")
        with pytest.raises(GroupNotHeld):
            held.release()
        again = orders.hold_group("a", session=session)
        assert again is not None
        assert again.state == b"x" * 65_536
        with again:
            orders.end_hold("a")


@pytest.mark.parametrize("group", ["a", NEXT_GROUP])
def test_a_receive_waits_for_its_group(
    server: InProcessServer, client: Client, orders: QueueHandle, group: str
) -> None:
    """For a message, and for a hold of another session to end."""
    got: list[str] = []

    def wait(other: Client) -> None:
        with other.session("w2") as session:
            found = other.queue("orders").receive(5, session=session, group=group, wait_s=30)
            got.extend(message.text for message in found)

    with client.session("w1") as session, server.client() as other:
        held = orders.hold_group("a", session=session)
        assert held is not None
        waiting = threading.Thread(target=wait, args=(other,))
        waiting.start()
        orders.put("a1", group_id="a")
        time.sleep(0.05)
        assert got == []
        held.release()
        waiting.join(PATIENCE_S)
    assert got == ["a1"]


def test_a_wait_ends_with_nothing(client: Client, orders: QueueHandle) -> None:
    """When its time is up; messages of other groups are none."""
    orders.put("b1", group_id="b")
    with client.session("w1") as session:
        assert orders.receive(5, session=session, group="a", wait_s=0.3) == []
        (message,) = orders.receive(5, session=session, group=NEXT_GROUP, wait_s=0.3)
        assert message.group_id == "b"
        assert message.session == session.id


def test_what_is_seen(server: InProcessServer, client: Client, orders: QueueHandle) -> None:
    """The explanation names the holder; the command line shows the hold, and ends it."""
    sent = orders.put("a1", group_id="a")
    with client.session("w1") as session:
        orders.hold_group("a", session=session)
        told = orders.explain_message(sent.id)
        assert told.code == "group-is-held"
        assert "has been held since" in told.sentence
        assert told.evidence["hold_session"] == session.id
        hold = orders.group("a").hold
        assert hold is not None
        assert hold.holder == "w1"
        connection = {"AZURE_STORAGE_CONNECTION_STRING": server.connection_string}
        shown = CliRunner().invoke(main, ["group", "show", "orders", "a"], env=connection)
        assert f"session {session.id}" in shown.output
        done = CliRunner().invoke(main, ["group", "release", "orders", "a"], env=connection)
        assert done.exit_code == 0, done.output
        assert orders.group("a").hold is None
    traced = CliRunner().invoke(main, ["events", "tail", "--json"], env=connection)
    if traced.exit_code == 0:
        kinds = [json.loads(line)["type"] for line in traced.output.splitlines() if line]
        assert kinds.count("group-held") == kinds.count("group-released") == 1


def test_refusals(client: Client, orders: QueueHandle) -> None:
    """A group needs a session, and a queue whose settings speak of groups."""
    plain = client.queue("plain")
    plain.create()
    with client.session("w1") as session:
        with pytest.raises(NoGroups):
            plain.hold_group("a", session=session)
        with pytest.raises(NoGroups):
            plain.receive(group="a", session=session)
        with pytest.raises(OutOfRange, match="128"):
            orders.hold_group("g" * 129, session=session)
