"""Forgetting old events in the store, by their age and by how much room they take.

What was exported, or need not be, goes when it is old. What was not exported yet goes only when
the log has no room left: when it is as large as it may be, or most of a disk that is full.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

from leasehold.domain import commands as c
from leasehold.domain.events import EventPage, Extent, LogExtent, ReadEvents, TrimEvents
from leasehold.engine.maintenance import Perform

FULL_DISK_SHARE: Final = 4
"""While the disk is full, the log may be one in so many parts of what the store has on it."""
SLICE_BATCHES: Final = 200
"""Batches that one step forgets, some milliseconds' worth."""


class Trimmed(NamedTuple):
    """Batches forgotten."""

    batches: int = 0
    unexported: int = 0
    """Of these, how many were still to be exported."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trimmer:
    """Trims one log.

    Args:
        perform: The engine's.
        rest: Lets others have their turn between two steps.
        retention_s: How long events are kept, in seconds.
        max_bytes: Most bytes of events.
    """

    perform: Perform
    rest: Callable[[], Awaitable[None]]
    retention_s: int
    max_bytes: int

    async def trim(self, now_ms: int, exported_seq: int | None, *, by_age: bool) -> Trimmed:
        """Forget what is too old or too much.

        Args:
            now_ms: The time, Unix milliseconds.
            exported_seq: Batches up to this number are exported; None if nothing has to be.
            by_age: Whether to go by age as well; not while the clock is doubted.
        """
        old = await self._by_age(now_ms, exported_seq) if by_age else 0
        exported, unexported = await self._by_size(exported_seq, self.max_bytes)
        return Trimmed(old + exported + unexported, unexported)

    async def give_way(self, exported_seq: int | None) -> Trimmed:
        """Forget the oldest events of a disk that is full, if the log is a large part of it.

        Without that, a log that has filled the disk would keep everything else from it for good.
        """
        extent = await self._extent()
        if not extent.store_bytes:
            return Trimmed()
        max_bytes = min(self.max_bytes, extent.store_bytes // FULL_DISK_SHARE)
        exported, unexported = await self._by_size(exported_seq, max_bytes)
        return Trimmed(exported + unexported, unexported)

    async def _by_age(self, now_ms: int, exported_seq: int | None) -> int:
        extent = await self._extent()
        before_ms = now_ms - self.retention_s * 1000
        if extent.oldest_at_ms is None or extent.oldest_at_ms >= before_ms:
            return 0
        upto_seq = await self._last_before(extent, before_ms)
        if exported_seq is not None:
            upto_seq = min(upto_seq, exported_seq)
        total = 0
        while True:
            count = await self._step(upto_seq, SLICE_BATCHES)
            total += count
            if count < SLICE_BATCHES:
                return total

    async def _last_before(self, extent: Extent, before_ms: int) -> int:
        """Return the number of the last batch before a moment, or less than that of the first."""
        low, high = extent.first_seq - 1, extent.last_seq
        while low < high:
            middle = (low + high) // 2
            page = await self.perform(ReadEvents(middle, 1))
            assert isinstance(page, EventPage)
            if page.events and page.events[0].at_ms < before_ms:
                low = page.events[0].seq
            else:
                high = middle
        return low

    async def _by_size(self, exported_seq: int | None, max_bytes: int) -> tuple[int, int]:
        """Forget the oldest batches; return how many of them were exported, and were not."""
        exported = unexported = 0
        while (extent := await self._extent()).bytes > max_bytes:
            kept = max(1, extent.last_seq - extent.first_seq + 1)
            share = (extent.bytes - max_bytes) * kept // extent.bytes
            limit = max(1, min(share, SLICE_BATCHES))
            if exported_seq is None or extent.first_seq <= exported_seq:
                count = await self._step(exported_seq or extent.last_seq, limit)
                exported += count
            else:
                count = await self._step(extent.last_seq, limit)
                unexported += count
            if not count:
                break
        return exported, unexported

    async def _extent(self) -> Extent:
        extent = await self.perform(LogExtent())
        assert isinstance(extent, Extent)
        return extent

    async def _step(self, upto_seq: int, limit: int) -> int:
        swept = await self.perform(TrimEvents(upto_seq, limit))
        assert isinstance(swept, c.Swept)
        await self.rest()
        return swept.count
