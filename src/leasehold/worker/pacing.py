"""Threads of a worker: their time knows them from the start, and some of them do rounds."""

from __future__ import annotations

import threading
from collections.abc import Callable

from leasehold.worker.timing import Time


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
