"""Settling: completing, giving back and burying what handlers are done with, many at a time."""

from __future__ import annotations

import logging
import math
import random
import threading
from collections import defaultdict, deque
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from heapq import heapify, heappop, heappush
from itertools import chain, count
from typing import Final, Protocol, TypeAlias, TypeVar, cast

from leasehold.worker.adapters.fallbacks import request_timeout_s
from leasehold.worker.adapters.protocol import (
    Denied,
    Forward,
    Forwards,
    Lease,
    LeaseGone,
    QueueError,
    SetAside,
    Unreachable,
)
from leasehold.worker.core import Core, Source, Work, has_expired
from leasehold.worker.errors import LeaseLost
from leasehold.worker.message import FORWARDED
from leasehold.worker.outcomes import (
    COMPLETE,
    Bury,
    Complete,
    Give,
    GivenBackOften,
    Kind,
    Outcome,
    fault_of,
    settlement_of,
    tried_of,
)
from leasehold.worker.retry_policy import PoisonRule, RetryRule
from leasehold.worker.timing import start_thread
from leasehold.worker.tracing import settling_of

T = TypeVar("T")
T_contra = TypeVar("T_contra", contravariant=True)
_Results: TypeAlias = Sequence[QueueError | None]


class _Call(Protocol[T_contra]):
    def __call__(
        self, items: Sequence[T_contra], /, *, timeout_s: float | None
    ) -> list[QueueError | None]: ...


_log: Final = logging.getLogger("leasehold.worker")
_random: Final = random.SystemRandom()
_FIRST_PAUSE_S: Final = 0.1
_LONGEST_PAUSE_S: Final = 5.0
_UNCOUNTED: Final = frozenset({Kind.RETURNED, Kind.INTERRUPTED})
MOST_THREADS: Final = 16
_LEAST_CALL_S: Final = 0.5
CLOSING_S: Final = 10.0
"""How long a worker that stops goes on trying to settle what got no answer."""


