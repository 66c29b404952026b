"""The only module that reads the system's clocks, and when a clock may be believed.

Within a process time advances by the boot clock (which counts suspension): setting the
wall clock while the server runs can neither end leases nor expire messages.

Clients of threads use these clocks, too: what asks for asyncio's timers loads it where it does.
"""

from __future__ import annotations

import heapq
import threading
import time
from collections.abc import Callable
from enum import Enum, auto
from itertools import count
from math import ceil
from typing import Final, Protocol


class Clock(Protocol):
    """Where the engine gets its time from."""

    def now_ms(self) -> int:
        """Return the time of day as Unix milliseconds; never goes back within a process."""
        ...

    def monotonic_s(self) -> float:
        """Return seconds since an arbitrary moment, for deadlines and durations."""
        ...

    def wall_drift_s(self) -> float:
        """Return how far the wall clock has been moved against this one since the start."""
        ...


class Timer(Protocol):
    """A callback that waits for its moment; what asyncio calls a handle is one."""

    def cancel(self) -> None:
        """Do not call back. Harmless at any time."""
        ...


class Timers(Protocol):
    """What calls back when time has passed. To be used in the event loop only."""

    def call_later(self, delay_s: float, callback: Callable[[], object]) -> Timer:
        """Call *callback* once, *delay_s* seconds from now; not before this has returned."""
        ...

    async def sleep(self, delay_s: float) -> None:
        """Wait for *delay_s* seconds; with 0 let others run first."""
        ...


class SystemClock:
    """Wall clock at the start, boot clock from then on."""

    def __init__(self) -> None:
        self._base_ns = time.time_ns() - time.clock_gettime_ns(time.CLOCK_BOOTTIME)  # noqa: TID251

    def now_ms(self) -> int:
        """See :class:`Clock`."""
        return (self._base_ns + time.clock_gettime_ns(time.CLOCK_BOOTTIME)) // 1_000_000

    def monotonic_s(self) -> float:
        """See :class:`Clock`."""
        return time.monotonic()

    def wall_drift_s(self) -> float:
        """See :class:`Clock`."""
        own_ns = self._base_ns + time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        return (time.time_ns() - own_ns) / 1e9  # noqa: TID251


SLEW: Final = 0.1
"""By how much a clock that follows another goes faster or slower while it catches up."""
_PROBES: Final = 5


def slewed_ns(offset_ns: int, target_ns: int, elapsed_ns: int) -> int:
    """Return the offset of a clock on its way from one offset to another.

    Args:
        offset_ns: Where it was.
        target_ns: Where it is to be.
        elapsed_ns: How long it has been on its way.
    """
    possible_ns = int(elapsed_ns * SLEW)
    return offset_ns + max(-possible_ns, min(possible_ns, target_ns - offset_ns))


def _boot_ns() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


