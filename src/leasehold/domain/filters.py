"""Which messages a filter means.

A filter may look into the body, which is the users' own bytes: whatever they are, it answers yes or
no. Bodies that are base64 text, as many Azure clients send them, are looked at decoded as well.
"""

from __future__ import annotations

import binascii
import json
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, TypeAlias

from leasehold.domain.failures import last_error
from leasehold.domain.model import Message, MessageState


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageFilter:
    """Which messages are meant; what is left out matches all.

    :func:`matches` decides.
    """

    states: frozenset[MessageState] | None = None
    min_age_s: float | None = None
    """Inserted at least so many seconds ago."""
    max_age_s: float | None = None
    min_dequeue_count: int | None = None
    max_dequeue_count: int | None = None
    holder: str | None = None
    message_type: str | None = None
    group_id: str | None = None
    reason: str | None = None
    """Why it was poisoned."""
    error: str | None = None
    """Part of the text, or the whole type, or the fingerprint, of its last error."""
    max_error_age_s: float | None = None
    """The attempt of its last error ended at most so many seconds ago."""
    search: str | None = None
    """Part of the body, of a property, or of its type, group, id or deduplication key."""
    property: str | None = None
    """Part of a property, which is taken as ``name=value``."""
    session: str | None = None
    """Id of the session that its current or last lease belongs to."""
    min_failures: int | None = None
    """Attempts that counted as failures."""
    max_failures: int | None = None
    min_priority: int | None = None
    """1 is the most urgent."""
    max_priority: int | None = None
    text: str | None = None
    """Part of the body, which is taken as UTF-8, or base64 of it."""
    json_path: str | None = None
    """Dotted path into a body that is JSON, such as ``order.lines[0].sku``."""
    json_value: str | None = None
    """What must be there, as JSON; None: anything."""


EVERYTHING = MessageFilter()


MAX_JSON_LEVELS: Final = 100
"""How deep a value to look for may be nested; reading one must not depend on who calls."""

_MS: Final = 1000
_ABSENT: Final = object()
_STEP: Final = re.compile(
    r"""\.?(?P<name>[^.\[\]"]+)|\[(?P<index>-?\d{1,9})\]|\[(?P<quoted>"(?:[^"\\]|\\.)*")\]"""
)
JsonPath: TypeAlias = tuple[str | int, ...]


def matches(message: Message, state: MessageState, filter: MessageFilter, now_ms: int) -> bool:  # noqa: A002 - named as what it is
    """Tell whether *message*, which is in *state* now, is one of those that *filter* means.

    The holder asked for is the one of the current lease or, without a lease, of the last one.

    Raises:
        ValueError: The filter itself is wrong; see :func:`check_filter`.
    """
    return (
        (filter.states is None or state in filter.states)
        and _matches_columns(message, filter, now_ms)
        and (not needs_detail(filter) or _matches_detail(message, filter, now_ms))
        and (not needs_body(filter) or _matches_body(message, filter))
    )


def needs_detail(filter: MessageFilter) -> bool:  # noqa: A002 - as above
    """Tell whether the message's detail must be known to decide."""
    asked = filter.message_type, filter.group_id, filter.reason, filter.error, filter.property
    counts = filter.min_failures, filter.max_failures, filter.max_error_age_s
    return any(each is not None for each in (*asked, *counts, filter.search))


def needs_body(filter: MessageFilter) -> bool:  # noqa: A002 - as above
    """Tell whether the message's body must be known to decide."""
    asked = filter.text, filter.search, filter.json_path, filter.json_value
    return any(each is not None for each in asked)


def check_filter(filter: MessageFilter) -> None:  # noqa: A002 - as above
    """Refuse a filter whose path or value cannot be read.

    Raises:
        ValueError: With a sentence that says what is wrong.
    """
    if filter.json_path is not None:
        parse_json_path(filter.json_path)
    if filter.json_value is not None:
        parse_json_value(filter.json_value)


@lru_cache(maxsize=256)
def parse_json_path(text: str) -> JsonPath:
    """Return the steps of a path: names of members and positions in arrays.

    ``order.lines[0].sku`` and ``$.order.lines[0].sku`` are the same; ``["a.b"]`` is a member whose
    name is not plain, ``[-1]`` the last element, and ``$`` alone the whole document.

    Raises:
        ValueError: The text is no such path.
    """
    if not text:
        raise ValueError("a JSON path is not empty; $ is the whole document")
    rest = text[1:] if text == "$" or text.startswith(("$.", "$[")) else text
    steps: list[str | int] = []
    at = 0
    while at < len(rest):
        step = _STEP.match(rest, at)
        # Only the very first name may do without its dot, and only after no $.
        if step is None or (step["name"] and (rest[at] == ".") == (at == 0 and rest is text)):
            place = at + len(text) - len(rest) + 1
            raise ValueError(
                f"JSON path {text!r} cannot be read at character {place}: "
                'expected .name, [0] or ["name"]'
            )
        steps.append(_step(step, text))
        at = step.end()
    return tuple(steps)


def _step(step: re.Match[str], text: str) -> str | int:
    if step["name"]:
        return step["name"]
    if step["index"]:
        return int(step["index"])
    try:
        return str(json.loads(step["quoted"]))
    except ValueError:
        raise ValueError(f"JSON path {text!r}: {step['quoted']} is not a JSON string") from None


@lru_cache(maxsize=256)
def parse_json_value(text: str) -> Any:
    """Return the value that a filter asks for. The caller must not change it.

    Raises:
        ValueError: The text is not JSON, or nested deeper than MAX_JSON_LEVELS.
    """
    try:
        value = json.loads(text)
    except RecursionError:
        value = _ABSENT
    except ValueError:
        raise ValueError("the value to search for is not JSON") from None
    if value is _ABSENT or _is_deep(value):
        raise ValueError(f"the value to search for has more than {MAX_JSON_LEVELS} levels")
    return value


