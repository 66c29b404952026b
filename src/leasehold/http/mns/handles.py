"""Ids and receipt handles as this protocol has them.

A message id is 32 hexadecimal digits in upper case: ours without its dashes. A receipt handle names
the message as well as the lease, because nothing else in a request does: ``{MessageId}-{receipt}``.
It is made of ``[A-Za-z0-9_-]``, as some clients put it into an address as it is.
"""

from __future__ import annotations

import re
from typing import Final

from leasehold.domain.errors import ReceiptMalformed
from leasehold.domain.receipts import RECEIPT_CHARS

_ID_CHARS: Final = 32
_HANDLE: Final = re.compile(rf"[0-9A-F]{{{_ID_CHARS}}}-[A-Za-z0-9_-]{{{RECEIPT_CHARS}}}")


def wire_id(message_id: str) -> str:
    """Return a message id in the form of this protocol."""
    return message_id.replace("-", "").upper()


def make_handle(message_id: str, receipt: str) -> str:
    """Return the handle of a lease."""
    return f"{wire_id(message_id)}-{receipt}"


def read_handle(handle: str) -> tuple[str, str]:
    """Return the message id and the receipt that a handle is made of.

    Raises:
        ReceiptMalformed: It is of another form.
    """
    if _HANDLE.fullmatch(handle) is None:
        raise ReceiptMalformed(handle)
    digits = handle[:_ID_CHARS].lower()
    message_id = f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"
    return message_id, handle[_ID_CHARS + 1 :]
