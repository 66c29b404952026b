"""A body store in a dictionary, which fails, stalls and forgets when a test says so."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

from leasehold.bodies import BodyMissing, KeptBody
from leasehold.testing import ManualClock


class FaultyBodies:
    """See BodyStore. Lives as long as the test: an engine that is dropped leaves it behind."""

    def __init__(self, clock: ManualClock) -> None:
        self.place = "a dictionary"
        self.kept: dict[str, bytes] = {}
        self.written_at_ms: dict[str, int] = {}
        self.closed = False
        self.mark: str | None = None
        self.mark_error: Exception | None = None
        self.mark_gate: asyncio.Event | None = None
        """Looks at the mark wait until the test opens it."""
        self.asked: list[str] = []
        """What was asked of it: the verb and the key."""
        self.put_errors: list[Exception | None] = []
        """Raised by the next puts, one each; None lets one pass."""
        self.get_error: Exception | None = None
        self.delete_error: Exception | None = None
        self.gate: asyncio.Event | None = None
        """Puts and gets wait until the test opens it."""
        self.put_gate: asyncio.Event | None = None
        """Puts wait at it once they have written."""
        self.waiting = 0
        """How many stand at the gate."""
        self._clock = clock

    async def put(self, key: str, data: bytes) -> None:
        """See BodyStore."""
        self.asked.append(f"put {key}")
        await self._pass()
        error = self.put_errors.pop(0) if self.put_errors else None
        if error is not None:
            raise error
        assert key not in self.kept, "a key was used twice"
        self.kept[key] = data
        self.written_at_ms[key] = self._clock.now_ms()
        if self.put_gate is not None:
            await self.put_gate.wait()

    async def get(self, key: str) -> bytes:
        """See BodyStore."""
        self.asked.append(f"get {key}")
        await self._pass()
        if self.get_error is not None:
            raise self.get_error
        if key not in self.kept:
            raise BodyMissing(key)
        return self.kept[key]

    async def delete(self, key: str) -> None:
        """See BodyStore."""
        self.asked.append(f"delete {key}")
        if self.delete_error is not None:
            raise self.delete_error
        self.kept.pop(key, None)

    async def read_mark(self) -> str | None:
        """See BodyStore."""
        if self.mark_gate is not None:
            await self.mark_gate.wait()
        return self.mark

    async def write_mark(self, mark: str) -> None:
        """See BodyStore."""
        if self.mark_error is not None:
            raise self.mark_error
        self.mark = mark

    async def pages(self) -> AsyncIterator[Sequence[KeptBody]]:
        """See BodyStore: pages of two."""
        keys = sorted(self.kept)
        for start in range(0, len(keys), 2):
            yield [KeptBody(key, self.written_at_ms[key]) for key in keys[start : start + 2]]

    async def close(self) -> None:
        """See BodyStore."""
        self.closed = True

    def count(self, verb: str) -> int:
        """Return how often something was asked."""
        return sum(each.startswith(verb) for each in self.asked)

    async def _pass(self) -> None:
        if self.gate is not None:
            self.waiting += 1
            await self.gate.wait()
            self.waiting -= 1
