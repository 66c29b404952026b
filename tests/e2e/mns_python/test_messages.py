"""Single messages: send, peek, receive, change visibility, delete."""

from __future__ import annotations

import hashlib
from base64 import b64encode
from collections.abc import Callable
from typing import Any

import pytest
from mns.message_property import (
    MessagePropertyValue,
    MessageSystemPropertyValue,
    SystemPropertyName,
)
from mns.queue import Message

from leasehold.testing import InProcessServer
from tests.e2e.mns_python.support import refused, waiting


def test_a_message_comes_as_it_was_sent(queue: Any, server: InProcessServer) -> None:
    """Id, digest, times, count and priority are those of the service."""
    sent = queue.send_message(Message("wörk & <more>"))
    now_ms = server.now_ms()
    server.advance(1)
    got = queue.receive_message()
    carried = b64encode("wörk & <more>".encode())
    assert got.message_body == "wörk & <more>".encode()
    assert got.message_id == sent.message_id
    assert sent.message_id == sent.message_id.upper()
    assert len(sent.message_id) == 32
    md5 = hashlib.md5(carried, usedforsecurity=False).hexdigest().upper()
    assert sent.message_body_md5 == got.message_body_md5 == md5
    assert (got.enqueue_time, got.first_dequeue_time) == (now_ms, now_ms + 1_000)
    assert got.next_visible_time == now_ms + 31_000
    assert (got.dequeue_count, got.priority) == (1, 8)
    assert sent.receipt_handle == ""


@pytest.mark.parametrize("body", ["plain", "<&>\"']]>", "a\r\nb\rc\n", " blanks ", "\U0001f600 é"])
def test_a_body_without_base64(queue: Any, body: str) -> None:
    """Every character comes back that XML can hold, but for line ends the SDK does not escape."""
    queue.set_encoding(False)
    queue.send_message(Message(body))
    folded = body.replace("\r\n", "\n").replace("\r", "\n")
    assert queue.peek_message().message_body == folded
    assert queue.receive_message().message_body == folded


def test_the_first_time_of_receiving_is_kept(queue: Any, server: InProcessServer) -> None:
    """Later deliveries count up, and tell when the first one was."""
    queue.send_message(Message("x"))
    first_ms = server.now_ms()
    for count in (1, 2, 3):
        got = queue.receive_message()
        assert (got.dequeue_count, got.first_dequeue_time) == (count, first_ms)
        server.advance(31)


def test_peeking_changes_nothing(queue: Any, server: InProcessServer) -> None:
    """It shows active messages only, with neither handle nor next time."""
    with refused("MessageNotExist"):
        queue.peek_message()
    queue.send_message(Message("x"))
    for _ in range(2):
        peeked = queue.peek_message()
        assert (peeked.message_body, peeked.dequeue_count) == (b"x", 0)
        assert peeked.first_dequeue_time == peeked.enqueue_time == server.now_ms()
        assert peeked.receipt_handle == ""
    queue.receive_message()
    with refused("MessageNotExist"):
        queue.peek_message()


def test_a_delay_hides_a_message(new_queue: Callable[..., Any], server: InProcessServer) -> None:
    """The message's own delay counts before the queue's, unless it is 0."""
    queue = new_queue(delay_seconds=10)
    queue.send_message(Message("shorter", delay_seconds=1))
    queue.send_message(Message("queue's"))
    queue.send_message(Message("own", delay_seconds=20))
    queue.send_message(Message("none", delay_seconds=0))
    with refused("MessageNotExist"):
        queue.receive_message()
    server.advance(1)
    assert queue.receive_message().message_body == b"shorter"
    server.advance(9)
    received = [queue.receive_message().message_body for _ in range(2)]
    assert sorted(received) == [b"none", b"queue's"]
    server.advance(10)
    assert queue.receive_message().message_body == b"own"


