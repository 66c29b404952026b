"""Queues as such: list, create, look, change, pause, delete, count."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any, Final, get_args

import msgspec

from leasehold.auth.types import parse_iso_time
from leasehold.domain.admin import CountMessages, Counts, Workload, desired_workers
from leasehold.domain.commands import (
    CreateQueue,
    DeleteQueue,
    GetQueue,
    ListQueues,
    SetQueueMetadata,
    SetQueuePolicies,
    SetQueueSettings,
)
from leasehold.domain.errors import InvalidMarker, QueueExists
from leasehold.domain.limits import (
    MAX_GROUP_ID,
    MAX_POLICIES,
    MAX_POLICY_ID,
    MAX_QUEUE_NAME,
    METADATA_NAME,
    NATIVE,
    POLICY_PERMISSIONS,
    RESERVED_METADATA,
)
from leasehold.domain.model import NEVER_MS, AccessPolicy, MessageState, Queue
from leasehold.domain.queue_settings import (
    DEFAULT_SETTINGS,
    MAX_IN_FLIGHT,
    MAX_NAMED_GROUPS,
    MAX_TYPE_RULES,
    MAX_WEIGHT,
    POISON_SUFFIX,
    PREFIX_END,
    Adaptive,
    Advised,
    Backoff,
    FailurePolicy,
    GroupSettings,
    MnsAttributes,
    QueueSettings,
    TypeTimeout,
    has_room_for_poison,
)
from leasehold.http.native.call import (
    Call,
    explain_invalid,
    param_int,
    param_switch,
    queue_name,
    read_body,
    short_text,
    within,
)
from leasehold.http.native.errors import Refused, invalid, out_of_range, problem, shown
from leasehold.http.requests import Response
from leasehold.wire import queues as wire
from leasehold.wire.parts import MAX_TEXT, NoRequest
from leasehold.wire.queues import MAX_PAUSE_S

MAX_PAGE: Final = 1_000
DEFAULT_PAGE: Final = 100

_COUNTED_AT_ONCE: Final = 64
# The smallest character of a name: the first name that can follow another.
_AFTER: Final = "-"
_MS: Final = 1000

_QUEUE: Final = msgspec.json.Decoder(wire.QueueRequest)
_PAUSE: Final = msgspec.json.Decoder(wire.PauseRequest)
_POLICIES: Final = msgspec.json.Decoder(wire.PoliciesRequest)
_NOTHING: Final = msgspec.json.Decoder(NoRequest)


# --- what is shown -------------------------------------------------------------------------------


def _show(queue: Queue, **more: Any) -> wire.Queue:
    return wire.Queue(
        name=queue.name,
        metadata=queue.metadata,
        settings=msgspec.convert(queue.settings, wire.Settings, from_attributes=True),
        visibility_timeout_s=queue.settings.lease_s(),
        created_at_ms=queue.created_at_ms,
        **more,
    )


def _show_counts(counts: Counts, now_ms: int) -> wire.Counts:
    return wire.Counts(
        at_ms=now_ms,
        visible=counts.visible,
        leased=counts.leased,
        delayed=counts.delayed,
        deferred=counts.deferred,
        poisoned=counts.poisoned,
        staged=counts.staged,
        claimed=counts.claimed,
        expired=counts.expired,
        total=counts.total,
        exact=counts.exact,
        oldest_age_s={
            str(state): max(0, now_ms - since_ms) / _MS for state, since_ms in counts.since.items()
        },
    )


async def get_queue(call: Call) -> Queue:
    """Fetch the queue of the request.

    Raises:
        QueueNotFound: It does not exist.
    """
    info = await call.services.perform(GetQueue(call.account, call.queue))
    return info.queue


async def count_messages(call: Call, queue: str) -> Counts:
    """Count the messages of a queue.

    Raises:
        QueueNotFound: It does not exist.
    """
    return await call.services.perform(CountMessages(call.account, queue))


async def _reply_queue(call: Call, status: int = 200) -> Response:
    return call.reply(_show(await get_queue(call)), status)


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
    if with_counts:
        shown = await _with_counts(call, page.queues)
    else:
        shown = [_show(queue) for queue in page.queues]
    last = page.queues[-1].name if page.queues and page.next_start is not None else None
    return call.reply(wire.QueuePage(shown, last))


async def _with_counts(call: Call, queues: Sequence[Queue]) -> list[wire.Queue]:
    """Count some queues at a time, so that they share a batch and leave room for others."""
    found: list[wire.Queue] = []
    for start in range(0, len(queues), _COUNTED_AT_ONCE):
        part = queues[start : start + _COUNTED_AT_ONCE]
        counted = await asyncio.gather(
            *[count_messages(call, queue.name) for queue in part], return_exceptions=True
        )
        for queue, counts in zip(part, counted, strict=True):
            if isinstance(counts, Counts):
                shown = _show_counts(counts, call.now_ms)
                found.append(_show(queue, counts=shown, activity=_activity(call, queue.name)))
            else:
                found.append(_show(queue))  # it was deleted meanwhile
    return found


def _activity(call: Call, queue: str) -> wire.Activity:
    return wire.Activity(**call.services.activity(call.account, queue)._asdict())


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
    command = CreateQueue(call.account, call.queue, metadata or {}, settings, given, call.actor)
    try:
        result = await call.services.perform(command)
    except QueueExists:
        if metadata is not None:
            raise
        return await _reply_queue(call)
    return await _reply_queue(call, 201 if result.created else 200)


async def get(call: Call) -> Response:
    """Look at a queue."""
    queue = await get_queue(call)
    counts = await count_messages(call, call.queue)
    shown = _show_counts(counts, call.now_ms)
    return call.reply(_show(queue, counts=shown, activity=_activity(call, call.queue)))


async def update(call: Call) -> Response:
    """Change metadata and settings."""
    request = read_body(_QUEUE, call)
    metadata, patch = request.metadata, request.settings
    if metadata is not None:
        check_metadata(metadata)
    async with call.services.settings_lock:
        before = await get_queue(call)
        settings = before.settings
        if patch:
            settings = patched(call.queue, settings, patch)
        if metadata is not None:
            await call.services.perform(
                SetQueueMetadata(call.account, call.queue, metadata, call.actor)
            )
        if patch:
            await call.services.perform(
                SetQueueSettings(call.account, call.queue, settings, call.actor)
            )
    return await _reply_changed(call, before)


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
        before = await get_queue(call)
        changed = replace(before.settings, paused_until_ms=until_ms, pause_reason=reason)
        await call.services.perform(SetQueueSettings(call.account, call.queue, changed, call.actor))
    return await _reply_changed(call, before)


async def _reply_changed(call: Call, before: Queue) -> Response:
    """Show a queue, and what brings back what was changed."""
    after = await get_queue(call)
    metadata = before.metadata if before.metadata != after.metadata else None
    settings = merge_patch(show_settings(after.settings), show_settings(before.settings))
    for name in _READ_ONLY:
        settings.pop(name, None)
    if not settings and metadata is None:
        return call.reply(_show(after))
    previous = wire.Before(settings=settings or None, metadata=metadata)
    return call.reply(_show(after, previous=previous))


async def delete(call: Call) -> Response:
    """Delete a queue and all its messages."""
    await call.services.perform(DeleteQueue(call.account, call.queue, call.actor))
    return call.reply_nothing()


async def counts(call: Call) -> Response:
    """Count the messages by state."""
    return call.reply(_show_counts(await count_messages(call, call.queue), call.now_ms))


SCALING_PARAMS: Final = frozenset({"messages_per_worker", "leases_per_worker", "max_wait_s"})
_PER_WORKER: Final = (1, 1_000_000)
_WAIT_S: Final = (1, 604_800)
_DEFAULT_PER_WORKER: Final = 10


async def scaling(call: Call) -> Response:
    """Say how many workers the queue needs."""
    messages_per_worker = param_int(call, "messages_per_worker", _PER_WORKER) or _DEFAULT_PER_WORKER
    leases_per_worker = param_int(call, "leases_per_worker", _PER_WORKER) or 1
    max_wait_s = param_int(call, "max_wait_s", _WAIT_S)
    queue = await get_queue(call)
    counted = await count_messages(call, call.queue)
    # More workers would not get more out of a queue that is paused.
    visible = 0 if queue.settings.is_paused(call.now_ms) else counted.visible
    since_ms = counted.since.get(MessageState.VISIBLE, call.now_ms) if visible else call.now_ms
    leased = counted.leased - counted.claimed
    work = Workload(visible, leased, max(0, call.now_ms - since_ms) / _MS)
    workers = desired_workers(
        work,
        messages_per_worker=messages_per_worker,
        leases_per_worker=leases_per_worker,
        max_wait_s=max_wait_s,
    )
    return call.reply(wire.DesiredWorkers(at_ms=call.now_ms, workers=workers, **work._asdict()))


# --- stored access policies ----------------------------------------------------------------------


async def policies(call: Call) -> Response:
    """Show the stored access policies."""
    return call.reply(_show_policies(await get_queue(call)))


async def set_policies(call: Call) -> Response:
    """Replace all stored access policies."""
    given = read_body(_POLICIES, call).policies
    if len(given) > MAX_POLICIES:
        raise out_of_range("$.policies", len(given), (0, MAX_POLICIES), "A queue may have no more.")
    found = tuple(_policy(f"$.policies[{place}]", each) for place, each in enumerate(given))
    if len({each.policy_id for each in found}) < len(found):
        raise invalid("$.policies", "Two policies have the same `id`.")
    await call.services.perform(SetQueuePolicies(call.account, call.queue, found, call.actor))
    return call.reply(_show_policies(await get_queue(call)))


def _policy(field: str, given: wire.Policy) -> AccessPolicy:
    short_text(f"{field}.id", given.id, MAX_POLICY_ID)
    for name in ("start", "expiry"):
        text = getattr(given, name)
        if text is not None and parse_iso_time(text) is None:
            raise invalid(f"{field}.{name}", f"`{shown(text)}` is not a time in ISO 8601 form.")
    letters = given.permission
    if letters is not None and not (letters and set(letters) <= set(POLICY_PERMISSIONS)):
        raise invalid(f"{field}.permission", f"The letters may be {', '.join(POLICY_PERMISSIONS)}.")
    return AccessPolicy(
        policy_id=given.id,
        start=given.start,
        expiry=given.expiry,
        permission=letters,
        complete=any((given.start, given.expiry, letters)),
    )


def _show_policies(queue: Queue) -> wire.Policies:
    return wire.Policies(
        [
            wire.Policy(each.policy_id, each.start, each.expiry, each.permission)
            for each in queue.policies
        ]
    )


# --- settings json -----------------------------------------------------------------------------
#
# A queue's settings and metadata as JSON: written, patched, checked.
#
# Names and meanings are those of :class:`~leasehold.domain.queue_settings.QueueSettings`. A patch
# is a merge patch (RFC 7396): what is left out stays, and ``null`` brings the default back.


ROOT: Final = "$.settings"
MAX_METADATA_BYTES: Final = 8_192

_READ_ONLY: Final = frozenset({"adapted", "adapted_by_type"})
_BY_TYPE: Final = ("timeouts_by_type", "advised_by_type")


def _ranges_of(kind: type[msgspec.Struct]) -> dict[str, tuple[float, float]]:
    ranges = {}
    for member in msgspec.structs.fields(kind):
        # A member that can be null is a union, of which one has the range.
        for each in (member.type, *get_args(member.type)):
            for meta in getattr(each, "__metadata__", ()):
                said = meta.extra_json_schema or {}
                if "minimum" in said:
                    ranges[member.name] = (said["minimum"], said["maximum"])
    return ranges


RANGES: Final[Mapping[type, Mapping[str, tuple[float, float]]]] = {
    QueueSettings: _ranges_of(wire.Settings),
    FailurePolicy: _ranges_of(wire.FailurePolicy),
    Backoff: _ranges_of(wire.Backoff),
    Adaptive: _ranges_of(wire.Adaptive),
    Advised: _ranges_of(wire.Advised),
    MnsAttributes: _ranges_of(wire.MnsAttributes),
    GroupSettings: _ranges_of(wire.GroupSettings),
    TypeTimeout: _ranges_of(wire.TypeTimeout),
}
"""The values allowed, both ends included; None is allowed besides where it is the default."""

_PARTS: Final[Mapping[str, type]] = {
    ROOT: QueueSettings,
    f"{ROOT}.failure_policy": FailurePolicy,
    f"{ROOT}.failure_policy.backoff": Backoff,
    f"{ROOT}.adaptive": Adaptive,
    f"{ROOT}.advised": Advised,
    f"{ROOT}.mns": MnsAttributes,
    f"{ROOT}.groups": GroupSettings,
}
_MAPPED: Final[Mapping[str, Mapping[str, type]]] = {
    f"{ROOT}.timeouts_by_type": {"": TypeTimeout, "adaptive": Adaptive},
    f"{ROOT}.advised_by_type": {"": Advised},
}
"""Settings whose members a caller names, and the parts in each of these."""
# Azure, "Naming queues and metadata": both dialects show the same metadata, that one in headers.
_HEADER_TEXT: Final = re.compile(r"[\t\x20-\x7e\xa0-\xff]*")


def show_settings(settings: QueueSettings) -> dict[str, Any]:
    """Return settings as JSON can hold them, with every member."""
    shown: dict[str, Any] = msgspec.to_builtins(settings)
    return shown


def patched(queue: str, settings: QueueSettings, patch: Mapping[str, Any]) -> QueueSettings:
    """Return *settings* with what *patch* changes. What the server has adapted is left out.

    Raises:
        Refused: A member is not known, of the wrong type, outside its range, or does not go with
            another one.
    """
    plain = show_settings(settings)
    for name in _READ_ONLY:
        del plain[name]
    # It is shown, so it may come back when a client sends what it was shown.
    patch = {name: patch[name] for name in patch if name not in _READ_ONLY}
    for path, part in _parts_of(patch):
        _refuse_unknown(path, part, _kind_of(path))
    merged = _merge(plain, patch)
    try:
        result = msgspec.convert(merged, QueueSettings)
    except msgspec.ValidationError as error:
        raise explain_invalid(error, root=ROOT) from None
    check_settings(queue, result)
    if "mns" in patch:
        _check_delay(result.mns)
    return result


def given_paths(patch: Mapping[str, Any]) -> tuple[tuple[str, ...], ...]:
    """Return the paths of names to all that a patch names, without what the server has adapted."""
    return tuple(
        (name, *path)
        for name, value in patch.items()
        if name not in _READ_ONLY
        for path in (given_paths(value) if isinstance(value, dict) and value else ((),))
    )


def merge_patch(now: Mapping[str, Any], wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Return the merge patch that makes of one what the other is."""
    patch: dict[str, Any] = {}
    for name in {**now, **wanted}:
        here, there = now.get(name), wanted.get(name)
        if isinstance(here, dict) and isinstance(there, dict):
            inner = merge_patch(here, there)
            if inner:
                patch[name] = inner
        elif here != there:
            patch[name] = there
    return patch


