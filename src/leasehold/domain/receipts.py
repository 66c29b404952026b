"""Receipts: the tokens that prove a lease.

A receipt names one message (by row key) and one lease of it (by fence) and is sealed with a key
that never leaves the store, so nobody can make one up. It is 36 characters of ``[A-Za-z0-9_-]``,
safe in a URL without escaping: clients are known to mangle ``+`` and ``/``.

A receipt acts only while its fence equals the message's: equality is the safety device, time
plays no part in it.
"""

from __future__ import annotations

import binascii
import hashlib
import hmac
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import NamedTuple

from leasehold.domain.errors import ReceiptMalformed

KEY_BYTES = 32
RECEIPT_CHARS = 36
_HEAD_BYTES = 11  # row key 7, fence 4
_SEAL_BYTES = 16  # 128 bits


class ReceiptParts(NamedTuple):
    """What a well-formed receipt says; *genuine* tells whether this store has issued it."""

    row_key: int
    fence: int
    genuine: bool


def issue_receipt(key: bytes, row_key: int, fence: int) -> str:
    """Return the receipt of lease number *fence* of the message in row *row_key*."""
    head = row_key.to_bytes(7, "big") + fence.to_bytes(4, "big")
    return urlsafe_b64encode(head + _seal(key, head)).decode("ascii")


def read_receipt(key: bytes, receipt: str) -> ReceiptParts:
    """Take *receipt* apart.

    Raises:
        ReceiptMalformed: It does not have the form of a receipt. A receipt of the right form that
            this store never issued is not malformed: it is merely not genuine, and can be one of
            a store since restored from a copy.
    """
    if len(receipt) != RECEIPT_CHARS:
        raise ReceiptMalformed(receipt)
    try:
        spelled = receipt.encode("ascii")
        raw = urlsafe_b64decode(spelled)
    except (UnicodeEncodeError, binascii.Error):
        raise ReceiptMalformed(receipt) from None
    if len(raw) != _HEAD_BYTES + _SEAL_BYTES or urlsafe_b64encode(raw) != spelled:
        # The decoder skips padding and translates some characters.
        raise ReceiptMalformed(receipt)
    row_key, fence = int.from_bytes(raw[:7], "big"), int.from_bytes(raw[7:11], "big")
    genuine = hmac.compare_digest(_seal(key, raw[:_HEAD_BYTES]), raw[_HEAD_BYTES:])
    return ReceiptParts(row_key, fence, genuine)


def _seal(key: bytes, head: bytes) -> bytes:
    return hashlib.blake2s(head, digest_size=_SEAL_BYTES, key=key).digest()
