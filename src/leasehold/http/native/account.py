"""Sessions of workers, and the wish that the work on a message be stopped."""

from __future__ import annotations

import os
from typing import Any, Final

import msgspec

from leasehold.domain.events import Event, EventPage, EventType, LogExtent, ReadEvents
from leasehold.domain.limits import MAX_PROGRESS
from leasehold.domain.model import ENTROPY_BYTES, NEVER_MS, Phase, Progress
from leasehold.domain.queue_settings import poison_queue_of
from leasehold.domain.sessions import (
    DEFAULT_SESSION_TIMEOUT_S,
    PROGRESS_TIMEOUTS_S,
    SESSION_TIMEOUTS_S,
    EndSession,
    GetSession,
    Heartbeat,
    ListSessions,
    OpenSession,
    RequestCancel,
    Session,
)
from leasehold.engine.faults import Faults
from leasehold.http.native import shapes
from leasehold.http.native import shapes as flow_shapes
from leasehold.http.native.admin import reply_seen
from leasehold.http.native.call import Call
from leasehold.http.native.errors import Refused, out_of_range, problem, shown
from leasehold.http.native.messages import read_progress
from leasehold.http.native.queues import MAX_PAGE, get_queue
from leasehold.http.native.reading import (
    NUMBERS,
    decode_body,
    in_portions,
    param_int,
    read_body,
    short_text,
    within,
)
from leasehold.http.requests import Response
from leasehold.http.test_mode import LATEST_MS, Controls

MAX_HEARTBEAT_BYTES: Final = 4 * 1024 * 1024

_OPEN: Final = msgspec.json.Decoder(flow_shapes.OpenSessionRequest)
_HEARTBEAT: Final = msgspec.json.Decoder(flow_shapes.HeartbeatRequest)
_END: Final = msgspec.json.Decoder(flow_shapes.EndSessionRequest)
_CANCEL: Final = msgspec.json.Decoder(shapes.CancelRequest)


def show_session(session: Session) -> dict[str, Any]:
    """Return a session as JSON shows it."""
    return {
        "session_id": session.session_id,
        "holder": session.holder,
        "state": session.state,
        "timeout_s": session.timeout_s,
        "progress_timeout_s": session.progress_timeout_s,
        "started_at_ms": session.started_at_ms,
        "last_heartbeat_ms": session.last_heartbeat_ms,
        "ended_at_ms": session.ended_at_ms,
        "reason": session.reason,
        "leases": session.leases,
    }


async def open_session(call: Call) -> Response:
    """Begin a session."""
    request = read_body(_OPEN, call)
    holder = short_text("$.holder", request.holder)
    assert holder is not None
    timeout_s, progress_s = request.timeout_s, request.progress_timeout_s
    if timeout_s is None:
        timeout_s = DEFAULT_SESSION_TIMEOUT_S
    within("$.timeout_s", timeout_s, SESSION_TIMEOUTS_S)
    if progress_s is not None:
        within("$.progress_timeout_s", progress_s, PROGRESS_TIMEOUTS_S)
    entropy = os.urandom(ENTROPY_BYTES)
    command = OpenSession(call.account, holder, entropy, timeout_s, progress_s)
    session = await call.services.perform(command)
    place = f"/v1/accounts/{call.account}/sessions/{session.session_id}"
    return call.reply(show_session(session), 201, (b"location", place.encode("ascii")))


async def list_sessions(call: Call) -> Response:
    """List sessions, the newest first."""
    limit = param_int(call, "limit", (1, MAX_PAGE)) or MAX_PAGE
    sessions = await call.services.perform(ListSessions(call.account, limit))
    found = [show_session(each) for each in sessions]
    return call.reply({"sessions": found})


async def get(call: Call) -> Response:
    """Look at a session."""
    return _reply_session(call, await call.services.perform(GetSession(call.account, call.item)))


async def heartbeat(call: Call) -> Response:
    """Hear that a worker lives, and tell what it must know."""
    body = call.request.body
    if len(body) > MAX_HEARTBEAT_BYTES:
        raise Refused(problem("request-too-large", limit=MAX_HEARTBEAT_BYTES))
    given = decode_body(_HEARTBEAT, body).progress
    progress = None if given is None else _read_progress(given, call.now_ms)
    beat = await call.services.perform(Heartbeat(call.account, call.item, progress))
    return call.reply(
        {
            "until_ms": beat.until_ms,
            "cancels": [
                {
                    "id": each.message_id,
                    "queue": each.queue,
                    "reason": each.reason,
                    "at_ms": each.at_ms,
                }
                for each in beat.cancels
            ],
            "lost": beat.lost,
        }
    )


