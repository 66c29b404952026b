"""The rules of visibility: pure functions of (message, request, now).

These are the product. The memory store is built from them, the SQL stores are compared with it,
and nothing else decides who may receive or act on a message.

Sources: Azure Queue Storage, "Get Messages", "Update Message" and "Delete Message"; the reasons
for popping by next-visible time stand in ``docs/explanation/visibility.md``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from leasehold.domain.errors import LeaseholdError, LeaseLost, VisibilityPastExpiry
from leasehold.domain.receipts import ReceiptParts
from leasehold.domain.types import NEVER_MS, LapsedReceipts, Message, MessageState

_MS: Final = 1000


def expiry_of(now_ms: int, time_to_live_s: int | None) -> int:
    """Return when a message put now expires; None as time to live means never."""
    if time_to_live_s is None:
        return NEVER_MS
    return min(now_ms + time_to_live_s * _MS, NEVER_MS)


def state_of(message: Message, now_ms: int) -> MessageState:
    """Say why the message can, or cannot, be received now. Expiry wins over everything."""
    if is_expired(message, now_ms):
        return MessageState.EXPIRED
    if message.visible_at_ms <= now_ms:
        return MessageState.VISIBLE
    return MessageState.LEASED if message.dequeue_count else MessageState.DELAYED


def is_expired(message: Message, now_ms: int) -> bool:
    """Tell whether its time to live has run out, leased or not."""
    return message.expires_at_ms <= now_ms


def is_receivable(message: Message, now_ms: int) -> bool:
    """Tell whether a receive may take the message now."""
    return message.visible_at_ms <= now_ms < message.expires_at_ms


def receive_order(message: Message, row_key: int) -> tuple[int, int]:
    """Return the sort key of messages to receive: next-visible time first, then age.

    By id instead, a queue whose workers were away for a while would go on redelivering the same
    old messages and never recover.
    """
    return message.visible_at_ms, row_key


def put_refusal(now_ms: int, delay_s: int, expires_at_ms: int) -> LeaseholdError | None:
    """Refuse a message that would expire before it can be received even once."""
    if now_ms + delay_s * _MS >= expires_at_ms:
        return VisibilityPastExpiry("put", delay_s)
    return None


def after_receive(message: Message, now_ms: int, visibility_timeout_s: int) -> Message:
    """Lease it: invisible for a while, one more delivery, the next fence.

    The lease may end after the message expires.
    """
    return replace(
        message,
        visible_at_ms=now_ms + visibility_timeout_s * _MS,
        dequeue_count=message.dequeue_count + 1,
        fence=message.fence + 1,
    )


def after_renew(
    message: Message, now_ms: int, visibility_timeout_s: int, body: bytes | None
) -> Message:
    """Move the end of the lease; a new fence kills the old receipt. Expiry and count stay."""
    return replace(
        message,
        visible_at_ms=now_ms + visibility_timeout_s * _MS,
        fence=message.fence + 1,
        body=message.body if body is None else body,
    )


def renew_refusal(
    message: Message, now_ms: int, visibility_timeout_s: int
) -> LeaseholdError | None:
    """Refuse a renewal that would hide the message until after it has expired."""
    if now_ms + visibility_timeout_s * _MS > message.expires_at_ms:
        return VisibilityPastExpiry("renew", visibility_timeout_s)
    return None


def receipt_refusal(
    message: Message, row_key: int, receipt: ReceiptParts, now_ms: int, rule: LapsedReceipts
) -> LeaseholdError | None:
    """Say why a receipt may not act on a live message, or None if it may."""
    if not receipt.genuine or receipt.row_key != row_key:
        return LeaseLost("foreign")
    if receipt.fence != message.fence:
        return LeaseLost("superseded")
    if rule is LapsedReceipts.STRICT and message.visible_at_ms <= now_ms:
        return LeaseLost("lapsed")
    return None
