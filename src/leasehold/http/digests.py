"""Digests of bodies, which for large ones take long enough to be somebody else's work."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from typing import Any, Final, TypeVar

_T = TypeVar("_T")

_AT_ONCE_BYTES: Final = 262_144
"""Half a millisecond; more goes to a thread, as the library lets others run meanwhile."""


async def md5_of(body: bytes) -> bytes:
    """Return the MD5 of a body."""
    return await digesting(len(body), _md5_of, body)


async def digesting(size: int, write: Callable[..., _T], *of: Any) -> _T:
    """Return ``write(*of)``, which takes digests of *size* bytes; of many on a thread."""
    if size <= _AT_ONCE_BYTES:
        return write(*of)
    return await asyncio.to_thread(write, *of)


def _md5_of(body: bytes) -> bytes:
    return hashlib.md5(body, usedforsecurity=False).digest()
