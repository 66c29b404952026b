"""The threads of a worker: how they begin, and in which order they end."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, Protocol

from leasehold.worker.completing import Settler
from leasehold.worker.core import Core
from leasehold.worker.fetching import Fetcher
from leasehold.worker.leases import Keeping
from leasehold.worker.options import SESSION_TIMEOUT_S, Options, Runner
from leasehold.worker.reporting import Reporter
from leasehold.worker.running.processes import ProcessRunner
from leasehold.worker.running.tasks import TaskRunner
from leasehold.worker.running.threads import ThreadRunner
from leasehold.worker.sessions import Sessions
from leasehold.worker.watching import Watch
from leasehold.worker.work import Work

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


class Crew:
    """All threads of a worker but those that renew.

    Args:
        core: What they share.
        options: What the worker was told.
        manager: Keeps the leases.
        holder: What the worker is called by services.
        reporter: Tells people; None: nobody wants to know.
        until_idle: Whether the worker ends when there is nothing left: then it does not wait for
            messages to come.
    """

    def __init__(  # noqa: PLR0913 - parts of one machine
        self,
        core: Core,
        options: Options,
        manager: Keeping,
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
            source.settler = Settler(core, source, retries=options.retries, poison=options.poison)
            self._settlers.append(source.settler)
        self._runner = _RUNNERS[options.runner](core)
        self._watch = Watch(core, self._sessions, self._runner.tick)
        self.fetchers = [
            Fetcher(
                core,
                source,
                manager=manager,
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
        core.rooms.close()
        for fetcher in self.fetchers:
            fetcher.close()
        core.buffer.close()
        core.give_back(core.buffer.drain())
        if not self._wait_for_handlers(grace_s):
            _log.warning("%d handlers are told to stop", len(core.in_work))
            core.stop_handlers()
            self._wait_for_handlers(CANCEL_S)
        left = core.abandon()
        for work in left:
            _log.error(
                "%s does not stop; message %s is given back while it goes on",
                *(work.source.handler_name, work.delivery.message_id),
            )
        self._runner.end(left)
        for name in self._runner.close():
            _log.error("%s is still in a handler, and is left behind", name)
        for settler in self._settlers:
            settler.close()
        self._watch.close()
        self._sessions.close()
        for fetcher in self.fetchers:
            if not fetcher.join(_LEAVE_S):
                # It gives back what it brings. A request cannot be called off, though servers of
                # Leasehold end it with the session.
                _log.info("a receive is still under way, and is left to itself")
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


def wait_for(options: Options, manager: Keeping, max_wait_s: float) -> float:
    """Return how long a receive may wait for a first message, in seconds.

    After a wait the lease counts from the answer, and an answer can be held up for as long as the
    wait. So a wait is so short that enough of the lease is left even then.
    """
    settings = manager.settings
    room_s = settings.visibility_timeout_s - settings.renew_at_s
    return min(options.wait_s, max_wait_s, room_s * _WAIT_SHARE)
