"""Sessions of workers, and the wish that the work on a message be stopped."""

from __future__ import annotations

import os
from typing import Any, Final

import msgspec

from leasehold.domain.ids import ENTROPY_BYTES
from leasehold.domain.sessions import (
    DEFAULT_SESSION_TIMEOUT_S,
    PROGRESS_TIMEOUTS_S,
    SESSION_TIMEOUTS_S,
    Beat,
    EndSession,
    GetSession,
    Heartbeat,
    ListSessions,
    OpenSession,
    RequestCancel,
    Session,
)
from leasehold.domain.types import Progress
from leasehold.http.messages import Response
from leasehold.http.native import flow_shapes, shapes
from leasehold.http.native.call import Call
from leasehold.http.native.messages import read_progress
from leasehold.http.native.oversight import reply_seen
from leasehold.http.native.problems import Refused, out_of_range, problem, shown
from leasehold.http.native.queues import MAX_PAGE
from leasehold.http.native.reading import (
    decode_body,
    param_int,
    read_body,
    short_text,
    within,
)

MAX_PROGRESS: Final = 10_000
"""Messages whose progress one heartbeat tells."""
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
    assert isinstance(session, Session)
    place = f"/v1/accounts/{call.account}/sessions/{session.session_id}"
    return call.reply(show_session(session), 201, (b"location", place.encode("ascii")))


async def list_sessions(call: Call) -> Response:
    """List sessions, the newest first."""
    limit = param_int(call, "limit", (1, MAX_PAGE)) or MAX_PAGE
    sessions = await call.services.perform(ListSessions(call.account, limit))
    assert isinstance(sessions, tuple)
    found = [show_session(each) for each in sessions if isinstance(each, Session)]
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
    assert isinstance(beat, Beat)
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


def _reply_session(call: Call, session: object) -> Response:
    assert isinstance(session, Session)
    return call.reply(show_session(session))
