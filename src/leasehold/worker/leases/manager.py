"""Keeps leases: one timer for all of them, and a few threads that send renewals."""

from __future__ import annotations

import heapq
import logging
import math
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Final

from leasehold.domain.wording import count_of
from leasehold.worker.adapters.protocol import (
    PastExpiry,
    QueueClient,
    QueueError,
    Renewed,
    Unreachable,
)
from leasehold.worker.leases.base import (
    BaseLeaseManager,
    Episodes,
    Notice,
    RenewerStopped,
    lapse_of,
    lease_of,
)
from leasehold.worker.leases.decisions import (
    Action,
    Verdict,
    call_timeout_s,
    decide,
    fitting_s,
    look_again_s,
    retry_s,
)
from leasehold.worker.leases.held import Flight, Held, HeldState, LeaseHooks, Loss
from leasehold.worker.leases.learning import LeaseLearner
from leasehold.worker.leases.settings import LeaseSettings
from leasehold.worker.timing import Time, start_thread

_log: Final = logging.getLogger("leasehold.worker.leases")
_LATE: Final = (
    "leases were checked %.2f s late: a handler holds the interpreter's lock, or the machine is "
    "overloaded"
)


class LeaseManager(BaseLeaseManager):
    """Keeps the leases of one process, by threads of this process.

    A handler that keeps the lock of the interpreter for long keeps these threads from running: see
    :class:`~leasehold.worker.leases.process.ProcessLeaseManager` for such.

    Args:
        settings: When leases are renewed, and for how long.
        time: By which it goes.
        parallel: Most requests under way at a time, 1 or more.
        hooks: Told what happens.
        learner: Asked how long leases should be, in place of the settings.

    Raises:
        UnsafeSettings: Leases could not be kept with them.
    """

    def __init__(
        self,
        settings: LeaseSettings,
        *,
        time: Time | None = None,
        parallel: int = 16,
        hooks: LeaseHooks | None = None,
        learner: LeaseLearner | None = None,
    ) -> None:
        super().__init__(settings, time=time, hooks=hooks, learner=learner)
        if parallel < 1:
            raise ValueError(f"parallel is {parallel}; it must be 1 or more")
        self._late = Episodes()
        self._tick_at = threading.Condition(self._lock)
        self._wheel = Wheel(settings.timer_interval_s, self._now_s())
        self._wakes_at_s: float | None = None
        self._pool = RenewalPool(
            parallel, self._lock, self._time, serve=self._renew, failed=self._fail
        )
        self._timer = start_thread("leasehold-lease-timer", self._time, self._run)

    def close(self) -> None:
        """Renew nothing more; what is still held runs out. Waits for requests under way."""
        with self._lock:
            self._closed = True
            self._pool.close()
            self._tick_at.notify_all()
            self._quiet.notify_all()
        if self._timer is not threading.current_thread():
            self._timer.join()
        self._pool.join(self.settings.call_timeout_s)

    # --- the timer ---------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while (notices := self._tick()) is not None:
                self._deliver(notices)
                if self.lag_s > self.settings.allowed_lag_s:
                    self._note_lag()
        except BaseException as error:  # noqa: BLE001 - whatever it is, leases are not kept
            self._fail(error)

    def _note_lag(self) -> None:
        """Tell who wants to hear of it, or else the log, and that once while it goes on."""
        if type(self._hooks).late is not LeaseHooks.late:
            self._call(self._hooks.late, self.lag_s)
        elif self._late.new([_LATE], self._now_s()):
            _log.warning(_LATE, self.lag_s)

    def _tick(self) -> list[Notice] | None:
        """Wait for the next tick at which something is due, and see to that; None at the end."""
        with self._lock:
            while not self._closed:
                now_s = self._now_s()
                next_s = self._wheel.next_s()
                if next_s is not None and next_s <= now_s:
                    self._measure(now_s - next_s)  # when it was placed that was still to come
                    return self._look(now_s)
                self._wakes_at_s = next_s
                self._time.wait(self._tick_at, None if next_s is None else next_s - now_s)
        return None

    def _measure(self, lag_s: float) -> None:
        self.lag_s = lag_s
        self.worst_lag_s = max(self.worst_lag_s, lag_s)
        if lag_s > self.settings.allowed_lag_s:
            self.counts.late_ticks += 1

    def _look(self, now_s: float) -> list[Notice]:
        """Check what is due. No request is sent before everything was looked at."""
        notices: list[Notice] = []
        groups: dict[tuple[int, int, int], list[Held]] = {}
        for held in self._wheel.due(now_s):
            action = decide(held, now_s, held.settings)
            if action is Action.RENEW:
                held.flight = Flight.QUEUED
                held.settings = self._settings_now(held)
                lease_s = fitting_s(held, now_s, held.settings.visibility_timeout_s)
                kind = (id(held.client), id(held.settings), lease_s)
                groups.setdefault(kind, []).append(held)
            elif action is Action.LOSE:
                notices += self._ledger.end(held, lapse_of(held))
            elif action is Action.ABANDON:
                notices += self._ledger.end(held, _timed_out(held))
            elif action is Action.SKIP:
                self.counts.late_ticks += 1
            if held.state is HeldState.HELD:
                self._place(held, now_s)
        for (_, _, lease_s), helds in groups.items():
            self._send(helds, lease_s)
        return notices

    def _settings_now(self, held: Held) -> LeaseSettings:
        """Return by which settings it is renewed this time."""
        if self._learner is None:
            return held.settings
        return self._settings_of(held.delivery.type, held.client.capabilities)

    def _send(self, helds: list[Held], lease_s: int) -> None:
        client, settings = helds[0].client, helds[0].settings
        most = client.capabilities.max_settle
        self._pool.clients = self._ledger.clients
        for start in range(0, len(helds), most):
            self._pool.submit(Batch(client, settings, helds[start : start + most], lease_s))

    def _place(self, held: Held, now_s: float) -> None:
        if held.is_in_flight:
            # It should be back by the next tick. If it is not, the end of the lease counts.
            self._wake_by(self._wheel.place(held, now_s, now_s))
            ends_s = held.deadline_s + held.settings.allowed_lag_s
            if ends_s < now_s + self.settings.timer_interval_s:
                self._look_at(held, max(ends_s, now_s))
        else:
            moment_s = look_again_s(held, held.settings, now_s)
            self._wake_by(self._wheel.place(held, moment_s, now_s))
            if now_s < moment_s and held.expires_s < moment_s + held.settings.visibility_timeout_s:
                self._look_at(held, moment_s)  # the next tick may be too late

    def _look_at(self, held: Held, moment_s: float) -> None:
        self._wheel.retry(held, moment_s)
        self._wake_by(moment_s)

    def _wake_by(self, moment_s: float | None) -> None:
        if moment_s is not None and (self._wakes_at_s is None or moment_s < self._wakes_at_s):
            self._wakes_at_s = moment_s
            self._tick_at.notify()

    # --- renewals ----------------------------------------------------------------------------

    def _renew(self, batch: Batch) -> None:
        """Send the renewals of one batch that are still wanted; by a thread of the pool."""
        settings = batch.settings
        with self._lock:
            sent_at_s = self._now_s()
            helds = [held for held in batch.helds if self._is_wanted(held, sent_at_s)]
            if not helds:
                return
            leases = []
            for held in helds:
                held.flight = Flight.SENT
                leases.append(lease_of(held))
            first_s = min(held.deadline_s for held in helds)
            # The batch may have waited for a thread.
            lease_s = min(fitting_s(held, sent_at_s, batch.lease_s) for held in helds)
            self.counts.requests += 1
        timeout_s = call_timeout_s(sent_at_s, first_s, settings)
        answers: Sequence[Renewed | QueueError]
        try:
            answers = batch.client.renew(leases, lease_s, timeout_s=timeout_s)
        except QueueError as error:
            answers = [error] * len(helds)
        except Exception as error:  # noqa: BLE001 - a fault of one client must not cost all leases
            _log.exception("a renewal failed with an unexpected error of the client")
            answers = [Unreachable(f"{type(error).__name__}: {error}")] * len(helds)
        if len(answers) != len(helds):
            answers = [
                Unreachable(f"{len(answers)} answers to {count_of(len(helds), 'renewal')}")
            ] * len(helds)
        self._answered(replace(batch, lease_s=lease_s), helds, answers, sent_at_s)

    def _is_wanted(self, held: Held, now_s: float) -> bool:
        if held.flight is not Flight.QUEUED:
            return False
        if held.state is HeldState.HELD and now_s < held.deadline_s and fitting_s(held, now_s, 1):
            return True
        held.flight = Flight.NONE
        return False

    def _answered(
        self,
        batch: Batch,
        helds: list[Held],
        answers: Sequence[Renewed | QueueError],
        sent_at_s: float,
    ) -> None:
        notices: list[Notice] = []
        renewed: list[Held] = []
        failed: list[Held] = []
        failure: QueueError | None = None
        with self._lock:
            now_s = self._now_s()
            for held, answer in zip(helds, answers, strict=True):
                held.flight = Flight.NONE
                verdict, told = self._ledger.answer(held, answer, sent_at_s, batch.lease_s)
                notices += told
                if verdict is Verdict.DENIED:
                    notices += self._ledger.end(held, Loss("denied", str(answer)))
                if held.state is not HeldState.HELD:
                    self._wheel.remove(held)
                elif isinstance(answer, PastExpiry):
                    self._place(held, now_s)
                    if decide(held, now_s, held.settings) is Action.RENEW:
                        self._look_at(held, now_s)  # for a shorter one
                elif isinstance(answer, QueueError):
                    failed.append(held)
                    failure = answer
                    self._try_again(held, answer, now_s)
                else:
                    renewed.append(held)
                    self._place(held, now_s)
            self.counts.renewals += len(renewed)
            self.counts.failures += len(failed)
            self._quiet.notify_all()
        self._deliver(notices)
        self._tell(renewed, failed, failure, now_s - sent_at_s)

    def _tell(
        self, renewed: list[Held], failed: list[Held], failure: QueueError | None, took_s: float
    ) -> None:
        if self._learner is not None:
            self._learner.renewal_took(took_s, failed=bool(failed and not renewed))
        if failure is not None:
            told = count_of(len(failed), "renewal")
            _log.info("%s failed and is retried: %s", told, failure)
            self._call(self._hooks.failed, failed, failure)
        if renewed:
            self._call(self._hooks.renewed, renewed, took_s)

    def _try_again(self, held: Held, failure: QueueError, now_s: float) -> None:
        again_s = retry_s(failure, now_s, held.deadline_s, held.settings, self._random.random())
        self._wake_by(self._wheel.place(held, held.deadline_s, now_s))
        self._look_at(held, max(again_s, now_s))

    # --- see Keeping -------------------------------------------------------------------------

    def _begin(self, held: Held) -> None:
        if not self._timer.is_alive():  # as in a process that was forked from that of the timer
            raise RenewerStopped("the thread that renews leases is not running")
        now_s = self._now_s()
        self._place(held, now_s)
        if decide(held, now_s, held.settings) is Action.RENEW:
            self._look_at(held, now_s)  # there may be too little left for the next tick

    def _begun(self, held: Held) -> None:
        """Nothing is left to do."""

    def _forget(self, held: Held) -> None:
        self._wheel.remove(held)
        if held.is_in_flight:
            self._quiet.notify_all()

    def _take(self, held: Held, timeout_s: float, state: HeldState) -> bool:
        with self._lock:
            until_s = self._now_s() + timeout_s
            while held.flight is Flight.SENT or held.flight is Flight.TAKEN:
                left_s = until_s - self._now_s()
                if left_s <= 0 or held.state is not state or self._closed:
                    return False
                self._time.wait(self._quiet, left_s)
            held.flight = Flight.TAKEN
            return True

    def _give_back(self, held: Held) -> None:
        with self._lock:
            held.flight = Flight.NONE
            if held.state is HeldState.HELD:
                self._place(held, self._now_s())
            self._quiet.notify_all()

    def _refresh(self, held: Held) -> None:
        """Nobody else knows more."""


