"""Time that several processes share, which runs faster than that of the machine.

A file holds what time it is. A conductor moves it, together with the clock of a server, and no
further than the processes can follow: on a machine that is busy with other things time passes more
slowly, in place of leases that lapse because nobody got to run.
"""

from __future__ import annotations

import asyncio
import heapq
import mmap
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Final, Self

from leasehold.clock import SystemClock
from leasehold.worker.timing import ScaledTime, SystemTime
from tests.patience import PATIENCE_S

SLOTS: Final = 16
"""How many processes can take part."""
MAX_AHEAD_S: Final = 0.5
"""So much time may pass that one of them has not seen."""
MAX_STEP_S: Final = 0.5
"""A conductor that was held up does not make up for it."""
_START_S: Final = 1000
_PLACES: Final = 1 + SLOTS
_BYTES: Final = 8
_LOOK_S: Final = 0.004
_TICK_S: Final = 0.01
_POLL_S: Final = 0.02
_MS: Final = 1000


class MachineTime(SystemTime):
    """The time of the machine, for handlers that are rehearsed in it."""

    def sleep(self, seconds: float, look: Callable[[], object], every_s: float = 0.2) -> None:
        """See :meth:`SharedTime.sleep`."""
        end_s = self.monotonic_s() + seconds
        while (left_s := end_s - self.monotonic_s()) > 0:
            look()
            time.sleep(min(left_s, every_s))

    async def asleep(self, seconds: float) -> None:
        """See :meth:`SharedTime.asleep`."""
        await asyncio.sleep(seconds)


class SharedTime(ScaledTime):
    """The time of a process that takes part. It is scaled, though not evenly.

    A thread looks at the file and wakes who waits. Where it is sent to another process it goes on
    there, and no conductor waits for that one.

    Args:
        path: The file.
        slot: Where this process says how far its threads have come; None: nowhere.
    """

    def __init__(self, path: str, slot: int | None = None) -> None:
        super().__init__(1.0)
        self._path = path
        self._view = _open(Path(path))
        self._lock = threading.Lock()
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()
        self._urgent: dict[int, int] = {}
        self._seen_ms = 0
        self._moved = threading.Condition()
        threading.Thread(target=self._follow, name="shared-time", daemon=True).start()
        if slot is not None:
            threading.Thread(target=self._tell, args=(slot,), name="told-time", daemon=True).start()

    def __reduce__(self) -> tuple[type[SharedTime], tuple[str]]:
        return type(self), (self._path,)

    def monotonic_s(self) -> float:
        """See :class:`leasehold.worker.timing.Time`."""
        return self._view[0] / _MS

    def wait(self, condition: threading.Condition, timeout_s: float | None) -> None:
        """See :class:`leasehold.worker.timing.Time`."""
        if timeout_s is not None:
            if timeout_s <= 0:
                return

            def wake() -> None:
                with condition:
                    condition.notify_all()

            self._call_at(self.monotonic_s() + timeout_s, wake)
        condition.wait()

    def sleep(self, seconds: float, look: Callable[[], object], every_s: float = 5.0) -> None:
        """Wait, and call *look* now and then; what it raises ends the wait."""
        end_s = self.monotonic_s() + seconds
        condition = threading.Condition()
        while (left_s := end_s - self.monotonic_s()) > 0:
            look()
            with condition:
                self.wait(condition, min(left_s, every_s))

    async def asleep(self, seconds: float) -> None:
        """Wait, in a task."""
        loop = asyncio.get_running_loop()
        over = asyncio.Event()

        def wake() -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(over.set)

        self._call_at(self.monotonic_s() + seconds, wake)
        await over.wait()

    @contextmanager
    def urgently(self) -> Iterator[None]:
        """Let not much time pass before the body has ended."""
        number = next(self._numbers)
        self._urgent[number] = self._view[0]
        try:
            yield
        finally:
            del self._urgent[number]
            self._announce()

    def _call_at(self, moment_s: float, wake: Callable[[], None]) -> None:
        with self._lock:
            heapq.heappush(self._due, (moment_s, next(self._numbers), wake))

    def _follow(self) -> None:
        while True:
            now_ms = self._view[0]
            for wake in self._pop(now_ms / _MS):
                wake()
            self._seen_ms = now_ms
            self._announce()
            while self._view[0] == now_ms:
                time.sleep(_LOOK_S)

    def _announce(self) -> None:
        with self._moved:
            self._moved.notify()

    def _tell(self, slot: int) -> None:
        """Say how far this process is: a thread like others, which has to get its turn as well."""
        while True:
            with self._moved:
                self._moved.wait(_LOOK_S)
            self._view[1 + slot] = min([self._seen_ms, *list(self._urgent.values())])

    def _pop(self, now_s: float) -> list[Callable[[], None]]:
        with self._lock:
            found = []
            while self._due and self._due[0][0] <= now_s:
                found.append(heapq.heappop(self._due)[2])
            return found


