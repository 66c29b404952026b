"""What happens by itself as time passes. These tests wait, so each does several things at once."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from azure.core.exceptions import ResourceNotFoundError

from tests.e2e.azure_python.refusals import refused
from tests.patience import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.e2e.azure_python.sdk import Client, Sdk

_POLL_S: Final = 0.1


async def _eventually(ask: Callable[[], Awaitable[Any]]) -> Any:
    """Ask until the answer is neither empty nor None."""
    async with asyncio.timeout(PATIENCE_S):
        while not (answer := await ask()):  # noqa: ASYNC110 - the server tells nobody
            await asyncio.sleep(_POLL_S)
        return answer


async def _eventually_expired(queue: Client) -> None:
    """Wait for one more message, which expires no earlier than those before it."""
    await queue.send_message("clock", time_to_live=2)

    async def gone() -> bool:
        return not await queue.peek_messages()

    await _eventually(gone)


async def _assert_gone(queue: Client, message: Any) -> None:
    with refused(404, "MessageNotFound", ResourceNotFoundError):
        await queue.delete_message(message)


async def _leased_for_a_second(sdk: Sdk) -> tuple[Client, Any]:
    """Return a queue with one message, and that message as just received."""
    queue = await sdk.new_queue()
    await queue.send_message("x")
    message = await queue.receive_message(visibility_timeout=1)
    assert message is not None
    return queue, message


async def _returns_when_its_lease_ends(sdk: Sdk) -> None:
    queue, first = await _leased_for_a_second(sdk)
    second = await _eventually(queue.receive_message)
    assert (second.id, second.dequeue_count) == (first.id, 2)
    assert second.pop_receipt != first.pop_receipt
    await queue.delete_message(second)


async def _can_be_deleted_after_its_lease_ended(sdk: Sdk) -> None:
    queue, message = await _leased_for_a_second(sdk)
    await _eventually(queue.peek_messages)
    await queue.delete_message(message)
    assert await queue.peek_messages() == []


async def _can_be_renewed_after_its_lease_ended(sdk: Sdk) -> None:
    queue, message = await _leased_for_a_second(sdk)
    await _eventually(queue.peek_messages)
    renewed = await queue.update_message(message, content="more", visibility_timeout=600)
    assert await queue.receive_message() is None
    await queue.delete_message(renewed)


async def _appears_after_its_delay(sdk: Sdk) -> None:
    queue = await sdk.new_queue()
    sent = await queue.send_message("x", visibility_timeout=2)
    assert await queue.receive_message() is None
    received = await _eventually(queue.receive_message)
    assert (received.id, received.dequeue_count) == (sent.id, 1)


async def _is_held_back_by_an_update(sdk: Sdk) -> None:
    queue = await sdk.new_queue()
    await queue.send_message("x")
    message = await queue.receive_message()
    await queue.update_message(message, visibility_timeout=2)
    assert await queue.receive_message() is None
    again = await _eventually(queue.receive_message)
    assert (again.id, again.dequeue_count) == (message.id, 2)


async def test_the_life_of_a_lease(sdk: Sdk) -> None:
    """A message comes back when its lease ends; until somebody takes it the receipt works."""
    async with asyncio.TaskGroup() as together:
        together.create_task(_returns_when_its_lease_ends(sdk))
        together.create_task(_can_be_deleted_after_its_lease_ended(sdk))
        together.create_task(_can_be_renewed_after_its_lease_ended(sdk))
        together.create_task(_appears_after_its_delay(sdk))
        together.create_task(_is_held_back_by_an_update(sdk))


async def _expires_while_visible(sdk: Sdk) -> None:
    queue = await sdk.new_queue()
    sent = await queue.send_message("x", time_to_live=1)
    await _eventually_expired(queue)
    assert await queue.receive_message() is None
    await _assert_gone(queue, sent)


async def _expires_while_leased(sdk: Sdk) -> None:
    queue = await sdk.new_queue()
    await queue.send_message("x", time_to_live=2)
    message = await queue.receive_message(visibility_timeout=600)
    await _eventually_expired(queue)
    await _assert_gone(queue, message)


async def _expires_while_delayed(sdk: Sdk) -> None:
    queue = await sdk.new_queue()
    sent = await queue.send_message("x", visibility_timeout=1, time_to_live=2)
    await _eventually_expired(queue)
    await _assert_gone(queue, sent)


async def _outlives_others(sdk: Sdk) -> None:
    queue = await sdk.new_queue()
    await queue.send_message("short", time_to_live=1)
    await queue.send_message("for ever", time_to_live=-1)

    async def only_one_is_left() -> bool:
        return [m.content for m in await queue.peek_messages(max_messages=32)] == ["for ever"]

    await _eventually(only_one_is_left)
    received = await queue.receive_messages(messages_per_page=32).all()
    assert [message.content for message in received] == ["for ever"]


async def test_the_end_of_a_message(sdk: Sdk) -> None:
    """A message past its time to live is gone, even for the one who holds a lease on it."""
    async with asyncio.TaskGroup() as together:
        together.create_task(_expires_while_visible(sdk))
        together.create_task(_expires_while_leased(sdk))
        together.create_task(_expires_while_delayed(sdk))
        together.create_task(_outlives_others(sdk))


async def test_a_renewed_message_is_received_once_only(sdk: Sdk) -> None:
    """A worker that renews its one-second lease in time keeps the message to itself."""
    queue, other = await sdk.new_queue(), await sdk.new_queue()
    await queue.send_message("long work")
    message = await queue.receive_message(visibility_timeout=5)
    await other.send_message("clock")
    await other.receive_message(visibility_timeout=2)
    message = await queue.update_message(message, visibility_timeout=600)
    await _eventually(other.peek_messages)  # two seconds have passed
    assert await queue.receive_message() is None
    await queue.delete_message(message)
