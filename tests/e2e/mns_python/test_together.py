"""One queue through three protocols."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from azure.storage.queue import QueueClient
from mns.message_property import MessagePropertyValue, PropertyType
from mns.queue import Message

from leasehold.client import Client, LeaseLost
from leasehold.testing import InProcessServer
from tests.e2e.mns_python.conftest import meta
from tests.e2e.mns_python.support import refused, waiting


@pytest.fixture
def azure(queue: Any, server: InProcessServer) -> Any:
    """The same queue, through the official SDK of Azure."""
    with QueueClient.from_connection_string(server.connection_string, queue.queue_name) as made:
        yield made


@pytest.fixture
def client(server: InProcessServer) -> Any:
    """The native client."""
    with server.client() as made:
        yield made


def test_what_one_sends_the_other_receives(queue: Any, azure: QueueClient) -> None:
    """Body, id and count are the same, either way."""
    sent = queue.send_message(Message("from MNS"))
    got = azure.receive_message(visibility_timeout=10)
    assert got is not None
    assert base64.b64decode(got.content) == b"from MNS"
    assert got.id.replace("-", "").upper() == sent.message_id
    azure.delete_message(got)
    azure.send_message(base64.b64encode(b"from Azure").decode())
    back = queue.receive_message()
    assert (back.message_body, back.dequeue_count) == (b"from Azure", 1)


def test_a_receive_of_one_waits_for_the_other(
    queue: Any, azure: QueueClient, second: Any, server: InProcessServer
) -> None:
    """The wait ends when the message comes through the other protocol."""
    other = second.get_queue(queue.queue_name)
    receive = waiting(server, lambda: other.receive_message(30))
    azure.send_message("eA==")
    assert receive().message_body == b"x"


def test_each_type_has_a_timeout_of_its_own(
    queue: Any, azure: QueueClient, client: Client, server: InProcessServer
) -> None:
    """A header of Azure's SDK and a property of MNS's name the type, or the timeout itself."""
    client.queue(queue.queue_name).update(
        settings={"timeouts_by_type": {"encode.*": {"visibility_timeout_s": 1200}}}
    )
    kind, own = "x-ms-leasehold-type", "x-ms-leasehold-visibility-timeout"

    def put() -> None:
        azure.send_message("YQ==", headers={kind: "encode.film"})
        azure.send_message("Yg==", headers={kind: "encode.film", own: "90"})
        azure.send_message("Yw==")
        for body, properties in (
            ("d", {"leasehold-type": "encode.film"}),
            ("e", {"leasehold-type": "thumbnail", "leasehold-visibility-timeout": "90"}),
            ("f", {}),
        ):
            message = Message(body)
            for name, value in properties.items():
                message.add_user_property(name, MessagePropertyValue(PropertyType.STRING, value))
            queue.send_message(message)

    expected = {b"a": 1200, b"b": 90, b"c": 30, b"d": 1200, b"e": 90, b"f": 30}
    put()
    by_azure = {}
    for each in azure.receive_messages(messages_per_page=32):
        assert each.next_visible_on is not None
        ends_ms = each.next_visible_on.timestamp() * 1000
        by_azure[base64.b64decode(each.content)] = round((ends_ms - server.now_ms()) / 1000)
        azure.delete_message(each)
    assert by_azure == expected
    put()
    by_mns = {
        each.message_body: (each.next_visible_time - each.first_dequeue_time) // 1000
        for each in queue.batch_receive_message(16)
    }
    assert by_mns == expected


def test_an_operator_sees_and_governs(queue: Any, client: Client, server: InProcessServer) -> None:
    """What is leased through MNS is shown, and its lease can be ended."""
    queue.send_message(Message("x"))
    got = queue.receive_message()
    native = client.queue(queue.queue_name)
    [seen] = native.inspect(states=["leased"])
    assert seen.id.replace("-", "").upper() == got.message_id
    native.end_lease(seen.id)
    with refused("MessageNotExist"):
        queue.delete_message(got.receipt_handle)
    assert queue.receive_message().dequeue_count == 2


def test_the_rule_of_receipts_is_the_queues(
    queue: Any, client: Client, server: InProcessServer
) -> None:
    """A queue made through MNS is strict for everybody, and can be told to be kinder."""
    native = client.queue(queue.queue_name)
    assert native.info().settings.lapsed_receipts == "strict"
    queue.send_message(Message("x"))
    [leased] = native.receive(visibility_timeout_s=10)
    server.advance(10)
    with pytest.raises(LeaseLost):
        native.complete(leased)
    native.update(settings={"lapsed_receipts": "until-retaken"})
    got = queue.receive_message()
    server.advance(31)
    queue.delete_message(got.receipt_handle)


def test_a_queue_can_take_the_handles_of_the_same_lease(
    queue: Any, client: Client, server: InProcessServer
) -> None:
    """Then a handle that was replaced works until the lease ends, as some clients expect."""
    client.queue(queue.queue_name).update(settings={"lapsed_receipts": "same-lease"})
    for _ in range(2):
        queue.send_message(Message("x"))
    got, late = queue.receive_message(), queue.receive_message()
    queue.change_message_visibility(got.receipt_handle, 60)
    changed = queue.change_message_visibility(late.receipt_handle, 60)
    server.advance(59)
    queue.delete_message(got.receipt_handle)
    server.advance(1)
    for handle in (late.receipt_handle, changed.receipt_handle):
        with refused("MessageNotExist"):
            queue.delete_message(handle)


def test_a_setting_makes_it_the_rule_of_new_queues() -> None:
    """``mns_receipts`` says what queues are made with."""
    from mns.account import Account  # noqa: PLC0415 - a server of its own

    with InProcessServer(mns_receipts="same-lease") as server, server.client() as client:
        account = Account(server.mns_url, server.account, server.key)
        account.get_queue("kind").create(meta())
        assert client.queue("kind").info().settings.lapsed_receipts == "same-lease"
        account.get_client().close_connection()


def test_attributes_survive_a_change_of_settings(queue: Any, client: Client) -> None:
    """A patch through the native API leaves what it does not name."""
    queue.set_attributes(meta(delay_seconds=7, polling_wait_seconds=0))
    native = client.queue(queue.queue_name)
    native.update(settings={"visibility_timeout_s": 77, "dedup_window_s": 5})
    settings = native.info().settings
    assert settings.mns is not None
    assert (settings.mns.delay_s, settings.mns.time_to_live_s) == (7, 345_600)


@pytest.mark.filterwarnings("ignore:Call to deprecated:DeprecationWarning")
def test_a_queue_made_elsewhere(client: Client, account: Any) -> None:
    """It has the defaults of MNS, and the rule of Azure."""
    client.queue("made-natively").create()
    queue = account.get_queue("made-natively")
    found = queue.get_attributes()
    assert (found.message_retention_period, found.visibility_timeout) == (345_600, 30)
    queue.create(meta())
    queue.send_message(Message("x"))
    [seen] = client.queue("made-natively").inspect()
    assert (seen.expires_at_ms or 0) - seen.inserted_at_ms == 345_600_000


def test_bytes_that_xml_cannot_hold(queue: Any, client: Client) -> None:
    """They come as base64, which is what the SDK takes a body for anyway."""
    client.queue(queue.queue_name).put(b"\x00\xff")
    assert queue.receive_message().message_body == b"\x00\xff"
