"""What those do who look after a queue: look at messages, explain, change, remove, end leases."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from leasehold.domain import explain
from leasehold.domain.claims import HIDING, Claim, ListStreams, Stream
from leasehold.domain.commands import Peek
from leasehold.domain.errors import MessageNotFound
from leasehold.domain.failures import last_error
from leasehold.domain.limits import NATIVE
from leasehold.domain.oversight import (
    Amend,
    Due,
    EndLease,
    FindMessage,
    Inspect,
    MessagePage,
    NextDue,
    Remove,
    Seen,
)
from leasehold.domain.types import Attempt, ErrorReport, Message, MessageState
from leasehold.domain.visibility import first_visible_ms
from leasehold.http.messages import Response
from leasehold.http.native import shapes
from leasehold.http.native.bodies import expiry, sent_along, shown_body
from leasehold.http.native.call import Call
from leasehold.http.native.filters import filter_of_query
from leasehold.http.native.portions import in_portions
from leasehold.http.native.puts import NEVER, PRIORITIES, body_limit
from leasehold.http.native.queues import DEFAULT_PAGE, MAX_PAGE, count_messages, get_queue
from leasehold.http.native.reading import (
    MAX_SINGLE_BYTES,
    body_of,
    param_int,
    param_switch,
    read_body,
    read_properties,
    short_text,
    within,
)

_LOOKED_AHEAD: Final = 256
"""Messages looked at to say how many are before one."""

_AMEND: Final = msgspec.json.Decoder(shapes.AmendRequest)
_END_LEASE: Final = msgspec.json.Decoder(shapes.EndLeaseRequest)


# --- what is shown -------------------------------------------------------------------------------


def show_message(seen: Seen, now_ms: int, *, with_body: bool = True) -> dict[str, Any]:
    """Return a message as those see it who look after it."""
    message, state, queue, under = seen
    detail = message.detail
    cancel, ref = detail.cancel, detail.body_ref
    error = last_error(message)
    poisoning = detail.poisoning
    return {
        "id": message.message_id,
        "queue": queue,
        "state": state,
        "why": explain.why(message, state, now_ms, seen.under),
        **(_content(message) if with_body else {}),
        "body_bytes": len(message.body) if ref is None else ref.size_bytes,
        "inserted_at_ms": message.inserted_at_ms,
        "expires_at_ms": expiry(message.expires_at_ms),
        "visible_at_ms": message.visible_at_ms,
        "dequeue_count": message.dequeue_count,
        "fence": message.fence,
        "priority": message.priority,
        **sent_along(message),
        "first_visible_at_ms": first_visible_ms(message),
        "last_visible_at_ms": message.visible_since_ms or None,
        "lease": _show_lease(message) if state is MessageState.LEASED else None,
        "last_error": error and _show_last_error(error),
        "failures": detail.failures,
        "interruptions": detail.interruptions,
        "lapses": detail.lapses,
        "attempts": [_show_attempt(attempt) for attempt in detail.attempts],
        "poisoned": poisoning
        and {"queue": poisoning.queue, "reason": poisoning.reason, "at_ms": poisoning.at_ms},
        "redriven": detail.redriven,
        "under": under,
        "session": message.session if state is MessageState.LEASED else None,
        "cancel": cancel and {"at_ms": cancel.at_ms, "reason": cancel.reason},
    }


def _content(message: Message) -> dict[str, Any]:
    """Return what may be large: the body, and what was saved."""
    saved = message.detail.saved
    content: dict[str, Any] = {} if saved is None else {"saved": msgspec.Raw(saved)}
    return content | shown_body(message)


def _show_lease(message: Message) -> dict[str, Any]:
    progress = message.detail.progress
    return {
        "holder": message.holder,
        "since_ms": message.since_ms,
        "until_ms": message.visible_at_ms,
        "renewals": message.renewals,
        "progress": progress
        and {"fraction": progress.fraction, "note": progress.note, "at_ms": progress.at_ms},
    }


def _show_error(error: ErrorReport) -> dict[str, Any]:
    return {"text": error.text, "type": error.type, "fingerprint": error.fingerprint}


def _show_last_error(attempt: Attempt) -> dict[str, Any]:
    assert attempt.error is not None
    return {**_show_error(attempt.error), "at_ms": attempt.ended_at_ms}


def _show_attempt(attempt: Attempt) -> dict[str, Any]:
    return {
        "number": attempt.number,
        "leased_at_ms": attempt.leased_at_ms,
        "ended_at_ms": attempt.ended_at_ms,
        "outcome": attempt.outcome,
        "holder": attempt.holder,
        "renewals": attempt.renewals,
        "error": attempt.error and _show_error(attempt.error),
    }


def _show_explanation(explanation: explain.Explanation) -> Mapping[str, Any]:
    return {
        "sentence": explanation.sentence,
        "code": explanation.code,
        "evidence": explanation.evidence,
    }


# --- looking -------------------------------------------------------------------------------------


async def inspect(call: Call) -> Response:
    """List messages without touching them."""
    params = call.params
    limit = param_int(call, "limit", (1, MAX_PAGE)) or DEFAULT_PAGE
    with_body = param_switch(call, "body", default=True)
    command = Inspect(
        call.account, call.queue, filter_of_query(call), params.get("after", ""), limit, with_body
    )
    page = await call.services.perform(command)
    assert isinstance(page, MessagePage)
    now_ms = call.now_ms
    shown = await in_portions(
        lambda seen: show_message(seen, now_ms, with_body=with_body), page.messages
    )
    return call.reply({"messages": shown, "next_after": page.next_after})


async def find(call: Call) -> Response:
    """Look at one message."""
    seen = await call.services.perform(FindMessage(call.account, call.queue, call.item))
    return reply_seen(call, seen)


async def explain_message(call: Call) -> Response:
    """Say why a message is not being worked on."""
    around = await _facts(call)
    seen: Seen | None = None
    ahead, more_urgent = None, 0
    find = FindMessage(call.account, call.queue, call.item, with_bodies=False)
    try:
        found = await call.services.perform(find)
    except MessageNotFound:
        pass
    else:
        assert isinstance(found, Seen)
        seen = found
        if seen.state is MessageState.VISIBLE:
            ahead, more_urgent = await _count_ahead(call, seen.message)
    facts = explain.MessageFacts(
        queue=around, message_id=call.item, seen=seen, ahead=ahead, more_urgent=more_urgent
    )
    return call.reply(_show_explanation(explain.explain_message(facts)))


async def _count_ahead(call: Call, message: Message) -> tuple[int | None, int]:
    """Return how many messages come before one, None if many do, and how many by priority."""
    peek = Peek(call.account, call.queue, _LOOKED_AHEAD, with_bodies=False)
    peeked = await call.services.perform(peek)
    assert isinstance(peeked, tuple)
    more_urgent = 0
    for place, other in enumerate(peeked):
        assert isinstance(other, Message)
        if other.message_id == message.message_id:
            return place, more_urgent
        more_urgent += other.priority < message.priority
    return None, 0


async def explain_queue(call: Call) -> Response:
    """Say why nothing of a queue is being worked on, or what is."""
    return call.reply(_show_explanation(explain.explain_queue(await _facts(call))))


async def _facts(call: Call) -> explain.QueueFacts:
    queue = await get_queue(call)
    counts = await count_messages(call, call.queue)
    due = await call.services.perform(NextDue(call.account, call.queue))
    assert isinstance(due, Due)
    claims: tuple[Claim, ...] = ()
    if counts.claimed:
        streams = await call.services.perform(ListStreams(call.account, call.queue))
        assert isinstance(streams, tuple)
        found = [each.claims for each in streams if isinstance(each, Stream)]
        claims = tuple(claim for each in found for claim in each if claim.state in HIDING)
    activity = call.services.activity(call.account, call.queue)
    return explain.QueueFacts(
        queue=call.queue,
        settings=queue.settings,
        counts=counts,
        activity=explain.Activity(
            since_ms=activity.since_ms,
            last_receive_ms=activity.last_receive_ms,
            last_receiver=activity.last_receiver,
            last_send_ms=activity.last_send_ms,
            waiting=activity.waiting,
        ),
        now_ms=call.now_ms,
        next_due_ms=due.at_ms,
        claims=claims,
    )


def reply_seen(call: Call, seen: object) -> Response:
    """Show a message as an answer of the engine has it."""
    assert isinstance(seen, Seen)
    return call.reply(show_message(seen, call.now_ms))


# --- changing ------------------------------------------------------------------------------------


async def amend(call: Call) -> Response:
    """Change a message without a receipt."""
    limit_bytes = body_limit(call, call.queue)
    # JSON can be twice as long as the text in it, or more; base64 is a third longer.
    request = read_body(_AMEND, call, max(MAX_SINGLE_BYTES, 2 * limit_bytes))
    delay_s, life_s, priority = request.delay_s, request.time_to_live_s, request.priority
    if delay_s is not None:
        within("$.delay_s", delay_s, NATIVE.delay_s)
    if life_s is not None and life_s != NEVER:
        within("$.time_to_live_s", life_s, NATIVE.time_to_live_s)
    if priority is not None:
        within("$.priority", priority, PRIORITIES)
    properties = request.properties
    command = Amend(
        call.account,
        call.queue,
        call.item,
        delay_s=delay_s,
        time_to_live_s=life_s,
        body=body_of(request, "$.", limit_bytes),
        priority=priority,
        properties=None if properties is None else read_properties("$.properties", properties),
        force=bool(request.force),
    )
    return reply_seen(call, await call.services.perform(command))


async def remove(call: Call) -> Response:
    """Remove a message without a receipt."""
    force = param_switch(call, "force", default=False)
    await call.services.perform(Remove(call.account, call.queue, call.item, force))
    return call.reply_nothing()


async def end_lease(call: Call) -> Response:
    """End the lease of a message."""
    request = read_body(_END_LEASE, call)
    delay_s = request.delay_s or 0
    within("$.delay_s", delay_s, NATIVE.delay_s)
    reason = short_text("$.reason", request.reason)
    command = EndLease(call.account, call.queue, call.item, delay_s, reason)
    return reply_seen(call, await call.services.perform(command))
