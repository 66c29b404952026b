"""The threads of a worker: how they begin, and in which order they end."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, Protocol

from leasehold.worker.core import Core, Work
from leasehold.worker.executors.processes import ProcessRunner
from leasehold.worker.executors.threads import TaskRunner, ThreadRunner
from leasehold.worker.fetcher import Fetcher, Sessions
from leasehold.worker.leases import BaseLeaseManager
from leasehold.worker.leases.base import Episodes
from leasehold.worker.options import SESSION_TIMEOUT_S, Options, Runner
from leasehold.worker.reporting import Reporter, length
from leasehold.worker.settler import Settler
from leasehold.worker.timing import Rounds

_log: Final = logging.getLogger("leasehold.worker")
CANCEL_S: Final = 5.0
"""How long handlers have to come to an end when they were told to stop."""
_LEAVE_S: Final = 1.0
"""Of the machine's time: for a receive that is still under way at the end."""
_WAIT_SHARE: Final = 0.8


class RunsHandlers(Protocol):
    """Where handlers run."""

    def start(self) -> None:
        """Begin."""
        ...

    def tick(self, now_s: float) -> None:
        """Look after the handlers; called about once a second."""
        ...

    def end(self, works: list[Work]) -> None:
        """Stop what handlers do not stop by themselves, as far as that is possible."""
        ...

    def close(self) -> list[str]:
        """End; return the names of threads that are still in a handler."""
        ...


class WorkerThreads:
    """All threads of a worker but those that renew.

    Args:
        core: What they share.
        options: What the worker was told.
        manager: Keeps the leases.
        holder: What the worker is called by services.
        reporter: Tells people; None: it is not wanted.
        until_idle: Whether the worker ends when there is nothing left: then it does not wait for
            messages to come.
    """

    def __init__(  # noqa: PLR0913 - parts of one machine
        self,
        core: Core,
        options: Options,
        manager: BaseLeaseManager,
        *,
        holder: str,
        reporter: Reporter | None,
        until_idle: bool,
    ) -> None:
        self._core = core
        self._reporter = reporter
        self._sessions = Sessions(
            core, holder=holder, timeout_s=SESSION_TIMEOUT_S if options.session else None
        )
        self._settlers = []
        for source in core.sources:
            settler = Settler(core, source, retries=options.retries, poison=options.poison)
            source.settle = settler.put
            self._settlers.append(settler)
        self._runner = _RUNNERS[options.runner](core)
        self._watch = Watch(core, self._sessions, self._runner.tick)
        self.fetchers = [
            Fetcher(
                core,
                source,
                manager=manager,
                as_set=options.as_set,
                poison=options.poison,
                sessions=self._sessions,
                holder=holder,
                wait_s=0.0
                if until_idle
                else wait_for(options, manager, source.capabilities.max_wait_s),
                poll_s=options.poll_s,
            )
            for source in core.sources
        ]
        if until_idle:
            core.drained = self._nudge
        self._hurries = False

    def start(self) -> None:
        """Begin.

        Raises:
            WorkerError: Handlers cannot be run; nothing is left running.
        """
        for settler in self._settlers:
            settler.start()
        try:
            self._runner.start()
        except BaseException:
            self._core.buffer.close()
            for settler in self._settlers:
                settler.close()
            raise
        self._watch.start()
        for fetcher in self.fetchers:
            fetcher.start()
        if self._reporter is not None:
            self._reporter.start()

    def stop(self, grace_s: float) -> None:
        """End: nothing new, the buffer back, handlers to their end, then the rest.

        Args:
            grace_s: How long handlers may go on as if nothing were.
        """
        core = self._core
        with core.changed:
            core.is_stopping = True
            core.changed.notify_all()
        core.limiter.close()
        for fetcher in self.fetchers:
            fetcher.close()
        core.buffer.close()
        core.give_back(core.buffer.drain())
        if core.gate is not None:
            core.give_back(core.gate.drain())
        if not self._wait_for_handlers(grace_s):
            _log.warning("%d handlers are requested to stop", len(core.in_work))
            core.stop_handlers()
            self._wait_for_handlers(CANCEL_S)
        left = core.abandon()
        for work in left:
            _log.error(
                "%s does not stop; message %s is released while it continues",
                *(work.source.handler_name, work.delivery.message_id),
            )
        self._runner.end(left)
        for name in self._runner.close():
            _log.error("%s is still in a handler and is abandoned", name)
        for settler in self._settlers:
            settler.close()
        self._watch.close()
        self._sessions.close()
        for fetcher in self.fetchers:
            if not fetcher.join(_LEAVE_S):
                # It gives back what it brings. A request cannot be called off, though servers of
                # Leasehold end it with the session.
                _log.info("a receive is still in progress and is abandoned")
        if self._reporter is not None:
            self._reporter.close()

    def hurry(self) -> None:
        """Do not wait for handlers any longer."""
        with self._core.changed:
            self._hurries = True
            self._core.changed.notify_all()

    def _wait_for_handlers(self, patience_s: float) -> bool:
        """Wait until nothing is in work; return whether it is so."""
        core = self._core
        end_s = core.now_s() + patience_s
        with core.changed:
            while core.in_work and not self._hurries:
                left_s = end_s - core.now_s()
                if left_s <= 0:
                    break
                core.time.wait(core.changed, left_s)
            return not core.in_work

    def _nudge(self) -> None:
        for fetcher in self.fetchers:
            fetcher.nudge()


_RUNNERS: Final[dict[Runner, Callable[[Core], RunsHandlers]]] = {
    "threads": ThreadRunner,
    "asyncio": TaskRunner,
    "processes": ProcessRunner,
}


def wait_for(options: Options, manager: BaseLeaseManager, max_wait_s: float) -> float:
    """Return how long a receive may wait for a first message, in seconds.

    After a wait the lease counts from the answer, and an answer can be held up for as long as the
    wait. So a wait is so short that enough of the lease is left even then.
    """
    settings = manager.settings
    room_s = settings.visibility_timeout_s - settings.renew_at_s
    return min(options.wait_s, max_wait_s, room_s * _WAIT_SHARE)


# --- watching ----------------------------------------------------------------------------------
#
# What a worker looks after once a second: sessions, wishes of operators, late renewals.


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
                _log.exception("supervising the worker")

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
            "RENEWALS WERE %s LATE: %s held the interpreter. Leases may lapse:"
            ' run it with runner="processes", or renew them with renewer="process"',
            length(lag_s),
            ", ".join(names) or "the machine, or code other than the handlers,",
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
