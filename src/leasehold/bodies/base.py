"""What the engine asks of a place for large bodies.

A body is written once, under a key that is never used again, read as often as wanted, and removed.
Nobody else decides what is in use: that is known to the store of messages alone.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Sequence
from typing import Final, NamedTuple, Protocol

KEY_BYTES: Final = 16
"""Random bytes of a key, written in hexadecimal: nobody can guess one, and none comes twice."""

_KEY: Final = re.compile(rf"[0-9a-f]{{{2 * KEY_BYTES}}}")


class BodyMissing(Exception):
    """Nothing is kept under the key."""

    def __init__(self, key: str) -> None:
        super().__init__(f"no body is kept under {key}")
        self.key = key


class KeptBody(NamedTuple):
    """What a list of bodies says of one."""

    key: str
    modified_at_ms: int
    """When it was written, Unix milliseconds, by the clock of whoever keeps it."""


class BodyStore(Protocol):
    """A place for large bodies. It lives in one event loop and does not hold it up.

    Every method may raise :class:`~leasehold.domain.errors.Unavailable`: the place cannot be
    reached, or failed; its cause says more.
    """

    @property
    def place(self) -> str:
        """Return where the bodies are, for people."""
        ...

    async def put(self, key: str, data: bytes) -> None:
        """Keep *data*; when this returns it survives a power cut. All of it is kept, or nothing.

        Raises:
            StoreFull: There is no room.
        """
        ...

    async def get(self, key: str) -> bytes:
        """Return what is kept under *key*.

        Raises:
            BodyMissing: Nothing is.
        """
        ...

    async def delete(self, key: str) -> None:
        """Remove what is kept under *key*; nothing is fine too."""
        ...

    def pages(self) -> AsyncIterator[Sequence[KeptBody]]:
        """Go over everything that is kept, page by page, in any order.

        What is put or removed meanwhile may or may not be among it.
        """
        ...

    async def close(self) -> None:
        """Give everything back; nothing may be asked any more."""
        ...


def is_key(text: str) -> bool:
    """Tell whether *text* has the form of a key."""
    return _KEY.fullmatch(text) is not None