def _merge(target: Any, patch: Any) -> Any:
    if not isinstance(patch, dict):
        return patch
    merged = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = _merge(merged.get(name), value)
    return merged


def _parts_of(settings: Any) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Go over the objects in *settings* that are where settings have parts of their own."""
    waiting = [(ROOT, settings)]
    while waiting:
        path, value = waiting.pop()
        if not isinstance(value, dict):
            continue
        if _kind_of(path) is not None:
            yield path, value
        if _kind_of(path) is not None or path in _MAPPED:
            waiting.extend((f"{path}.{name}", each) for name, each in value.items())


def _kind_of(path: str) -> type | None:
    """Return the type of the part of the settings at a place; None if there is no part."""
    for mapping, kinds in _MAPPED.items():
        rest = path.removeprefix(f"{mapping}.")
        if rest != path:
            # A name can have dots.
            inner = next((name for name in kinds if name and rest.endswith(f".{name}")), "")
            return kinds[inner]
    return _PARTS.get(path)


def _refuse_unknown(path: str, part: Mapping[str, Any], kind: Any) -> None:
    known = [each.name for each in fields(kind)]
    for name in part:
        if name not in known:
            error = msgspec.ValidationError(f"Object contains unknown field `{name}`")
            raise explain_invalid(error, known, root=path)


def check_settings(queue: str, settings: QueueSettings) -> None:
    """Check settings for *queue* whose members are of the right types.

    Raises:
        Refused: A value is outside its range, or does not go with another one.
    """
    _check_ranges(ROOT, settings)
    if settings.pause_reason:
        short_text(f"{ROOT}.pause_reason", settings.pause_reason)
    if settings.advised is not None and settings.advised.because:
        short_text(f"{ROOT}.advised.because", settings.advised.because)
    _check_bounds(ROOT, settings.adaptive)
    for member in _BY_TYPE:
        _check_rules(f"{ROOT}.{member}", getattr(settings, member))
    policy = settings.failure_policy
    if policy is not None:
        _check_poison_queue(queue, policy.poison_queue)
    if settings.groups is not None:
        _check_named(f"{ROOT}.groups.weights", settings.groups.weights, MAX_WEIGHT)
        in_flight = settings.groups.max_in_flight_of
        _check_named(f"{ROOT}.groups.max_in_flight_of", in_flight, MAX_IN_FLIGHT)
        _check_named(f"{ROOT}.groups.burst_of", settings.groups.burst_of, MAX_IN_FLIGHT)
        rates = settings.groups.rate_per_s_of
        _check_named(
            f"{ROOT}.groups.rate_per_s_of", rates, wire.MAX_RECEIVES_PER_S, wire.MIN_RECEIVES_PER_S
        )


def _check_bounds(path: str, adaptive: Adaptive | None) -> None:
    if adaptive is not None and adaptive.floor_s > adaptive.cap_s:
        field = f"{path}.adaptive.floor_s"
        raise out_of_range(field, adaptive.floor_s, (NATIVE.lease_s[0], adaptive.cap_s))


def _check_rules(field: str, rules: Mapping[str, TypeTimeout | Advised]) -> None:
    """Check what is set by message type."""
    if len(rules) > MAX_TYPE_RULES:
        raise out_of_range(
            field, len(rules), (0, MAX_TYPE_RULES), "The limit is a number of types."
        )
    for name, rule in rules.items():
        short_text(field, name)
        if not name or PREFIX_END in name[:-1]:
            detail = f"A name is a message type, or a prefix of types with {PREFIX_END} at its end."
            raise invalid(field, detail, value=name)
        path = f"{field}.{name}"
        _check_ranges(path, rule)
        if isinstance(rule, TypeTimeout):
            _check_bounds(path, rule.adaptive)
        elif rule.because:
            short_text(f"{path}.because", rule.because)


def _check_delay(attributes: MnsAttributes | None) -> None:
    if attributes is not None and attributes.delays_past_expiry():
        highest_s = attributes.time_to_live_s - 1
        raise out_of_range(f"{ROOT}.mns.delay_s", attributes.delay_s, (0, highest_s))


def _check_ranges(path: str, part: Any) -> None:
    ranges = RANGES[type(part)]
    for each in fields(part):
        value = getattr(part, each.name)
        if each.name in ranges and value is not None:
            within(f"{path}.{each.name}", value, ranges[each.name])
        elif is_dataclass(value) and type(value) in RANGES:
            _check_ranges(f"{path}.{each.name}", value)


def _check_named(field: str, values: Mapping[str, float], highest: int, lowest: float = 1) -> None:
    """Check what is set by group."""
    if len(values) > MAX_NAMED_GROUPS:
        raise out_of_range(
            field, len(values), (0, MAX_NAMED_GROUPS), "The limit is a number of groups."
        )
    for name, value in values.items():
        short_text(field, name, MAX_GROUP_ID)
        within(f"{field}.{name}", value, (lowest, highest))


def _check_poison_queue(queue: str, name: str | None) -> None:
    field = f"{ROOT}.failure_policy.poison_queue"
    if name == queue:
        raise invalid(field, "A queue cannot be its own poison queue.", value=name)
    if name is not None:
        queue_name(field, name)
    elif not has_room_for_poison(queue):
        detail = f"The name of the queue is too long for {POISON_SUFFIX!r} after it."
        remedy = "Name another queue in `poison_queue`."
        raise Refused(
            problem(
                "invalid-queue-name",
                detail,
                field=field,
                remedy=remedy,
                value=shown(queue + POISON_SUFFIX),
                reason="length",
            )
        )


def check_metadata(metadata: Mapping[str, str]) -> None:
    """Check that metadata can be shown as headers too.

    Raises:
        Refused: A name is no identifier, a value is not text of a header, or it is too large.
    """
    size = 0
    for name, value in metadata.items():
        field = f"$.metadata.{name[:MAX_TEXT]}"
        if METADATA_NAME.fullmatch(name) is None:
            detail = "A name is a letter or _ followed by letters, digits and _."
            raise invalid(field, detail, value=name)
        if name.lower().startswith(RESERVED_METADATA):
            detail = f"Names that begin with {RESERVED_METADATA} are reserved for the server."
            raise invalid(field, detail, value=name)
        if _HEADER_TEXT.fullmatch(value) is None:
            detail = "A value may contain only printable characters of Latin-1."
            raise invalid(field, detail, value=value)
        size += len(name) + len(value)
    if size > MAX_METADATA_BYTES:
        raise out_of_range(
            "$.metadata",
            size,
            (0, MAX_METADATA_BYTES),
            "The limit is the number of bytes of all names and values together.",
        )
    if len({name.lower() for name in metadata}) < len(metadata):
        raise invalid("$.metadata", "Two names differ only in the case of letters.")
