"""Queues as such: list, create, look, change, pause, delete, count."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import msgspec

from leasehold.domain.commands import (
    CreateQueue,
    DeleteQueue,
    GetQueue,
    ListQueues,
    QueueCreated,
    QueueInfo,
    QueuePage,
    SetQueueMetadata,
    SetQueueSettings,
)
from leasehold.domain.errors import InvalidMarker, QueueExists
from leasehold.domain.limits import MAX_QUEUE_NAME
from leasehold.domain.oversight import CountMessages, Counts
from leasehold.domain.queue_settings import DEFAULT_SETTINGS, QueueSettings
from leasehold.domain.types import NEVER_MS, Queue
from leasehold.engine.stats import QueueActivity
from leasehold.http.messages import Response
from leasehold.http.native import shapes
from leasehold.http.native.call import Call
from leasehold.http.native.reading import (
    param_int,
    param_switch,
    read_body,
    short_text,
    within,
)
from leasehold.http.native.settings_json import check_metadata, given_paths, patched, show_settings

MAX_PAGE: Final = 1_000
DEFAULT_PAGE: Final = 100
MAX_PAUSE_S: Final = 315_360_000
"""Ten years; a pause without a length lasts until the queue is resumed."""

_COUNTED_AT_ONCE: Final = 64
# The smallest character of a name: the first name that can follow another.
_AFTER: Final = "-"
_MS: Final = 1000

_QUEUE: Final = msgspec.json.Decoder(shapes.QueueRequest)
_PAUSE: Final = msgspec.json.Decoder(shapes.PauseRequest)
_NOTHING: Final = msgspec.json.Decoder(shapes.NoRequest)


# --- what is shown -------------------------------------------------------------------------------


def show_queue(queue: Queue) -> dict[str, Any]:
    """Return a queue as JSON shows it."""
    return {
        "name": queue.name,
        "metadata": queue.metadata,
        "settings": show_settings(queue.settings),
        "visibility_timeout_s": queue.settings.lease_s(),
        "created_at_ms": queue.created_at_ms,
    }


def show_counts(counts: Counts, now_ms: int) -> dict[str, Any]:
    """Return counts as JSON shows them; *now_ms* is the time of the request."""
    return {
        "at_ms": now_ms,
        "visible": counts.visible,
        "leased": counts.leased,
        "delayed": counts.delayed,
        "deferred": counts.deferred,
        "poisoned": counts.poisoned,
        "staged": counts.staged,
        "claimed": counts.claimed,
        "expired": counts.expired,
        "total": counts.total,
        "exact": counts.exact,
        "oldest_age_s": {
            str(state): max(0, now_ms - since_ms) / _MS for state, since_ms in counts.since.items()
        },
    }


def show_activity(activity: QueueActivity) -> Mapping[str, Any]:
    """Return what has happened in a queue as JSON shows it."""
    return activity._asdict()


async def get_queue(call: Call) -> Queue:
    """Fetch the queue of the request.

    Raises:
        QueueNotFound: It does not exist.
    """
    info = await call.services.perform(GetQueue(call.account, call.queue))
    assert isinstance(info, QueueInfo)
    return info.queue


async def count_messages(call: Call, queue: str) -> Counts:
    """Count the messages of a queue.

    Raises:
        QueueNotFound: It does not exist.
    """
    counts = await call.services.perform(CountMessages(call.account, queue))
    assert isinstance(counts, Counts)
    return counts


async def _reply_queue(call: Call, status: int = 200) -> Response:
    return call.reply(show_queue(await get_queue(call)), status)


# --- the operations ------------------------------------------------------------------------------


async def list_queues(call: Call) -> Response:
    """List queues by name."""
    after = call.params.get("after", "")
    if len(after) > MAX_QUEUE_NAME:
        raise InvalidMarker
    limit = param_int(call, "limit", (1, MAX_PAGE)) or DEFAULT_PAGE
    with_counts = param_switch(call, "counts", default=False)
    start = after + _AFTER if after else ""
    prefix = call.params.get("prefix", "")
    page = await call.services.perform(ListQueues(call.account, prefix, start, limit))
    assert isinstance(page, QueuePage)
    shown = [show_queue(queue) for queue in page.queues]
    if with_counts:
        await _add_counts(call, shown)
    last = page.queues[-1].name if page.queues and page.next_start is not None else None
    return call.reply({"queues": shown, "next_after": last})


async def _add_counts(call: Call, shown: Sequence[dict[str, Any]]) -> None:
    """Count some queues at a time, so that they share a batch and leave room for others."""
    for start in range(0, len(shown), _COUNTED_AT_ONCE):
        part = shown[start : start + _COUNTED_AT_ONCE]
        names = [queue["name"] for queue in part]
        counted = await asyncio.gather(
            *[count_messages(call, name) for name in names], return_exceptions=True
        )
        for queue, counts in zip(part, counted, strict=True):
            if isinstance(counts, Counts):  # or the queue was deleted meanwhile
                queue["counts"] = show_counts(counts, call.now_ms)


async def create(call: Call) -> Response:
    """Create a queue, or find that it is there."""
    request = read_body(_QUEUE, call)
    metadata = request.metadata
    if metadata is not None:
        check_metadata(metadata)
    settings, given = DEFAULT_SETTINGS, tuple[tuple[str, ...], ...]()
    if request.settings:
        settings = patched(call.queue, settings, request.settings)
        given = given_paths(request.settings)
    command = CreateQueue(call.account, call.queue, metadata or {}, settings, given)
    try:
        result = await call.services.perform(command)
    except QueueExists:
        if metadata is not None:
            raise
        return await _reply_queue(call)
    assert isinstance(result, QueueCreated)
    return await _reply_queue(call, 201 if result.created else 200)


async def get(call: Call) -> Response:
    """Look at a queue."""
    queue = await get_queue(call)
    counts = await count_messages(call, call.queue)
    activity = call.services.activity(call.account, call.queue)
    return call.reply(
        {
            **show_queue(queue),
            "counts": show_counts(counts, call.now_ms),
            "activity": show_activity(activity),
        }
    )


async def update(call: Call) -> Response:
    """Change metadata and settings."""
    request = read_body(_QUEUE, call)
    metadata, patch = request.metadata, request.settings
    if metadata is not None:
        check_metadata(metadata)
    async with call.services.settings_lock:
        settings = (await get_queue(call)).settings
        if patch:
            settings = patched(call.queue, settings, patch)
        if metadata is not None:
            await call.services.perform(SetQueueMetadata(call.account, call.queue, metadata))
        if patch:
            await call.services.perform(SetQueueSettings(call.account, call.queue, settings))
    return await _reply_queue(call)


async def pause(call: Call) -> Response:
    """Let nothing be received for a while."""
    request = read_body(_PAUSE, call)
    until_ms = NEVER_MS
    if request.for_s is not None:
        for_s = within("$.for_s", request.for_s, (0, MAX_PAUSE_S))
        until_ms = call.now_ms + round(for_s * _MS)
    reason = short_text("$.reason", request.reason)
    return await _set_pause(call, until_ms, reason)


async def resume(call: Call) -> Response:
    """Let messages be received again."""
    read_body(_NOTHING, call)
    return await _set_pause(call, None, None)


async def _set_pause(call: Call, until_ms: int | None, reason: str | None) -> Response:
    async with call.services.settings_lock:
        settings: QueueSettings = (await get_queue(call)).settings
        changed = replace(settings, paused_until_ms=until_ms, pause_reason=reason)
        await call.services.perform(SetQueueSettings(call.account, call.queue, changed))
    return await _reply_queue(call)


async def delete(call: Call) -> Response:
    """Delete a queue and all its messages."""
    await call.services.perform(DeleteQueue(call.account, call.queue))
    return call.reply_nothing()


async def counts(call: Call) -> Response:
    """Count the messages by state."""
    return call.reply(show_counts(await count_messages(call, call.queue), call.now_ms))
