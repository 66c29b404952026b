"""What producers and workers do: put, receive, peek, renew, complete, release.

These are the hot paths: one pass over the items to read them, one to write what became of them.
"""

from __future__ import annotations

import os
import random
import re
from collections.abc import Mapping
from typing import Final

import msgspec

from leasehold.domain.commands import (
    Complete,
    Duplicate,
    Peek,
    Put,
    Receive,
    Release,
    Released,
    Renew,
)
from leasehold.domain.ids import ENTROPY_BYTES
from leasehold.domain.limits import NATIVE, WEEK_S
from leasehold.domain.types import (
    DEFAULT_PRIORITY,
    NO_DETAIL,
    Detail,
    ErrorReport,
    Lease,
    Outcome,
    Progress,
)
from leasehold.http.messages import Response
from leasehold.http.native import shapes
from leasehold.http.native.bodies import expiry, peeked, received
from leasehold.http.native.call import Call
from leasehold.http.native.items import PART, BatchReader, Items
from leasehold.http.native.problems import Refused, invalid
from leasehold.http.native.reading import (
    MAX_TEXT,
    body_of,
    read_body,
    read_properties,
    short_text,
    within,
)

MAX_WAIT_S: Final = 60
MAX_PEEK: Final = 1_000
MAX_ERROR_CHARS: Final = 8_192
"""A longer report is cut and not refused: a worker in trouble must get rid of its message."""
ANSWER_BYTES: Final = 64 * 1024 * 1024
"""A receive that has so many bytes of bodies asks the engine for no more."""
PRIORITIES: Final = (1, 16)

_NEVER: Final = -1
_TRACEPARENT: Final = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
_OUTCOMES: Final[Mapping[str | None, Outcome]] = {
    None: Outcome.RETURNED,
    **{each.value: each for each in Outcome},
}

_PUT: Final = BatchReader(shapes.PutRequest, "$.messages", shapes.PutItem)
_RECEIVE: Final = msgspec.json.Decoder(shapes.ReceiveRequest)
_PEEK: Final = msgspec.json.Decoder(shapes.PeekRequest)
_RENEW: Final = BatchReader(shapes.RenewRequest, "$.items", shapes.RenewItem)
_COMPLETE: Final = BatchReader(shapes.CompleteRequest, "$.items", shapes.CompleteItem)
_RELEASE: Final = BatchReader(shapes.ReleaseRequest, "$.items", shapes.ReleaseItem)


# --- put -----------------------------------------------------------------------------------------


async def put(call: Call) -> Response:
    """Put messages."""
    request = _PUT.read(call)
    given = request.messages
    items = Items("$.messages", given)
    commands = items.commands
    account, queue = call.account, call.queue
    header = call.request.headers.get("traceparent")
    # The header is another party's business, so a wrong one is ignored.
    trace = header if header and _TRACEPARENT.fullmatch(header) else None
    detail = NO_DETAIL if trace is None else Detail(traceparent=trace)
    entropy = os.urandom(ENTROPY_BYTES * len(given))
    at = 0
    for number, item in enumerate(given):
        try:
            body, delay_s, life_s, along, priority = _read_put(item, detail)
        except Refused as refused:
            items.refuse(number, refused)
            continue
        drawn = entropy[at : at + ENTROPY_BYTES]
        at += ENTROPY_BYTES
        commands.append(Put(account, queue, body, delay_s, life_s, drawn, along, priority))
    return await items.answer(call, _put_result, atomic=request.atomic)


def _read_put(item: shapes.PutItem, along: Detail) -> tuple[bytes, int, int | None, Detail, int]:
    """Return body, delay, time to live, what is sent along and priority of one message."""
    text = item.body
    if text is None or item.body_base64 is not None or item.json or len(text) > _SURE_CHARS:
        body = _required_body(item)
    else:
        body = text.encode()
    life_s = item.time_to_live_s
    if life_s is None:
        life_s = WEEK_S
    elif life_s == _NEVER:
        life_s = None
    else:
        within("time_to_live_s", life_s, NATIVE.time_to_live_s)
    delay_s, priority = item.delay_s, item.priority
    if delay_s is None:
        delay_s = 0
    else:
        within("delay_s", delay_s, NATIVE.delay_s)
    if priority is None:
        priority = DEFAULT_PRIORITY
    else:
        within("priority", priority, PRIORITIES)
    if (
        item.dedup_key is not None
        or item.type is not None
        or item.properties
        or item.traceparent is not None
    ):
        along = _detail_of(item, along.traceparent)
    return body, delay_s, life_s, along, priority


_SURE_CHARS: Final = NATIVE.body_bytes // 4
"""No text of so few characters has more bytes than are allowed."""


def _required_body(item: shapes.PutItem) -> bytes:
    body = body_of(item)
    if body is None:
        raise invalid(None, "The message has none of `body`, `body_base64` and `json`.")
    return body


def _detail_of(item: shapes.PutItem, trace: str | None) -> Detail:
    own = item.traceparent
    if own is not None and _TRACEPARENT.fullmatch(own) is None:
        raise invalid("traceparent", "`traceparent` is no W3C trace context.", value=own)
    return Detail(
        properties=read_properties("properties", item.properties),
        message_type=short_text("type", item.type),
        traceparent=own or trace,
        dedup_key=short_text("dedup_key", item.dedup_key),
    )


def _put_result(_: Put, result: Lease | Duplicate) -> shapes.PutResult:
    if type(result) is Lease:
        message, receipt = result
        return shapes.PutResult(
            message.message_id,
            message.inserted_at_ms,
            expiry(message.expires_at_ms),
            message.visible_at_ms,
            receipt,
        )
    assert isinstance(result, Duplicate)
    return shapes.PutResult(
        result.message_id,
        result.inserted_at_ms,
        expiry(result.expires_at_ms),
        result.visible_at_ms,
        result.receipt,
        duplicate=True,
    )


