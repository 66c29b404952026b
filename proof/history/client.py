"""One client: a process that calls queues by a seeded schedule and writes down what it sees."""

from __future__ import annotations

import multiprocessing
import random
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from proof.history.adapters import Connector, Promise, Queue, Refused, Unknown
from proof.history.records import (
    Completion,
    Delivery,
    Invocation,
    Outcome,
    Recorder,
    Verb,
    body_of,
    message_of,
)

LEASES_S: Final = (1, 1, 2, 3)
"""Lengths of leases that clients ask for, seconds."""
DELAYS_S: Final = (0, 0, 0, 0, 1, 2)
"""Delays that clients ask for, seconds."""
LONGEST_S: Final = max(*LEASES_S, *DELAYS_S)
"""After so many seconds nothing that a client has asked for hides a message any more."""
_SIZES: Final = (0, 0, 0, 100, 2_000, 20_000)
_PAUSE_S: Final = 0.02
_PAUSES_AT_MOST: Final = 10
_STALE_KEPT: Final = 8
_HELD_AT_MOST: Final = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What a client is to do."""

    name: str
    connector: Connector
    promise: Promise
    queues: Sequence[str]
    ordered: Sequence[str] = ()
    """Queues whose groups are in order."""
    folder: Path
    """Where its file is to be."""
    seed: int
    least_pause_s: float = 0.0
    """Between two calls."""
    leases_s: Sequence[int] = LEASES_S
    delays_s: Sequence[int] = DELAYS_S


class Caller:
    """Makes calls of one queue and writes them down.

    Args:
        name: Of the client.
        queue: Name of the queue.
        recorder: Where to.
        now_s: The clock of the record, seconds.
        numbers: Returns the number of the next call of the client.
    """

    def __init__(
        self,
        name: str,
        queue: str,
        recorder: Recorder,
        numbers: Callable[[], int],
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.queue = queue
        self.is_busy = False
        """Whether the last call was refused for now."""
        self._name = name
        self._recorder = recorder
        self._numbers = numbers
        self._now_s = now_s

    def put(self, to: Queue, message: str, *, size: int, delay_s: float, group: str) -> Outcome:
        """Put a message."""

        def call() -> dict[str, Any]:
            to.put(body_of(message, size), delay_s=delay_s, group=group)
            return {}

        return self._call(
            call, verb=Verb.PUT, message=message, hidden_s=delay_s, group=group
        ).outcome

    def receive(self, to: Queue, limit: int, lease_s: float) -> Completion:
        """Take messages."""
        return self._call(
            lambda: {"delivered": _short(to.receive(limit, lease_s))},
            verb=Verb.RECEIVE,
            hidden_s=lease_s,
            limit=limit,
        )

    def peek(self, to: Queue, limit: int) -> Completion:
        """Look at messages."""
        call = self._call
        return call(lambda: {"delivered": _short(to.peek(limit))}, verb=Verb.PEEK, limit=limit)

    def renew(self, to: Queue, held: Delivery, lease_s: float, saved: str) -> Completion:
        """Move the end of a lease."""
        return self._call(
            lambda: {"token": to.renew(held, lease_s, saved)},
            verb=Verb.RENEW,
            message=message_of(held.body),
            token=held.token,
            hidden_s=lease_s,
            saved=saved,
        )

    def release(self, to: Queue, held: Delivery, delay_s: float) -> Completion:
        """Give a message back."""

        def call() -> dict[str, Any]:
            to.release(held, delay_s)
            return {}

        return self._call(
            call,
            verb=Verb.RELEASE,
            message=message_of(held.body),
            token=held.token,
            hidden_s=delay_s,
        )

    def complete(self, to: Queue, held: Delivery) -> Completion:
        """Remove a message."""

        def call() -> dict[str, Any]:
            to.complete(held)
            return {}

        message = message_of(held.body)
        return self._call(call, verb=Verb.COMPLETE, message=message, token=held.token)

    def count(self, to: Queue) -> Completion:
        """Ask how many messages there are."""
        return self._call(lambda: {"count": to.count()}, verb=Verb.COUNT)

    def _call(self, call: Callable[[], dict[str, Any]], **asked: Any) -> Completion:
        number = self._numbers()
        who: dict[str, Any] = {"client": self._name, "number": number}
        self._recorder.add(Invocation(**who, queue=self.queue, invoked_s=self._now_s(), **asked))
        told: dict[str, Any]
        try:
            told = {**call(), "outcome": Outcome.OK}
        except Refused as refusal:
            told = {"outcome": Outcome.REFUSED, "reason": str(refusal)}
        except Unknown as reason:
            told = {"outcome": Outcome.UNKNOWN, "reason": str(reason)[:200]}
        completion = Completion(**who, completed_s=self._now_s(), **told)
        self._recorder.add(completion)
        self.is_busy = completion.reason.startswith("busy")
        return completion


def _short(deliveries: Sequence[Delivery]) -> tuple[Delivery, ...]:
    """Return deliveries with the bodies that are whole left out of the record, but for the name."""
    return tuple(
        Delivery(
            body=body_of(message_of(each.body)) if message_of(each.body) else each.body[:200],
            token=each.token,
            attempt=each.attempt,
            message_id=each.message_id,
            saved=each.saved,
        )
        for each in deliveries
    )


class Schedule:
    """A bit of everything, by a seed. It holds receipts, and goes on using old ones.

    Args:
        job: What to do.
        now_s: The clock of the record, seconds.
    """

    def __init__(self, job: Job, now_s: Callable[[], float] = time.monotonic) -> None:
        self._job = job
        self._rng = random.Random(f"{job.seed}/{job.name}")
        self.recorder = Recorder(job.folder / f"{job.name}.jsonl")
        self._calls = 0
        self._puts = 0
        self._callers = {
            queue: Caller(job.name, queue, self.recorder, self._number, now_s)
            for queue in (*job.queues, *job.ordered)
        }
        self._open: dict[str, Queue] = {}
        self._held: dict[str, list[Delivery]] = {queue: [] for queue in self._callers}
        self._stale: dict[str, list[Delivery]] = {queue: [] for queue in self._callers}

    def step(self) -> bool:
        """Make one call; tell whether the next one may follow at once."""
        queue = self._rng.choice(list(self._callers))
        try:
            if queue not in self._open:
                self._open[queue] = self._job.connector.open(queue)
            outcome = self._act(self._callers[queue], self._open[queue])
        except Unknown:  # it could not connect
            return False
        if outcome is Outcome.UNKNOWN:
            self._close(queue)
        return outcome is not Outcome.UNKNOWN and not self._callers[queue].is_busy

    def close(self) -> None:
        """Close all connections and the file."""
        for queue in list(self._open):
            self._close(queue)
        self.recorder.close()

    def _close(self, queue: str) -> None:
        with suppress(Unknown, Refused):
            self._open.pop(queue).close()

    def _number(self) -> int:
        self._calls += 1
        return self._calls

    def _act(self, caller: Caller, to: Queue) -> Outcome:
        promise, held = self._job.promise, self._held[caller.queue]
        draw = self._rng.random()
        acts: list[tuple[float, bool, Callable[[Caller, Queue], Outcome]]] = [
            (0.04, promise.counts, self._count_all),
            (0.07, True, self._peek),
            (0.33, len(held) < _HELD_AT_MOST, self._put),
            (0.60, True, self._receive),
            (0.72, promise.renewals and bool(held), self._renew),
            (0.79, promise.releases and bool(held), self._release),
            (1.00, bool(held), self._complete),
            (1.00, True, self._receive),
        ]
        act = next(act for below, is_possible, act in acts if draw < below and is_possible)
        return act(caller, to)

    @staticmethod
    def _count_all(caller: Caller, to: Queue) -> Outcome:
        return caller.count(to).outcome

    @staticmethod
    def _peek(caller: Caller, to: Queue) -> Outcome:
        return caller.peek(to, 8).outcome

    def _put(self, caller: Caller, to: Queue) -> Outcome:
        self._puts += 1
        in_order = caller.queue in self._job.ordered
        # One client alone puts into a group, one after the other: that is what has an order.
        group = f"{self._job.name}-{self._puts % 3}" if in_order else ""
        delays = self._job.promise.delays and not in_order
        return caller.put(
            to,
            f"{self._job.name}.{self._puts}",
            size=self._rng.choice(_SIZES),
            delay_s=self._rng.choice(self._job.delays_s) if delays else 0,
            group=group,
        )

    def _receive(self, caller: Caller, to: Queue) -> Outcome:
        limit = self._rng.randint(1, 4)
        completion = caller.receive(to, limit, self._rng.choice(self._job.leases_s))
        self._held[caller.queue] += [each for each in completion.delivered if message_of(each.body)]
        return completion.outcome

    def _renew(self, caller: Caller, to: Queue) -> Outcome:
        held = self._pick(caller.queue)
        saves = self._job.promise.saves and self._rng.random() < 0.5
        saved = f"{self._job.name}/{self._calls}" if saves else ""
        completion = caller.renew(to, held, self._rng.choice(self._job.leases_s), saved)
        if completion.outcome is Outcome.OK:
            renewed = Delivery(held.body, completion.token, held.attempt, held.message_id)
            self._held[caller.queue].append(renewed)
        return completion.outcome

    def _release(self, caller: Caller, to: Queue) -> Outcome:
        delay_s = self._rng.choice(self._job.delays_s) if self._job.promise.delays else 0
        return caller.release(to, self._pick(caller.queue), delay_s).outcome

    def _complete(self, caller: Caller, to: Queue) -> Outcome:
        return caller.complete(to, self._pick(caller.queue)).outcome

    def _pick(self, queue: str) -> Delivery:
        """Choose a receipt to use up, mostly one that should be good."""
        held, stale = self._held[queue], self._stale[queue]
        if stale and self._rng.random() < 0.12:
            return self._rng.choice(stale)
        chosen = held.pop(self._rng.randrange(len(held)))
        self._stale[queue] = [*stale[1 - _STALE_KEPT :], chosen]
        return chosen


def work(job: Job) -> None:
    """Be the client until SIGTERM comes; for a process of its own."""
    is_over = False

    def end(*_: object) -> None:
        nonlocal is_over
        is_over = True

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    schedule = Schedule(job)
    failures = 0
    parent = multiprocessing.parent_process()
    while not is_over and (parent is None or parent.is_alive()):
        failures = 0 if schedule.step() else failures + 1
        if failures:
            time.sleep(min(failures, _PAUSES_AT_MOST) * _PAUSE_S)
        elif job.least_pause_s:
            time.sleep(job.least_pause_s)
    schedule.close()
