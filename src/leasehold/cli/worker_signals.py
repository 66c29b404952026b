"""What Ctrl+C and SIGTERM do to a worker."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final

from leasehold.cli.texts import length
from leasehold.worker.hooks import Hooks
from leasehold.worker.worker import Worker

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
_SIGNALLED: Final = 128
"""What shells add to the number of a signal for an exit code."""


class Stopping(Hooks):
    """Stops a worker that has it as a hook, each signal less patiently than the one before.

    The first lets handlers finish. The second does not wait for them. The third ends the process.

    Args:
        grace_s: How long handlers may go on after the first signal, in seconds.
        say: Tells people.
    """

    def __init__(self, grace_s: float, say: Callable[[str], None]) -> None:
        self._worker: Worker | None = None
        self._grace_s = grace_s
        self._say = say
        self._heard: list[int] = []
        self.on_stopped: Callable[[], object] = lambda: None
        """Called when the worker is at its end."""

    @property
    def was_asked(self) -> bool:
        """Whether a signal has come."""
        return bool(self._heard)

    @property
    def exit_code(self) -> int:
        """What the process should end with, as far as signals go."""
        return _SIGNALLED + self._heard[1] if len(self._heard) > 1 else 0

    def starting(self, worker: Worker) -> None:
        """See :class:`Hooks`. A signal may have come before there was anything to be stopped."""
        self._worker = worker
        if self.was_asked:
            worker.request_stop(self._grace_s)

    def stopped(self, worker: Worker) -> None:
        """See :class:`Hooks`."""
        del worker
        self.on_stopped()

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Listen to signals; for the main thread, elsewhere it does nothing."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before: dict[int, Any] = {each: signal.signal(each, self._hear) for each in _SIGNALS}
        try:
            yield
        finally:
            for each, handler in before.items():
                signal.signal(each, handler)

    def _hear(self, number: int, _frame: FrameType | None) -> None:
        self._heard.append(number)
        if len(self._heard) > 2:  # noqa: PLR2004 - the third
            os._exit(self.exit_code)
        # The main thread may hold any lock at this moment.
        threading.Thread(
            target=self.stop, args=(len(self._heard),), name="leasehold-signal", daemon=True
        ).start()

    def stop(self, count: int) -> None:
        """Do what the signal number *count* asks for, and wait until it is done."""
        worker = self._worker
        if worker is None:
            return
        if count == 1:
            busy = worker.snapshot().in_work
            wait = f" The {busy} in work may go on for {length(self._grace_s)}." if busy else ""
            self._say(f"Stopping: nothing more is received.{wait} Once more: at once.")
        else:
            self._say("Stopping at once.")
            worker.hurry()
        worker.stop(self._grace_s)
