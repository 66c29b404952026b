"""The sessions of a worker: one for each queue whose service has them."""

from __future__ import annotations

import logging
import threading
from typing import Final

from leasehold.worker.core import Core, Source
from leasehold.worker.queues.protocol import WorkerSession

_log: Final = logging.getLogger("leasehold.worker")
_LOST: Final = "the session is lost, and all its leases with it"


class Sessions:
    """Opens sessions when they are needed, and takes note when one is lost.

    Args:
        core: The worker.
        holder: Who works, for people.
        timeout_s: After how much silence a session is lost; None: there shall be none.
    """

    def __init__(self, core: Core, *, holder: str, timeout_s: float | None) -> None:
        self._core = core
        self._holder = holder
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._is_closed = False

    def of(self, source: Source) -> WorkerSession | None:
        """Return the session to receive under, a new one if need be; None: there is none.

        Raises:
            QueueError: One could not be opened.
        """
        if self._timeout_s is None or not source.capabilities.sessions:
            return None
        self.look(source)
        if source.session is None:
            opened = source.client.open_session(self._holder, self._timeout_s)
            with self._lock:
                source.session = None if self._is_closed else opened
            if source.session is None:
                opened.close()
        return source.session

    def look(self, source: Source) -> None:
        """Take note if the session of a queue is lost: all messages that it had are."""
        session = source.session
        if session is None or not session.is_lost:
            return
        with self._lock:
            if source.session is not session:
                return
            source.session = None
        self._core.stats.note_lost_session()
        works = self._core.works_of(source)
        _log.error("the session of %s is lost, with %d messages", source.name, len(works))
        for work in works:
            if work.session is session:
                work.held.lose(_LOST)
        session.close()

    def close(self) -> None:
        """End all sessions."""
        with self._lock:
            self._is_closed = True
            found = [source.session for source in self._core.sources if source.session is not None]
            for source in self._core.sources:
                source.session = None
        for session in found:
            session.close()
