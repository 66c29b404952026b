"""Messages that were received and wait for a free hand, and how many of them there may be."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Generic, TypeVar

from leasehold.worker.timing import Time
from leasehold.worker.weights import Turns

T = TypeVar("T")

START_SHARE: Final = 0.5
"""What waits in the buffer is to begin within this share of the lease."""
_AHEAD_S: Final = 0.25
"""How much work lies ready if nobody says how much: enough to bridge a round trip."""
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
        """Let nobody take anything any more."""
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
