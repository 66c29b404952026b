"""Recording what has happened although the history does not answer at once."""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import Final

from leasehold.worker.once.errors import Fenced, NotRecorded
from leasehold.worker.once.protocol import KnowsItsErrors, Processed, may_pass
from leasehold.worker.once.runs import Run
from leasehold.worker.timing import Time

_log: Final = logging.getLogger("leasehold.worker")
_FIRST_PAUSE_S: Final = 0.1
_LONGEST_PAUSE_S: Final = 2.0


class Recording:
    """The tries to record one run that has ended.

    A lease that is lost meanwhile does not end them: the next delivery of the message is better off
    with the record, and if it has begun, the history says so.

    Args:
        store: The history.
        run: What is done.
        result: What came of it, in JSON.
        time: By which it goes.
        record_s: After so many seconds no try begins any more, but the first one.
    """

    def __init__(
        self, store: Processed, run: Run, result: str | None, time: Time, record_s: float
    ) -> None:
        self._store = store
        self._run = run
        self._result = result
        self._time = time
        self._until_s = time.monotonic_s() + record_s
        self._pause_s = _FIRST_PAUSE_S
        self._is_over = False
        self._problem: Fenced | NotRecorded | None = None

    def attempt(self) -> float | None:
        """Try once.

        Returns:
            None if it is recorded; otherwise seconds until the next try.

        Raises:
            Fenced: Somebody else took over.
            NotRecorded: It failed, and there is no next try.
        """
        try:
            self._store.finish(self._run.key, self._run.holder, self._result)
        except Fenced as error:
            self._is_over, self._problem = True, error
            raise
        except Exception as error:
            why = f"{type(error).__name__}: {error}"
            pause_s = self._pause_s
            is_late = self._time.monotonic_s() + pause_s > self._until_s
            if is_late or not self._may_pass(error):
                self._is_over, self._problem = True, NotRecorded(self._run.key, why)
                raise self._problem from error
            _log.warning("%s is done; recording that is tried again: %s", self._run.key, why)
            self._pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
            return pause_s
        self._is_over = True
        return None

    def end(self) -> None:
        """Try a last time unless it is over; what is wrong is logged, not raised.

        For who is cancelled and will not hear of it.
        """
        if not self._is_over:
            self._until_s = self._time.monotonic_s()
            with suppress(Fenced, NotRecorded):
                self.attempt()
        if self._problem is not None:
            _log.error("%s", self._problem)

    def _may_pass(self, error: Exception) -> bool:
        store = self._store
        return store.may_pass(error) if isinstance(store, KnowsItsErrors) else may_pass(error)
