"""The workers of one task: how many messages it works on at once."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Final

from leasehold.worker.errors import WorkerError
from leasehold.worker.worker import Worker

_log: Final = logging.getLogger("leasehold.spark.pipeline")

FEW: Final = 8
"""Messages at once, as long as nobody knows how long they take."""
MORE: Final = 248
"""Further ones where each takes next to no time, so that their saves can share requests."""
SHORT_S: Final = 0.1
LONG_S: Final = 2.0
_ENOUGH: Final = 50
_LEAVE_S: Final = 300.0
_MOMENT_S: Final = 0.005


def wants_more(handling_s: float, *, has_more: bool) -> bool:
    """Return whether a task should work on many messages at once.

    What takes long is better left to tasks that are free; what takes no time mostly waits for the
    server to note its progress, and that is shared by all who wait.

    Args:
        handling_s: How long the last messages took on average, waiting included.
        has_more: Whether it does so now.
    """
    return handling_s < (LONG_S if has_more else SHORT_S)


class Hands:
    """Runs one worker, and a second, larger one while messages take next to no time.

    Args:
        make: Makes a worker that works on so many messages at once.
        at_once: How many; None: that is found out.
    """

    def __init__(self, make: Callable[[int], Worker], at_once: int | None) -> None:
        self._make = make
        self._adapts = at_once is None
        self._first = make(FEW if at_once is None else at_once)
        self._second: Worker | None = None
        self._leaving: threading.Thread | None = None
        self._seen = 0
        self._seen_s = 0.0
        self.failure: BaseException | None = None
        """Why the work cannot go on."""
        self._thread = threading.Thread(target=self._run, name="leasehold-first", daemon=True)

    def start(self) -> None:
        """Begin; the first worker runs when this returns, or has failed."""
        self._thread.start()
        while not self._first.is_running and self._thread.is_alive():
            self._thread.join(_MOMENT_S)

    @property
    def is_over(self) -> bool:
        """Whether the first worker has ended, by itself or because it was told to."""
        return not self._thread.is_alive()

    @property
    def waiting(self) -> int:
        """How many messages were received and wait for a hand."""
        return sum(each.snapshot().buffered for each in self._workers())

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing in hand."""
        found = [each.snapshot() for each in self._workers()]
        return not any(each.in_work or each.buffered for each in found)

    def look(self) -> None:
        """See whether there should be more hands, or fewer; called several times a second."""
        if not self._adapts or self.is_over:
            return
        queue = self._first.stats.queues[0]
        many, took_s = sum(queue.handled) - self._seen, queue.handling_s - self._seen_s
        if many < _ENOUGH and took_s < LONG_S:
            return
        self._seen += many
        self._seen_s += took_s
        if wants_more(took_s / max(many, 1), has_more=self._second is not None):
            self._add()
        else:
            self._drop()

    def stop(self, grace_s: float) -> None:
        """Stop all, and return when that is done."""
        second = self._second
        self._first.request_stop(grace_s)
        if second is not None:
            second.stop(grace_s)
        self._first.stop(grace_s)
        if self._leaving is not None:
            self._leaving.join()

    def hurry(self) -> None:
        """Have a stop that is under way wait for messages in work no longer."""
        for each in self._workers():
            each.hurry()

    # --- inside ------------------------------------------------------------------------------

    def _workers(self) -> list[Worker]:
        second = self._second
        return [self._first] if second is None else [self._first, second]

    def _run(self) -> None:
        try:
            self._first.run(install_signals=False)
        except BaseException as error:  # noqa: BLE001 - for the thread of the task
            self.failure = error

    def _add(self) -> None:
        if self._second is None and (self._leaving is None or not self._leaving.is_alive()):
            try:
                second = self._make(MORE)
                second.start()
            except (RuntimeError, WorkerError, ValueError) as error:
                # Such as a limit on threads. The first worker does it all, only slower.
                _log.warning("no more than %d messages at once: %s", FEW, error)
                self._adapts = False
                return
            self._second = second
            _log.info("messages take next to no time: %d at once", FEW + MORE)

    def _drop(self) -> None:
        second, self._second = self._second, None
        if second is not None:
            self._leaving = threading.Thread(
                target=second.stop, args=(_LEAVE_S,), name="leasehold-leaving", daemon=True
            )
            self._leaving.start()
