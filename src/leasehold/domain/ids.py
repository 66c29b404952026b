"""Message ids: UUIDs that carry the key of their row.

An id is a UUID of version 8 (RFC 9562, section 5.8): 48 bits of row key, then 74 random bits. A
look-up by id therefore needs no index of its own, which would cost every put and every delete a
tree operation. Row keys rise and are never used twice in a store.
"""

from __future__ import annotations

import re

ENTROPY_BYTES = 10
MAX_ROW_KEY = (1 << 48) - 1

_CANONICAL = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-8[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")


def make_message_id(row_key: int, entropy: bytes) -> str:
    """Return the id of the message in row *row_key* (1 to 2**48 - 1), with 10 random bytes."""
    # 12 of the 80 random bits after the version, 62 after the variant; six are left over.
    drawn = int.from_bytes(entropy, "big")
    high = 0x8000 | (drawn >> 68)
    low = 0x8000_0000_0000_0000 | (drawn & 0x3FFF_FFFF_FFFF_FFFF)
    text = f"{row_key:012x}{high:04x}{low:016x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def row_key_of(message_id: str) -> int | None:
    """Return the row key inside *message_id*, or None when it is not an id of ours."""
    if _CANONICAL.fullmatch(message_id) is None:
        return None
    return int(message_id[:8] + message_id[9:13], 16)
