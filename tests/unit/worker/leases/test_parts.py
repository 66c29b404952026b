"""The parts of a manager by themselves: its wheel, its memory, its threads."""

from __future__ import annotations

import pickle
import random
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from leasehold import worker
from leasehold.worker import errors, leases
from leasehold.worker.adapters.protocol import Delivery
from leasehold.worker.leases import AlreadySettled, Held, LeaseLost, base
from leasehold.worker.leases.base import DoneMemory
from leasehold.worker.leases.manager import Wheel
from tests.patience import PATIENCE_S
from tests.unit.worker.leases.support import ONE_BY_ONE, THIRTY, Bench, Queue

NOBODY: Any = None


def some(count: int) -> list[Held]:
    """Return messages that nobody keeps."""
    return [
        Held(
            NOBODY,
            NOBODY,
            Delivery(queue="q", message_id=str(number), receipt="r"),
            THIRTY,
            registered_s=0,
            deadline_s=30,
            early_s=0,
        )
        for number in range(count)
    ]


# --- the wheel -------------------------------------------------------------------------------


def test_the_next_tick_counts() -> None:
    """What is due between two ticks is looked at in the second, what is due now in the next."""
    wheel = Wheel(interval_s=5, start_s=100)
    first, second, third = some(3)
    assert wheel.next_s() is None
    assert wheel.place(first, 112, 100) == 115
    assert wheel.place(second, 115, 100) is None
    assert wheel.place(third, 90, 100) == 105
    assert wheel.next_s() == 105
    assert wheel.due(104.9) == []
    assert wheel.due(105) == [third]
    assert set(wheel.due(200)) == {first, second}
    assert wheel.next_s() is None


def test_a_place_is_the_only_one() -> None:
    """Whoever is placed again is looked at only there."""
    wheel = Wheel(interval_s=5, start_s=0)
    (held,) = some(1)
    wheel.place(held, 10, 0)
    wheel.place(held, 20, 0)
    assert wheel.due(15) == []
    assert wheel.due(20) == [held]
    wheel.place(held, 30, 20)
    wheel.remove(held)
    wheel.remove(held)
    assert (wheel.due(100), wheel._slots) == ([], {})


def test_a_retry_is_exact() -> None:
    """It is between ticks, and takes the place of the next tick."""
    wheel = Wheel(interval_s=5, start_s=0)
    held, other = some(2)
    wheel.place(held, 10, 0)
    wheel.place(other, 10, 0)
    wheel.retry(held, 6.5)
    assert wheel.next_s() == 6.5
    assert wheel.due(7) == [held]
    assert wheel.due(10) == [other]
    wheel.retry(held, 12)
    wheel.place(held, 12, 10)
    assert wheel.due(20) == [held]
    assert wheel.next_s() is None


def test_the_wheel_against_a_list() -> None:
    """Whatever is placed, moved and removed, everybody is seen at the first tick after."""
    dice = random.Random(7)
    wheel = Wheel(interval_s=0.5, start_s=0)
    now_s, due_s = 0.0, dict.fromkeys(some(50), 0.0)
    due_s.clear()
    for _ in range(3000):
        held = some(1)[0] if len(due_s) < 50 else dice.choice(list(due_s))
        match dice.randrange(3):
            case 0 | 1:
                due_s[held] = now_s + dice.random() * 20
                wheel.place(held, due_s[held], now_s)
            case 2:
                due_s.pop(held, None)
                wheel.remove(held)
        now_s += dice.random() * 0.1
        tick_s = now_s // 0.5 * 0.5
        expected = {held for held, at_s in due_s.items() if at_s <= tick_s}
        found = set(wheel.due(now_s))
        # A place in the past is seen at the next tick, which may still be to come.
        assert found <= expected
        assert all(now_s - due_s[held] < 0.6 for held in expected)
        for held in found:
            del due_s[held]


# --- what is done ----------------------------------------------------------------------------


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest are forgotten first."""
    monkeypatch.setattr(base, "MAX_REMEMBERED", 3)
    memory = DoneMemory()
    for number in range(5):
        memory.add("q", str(number), 0, 30)
    assert [memory.holds("q", str(number), 1) for number in range(5)] == [
        False,
        False,
        True,
        True,
        True,
    ]


def test_memory_lasts_for_two_leases() -> None:
    """A message is remembered for longer than it can be hidden."""
    memory = DoneMemory()
    memory.add("q", "long", 0, 3600)
    memory.add("q", "short", 0, 1)
    assert memory.holds("q", "long", 7199)
    assert not memory.holds("q", "long", 7200)
    assert not memory.holds("q", "short", 600)
    memory.add("q", "next", 7200, 1)
    assert list(memory._until_s) == [("q", "next")]


# --- threads ---------------------------------------------------------------------------------


def test_no_more_threads(make_bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch) -> None:
    """If the system has no more threads those that are there do the work; with none it fails."""
    bench = make_bench()
    queue = Queue(bench.time, capabilities=ONE_BY_ONE)
    bench.keep_one(queue)
    bench.time.advance(15)
    assert len(bench.threads) == 2
    monkeypatch.setattr(threading, "Thread", _no_thread)
    bench.keep(5, queue)
    bench.time.advance(30)
    assert len(bench.threads) == 2
    assert bench.losses == []
    assert bench.manager.failure is None


def test_not_even_one_thread(
    make_bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without any thread to send with, leases cannot be kept, and that is said."""
    bench = make_bench()
    held = bench.keep_one()
    monkeypatch.setattr(threading, "Thread", _no_thread)
    bench.time.jump(15)
    bench.manager._timer.join(PATIENCE_S)
    assert str(bench.manager.failure) == "can't start new thread"
    with pytest.raises(LeaseLost):
        held.check()


def _no_thread(**_: object) -> threading.Thread:
    raise RuntimeError("can't start new thread")


# --- the package -----------------------------------------------------------------------------


def test_all_names_are_there() -> None:
    """What the package says it has can be imported, and nothing else."""
    assert sorted(leases.__all__) == leases.__all__
    assert all(hasattr(leases, name) for name in leases.__all__)
    assert not hasattr(leases, "ProcessManager")


# --- values ----------------------------------------------------------------------------------


def test_losses_can_be_sent_to_another_process() -> None:
    """An error that tells of a loss survives pickling."""
    error = pickle.loads(pickle.dumps(LeaseLost("purged", kind="gone", message_id="m-1")))
    assert (type(error), error.message_id, error.kind) == (LeaseLost, "m-1", "gone")
    assert str(error) == error.why == "purged"


def test_there_is_one_error_for_a_lost_lease(bench: Bench) -> None:
    """What a lease raises is what handlers and their callers catch, in the same words."""
    assert LeaseLost is worker.LeaseLost is errors.LeaseLost
    assert issubclass(AlreadySettled, worker.LeaseLost)
    held = bench.keep_one()
    held.lose("the session is over")
    with pytest.raises(worker.LeaseLost) as caught:
        held.check()
    error = caught.value
    assert (error.why, error.kind) == ("the session is over", "session")
    assert error.message_id == held.delivery.message_id


def test_messages_are_equal_to_themselves_only() -> None:
    """Two leases are two leases, whatever they are on."""
    first, second = some(2)
    second.delivery = replace(first.delivery)
    assert first != second
    assert len({first, second}) == 2