def _timed_out(held: Held) -> Loss:
    seconds = held.settings.message_timeout_s
    return Loss("timed out", f"the work has taken longer than message_timeout_s, {seconds:g} s")


# --- wheel -------------------------------------------------------------------------------------
#
# Which leases to look at, at which tick: no tick looks at any other.


class Wheel:
    """Leases by the tick at which something is due; ticks come at whole multiples of an interval.

    Nothing stays in it that was removed: what is settled must not keep its body in memory.

    Args:
        interval_s: From tick to tick.
        start_s: The moment of tick 0.
    """

    def __init__(self, interval_s: float, start_s: float) -> None:
        self._interval_s = interval_s
        self._start_s = start_s
        self._slots: dict[int, set[Held]] = {}
        self._retries: list[tuple[float, int, Held]] = []
        self._numbers = count()

    def place(self, held: Held, moment_s: float, now_s: float) -> float | None:
        """Look at it at the first tick from *moment_s* on that is still to come.

        Returns:
            When that is, if nobody else is looked at then; else None.
        """
        self.remove(held)
        start_s, interval_s = self._start_s, self._interval_s
        slot = math.ceil((moment_s - start_s) / interval_s)
        slot = max(slot, math.floor((now_s - start_s) / interval_s) + 1)
        if start_s + slot * interval_s <= now_s:
            slot += 1  # the division was rounded down: that tick is not still to come
        held.slot = slot
        others = self._slots.get(slot)
        if others is not None:
            others.add(held)
            return None
        self._slots[slot] = {held}
        return start_s + slot * interval_s

    def remove(self, held: Held) -> None:
        """Look at it no more."""
        slot, held.slot = held.slot, None
        if slot is not None and (others := self._slots.get(slot)) is not None:
            others.discard(held)
            if not others:
                del self._slots[slot]

    def retry(self, held: Held, moment_s: float) -> None:
        """Look at it at exactly this moment as well."""
        heapq.heappush(self._retries, (moment_s, next(self._numbers), held))

    def next_s(self) -> float | None:
        """Return when somebody has to be looked at next."""
        next_s = None if not self._slots else self._start_s + min(self._slots) * self._interval_s
        if self._retries and (next_s is None or self._retries[0][0] < next_s):
            return self._retries[0][0]
        return next_s

    def due(self, now_s: float) -> list[Held]:
        """Take out, and return, who has to be looked at by now."""
        due: dict[Held, None] = {}
        for slot in sorted(self._slots):
            if self._start_s + slot * self._interval_s > now_s:
                break
            for held in self._slots.pop(slot):
                held.slot = None
                due[held] = None
        retries = self._retries
        while retries and retries[0][0] <= now_s:
            held = heapq.heappop(retries)[2]
            self.remove(held)
            due[held] = None
        return list(due)


