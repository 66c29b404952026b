"""A history in memory, for tests and for programs of one process that may forget at its end."""

from __future__ import annotations

import heapq
import threading
from dataclasses import replace

from leasehold.clock import Clock, SystemClock
from leasehold.worker.once.errors import Fenced
from leasehold.worker.once.protocol import (
    DEFAULT_WINDOW_S,
    SWEEP_STEP,
    check_window,
    milliseconds,
)
from leasehold.worker.once.rules import Entry, Holder, may_begin, may_finish, newest_of

_SWEEP_AT_ONCE = 4
"""More than one step adds, so that what has expired grows less."""


class MemoryProcessed:
    """See :class:`~leasehold.worker.once.protocol.Processed`. Lives as long as the process.

    Args:
        window_s: How long a key is remembered, in seconds, above 0.
        clock: That the window is measured by.
    """

    def __init__(self, window_s: float = DEFAULT_WINDOW_S, *, clock: Clock | None = None) -> None:
        self.window_s = check_window(window_s)
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._entries: dict[str, Entry] = {}
        self._expiries: list[tuple[int, str]] = []

    def begin(self, key: str, holder: Holder, hold_s: float | None = None) -> Entry | None:
        """See :class:`~leasehold.worker.once.protocol.Processed`."""
        with self._lock:
            now_ms = self._clock.now_ms()
            self._sweep(now_ms, _SWEEP_AT_ONCE)
            entry = self._entries.get(key)
            if not may_begin(entry, holder, now_ms):
                return entry
            hold_ms = milliseconds(self.window_s if hold_s is None else hold_s)
            self._put(key, self._entry(holder, now_ms, held_until_ms=now_ms + hold_ms))
            return None

    def finish(self, key: str, holder: Holder, result: str | None) -> None:
        """See :class:`~leasehold.worker.once.protocol.Processed`."""
        with self._lock:
            now_ms = self._clock.now_ms()
            entry = self._entries.get(key)
            if not may_finish(entry, holder, now_ms):
                assert entry is not None
                raise Fenced(key, holder.fence, newest_of(entry, holder))
            done = self._entry(holder, now_ms, held_until_ms=now_ms)
            self._put(key, replace(done, is_done=True, result=result))

    def abandon(self, key: str, holder: Holder) -> None:
        """See :class:`~leasehold.worker.once.protocol.Processed`."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is not None and not entry.is_done and entry.run == holder.run:
                del self._entries[key]

    def look(self, key: str) -> Entry | None:
        """See :class:`~leasehold.worker.once.protocol.Processed`."""
        with self._lock:
            entry = self._entries.get(key)
            expired = entry is not None and entry.expires_at_ms <= self._clock.now_ms()
            return None if expired else entry

    def forget(self, key: str) -> bool:
        """See :class:`~leasehold.worker.once.protocol.Processed`."""
        with self._lock:
            return self._entries.pop(key, None) is not None

    def sweep(self, limit: int = SWEEP_STEP) -> int:
        """See :class:`~leasehold.worker.once.protocol.Processed`."""
        with self._lock:
            return self._sweep(self._clock.now_ms(), limit)

    def close(self) -> None:
        """See :class:`~leasehold.worker.once.protocol.Processed`."""

    def __len__(self) -> int:
        """How many keys are kept, expired ones included."""
        return len(self._entries)

    def _entry(self, holder: Holder, now_ms: int, *, held_until_ms: int) -> Entry:
        return Entry(
            source=holder.source,
            fence=holder.fence,
            run=holder.run,
            is_done=False,
            result=None,
            since_ms=now_ms,
            held_until_ms=held_until_ms,
            expires_at_ms=now_ms + milliseconds(self.window_s),
        )

    def _put(self, key: str, entry: Entry) -> None:
        self._entries[key] = entry
        heapq.heappush(self._expiries, (entry.expires_at_ms, key))

    def _sweep(self, now_ms: int, limit: int) -> int:
        """Go through the expiries; those of entries that were replaced since cost no step."""
        removed = 0
        while removed < limit and self._expiries and self._expiries[0][0] <= now_ms:
            expires_at_ms, key = heapq.heappop(self._expiries)
            entry = self._entries.get(key)
            if entry is not None and entry.expires_at_ms == expires_at_ms:
                del self._entries[key]
                removed += 1
        return removed
