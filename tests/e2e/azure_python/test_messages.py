"""Messages: send, receive, peek, update, delete, clear."""

from __future__ import annotations

import asyncio
import datetime as dt
import uuid
from typing import TYPE_CHECKING, Any

import pytest
from azure.core.exceptions import ResourceNotFoundError
from azure.storage.queue import QueueMessage

from tests.e2e.azure_python.covers import covers
from tests.e2e.azure_python.refusals import refused

if TYPE_CHECKING:
    from tests.e2e.azure_python.sdk import Client, Sdk

WEEK_S = 604_800
_SECOND = dt.timedelta(seconds=1)


async def _drain(queue: Client, **options: Any) -> list[QueueMessage]:
    """Receive everything that is visible."""
    options = {"messages_per_page": 32, "visibility_timeout": 60} | options
    messages: list[QueueMessage] = await queue.receive_messages(**options).all()
    return messages


@covers(
    "QueueClient.send_message:content",
    "QueueMessage",
    "QueueMessage.id",
    "QueueMessage.inserted_on",
    "QueueMessage.expires_on",
    "QueueMessage.content",
    "QueueMessage.pop_receipt",
    "QueueMessage.next_visible_on",
)
async def test_sending_tells_all_about_the_message(sdk: Sdk) -> None:
    """A GUID, a receipt, visible at once, gone after seven days."""
    queue = await sdk.new_queue()
    sent = await queue.send_message("hello")
    assert str(uuid.UUID(sent.id)) == sent.id
    assert sent.content == "hello"
    assert sent.pop_receipt
    assert sent.next_visible_on == sent.inserted_on
    assert sent.expires_on - sent.inserted_on == dt.timedelta(days=7)
    assert sent.inserted_on.utcoffset() == dt.timedelta()
    assert isinstance(sent, QueueMessage)


@covers("QueueClient.receive_message", "QueueMessage.dequeue_count")
async def test_receiving_hides_the_message_for_thirty_seconds(sdk: Sdk) -> None:
    """The default lease; nobody else gets the message meanwhile."""
    queue = await sdk.new_queue()
    sent = await queue.send_message("hello")
    received = await queue.receive_message()
    assert (received.id, received.content, received.dequeue_count) == (sent.id, "hello", 1)
    assert (received.inserted_on, received.expires_on) == (sent.inserted_on, sent.expires_on)
    assert received.pop_receipt
    lease = received.next_visible_on - received.inserted_on
    assert dt.timedelta(seconds=29) <= lease <= dt.timedelta(seconds=60)
    assert await queue.receive_message() is None
    assert await queue.peek_messages() == []


@covers("QueueClient.receive_message:visibility_timeout")
async def test_a_lease_may_last_seven_days(sdk: Sdk) -> None:
    """Its end may even lie past the message's own."""
    queue = await sdk.new_queue()
    await queue.send_message("short-lived", time_to_live=600)
    received = await queue.receive_message(visibility_timeout=WEEK_S)
    lease = received.next_visible_on - received.inserted_on
    assert lease >= dt.timedelta(seconds=WEEK_S)
    assert received.next_visible_on > received.expires_on


async def test_an_empty_queue_answers_at_once_with_nothing(sdk: Sdk) -> None:
    """None for one message, no items for many."""
    queue = await sdk.new_queue()
    assert await queue.receive_message() is None
    assert await queue.receive_messages().all() == []
    assert await queue.receive_messages(messages_per_page=32).all() == []
    assert await queue.peek_messages(max_messages=32) == []


