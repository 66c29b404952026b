"""Threads that begin to count for their time before anybody goes on."""

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
