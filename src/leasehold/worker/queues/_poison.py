"""What a copy in a poison queue says about the message, where a service has no place for it.

The copy is a JSON object around the text that the message had, which people and any SDK can read::

    {"leasehold.poison": 1, "id": "...", "queue": "orders", "reason": "no such customer",
     "type": "ValueError", "dequeue_count": 5, "inserted_at_ms": 1767225600000, "text": "..."}

The id is that of the message in its own queue. Whoever buries a message copies it first and deletes
it then; who dies in between leaves a message that is buried again, so that two copies with one id
are the same message. A text that is base64 of something that is no text is in ``base64``.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from leasehold.worker.queues.protocol import Delivery, Fault

MARKER: Final = "leasehold.poison"
VERSION: Final = 1
SUFFIX: Final = "-poison"
ORIGINAL_ID: Final = "original-id"
"""Name of the property by which two copies of a message can be told."""

_LONGEST_IN_AZURE: Final = 63
_LONGEST: Final = 256
_MAX_REASON: Final = 1024
# https://www.w3.org/TR/xml/#charsets; what is below U+0020 JSON escapes by itself.
_NOT_IN_XML: Final = re.compile("[\ud800-\udfff\ufffe\uffff]")


@dataclass(frozen=True, slots=True)
class Unwrapped:
    """A copy, taken apart."""

    content: bytes
    is_text: bool
    properties: Mapping[str, str]


def poison_name(queue: str) -> str:
    """Return the name of a queue's poison queue, as Azure Functions has it.

    A name that leaves no room for the suffix is cut, as the server does.
    """
    longest = _LONGEST_IN_AZURE if len(queue) <= _LONGEST_IN_AZURE else _LONGEST
    room = longest - len(SUFFIX)
    if len(queue) <= room:
        return f"{queue}{SUFFIX}"
    name = queue[:room].rstrip("-") + SUFFIX
    return name if name != queue else queue[: -len(SUFFIX) - 1].rstrip("-") + SUFFIX


def is_poison_name(queue: str) -> bool:
    """Return whether copies are to be expected in a queue."""
    return queue.endswith(SUFFIX)


def wrap_poison(text: str, delivery: Delivery, fault: Fault, *, is_base64: bool = False) -> str:
    """Return the text of the copy.

    Args:
        text: What the message was.
        delivery: The message.
        fault: Why it is buried; the first 1,024 characters are kept.
        is_base64: Whether *text* is base64 of something that is no text.
    """
    members: dict[str, Any] = {
        MARKER: VERSION,
        "id": delivery.message_id,
        "queue": delivery.queue,
        "reason": fault.text[:_MAX_REASON],
        "type": fault.type,
        "dequeue_count": delivery.dequeue_count,
        "inserted_at_ms": delivery.inserted_at_ms,
        "base64" if is_base64 else "text": text,
    }
    given = {name: value for name, value in members.items() if value is not None}
    copy = json.dumps(given, ensure_ascii=False)
    return json.dumps(given) if _NOT_IN_XML.search(copy) else copy


def unwrap_poison(text: str) -> Unwrapped | None:
    """Return what a copy says; None if the text is no copy of our making."""
    if MARKER not in text:
        return None
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or found.get(MARKER) != VERSION:
        return None
    content = _content(found)
    if content is None:
        return None
    names = {
        "id": ORIGINAL_ID,
        "queue": "original-queue",
        "dequeue_count": "original-dequeue-count",
        "inserted_at_ms": "original-inserted-at-ms",
        "reason": "poison-reason",
        "type": "poison-type",
    }
    shown = {names[name]: str(found[name]) for name in names if name in found}
    return Unwrapped(content, "text" in found, shown)


def _content(found: Mapping[str, Any]) -> bytes | None:
    match found:
        case {"text": str(text)}:
            return text.encode("utf-8", "surrogatepass")
        case {"base64": str(text)}:
            try:
                return base64.b64decode(text, validate=True)
            except ValueError:
                return None
    return None
