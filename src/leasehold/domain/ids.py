"""Message ids: UUIDs that carry the key of their row.

An id is a UUID of version 8 (RFC 9562, section 5.8): 48 bits of row key, then 74 random bits. A
look-up by id therefore needs no index of its own, which would cost every put and every delete a
tree operation. Row keys rise and are never used twice in a store.
"""

from __future__ import annotations

import re
from typing import Final

ENTROPY_BYTES = 10
MAX_ROW_KEY = (1 << 48) - 1

_BITS: Final = (8 << 76) | (2 << 62)
"""Version 8, and the variant of RFC 9562."""
_DRAWN: Final = (1 << 80) - 1 - (0xF << 76) - (3 << 62)
_CANONICAL = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-8[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")


def make_message_id(row_key: int, entropy: bytes) -> str:
    """Return the id of the message in row *row_key* (1 to 2**48 - 1), with 10 random bytes."""
    return id_from_blob(make_id_blob(row_key, entropy))


def make_id_blob(row_key: int, entropy: bytes) -> bytes:
    """Return the 16 bytes of the id of the message in row *row_key*."""
    # Six of the random bits give way to the version and the variant.
    drawn = int.from_bytes(entropy, "big") & _DRAWN
    return (row_key << 80 | drawn | _BITS).to_bytes(16, "big")


def id_from_blob(blob: bytes) -> str:
    """Return an id of 16 bytes as text."""
    text = blob.hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def id_to_blob(message_id: str) -> bytes:
    """Return an id as 16 bytes.

    Raises:
        ValueError: It is not spelled as an id is: lower case, with dashes.
    """
    blob = bytes.fromhex(message_id.replace("-", ""))
    if id_from_blob(blob) != message_id:
        raise ValueError(message_id)
    return blob


def row_key_of(message_id: str) -> int | None:
    """Return the row key inside *message_id*, or None when it is not an id of ours."""
    if _CANONICAL.fullmatch(message_id) is None:
        return None
    return int(message_id[:8] + message_id[9:13], 16)
