"""Large bodies copied from one place to another, each compared with what its message says of it."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from leasehold.bodies.base import BodyMissing, BodyStore
from leasehold.domain.model import BodyRef

AT_ONCE: Final = 8
"""Bodies that are read at the same time."""
MISSING: Final = "missing"
CORRUPT: Final = "corrupt"

Progress = Callable[[int, int], None]
"""Called with how many bodies are done, and of how many."""


class BadBody(NamedTuple):
    """A body that is not as its message says."""

    key: str
    problem: str
    """``missing`` or ``corrupt``."""
    sha256: str | None
    """Of what is there instead, in hexadecimal."""


def digest(body: bytes) -> str:
    """Return the SHA-256 of a body in hexadecimal. Some milliseconds a MiB: not for the loop."""
    return hashlib.sha256(body).hexdigest()


async def check_bodies(
    refs: Sequence[BodyRef], source: BodyStore, progress: Progress
) -> list[BadBody]:
    """Read bodies, and return those that are not as their messages say.

    Raises:
        Unavailable: The place cannot be reached.
    """
    return await _visit(refs, source, None, progress)


async def copy_bodies(
    refs: Sequence[BodyRef], source: BodyStore, target: BodyStore, progress: Progress
) -> list[BadBody]:
    """Copy bodies, and return those that are not as their messages say.

    A corrupt body is copied as it is: part of it may be of use.

    Raises:
        Unavailable: A place cannot be reached.
        StoreFull: There is no room at the target.
    """
    return await _visit(refs, source, target, progress)


async def _visit(
    refs: Sequence[BodyRef], source: BodyStore, target: BodyStore | None, progress: Progress
) -> list[BadBody]:
    bad: list[BadBody] = []

    async def visit(ref: BodyRef) -> None:
        try:
            body = await source.get(ref.key)
        except BodyMissing:
            bad.append(BadBody(ref.key, MISSING, None))
            return
        sha256 = await asyncio.to_thread(digest, body)
        if len(body) != ref.size_bytes or sha256 != ref.sha256:
            bad.append(BadBody(ref.key, CORRUPT, sha256))
        if target is not None:
            await target.put(ref.key, body)

    for start in range(0, len(refs), AT_ONCE):
        part = refs[start : start + AT_ONCE]
        await asyncio.gather(*map(visit, part))
        progress(start + len(part), len(refs))
    return sorted(bad)