def threads_for(concurrency: int, max_settle: int) -> int:
    """Return how many calls that settle may be under way at once.

    One is enough where a call takes all that has come meanwhile. Where each takes a few, or is a
    request for each message, handlers would otherwise wait for those before them.
    """
    return max(1, min(MOST_THREADS, -(-concurrency // max_settle)))


class Settler:
    """Settles the messages of one queue, in threads of its own.

    There is no delay: what comes while a call is under way goes with the next one. A call that got
    no answer is made again until the lease has ended.

    Args:
        core: The worker.
        source: The queue.
        retries: When messages are tried again.
        poison: When they are set aside.
    """

    def __init__(
        self, core: Core, source: Source, *, retries: RetryRule, poison: PoisonRule
    ) -> None:
        self._core = core
        self._source = source
        self._client = source.client
        self._retries = retries
        self._poison = poison
        self._settling = settling_of(core.hooks.every)
        self._returns = GivenBackOften()
        self._most = source.capabilities.max_settle
        self._new: deque[Work] = deque()
        self._again: list[tuple[float, int, Work]] = []
        self._numbers = count()
        self._changed = threading.Condition()
        self._idle = 0
        self._under_way = 0
        self._at_work = 0
        self._is_closing = False
        self._end_s = math.inf
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Begin."""
        self._at_work = threads_for(self._core.concurrency, self._most)
        self._threads = [
            start_thread(
                f"leasehold-settle-{self._source.name}-{place}", self._core.time, self._run
            )
            for place in range(self._at_work)
        ]

    def put(self, work: Work) -> None:
        """Have a message settled, whose outcome is known. From any thread, and never waits."""
        self._new.append(work)
        # Who goes idle looks once more after it has said so.
        if self._idle:
            with self._changed:
                self._changed.notify()

    def close(self) -> None:
        """Settle what is there, then end. What cannot be settled in some time is given up."""
        with self._changed:
            self._is_closing = True
            now_s = self._core.now_s()
            self._end_s = now_s + CLOSING_S
            # What only waits so as not to come round too soon need not wait for that any more, and
            # for the rest there is no later try than this.
            end_s = self._end_s
            self._again = [
                (min(due_s, end_s) if w.tries else now_s, n, w) for due_s, n, w in self._again
            ]
            heapify(self._again)
            self._changed.notify_all()
            while self._at_work:
                self._core.time.wait(self._changed, None)
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        while batch := self._next():
            try:
                self._settle(batch)
            except Exception:  # noqa: BLE001 - others have to be settled too, and their leases wait
                _log.exception("settling messages of %s", self._source.name)
                self._core.stats.note_settle_errors(self._source.place, len(batch))
                self._core.ended(self._source, batch)
            finally:
                with self._changed:
                    self._under_way -= 1
                    if self._is_closing:
                        self._changed.notify_all()
        with self._changed:
            self._at_work -= 1
            self._changed.notify_all()

    def _next(self) -> list[Work]:
        """Wait for something to settle, and take it; nothing: it is the end."""
        with self._changed:
            while True:
                batch = self._due()
                if batch:
                    self._under_way += 1
                    return batch
                if self._is_closing and not self._again and not self._under_way:
                    return []
                self._idle += 1
                if not self._new:
                    pause_s = self._again[0][0] - self._core.now_s() if self._again else None
                    self._core.time.wait(self._changed, pause_s)
                self._idle -= 1

    def _due(self) -> list[Work]:
        batch: list[Work] = []
        now_s = self._core.now_s() if self._again else 0.0
        while self._again and self._again[0][0] <= now_s and len(batch) < self._most:
            batch.append(heappop(self._again)[2])
        new = self._new
        while new and len(batch) < self._most:
            batch.append(new.popleft())
        return batch

    def _settle(self, batch: list[Work]) -> None:
        by_kind: defaultdict[type, list[Work]] = defaultdict(list)
        gone: list[Work] = []
        for work in batch:
            if work.lease is None:
                if not self._is_prepared(work):
                    gone.append(work)
                    continue
                if self._hold_back(work):
                    continue
            by_kind[type(work.settlement)].append(work)
        for work in self._forward(by_kind.pop(Forward, [])):
            by_kind[type(work.settlement)].append(work)
        if completes := by_kind.pop(Complete, []):
            leases = [_done(work) for work in completes]
            self._take_note(completes, self._results(self._client.complete, leases, completes))
        if gives := by_kind.pop(Give, []):
            releases = [
                work.settlement.release(_lease(work))
                for work in gives
                if isinstance(work.settlement, Give)
            ]
            self._take_note(gives, self._results(self._client.release, releases, gives))
        for work in chain.from_iterable(by_kind.values()):
            self._take_note([work], [self._bury(work)])
        self._core.ended(self._source, gone)

    def _is_prepared(self, work: Work) -> bool:
        """Prepare a message; False: nothing can be done, be it for a fault of this library."""
        try:
            return self._prepare(work)
        except Exception as error:  # noqa: BLE001 - others have to be settled too
            self._give_up(work, self._broken(error))
            return False

    def _prepare(self, work: Work) -> bool:
        """Decide what is done with a message, and end its renewals; False: nothing can be done."""
        try:
            work.lease = work.held.begin_settling()
        except LeaseLost as loss:
            self._lost(work, str(loss))
            return False
        self._decide(work)
        return True

    def _decide(self, work: Work) -> None:
        outcome = work.outcome or Outcome(Kind.LOST)
        if outcome.kind is Kind.DONE:
            message = work.message
            work.settlement = outcome.forward or (message.forward if message else None) or COMPLETE
            return
        tried = None
        if outcome.kind is Kind.FAILED and self._poison.may_be_last(work.delivery):
            tried = tried_of(self._client, work.delivery)
        work.settlement = settlement_of(
            outcome,
            work.delivery,
            retries=self._retries,
            poison=self._poison,
            max_delay_s=self._source.capabilities.max_lease_s,
            jitter=_random.random(),
            tried=tried,
        )

    def _forward(self, works: Sequence[Work]) -> list[Work]:
        """Have messages go on in other queues; return those that are refused there.

        Their work has failed, such as for want of the other queue.
        """
        given: list[tuple[Lease, Forward]] = []
        for work in works:
            to, left_s = work.settlement, work.held.expires_s - self._core.now_s()
            if isinstance(to, Forward):
                # It is not to live longer than it would have here.
                life_s = -1 if math.isinf(left_s) else max(1, math.ceil(left_s))
                outgoing = replace(to.outgoing, time_to_live_s=life_s)
                lease = replace(_lease(work), result={FORWARDED: to.queue})
                given.append((lease, replace(to, outgoing=outgoing)))
        if not given:
            return []
        results = self._results(cast("Forwards", self._client).forward, given, works)
        refused: list[Work] = []
        for work, (_, to), result in zip(works, given, results, strict=True):
            if result is None or isinstance(result, LeaseGone | Unreachable):
                self._take_note([work], [result])
            else:
                fault = fault_of(result)
                text = f"it cannot continue in queue {to.queue}: {fault.text}"
                work.outcome = Outcome(Kind.FAILED, replace(fault, text=text))
                self._decide(work)
                refused.append(work)
        return refused

    def _hold_back(self, work: Work) -> bool:
        """Have a message wait that handlers here give back again and again.

        It would come back at once, and where the service counts no returns do so without end. Who
        stops work although nobody has asked for it gives it back as well.

        Returns:
            Whether it is given back later; otherwise it is now, if need be with a delay.
        """
        outcome = work.outcome
        if outcome is None or outcome.kind not in _UNCOUNTED or work.message is None:
            return False
        if self._core.is_stopping or not isinstance(work.settlement, Give):
            return False
        now_s = self._core.now_s()
        hold_s, delay_s = self._returns.pause(work.delivery.message_id, now_s)
        if delay_s is not None:
            work.settlement = work.settlement._replace(delay_s=delay_s)
        if not hold_s or now_s + hold_s >= work.held.deadline_s:
            return False
        with self._changed:
            if self._is_closing:
                return False
            heappush(self._again, (now_s + hold_s, next(self._numbers), work))
            self._changed.notify()
        return True

    def _bury(self, work: Work) -> QueueError | None:
        if not isinstance(work.settlement, Bury):
            raise TypeError("it must not be buried")
        fault, receipt = work.settlement.fault, _lease(work).receipt
        try:
            with self._traced([work]):
                self._client.bury(work.delivery, receipt, fault, timeout_s=self._limit_s(work))
        except QueueError as error:
            return error
        except Exception as error:  # noqa: BLE001 - others have to be settled too
            return self._broken(error)
        self._source.condemned.forget(work.delivery.message_id)
        if work.outcome is not None and work.outcome.kind is Kind.FAILED:
            work.outcome = work.outcome._replace(kind=Kind.POISONED)
        _log.error(
            "message %s of %s was set aside: %s",
            work.delivery.message_id,
            self._source.name,
            fault.text,
        )
        return None

    def _take_note(self, works: Sequence[Work], results: Sequence[QueueError | None]) -> None:
        """Go on with each message by what the service said to it."""
        over: list[Work] = []
        for work, result in zip(works, results, strict=True):
            if self._is_over(work, result):
                over.append(work)
        self._core.ended(self._source, over)
        settled = self._core.hooks.settled
        if settled:
            for work in over:
                if work.outcome is not None and work.outcome.kind is not Kind.LOST:
                    self._core.hooks.quietly(settled, work.delivery, work.outcome)

    def _is_over(self, work: Work, result: QueueError | None) -> bool:
        """Return whether nothing more can be done about a message."""
        held = work.held
        is_set_aside = isinstance(result, SetAside)
        is_gone = isinstance(result, LeaseGone) and not is_set_aside
        was_done = is_gone and work.unsure and self._is_one_step(work)
        # After its end that is what would be said in any case.
        was_done = was_done and self._core.now_s() < held.deadline_s
        if was_done and not held.is_ambiguous:
            # An earlier try had no answer, and was carried out. Not so if a renewal without an
            # answer had taken its receipt away; then a new one is found out below.
            result = None
        if isinstance(result, Unreachable):
            work.unsure = work.unsure or result.outcome_unknown
        # What was not forwarded is not done: whoever has it next must do so.
        completing = isinstance(work.settlement, Complete if result else Complete | Forward)
        if held.settled(result, completing=completing):
            return True
        lease = held.retry_lease()
        if lease is not None:
            work.lease = lease
            if self._try_again(work, result):
                return False
        elif was_done:
            return True
        if isinstance(work.settlement, Bury) and (work.unsure or not is_gone):
            self._source.condemned.add(work.delivery, work.settlement.fault)
        if is_set_aside:
            self._lost(work, str(result), "it was set aside")
        elif is_gone:
            self._lost(work, str(result))
        else:
            self._give_up(work, result)
        return True

    def _is_one_step(self, work: Work) -> bool:
        """Return whether no answer means that all was done or nothing.

        Where a burial takes several requests its client alone knows how far it came.
        """
        return self._source.capabilities.server_poison or not isinstance(work.settlement, Bury)

    def _pause_s(self, work: Work, error: QueueError | None) -> float:
        if not isinstance(error, Unreachable):
            return 0.0
        # More often towards the end of the lease, when another worker gets the message.
        left_s = work.held.deadline_s - self._core.now_s()
        longest_s = max(_FIRST_PAUSE_S, min(_LONGEST_PAUSE_S, left_s / 3))
        pause_s = min(longest_s, _FIRST_PAUSE_S * 2.0 ** min(work.tries, 16))
        # A service that asks for more time than there is would have it delivered again.
        asked_s = min(error.retry_after_s or 0.0, left_s / 2)
        return max(pause_s * (0.5 + _random.random()), asked_s)

    def _try_again(self, work: Work, error: QueueError | None) -> bool:
        """Have it tried once more; False: the worker ends, and cannot wait for that."""
        due_s = self._core.now_s() + self._pause_s(work, error)
        work.tries += 1
        with self._changed:
            if due_s > self._end_s:
                return False
            heappush(self._again, (due_s, next(self._numbers), work))
            self._changed.notify()
            return True

    def _lost(self, work: Work, why: str, follows: str | None = None) -> None:
        if follows is None:
            why = work.loss or why  # the same text to everybody
        what = "is done" if work.outcome is not None and work.outcome.kind is Kind.DONE else "ended"
        is_over = has_expired(work.held)
        again = "it was not settled" if is_over else "its lease is lost, so it is delivered again"
        _log.warning(
            "the work on message %s of %s %s, but %s: %s",
            *(work.delivery.message_id, self._source.name, what, follows or again, why),
        )
        work.outcome = Outcome(Kind.LOST)
        self._core.tell_lost(work.delivery, why, has_expired=is_over)

    def _give_up(self, work: Work, error: QueueError | None) -> None:
        self._core.stats.note_settle_errors(self._source.place)
        _log.error(
            "message %s of %s could not be settled (%s), so it may be delivered again: %s",
            *(work.delivery.message_id, self._source.name),
            *("?" if work.outcome is None else work.outcome.kind.value, error),
        )
        # Whatever its handler did, the service has taken no note of it.
        work.outcome = Outcome(Kind.LOST)
        why = f"it could not be settled: {error}"
        self._core.hooks.quietly(self._core.hooks.lost, work.delivery, why)

    def _limit_s(self, work: Work) -> float:
        """Return how long a request may take."""
        limit_s = request_timeout_s(work.held.settings.visibility_timeout_s)
        return max(_LEAST_CALL_S, min(limit_s, self._end_s - self._core.now_s()))

    def _results(self, call: _Call[T], items: Sequence[T], works: Sequence[Work]) -> _Results:
        """Make a call for many; if it fails as a whole, that is what came of each."""
        try:
            with self._traced(works):
                results = call(items, timeout_s=self._limit_s(works[0]))
            if len(results) != len(items):
                raise TypeError(f"{len(items)} to settle, {len(results)} results")  # noqa: TRY301
        except QueueError as error:
            return [error] * len(items)
        except Exception as error:  # noqa: BLE001 - others have to be settled too
            return [self._broken(error)] * len(items)
        return results

    def _traced(self, works: Sequence[Work]) -> AbstractContextManager[None]:
        if self._settling is None:
            return nullcontext()
        return self._settling([(work.message, work.delivery) for work in works])

    def _broken(self, error: Exception) -> QueueError:
        """Return what a client means that fails as none should: to repeat it is of no use."""
        _log.error("settling messages of %s", self._source.name, exc_info=error)
        return Denied(f"the client has failed: {type(error).__name__}")


def _lease(work: Work) -> Lease:
    if work.lease is None:
        raise RuntimeError("it is not being settled")
    return work.lease


def _done(work: Work) -> Lease:
    """Return the lease of a message whose work is done, with what came of it."""
    lease, outcome, message = _lease(work), work.outcome, work.message
    result = None if outcome is None else outcome.result
    if result is None and message is not None:
        result = message.result
    return lease if result is None else replace(lease, result=result)
