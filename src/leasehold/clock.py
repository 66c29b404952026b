"""The only module that reads the system's clocks.

Within a process time advances by the boot clock (which counts suspension): somebody setting the
wall clock while the server runs can neither end leases nor expire messages.
"""

from __future__ import annotations

import time
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
