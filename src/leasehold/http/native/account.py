"""Sessions of workers, and the wish that the work on a message be stopped."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from leasehold.domain.commands import GetAccountDocument, SetAccountDocument
from leasehold.domain.events import COLUMNS, Event, EventPage, Kind, LogExtent, ReadEvents
from leasehold.domain.limits import (
    DEFAULT_SESSION_TIMEOUT_S,
    MAX_PROGRESS,
    PROGRESS_TIMEOUTS_S,
    SESSION_TIMEOUTS_S,
)
from leasehold.domain.model import ENTROPY_BYTES, Progress
from leasehold.domain.queue_settings import poison_queue_of
from leasehold.domain.sessions import (
    EndSession,
    GetSession,
    Heartbeat,
    ListSessions,
    OpenSession,
    RequestCancel,
    Session,
)
from leasehold.engine.faults import Faults
from leasehold.events.names import PHASE_NAMES, TYPE_NAMES, WORDS
from leasehold.http.native.admin import reply_seen
from leasehold.http.native.call import (
    Call,
    checked_name,
    decode_body,
    in_portions,
    param_int,
    queue_name,
    read_body,
    short_text,
    within,
)
from leasehold.http.native.errors import Refused, invalid, out_of_range, problem, shown
from leasehold.http.native.messages import read_progress
from leasehold.http.native.queues import MAX_PAGE, get_queue
from leasehold.http.requests import Response
from leasehold.http.test_mode import LATEST_MS, Controls
from leasehold.wire import events as wire_events
from leasehold.wire import flows as wire
from leasehold.wire.admin import CancelMessage
from leasehold.wire.flows import MAX_ADVANCE_S, MAX_DELAY_S, MAX_FAULTS
from leasehold.wire.messages import ProgressReport
from leasehold.wire.parts import NUMBERS, NoRequest

MAX_HEARTBEAT_BYTES: Final = 4 * 1024 * 1024

_OPEN: Final = msgspec.json.Decoder(wire.OpenSessionRequest)
_HEARTBEAT: Final = msgspec.json.Decoder(wire.HeartbeatRequest)
_END: Final = msgspec.json.Decoder(wire.EndSessionRequest)
_CANCEL: Final = msgspec.json.Decoder(CancelMessage)


def _show(session: Session) -> wire.SessionInfo:
    return msgspec.convert(session, wire.SessionInfo, from_attributes=True)


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
    return call.reply(_show(session), 201, (b"location", place.encode("ascii")))


async def list_sessions(call: Call) -> Response:
    """List sessions, the newest first."""
    limit = param_int(call, "limit", (1, MAX_PAGE)) or MAX_PAGE
    sessions = await call.services.perform(ListSessions(call.account, limit))
    return call.reply(wire.Sessions([*map(_show, sessions)]))


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
    cancels = tuple(wire.CancelNotice(*each) for each in beat.cancels)
    return call.reply(wire.Beat(beat.until_ms, cancels, beat.lost))


def _read_progress(
    given: dict[str, ProgressReport | None], now_ms: int
) -> dict[str, Progress | None]:
    if len(given) > MAX_PROGRESS:
        raise out_of_range(
            "$.progress",
            len(given),
            (0, MAX_PROGRESS),
            "The limit is a number of messages: report the others with another heartbeat.",
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
    command = EndSession(call.account, call.item, reason, call.console_actor)
    return _reply_session(call, await call.services.perform(command))


async def cancel_message(call: Call) -> Response:
    """Ask the holder of a message to stop."""
    reason = short_text("$.reason", read_body(_CANCEL, call).reason)
    command = RequestCancel(call.account, call.queue, call.item, reason, call.actor)
    return reply_seen(call, await call.services.perform(command))


def _reply_session(call: Call, session: Session) -> Response:
    return call.reply(_show(session))


# --- pipelines ---------------------------------------------------------------------------------
#
# What drivers of pipelines report, for those who watch: the newest report of each, by name.


PIPELINES: Final = "pipelines"
"""Kind of the document that keeps the reports."""
MAX_PIPELINES: Final = 20
"""The one that was not heard of for longest goes."""

_REPORT: Final = msgspec.json.Decoder(wire.PipelineReport)


async def report_pipeline(call: Call) -> Response:
    """Take note of how a pipeline is doing, in place of what it said before."""
    name = checked_name("name", call.item)
    report = read_body(_REPORT, call, MAX_REPORT_BYTES)
    queue_name("$.queue", report.queue)
    if report.state not in _PIPELINE_STATES:
        known = ", ".join(_PIPELINE_STATES)
        raise invalid("$.state", f"{shown(report.state)!r} is not a state; the states are {known}.")
    parts: tuple[tuple[str, Sequence[wire.StageReport | wire.ExecutorReport], int], ...] = (
        ("$.stages", report.stages, wire.MAX_STAGES),
        ("$.executors", report.executors, wire.MAX_EXECUTORS),
    )
    for field, listed, most in parts:
        if len(listed) > most:
            raise out_of_range(field, len(listed), (0, most), "The limit is a number of items.")
        for number, each in enumerate(listed):
            short_text(f"{field}[{number}].name", each.name)
    short_text("$.failure", report.failure)
    told = {"name": name, "at_ms": call.now_ms, **dict.fromkeys(_OPTIONAL)}
    told |= msgspec.to_builtins(report)
    async with call.services.settings_lock:
        kept = await call.services.perform(GetAccountDocument(call.account, PIPELINES))
        known_ones = pipelines_in(kept.content)
        known_ones.pop(name, None)
        known_ones[name] = {**_NO_REPORT, **told}
        while len(known_ones) > MAX_PIPELINES:
            del known_ones[min(known_ones, key=lambda each: known_ones[each]["at_ms"])]
        content = msgspec.json.encode(known_ones).decode()
        await call.services.perform(SetAccountDocument(call.account, PIPELINES, content))
    return call.reply_nothing()


MAX_REPORT_BYTES: Final = 256 * 1024
_PIPELINE_STATES: Final = ("running", "done", "stopped", "failed")
_OPTIONAL: Final = ("backlog", "failure")
_NO_REPORT: Final[Mapping[str, Any]] = {
    "stages": [],
    "executors": [],
    "per_s": 0.0,
    **dict.fromkeys(("done", "failed", "poisoned", "lost", "in_work", "waiting"), 0),
}
"""What is left out of a report where it says nothing else."""


def pipelines_in(content: str | None) -> dict[str, dict[str, Any]]:
    """Return the reports in a document, by the names of the pipelines."""
    return {} if content is None else msgspec.json.decode(content, type=dict[str, dict[str, Any]])


# --- events ------------------------------------------------------------------------------------
#
# The event log, and the part of it that concerns one message.


DEFAULT_EVENTS: Final = 1_000
MAX_EVENTS: Final = 10_000
_LOOKS: Final = 4
"""Pages that a request looks through for events of one message before it answers with none: of a
log of ten million events that is some 70 ms."""


_ACCOUNT: Final = Event._fields.index("account")
"""Place of what is not shown: it is in the path."""
_MEMBERS: Final = (*Event._fields[:_ACCOUNT], *Event._fields[_ACCOUNT + 1 :])
_WORDS: Final = [(_MEMBERS.index(name), words.get) for name, words in WORDS.items()]


def show_event(event: Event) -> wire_events.Event:
    """Return an event as JSON shows it."""
    values: list[Any] = [*event]
    del values[_ACCOUNT]
    for place, word in _WORDS:
        values[place] = word(values[place], values[place])
    return wire_events.Event(*values)


def declare_events(schemas: dict[str, Any]) -> None:
    """Add to the schemas of the OpenAPI document what an event has, and what can happen."""
    columns = {name: COLUMNS[name] for name in _MEMBERS}
    schemas["Event"] |= {
        "required": [name for name in columns if name not in Event._field_defaults],
        "properties": {
            name: {**_SCHEMAS[each.kind], **each.keywords, "description": f"{each.meaning}."}
            for name, each in columns.items()
        },
    }
    schemas["EventType"] = {"enum": [*TYPE_NAMES.values()]}


_SCHEMAS: Final[Mapping[Kind, Mapping[str, Any]]] = {
    Kind.INT8: {"type": "integer"},
    Kind.INT32: {"type": "integer"},
    Kind.INT64: {"type": "integer"},
    Kind.TEXT: {"type": "string"},
    Kind.MOMENT: {"$ref": "#/components/schemas/Ms"},
    Kind.TYPE: {"$ref": "#/components/schemas/EventType"},
    Kind.PHASE: {"enum": [*PHASE_NAMES.values()]},
}


async def list_events(call: Call) -> Response:
    """Read the events of the account."""
    page = await _read(call, _after(call), None)
    # Afterwards, so that it is not less than what the page has.
    extent = await call.services.perform(LogExtent())
    return await _reply(call, page, last_seq=extent.last_seq, first_seq=extent.first_seq)


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


_ADVANCE: Final = msgspec.json.Decoder(wire.AdvanceRequest)
_FAULTS: Final = msgspec.json.Decoder(wire.FaultsRequest)
_NOTHING: Final = msgspec.json.Decoder(NoRequest)


def _controls(call: Call) -> Controls:
    controls = call.services.controls
    assert controls is not None, "there are routes to here in test mode only"
    return controls


def _show_clock(controls: Controls) -> wire.Clock:
    return wire.Clock(controls.now_ms(), controls.is_virtual, controls.waiting)


def _show_faults(faults: Faults) -> wire.Faults:
    return msgspec.convert(faults, wire.Faults, from_attributes=True)


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
