"""Large bodies are read on a thread, where they hold up nobody."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar

from leasehold.http.native.reading import MAX_SINGLE_BYTES

_T = TypeVar("_T")

_READING: Final = ThreadPoolExecutor(max_workers=1, thread_name_prefix="bodies")


async def apart(
    size: int, read: Callable[..., _T], *of: Any, at_once_bytes: int = MAX_SINGLE_BYTES
) -> _T:
    """Return ``read(*of)``; of more than *at_once_bytes* on the thread.

    One request after the other: each thread that works takes its share from the event loop.

    Args:
        size: Bytes of the body.
        read: What reads it. It must leave alone what the event loop uses meanwhile.
        of: What it is given.
        at_once_bytes: What can be read in a few milliseconds.
    """
    if size <= at_once_bytes:
        return read(*of)
    return await asyncio.get_running_loop().run_in_executor(_READING, read, *of)
