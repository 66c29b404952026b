"""Messages as JSON shows them: bodies, times, and what was sent along."""

from __future__ import annotations

from base64 import b64encode
from typing import Any, Final

import msgspec

from leasehold.domain.types import NEVER_MS, NO_DETAIL, Lease, Message
from leasehold.http.native.shapes import Peeked, Received


def expiry(expires_at_ms: int) -> int | None:
    """Return when a message expires, None for never."""
    return None if expires_at_ms >= NEVER_MS else expires_at_ms


def body_members(body: bytes) -> dict[str, str]:
    """Return the body as text, or as base64 if it is none."""
    try:
        return {"body": body.decode()}
    except UnicodeDecodeError:
        return {"body_base64": b64encode(body).decode("ascii")}


def shown_body(message: Message) -> dict[str, str]:
    """Return the body of a message, or why it is left out."""
    ref = message.detail.body_ref
    if ref is not None and ref.problem is not None:
        return {"body_problem": ref.problem}
    return body_members(message.body)


def received(lease: Lease) -> Received:
    """Return what a receive tells of a message."""
    message, receipt = lease
    expires_at_ms = message.expires_at_ms
    shown = Received(
        message.message_id,
        message.inserted_at_ms,
        None if expires_at_ms >= NEVER_MS else expires_at_ms,
        message.visible_at_ms,
        message.dequeue_count,
        message.fence,
        receipt,
        session=message.session,
    )
    _add_content(shown, message)
    saved = message.detail.saved
    if saved is not None:
        shown.saved = msgspec.Raw(saved)
    return shown


def peeked(message: Message) -> Peeked:
    """Return what a look at a message tells."""
    shown = Peeked(
        message.message_id,
        message.inserted_at_ms,
        expiry(message.expires_at_ms),
        message.visible_at_ms,
        message.dequeue_count,
    )
    ref = message.detail.body_ref
    if ref is not None and ref.problem is not None:
        shown.body_problem, shown.body_bytes = ref.problem, ref.size_bytes
    _add_content(shown, message)
    if shown.body_problem is not None:
        shown.body = None
    return shown


def _add_content(shown: Received | Peeked, message: Message) -> None:
    try:
        shown.body = message.body.decode()
    except UnicodeDecodeError:
        shown.body_base64 = b64encode(message.body).decode("ascii")
    shown.priority = message.priority
    detail = message.detail
    if detail is not NO_DETAIL:
        shown.type = detail.message_type
        shown.properties = dict(detail.properties) or None
        shown.traceparent = detail.traceparent
        shown.dedup_key = detail.dedup_key


SENT_ALONG: Final = ("type", "properties", "traceparent", "dedup_key")


def sent_along(message: Message) -> dict[str, Any]:
    """Return all that was sent along with a message, also what was not."""
    detail = message.detail
    values = (detail.message_type, detail.properties, detail.traceparent, detail.dedup_key)
    return dict(zip(SENT_ALONG, values, strict=True))
