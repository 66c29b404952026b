"""Time that a test moves, and the threads that wait by it."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from leasehold.testing import ManualTime


class Ticker:
    """Notes the time every *interval_s* seconds."""

    def __init__(self, time: ManualTime, interval_s: float) -> None:
        self.seen: list[float] = []
        self.condition = threading.Condition()
        self.stopping = False
        self._time = time
        self._interval_s = interval_s
        self._thread = threading.Thread(daemon=True, target=self._run, name="ticker")
        self._thread.start()

    def _run(self) -> None:
        due_s = self._time.monotonic_s() + self._interval_s
        with self.condition:
            while not self.stopping:
                left_s = due_s - self._time.monotonic_s()
                if left_s > 0:
                    self._time.wait(self.condition, left_s)
                    continue
                self.seen.append(self._time.monotonic_s())
                due_s += self._interval_s

    def stop(self) -> None:
        with self.condition:
            self.stopping = True
            self.condition.notify_all()
        self._thread.join()


def test_threads_run_at_the_moments_they_wait_for() -> None:
    """Advancing goes from one awaited moment to the next, and everybody runs at each."""
    time = ManualTime(start_s=100)
    tens, threes = Ticker(time, 10), Ticker(time, 3)
    time.settle(waiting=2)
    time.advance(21)
    assert tens.seen == [110, 120]
    assert threes.seen == [103, 106, 109, 112, 115, 118, 121]
    tens.stop()
    threes.stop()


def test_a_jump_wakes_late() -> None:
    """A jump is a stall: what was due during it is seen at its end."""
    time = ManualTime(start_s=100)
    ticker = Ticker(time, 10)
    time.settle(waiting=1)
    time.jump(25)
    time.settle()
    assert ticker.seen == [125, 125]
    ticker.stop()


def test_settling_sees_threads_that_wake_each_other() -> None:
    """A thread that was notified and has not come to run yet is not at rest."""
    time = ManualTime()
    condition = threading.Condition()
    turn = [0]

    gate = time.gate()

    def pass_on(own: int) -> None:
        gate.wait()
        with condition:
            while turn[0] < 300:
                if turn[0] % 3 == own:
                    turn[0] += 1
                    condition.notify_all()
                time.wait(condition, None) if turn[0] < 300 else None
            condition.notify_all()

    threads = [threading.Thread(daemon=True, target=pass_on, args=(own,)) for own in (1, 2, 0)]
    for thread in threads:
        thread.start()
    time.settle(waiting=3)
    gate.open()
    time.settle()
    assert turn[0] == 300
    for thread in threads:
        thread.join()


def test_settling_names_who_runs() -> None:
    """A thread that was known and waits for something else is named after some patience."""
    time = ManualTime()
    elsewhere = threading.Event()
    condition = threading.Condition()

    def run() -> None:
        with condition:
            time.wait(condition, 1)
        elsewhere.wait()

    thread = threading.Thread(daemon=True, target=run, name="leasehold-busy")
    thread.start()
    time.settle(waiting=1)
    time.jump(1)
    with pytest.raises(TimeoutError, match="leasehold-busy"):
        time.settle(patience_s=0.05)
    elsewhere.set()
    thread.join()
    time.settle()


def test_a_gate_holds_threads_up() -> None:
    """A thread at a closed gate is at rest; it goes on when the gate opens."""
    time = ManualTime()
    gate = time.gate()
    passed: list[float] = []

    def run() -> None:
        gate.wait()
        passed.append(time.monotonic_s())

    thread = threading.Thread(daemon=True, target=run)
    thread.start()
    time.settle(waiting=1)
    time.advance(5)
    assert (gate.waiting, passed) == (1, [])
    gate.open()
    thread.join()
    assert (gate.waiting, passed) == (0, [1005])


def test_no_time_is_no_wait() -> None:
    """A wait of nothing, or less, is over at once."""
    time = ManualTime()
    condition = threading.Condition()
    with condition:
        time.wait(condition, 0)
        time.wait(condition, -1)
    assert time.monotonic_s() == 1000


@pytest.mark.parametrize(("step_s", "ends_s"), [(1.0, 1004), (3.0, 1006)])
def test_time_goes_on_until_something_is_reached(step_s: float, ends_s: float) -> None:
    """Steps are made until the condition holds, and no longer."""
    time = ManualTime()
    reached: Callable[[], bool] = lambda: time.monotonic_s() >= 1004  # noqa: E731 - typed
    time.advance_until(reached, step_s=step_s)
    assert time.monotonic_s() == ends_s
    with pytest.raises(TimeoutError, match="within 2"):
        time.advance_until(lambda: False, limit_s=2)
