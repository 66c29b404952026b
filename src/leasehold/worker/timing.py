"""Time as the worker library sees it: always monotonic, so that no clock fault moves a deadline."""

from __future__ import annotations

import threading
from collections.abc import Callable
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


# --- pacing ------------------------------------------------------------------------------------
#
# Threads of a worker: their time knows them from the start, and some of them do rounds.


def start_thread(name: str, time: Time, run: Callable[[], object]) -> threading.Thread:
    """Start a thread, and return once *time* knows it, so that no moment passes it by.

    Raises:
        RuntimeError: The system has no more threads.
    """
    is_known = threading.Event()

    def begin() -> None:
        condition = threading.Condition()
        with condition:
            time.wait(condition, 0)
        is_known.set()
        run()

    thread = threading.Thread(target=begin, name=name, daemon=True)
    thread.start()
    is_known.wait()
    return thread


class Rounds:
    """A thread that does something at intervals, until it is closed.

    Args:
        name: Of the thread.
        time: That it goes by.
        interval_s: From one round to the next.
    """

    def __init__(self, name: str, time: Time, interval_s: float) -> None:
        self._name = name
        self._time = time
        self._interval_s = interval_s
        self._changed = threading.Condition()
        self._is_closed = False
        self._thread: threading.Thread | None = None

    def start(self, run: Callable[[], object]) -> None:
        """Begin; *run* is to go on as long as :meth:`wait` says so."""
        self._thread = start_thread(self._name, self._time, run)

    def close(self) -> None:
        """Have the thread end, and wait for that."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()

    def wait(self) -> bool:
        """Wait for an interval; False: it is the end."""
        end_s = self._time.monotonic_s() + self._interval_s
        with self._changed:
            while not self._is_closed and (left_s := end_s - self._time.monotonic_s()) > 0:
                self._time.wait(self._changed, left_s)
            return not self._is_closed