@covers("QueueClient.receive_messages:messages_per_page,visibility_timeout,max_messages")
async def test_many_messages_come_in_pages(sdk: Sdk) -> None:
    """At most 32 a page, each message once, until none is left or enough were had."""
    queue = await sdk.new_queue()
    sent = {(await queue.send_message(f"{i}")).id for i in range(40)}

    few = await queue.receive_messages(max_messages=3, visibility_timeout=60).all()
    assert len(few) == 3
    more = queue.receive_messages(messages_per_page=2, max_messages=3, visibility_timeout=60)
    sizes_and_ids = [[message.id for message in page] async for page in more.by_page()]
    assert [len(page) for page in sizes_and_ids] == [2, 1]
    rest = queue.receive_messages(messages_per_page=32, visibility_timeout=60)
    pages = [[message.id for message in page] async for page in rest.by_page()]
    assert [len(page) for page in pages] == [32, 2]

    received = [m.id for m in few] + [id_ for page in sizes_and_ids + pages for id_ in page]
    assert len(received) == 40
    assert set(received) == sent


async def test_without_a_page_size_messages_come_one_by_one(sdk: Sdk) -> None:
    """The default of the service is one message."""
    queue = await sdk.new_queue()
    for i in range(3):
        await queue.send_message(f"{i}")
    pages = queue.receive_messages(visibility_timeout=60).by_page()
    assert [len(page) async for page in pages] == [1, 1, 1]


async def test_messages_come_in_the_order_they_were_sent(sdk: Sdk) -> None:
    """No promise of the service, but its habit, and what everybody expects of an idle queue."""
    queue = await sdk.new_queue()
    sent = [(await queue.send_message(f"{i}")).id for i in range(12)]
    assert [m.id for m in await queue.peek_messages(max_messages=32)] == sent
    assert [m.id for m in await _drain(queue)] == sent


async def test_concurrent_consumers_share_the_messages(sdk: Sdk) -> None:
    """Eight consumers at once get every message exactly once between them."""
    queue = await sdk.new_queue()
    sent = await asyncio.gather(*(queue.send_message(f"{i}") for i in range(64)))
    shares = await asyncio.gather(*(_drain(queue, messages_per_page=5) for _ in range(8)))
    received = sorted(message.id for share in shares for message in share)
    assert received == sorted(message.id for message in sent)


@pytest.mark.parametrize(
    "messages_per_page",
    [33, pytest.param(0, marks=pytest.mark.differs_on_azurite("answers a bare 400"))],
)
async def test_a_page_of_0_or_33_messages_is_refused(sdk: Sdk, messages_per_page: int) -> None:
    """1 to 32."""
    queue = await sdk.new_queue()
    with refused(400, "OutOfRangeQueryParameterValue") as refusal:
        await queue.receive_messages(messages_per_page=messages_per_page).all()
    assert refusal.details["minimumallowed"] == "1"
    assert refusal.details["maximumallowed"] == "32"


@covers("QueueClient.peek_messages:max_messages")
async def test_peeking_changes_nothing(sdk: Sdk) -> None:
    """No receipt, no hiding, no counting, however often."""
    queue = await sdk.new_queue()
    await queue.send_message("a")
    await queue.send_message("b")
    for _ in range(2):
        one = await queue.peek_messages()
        two = await queue.peek_messages(max_messages=32)
        assert [m.content for m in one] == ["a"]
        assert [m.content for m in two] == ["a", "b"]
        for message in one + two:
            assert message.dequeue_count == 0
            assert message.pop_receipt is None
            assert message.next_visible_on is None
    received = await queue.receive_message()
    assert received.dequeue_count == 1


async def test_peeking_shows_the_count_of_earlier_receives(sdk: Sdk) -> None:
    """And only what is visible."""
    queue = await sdk.new_queue()
    await queue.send_message("a")
    for _ in range(2):
        received = await queue.receive_message()
        await queue.update_message(received.id, received.pop_receipt, visibility_timeout=0)
    [peeked] = await queue.peek_messages()
    assert peeked.dequeue_count == 2
    await queue.receive_message()
    assert await queue.peek_messages() == []


async def test_the_client_refuses_to_peek_at_33(sdk: Sdk) -> None:
    """Before asking the server."""
    queue = sdk.queue("not-there")
    with pytest.raises(ValueError, match="between 1 and 32"):
        await queue.peek_messages(max_messages=33)


