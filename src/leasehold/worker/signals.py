"""SIGINT and SIGTERM as a wish to stop."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def stopping_on_signals(stop: Callable[[int], None]) -> Iterator[None]:
    """Have *stop* called with 1 at the first such signal, with 2 at the second, and so on.

    It is called in a thread of its own, since a signal may come while the main thread holds a lock.
    Only the main thread can receive signals: in others this does nothing. The handlers that were
    there before come back at the end.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    count = 0

    def heard(_number: int, _frame: FrameType | None) -> None:
        nonlocal count
        count += 1
        threading.Thread(target=stop, args=(count,), name="leasehold-signal", daemon=True).start()

    before: dict[signal.Signals, Any] = {each: signal.signal(each, heard) for each in _SIGNALS}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
