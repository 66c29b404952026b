"""What keeps claims while Spark works on them: one thread of the driver-side reader.

Executors keep nothing: a Python worker there may be killed without notice, and a claim is extended
with one small write however many members it has.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Final

from leasehold.client import LeaseholdClientError, QueueNotFound
from leasehold.client.errors import (
    ClaimBroken,
    ClaimNotFound,
    ClaimSettled,
    StaleToken,
    StreamNotFound,
)
from leasehold.spark.options import log

_SHARE: Final = 3
"""A lease is extended when a third of it has passed, so that two tries in a row may fail."""
_SHARE_AFTER_FAILURE: Final = 12
_OVER: Final = (ClaimSettled, ClaimNotFound)
_FATAL: Final = (StaleToken, StreamNotFound, QueueNotFound)


class Keeper:
    """Extends the claims that it is told of, until it is told to end.

    Args:
        extend: Extends a claim by its number. Called from the keeper's thread.
        lease_s: How long each extension lasts.
        on_orphaned: Called once, from the thread, when the process that started this one is gone.
        parent: Returns the id of that process.
    """

    def __init__(
        self,
        extend: Callable[[int], object],
        lease_s: float,
        on_orphaned: Callable[[], object],
        parent: Callable[[], int] = os.getppid,
    ) -> None:
        self._extend = extend
        self._lease_s = lease_s
        self._on_orphaned = on_orphaned
        self._parent = parent
        self._started_by = parent()
        self._held: set[int] = set()
        self._changing = threading.Lock()
        self._end = threading.Event()
        self._thread: threading.Thread | None = None
        self.failure: LeaseholdClientError | None = None
        """Why nothing can be extended any more."""

    @property
    def held(self) -> tuple[int, ...]:
        """Numbers of the claims that are kept, the lowest first."""
        with self._changing:
            return tuple(sorted(self._held))

    def hold(self, number: int) -> None:
        """Keep a claim from now on; it was opened or extended just now."""
        with self._changing:
            self._held.add(number)

    def start(self) -> None:
        """Start the thread, if it does not run."""
        if self._thread is None and not self._end.is_set():
            self._thread = threading.Thread(target=self._work, name="leasehold-keeper", daemon=True)
            self._thread.start()

    def drop(self, number: int) -> None:
        """Keep a claim no longer."""
        with self._changing:
            self._held.discard(number)

    def drop_upto(self, number: int) -> None:
        """Keep a claim and all before it no longer."""
        with self._changing:
            self._held = {each for each in self._held if each > number}

    def end(self, patience_s: float) -> None:
        """Extend nothing any more; waits up to *patience_s* seconds for what is under way."""
        self._end.set()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(patience_s)

    def beat(self) -> float:
        """Extend all claims once; return the seconds until the next time."""
        share = _SHARE
        for number in self.held:
            if self._end.is_set():
                break
            try:
                self._extend(number)
            except _OVER:
                self.drop(number)  # by a listener, or by the publishing of the batch
            except _FATAL as error:
                self.failure = error
                self.drop_upto(max(self.held, default=0))
            except ClaimBroken as error:
                self.drop(number)
                log.warning(
                    "claim %d has lost %s of its messages: other consumers have received them "
                    "after it lapsed, or an operator has removed them",
                    number,
                    error.lost,
                )
            except LeaseholdClientError as error:
                share = _SHARE_AFTER_FAILURE
                log.warning("claim %d could not be extended: %s", number, error)
            except Exception:  # noqa: BLE001 - whatever it is, the others must be extended
                share = _SHARE_AFTER_FAILURE
                if not self._end.is_set():  # otherwise the client was closed under it
                    # Without this thread all claims lapse, and no one is told until it is too late.
                    log.exception("claim %d could not be extended", number)
        return self._lease_s / share

    def _work(self) -> None:
        pause_s = self._lease_s / _SHARE
        while not self._end.wait(pause_s):
            if self._parent() != self._started_by:
                # A reader whose query is dead may hang in a call, and would keep its claims.
                self._end.set()
                self._on_orphaned()
                return
            pause_s = self.beat()


def end_on_sigterm() -> None:
    """Have SIGTERM, by which Spark ends a reader, raise SystemExit so that ``stop`` is called.

    Spark sends it twice; the second is ignored. Elsewhere than in a main thread nothing is done.
    """
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _leave)


def outlast_sigterm() -> None:
    """Ignore SIGTERM from now on, if :func:`end_on_sigterm` was called: the end has begun."""
    is_main = threading.current_thread() is threading.main_thread()
    if is_main and signal.getsignal(signal.SIGTERM) is _leave:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)


def _leave(number: int, _frame: FrameType | None) -> None:
    signal.signal(number, signal.SIG_IGN)
    raise SystemExit(128 + number)
