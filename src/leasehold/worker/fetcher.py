"""Receiving: as many messages as there is room for, and no more."""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable
from functools import partial
from typing import Final

from leasehold.domain.wording import count_of
from leasehold.worker.adapters.protocol import (
    AS_SET,
    Delivery,
    Fault,
    LeaseGone,
    QueueError,
    QueueMissing,
    Release,
    Unreachable,
    WorkerSession,
)
from leasehold.worker.core import Core, Source, Work, doubt_of
from leasehold.worker.errors import LeaseLost, MessageExpired
from leasehold.worker.leases import BaseLeaseManager, Held, RenewerStopped
from leasehold.worker.outcomes import DONE, Kind, Outcome, tried_of
from leasehold.worker.retry_policy import PoisonRule
from leasehold.worker.timing import start_thread

_log: Final = logging.getLogger("leasehold.worker")
_random: Final = random.SystemRandom()
_FIRST_PAUSE_S: Final = 0.05
_LONGEST_FAILURE_PAUSE_S: Final = 30.0


class Fetcher:
    """Receives from one queue, in a thread of its own.

    Args:
        core: The worker.
        source: The queue.
        manager: Keeps the leases.
        as_set: Whether the service chooses how long each lease is.
        poison: When messages are set aside before any work.
        sessions: Gives the session to receive under.
        holder: Who receives, for people.
        wait_s: How long one receive waits for a first message.
        poll_s: The longest pause after a receive that found nothing and did not wait.
    """

    def __init__(  # noqa: PLR0913 - keyword-only, and each is a choice of its own
        self,
        core: Core,
        source: Source,
        *,
        manager: BaseLeaseManager,
        as_set: bool,
        poison: PoisonRule,
        sessions: Sessions,
        holder: str,
        wait_s: float,
        poll_s: float,
    ) -> None:
        self._core = core
        self._source = source
        self._manager = manager
        self._as_set = as_set
        self._poison = poison
        self._sessions = sessions
        self._holder = holder
        self._wait_s = wait_s
        self._poll_s = poll_s
        self._pause_s = 0.0
        self._failures = 0
        self._found = True
        self._asks_order = core.gate is not None
        """Whether it is to be asked still if the queue keeps the order of groups."""
        self._changed = threading.Condition()
        self._is_closed = False
        self._is_nudged = False
        self._accepting = threading.Lock()
        self.error: QueueError | None = None
        """Why the last receive failed; None if it did not."""
        self.has_received = False
        """Whether the service has granted a receive, with messages or without."""
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin."""
        name = f"leasehold-receive-{self._source.name}"
        self._thread = start_thread(name, self._core.time, self._run)

    def close(self) -> None:
        """Receive nothing more, and put nothing more into the buffer.

        What a receive brings that is still under way is given back at once.
        """
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        with self._accepting:
            pass  # whoever is in there has come to its end, and nobody goes in any more

    def nudge(self) -> None:
        """End the pause, if there is one."""
        with self._changed:
            self._is_nudged = True
            self._changed.notify_all()

    def join(self, patience_s: float) -> bool:
        """Wait for the thread, so many seconds of the machine; return whether it has ended."""
        if self._thread is None:
            return True
        self._thread.join(patience_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        source, limiter = self._source, self._core.limiter
        most = source.capabilities.max_receive
        while True:
            if self._asks_order and not self._failures:
                self._look_at_order()
            share = limiter.share(source.place)
            waits = not self._found and share > 0
            count = limiter.take(source.place, min(most, share) if waits else most)
            if not count:
                return
            found = 0
            # Whatever happens the slots must be given back, or the worker would stand still.
            try:
                found = self._receive(count, waits=waits or len(self._core.sources) == 1)
            except Exception:  # noqa: BLE001 - others, and later ones, have to be received
                _log.exception("receiving from %s", source.name)
                self._back_off(None)
            finally:
                limiter.give_back(source.place, count - found)
            self._found = found > 0
            if self._pause_s and not self._pause():
                return

    def _receive(self, count: int, *, waits: bool) -> int:
        """Ask for messages once; return how many have come."""
        core, source = self._core, self._source
        activity = core.activity
        wait_s = self._wait_s if waits else 0.0
        try:
            session = self._sessions.of(source)
            lease_s = self._lease_s()
            # The lease may begin the moment the request is sent.
            asked_at_s = core.now_s()
            deliveries = source.client.receive(
                count,
                visibility_timeout_s=lease_s,
                wait_s=wait_s,
                holder=self._holder,
                session=session,
            )
        except QueueError as error:
            self._failed(error)
            return 0
        self.has_received = True
        if self._failures:
            _log.info("receiving from %s works again", source.name)
            self._failures, self.error = 0, None
        if deliveries:
            self._pause_s = 0.0
            with self._accepting:
                if not core.is_stopping:
                    keep = partial(
                        self._manager.keep,
                        source.client,
                        asked_at_s=asked_at_s,
                        lease_s=None if lease_s == AS_SET else lease_s,
                        wait_s=min(wait_s, source.capabilities.max_wait_s),
                    )
                    return self._accept(deliveries, keep, session)
            self._return(deliveries)
            return 0
        core.found_nothing(source, activity)
        if wait_s and core.now_s() - asked_at_s >= wait_s / 2:
            self._pause_s = 0.0
        else:
            self._pause_s = min(self._poll_s, max(_FIRST_PAUSE_S, 2 * self._pause_s))
        return 0

    def _look_at_order(self) -> None:
        """Warn once if what the worker does group by group is less than it looks like.

        A server or queue that is not there is asked again when a receive has worked.
        """
        gate, name = self._core.gate, self._source.name
        if gate is None or not self._asks_order:
            return
        self._asks_order = False
        try:
            doubt = doubt_of(self._source.client, is_ordered=gate.is_ordered)
        except (Unreachable, QueueMissing):
            self._asks_order = True
        except Exception as error:  # noqa: BLE001 - not to know must not keep it from working
            _log.info("whether %s keeps the order of groups is unknown: %s", name, error)
        else:
            if doubt is not None:
                _log.warning("queue %s: %s", name, doubt)

    def _lease_s(self) -> int:
        if self._as_set:
            return AS_SET
        able = self._source.capabilities
        return min(max(self._manager.lease_s(), able.min_lease_s), able.max_lease_s)

    def _accept(
        self,
        deliveries: list[Delivery],
        keep: Callable[[Delivery], Held],
        session: WorkerSession | None,
    ) -> int:
        """Keep the leases of what has come, and put it into the buffer; return how many."""
        core, source, manager = self._core, self._source, self._manager
        kept: list[Work] = []
        for delivery in deliveries:
            work = Work(source, delivery)
            work.session = session
            try:
                work.held = keep(delivery)
            except LeaseLost as error:
                # Too late: it comes again, unless it has expired.
                _log.warning("message %s of %s: %s", delivery.message_id, source.name, error)
                core.tell_lost(delivery, str(error), has_expired=isinstance(error, MessageExpired))
                continue
            except RenewerStopped:
                # The worker stops for that; what is not kept comes back by itself.
                break
            work.held.on_loss(work.lose)
            kept.append(work)
        core.received(source, len(kept))
        works: list[Work] = []
        suspects: list[Work] = []
        gate = core.gate
        for work in kept:
            delivery = work.delivery
            if manager.was_done(source.name, delivery.message_id):
                _log.info(
                    "message %s of %s was already completed", delivery.message_id, source.name
                )
                core.stats.note_redone(source.place)
                work.outcome = DONE
                if gate is not None:
                    gate.enter(work)
                source.settle(work)
            elif (refusal := self._refusal(delivery)) is not None:
                work.outcome = Outcome(Kind.POISONED, refusal)
                if gate is not None:
                    gate.enter(work)
                source.settle(work)
            elif gate is not None:
                works += gate.admit((work,))
            else:
                (suspects if self._poison.is_suspect(delivery) else works).append(work)
        # If one of them kills its worker, it is not to be always the others that wait behind it.
        _random.shuffle(suspects)
        core.hooks.quietly(core.hooks.received, source.name, deliveries)
        core.buffer.put(source.place, works, first=suspects)
        return len(kept)

    def _refusal(self, delivery: Delivery) -> Fault | None:
        """Say why a message is to be set aside before any work; None if it is not."""
        fault = self._source.condemned.fault_of(delivery)
        if fault is not None:
            return fault
        tried = None
        if self._poison.may_be_refused(delivery):
            if self._core.is_stopping:
                return None  # it goes back unseen, and the end does not wait for an answer
            tried = tried_of(self._source.client, delivery)
        return self._poison.refusal(delivery, tried)

    def _return(self, deliveries: list[Delivery]) -> None:
        """Give back what has come when the worker stops, or has stopped."""
        releases = [Release(lease=each.lease, outcome="returned") for each in deliveries]
        try:
            self._source.client.release(releases)
        except QueueError as error:
            # Their leases end by themselves.
            told = count_of(len(deliveries), "message")
            _log.info("%s of %s: %s", told, self._source.name, error)

    def _failed(self, error: QueueError) -> None:
        if self._core.is_stopping:
            return
        self._core.stats.note_receive_error(self._source.place)
        level = logging.DEBUG if self._failures else logging.WARNING
        if not isinstance(error, Unreachable | LeaseGone) and not self._failures:
            level = logging.ERROR
        _log.log(level, "receiving from %s: %s", self._source.name, error)
        self.error = error
        self._back_off(error)
        with self._core.changed:
            self._core.changed.notify_all()

    def _back_off(self, error: QueueError | None) -> None:
        self._failures += 1
        pause_s = min(_LONGEST_FAILURE_PAUSE_S, 0.25 * 2.0 ** min(self._failures, 16))
        asked_s = error.retry_after_s if isinstance(error, Unreachable) else None
        self._pause_s = max(pause_s * (0.5 + _random.random() / 2), asked_s or 0.0)

    def _pause(self) -> bool:
        """Wait before the next receive; False: it is the end."""
        end_s = self._core.now_s() + self._pause_s
        with self._changed:
            while not (self._is_closed or self._is_nudged):
                left_s = end_s - self._core.now_s()
                if left_s <= 0:
                    break
                self._core.time.wait(self._changed, left_s)
            self._is_nudged = False
            return not self._is_closed


# --- sessions ----------------------------------------------------------------------------------
#
# The sessions of a worker: one for each queue whose service has them.


_LOST: Final = "the session and all its leases are lost"


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
        told = count_of(len(works), "message")
        _log.error("the session of %s is lost, with %s", source.name, told)
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