@covers("QueueClient.update_message:message,pop_receipt,visibility_timeout")
async def test_updating_only_the_visibility_keeps_the_text(sdk: Sdk) -> None:
    """By id and receipt, as a worker does that needs more time."""
    queue = await sdk.new_queue()
    await queue.send_message("text")
    received = await queue.receive_message(visibility_timeout=10)
    updated = await queue.update_message(received.id, received.pop_receipt, visibility_timeout=3600)
    assert updated.id == received.id
    assert updated.pop_receipt
    assert updated.next_visible_on - received.next_visible_on >= dt.timedelta(minutes=50)
    assert await queue.receive_message() is None
    given_back = await queue.update_message(updated.id, updated.pop_receipt)
    again = await queue.receive_message()
    assert (again.id, again.content, again.dequeue_count) == (given_back.id, "text", 2)
    assert (again.inserted_on, again.expires_on) == (received.inserted_on, received.expires_on)


@covers("QueueClient.update_message:content")
async def test_updating_the_text(sdk: Sdk) -> None:
    """By message object; what the object says is kept in the answer."""
    queue = await sdk.new_queue()
    await queue.send_message("old")
    received = await queue.receive_message()
    updated = await queue.update_message(received, content="new", visibility_timeout=0)
    assert updated.content == "new"
    assert updated.dequeue_count == 1
    assert (updated.inserted_on, updated.expires_on) == (received.inserted_on, received.expires_on)
    [peeked] = await queue.peek_messages()
    assert (peeked.content, peeked.dequeue_count) == ("new", 1)


@covers("QueueClient.delete_message:message,pop_receipt")
async def test_deleting(sdk: Sdk) -> None:
    """By message object, by id and receipt, or by object and another receipt."""
    queue = await sdk.new_queue()
    for i in range(3):
        await queue.send_message(f"{i}")
    first, second, third = await _drain(queue)
    await queue.delete_message(first)
    await queue.delete_message(second.id, second.pop_receipt)
    renewed = await queue.update_message(third.id, third.pop_receipt, visibility_timeout=60)
    await queue.delete_message(third, renewed.pop_receipt)
    assert (await queue.get_queue_properties()).approximate_message_count == 0
    for message in (first, second, third):
        with refused(404, "MessageNotFound", ResourceNotFoundError):
            await queue.delete_message(message)


async def test_the_client_wants_a_receipt(sdk: Sdk) -> None:
    """Before asking the server."""
    queue = sdk.queue("not-there")
    with pytest.raises(ValueError, match="pop_receipt"):
        await queue.update_message("id")
    with pytest.raises(ValueError, match="pop_receipt"):
        await queue.delete_message("id")


@covers("QueueClient.clear_messages")
async def test_clearing_removes_everything(sdk: Sdk) -> None:
    """Visible, leased and delayed messages; receipts are worth nothing afterwards."""
    queue = await sdk.new_queue()
    leased = await queue.send_message("leased")
    leased = await queue.receive_message()
    delayed = await queue.send_message("delayed", visibility_timeout=600)
    visible = await queue.send_message("visible")
    assert (await queue.get_queue_properties()).approximate_message_count == 3
    await queue.clear_messages()
    assert (await queue.get_queue_properties()).approximate_message_count == 0
    assert await queue.peek_messages() == []
    for message in (leased, delayed, visible):
        with refused(404, "MessageNotFound", ResourceNotFoundError):
            await queue.delete_message(message)
    await queue.clear_messages()


async def test_the_count_includes_what_nobody_can_see(sdk: Sdk) -> None:
    """Visible, leased and delayed messages count; deleted ones do not."""
    queue = await sdk.new_queue()
    counts = []

    async def count() -> None:
        counts.append((await queue.get_queue_properties()).approximate_message_count)

    for i in range(3):
        await queue.send_message(f"{i}", visibility_timeout=600 if i == 2 else None)
    await count()
    leased = await queue.receive_message(visibility_timeout=600)
    await count()
    await queue.delete_message(leased)
    await count()
    assert counts == [3, 3, 2]