# --- receive -------------------------------------------------------------------------------------


async def receive(call: Call) -> Response:
    """Receive messages, waiting for one if asked to."""
    request = read_body(_RECEIVE, call)
    count, lease_s, wait_s = request.max_messages, request.visibility_timeout_s, request.wait_s
    count = 1 if count is None else within("$.max_messages", count, NATIVE.receive_count)
    if lease_s is not None:
        within("$.visibility_timeout_s", lease_s, NATIVE.lease_s)
    if wait_s is not None:
        within("$.wait_s", wait_s, (0, MAX_WAIT_S))
    holder = short_text("$.holder", request.holder)
    command = Receive(call.account, call.queue, min(count, PART), lease_s, holder)
    leases = await _receive(call, command, wait_s)
    if count > PART:
        leases = await _receive_more(call, command, leases, count)
    if not leases:
        queue = call.services.find_queue(call.account, call.queue)
        if queue is not None and queue.settings.is_paused(call.now_ms):
            return call.reply({"messages": (), "paused": True})
    return call.reply({"messages": [received(lease) for lease in leases]})


async def _receive(call: Call, command: Receive, wait_s: float | None) -> tuple[Lease, ...]:
    if wait_s:
        return await call.services.receive(command, wait_s, call.request.gone)
    leases = await call.services.perform(command)
    assert isinstance(leases, tuple)
    return leases  # type: ignore[return-value]  # the answer to Receive


async def _receive_more(
    call: Call, command: Receive, leases: tuple[Lease, ...], count: int
) -> tuple[Lease, ...]:
    """Go on in parts until there are enough, no more, or too many bytes for one answer."""
    taken = list(leases)
    full = len(leases) == command.limit
    size = sum(len(lease.message.body) for lease in leases)
    while full and len(taken) < count and size < ANSWER_BYTES:
        command = command._replace(limit=min(count - len(taken), PART))
        try:
            more = await _receive(call, command, None)
        except Exception:  # noqa: BLE001 - what is leased already must be told, whatever happens
            break
        taken += more
        size += sum(len(lease.message.body) for lease in more)
        full = len(more) == command.limit
    return tuple(taken)


async def peek(call: Call) -> Response:
    """Look at what a receive would give."""
    request = read_body(_PEEK, call)
    count = request.max_messages
    count = 32 if count is None else within("$.max_messages", count, (1, MAX_PEEK))
    messages = await call.services.perform(Peek(call.account, call.queue, count))
    assert isinstance(messages, tuple)
    return call.reply({"messages": [peeked(message) for message in messages]})  # type: ignore[arg-type]  # the answer to Peek


# --- renew, complete, release --------------------------------------------------------------------


async def renew(call: Call) -> Response:
    """Renew leases."""
    request = _RENEW.read(call)
    items = Items("$.items", request.items)
    commands = items.commands
    account, queue, now_ms = call.account, call.queue, call.now_ms
    for number, item in enumerate(request.items):
        try:
            timeout_s = item.visibility_timeout_s
            within("visibility_timeout_s", timeout_s, NATIVE.renew_s)
            body = body_of(item)
            progress = None if item.progress is None else _progress(item.progress, now_ms)
            commands.append(Renew(account, queue, item.id, item.receipt, timeout_s, body, progress))
        except Refused as refused:
            items.refuse(number, refused)
    return await items.answer(call, _renew_result, atomic=request.atomic)


def _progress(given: shapes.ProgressIn, now_ms: int) -> Progress:
    fraction, note = given.fraction, given.note
    if fraction is not None:
        within("progress.fraction", fraction, (0, 1))
    return Progress(at_ms=now_ms, fraction=fraction, note=note and note[:MAX_TEXT])


def _renew_result(_: Renew, lease: Lease) -> shapes.RenewResult:
    message, receipt = lease
    return shapes.RenewResult(message.message_id, receipt, message.visible_at_ms)


async def complete(call: Call) -> Response:
    """Complete messages."""
    request = _COMPLETE.read(call)
    items = Items("$.items", request.items)
    account, queue = call.account, call.queue
    items.commands = [Complete(account, queue, item.id, item.receipt) for item in request.items]
    return await items.answer(call, _complete_result, atomic=request.atomic)


def _complete_result(command: Complete, _: object) -> shapes.CompleteResult:
    return shapes.CompleteResult(command.message_id)


async def release(call: Call) -> Response:
    """Give messages back."""
    request = _RELEASE.read(call)
    items = Items("$.items", request.items)
    commands = items.commands
    account, queue = call.account, call.queue
    for number, item in enumerate(request.items):
        try:
            delay_s = item.delay_s
            if delay_s is not None:
                within("delay_s", delay_s, NATIVE.delay_s)
            error = None if item.error is None else _error(item.error)
            outcome = _OUTCOMES[item.outcome]
            dice = random.random()  # noqa: S311 - it spreads retries and guards nothing
            commands.append(
                Release(account, queue, item.id, item.receipt, outcome, delay_s, error, dice)
            )
        except Refused as refused:
            items.refuse(number, refused)
    return await items.answer(call, _release_result, atomic=request.atomic)


def _error(given: shapes.ErrorIn) -> ErrorReport:
    kind, fingerprint = given.type, given.fingerprint
    return ErrorReport(
        text=given.text[:MAX_ERROR_CHARS],
        type=kind and kind[:MAX_TEXT],
        fingerprint=fingerprint and fingerprint[:MAX_TEXT],
    )


def _release_result(command: Release, result: Released) -> shapes.ReleaseResult:
    return shapes.ReleaseResult(command.message_id, result.visible_at_ms, result.poisoned)
