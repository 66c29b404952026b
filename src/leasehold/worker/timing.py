"""Time as the worker library sees it: always monotonic, so that no clock fault moves a deadline."""

from __future__ import annotations

import threading
from typing import Protocol

from leasehold.clock import SystemClock


class Time(Protocol):
    """A clock, and how to wait by it."""

    def monotonic_s(self) -> float:
        """Return seconds since an arbitrary moment."""
        ...

    def wait(self, condition: threading.Condition, timeout_s: float | None) -> None:
        """Wait until notified, or until *timeout_s* have passed; None: only until notified.

        The caller holds the condition, and looks itself at what it waits for: waits may also end
        for no reason.
        """
        ...


class SystemTime:
    """The time of the machine."""

    def __init__(self) -> None:
        self._clock = SystemClock()

    def monotonic_s(self) -> float:
        """See :class:`Time`."""
        return self._clock.monotonic_s()

    def wait(self, condition: threading.Condition, timeout_s: float | None) -> None:
        """See :class:`Time`."""
        condition.wait(timeout_s)


class ScaledTime:
    """Time that runs faster or slower than that of the machine, for rehearsals.

    Args:
        factor: Seconds that pass in each second of the machine, above 0.
    """

    def __init__(self, factor: float) -> None:
        if factor <= 0:
            raise ValueError(f"factor is {factor}; it must be above 0")
        self._factor = factor
        self._clock = SystemClock()

    def monotonic_s(self) -> float:
        """See :class:`Time`."""
        return self._clock.monotonic_s() * self._factor

    def wait(self, condition: threading.Condition, timeout_s: float | None) -> None:
        """See :class:`Time`."""
        condition.wait(None if timeout_s is None else timeout_s / self._factor)
