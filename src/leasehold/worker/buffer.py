"""Messages that were received and wait for a free hand, and how many of them there may be."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Generic, TypeVar

from leasehold.worker.timing import Time

T = TypeVar("T")

START_SHARE: Final = 0.5
"""What waits in the buffer is to begin within this share of the lease."""
_AHEAD_S: Final = 0.25
"""How much work lies ready unless told how much: enough to bridge a round trip."""
_MOST_ROUNDS: Final = 16
_GAIN: Final = 1 / 8
_DEVIATION_GAIN: Final = 1 / 4
_DEVIATIONS: Final = 4


def prefetch_limit(
    asked: int | None, *, concurrency: int, lease_s: float, handling_s: float | None
) -> int:
    """Return how many messages may wait in the buffer.

    Args:
        asked: What the user wants at most; None: what bridges the round trips to the service.
        concurrency: How many are worked on at once.
        lease_s: Length of a lease.
        handling_s: How long a handler takes, estimated rather too high; None: not known yet.

    Returns:
        0 or more. As long as the handling time is not known only what was asked for: with handlers
        of ten minutes, what one worker has in its buffer others cannot work on.
    """
    if handling_s is None:
        return asked or 0
    wanted = concurrency * _MOST_ROUNDS if asked is None else asked
    if handling_s <= 0:
        return wanted
    if asked is None:
        wanted = min(wanted, int(concurrency * _AHEAD_S / handling_s))
    return min(wanted, int(concurrency * lease_s * START_SHARE / handling_s))


class Pace:
    """A running estimate of how long handlers take: mean plus four mean deviations.

    Source: the estimate of round trips in RFC 6298, section 2. To be used by one thread at a time.
    """

    def __init__(self) -> None:
        self._mean_s: float | None = None
        self._deviation_s = 0.0

    def note(self, seconds: float) -> None:
        """Take in how long one handler took."""
        if self._mean_s is None:
            self._mean_s, self._deviation_s = seconds, seconds / 2
            return
        off_s = seconds - self._mean_s
        self._deviation_s += _DEVIATION_GAIN * (abs(off_s) - self._deviation_s)
        self._mean_s += _GAIN * off_s

    @property
    def high_s(self) -> float | None:
        """What few handlers take longer than, in seconds; None: nothing is known yet."""
        if self._mean_s is None:
            return None
        return self._mean_s + _DEVIATIONS * self._deviation_s


class Buffer(Generic[T]):
    """Lanes of things that wait, one for each queue; those with more weight go first more often.

    Taking is done without a lock where there is one lane and something in it. Of the threads that
    wait only one at a time is woken, and that one wakes the next if there is still something left:
    to wake all of them for handlers that take no time would cost more than the work.

    Args:
        weights: One for each lane.
        time: That threads wait by.
    """

    def __init__(self, weights: Sequence[float], time: Time) -> None:
        self._time = time
        self._lanes: tuple[deque[T], ...] = tuple(deque() for _ in weights)
        self._only = self._lanes[0] if len(self._lanes) == 1 else None
        self._turns = Turns(weights)
        self._picking = threading.Lock()
        self._changed = threading.Condition(threading.Lock())
        self._waiting = 0
        self._waking = False
        self._is_closed = False
        self._listener: Callable[[], None] | None = None

    def __len__(self) -> int:
        return sum(map(len, self._lanes))

    def length(self, lane: int) -> int:
        """Return how many wait in a lane."""
        return len(self._lanes[lane])

    def waiting(self, lane: int) -> list[T]:
        """Return what waits in a lane."""
        return list(self._lanes[lane])

    def listen(self, listener: Callable[[], None]) -> None:
        """Have *listener* called whenever something was added, in place of threads that wait."""
        self._listener = listener

    def put(self, lane: int, things: Iterable[T], *, first: Iterable[T] = ()) -> None:
        """Add things to the end of a lane, and others at its beginning."""
        self._lanes[lane].extendleft(first)
        self._lanes[lane].extend(things)
        if self._listener is not None:
            self._listener()
        else:
            self._wake()

    def take_now(self) -> T | None:
        """Take what is next, or None if there is nothing."""
        if self._only is not None:
            try:
                return self._only.popleft()
            except IndexError:
                return None
        with self._picking:
            lane = self._turns.first(i for i, each in enumerate(self._lanes) if each)
            if lane is None:
                return None
            self._turns.took(lane)
            return self._lanes[lane].popleft()

    def take(self) -> T | None:
        """Take what is next, and wait for it if need be; None: the buffer was closed."""
        while True:
            if self._is_closed:
                return None
            thing = self.take_now()
            if thing is not None:
                if self._waiting and not self._waking and len(self):
                    self._wake()
                return thing
            with self._changed:
                if len(self) or self._is_closed:
                    continue
                self._waiting += 1
                self._time.wait(self._changed, None)
                self._waiting -= 1
                self._waking = False

    def close(self) -> None:
        """Let no handler take anything any more."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def drain(self) -> list[T]:
        """Take all that is left."""
        with self._picking:
            left: list[T] = []
            for lane in self._lanes:
                while lane:
                    left.append(lane.popleft())
            return left

    def _wake(self) -> None:
        with self._changed:
            if self._waiting and not self._waking:
                self._waking = True
                self._changed.notify()


