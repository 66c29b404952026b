"""What those do who look after a queue: look at messages, explain, change, remove, end leases."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Final, TypeVar

import msgspec

from leasehold.domain import explain
from leasehold.domain.admin import (
    Amend,
    EndLease,
    ExtendLease,
    FindMessage,
    GetJob,
    Inspect,
    Job,
    JobChange,
    JobKind,
    JobPlan,
    ListJobs,
    LookAtGroup,
    NextDue,
    Remove,
    Seen,
    StartJob,
    StopJob,
    is_over,
)
from leasehold.domain.claims import HIDING, Claim, ListStreams
from leasehold.domain.commands import Peek
from leasehold.domain.errors import LeaseholdError, MessageNotFound
from leasehold.domain.failures import last_error
from leasehold.domain.filters import EVERYTHING, MessageFilter, parse_json_path, parse_json_value
from leasehold.domain.limits import MAX_WAIT_S, NATIVE, NEVER, PRIORITIES
from leasehold.domain.model import (
    NEVER_MS,
    Attempt,
    Message,
    MessageState,
    body_problem,
)
from leasehold.domain.queue_settings import poison_queue_of
from leasehold.domain.visibility import after_amend, first_visible_ms
from leasehold.http.native.call import (
    MAX_SINGLE_BYTES,
    Call,
    in_portions,
    param_int,
    param_number,
    param_switch,
    queue_name,
    read_body,
    short_text,
    within,
)
from leasehold.http.native.errors import invalid, shown
from leasehold.http.native.groups import holder_of
from leasehold.http.native.items import body_limit, body_of, expiry, read_properties
from leasehold.http.native.queues import DEFAULT_PAGE, MAX_PAGE, count_messages, get_queue
from leasehold.http.requests import Response
from leasehold.wire import admin as wire
from leasehold.wire.admin import MAX_AGE_S, MAX_CANARY, MAX_COUNT, RATES_PER_S
from leasehold.wire.messages import CancelRequest
from leasehold.wire.parts import MAX_TEXT, NoRequest
from leasehold.wire.queues import Explanation

_T = TypeVar("_T")

_LOOKED_AHEAD: Final = 256
"""Messages looked at to say how many are before one."""

_NOTHING: Final = msgspec.json.Decoder(NoRequest)
_AMEND: Final = msgspec.json.Decoder(wire.AmendRequest)
_EXTEND_LEASE: Final = msgspec.json.Decoder(wire.ExtendLeaseRequest)
_END_LEASE: Final = msgspec.json.Decoder(wire.EndLeaseRequest)


# --- what is shown -------------------------------------------------------------------------------


def show_message(seen: Seen, now_ms: int, *, with_body: bool = True) -> wire.View:
    """Return a message as those see it who look after it."""
    message, state, queue, under = seen
    detail = message.detail
    ref = detail.body_ref
    error = last_error(message)
    is_leased = state is MessageState.LEASED
    shown = wire.View(
        id=message.message_id,
        queue=queue,
        state=state,
        why=explain.why(message, state, now_ms, seen.under),
        body_bytes=len(message.body) if ref is None else ref.size_bytes,
        inserted_at_ms=message.inserted_at_ms,
        expires_at_ms=expiry(message.expires_at_ms),
        visible_at_ms=message.visible_at_ms,
        dequeue_count=message.dequeue_count,
        fence=message.fence,
        priority=message.priority,
        type=detail.message_type,
        properties=detail.properties,
        traceparent=detail.traceparent,
        dedup_key=detail.dedup_key,
        group_id=detail.group_id,
        visibility_timeout_s=detail.visibility_timeout_s,
        first_visible_at_ms=first_visible_ms(message),
        last_visible_at_ms=message.visible_since_ms or None,
        lease=_show_lease(message) if is_leased else None,
        last_error=_show_last_error(error) if error else None,
        failures=detail.failures,
        interruptions=detail.interruptions,
        lapses=detail.lapses,
        attempts=[_show_attempt(each) for each in detail.attempts],
        poisoned=_show_as(wire.Poisoning, detail.poisoning),
        redriven=detail.redriven,
        under=under,
        session=message.session if is_leased else None,
        cancel=_show_as(CancelRequest, detail.cancel),
    )
    if with_body:
        _add_content(shown, message)
    return shown


def _add_content(shown: wire.View, message: Message) -> None:
    """Show what may be large: the body, or why it is left out, and what was saved."""
    detail = message.detail
    if detail.saved is not None:
        shown.saved = msgspec.Raw(detail.saved)
    told = body_problem(message)
    if told is not None:
        shown.body_problem = told
        return
    try:
        shown.body = message.body.decode()
    except UnicodeDecodeError:
        shown.body_base64 = message.body


def _show_attempt(attempt: Attempt) -> wire.Attempt:
    return msgspec.convert(attempt, wire.Attempt, from_attributes=True)


def _show_as(kind: type[_T], thing: object) -> _T | None:
    return None if thing is None else msgspec.convert(thing, kind, from_attributes=True)


def _show_lease(message: Message) -> wire.LeaseInfo:
    return wire.LeaseInfo(
        holder=message.holder,
        since_ms=message.since_ms,
        until_ms=message.visible_at_ms,
        renewals=message.renewals,
        progress=_show_as(wire.Progress, message.detail.progress),
    )


def _show_last_error(attempt: Attempt) -> wire.LastError:
    error = attempt.error
    assert error is not None
    return wire.LastError(error.text, error.type, error.fingerprint, attempt.ended_at_ms)


def _show_explanation(explanation: explain.Explanation) -> Explanation:
    return Explanation(explanation.sentence, explanation.code, explanation.evidence)


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
    now_ms = call.now_ms
    shown = await in_portions(
        lambda seen: show_message(seen, now_ms, with_body=with_body), page.messages
    )
    return call.reply(wire.Views(shown, page.next_after))


async def find(call: Call) -> Response:
    """Look at one message."""
    with_body = param_switch(call, "body", default=True)
    find = FindMessage(call.account, call.queue, call.item, with_bodies=with_body)
    seen = await call.services.perform(find)
    return call.reply(show_message(seen, call.now_ms, with_body=with_body))


async def explain_message(call: Call) -> Response:
    """Say why a message is not being worked on."""
    around = await _facts(call)
    seen: Seen | None = None
    ahead, more_urgent, group, holder = None, 0, None, None
    find = FindMessage(call.account, call.queue, call.item, with_bodies=False)
    try:
        found = await call.services.perform(find)
    except MessageNotFound:
        pass
    else:
        seen = found
        if seen.state is MessageState.VISIBLE:
            ahead, more_urgent = await _count_ahead(call, seen.message)
            group_id = seen.message.detail.group_id
            if group_id is not None and around.settings.groups is not None:
                look = LookAtGroup(call.account, call.queue, group_id)
                group = await call.services.perform(look)
                holder = await holder_of(call, group.hold)
    facts = explain.MessageFacts(
        queue=around,
        message_id=call.item,
        seen=seen,
        ahead=ahead,
        more_urgent=more_urgent,
        group=group,
        group_holder=holder,
    )
    return call.reply(_show_explanation(explain.explain_message(facts)))


async def _count_ahead(call: Call, message: Message) -> tuple[int | None, int]:
    """Return how many messages come before one, None if many do, and how many by priority."""
    peek = Peek(call.account, call.queue, _LOOKED_AHEAD, with_bodies=False)
    peeked = await call.services.perform(peek)
    more_urgent = 0
    for place, other in enumerate(peeked):
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
    claims: tuple[Claim, ...] = ()
    if counts.claimed:
        streams = await call.services.perform(ListStreams(call.account, call.queue))
        found = [each.claims for each in streams]
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


def reply_seen(call: Call, seen: Seen) -> Response:
    """Show a message as an answer of the engine has it."""
    return call.reply(show_message(seen, call.now_ms))


# --- changing ------------------------------------------------------------------------------------


async def amend(call: Call) -> Response:
    """Change a message without a receipt."""
    limit_bytes = body_limit(call, call.queue)
    # JSON can be twice as long as the text in it, or more; base64 is a third longer.
    request = read_body(_AMEND, call, max(MAX_SINGLE_BYTES, 2 * limit_bytes))
    delay_s, life_s, priority = request.delay_s, request.time_to_live_s, request.priority
    _bounded("delay_s", delay_s, NATIVE.delay_s)
    _life(life_s)
    _bounded("priority", priority, PRIORITIES)
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
        actor=call.actor,
    )
    before = await _found(call, with_body=command.body is not None)
    seen = await call.services.perform(command)
    view = show_message(seen, call.now_ms)
    previous = None if before is None else _previous(command, before, seen, call.now_ms)
    if previous is not None:
        view.previous = previous
    return call.reply(view)


async def _found(call: Call, *, with_body: bool) -> Message | None:
    find = FindMessage(call.account, call.queue, call.item, with_bodies=with_body)
    try:
        return (await call.services.perform(find)).message
    except LeaseholdError:  # whatever it is, the change itself meets it or needs not know
        return None


def _previous(command: Amend, before: Message, after: Seen, now_ms: int) -> wire.Previous | None:
    """Return what a change has changed, as it was; None if something else came in between."""
    expected = after_amend(
        before,
        now_ms,
        delay_s=command.delay_s,
        time_to_live_s=None,
        body=None,
        priority=None,
        properties=None,
    )
    if expected.fence != after.message.fence:
        return None
    previous = wire.Previous()
    if command.delay_s is not None:
        previous.delay_s = max(0, before.visible_at_ms - now_ms) // 1000
    if command.time_to_live_s is not None:
        left_s = max(0, before.expires_at_ms - now_ms) // 1000
        previous.time_to_live_s = NEVER if before.expires_at_ms >= NEVER_MS else left_s
    if command.priority is not None:
        previous.priority = before.priority
    if command.properties is not None:
        previous.properties = before.detail.properties or {}
    if command.body is not None and body_problem(before) is None:
        try:
            previous.body = before.body.decode()
        except UnicodeDecodeError:
            previous.body_base64 = before.body
    return previous


async def extend_lease(call: Call) -> Response:
    """Give the holder of a message more time."""
    request = read_body(_EXTEND_LEASE, call)
    timeout_s = within("$.visibility_timeout_s", request.visibility_timeout_s, NATIVE.lease_s)
    command = ExtendLease(call.account, call.queue, call.item, timeout_s, call.actor)
    return reply_seen(call, await call.services.perform(command))


async def remove(call: Call) -> Response:
    """Remove a message without a receipt."""
    force = param_switch(call, "force", default=False)
    await call.services.perform(Remove(call.account, call.queue, call.item, force, call.actor))
    return call.reply_nothing()


async def end_lease(call: Call) -> Response:
    """End the lease of a message."""
    request = read_body(_END_LEASE, call)
    delay_s = request.delay_s or 0
    within("$.delay_s", delay_s, NATIVE.delay_s)
    reason = short_text("$.reason", request.reason)
    command = EndLease(call.account, call.queue, call.item, delay_s, reason, call.actor)
    return reply_seen(call, await call.services.perform(command))


# --- filters -----------------------------------------------------------------------------------
#
# Filters: from JSON or a query to the domain's.


PARAMS: Final = frozenset(
    {
        *("search", "property", "session", "min_failures", "max_failures"),
        *("min_priority", "max_priority"),
        *("state", "min_age_s", "max_age_s", "max_error_age_s"),
        *("min_dequeue_count", "max_dequeue_count"),
        *("holder", "type", "group", "reason", "error", "text", "json_path", "json_value"),
    }
)
"""Parameters of the query that make a filter."""

_NAMES_OF_PARAMS: Final[Mapping[str, str]] = {
    "states": "state",
    "message_type": "type",
    "group_id": "group",
}
_AGES: Final = (0, MAX_AGE_S)
_COUNTS: Final = (0, MAX_COUNT)
_TEXTS: Final = (
    *("holder", "message_type", "group_id", "reason", "error", "text"),
    *("search", "property", "session"),
)
_BOUNDS: Final[Mapping[str, tuple[float, float]]] = {
    **dict.fromkeys(("min_age_s", "max_age_s", "max_error_age_s"), _AGES),
    **dict.fromkeys(("min_dequeue_count", "max_dequeue_count"), _COUNTS),
    **dict.fromkeys(("min_failures", "max_failures"), _COUNTS),
    **dict.fromkeys(("min_priority", "max_priority"), PRIORITIES),
}
_STATES: Final = [state.value for state in MessageState]


def filter_of_query(call: Call) -> MessageFilter:
    """Read a filter from the query.

    Raises:
        Refused: A parameter cannot be read.
    """
    params = call.params
    if not PARAMS.intersection(params):
        return EVERYTHING
    given: dict[str, Any] = {
        name: params.get(_NAMES_OF_PARAMS.get(name, name)) or None for name in _TEXTS
    }
    for name, bounds in _BOUNDS.items():
        read: Any = param_number if bounds is _AGES else param_int
        given[name] = read(call, name, bounds)
    states = params.get("state")
    return _checked(
        _Named(in_query=True),
        wire.Filter(
            states=tuple(states.split(",")) if states else None,
            json_path=params.get("json_path") or None,
            **given,
        ),
        _json_of_query(params.get("json_value")),
    )


def filter_of_body(given: wire.Filter | None) -> MessageFilter:
    """Read a filter from the member ``filter`` of a request.

    Raises:
        Refused: A member makes no sense.
    """
    if given is None:
        return EVERYTHING
    value = given.json_value
    try:
        text = None if value in (None, msgspec.UNSET) else msgspec.json.encode(value).decode()
    except RecursionError:
        raise invalid("$.filter.json_value", "`json_value` is nested too deeply.") from None
    return _checked(_Named(in_query=False), given, text)


class _Named:
    """Knows what the sender calls a member."""

    def __init__(self, *, in_query: bool) -> None:
        self._in_query = in_query

    def __call__(self, name: str) -> str:
        return _NAMES_OF_PARAMS.get(name, name) if self._in_query else f"$.filter.{name}"


def _checked(named: _Named, given: wire.Filter, json_value: str | None) -> MessageFilter:
    for name, bounds in _BOUNDS.items():
        value: Any = getattr(given, name)
        if value is not None:
            within(named(name), value, bounds)
    for name in _TEXTS:
        short_text(named(name), getattr(given, name))
    path = given.json_path
    if path is not None:
        short_text(named("json_path"), path)
        try:
            parse_json_path(path)
        except ValueError as error:
            raise invalid(named("json_path"), f"{error}.", value=path) from None
    short_text(named("json_value"), json_value, limit=64 * MAX_TEXT)
    if json_value is not None:
        try:
            parse_json_value(json_value)
        except ValueError as error:
            raise invalid(named("json_value"), f"{error}.", value=json_value) from None
    return MessageFilter(
        states=_states(named("states"), given.states),
        json_path=path,
        json_value=json_value,
        **{name: getattr(given, name) for name in (*_BOUNDS, *_TEXTS)},
    )


def _states(field: str, given: tuple[str, ...] | None) -> frozenset[MessageState] | None:
    if given is None:
        return None
    for name in given or [""]:
        if name not in _STATES:
            known = ", ".join(_STATES)
            raise invalid(
                field, f"{shown(name)!r} is not a state; the states are {known}.", value=name
            )
    return frozenset(MessageState(name) for name in given)


def _json_of_query(text: str | None) -> str | None:
    if not text:
        return None
    try:
        msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        raise invalid(
            "json_value",
            "`json_value` is not JSON.",
            value=text,
            remedy='Put a text in quotes: json_value="paid".',
        ) from None
    return text


# --- jobs --------------------------------------------------------------------------------------
#
# Purges, redrives and other changes of many messages: the server carries them on by itself.


_ID_BYTES: Final = 12

_PURGE: Final = msgspec.json.Decoder(wire.PurgeRequest)
_CHANGE: Final = msgspec.json.Decoder(wire.ChangeRequest)
_REDRIVE: Final = msgspec.json.Decoder(wire.RedriveRequest)


def _show_job(job: Job) -> wire.Job:
    return wire.Job(
        job_id=job.job_id,
        queue=job.queue,
        kind=job.plan.kind,
        state=job.state,
        dry_run=job.plan.dry_run,
        created_at_ms=job.created_at_ms,
        updated_at_ms=job.updated_at_ms,
        examined=job.examined,
        matched=job.matched,
        moved=job.moved,
        expected=job.expected,
        note=job.note,
        actor=job.actor,
    )


async def purge(call: Call) -> Response:
    """Remove the messages that a filter means."""
    request = read_body(_PURGE, call)
    plan = JobPlan(
        kind=JobKind.PURGE,
        filter=filter_of_body(request.filter),
        dry_run=bool(request.dry_run),
        rate_per_s=_rate(request.rate_per_s),
    )
    return await _start(call, plan, request.wait_s)


def _rate(rate_per_s: float | None) -> float | None:
    return None if rate_per_s is None else within("$.rate_per_s", rate_per_s, RATES_PER_S)


_CHANGED_BY: Final[Mapping[str, tuple[str, ...]]] = {
    "amend": ("delay_s", "time_to_live_s", "priority", "force"),
    "end-lease": ("delay_s", "reason"),
    "extend-lease": ("visibility_timeout_s",),
}
"""Members that an action knows."""


async def change(call: Call) -> Response:
    """Change the messages that a filter means."""
    request = read_body(_CHANGE, call)
    action = request.action
    if action not in _CHANGED_BY:
        known = ", ".join(_CHANGED_BY)
        raise invalid("$.action", f"{shown(action)!r} is not an action; the actions are {known}.")
    for name in sorted({name for names in _CHANGED_BY.values() for name in names}):
        if getattr(request, name) is not None and name not in _CHANGED_BY[action]:
            raise invalid(f"$.{name}", f"`{name}` has no meaning for `{action}`.")
    told = JobChange(
        delay_s=_bounded("delay_s", request.delay_s, NATIVE.delay_s),
        time_to_live_s=_life(request.time_to_live_s),
        priority=_bounded("priority", request.priority, PRIORITIES),
        force=bool(request.force),
        visibility_timeout_s=_bounded(
            "visibility_timeout_s", request.visibility_timeout_s, NATIVE.lease_s
        ),
        reason=short_text("$.reason", request.reason),
    )
    if action == "amend" and told == JobChange(force=told.force):
        raise invalid("$", "Send at least one of `delay_s`, `time_to_live_s` and `priority`.")
    if action == "extend-lease" and told.visibility_timeout_s is None:
        raise invalid("$.visibility_timeout_s", "The member `visibility_timeout_s` is missing.")
    plan = JobPlan(
        kind=JobKind(action),
        filter=filter_of_body(request.filter),
        dry_run=bool(request.dry_run),
        rate_per_s=_rate(request.rate_per_s),
        change=told,
    )
    return await _start(call, plan, request.wait_s)


def _bounded(name: str, value: int | None, bounds: tuple[int, int]) -> int | None:
    return None if value is None else within(f"$.{name}", value, bounds)


def _life(life_s: int | None) -> int | None:
    return life_s if life_s == NEVER else _bounded("time_to_live_s", life_s, NATIVE.time_to_live_s)


async def redrive(call: Call) -> Response:
    """Bring back poisoned messages that a filter means."""
    request = read_body(_REDRIVE, call)
    rate_per_s, canary, target = request.rate_per_s, request.canary or 0, request.target
    _rate(rate_per_s)
    within("$.canary", canary, (0, MAX_CANARY))
    if target is not None:
        queue_name("$.target", target)
        queue = call.services.find_queue(call.account, call.queue)
        if queue is not None and target == poison_queue_of(queue.name, queue.settings):
            raise invalid("$.target", "The messages are already in this queue.", value=target)
    plan = JobPlan(
        kind=JobKind.REDRIVE,
        filter=filter_of_body(request.filter),
        dry_run=bool(request.dry_run),
        rate_per_s=rate_per_s,
        canary=canary,
        target=target,
    )
    return await _start(call, plan, request.wait_s)


async def _start(call: Call, plan: JobPlan, wait_s: float | None) -> Response:
    if wait_s is not None:
        within("$.wait_s", wait_s, (0, MAX_WAIT_S))
    command = StartJob(call.account, call.queue, os.urandom(_ID_BYTES).hex(), plan, call.actor)
    job = await call.services.perform(command)
    if wait_s and not is_over(job):
        job = await call.services.wait_for_job(call.account, job.job_id, wait_s)
    place = f"/v1/accounts/{call.account}/jobs/{job.job_id}"
    location = (b"location", place.encode("ascii"))
    return call.reply(_show_job(job), 200 if is_over(job) else 202, location)


async def list_jobs(call: Call) -> Response:
    """List jobs, the newest first."""
    limit = param_int(call, "limit", (1, MAX_PAGE)) or DEFAULT_PAGE
    queue = call.params.get("queue") or None
    jobs = await call.services.perform(ListJobs(call.account, queue, limit))
    return call.reply(wire.Jobs([_show_job(job) for job in jobs if isinstance(job, Job)]))


async def get(call: Call) -> Response:
    """Look at a job."""
    return _reply_job(call, await call.services.perform(GetJob(call.account, call.item)))


async def stop(call: Call) -> Response:
    """Stop a job where it is."""
    read_body(_NOTHING, call)
    return _reply_job(
        call, await call.services.perform(StopJob(call.account, call.item, call.actor))
    )


def _reply_job(call: Call, job: Job) -> Response:
    return call.reply(_show_job(job))