def _is_deep(value: Any) -> bool:
    level = [value]
    for _ in range(MAX_JSON_LEVELS):
        level = [
            part
            for each in level
            if isinstance(each, dict | list)
            for part in (each.values() if isinstance(each, dict) else each)
        ]
    return any(isinstance(each, dict | list) for each in level)


def _matches_columns(message: Message, wanted: MessageFilter, now_ms: int) -> bool:
    age_s = (now_ms - message.inserted_at_ms) / _MS
    return (
        (wanted.min_age_s is None or age_s >= wanted.min_age_s)
        and (wanted.max_age_s is None or age_s <= wanted.max_age_s)
        and (wanted.min_dequeue_count is None or message.dequeue_count >= wanted.min_dequeue_count)
        and (wanted.max_dequeue_count is None or message.dequeue_count <= wanted.max_dequeue_count)
        and (wanted.holder is None or message.holder == wanted.holder)
        and (wanted.session is None or message.session == wanted.session)
        and (wanted.min_priority is None or message.priority >= wanted.min_priority)
        and (wanted.max_priority is None or message.priority <= wanted.max_priority)
    )


def _matches_detail(message: Message, wanted: MessageFilter, now_ms: int) -> bool:
    detail = message.detail
    if wanted.message_type is not None and detail.message_type != wanted.message_type:
        return False
    if wanted.group_id is not None and detail.group_id != wanted.group_id:
        return False
    if wanted.reason is not None and (
        detail.poisoning is None or detail.poisoning.reason != wanted.reason
    ):
        return False
    return (
        (wanted.min_failures is None or detail.failures >= wanted.min_failures)
        and (wanted.max_failures is None or detail.failures <= wanted.max_failures)
        and (wanted.property is None or _holds_property(message, wanted.property))
        and (wanted.error is None or _matches_error(message, wanted.error))
        and (
            wanted.max_error_age_s is None
            or _failed_since(message, now_ms - wanted.max_error_age_s * _MS)
        )
    )


def _holds_property(message: Message, wanted: str) -> bool:
    needle = wanted.casefold()
    pairs = (message.detail.properties or {}).items()
    return any(needle in f"{name}={value}".casefold() for name, value in pairs)


def _is_named(message: Message, wanted: str) -> bool:
    """Tell whether anything beside the body has a text in it."""
    detail, needle = message.detail, wanted.casefold()
    told = message.message_id, detail.message_type, detail.group_id, detail.dedup_key
    if any(each is not None and needle in each.casefold() for each in told):
        return True
    return _holds_property(message, wanted)


def _matches_error(message: Message, wanted: str) -> bool:
    attempt = last_error(message)
    if attempt is None or attempt.error is None:
        return False
    error = attempt.error
    return wanted in (error.type, error.fingerprint) or wanted.casefold() in error.text.casefold()


def _failed_since(message: Message, since_ms: float) -> bool:
    attempt = last_error(message)
    return attempt is not None and attempt.ended_at_ms >= since_ms


def _matches_body(message: Message, wanted: MessageFilter) -> bool:
    body, search = message.body, wanted.search
    plain = _decoded_base64(body)
    forms = (body,) if plain is None else (body, plain)
    if wanted.text is not None and not any(_holds_text(form, wanted.text) for form in forms):
        return False
    if search is not None and not (
        _is_named(message, search) or any(_holds_text(form, search) for form in forms)
    ):
        return False
    if wanted.json_path is None and wanted.json_value is None:
        return True
    path = parse_json_path(wanted.json_path or "$")
    value = _ABSENT if wanted.json_value is None else parse_json_value(wanted.json_value)
    return any(_holds_json(form, path, value) for form in forms)


def _decoded_base64(body: bytes) -> bytes | None:
    """Return what the body encodes, if it is base64 of UTF-8; any other word may look like it."""
    text = body.strip()
    if not text or len(text) % 4:
        return None
    try:
        plain = binascii.a2b_base64(text, strict_mode=True)
        plain.decode()
    except ValueError:
        return None
    return plain


def _holds_text(body: bytes, text: str) -> bool:
    needle = text.casefold()
    if body.isascii():  # several times as fast, and most bodies are
        return needle.isascii() and needle.encode() in body.lower()
    return needle in body.decode(errors="replace").casefold()


def _holds_json(body: bytes, path: JsonPath, wanted: object) -> bool:
    try:
        found = _follow(json.loads(body.decode("utf-8-sig")), path)
        return found is not _ABSENT and (wanted is _ABSENT or _same(found, wanted))
    except (ValueError, RecursionError):
        return False


def _follow(value: Any, path: JsonPath) -> Any:
    for step in path:
        if isinstance(step, str):
            if not isinstance(value, dict) or step not in value:
                return _ABSENT
            value = value[step]
        else:
            if not isinstance(value, list) or not -len(value) <= step < len(value):
                return _ABSENT
            value = value[step]
    return value


def _same(one: Any, other: Any) -> bool:
    """Compare as JSON does: 1 is 1.0, but true is not 1, as it is in Python."""
    pairs = [(one, other)]  # not recursive: users nest as deep as they like
    while pairs:
        left, right = pairs.pop()
        if isinstance(left, dict) and isinstance(right, dict):
            if left.keys() != right.keys():
                return False
            pairs.extend((left[key], right[key]) for key in left)
        elif isinstance(left, list) and isinstance(right, list):
            if len(left) != len(right):
                return False
            pairs.extend(zip(left, right, strict=True))
        elif isinstance(left, bool) is not isinstance(right, bool) or left != right:
            return False
    return True
