"""Time for threads that wait: it stands still until a test moves it."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

from leasehold.clock import SystemClock, VirtualClock
from leasehold.worker.timing import Time

_PATIENCE_S: Final = 10.0
"""Of the machine's time: how long threads may need to come to rest."""
_LOOK_AGAIN_S: Final = 0.01
"""For what is not notified: that a thread has ended, or was woken by another one."""


class ManualTime:
    """A :class:`leasehold.worker.timing.Time` that a test moves by hand, with threads that wait.

    Threads become known when they first wait. From then on :meth:`settle` waits for them, so each
    has to come back to :meth:`wait`, or to end. To hold one up in a test, use a :class:`Gate`
    made by :meth:`gate`: a thread that waits there is at rest, one that waits for anything else
    counts as running.

    Args:
        start_s: What it shows at first, seconds.
    """

    def __init__(self, start_s: float = 1000.0) -> None:
        self._now_s = start_s
        self._changed = threading.Condition()
        self._waits: dict[threading.Thread, tuple[threading.Condition, float | None]] = {}
        self._known: set[threading.Thread] = set()

    def monotonic_s(self) -> float:
        """Return the time it was moved to."""
        return self._now_s

    def wait(self, condition: threading.Condition, timeout_s: float | None) -> None:
        """Wait until notified, or until the time was moved by *timeout_s*."""
        thread = threading.current_thread()
        with self._changed:
            self._known.add(thread)
            if timeout_s is not None and timeout_s <= 0:
                return
            until_s = None if timeout_s is None else self._now_s + timeout_s
            self._waits[thread] = (condition, until_s)
            self._changed.notify_all()
        try:
            condition.wait()
        finally:
            with self._changed:
                del self._waits[thread]

    def advance(self, seconds: float) -> None:
        """Let time pass: threads run at each moment that they wait for, and settle before the next.

        Raises:
            TimeoutError: Threads do not settle.
        """
        end_s = self._now_s + seconds
        self.settle()
        while (due_s := self._next_due_s()) is not None and due_s <= end_s:
            self._move(due_s)
            self.settle()
        self._move(end_s)
        self.settle()

    def jump(self, seconds: float) -> None:
        """Let time pass in which no thread gets to run, as when a process was stopped.

        Whoever waits for a moment up to then is woken late. Does not settle.
        """
        self._move(self._now_s + seconds)

    def advance_until(
        self, reached: Callable[[], bool], *, step_s: float = 1.0, limit_s: float = 3600.0
    ) -> None:
        """Let time pass in steps until *reached* returns true.

        Raises:
            TimeoutError: It did not within *limit_s*.
        """
        end_s = self._now_s + limit_s
        self.settle()
        while not reached():
            if self._now_s >= end_s:
                raise TimeoutError(f"it was not reached within {limit_s} s")
            self.advance(step_s)

    def settle(self, *, waiting: int = 0, patience_s: float = _PATIENCE_S) -> None:
        """Wait until all known threads but the calling one wait, and none has been notified.

        Args:
            waiting: At least so many have to wait; for threads that were only just started.
            patience_s: How long to wait for that, in seconds of the machine.

        Raises:
            TimeoutError: Some still run; they are named.
        """
        clock = SystemClock()
        end_s = clock.monotonic_s() + patience_s
        with self._changed:
            while running := self._running(waiting):
                if clock.monotonic_s() >= end_s:
                    raise TimeoutError(f"not waiting by this time: {', '.join(running)}")
                self._changed.wait(_LOOK_AGAIN_S)

    def gate(self) -> Gate:
        """Return a closed gate."""
        return Gate(self)

    def _move(self, now_s: float) -> None:
        with self._changed:
            self._now_s = max(self._now_s, now_s)
            due = {
                condition
                for condition, until_s in self._waits.values()
                if until_s is not None and until_s <= self._now_s
            }
        for condition in due:  # taken only now: whoever calls wait() holds it
            with condition:
                condition.notify_all()

    def _next_due_s(self) -> float | None:
        with self._changed:
            moments = [until_s for _, until_s in self._waits.values() if until_s is not None]
        return min(moments, default=None)

    def _running(self, waiting: int) -> list[str]:
        """Name who is not at rest. As the lock is held, no thread leaves wait() meanwhile."""
        own = threading.current_thread()
        self._known = {thread for thread in self._known if thread.is_alive()}
        running = [thread.name for thread in self._known - self._waits.keys() - {own}]
        sleepers = Counter(condition for condition, _ in self._waits.values())
        for condition, count in sleepers.items():
            # The only place where it shows who was notified and has not come to run yet.
            if len(condition._waiters) < count:  # type: ignore[attr-defined]  # noqa: SLF001
                running.append(f"a thread notified at {condition!r}")
        if len(self._waits) < waiting:
            running.append(f"{waiting - len(self._waits)} more")
        return running


class Gate:
    """Where threads wait in a test until it lets them go on.

    Made by :meth:`ManualTime.gate`, and by :meth:`leasehold.testing.memory_queue.Faults.hold`.
    """

    def __init__(self, time: Time) -> None:
        self._time = time
        self._condition = threading.Condition()
        self._is_open = False
        self._inside = 0
        self._entered = threading.Semaphore(0)

    @property
    def waiting(self) -> int:
        """How many threads wait at it."""
        return self._inside

    def wait(self) -> None:
        """Wait until the gate is open."""
        self._entered.release()
        with self._condition:
            self._inside += 1
            while not self._is_open:
                self._time.wait(self._condition, None)
            self._inside -= 1

    def wait_until_entered(self) -> None:
        """Return when one more thread has come to it.

        Raises:
            TimeoutError: None came within ten seconds of the machine.
        """
        if not self._entered.acquire(timeout=_PATIENCE_S):
            raise TimeoutError("no call came to the gate")

    def open(self) -> None:
        """Let go on who waits, and whoever comes."""
        with self._condition:
            self._is_open = True
            self._condition.notify_all()

    def close(self) -> None:
        """Let whoever comes wait."""
        with self._condition:
            self._is_open = False


# --- clock ------------------------------------------------------------------------------------

START_MS: Final = int(datetime(2026, 1, 1, tzinfo=UTC).timestamp() * 1000)


class ManualClock(VirtualClock):
    """The clock of a test: midnight of 2026-01-01, UTC, unless told other.

    See :class:`leasehold.clock.VirtualClock`, which ``leasehold serve --clock virtual`` uses.
    """

    def __init__(self, start_ms: int = START_MS) -> None:
        super().__init__(start_ms)
