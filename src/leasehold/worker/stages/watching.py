"""One thread that notices when something takes too long."""

from __future__ import annotations

import heapq
import logging
import threading
from collections.abc import Callable
from itertools import count
from typing import Final

from leasehold.worker.timing import SystemTime, Time

_log: Final = logging.getLogger("leasehold.worker.stages")
_LINGER_S: Final = 5.0
"""How long the thread stays when there is nothing to watch."""
_SLACK: Final = 64
_PATIENCE_S: Final = 1.0


class Watched:
    """Something with a limit."""

    __slots__ = ("_watch", "callback", "deadline_s", "ended")

    def __init__(self, watch: Watch, deadline_s: float, callback: Callable[[], None]) -> None:
        self._watch = watch
        self.deadline_s = deadline_s
        self.callback = callback
        self.ended = False

    def end(self) -> None:
        """It is over; nobody is to be called any more. Harmless when it is repeated."""
        self._watch.forget(self)


class Watch:
    """Calls back what has not ended by its deadline.

    The thread is started when there is something to watch, and ends by itself some seconds after
    the last has ended.
    """

    def __init__(self, time: Time | None = None) -> None:
        self._time = time or SystemTime()
        self._changed = threading.Condition()
        self._due: list[tuple[float, int, Watched]] = []
        self._numbers = count()
        self._live = 0
        self._thread: threading.Thread | None = None
        self._closing = False
        self._resting = False

    def start(self, limit_s: float, callback: Callable[[], None]) -> Watched:
        """Call *callback* once, in the thread, unless it ends within *limit_s* seconds."""
        watched = Watched(self, self._time.monotonic_s() + limit_s, callback)
        with self._changed:
            heapq.heappush(self._due, (watched.deadline_s, next(self._numbers), watched))
            self._live += 1
            self._resting = False
            if self._thread is None:
                self._closing = False
                self._thread = threading.Thread(
                    target=self._run, name="leasehold-stages", daemon=True
                )
                self._thread.start()
            elif self._due[0][2] is watched:
                self._changed.notify_all()
        return watched

    def forget(self, watched: Watched) -> None:
        """See :meth:`Watched.end`."""
        with self._changed:
            if watched.ended:
                return
            watched.ended = True
            self._live -= 1
            # Those that ended stay until their deadline; with long limits they would pile up.
            if len(self._due) > 2 * self._live + _SLACK:
                self._due = [each for each in self._due if not each[2].ended]
                heapq.heapify(self._due)

    def rest(self) -> None:
        """End the thread as soon as it watches nothing; whoever starts something has it back."""
        with self._changed:
            self._resting = True
            thread = None if self._live else self._thread
            self._changed.notify_all()
        if thread is not None and thread is not threading.current_thread():
            thread.join(_PATIENCE_S)

    def close(self) -> None:
        """End the thread; what is watched now is not called back. The next start begins anew."""
        with self._changed:
            thread, self._closing = self._thread, True
            self._changed.notify_all()
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                callbacks = self._wait()
                if callbacks is None:
                    self._thread = None
                    return
            for callback in callbacks:
                try:
                    callback()
                except Exception:  # noqa: BLE001 - the thread serves others as well
                    _log.exception("watch_callback_failed")

    def _wait(self) -> list[Callable[[], None]] | None:
        """Return the callbacks that are due, or None when the thread is to end."""
        leave_s = self._time.monotonic_s() + _LINGER_S
        while not self._closing:
            now_s = self._time.monotonic_s()
            found = []
            while self._due and (self._due[0][2].ended or self._due[0][0] <= now_s):
                watched = heapq.heappop(self._due)[2]
                if not watched.ended:
                    watched.ended = True
                    self._live -= 1
                    found.append(watched.callback)
            if found:
                return found
            until_s = self._due[0][0] if self._live else leave_s
            if until_s <= now_s or (self._resting and not self._live):
                return None
            self._time.wait(self._changed, until_s - now_s)
            if self._live:
                leave_s = self._time.monotonic_s() + _LINGER_S
        return None
