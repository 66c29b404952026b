"""How much is received ahead, and who gets it."""

from __future__ import annotations

import threading
from collections import Counter

import pytest

from leasehold.worker.buffer import Buffer, Pace, prefetch_limit
from leasehold.worker.timing import SystemTime
from tests.patience import PATIENCE_S


@pytest.mark.parametrize(
    ("asked", "handling_s", "limit"),
    [
        (None, None, 0),
        (32, None, 32),
        (0, 0.001, 0),
        (None, 0.0, 128),
        (None, 0.000_001, 128),
        (None, 0.1, 20),
        (None, 1.0, 2),
        (None, 10.0, 0),
        (32, 0.001, 32),
        (32, 5.0, 24),
        (32, 15.0, 8),
        (32, 30.0, 4),
        (32, 200.0, 0),
    ],
)
def test_prefetch_is_what_can_begin_within_the_lease(
    asked: int | None, handling_s: float | None, limit: int
) -> None:
    """With eight hands and leases of 30 s no more waits than begins within half a lease."""
    found = prefetch_limit(asked, concurrency=8, lease_s=30, handling_s=handling_s)
    assert found == limit


def test_pace_is_rather_high() -> None:
    """The estimate lies above the mean where times scatter, and follows a change both ways."""
    pace = Pace()
    assert pace.high_s is None
    for seconds in [1.0, 3.0] * 50:
        pace.note(seconds)
    assert pace.high_s is not None
    assert 3 < pace.high_s < 8
    for _ in range(100):
        pace.note(300)
    assert 290 < pace.high_s < 330
    for _ in range(200):
        pace.note(1)
    assert 1 <= pace.high_s < 1.5


def buffer_of(*weights: float) -> Buffer[str]:
    return Buffer(weights, SystemTime())


def test_one_lane_is_a_queue() -> None:
    """What came first is taken first."""
    buffer = buffer_of(1)
    buffer.put(0, ["a", "b"])
    buffer.put(0, ["c"])
    assert [buffer.take(), buffer.take(), buffer.take(), buffer.take_now()] == ["a", "b", "c", None]


def test_some_go_before_the_others() -> None:
    """What is put first is taken before all that waits in its lane."""
    buffer = buffer_of(1)
    buffer.put(0, ["a"])
    buffer.put(0, ["b"], first=["c"])
    assert [buffer.take(), buffer.take(), buffer.take()] == ["c", "a", "b"]


def test_lanes_are_taken_from_by_weight() -> None:
    """While all lanes have something, each is taken from in proportion to its weight."""
    buffer = buffer_of(3, 1)
    buffer.put(0, ["a"] * 100)
    buffer.put(1, ["b"] * 100)
    assert Counter(buffer.take() for _ in range(40)) == {"a": 30, "b": 10}


def test_lane_that_is_empty_leaves_its_turn_to_others() -> None:
    """Whoever comes after a while is next, and then shares as if it had been there."""
    buffer = buffer_of(1, 1)
    buffer.put(1, ["b"] * 200)
    assert [buffer.take() for _ in range(100)] == ["b"] * 100
    buffer.put(0, ["a"] * 100)
    assert buffer.take() == "a"
    assert Counter(buffer.take() for _ in range(100)) == {"a": 50, "b": 50}


def test_all_who_wait_get_something() -> None:
    """Threads are woken one by the other, so that each has its share."""
    buffer, together = buffer_of(1), threading.Barrier(8, timeout=PATIENCE_S)

    def take() -> None:
        buffer.take()
        together.wait()  # passes only when all eight have taken one

    threads = [threading.Thread(target=take) for _ in range(8)]
    for thread in threads:
        thread.start()
    buffer.put(0, ["x"] * 8)
    for thread in threads:
        thread.join(PATIENCE_S)
    assert not together.broken
    assert len(buffer) == 0


def test_closed_buffer_gives_nothing_out() -> None:
    """Who waits is sent home, and what is left can be drained."""
    buffer, found = buffer_of(1), []
    thread = threading.Thread(target=lambda: found.append(buffer.take()))
    thread.start()
    buffer.close()
    thread.join(PATIENCE_S)
    buffer.put(0, ["late"])
    assert found == [None]
    assert buffer.take() is None
    assert buffer.drain() == ["late"]


def test_listener_hears_of_what_was_added() -> None:
    """In place of threads that wait something can be called."""
    buffer, heard = buffer_of(1), []
    buffer.listen(lambda: heard.append(len(buffer)))
    buffer.put(0, ["a", "b"])
    assert heard == [2]
