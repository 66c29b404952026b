"""What producers and workers do: put, receive, peek, renew, complete, release.

These are the hot paths: one pass over the items to read them, one to write what became of them.
"""

from __future__ import annotations

import os
import random
from collections.abc import Mapping
from typing import Final

import msgspec

from leasehold.domain.commands import Complete, Peek, Put, Receive, Release, Released, Renew
from leasehold.domain.limits import LOOK_BYTES, MAX_GROUP_ID, MAX_WAIT_S, NATIVE
from leasehold.domain.model import (
    ENTROPY_BYTES,
    NEVER_MS,
    NEXT_GROUP,
    NO_DETAIL,
    ErrorReport,
    Lease,
    Message,
    Outcome,
    Progress,
)
from leasehold.http.native.call import (
    BatchReader,
    Call,
    apart,
    in_portions,
    read_body,
    short_text,
    within,
)
from leasehold.http.native.errors import Refused, invalid
from leasehold.http.native.items import (
    PART,
    Items,
    body_limit,
    body_of,
    expiry,
    read_put,
    result_of,
    saved_of,
    show_put,
    trace_of,
)
from leasehold.http.requests import Response
from leasehold.wire.messages import (
    DEFAULT_PEEK,
    MAX_PEEK,
    CancelAsked,
    CompleteItem,
    CompleteRequest,
    CompleteResult,
    Peeked,
    PeekedMessages,
    PeekRequest,
    ProgressReport,
    PutItem,
    PutRequest,
    Received,
    ReceivedMessages,
    ReceiveRequest,
    ReleaseItem,
    ReleaseRequest,
    ReleaseResult,
    RenewItem,
    RenewRequest,
    RenewResult,
    ReportedError,
)
from leasehold.wire.parts import MAX_TEXT

MAX_ERROR_CHARS: Final = 8_192
"""A longer report is cut and not refused: a worker in trouble must get rid of its message."""
ANSWER_BYTES: Final = LOOK_BYTES
"""A receive that has so many bytes, of bodies and what was saved, asks the engine for no more."""
_SURELY_FITTING: Final = 16
"""So many messages are asked for at once however large they may be."""

OUTCOMES: Final[Mapping[str | None, Outcome]] = {
    None: Outcome.RETURNED,
    **{each.value: each for each in Outcome},
}

_PUT: Final = BatchReader(PutRequest, messages=PutItem)
_RECEIVE: Final = msgspec.json.Decoder(ReceiveRequest)
_PEEK: Final = msgspec.json.Decoder(PeekRequest)
_RENEW: Final = BatchReader(RenewRequest, items=RenewItem)
_COMPLETE: Final = BatchReader(CompleteRequest, items=CompleteItem)
_RELEASE: Final = BatchReader(ReleaseRequest, items=ReleaseItem)


# --- put -----------------------------------------------------------------------------------------


async def put(call: Call) -> Response:
    """Put messages."""
    items, atomic = await apart(len(call.request.body), _read_puts, call)
    return await items.answer(call, show_put, atomic=atomic)


def _read_puts(call: Call) -> tuple[Items, bool | None]:
    request = _PUT.read(call)
    given = request.messages
    items = Items("$.messages", given)
    commands = items.commands
    account, queue = call.account, call.queue
    along, limit_bytes = trace_of(call), body_limit(call, queue)
    entropy = os.urandom(ENTROPY_BYTES * len(given))
    at = 0
    for number, item in enumerate(given):
        try:
            body, delay_s, life_s, detail, priority = read_put(item, along, limit_bytes)
        except Refused as refused:
            items.refuse(number, refused)
            continue
        drawn = entropy[at : at + ENTROPY_BYTES]
        at += ENTROPY_BYTES
        commands.append(Put(account, queue, body, delay_s, life_s, drawn, detail, priority))
    return items, request.atomic


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
    session = short_text("$.session", request.session)
    group = _group_of(request)
    first = count if count <= _SURELY_FITTING else min(count, _first_part(call))
    command = Receive(call.account, call.queue, first, lease_s, holder, session, group)
    leases = await _receive(call, command, wait_s)
    if count > first:
        leases = await _receive_more(call, command, leases, count)
    if not leases:
        queue = call.services.find_queue(call.account, call.queue)
        if queue is not None and queue.settings.is_paused(call.now_ms):
            return call.reply(ReceivedMessages((), paused=True))
    show = _show_received if lease_s is not None else _show_with_length
    return call.reply(ReceivedMessages(await in_portions(show, leases)))


