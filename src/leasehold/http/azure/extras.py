"""What this server takes and tells beyond the protocol, in headers that old clients never send.

Their names begin with ``x-ms-``, so that SharedKey signatures cover them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final
from urllib.parse import quote

from leasehold.domain.limits import check_range
from leasehold.domain.oversight import MessageFilter
from leasehold.domain.types import (
    DEFAULT_PRIORITY,
    NO_DETAIL,
    CancelRequest,
    Detail,
    MessageState,
)
from leasehold.http.azure.errors import invalid_header
from leasehold.http.azure.parameters import whole_number

DEDUP_KEY: Final = "x-ms-leasehold-dedup-key"
MESSAGE_TYPE: Final = "x-ms-leasehold-type"
PRIORITY: Final = "x-ms-leasehold-priority"
PROPERTIES: Final = "x-ms-leasehold-properties"
HOLDER: Final = "x-ms-leasehold-holder"
SESSION: Final = "x-ms-leasehold-session"
CANCEL: Final = b"x-ms-leasehold-cancel"
NO_REASON: Final = b"true"
"""What :data:`CANCEL` says if no reason was given."""
TRACEPARENT: Final = "traceparent"
DUPLICATE: Final = (b"x-ms-leasehold-duplicate", b"true")
NEXT_MARKER: Final = b"x-ms-leasehold-next-marker"
PRIORITIES: Final = (1, 16)
"""As in MNS, 1 being the most urgent."""

WAITING: Final = MessageFilter(
    states=frozenset(
        {
            MessageState.VISIBLE,
            MessageState.LEASED,
            MessageState.DELAYED,
            MessageState.DEFERRED,
            MessageState.EXPIRED,
        }
    )
)
"""What ``include=invisible`` lists: all that the queue itself holds."""

_EXTRAS: Final = (TRACEPARENT, DEDUP_KEY, MESSAGE_TYPE, PRIORITY, PROPERTIES)
_MAX_CHARS: Final = 1024
_MAX_PROPERTIES_CHARS: Final = 8192


def read_extras(headers: Mapping[str, str]) -> tuple[Detail, int]:
    """Return what a Put Message sends along with the body, and its priority.

    Raises:
        Fault: A header is too long, or the properties are not a JSON object of strings.
        OutOfRange: The priority is not 1 to 16.
    """
    for name in _EXTRAS:
        if name in headers:
            break
    else:
        return NO_DETAIL, DEFAULT_PRIORITY
    priority = headers.get(PRIORITY)
    level = DEFAULT_PRIORITY
    if priority:
        level = whole_number(PRIORITY, priority)
        check_range(PRIORITY, level, PRIORITIES)
    detail = Detail(
        properties=_properties(headers.get(PROPERTIES)),
        message_type=_short(headers, MESSAGE_TYPE),
        traceparent=_short(headers, TRACEPARENT),
        dedup_key=_short(headers, DEDUP_KEY),
    )
    return NO_DETAIL if detail == NO_DETAIL else detail, level


def read_holder(headers: Mapping[str, str]) -> str | None:
    """Return the name that who gets messages gives itself, None if it gives none.

    Raises:
        Fault: It is too long.
    """
    return _short(headers, HOLDER)


def read_session(headers: Mapping[str, str]) -> str | None:
    """Return the id of the session that what is received belongs to, None for none.

    Raises:
        Fault: It is too long.
    """
    return _short(headers, SESSION)


def cancel_header(request: CancelRequest) -> tuple[bytes, bytes]:
    """Return the header that tells a worker to stop, and why; the reason is percent-encoded."""
    if not request.reason:
        return CANCEL, NO_REASON
    return CANCEL, quote(request.reason, safe="", errors="replace").encode()


def _short(headers: Mapping[str, str], name: str) -> str | None:
    text = headers.get(name)
    if text is not None and len(text) > _MAX_CHARS:
        raise invalid_header(name, text[:_MAX_CHARS])
    return text or None


def _properties(text: str | None) -> dict[str, str]:
    if not text:
        return {}
    try:
        found = json.loads(text) if len(text) <= _MAX_PROPERTIES_CHARS else None
        json.dumps(found, ensure_ascii=False).encode()  # half a surrogate pair is no text
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or not all(isinstance(each, str) for each in found.values()):
        raise invalid_header(PROPERTIES, text[:_MAX_CHARS])
    return found