@covers("QueueClient.send_message:visibility_timeout,time_to_live")
async def test_a_delay_and_a_time_to_live(sdk: Sdk) -> None:
    """Both count from the insertion; -1 is for ever."""
    queue = await sdk.new_queue()
    delayed = await queue.send_message("delayed", visibility_timeout=120, time_to_live=121)
    assert delayed.next_visible_on - delayed.inserted_on == 120 * _SECOND
    assert delayed.expires_on - delayed.inserted_on == 121 * _SECOND
    assert await queue.receive_message() is None
    assert await queue.peek_messages() == []
    kept = await queue.send_message("kept", time_to_live=-1)
    assert kept.expires_on == dt.datetime(9999, 12, 31, 23, 59, 59, tzinfo=dt.UTC)
    received = await queue.receive_message()
    assert received.expires_on == kept.expires_on
    month = await queue.send_message("month", time_to_live=30 * 86_400)
    assert month.expires_on - month.inserted_on == dt.timedelta(days=30)


async def test_the_longest_delay_needs_a_longer_life(sdk: Sdk) -> None:
    """Seven days of delay are allowed if the message lives longer."""
    queue = await sdk.new_queue()
    sent = await queue.send_message("x", visibility_timeout=WEEK_S, time_to_live=WEEK_S + 1)
    assert sent.next_visible_on - sent.inserted_on == dt.timedelta(days=7)


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"visibility_timeout": -1}, "OutOfRangeQueryParameterValue"),
        ({"visibility_timeout": WEEK_S + 1}, "OutOfRangeQueryParameterValue"),
        pytest.param(
            {"time_to_live": -2},
            "OutOfRangeQueryParameterValue",
            marks=pytest.mark.differs_on_azurite("answers a bare 400"),
        ),
        ({"visibility_timeout": 30, "time_to_live": 30}, "InvalidQueryParameterValue"),
        ({"visibility_timeout": 31, "time_to_live": 30}, "InvalidQueryParameterValue"),
    ],
    ids=str,
)
async def test_sending_with_impossible_times_is_refused(
    sdk: Sdk, options: dict[str, int], code: str
) -> None:
    """0 to 604,800 seconds of delay, and always less than the message lives."""
    queue = await sdk.new_queue()
    with refused(400, code):
        await queue.send_message("x", **options)
    assert (await queue.get_queue_properties()).approximate_message_count == 0


async def test_a_life_of_zero_seconds_is_refused(sdk: Sdk) -> None:
    """A message lives at least a second."""
    queue = await sdk.new_queue()
    with refused(400):
        await queue.send_message("x", time_to_live=0)


@pytest.mark.parametrize("visibility_timeout", [0, -1, WEEK_S + 1])
async def test_receiving_with_an_impossible_time_is_refused(
    sdk: Sdk, visibility_timeout: int
) -> None:
    """A lease lasts 1 to 604,800 seconds; the message is not touched."""
    queue = await sdk.new_queue()
    await queue.send_message("x")
    with refused(400, "OutOfRangeQueryParameterValue"):
        await queue.receive_message(visibility_timeout=visibility_timeout)
    [peeked] = await queue.peek_messages()
    assert peeked.dequeue_count == 0


@pytest.mark.parametrize("visibility_timeout", [-1, WEEK_S + 1])
async def test_updating_with_an_impossible_time_is_refused(
    sdk: Sdk, visibility_timeout: int
) -> None:
    """0 to 604,800 seconds; the receipt stays good."""
    queue = await sdk.new_queue()
    sent = await queue.send_message("x", time_to_live=-1)
    with refused(400, "OutOfRangeQueryParameterValue"):
        await queue.update_message(sent, visibility_timeout=visibility_timeout)
    await queue.delete_message(sent)


@pytest.mark.differs_on_azurite("lets a lease outlive its message")
async def test_an_update_past_the_end_of_the_message_is_refused(sdk: Sdk) -> None:
    """The documented rule for Update Message; the receipt stays good."""
    queue = await sdk.new_queue()
    sent = await queue.send_message("x", time_to_live=600)
    with refused(400):
        await queue.update_message(sent, visibility_timeout=601)
    await queue.delete_message(sent)