def _read_progress(
    given: dict[str, shapes.ProgressIn | None], now_ms: int
) -> dict[str, Progress | None]:
    if len(given) > MAX_PROGRESS:
        raise out_of_range(
            "$.progress",
            len(given),
            (0, MAX_PROGRESS),
            "The figures are messages: tell of the others with another heartbeat.",
        )
    return {
        message_id: None
        if each is None
        else read_progress(f"$.progress.{shown(message_id)}", each, now_ms)
        for message_id, each in given.items()
    }


async def end(call: Call) -> Response:
    """End a session."""
    reason = short_text("$.reason", read_body(_END, call).reason)
    command = EndSession(call.account, call.item, reason)
    return _reply_session(call, await call.services.perform(command))


async def cancel_message(call: Call) -> Response:
    """Ask the holder of a message to stop."""
    reason = short_text("$.reason", read_body(_CANCEL, call).reason)
    command = RequestCancel(call.account, call.queue, call.item, reason)
    return reply_seen(call, await call.services.perform(command))


def _reply_session(call: Call, session: Session) -> Response:
    return call.reply(show_session(session))


# --- events ------------------------------------------------------------------------------------
#
# The event log, and the part of it that concerns one message.


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
    return await call.services.perform(ReadEvents(after, limit, message_id, call.account))


async def _reply(call: Call, page: EventPage, **more: int) -> Response:
    return call.reply(
        {
            "events": await in_portions(show_event, page.events),
            "next_after": page.last_seq,
            "finished": page.finished,
            **more,
        }
    )


# --- testmode ----------------------------------------------------------------------------------
#
# The switches of a server in test mode: its clock, and failures on demand.
#
# None of them asks for credentials: such a server can only be reached from its own machine.


MAX_ADVANCE_S: Final = 315_360_000
"""Longest single step of the clock: ten years."""
MAX_FAULTS: Final = 1_000_000
MAX_DELAY_S: Final = 60


class AdvanceRequest(msgspec.Struct, forbid_unknown_fields=True):
    """How far to move the clock."""

    seconds: float


class FaultsRequest(msgspec.Struct, forbid_unknown_fields=True):
    """What is to fail; what is left out is not."""

    fail_commits: int | None = None
    drop_answers: int | None = None
    delay_answers_s: float | None = None


_ADVANCE: Final = msgspec.json.Decoder(AdvanceRequest)
_FAULTS: Final = msgspec.json.Decoder(FaultsRequest)
_NOTHING: Final = msgspec.json.Decoder(shapes.NoRequest)


def _controls(call: Call) -> Controls:
    controls = call.services.controls
    assert controls is not None, "there are routes to here in test mode only"
    return controls


def _show_clock(controls: Controls) -> dict[str, Any]:
    return {
        "now_ms": controls.now_ms(),
        "virtual": controls.is_virtual,
        "waiting": controls.waiting,
    }


def _show_faults(faults: Faults) -> dict[str, Any]:
    return {
        "fail_commits": faults.fail_commits,
        "drop_answers": faults.drop_answers,
        "delay_answers_s": faults.delay_answers_s,
    }


async def clock(call: Call) -> Response:
    """Tell the time that messages go by."""
    return call.reply(_show_clock(_controls(call)))


async def advance(call: Call) -> Response:
    """Move the clock, and do what becomes due on the way."""
    controls = _controls(call)
    request = read_body(_ADVANCE, call)
    if not controls.is_virtual:
        raise Refused(
            problem(
                "no-such-route",
                "The clock of this server is the system's, which cannot be moved.",
                remedy="Start the server with --clock virtual.",
            )
        )
    most_s = min(MAX_ADVANCE_S, (LATEST_MS - controls.now_ms()) // 1000)
    length_s = within("$.seconds", request.seconds, (0, most_s))
    await controls.advance(round(length_s * 1000))
    return call.reply(_show_clock(controls))


async def faults(call: Call) -> Response:
    """Tell what is still to fail."""
    return call.reply(_show_faults(_controls(call).faults))


async def set_faults(call: Call) -> Response:
    """Say what is to fail, in place of what was said before."""
    found = _controls(call).faults
    request = read_body(_FAULTS, call)
    wanted = Faults(
        fail_commits=within("$.fail_commits", request.fail_commits or 0, (0, MAX_FAULTS)),
        drop_answers=within("$.drop_answers", request.drop_answers or 0, (0, MAX_FAULTS)),
        delay_answers_s=within(
            "$.delay_answers_s", request.delay_answers_s or 0.0, (0, MAX_DELAY_S)
        ),
    )
    found.replace(wanted)
    return call.reply(_show_faults(found))


async def clear_faults(call: Call) -> Response:
    """Let nothing fail any more."""
    _controls(call).faults.replace(Faults())
    return call.reply_nothing()
