"""The only module that reads the system's clocks.

Within a process time advances by the boot clock (which counts suspension): somebody setting the
wall clock while the server runs can neither end leases nor expire messages.
"""

from __future__ import annotations

import asyncio
import heapq
import time
from collections.abc import Callable
from itertools import count
from typing import Protocol


class Clock(Protocol):
    """Where the engine gets its time from."""

    def now_ms(self) -> int:
        """Return the time of day as Unix milliseconds; never goes back within a process."""
        ...

    def monotonic_s(self) -> float:
        """Return seconds since an arbitrary moment, for deadlines and durations."""
        ...

    def wall_drift_s(self) -> float:
        """Return how far the wall clock has been moved against this one since the start."""
        ...


class Timer(Protocol):
    """A callback that waits for its moment; what asyncio calls a handle is one."""

    def cancel(self) -> None:
        """Do not call back. Harmless at any time."""
        ...


class Timers(Protocol):
    """What calls back when time has passed. To be used in the event loop only."""

    def call_later(self, delay_s: float, callback: Callable[[], object]) -> Timer:
        """Call *callback* once, *delay_s* seconds from now; not before this has returned."""
        ...

    async def sleep(self, delay_s: float) -> None:
        """Wait for *delay_s* seconds; with 0 let others run first."""
        ...


class SystemClock:
    """Wall clock at the start, boot clock from then on."""

    def __init__(self) -> None:
        self._base_ns = time.time_ns() - time.clock_gettime_ns(time.CLOCK_BOOTTIME)  # noqa: TID251

    def now_ms(self) -> int:
        """See :class:`Clock`."""
        return (self._base_ns + time.clock_gettime_ns(time.CLOCK_BOOTTIME)) // 1_000_000

    def monotonic_s(self) -> float:
        """See :class:`Clock`."""
        return time.monotonic()

    def wall_drift_s(self) -> float:
        """See :class:`Clock`."""
        own_ns = self._base_ns + time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        return (time.time_ns() - own_ns) / 1e9  # noqa: TID251


class LoopTimers:
    """The timers of the event loop that runs."""

    def call_later(self, delay_s: float, callback: Callable[[], object]) -> Timer:
        """See :class:`Timers`."""
        return asyncio.get_running_loop().call_later(delay_s, callback)

    async def sleep(self, delay_s: float) -> None:
        """See :class:`Timers`."""
        await asyncio.sleep(delay_s)


class VirtualClock:
    """A clock, and the timers that go with it, that stand still until somebody moves them.

    It counts in whole milliseconds, and belongs to one event loop, or to one thread where nobody
    uses the timers.

    Args:
        start_ms: What it shows at first, Unix milliseconds.
    """

    def __init__(self, start_ms: int) -> None:
        self._start_ms = start_ms
        self._now_ms = start_ms
        self._timers: list[tuple[int, int, _VirtualTimer]] = []
        self._numbers = count()

    def now_ms(self) -> int:
        """Return the time it was set to."""
        return self._now_ms

    def monotonic_s(self) -> float:
        """Return the seconds that it was moved by so far."""
        return (self._now_ms - self._start_ms) / 1000

    def wall_drift_s(self) -> float:
        """Return 0: it has nothing to do with the wall clock."""
        return 0.0

    def advance(self, *, s: float = 0, ms: int = 0) -> None:
        """Let time pass, seconds and milliseconds together.

        What timers wait for is called one by one, each at its own moment, those set meanwhile
        included. With less than nothing the clock goes back, as wrong clocks do.
        """
        end_ms = self._now_ms + round(s * 1000) + ms
        while (due_ms := self.next_timer_ms()) is not None and due_ms <= end_ms:
            timer = heapq.heappop(self._timers)[2]
            self._now_ms = max(self._now_ms, due_ms)
            timer.callback()
        self._now_ms = end_ms

    def next_timer_ms(self) -> int | None:
        """Return when the next timer is due, Unix milliseconds; None if there is none."""
        timers = self._timers
        while timers and timers[0][2].is_cancelled:
            heapq.heappop(timers)
        return timers[0][0] if timers else None

    def call_later(self, delay_s: float, callback: Callable[[], object]) -> Timer:
        """See :class:`Timers`. Less than half a millisecond is no time."""
        delay_ms = round(delay_s * 1000)
        if delay_ms <= 0:
            return asyncio.get_running_loop().call_soon(callback)
        timer = _VirtualTimer(callback)
        heapq.heappush(self._timers, (self._now_ms + delay_ms, next(self._numbers), timer))
        return timer

    async def sleep(self, delay_s: float) -> None:
        """See :class:`Timers`."""
        over = asyncio.Event()
        timer = self.call_later(delay_s, over.set)
        try:
            await over.wait()
        finally:
            timer.cancel()


class _VirtualTimer:
    """A timer of a :class:`VirtualClock`."""

    __slots__ = ("callback", "is_cancelled")

    def __init__(self, callback: Callable[[], object]) -> None:
        self.callback = callback
        self.is_cancelled = False

    def cancel(self) -> None:
        """See :class:`Timer`."""
        self.is_cancelled = True