def test_a_delayed_message_can_be_taken_back_or_let_go(queue: Any, server: InProcessServer) -> None:
    """Its sender is given a handle; that is how transactions are made."""
    back = queue.send_message(Message("back", delay_seconds=600))
    on = queue.send_message(Message("on", delay_seconds=600))
    queue.delete_message(back.receipt_handle)
    queue.change_message_visibility(on.receipt_handle, 1)
    server.advance(1)
    assert queue.receive_message().message_body == b"on"
    with refused("MessageNotExist"):
        queue.receive_message()


def test_urgent_messages_come_first(queue: Any) -> None:
    """1 before 8 before 16; 0 is what the Go SDK sends for none."""
    for priority in (16, 0, 1, 8):
        queue.send_message(Message(str(priority), priority=priority))
    got = [queue.receive_message() for _ in range(4)]
    assert [each.message_body for each in got] == [b"1", b"0", b"8", b"16"]
    assert [each.priority for each in got] == [1, 8, 8, 16]


def test_messages_end_with_their_retention(
    new_queue: Callable[..., Any], server: InProcessServer
) -> None:
    """It counts from the send, whether they are received or not."""
    queue = new_queue(message_retention_period=60)
    queue.send_message(Message("x"))
    server.advance(59)
    queue.peek_message()
    server.advance(1)
    with refused("MessageNotExist"):
        queue.peek_message()


def test_a_receive_waits_for_a_message(queue: Any, server: InProcessServer, second: Any) -> None:
    """It is answered when the message comes, and with an error when the time is over."""
    other = second.get_queue(queue.queue_name)
    receive = waiting(server, lambda: other.receive_message(30))
    queue.send_message(Message("x"))
    assert receive().message_body == b"x"
    receive = waiting(server, lambda: other.receive_message(10))
    server.advance(10)
    with refused("MessageNotExist"):
        receive()


def test_the_queue_says_how_long_to_wait(
    new_queue: Callable[..., Any], server: InProcessServer, second: Any
) -> None:
    """A receive that names no wait has the queue's, and one that names none has none."""
    queue = new_queue(polling_wait_seconds=20)
    other = second.get_queue(queue.queue_name)
    receive = waiting(server, other.receive_message)
    server.advance(20)
    with refused("MessageNotExist"):
        receive()
    with refused("MessageNotExist"):
        queue.receive_message(0)


def test_changing_visibility_gives_a_new_handle(queue: Any, server: InProcessServer) -> None:
    """It counts from the call, and only the newest handle acts."""
    queue.send_message(Message("x"))
    got = queue.receive_message()
    server.advance(20)
    changed = queue.change_message_visibility(got.receipt_handle, 35)
    assert int(changed.next_visible_time) == server.now_ms() + 35_000
    assert changed.receipt_handle != got.receipt_handle
    with refused("MessageNotExist"):
        queue.delete_message(got.receipt_handle)
    with refused("MessageNotExist"):
        queue.change_message_visibility(got.receipt_handle, 35)
    server.advance(34)
    queue.delete_message(changed.receipt_handle)


def test_a_handle_dies_with_its_lease(queue: Any, server: InProcessServer) -> None:
    """Nobody else has the message, and yet it can neither be deleted nor changed."""
    queue.send_message(Message("x"))
    got = queue.receive_message()
    server.advance(30)
    with refused("MessageNotExist"):
        queue.delete_message(got.receipt_handle)
    with refused("MessageNotExist"):
        queue.change_message_visibility(got.receipt_handle, 5)
    again = queue.receive_message()
    assert (again.message_id, again.dequeue_count) == (got.message_id, 2)
    queue.delete_message(again.receipt_handle)
    with refused("MessageNotExist"):
        queue.delete_message(again.receipt_handle)


@pytest.mark.parametrize(
    "handle", ["x", "1-ODU4OTkzNDU5Ni0xNDM1MTk3NjAwLTItNg==", "a/b+c=", "A" * 69, "%"]
)
def test_a_handle_of_another_form(queue: Any, handle: str) -> None:
    """It is told apart from one that is dead."""
    code = "InvalidQueryString" if handle == "%" else "ReceiptHandleError"
    with refused(code):
        queue.delete_message(handle)
    with refused(code):
        queue.change_message_visibility(handle, 5)


