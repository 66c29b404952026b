"""Workers with handlers of hidden lengths, against a real server whose clock the driver moves."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import count

import numpy as np

from leasehold.client import LeaseLost, QueueHandle
from leasehold.client.models import ReceivedMessage
from leasehold.testing import InProcessServer


@dataclass
class Round:
    """What was seen of one round."""

    lease_s: int
    """The timeout in force."""
    messages: int = 0
    done: int = 0
    redeliveries: int = 0
    late: int = 0
    kills: list[tuple[float, float]] = field(default_factory=list)
    """Of each: seconds of work before the death, and seconds until its lease was over."""


class Drive:
    """Plays rounds.

    Args:
        server: On a virtual clock.
        queue: With nothing in it.
        lengths: Draws how long messages take, seconds; each takes as long every time.
        crash_rate: Deaths of a worker, per second of work.
        workers: How many there are; one that dies is back after 10 s.
        load: Share of the workers that is busy.
    """

    def __init__(
        self,
        server: InProcessServer,
        queue: QueueHandle,
        lengths: Callable[[np.random.Generator, int], np.ndarray],
        *,
        crash_rate: float,
        workers: int = 8,
        load: float = 0.5,
    ) -> None:
        self._server, self._queue = server, queue
        self._lengths, self._crash_rate = lengths, crash_rate
        self._workers, self._load = workers, load
        self._random = np.random.default_rng(11)
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._numbers = count()
        self._idle = workers
        self._known: dict[str, float] = {}
        self._round = Round(lease_s=0)

    def play(self, messages: int) -> Round:
        """Put messages, and go on until most are done; the rest goes on in the next round."""
        drawn = self._lengths(self._random, messages)
        lease_s = self._queue.info().visibility_timeout_s
        found = self._round = Round(lease_s=lease_s, messages=messages)
        gap_s = float(drawn.mean()) / (self._workers * self._load)
        at_ms = self._server.now_ms()
        for length in drawn.tolist():
            at_ms += int(1000 * self._random.exponential(gap_s))
            self._at(at_ms, partial(self._put, length))
        while self._events and self._events[0][0] <= at_ms:
            self._step()
        return found

    def _at(self, at_ms: int, do: Callable[[], None]) -> None:
        heapq.heappush(self._events, (at_ms, next(self._numbers), do))

    def _step(self) -> None:
        at_ms, _, do = heapq.heappop(self._events)
        wait_ms = at_ms - self._server.now_ms()
        if wait_ms > 0:
            self._server.advance(wait_ms / 1000)
        do()

    def _put(self, length_s: float) -> None:
        message = self._queue.put(f"{length_s:.3f}")
        self._known[message.id] = length_s
        self._poll()

    def _poll(self) -> None:
        if not self._idle:
            return
        for message in self._queue.receive(min(self._idle, 32), holder="driven"):
            self._idle -= 1
            self._begin(message)

    def _begin(self, message: ReceivedMessage) -> None:
        now_ms = self._server.now_ms()
        self._round.redeliveries += message.dequeue_count > 1
        length_s = self._known[message.id]
        # Somebody who is idle then asks again when the lease is over.
        self._at(message.visible_at_ms + 1, self._poll)
        dies_s = float(self._random.exponential(1 / self._crash_rate))
        if dies_s < length_s:
            hidden_s = (message.visible_at_ms - now_ms) / 1000 - dies_s
            self._round.kills.append((dies_s, max(0.0, hidden_s)))
            self._at(now_ms + int(1000 * (dies_s + 10)), self._free)
        else:
            self._at(now_ms + int(1000 * length_s), lambda: self._finish(message))

    def _finish(self, message: ReceivedMessage) -> None:
        try:
            self._queue.complete(message)
            self._round.done += 1
        except LeaseLost:
            self._round.late += 1
        self._free()

    def _free(self) -> None:
        self._idle += 1
        self._poll()