class RemoteClock:
    """The time that servers of one database share, as this server reads it off now and then.

    In between the boot clock tells how time goes on. A small difference found is made up for
    little by little, so that time never goes back and leases end neither all at once nor never.
    What to do about a large one is for others to judge. One thread measures, all may ask.

    Args:
        ask: Returns the shared time, Unix microseconds. It is asked a few times.
        boot_ns: A clock that never goes back and cannot be set; None for that of the system.
    """

    def __init__(self, ask: Callable[[], int], boot_ns: Callable[[], int] = _boot_ns) -> None:
        self.boot_ns = boot_ns
        self.drift_s = 0.0
        """See :meth:`wall_drift_s`; kept by whoever knows it."""
        self._lock = threading.Lock()
        self._offset_ns = self._target_ns = self._measured_ns(ask)
        self._since_ns = boot_ns()
        self._arrived: tuple[int, int] = self._since_ns, self._target_ns
        """From when on, by the boot clock, the offset is the one wanted, and that."""

    def measure(self, ask: Callable[[], int], within_s: float) -> float:
        """Look at the shared time again; return how many seconds it is ahead of this clock.

        Args:
            ask: As for the clock itself.
            within_s: A difference larger than this is not followed.
        """
        found_ns = self._measured_ns(ask)
        with self._lock:
            now_ns = self.boot_ns()
            current_ns = slewed_ns(self._offset_ns, self._target_ns, now_ns - self._since_ns)
            ahead_ns = found_ns - current_ns
            if abs(ahead_ns) <= within_s * 1e9:
                self._offset_ns = current_ns
                self._target_ns, self._since_ns = found_ns, now_ns
                self._arrived = now_ns + ceil(abs(ahead_ns) / SLEW) + 1, found_ns
        return ahead_ns / 1e9

    def gap_s(self, shared_us: int, before_ns: int) -> float:
        """Return how many seconds the shared time is ahead of this clock, at the least.

        Args:
            shared_us: The shared time as it was at some moment between then and now.
            before_ns: The boot clock then.
        """
        now_ns = self.boot_ns()
        offset_ns = self._offset_at(now_ns)
        late_ns = shared_us * 1000 - offset_ns - now_ns
        if late_ns > 0:
            return late_ns / 1e9
        return min(0.0, (shared_us * 1000 - offset_ns - before_ns) / 1e9)

    def set_to(self, ask: Callable[[], int]) -> None:
        """Take the shared time over at once, which may mean to go back."""
        found_ns = self._measured_ns(ask)
        with self._lock:
            self._since_ns = self.boot_ns()
            self._offset_ns = self._target_ns = found_ns
            self._arrived = self._since_ns, found_ns

    def _measured_ns(self, ask: Callable[[], int]) -> int:
        """Return the offset of the shared time: the middle one of a few, as a pause spoils one."""
        found = []
        for _ in range(_PROBES):
            before_ns = self.boot_ns()
            there_us = ask()
            # The answer is taken to be of the middle of the way there and back.
            found.append(there_us * 1000 - (before_ns + self.boot_ns()) // 2)
        return sorted(found)[_PROBES // 2]

    def _offset_at(self, now_ns: int) -> int:
        arrived_ns, offset_ns = self._arrived  # both at once: another thread may measure
        if now_ns >= arrived_ns:
            return offset_ns
        with self._lock:
            return slewed_ns(self._offset_ns, self._target_ns, now_ns - self._since_ns)

    def now_us(self) -> int:
        """Return the time of day as Unix microseconds."""
        now_ns = self.boot_ns()
        return (now_ns + self._offset_at(now_ns)) // 1000

    def now_ms(self) -> int:
        """See :class:`Clock`. It goes back only where no batch has used the time before."""
        now_ns = self.boot_ns()
        arrived_ns, offset_ns = self._arrived
        if now_ns < arrived_ns:
            offset_ns = self._offset_at(now_ns)
        return (now_ns + offset_ns) // 1_000_000

    def monotonic_s(self) -> float:
        """See :class:`Clock`."""
        return time.monotonic()

    def wall_drift_s(self) -> float:
        """Return how far the database's own clock is ahead of the time that servers share."""
        return self.drift_s


class LoopTimers:
    """The timers of the event loop that runs."""

    def call_later(self, delay_s: float, callback: Callable[[], object]) -> Timer:
        """See :class:`Timers`."""
        import asyncio  # noqa: PLC0415 - see above

        return asyncio.get_running_loop().call_later(delay_s, callback)

    async def sleep(self, delay_s: float) -> None:
        """See :class:`Timers`."""
        import asyncio  # noqa: PLC0415 - see above

        await asyncio.sleep(delay_s)


class VirtualClock:
    """A clock, and the timers that go with it, that stand still until a test moves them.

    It counts in whole milliseconds, and belongs to one event loop, or to one thread where none
    uses the timers.

    Args:
        start_ms: What it shows at first, Unix milliseconds.
    """

    def __init__(self, start_ms: int) -> None:
        self._start_ms = start_ms
        self._now_ms = start_ms
        self._timers: list[tuple[int, int, _VirtualTimer]] = []
        self._numbers = count()

    def now_ms(self) -> int:
        """Return the time it was set to."""
        return self._now_ms

    def monotonic_s(self) -> float:
        """Return the seconds that it was moved by so far."""
        return (self._now_ms - self._start_ms) / 1000

    def wall_drift_s(self) -> float:
        """Return 0: it has nothing to do with the wall clock."""
        return 0.0

    def advance(self, *, s: float = 0, ms: int = 0) -> None:
        """Let time pass, seconds and milliseconds together.

        What timers wait for is called one by one, each at its own moment, those set meanwhile
        included. With less than nothing the clock goes back, as wrong clocks do.
        """
        end_ms = self._now_ms + round(s * 1000) + ms
        while (due_ms := self.next_timer_ms()) is not None and due_ms <= end_ms:
            timer = heapq.heappop(self._timers)[2]
            self._now_ms = max(self._now_ms, due_ms)
            timer.callback()
        self._now_ms = end_ms

    def next_timer_ms(self) -> int | None:
        """Return when the next timer is due, Unix milliseconds; None if there is none."""
        timers = self._timers
        while timers and timers[0][2].is_cancelled:
            heapq.heappop(timers)
        return timers[0][0] if timers else None

    def call_later(self, delay_s: float, callback: Callable[[], object]) -> Timer:
        """See :class:`Timers`. Less than half a millisecond is no time."""
        delay_ms = round(delay_s * 1000)
        if delay_ms <= 0:
            import asyncio  # noqa: PLC0415 - see above

            return asyncio.get_running_loop().call_soon(callback)
        timer = _VirtualTimer(callback)
        heapq.heappush(self._timers, (self._now_ms + delay_ms, next(self._numbers), timer))
        return timer

    async def sleep(self, delay_s: float) -> None:
        """See :class:`Timers`."""
        import asyncio  # noqa: PLC0415 - see above

        over = asyncio.Event()
        timer = self.call_later(delay_s, over.set)
        try:
            await over.wait()
        finally:
            timer.cancel()


class _VirtualTimer:
    """A timer of a :class:`VirtualClock`."""

    __slots__ = ("callback", "is_cancelled")

    def __init__(self, callback: Callable[[], object]) -> None:
        self.callback = callback
        self.is_cancelled = False

    def cancel(self) -> None:
        """See :class:`Timer`."""
        self.is_cancelled = True


# --- belief ------------------------------------------------------------------------------------
#
# When a clock may be believed: enough to expire messages for good, and enough to act at all. Pure
# decisions.
#
# A message hidden because it has expired comes back when a wrong clock is put right; one retired or
# removed does not. So after a start with the clock suspiciously far ahead of the time last noted,
# expiry hides but nothing is retired until the clock has proved itself.


SUSPICIOUS_GAP_MS: Final = 3_600_000
"""A start this long after the time last noted is suspicious: a long stop or a wrong clock."""

CONFIRMED_AFTER_S: Final = 3_600.0
"""A suspicious clock is believed once the server has run this long with it."""

TOLERATED_DRIFT_S: Final = 5.0
"""The wall clock may not have been moved by more than this meanwhile."""


def may_retire(
    *, last_seen_ms: int, started_at_ms: int, running_s: float, wall_drift_s: float
) -> bool:
    """Tell whether expired messages may be retired and removed now.

    Args:
        last_seen_ms: Time noted by the previous run; 0 when there was none.
        started_at_ms: Time at which this run began.
        running_s: Seconds this run has lasted.
        wall_drift_s: How far the wall clock has moved against the time of this run.
    """
    if abs(wall_drift_s) > TOLERATED_DRIFT_S:
        return False
    suspicious = last_seen_ms != 0 and started_at_ms - last_seen_ms > SUSPICIOUS_GAP_MS
    return not suspicious or running_s >= CONFIRMED_AFTER_S


AGREED_WITHIN_S: Final = 0.5
"""Servers of one database act only while their time is as close to the time that they share."""

FRESH_S: Final = 2.5
"""So long the word of another server counts that the shared time is right: each gives it once a
second."""

DOUBTED_AT_MOST_S: Final = 3.0
"""How long a server waits for such a word before it trusts its own time."""


class Verdict(Enum):
    """On the time that the servers of a database share, by what one of them sees."""

    AGREES = auto()
    """It is this server's time."""
    CORRECT = auto()
    """The clock of the database was set: the shared time is to go on as if it had not been."""
    FOLLOW = auto()
    """This server has lost the time: it is to take the shared one over."""
    DOUBT = auto()
    """It is unknown yet: nothing is to be done by either."""


def judge(*, gap_s: float, is_known: bool, is_fresh: bool, doubted_for_s: float) -> Verdict:
    """Tell what to do about the time that servers share.

    It is made of the database's clock, which anybody may set, and a correction; each server has a
    clock of its own that only counts.

    Args:
        gap_s: How far the shared time is ahead of this server's, at the least.
        is_known: Whether this server agreed with the shared time under the same correction.
        is_fresh: Whether another server did, within FRESH_S by the database's clock as it is now.
        doubted_for_s: How long this server has been in doubt.
    """
    if abs(gap_s) <= AGREED_WITHIN_S:
        return Verdict.AGREES
    if is_known and gap_s < 0:
        return Verdict.CORRECT  # a clock that counts may lose time, and never gains any
    if is_fresh:
        return Verdict.FOLLOW
    if is_known or doubted_for_s >= DOUBTED_AT_MOST_S:
        return Verdict.CORRECT
    return Verdict.DOUBT
