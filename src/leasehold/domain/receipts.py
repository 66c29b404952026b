"""Receipts: the tokens that prove a lease.

A receipt names one message (by row key) and one lease of it (by fence) and is sealed with a key
that never leaves the store, so nobody can make one up. It is 36 characters of ``[A-Za-z0-9_-]``,
safe in a URL without escaping: clients are known to mangle ``+`` and ``/``.

A receipt acts only while its fence equals the message's: equality is the safety device, time
plays no part in it. The one exception changes nothing but the end of the same lease; see
:func:`leasehold.domain.visibility.is_repeat`.
"""

from __future__ import annotations

import hashlib
import hmac
from binascii import Error as BinasciiError
from binascii import a2b_base64, b2a_base64
from functools import lru_cache
from typing import Any, Final, NamedTuple

from leasehold.domain.errors import ReceiptMalformed

KEY_BYTES = 32
RECEIPT_CHARS = 36
_HEAD_BYTES = 11  # row key 7, fence 4
_HEAD_CHARS = 16  # of which the last one belongs to the seal in part
_SEAL_BYTES = 16  # 128 bits
_FENCE_BITS = 32
_FENCE_MASK: Final = (1 << _FENCE_BITS) - 1
_TO_URL: Final = bytes.maketrans(b"+/", b"-_")
_FROM_URL: Final = str.maketrans("-_", "+/")


class ReceiptParts(NamedTuple):
    """What a well-formed receipt says; *genuine* tells whether this store has issued it."""

    row_key: int
    fence: int
    genuine: bool


def issue_receipt(key: bytes, row_key: int, fence: int) -> str:
    """Return the receipt of lease number *fence* of the message in row *row_key*."""
    head = (row_key << _FENCE_BITS | fence).to_bytes(_HEAD_BYTES, "big")
    seal = _sealer(key).copy()  # with the key worked in already, which is half of the work
    seal.update(head)
    return b2a_base64(head + seal.digest(), newline=False).translate(_TO_URL).decode("ascii")


def read_receipt(key: bytes, receipt: str) -> ReceiptParts:
    """Take *receipt* apart.

    Raises:
        ReceiptMalformed: It does not have the form of a receipt. A receipt of the right form that
            this store never issued is not malformed: it is merely not genuine, and can be one of
            a store since restored from a copy.
    """
    if len(receipt) != RECEIPT_CHARS or not receipt.isascii():
        raise ReceiptMalformed(receipt)
    try:
        head = a2b_base64(receipt[:_HEAD_CHARS].translate(_FROM_URL))[:_HEAD_BYTES]
    except BinasciiError:
        raise ReceiptMalformed(receipt) from None
    numbers = int.from_bytes(head, "big")
    row_key, fence = numbers >> _FENCE_BITS, numbers & _FENCE_MASK
    # The one that this store would have issued; that also settles whether it is spelled rightly.
    genuine = hmac.compare_digest(issue_receipt(key, row_key, fence), receipt)
    if not genuine:
        _check_form(receipt)
    return ReceiptParts(row_key, fence, genuine)


def _check_form(receipt: str) -> None:
    try:
        raw = a2b_base64(receipt.translate(_FROM_URL))
    except BinasciiError:
        raise ReceiptMalformed(receipt) from None
    # The decoder skips padding and what it does not know.
    spelled = b2a_base64(raw, newline=False).translate(_TO_URL).decode("ascii")
    if len(raw) != _HEAD_BYTES + _SEAL_BYTES or spelled != receipt:
        raise ReceiptMalformed(receipt)


@lru_cache(maxsize=8)
def _sealer(key: bytes) -> Any:
    return hashlib.blake2s(digest_size=_SEAL_BYTES, key=key)
