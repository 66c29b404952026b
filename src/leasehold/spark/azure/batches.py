"""Messages on leases, by the micro-batch that they are in; all of it on the driver."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol, TypeVar

from leasehold.worker.errors import LeaseLost
from leasehold.worker.leases import Held
from leasehold.worker.queues.errors import LeaseGone, QueueError, Unreachable
from leasehold.worker.queues.protocol import Delivery, Depth, Fault, Lease, QueueClient
from leasehold.worker.timing import Time

T = TypeVar("T")
R = TypeVar("R")

_log: Final = logging.getLogger("leasehold.spark")
AT_ONCE: Final = 16
"""Requests under way at a time: each settles one message, or receives a few."""
_FIRST_PAUSE_S: Final = 0.25
_LONGEST_PAUSE_S: Final = 5.0
_LOOK_EVERY_S: Final = 0.25


class Manager(Protocol):
    """What keeps leases: the manager of the worker library."""

    def keep(
        self,
        client: QueueClient,
        delivery: Delivery,
        *,
        asked_at_s: float,
        lease_s: int | None = None,
    ) -> Held:
        """Keep a lease from now on."""
        ...

    def close(self) -> None:
        """Keep nothing any more."""
        ...


@dataclass(slots=True)
class _Tries:
    """The tries of one call."""

    maybe_done: bool = False
    """Whether one of them had no clear answer and may have been carried out."""


class Batches:
    """Receives messages, has their leases kept, and completes them when their batch is durable.

    Args:
        client: The queue.
        manager: Keeps the leases; closed with this.
        time: By which it goes.
        lease_s: Visibility timeout of each receive, in seconds.
        patience_s: How long to go on trying while the service does not answer.
    """

    def __init__(
        self,
        client: QueueClient,
        manager: Manager,
        time: Time,
        *,
        lease_s: int,
        patience_s: float,
    ) -> None:
        self._client = client
        self._manager = manager
        self._time = time
        self._lease_s = lease_s
        self._patience_s = patience_s
        self._held: dict[int, list[Held]] = {}
        self._bad: dict[int, dict[str, str]] = {}
        self._pool = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="leasehold-azure")
        self._waiting = threading.Condition()
        self._is_closed = False
        self.lost = 0
        """Messages whose lease was lost before their batch was durable: they come again."""

    @property
    def held(self) -> int:
        """How many messages are on lease."""
        return sum(map(len, self._held.values()))

    def has(self, number: int) -> bool:
        """Tell whether batch *number* is here."""
        return number in self._held

    def deliveries(self, number: int) -> list[Delivery]:
        """Return the messages of a batch in their order; none of one that is not here."""
        return [held.delivery for held in self._held.get(number, ())]

    def note_bad(self, number: int, bad: dict[str, str]) -> None:
        """Have messages of a batch, by id, set aside with a reason when it is settled."""
        self._bad[number] = bad

    def depth(self) -> Depth:
        """Return how many messages the service says there are."""
        return self._patiently(self._client.depth)

    def estimate(self) -> int | None:
        """Return how many messages the service says there are; None if it does not say now."""
        try:
            return self._client.depth().total
        except QueueError as error:
            _log.debug("no numbers for the progress report: %s", error)
            return None

    def take(self, number: int, most: int, max_bytes: int, wait_s: float) -> int:
        """Receive messages as batch *number*, and return how many; 0: there were none.

        Args:
            number: Of the batch.
            most: Messages, 1 or more.
            max_bytes: Bytes of bodies after which no further receive is sent.
            wait_s: Seconds to look for a first message again and again.
        """
        until_s = self._time.monotonic_s() + wait_s
        taken: list[Held] = []
        while True:
            got = self._receive(most - len(taken))
            taken += got
            size = sum(len(held.delivery.body) for held in taken)
            if taken and (not got or len(taken) >= most or size >= max_bytes):
                break
            if not got and self._time.monotonic_s() >= until_s:
                return 0
            if not got:
                self._pause(_LOOK_EVERY_S)
        self._held[number] = taken
        return len(taken)

    def settle(self, upto: int) -> frozenset[str]:
        """Complete the messages of all batches up to a number; set the bad ones aside.

        Returns:
            Ids of those for which it was not done: they may come again.
        """
        left: set[str] = set()
        for number in sorted(each for each in self._held if each <= upto):
            bad = self._bad.pop(number, {})
            helds = self._held.pop(number)
            done = self._each(helds, partial(self._settle, bad=bad))
            missed = [held for held, is_done in zip(helds, done, strict=True) if not is_done]
            if missed:
                self.lost += len(missed)
                left |= {held.delivery.message_id for held in missed}
                _log.warning(
                    "micro-batch %d: %d of %d messages were not completed, and may come again",
                    number,
                    len(missed),
                    len(helds),
                )
        return frozenset(left)

    def close(self) -> None:
        """Keep nothing any more: what is not settled is visible again when its lease ends."""
        self._is_closed = True
        self._manager.close()
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._client.close()

    # --- requests ------------------------------------------------------------------------------

    def _receive(self, most: int) -> list[Held]:
        """Send a few receives at once; stops short of none being left."""
        page = self._client.capabilities.max_receive
        sizes = [page] * min(AT_ONCE, most // page) or [most]

        def receive(size: int) -> list[Held]:
            return self._patiently(lambda: self._receive_once(size))

        return [held for helds in self._each(sizes, receive) for held in helds]

    def _receive_once(self, size: int) -> list[Held]:
        # Of each try by itself: those before it may have waited for long.
        asked_at_s = self._time.monotonic_s()
        taken = []
        for delivery in self._client.receive(size, visibility_timeout_s=self._lease_s):
            try:
                taken.append(self._manager.keep(self._client, delivery, asked_at_s=asked_at_s))
            except LeaseLost as error:
                _log.warning("message %s comes again: %s", delivery.message_id, error)
        return taken

    def _settle(self, held: Held, bad: dict[str, str]) -> bool:
        """Complete or bury one message; tell whether that was done."""
        try:
            lease = held.begin_settling()
        except LeaseLost:
            return False
        reason = bad.get(held.delivery.message_id)
        tries = _Tries()
        result: QueueError | None = None
        try:
            if reason is not None:
                fault = Fault(text=reason, type="BadRecord")
                self._patiently(
                    lambda: self._client.bury(held.delivery, lease.receipt, fault), tries
                )
            else:
                result = self._patiently(lambda: self._completed(lease), tries)
        except QueueError as error:
            result = error
        if reason is None and isinstance(result, LeaseGone) and self._was_done(held, tries):
            result = None
        return held.settled(result, completing=reason is None)

    def _was_done(self, held: Held, tries: _Tries) -> bool:
        """Tell whether a message is gone because a completion without an answer was carried out.

        Not so if its lease is over, or a renewal without an answer has changed the receipt.
        """
        in_time = self._time.monotonic_s() < held.deadline_s
        return tries.maybe_done and in_time and not held.is_ambiguous

    def _completed(self, lease: Lease) -> QueueError | None:
        [result] = self._client.complete([lease])
        if isinstance(result, Unreachable):
            raise result
        return result

    def _patiently(self, call: Callable[[], R], tries: _Tries | None = None) -> R:
        """Make a call again while the service does not answer.

        Args:
            call: What to do.
            tries: Takes note of what its tries may have done.

        Raises:
            QueueError: It was refused, or there was no answer for too long. Its outcome is unknown
                if that of any try was.
        """
        tries = tries or _Tries()
        until_s = self._time.monotonic_s() + self._patience_s
        pause_s = _FIRST_PAUSE_S
        while True:
            try:
                return call()
            except Unreachable as error:
                tries.maybe_done = error.outcome_unknown = tries.maybe_done or error.outcome_unknown
                if self._is_closed or self._time.monotonic_s() + pause_s > until_s:
                    raise
                _log.warning("the queue does not answer, trying again: %s", error)
            self._pause(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _pause(self, length_s: float) -> None:
        with self._waiting:
            self._time.wait(self._waiting, length_s)

    def _each(self, items: Sequence[T], call: Callable[[T], R]) -> list[R]:
        return list(self._pool.map(call, items)) if len(items) > 1 else [call(x) for x in items]
