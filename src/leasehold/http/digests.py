"""Digests of bodies, which for large ones take long enough to be somebody else's work."""

from __future__ import annotations

import asyncio
import hashlib
from typing import Final

_AT_ONCE_BYTES: Final = 262_144
"""Half a millisecond; more goes to a thread, as the library lets others run meanwhile."""


async def md5_of(body: bytes) -> bytes:
    """Return the MD5 of a body."""
    if len(body) <= _AT_ONCE_BYTES:
        return hashlib.md5(body, usedforsecurity=False).digest()
    digest = await asyncio.to_thread(hashlib.md5, body, usedforsecurity=False)
    return digest.digest()