def _group_of(request: ReceiveRequest) -> str | None:
    """Return which group messages are wanted of; None for those that no session holds."""
    group_id = short_text("$.group_id", request.group_id, MAX_GROUP_ID)
    if group_id is None and not request.next_group:
        return None
    if group_id is not None and request.next_group:
        raise invalid("$.next_group", "Send only one of `group_id` and `next_group`.")
    if request.session is None:
        raise invalid("$.session", "Only a session can hold a group: send `session` too.")
    return NEXT_GROUP if group_id is None else group_id


def _first_part(call: Call) -> int:
    """Return how many messages fit in an answer if all are as large as they may be."""
    found = call.services.find_queue(call.account, call.queue)
    largest = found and found.settings.max_body_bytes
    return max(_SURELY_FITTING, ANSWER_BYTES // (largest or NATIVE.body_bytes))


async def _receive(call: Call, command: Receive, wait_s: float | None) -> tuple[Lease, ...]:
    if wait_s or command.group is not None:
        return await call.services.receive(command, wait_s or 0, call.request.gone)
    return await call.services.perform(command)


async def _receive_more(
    call: Call, command: Receive, leases: tuple[Lease, ...], count: int
) -> tuple[Lease, ...]:
    """Go on in parts until there are enough, no more, or too many bytes for one answer."""
    taken = list(leases)
    full = len(leases) == command.limit
    size = sum(map(_bytes_of, leases))
    while full and len(taken) < count and size < ANSWER_BYTES:
        average = size // len(taken)
        fitting = max(1, (ANSWER_BYTES - size) // max(1, average))
        command = command._replace(limit=min(count - len(taken), PART, fitting))
        try:
            more = await _receive(call, command, None)
        except Exception:  # noqa: BLE001 - what is leased already must be told, whatever happens
            break
        taken += more
        size += sum(map(_bytes_of, more))
        full = len(more) == command.limit
    return tuple(taken)


def _bytes_of(lease: Lease) -> int:
    message = lease.message
    return len(message.body) + len(message.detail.saved or "")


async def peek(call: Call) -> Response:
    """Look at what a receive would give."""
    request = read_body(_PEEK, call)
    count = request.max_messages
    count = DEFAULT_PEEK if count is None else within("$.max_messages", count, (1, MAX_PEEK))
    messages = await call.services.perform(Peek(call.account, call.queue, count))
    return call.reply(PeekedMessages(await in_portions(_show_peeked, messages)))


def _show_received(lease: Lease) -> Received:
    message, receipt = lease
    expires_at_ms = message.expires_at_ms
    shown = Received(
        message.message_id,
        message.inserted_at_ms,
        None if expires_at_ms >= NEVER_MS else expires_at_ms,
        message.visible_at_ms,
        message.dequeue_count,
        message.fence,
        receipt,
        session=message.session,
    )
    _add_content(shown, message)
    saved = message.detail.saved
    if saved is not None:
        shown.saved = msgspec.Raw(saved)
    return shown


def _show_with_length(lease: Lease) -> Received:
    """Show a message whose receiver cannot know how long its lease is."""
    shown = _show_received(lease)
    shown.lease_s = (lease.message.visible_at_ms - lease.message.since_ms) // 1000
    return shown


def _show_peeked(message: Message) -> Peeked:
    shown = Peeked(
        message.message_id,
        message.inserted_at_ms,
        expiry(message.expires_at_ms),
        message.visible_at_ms,
        message.dequeue_count,
    )
    _add_content(shown, message)
    ref = message.detail.body_ref
    if ref is not None and ref.problem is not None:
        shown.body = shown.body_base64 = None
        shown.body_problem, shown.body_bytes = ref.problem, ref.size_bytes
    return shown


def _add_content(shown: Received | Peeked, message: Message) -> None:
    body = message.body
    try:
        shown.body = body.decode()
    except UnicodeDecodeError:
        shown.body_base64 = body
    shown.priority = message.priority
    detail = message.detail
    if detail is not NO_DETAIL:
        shown.type = detail.message_type
        shown.properties = dict(detail.properties) or None
        shown.traceparent = detail.traceparent
        shown.dedup_key = detail.dedup_key
        shown.group_id = detail.group_id


# --- renew, complete, release --------------------------------------------------------------------


async def renew(call: Call) -> Response:
    """Renew leases."""
    items, atomic = await apart(len(call.request.body), _read_renewals, call)
    return await items.answer(call, show_renewal, atomic=atomic)


def _read_renewals(call: Call) -> tuple[Items, bool | None]:
    request = _RENEW.read(call)
    items = Items("$.items", request.items)
    commands = items.commands
    queue = call.queue
    limit_bytes = body_limit(call, queue)
    for number, item in enumerate(request.items):
        try:
            commands.append(read_renew(item, call, queue, limit_bytes))
        except Refused as refused:
            items.refuse(number, refused)
    return items, request.atomic


def read_renew(item: RenewItem, call: Call, queue: str, limit_bytes: int) -> Renew:
    """Return the command of one renewal.

    Raises:
        Refused: Something about it will not do. The field is named as within the item.
    """
    timeout_s = item.visibility_timeout_s
    within("visibility_timeout_s", timeout_s, NATIVE.renew_s)
    body = body_of(item, limit_bytes=limit_bytes)
    progress = (
        None if item.progress is None else read_progress("progress", item.progress, call.now_ms)
    )
    saved = saved_of("saved", item.saved) if item.saved else None
    named = call.account, queue, item.id, item.receipt
    return Renew(
        *(*named, timeout_s, body, progress, saved),
        may_repeat=True,
        past_expiry=call.accepts_late,
    )


def read_progress(field: str, given: ProgressReport, now_ms: int) -> Progress:
    """Return how far a holder says it has come; a long note is cut.

    Raises:
        Refused: The fraction is none.
    """
    fraction, note = given.fraction, given.note
    if fraction is not None:
        within(f"{field}.fraction", fraction, (0, 1))
    return Progress(at_ms=now_ms, fraction=fraction, note=note and note[:MAX_TEXT])


def show_renewal(_: Renew, lease: Lease) -> RenewResult:
    """Return what a renewal tells, also that an operator wants the work stopped."""
    message, receipt = lease
    cancel = message.detail.cancel
    shown = None if cancel is None else CancelAsked(cancel.at_ms, cancel.reason)
    return RenewResult(message.message_id, receipt, message.visible_at_ms, shown)


async def complete(call: Call) -> Response:
    """Complete messages."""
    items, atomic = await apart(len(call.request.body), _read_completions, call)
    return await items.answer(call, show_completion, atomic=atomic)


def _read_completions(call: Call) -> tuple[Items, bool | None]:
    request = _COMPLETE.read(call)
    items = Items("$.items", request.items)
    commands = items.commands
    account, queue = call.account, call.queue
    for number, item in enumerate(request.items):
        try:
            commands.append(read_complete(item, account, queue))
        except Refused as refused:
            items.refuse(number, refused)
    return items, request.atomic


def read_complete(item: CompleteItem, account: str, queue: str) -> Complete:
    """Return the command that completes one message.

    Raises:
        Refused: Its result will not do. The field is named as within the item.
    """
    return Complete(account, queue, item.id, item.receipt, result_of("result", item.result))


def show_completion(command: Complete, _: object) -> CompleteResult:
    """Return what a completion tells."""
    return CompleteResult(command.message_id)


async def release(call: Call) -> Response:
    """Give messages back."""
    items, atomic = await apart(len(call.request.body), _read_releases, call)
    return await items.answer(call, show_release, atomic=atomic)


def _read_releases(call: Call) -> tuple[Items, bool | None]:
    request = _RELEASE.read(call)
    items = Items("$.items", request.items)
    commands = items.commands
    account, queue = call.account, call.queue
    for number, item in enumerate(request.items):
        try:
            commands.append(read_release(item, account, queue))
        except Refused as refused:
            items.refuse(number, refused)
    return items, request.atomic


def read_release(item: ReleaseItem, account: str, queue: str) -> Release:
    """Return the command that gives one message back.

    Raises:
        Refused: Something about it will not do. The field is named as within the item.
    """
    delay_s = item.delay_s
    if delay_s is not None:
        within("delay_s", delay_s, NATIVE.delay_s)
    error = None if item.error is None else read_error(item.error)
    outcome = OUTCOMES[item.outcome]
    return Release(account, queue, item.id, item.receipt, outcome, delay_s, error, draw_jitter())


def draw_jitter() -> float:
    """Return a number from 0 to 1 for the jitter of a back-off."""
    return random.random()  # noqa: S311 - it spreads retries and guards nothing


def read_error(given: ReportedError) -> ErrorReport:
    """Return what a worker says about a failure; what is long is cut."""
    kind, fingerprint = given.type, given.fingerprint
    return ErrorReport(
        text=given.text[:MAX_ERROR_CHARS],
        type=kind and kind[:MAX_TEXT],
        fingerprint=fingerprint and fingerprint[:MAX_TEXT],
    )


def show_release(command: Release, result: Released) -> ReleaseResult:
    """Return what became of a message that was given back."""
    return ReleaseResult(command.message_id, result.visible_at_ms, result.poisoned)
