"""What a worker looks after once a second: sessions, wishes of operators, late renewals."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from leasehold.worker.core import Core
from leasehold.worker.leases._episodes import Episodes
from leasehold.worker.pacing import Rounds
from leasehold.worker.reporting import length
from leasehold.worker.sessions import Sessions
from leasehold.worker.work import Work

_log: Final = logging.getLogger("leasehold.worker")
INTERVAL_S: Final = 1.0
_NAMED: Final = 5
_NOBODY: Final = ("", "")


class Watch:
    """A thread that looks around.

    Args:
        core: The worker.
        sessions: Of its queues.
        tick: Called each time with the time, for the runner.
    """

    def __init__(self, core: Core, sessions: Sessions, tick: Callable[[float], None]) -> None:
        self._core = core
        self._sessions = sessions
        self._tick = tick
        self._rounds = Rounds("leasehold-watch", core.time, INTERVAL_S)

    def start(self) -> None:
        """Begin."""
        self._rounds.start(self._run)

    def close(self) -> None:
        """End."""
        self._rounds.close()

    def _run(self) -> None:
        while self._rounds.wait():
            try:
                self.look()
            except Exception:  # noqa: BLE001 - without a watch it would go on with what is lost
                _log.exception("looking after the worker")

    def look(self) -> None:
        """Look around once."""
        for source in self._core.sources:
            self._sessions.look(source)
        for work in list(self._core.in_work):
            if work.session is not None:
                why = work.session.cancelled(work.delivery.message_id)
                if why is not None:
                    work.held.cancel(why)
        self._tick(self._core.now_s())


class LateRenewals:
    """Warns when renewals were so late that leases were in danger.

    The usual reason is a handler that holds the interpreter lock: one call of a C library that does
    not let go of it stops all threads of the process, that of the renewals too. A message is named
    once, and again only if all was well for a minute.

    Args:
        core: The worker.
        minimal_life_s: The life that a lease is to have left; half of it late is too late.
    """

    def __init__(self, core: Core, minimal_life_s: float) -> None:
        self._core = core
        self._limit_s = minimal_life_s / 2
        self._episodes = Episodes()

    def note(self, lag_s: float) -> None:
        """Take note how late a round of renewals began, in seconds."""
        if lag_s <= self._limit_s:
            return
        self._core.stats.note_late_renewals()
        now_s = self._core.now_s()
        suspects = self._suspects(lag_s, now_s)
        new = self._episodes.new(suspects or [_NOBODY], now_s)
        if not new:
            return
        names = [_told(suspects[which], now_s) for which in new[:_NAMED] if which in suspects]
        _log.warning(
            "RENEWALS WERE %s LATE: %s kept the interpreter to itself. Leases run out like that:"
            ' run it with runner="processes", or have them renewed with renewer="process"',
            length(lag_s),
            ", ".join(names) or "the machine, or something besides the handlers,",
        )

    def _suspects(self, lag_s: float, now_s: float) -> dict[tuple[str, str], Work]:
        """Return those that were at work all that time, by queue and message."""
        found: dict[tuple[str, str], Work] = {}
        for work in [*self._core.in_work, *self._core.just_ended]:
            ended_s = now_s if work.handling_s is None else work.began_s + work.handling_s
            # Of the time that is missing it must have been at work for half at least.
            if work.began_s and ended_s - max(work.began_s, now_s - lag_s) >= lag_s / 2:
                found[work.source.name, work.delivery.message_id] = work
        return found


def _told(work: Work, now_s: float) -> str:
    name, message_id = work.source.handler_name, work.delivery.message_id
    return f"{name} (message {message_id}, begun {length(now_s - work.began_s)} ago)"
