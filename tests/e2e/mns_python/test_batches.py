"""Batches, whole and in part."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from mns.queue import Message

from leasehold.testing import InProcessServer
from tests.e2e.mns_python.support import refused, waiting


def test_a_batch_of_sixteen(queue: Any) -> None:
    """It is sent, looked at, received and deleted, each in one request."""
    sent = queue.batch_send_message([Message(f"m{number}") for number in range(16)])
    assert len({each.message_id for each in sent}) == 16
    peeked = queue.batch_peek_message(16)
    assert [each.message_body for each in peeked] == [f"m{n}".encode() for n in range(16)]
    got = queue.batch_receive_message(16)
    assert [each.message_id for each in got] == [each.message_id for each in sent]
    assert {each.dequeue_count for each in got} == {1}
    queue.batch_delete_message([each.receipt_handle for each in got])
    with refused("MessageNotExist"):
        queue.batch_peek_message(16)


def test_fewer_than_asked_for(queue: Any, server: InProcessServer, second: Any) -> None:
    """Whatever is there comes at once; nothing is waited for but the first."""
    queue.send_message(Message("x"))
    assert len(queue.batch_receive_message(16, 30)) == 1
    other = second.get_queue(queue.queue_name)
    receive = waiting(server, lambda: other.batch_receive_message(16, 30))
    queue.batch_send_message([Message("a"), Message("b")])
    assert [each.message_body for each in receive()] == [b"a", b"b"]


@pytest.mark.parametrize("size", [0, 17])
def test_how_many_may_be_asked_for(queue: Any, size: int) -> None:
    """1 to 16."""
    for ask in (queue.batch_receive_message, queue.batch_peek_message):
        with refused("InvalidArgument"):
            ask(size)


@pytest.mark.parametrize("size", [0, 17])
def test_how_many_may_be_sent(queue: Any, size: int) -> None:
    """1 to 16 messages, and as many handles; otherwise none of them counts."""
    with refused("InvalidArgument") as caught:
        queue.batch_send_message([Message("x")] * size)
    assert caught.value.sub_errors is None
    with refused("InvalidArgument"):
        queue.batch_delete_message(["x"] * size)
    with refused("MessageNotExist"):
        queue.peek_message()


def test_a_batch_is_as_large_as_a_message(queue: Any) -> None:
    """All bodies together have 64 KiB at most."""
    queue.set_encoding(False)
    queue.batch_send_message([Message("x" * 4_096)] * 16)
    with refused("InvalidArgument") as caught:
        queue.batch_send_message([*[Message("x" * 4_096)] * 15, Message("x" * 4_097)])
    assert caught.value.sub_errors is None


def test_messages_of_a_batch_that_are_refused(new_queue: Callable[..., Any]) -> None:
    """The others are sent; what became of each is told in order."""
    queue = new_queue(maximum_message_size=1_024)
    messages = [
        Message("good"),
        Message("x" * 1_025),
        Message("urgent", priority=17),
        Message("also good", delay_seconds=5),
    ]
    with refused("InvalidArgument") as caught:
        queue.batch_send_message(messages)
    told = caught.value.sub_errors
    assert [sorted(each) for each in told] == [
        ["MessageBodyMD5", "MessageId"],
        ["ErrorCode", "ErrorMessage"],
        ["ErrorCode", "ErrorMessage"],
        ["MessageBodyMD5", "MessageId"],
    ]
    assert [each["ErrorCode"] for each in told[1:3]] == ["InvalidArgument"] * 2
    assert queue.receive_message().message_id == told[0]["MessageId"]


def test_handles_of_a_batch_that_are_refused(queue: Any, server: InProcessServer) -> None:
    """The others are deleted; each failure is told with its handle and its code."""
    queue.batch_send_message([Message(str(number)) for number in range(4)])
    first = queue.receive_message()
    server.advance(20)
    rest = queue.batch_receive_message(3)
    queue.delete_message(rest[0].receipt_handle)
    server.advance(15)
    handles = [first.receipt_handle, *(each.receipt_handle for each in rest), "garbage"]
    with refused("MessageNotExist") as caught:
        queue.batch_delete_message(handles)
    told = {each["ReceiptHandle"]: each["ErrorCode"] for each in caught.value.sub_errors}
    assert told == {
        first.receipt_handle: "MessageNotExist",
        rest[0].receipt_handle: "MessageNotExist",
        "garbage": "ReceiptHandleError",
    }
    assert queue.receive_message().message_id == first.message_id
    with refused("MessageNotExist"):
        queue.receive_message()


def test_one_handle_twice(queue: Any) -> None:
    """The second time there is nothing to delete any more."""
    queue.send_message(Message("x"))
    handle = queue.receive_message().receipt_handle
    with refused("MessageNotExist") as caught:
        queue.batch_delete_message([handle, handle])
    assert len(caught.value.sub_errors) == 1


def test_delayed_messages_of_a_batch(queue: Any, server: InProcessServer) -> None:
    """Each has its own delay and priority."""
    queue.batch_send_message(
        [Message("later", delay_seconds=5), Message("last", priority=16), Message("first")]
    )
    got = queue.batch_receive_message(16)
    assert [each.message_body for each in got] == [b"first", b"last"]
    server.advance(5)
    assert queue.receive_message().message_body == b"later"