# --- pool --------------------------------------------------------------------------------------
#
# The threads that send renewals: as many as needed, up to a bound, and fair to queues.


@dataclass(frozen=True, slots=True)
class Batch:
    """Leases to be renewed by one request."""

    client: QueueClient
    settings: LeaseSettings
    helds: list[Held]
    lease_s: int
    """What is asked for."""


class _Lane:
    """What is to be sent to one queue."""

    def __init__(self) -> None:
        self.batches: deque[Batch] = deque()
        self.running = 0


class RenewalPool:
    """Serves batches by a bounded number of threads, which are started when they are needed.

    Args:
        parallel: Most threads.
        lock: Held by whoever calls :meth:`submit`; threads take it to look for work.
        time: By which they wait.
        serve: Sends one batch.
        failed: Called when *serve* raises, which is a fault of this library.
    """

    def __init__(
        self,
        parallel: int,
        lock: threading.Lock,
        time: Time,
        *,
        serve: Callable[[Batch], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        self._parallel = parallel
        self._time = time
        self._serve = serve
        self._failed = failed
        self._work = threading.Condition(lock)
        self._lanes: dict[int, _Lane] = {}
        self._threads: set[threading.Thread] = set()
        self._started = 0
        self._idle = 0
        self._waiting = 0
        self._closing = False
        self.clients = 1
        """How many queues there are leases of. Each but the busiest finds a thread free."""

    def submit(self, batch: Batch) -> None:
        """Have a batch sent. The caller holds the lock."""
        lane = self._lanes.setdefault(id(batch.client), _Lane())
        lane.batches.append(batch)
        self._waiting += 1
        self._work.notify()
        if self._waiting > self._idle and len(self._threads) < self._parallel:
            self._start_one()

    def close(self) -> None:
        """Send nothing more. The caller holds the lock."""
        self._closing = True
        self._lanes.clear()
        self._work.notify_all()

    def join(self, timeout_s: float) -> None:
        """Wait for requests that are under way, *timeout_s* altogether or not much longer."""
        for thread in list(self._threads):
            if thread is not threading.current_thread():
                thread.join(timeout_s)
                if thread.is_alive():  # it ends with the process
                    timeout_s = 0

    def _start_one(self) -> None:
        name = f"leasehold-renew-{self._started}"
        self._started += 1
        try:
            self._threads.add(start_thread(name, self._time, self._run))
        except RuntimeError:
            if not self._threads:
                raise
            _log.warning("no more threads to renew leases; %d continue", len(self._threads))

    def _run(self) -> None:
        try:
            while (found := self._next()) is not None:
                key, batch = found
                self._serve(batch)
                self._served(key)
        except BaseException as error:  # noqa: BLE001 - whatever it is, leases are not kept
            self._failed(error)

    def _next(self) -> tuple[int, Batch] | None:
        with self._work:
            while not self._closing:
                found = self._pick()
                if found is not None:
                    return found
                self._idle += 1
                self._time.wait(self._work, None)
                self._idle -= 1
            return None

    def _pick(self) -> tuple[int, Batch] | None:
        most = max(1, self._parallel - self.clients + 1)
        for key, lane in self._lanes.items():
            if lane.batches and lane.running < most:
                lane.running += 1
                self._waiting -= 1
                # Behind the others, for the next one who looks.
                self._lanes[key] = self._lanes.pop(key)
                return key, lane.batches.popleft()
        return None

    def _served(self, key: int) -> None:
        with self._work:
            lane = self._lanes.get(key)
            if lane is not None:
                lane.running -= 1
                if not lane.running and not lane.batches:
                    del self._lanes[key]
