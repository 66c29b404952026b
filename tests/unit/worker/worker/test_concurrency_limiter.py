"""How many messages a worker may have."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterable

import pytest

from leasehold.worker.buffer import ConcurrencyLimiter
from leasehold.worker.timing import SystemTime
from tests.patience import PATIENCE_S


def limiter_of(*weights: float, concurrency: int = 4, prefetch: int = 0) -> ConcurrencyLimiter:
    return ConcurrencyLimiter(
        weights, concurrency=concurrency, prefetch=prefetch, time=SystemTime()
    )


class Taker:
    """Takes slots in a thread of its own, since it may have to wait."""

    def __init__(self, limiter: ConcurrencyLimiter, queue: int = 0, most: int = 100) -> None:
        self._limiter, self._queue, self._most = limiter, queue, most
        self._found: list[int] = []
        self._thread = threading.Thread(target=self._take)
        self._thread.start()

    def _take(self) -> None:
        self._found.append(self._limiter.take(self._queue, self._most))

    @property
    def waits(self) -> bool:
        """Whether it has registered and still waits; there is nothing to wait for it by."""
        while self._thread.is_alive() and self._queue not in self._limiter._waiting:
            self._thread.join(0.001)
        return self._thread.is_alive()

    def found(self) -> int:
        self._thread.join(PATIENCE_S)
        return self._found[0]


def one_of(takers: Iterable[Taker]) -> Taker:
    """Wait until one of them has got something."""
    for taker in itertools.cycle(takers):
        taker._thread.join(0.001)
        if not taker._thread.is_alive():
            return taker
    raise AssertionError


def test_no_more_than_there_are() -> None:
    """What is worked on and what waits together are never more than the slots."""
    limiter = limiter_of(1, concurrency=4, prefetch=6)
    assert limiter.take(0, 100) == 10
    taker = Taker(limiter)
    assert taker.waits
    limiter.give_back(0, 3)
    assert taker.found() == 3
    assert limiter.taken == 10


def test_no_more_than_was_asked() -> None:
    """A service that gives 32 at a time is asked for 32 at most."""
    assert limiter_of(1, concurrency=100).take(0, 32) == 32


def test_large_buffer_is_filled_in_large_steps() -> None:
    """With a buffer for 20 a receive waits until there is room for 10."""
    limiter = limiter_of(1, concurrency=4, prefetch=20)
    assert limiter.take(0, 100) == 24
    taker = Taker(limiter)
    limiter.give_back(0, 9)
    assert taker.waits
    limiter.give_back(0, 1)
    assert taker.found() == 10


def test_without_buffer_each_room_counts() -> None:
    """With no buffer the next message is asked for as soon as a hand is free."""
    limiter = limiter_of(1, concurrency=4, prefetch=0)
    limiter.take(0, 100)
    limiter.give_back(0, 1)
    assert limiter.take(0, 100) == 1


def test_queue_can_wait_while_another_is_busy() -> None:
    """Of the buffer each queue has a share that no other takes."""
    limiter = limiter_of(1, 1, concurrency=4, prefetch=10)
    assert limiter.take(0, 100) == 4 + 5
    assert limiter.share(1) == 5
    assert limiter.take(1, 100) == 5


@pytest.mark.parametrize(
    ("prefetch", "weights", "shares"),
    [
        (12, [3, 1], [8, 3]),
        (2, [100, 1], [1, 1]),
        (1, [1, 1], [0, 0]),
    ],
)
def test_shares_go_by_weight(prefetch: int, weights: list[float], shares: list[int]) -> None:
    """Each has one at least, or none has one; a weight of 0 would never be served."""
    limiter = limiter_of(*weights, prefetch=prefetch)
    assert [limiter.share(queue) for queue in range(len(weights))] == shares
    with pytest.raises(ValueError, match="above 0"):
        limiter_of(*weights, 0)


def test_waiting_queue_leaves_hands_to_the_busy_one() -> None:
    """A queue that waits for messages in its share keeps no hand from working."""
    limiter = limiter_of(1, 1, concurrency=4, prefetch=2)
    assert limiter.take(1, limiter.share(1)) == 1
    assert limiter.take(0, 100) == 4 + 1


def test_freed_rooms_go_by_weight() -> None:
    """Without a buffer the slots that become free go to the queues by their weights."""
    limiter = limiter_of(3, 1, concurrency=1, prefetch=0)
    received = [0, 0]
    takers = {queue: Taker(limiter, queue, 1) for queue in (0, 1)}
    for _ in range(40):
        queue = next(each for each, taker in takers.items() if taker is one_of(takers.values()))
        assert takers[queue].found() == 1
        received[queue] += 1
        limiter.received(queue, 1)
        takers[queue] = Taker(limiter, queue, 1)
        assert takers[queue].waits
        limiter.give_back(queue, 1)
        one_of(takers.values())
    limiter.close()
    assert [each.found() for each in takers.values()].count(0) >= 1
    assert 29 <= received[0] <= 31


def test_smaller_buffer_takes_nothing_away() -> None:
    """When handlers become slow nothing is received until the excess is worked off."""
    limiter = limiter_of(1, concurrency=4, prefetch=20)
    limiter.take(0, 100)
    limiter.resize(0)
    taker = Taker(limiter)
    limiter.give_back(0, 20)
    assert taker.waits
    limiter.give_back(0, 1)
    assert taker.found() == 1


def test_closed_rooms_are_not_given_out() -> None:
    """Who waits for a room is sent home when the worker stops."""
    limiter = limiter_of(1, concurrency=1)
    limiter.take(0, 1)
    taker = Taker(limiter)
    assert taker.waits
    limiter.close()
    assert taker.found() == 0
    assert limiter.take(0, 1) == 0