class SharedClock:
    """The same time, for what takes a :class:`leasehold.clock.Clock`."""

    def __init__(self, shared: SharedTime) -> None:
        self._shared = shared

    def now_ms(self) -> int:
        """Return the time of the machine: nothing here hangs on it."""
        return SystemClock().now_ms()

    def monotonic_s(self) -> float:
        """Return the shared time."""
        return self._shared.monotonic_s()


class SharedBell:
    """A bell of the client whose waits go by the shared time."""

    def __init__(self, shared: SharedTime) -> None:
        self._shared = shared
        self._changed = threading.Condition()
        self._is_rung = False

    def ring(self) -> None:
        """End all waiting, now and from now on."""
        with self._changed:
            self._is_rung = True
            self._changed.notify_all()

    def wait(self, length_s: float) -> bool:
        """Wait so many seconds at most; tell whether the bell has rung."""
        end_s = self._shared.monotonic_s() + length_s
        with self._changed:
            while not self._is_rung and (left_s := end_s - self._shared.monotonic_s()) > 0:
                self._shared.wait(self._changed, left_s)
            return self._is_rung


class Conductor:
    """Moves the time of a server and of the processes that share it; a context manager.

    Args:
        path: The file, which is made.
        speed: Seconds that pass in each second of the machine, if everybody can follow.
        advance: Moves the clock of the server; an OSError or the like means that it is away, and
            then its time stands still while that of the others goes on.
    """

    def __init__(self, path: Path, speed: float, advance: Callable[[float], object]) -> None:
        path.write_bytes(bytes(_BYTES * _PLACES))
        self.path = path
        self.waited = 0
        """How often somebody was waited for."""
        self._view = _open(path)
        self._view[0] = _START_S * _MS
        self.speed = speed
        self._advance = advance
        self._is_closed = threading.Event()
        self._is_paused = threading.Event()
        self._is_at_rest = threading.Event()
        self._thread = threading.Thread(target=self._conduct, name="conductor", daemon=True)
        self.failure: BaseException | None = None

    @property
    def now_s(self) -> float:
        """The shared time."""
        return self._view[0] / _MS

    def leave(self, slot: int) -> None:
        """Wait no more for the process at that place, until another one takes it."""
        self._view[1 + slot] = 0

    def until(self, reached: Callable[[], object], limit_s: float, what: str) -> None:
        """Let time pass until something is so.

        Raises:
            AssertionError: It is not after *limit_s* seconds of the shared time, and as many of the
                machine as a process may need to start beside others: time waits for none of those.
        """
        end_s = self.now_s + limit_s
        patient_until_s = time.monotonic() + PATIENCE_S
        while not reached():
            assert self.failure is None, self.failure
            is_over = self.now_s >= end_s and time.monotonic() >= patient_until_s
            assert not is_over, f"not within {limit_s:g} s: {what}"
            time.sleep(_POLL_S)

    def let_pass(self, seconds: float) -> None:
        """Let time pass."""
        end_s = self.now_s + seconds
        self.until(lambda: self.now_s >= end_s, seconds + 1, "time passes")

    @contextmanager
    def slowly(self) -> Iterator[None]:
        """Let time pass as on the machine, while processes start that nobody waits for."""
        speed, self.speed = self.speed, 1.0
        try:
            yield
        finally:
            self.speed = speed

    def pause(self) -> None:
        """Let the time of all stand still; returns when it does."""
        self._is_at_rest.clear()
        self._is_paused.set()
        assert self._is_at_rest.wait(timeout=PATIENCE_S)

    def resume(self) -> None:
        """Let it go on."""
        self._is_paused.clear()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_closed.set()
        self._thread.join()

    def _conduct(self) -> None:
        try:
            self._tick_on()
        except BaseException as error:
            self.failure = error
            raise

    def _tick_on(self) -> None:
        before_s = time.monotonic()
        while not self._is_closed.wait(_TICK_S):
            now_s = time.monotonic()
            step_s = min((now_s - before_s) * self.speed, MAX_STEP_S)
            before_s = now_s
            if self._is_paused.is_set():
                self._is_at_rest.set()
            elif self._someone_is_late():
                self.waited += 1
            else:
                # That of the workers first: a lease must not end earlier than they think.
                self._view[0] += round(step_s * _MS)
                self._advance(step_s)

    def _someone_is_late(self) -> bool:
        least_ms = self._view[0] - round(MAX_AHEAD_S * _MS)
        return any(0 < self._view[1 + slot] < least_ms for slot in range(SLOTS))


def _open(path: Path) -> memoryview[int]:
    with path.open("r+b") as file:
        return memoryview(mmap.mmap(file.fileno(), _BYTES * _PLACES)).cast("q")
