"""How many messages a worker may have, and which of its queues the next ones come from."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from leasehold.worker.timing import Time
from leasehold.worker.weights import Turns, shares_of


class Rooms:
    """A worker has room for as many messages as it works on at once, and those of its buffer.

    A room is taken before a message is asked for, and given back when the message is settled, or
    none came. So a worker never holds more leases than it has rooms.

    With several queues each has a share of the buffer that the others leave alone, so that it can
    wait for its first message while they are busy; the rest goes to whoever wants it, in proportion
    to the weights.

    Args:
        weights: One for each queue.
        concurrency: Messages that are worked on at once.
        prefetch: Messages that may wait in the buffer.
        time: That threads wait by.
    """

    def __init__(
        self, weights: Sequence[float], *, concurrency: int, prefetch: int, time: Time
    ) -> None:
        self._weights = tuple(weights)
        self._time = time
        self._concurrency = concurrency
        self._changed = threading.Condition(threading.Lock())
        self._turns = Turns(weights)
        self._taken = [0] * len(self._weights)
        self._waiting: dict[int, int] = {}
        self._is_closed = False
        self.resize(prefetch)

    def resize(self, prefetch: int) -> None:
        """Set how many messages may wait in the buffer; what is there stays."""
        with self._changed:
            self._prefetch = prefetch
            self._shares = shares_of(prefetch, self._weights)
            if len(self._weights) == 1:
                self._shares = [self._concurrency + prefetch]
            self._changed.notify_all()

    @property
    def prefetch(self) -> int:
        """How many messages may wait in the buffer."""
        return self._prefetch

    @property
    def taken(self) -> int:
        """How many rooms are taken."""
        return sum(self._taken)

    def share(self, queue: int) -> int:
        """Return how many rooms a queue can keep while it waits for messages; 0: not even one."""
        return self._shares[queue]

    def take(self, queue: int, most: int) -> int:
        """Take from 1 to *most* rooms, and wait for them if need be; 0: the worker stops.

        With a large buffer it waits until half of that is free, rather than ask for single
        messages.
        """
        with self._changed:
            self._waiting[queue] = most
            while not self._is_closed and (count := self._allowed(queue)) == 0:
                self._time.wait(self._changed, None)
            del self._waiting[queue]
            if self._is_closed:
                return 0
            self._taken[queue] += count
            self._changed.notify_all()
            return count

    def give_back(self, queue: int, count: int) -> None:
        """Give rooms back."""
        if count:
            with self._changed:
                self._taken[queue] -= count
                self._changed.notify_all()

    def received(self, queue: int, count: int) -> None:
        """Note that messages came from a queue: others are next."""
        with self._changed:
            self._turns.took(queue, count)

    def close(self) -> None:
        """Let nobody take a room any more."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def _allowed(self, queue: int) -> int:
        """Return how many rooms a queue gets now, as far as it is its turn."""
        count = self._worthwhile(queue)
        if count and self._turns.first(filter(self._worthwhile, self._waiting)) == queue:
            return count
        return 0

    def _worthwhile(self, queue: int) -> int:
        """Return how many rooms a queue could get, or 0 if it is better to wait for more."""
        most = self._waiting[queue]
        count = min(most, self._free(queue))
        enough = min(self._prefetch // len(self._weights), self._shares[queue]) // 2
        return count if count >= min(most, max(1, enough)) else 0

    def _free(self, queue: int) -> int:
        """Return how many rooms a queue may take: all that are free but the shares of others."""
        taken = self._taken
        free = self._concurrency + self._prefetch - sum(taken)
        kept = sum(
            max(0, share - taken[other])
            for other, share in enumerate(self._shares)
            if other != queue
        )
        return max(0, free - kept)
