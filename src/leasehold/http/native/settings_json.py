"""A queue's settings and metadata as JSON: written, patched, checked.

Names and meanings are those of :class:`~leasehold.domain.queue_settings.QueueSettings`. A patch is
a merge patch (RFC 7396): what is left out stays, and ``null`` brings the default back.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, Final

import msgspec

from leasehold.domain.limits import MNS, NATIVE, WEEK_S
from leasehold.domain.queue_settings import (
    MAX_BODY_BYTES,
    MAX_BUDGET,
    MAX_DEDUP_WINDOW_S,
    POISON_SUFFIX,
    Adaptive,
    Advised,
    Backoff,
    FailurePolicy,
    MnsAttributes,
    QueueSettings,
    has_room_for_poison,
)
from leasehold.domain.types import NEVER_MS
from leasehold.http.native.problems import Refused, invalid, out_of_range, problem, shown
from leasehold.http.native.reading import (
    MAX_TEXT,
    explain_invalid,
    queue_name,
    short_text,
    within,
)

ROOT: Final = "$.settings"
MAX_RECEIVES_PER_S: Final = 1_000_000
MIN_RECEIVES_PER_S: Final = 0.001
MAX_METADATA_BYTES: Final = 8_192

_READ_ONLY: Final = "adapted"
_BUDGET: Final = (1, MAX_BUDGET)
RANGES: Final[Mapping[type, Mapping[str, tuple[float, float]]]] = {
    QueueSettings: {
        "visibility_timeout_s": NATIVE.lease_s,
        "dedup_window_s": (0, MAX_DEDUP_WINDOW_S),
        "priority_ageing_s": (1, WEEK_S),
        "paused_until_ms": (0, NEVER_MS),
        "max_receives_per_s": (MIN_RECEIVES_PER_S, MAX_RECEIVES_PER_S),
        "max_body_bytes": (1, MAX_BODY_BYTES),
    },
    FailurePolicy: {
        "max_deliveries": _BUDGET,
        "max_failures": _BUDGET,
        "max_interruptions": _BUDGET,
        "max_lapses": _BUDGET,
        "poison_time_to_live_s": NATIVE.time_to_live_s,
    },
    Backoff: {
        "initial_s": (0, WEEK_S),
        "factor": (1, 10),
        "cap_s": (0, WEEK_S),
        "jitter": (0, 1),
    },
    Adaptive: {"floor_s": NATIVE.lease_s, "cap_s": NATIVE.lease_s},
    Advised: {
        "visibility_timeout_s": NATIVE.lease_s,
        "first_lease_s": NATIVE.lease_s,
        "renew_every_s": NATIVE.lease_s,
        "batch": NATIVE.receive_count,
        "floor_s": NATIVE.lease_s,
        "cap_s": NATIVE.lease_s,
        "at_ms": (0, NEVER_MS),
        "before_s": NATIVE.lease_s,
        "before_floor_s": NATIVE.lease_s,
        "before_cap_s": NATIVE.lease_s,
    },
    MnsAttributes: {
        "delay_s": MNS.delay_s,
        "time_to_live_s": MNS.time_to_live_s,
        "wait_s": (0, 30),
        "modified_at_ms": (0, NEVER_MS),
    },
}
"""The values allowed, both ends included; None is allowed besides where it is the default."""

_PARTS: Final[Mapping[str, type]] = {
    ROOT: QueueSettings,
    f"{ROOT}.failure_policy": FailurePolicy,
    f"{ROOT}.failure_policy.backoff": Backoff,
    f"{ROOT}.adaptive": Adaptive,
    f"{ROOT}.advised": Advised,
    f"{ROOT}.mns": MnsAttributes,
}
# Azure, "Naming queues and metadata": both dialects show the same metadata, that one in headers.
_IDENTIFIER: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_RESERVED: Final = "leasehold_"
"""The Azure dialect shows what the server adds under such names, and ignores them when set."""
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
    del plain[_READ_ONLY]
    # It is shown, so it may come back when somebody sends what they were shown.
    patch = {name: patch[name] for name in patch if name != _READ_ONLY}
    for path, part in _parts_of(patch):
        _refuse_unknown(path, part, _PARTS[path])
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
        if name != _READ_ONLY
        for path in (given_paths(value) if isinstance(value, dict) and value else ((),))
    )


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
        if path in _PARTS and isinstance(value, dict):
            yield path, value
            waiting.extend((f"{path}.{name}", each) for name, each in value.items())


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
    adaptive = settings.adaptive
    if adaptive is not None and adaptive.floor_s > adaptive.cap_s:
        field = f"{ROOT}.adaptive.floor_s"
        raise out_of_range(field, adaptive.floor_s, (NATIVE.lease_s[0], adaptive.cap_s))
    policy = settings.failure_policy
    if policy is not None:
        _check_poison_queue(queue, policy.poison_queue)


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
        if _IDENTIFIER.fullmatch(name) is None:
            detail = "A name is a letter or _ followed by letters, digits and _."
            raise invalid(field, detail, value=name)
        if name.lower().startswith(_RESERVED):
            detail = f"Names that begin with {_RESERVED} are the server's own."
            raise invalid(field, detail, value=name)
        if _HEADER_TEXT.fullmatch(value) is None:
            detail = "A value may hold printable characters of Latin-1 only."
            raise invalid(field, detail, value=value)
        size += len(name) + len(value)
    if size > MAX_METADATA_BYTES:
        raise out_of_range(
            "$.metadata",
            size,
            (0, MAX_METADATA_BYTES),
            "The figures are the bytes of all names and values together.",
        )
    if len({name.lower() for name in metadata}) < len(metadata):
        raise invalid("$.metadata", "Two names differ in the case of letters only.")
