"""Which messages a filter means.

A filter may look into the body, which is the users' own bytes: whatever they are, it answers yes or
no. Bodies that are base64 text, as many Azure clients send them, are looked at decoded as well.
"""

from __future__ import annotations

import binascii
import json
import re
from functools import lru_cache
from typing import Any, Final, TypeAlias

from leasehold.domain.failures import last_error
from leasehold.domain.oversight import MessageFilter
from leasehold.domain.types import Message, MessageState

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
        and (not needs_detail(filter) or _matches_detail(message, filter))
        and (not needs_body(filter) or _matches_body(message.body, filter))
    )


def needs_detail(filter: MessageFilter) -> bool:  # noqa: A002 - as above
    """Tell whether the message's detail must be known to decide."""
    return not (filter.message_type is None and filter.reason is None and filter.error is None)


def needs_body(filter: MessageFilter) -> bool:  # noqa: A002 - as above
    """Tell whether the message's body must be known to decide."""
    return not (filter.text is None and filter.json_path is None and filter.json_value is None)


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
        raise ValueError("the value to look for is not JSON") from None
    if value is _ABSENT or _is_deep(value):
        raise ValueError(f"the value to look for has more than {MAX_JSON_LEVELS} levels")
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
    )


def _matches_detail(message: Message, wanted: MessageFilter) -> bool:
    detail = message.detail
    if wanted.message_type is not None and detail.message_type != wanted.message_type:
        return False
    if wanted.reason is not None and (
        detail.poisoning is None or detail.poisoning.reason != wanted.reason
    ):
        return False
    return wanted.error is None or _matches_error(message, wanted.error)


def _matches_error(message: Message, wanted: str) -> bool:
    attempt = last_error(message)
    if attempt is None or attempt.error is None:
        return False
    error = attempt.error
    return wanted in (error.type, error.fingerprint) or wanted.casefold() in error.text.casefold()


def _matches_body(body: bytes, wanted: MessageFilter) -> bool:
    plain = _decoded_base64(body)
    forms = (body,) if plain is None else (body, plain)
    if wanted.text is not None and not any(_holds_text(form, wanted.text) for form in forms):
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