# --- weights -----------------------------------------------------------------------------------
#
# Whose turn it is among several queues, by their weights. Pure.


class Turns:
    """Start-time fair queuing: whoever waits is served in proportion to its weight.

    Each taker has a tag, which grows by 1/weight with each thing that it takes; the lowest tag is
    next. Who did not want anything for a while gets no credit for it: its tag is brought up to that
    of the last turn, so that it is served at once, and then in proportion.

    Source: Goyal, Vin, Cheng: Start-time Fair Queuing, SIGCOMM 1996.

    Args:
        weights: One for each taker, all above 0.
    """

    def __init__(self, weights: Sequence[float]) -> None:
        if not all(weight > 0 for weight in weights):
            raise ValueError("weights must be above 0")
        self._costs = [1 / weight for weight in weights]
        self._tags = [0.0] * len(weights)
        self._now = 0.0

    def first(self, waiting: Iterable[int]) -> int | None:
        """Return who is next of those that wait, or None if there is none."""
        tags, now = self._tags, self._now
        return min(waiting, key=lambda each: (max(now, tags[each]), each), default=None)

    def took(self, taker: int, count: int = 1) -> None:
        """Note that a taker had its turn, and how much it took."""
        self._now = max(self._now, self._tags[taker])
        self._tags[taker] = self._now + count * self._costs[taker]


def shares_of(total: int, weights: Sequence[float]) -> list[int]:
    """Divide *total* by weight in whole parts, each at least 1 if there are enough.

    With fewer than there are takers none has a part of its own.
    """
    if total < len(weights):
        return [0] * len(weights)
    spare = total - len(weights)
    return [1 + int(spare * weight / sum(weights)) for weight in weights]


# --- slots -------------------------------------------------------------------------------------
#
# How many messages a worker may have, and which of its queues the next ones come from.


class ConcurrencyLimiter:
    """A worker has slots for as many messages as it works on at once, and those of its buffer.

    A slot is taken before a message is asked for, and given back when the message is settled, or
    none came. So a worker never holds more leases than it has slots.

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
        """How many slots are taken."""
        return sum(self._taken)

    def share(self, queue: int) -> int:
        """Return how many slots a queue can keep while it waits for messages; 0: not even one."""
        return self._shares[queue]

    def take(self, queue: int, most: int) -> int:
        """Take from 1 to *most* slots, and wait for them if need be; 0: the worker stops.

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
        """Give slots back."""
        if count:
            with self._changed:
                self._taken[queue] -= count
                self._changed.notify_all()

    def received(self, queue: int, count: int) -> None:
        """Note that messages came from a queue: others are next."""
        with self._changed:
            self._turns.took(queue, count)

    def close(self) -> None:
        """Let nobody take a slot any more."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def _allowed(self, queue: int) -> int:
        """Return how many slots a queue gets now, as far as it is its turn."""
        count = self._worthwhile(queue)
        if count and self._turns.first(filter(self._worthwhile, self._waiting)) == queue:
            return count
        return 0

    def _worthwhile(self, queue: int) -> int:
        """Return how many slots a queue could get, or 0 if it is better to wait for more."""
        most = self._waiting[queue]
        count = min(most, self._free(queue))
        enough = min(self._prefetch // len(self._weights), self._shares[queue]) // 2
        return count if count >= min(most, max(1, enough)) else 0

    def _free(self, queue: int) -> int:
        """Return how many slots a queue may take: all that are free but the shares of others."""
        taken = self._taken
        free = self._concurrency + self._prefetch - sum(taken)
        kept = sum(
            max(0, share - taken[other])
            for other, share in enumerate(self._shares)
            if other != queue
        )
        return max(0, free - kept)
