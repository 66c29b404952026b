"""Keys under which effects are remembered."""

from __future__ import annotations

import hashlib
from typing import Final
from urllib.parse import quote

MAX_KEY_LENGTH: Final = 200
"""Characters. Services take 255 for an Idempotency-Key, and Redis prefixes its keys; a longer key
is replaced by its SHA-256."""
_DIGEST_PREFIX: Final = "sha256:"


def join_key(*parts: str) -> str:
    """Return one key made of *parts*, a different one for different parts.

    It is printable ASCII without quotes and spaces. A part may be any text.
    """
    key = "/".join(quote(part, safe="-._~:@") for part in parts)
    if len(key) <= MAX_KEY_LENGTH:
        return key
    return _DIGEST_PREFIX + hashlib.sha256(key.encode()).hexdigest()
