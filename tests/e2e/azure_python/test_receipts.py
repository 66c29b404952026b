"""Pop receipts: which one works when."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import pytest
from azure.core.exceptions import ResourceNotFoundError

from tests.e2e.azure_python.refusals import refused

if TYPE_CHECKING:
    from azure.storage.queue import QueueMessage

    from tests.e2e.azure_python.sdk import Client, Sdk

STALE_ON_AZURITE = "answers 400 PopReceiptMismatch to a stale receipt"


async def _assert_refused(queue: Client, message_id: str, receipt: str) -> None:
    """Neither update nor delete works, and the code is 404 MessageNotFound."""
    with refused(404, "MessageNotFound", ResourceNotFoundError):
        await queue.update_message(message_id, receipt, visibility_timeout=5)
    with refused(404, "MessageNotFound", ResourceNotFoundError):
        await queue.delete_message(message_id, receipt)


async def _receive(queue: Client) -> QueueMessage:
    message: QueueMessage | None = await queue.receive_message(visibility_timeout=600)
    assert message is not None
    return message


async def test_the_receipt_of_sending_works(sdk: Sdk) -> None:
    """Nobody has received the message yet, so its sender may change or delete it."""
    queue = await sdk.new_queue()
    sent = await queue.send_message("x")
    updated = await queue.update_message(sent, content="y", visibility_timeout=0)
    [peeked] = await queue.peek_messages()
    assert (peeked.content, peeked.dequeue_count) == ("y", 0)
    await queue.delete_message(updated)
    assert await queue.peek_messages() == []


@pytest.mark.differs_on_azurite(STALE_ON_AZURITE)
async def test_the_receipt_of_sending_dies_with_the_first_receive(sdk: Sdk) -> None:
    """From then on the message is the consumer's."""
    queue = await sdk.new_queue()
    sent = await queue.send_message("x")
    received = await _receive(queue)
    await _assert_refused(queue, sent.id, sent.pop_receipt)
    await queue.delete_message(received)


@pytest.mark.differs_on_azurite(STALE_ON_AZURITE)
async def test_an_update_replaces_the_receipt(sdk: Sdk) -> None:
    """The old one is dead, the new one works."""
    queue = await sdk.new_queue()
    await queue.send_message("x")
    received = await _receive(queue)
    updated = await queue.update_message(received, visibility_timeout=600)
    await _assert_refused(queue, received.id, str(received.pop_receipt))
    await queue.delete_message(updated)


@pytest.mark.differs_on_azurite(STALE_ON_AZURITE)
async def test_a_receipt_dies_when_somebody_else_receives(sdk: Sdk) -> None:
    """A worker that lost its lease can neither renew nor delete; the new holder can."""
    queue = await sdk.new_queue()
    await queue.send_message("x")
    early = await _receive(queue)
    given_back = await queue.update_message(early, visibility_timeout=0)
    late = await _receive(queue)
    assert late.id == early.id
    await _assert_refused(queue, early.id, str(early.pop_receipt))
    await _assert_refused(queue, early.id, given_back.pop_receipt)
    await queue.delete_message(late)


@pytest.mark.differs_on_azurite("answers 400 PopReceiptMismatch to a malformed receipt")
@pytest.mark.parametrize("receipt", ["garbage", "%%%", "AAAA", "a b+c/d=="])
async def test_a_malformed_receipt_is_a_bad_parameter(sdk: Sdk, receipt: str) -> None:
    """The message is there, but this never was a receipt."""
    queue = await sdk.new_queue()
    sent = await queue.send_message("x")
    for call in (queue.update_message, queue.delete_message):
        with refused(400, "InvalidQueryParameterValue") as refusal:
            await call(sent.id, receipt)
        assert refusal.details["queryparametername"] == "popreceipt"
    await queue.delete_message(sent)


async def test_an_unknown_message_is_not_found(sdk: Sdk) -> None:
    """Whatever the receipt, and whether or not the id has the form of one."""
    queue = await sdk.new_queue()
    sent = await queue.send_message("x")
    await _assert_refused(queue, str(uuid.uuid4()), sent.pop_receipt)
    await _assert_refused(queue, "not-an-id", sent.pop_receipt)
    await _assert_refused(queue, str(uuid.uuid4()), "garbage")


@pytest.mark.differs_on_azurite("gives messages received together the same receipt")
async def test_a_receipt_is_for_its_own_message(sdk: Sdk) -> None:
    """Messages received together have receipts of their own, and one does not open another."""
    queue = await sdk.new_queue()
    for text in "abc":
        await queue.send_message(text)
    messages = await queue.receive_messages(messages_per_page=3, visibility_timeout=600).all()
    first, second, third = messages
    assert len({message.pop_receipt for message in messages}) == 3
    with refused({400, 404}):
        await queue.delete_message(first.id, second.pop_receipt)
    for message in (second, first, third):
        await queue.delete_message(message)


async def test_a_receipt_is_for_its_own_queue(sdk: Sdk) -> None:
    """The same id and receipt in another queue find nothing."""
    queue, other = await sdk.new_queue(), await sdk.new_queue()
    sent = await queue.send_message("x")
    await other.send_message("y")
    await _assert_refused(other, sent.id, sent.pop_receipt)
    await queue.delete_message(sent)