def test_a_visibility_of_nothing(queue: Any) -> None:
    """A message cannot be given back at once; other values out of range the SDK does not send."""
    queue.send_message(Message("x"))
    got = queue.receive_message()
    with refused("InvalidArgument"):
        queue.change_message_visibility(got.receipt_handle, 0)
    queue.delete_message(got.receipt_handle)


def test_a_visibility_beyond_the_retention(new_queue: Callable[..., Any]) -> None:
    """The message would never be seen again."""
    queue = new_queue(message_retention_period=60)
    queue.send_message(Message("x"))
    got = queue.receive_message()
    with refused("InvalidArgument"):
        queue.change_message_visibility(got.receipt_handle, 61)
    with refused("InvalidArgument"):
        queue.send_message(Message("y", delay_seconds=60))


@pytest.mark.parametrize(
    "message",
    [
        Message("x", priority=17),
        Message("x", delay_seconds=604_801),
        Message("x" * 49_153),  # 65,540 in base64
    ],
)
def test_messages_that_are_not_taken(queue: Any, message: Any) -> None:
    """Values out of range, and a body that is too large as it is carried."""
    with refused("InvalidArgument"):
        queue.send_message(message)


def test_the_largest_message(new_queue: Callable[..., Any]) -> None:
    """Its size is that of the text carried, each character of which may need six in XML."""
    queue = new_queue()
    queue.set_encoding(False)
    queue.send_message(Message('"' * 65_536))
    assert queue.receive_message().message_body == '"' * 65_536
    small = new_queue(maximum_message_size=1_024)
    small.set_encoding(False)
    small.send_message(Message("x" * 1_024))
    with refused("InvalidArgument"):
        small.send_message(Message("x" * 1_025))


@pytest.mark.parametrize("seconds", [-1, 31])
def test_a_wait_out_of_range(queue: Any, seconds: int) -> None:
    """0 to 30 seconds; the SDK leaves -1 out."""
    code = "MessageNotExist" if seconds < 0 else "InvalidArgument"
    with refused(code):
        queue.receive_message(seconds)


def test_properties_come_back_with_their_types(queue: Any) -> None:
    """Those of users and those of the system, in single and in batch receives."""
    message = Message("x")
    message.add_user_property("text", MessagePropertyValue.create_string("<&> é"))
    message.add_user_property("number", MessagePropertyValue.create_number(-1.5))
    message.add_user_property("flag", MessagePropertyValue.create_boolean(True))
    message.add_user_property("raw", MessagePropertyValue.create_binary(b"\x00\xff"))
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    for name, value in (
        (SystemPropertyName.TRACEPARENT, trace),
        (SystemPropertyName.BAGGAGE, "a=b"),
    ):
        message.add_system_property(name, MessageSystemPropertyValue.create_string(value))
    queue.send_message(message)
    queue.send_message(message)
    for got in (queue.peek_message(), queue.receive_message(), *queue.batch_receive_message(1)):
        users, systems = got.get_user_properties(), got.get_system_properties()
        assert users["text"].get_raw_value() == "<&> é"
        assert (users["number"].get_data_type(), users["number"].get_raw_value()) == (
            "NUMBER",
            "-1.5",
        )
        assert users["flag"].get_data_type() == "BOOLEAN"
        assert users["raw"].get_binary_value() == b"\x00\xff"
        assert systems["traceparent"].get_raw_value() == trace
        assert systems["baggage"].get_raw_value() == "a=b"
        assert set(users) == {"text", "number", "flag", "raw"}


def test_a_group_is_kept(queue: Any) -> None:
    """Without the order that a queue of another kind would give it."""
    queue.send_message(Message("x", message_group_id="g1"))
    assert queue.receive_message().message_group_id == "g1"
