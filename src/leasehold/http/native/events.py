"""The event log, and the part of it that concerns one message."""

from __future__ import annotations

from typing import Final

import msgspec

from leasehold.domain.events import Event, EventPage, EventType, Extent, LogExtent, ReadEvents
from leasehold.domain.queue_settings import poison_queue_of
from leasehold.domain.types import NEVER_MS, Phase
from leasehold.http.messages import Response
from leasehold.http.native.call import Call
from leasehold.http.native.names import NUMBERS
from leasehold.http.native.portions import in_portions
from leasehold.http.native.queues import get_queue
from leasehold.http.native.reading import param_int

DEFAULT_EVENTS: Final = 1_000
MAX_EVENTS: Final = 10_000
TYPES: Final = {each: each.name.lower().replace("_", "-") for each in EventType}
PHASES: Final = {each.value: each.name.lower() for each in Phase}

_LOOKS: Final = 16
"""Pages that a request looks through for events of one message before it answers with none."""


class ShownEvent(msgspec.Struct, omit_defaults=True, gc=False):
    """An event; what it has nothing of is left out."""

    seq: int
    place: int
    at_ms: int
    type: str
    queue: str | None = None
    message_id: str | None = None
    inserted_at_ms: int | None = None
    expires_at_ms: int | None = None
    visible_at_ms: int | None = None
    dequeue_count: int | None = None
    fence: int | None = None
    phase: str | None = None
    since_ms: int | None = None
    visible_since_ms: int | None = None
    renewals: int | None = None
    holder: str | None = None
    priority: int | None = None
    session: str | None = None
    reason: str | None = None
    target: str | None = None
    message_type: str | None = None
    error_type: str | None = None
    error_fingerprint: str | None = None
    error: str | None = None


def show_event(event: Event) -> ShownEvent:
    """Return an event as JSON shows it."""
    expires_at_ms, phase = event.expires_at_ms, event.phase
    return ShownEvent(
        event.seq,
        event.place,
        event.at_ms,
        TYPES[event.type],
        event.queue,
        event.message_id,
        event.inserted_at_ms,
        None if expires_at_ms is None or expires_at_ms >= NEVER_MS else expires_at_ms,
        event.visible_at_ms,
        event.dequeue_count,
        event.fence,
        None if phase is None else PHASES[phase],
        event.since_ms,
        event.visible_since_ms or None,
        *event[15:],
    )


async def list_events(call: Call) -> Response:
    """Read the events of the account."""
    page = await _read(call, _after(call), None)
    # Afterwards, so that it is not less than what the page has.
    extent = await call.services.perform(LogExtent())
    assert isinstance(extent, Extent)
    return await _reply(call, page, last_seq=extent.last_seq)


async def trace(call: Call) -> Response:
    """Read the events of one message, in the queue and its poison queue."""
    queue = await get_queue(call)
    # Rights may be for this queue alone, and any id can be asked for.
    own = {queue.name, poison_queue_of(queue.name, queue.settings)}
    after = _after(call)
    for _ in range(_LOOKS):
        page = await _read(call, after, call.item)
        found = tuple(event for event in page.events if event.queue in own)
        if found or page.finished:
            break
        after = page.last_seq
    return await _reply(call, page._replace(events=found))


def _after(call: Call) -> int:
    return param_int(call, "after", (0, NUMBERS[1])) or 0


async def _read(call: Call, after: int, message_id: str | None) -> EventPage:
    limit = param_int(call, "limit", (1, MAX_EVENTS)) or DEFAULT_EVENTS
    page = await call.services.perform(ReadEvents(after, limit, message_id, call.account))
    assert isinstance(page, EventPage)
    return page


async def _reply(call: Call, page: EventPage, **more: int) -> Response:
    return call.reply(
        {
            "events": await in_portions(show_event, page.events),
            "next_after": page.last_seq,
            "finished": page.finished,
            **more,
        }
    )
