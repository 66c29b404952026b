"""What happens around the body of ``once``: begin, wait, finish or abandon."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import TracebackType
from typing import Final, TypeVar

from leasehold.worker.once.errors import Busy, UnstorableResult
from leasehold.worker.once.protocol import Delivered, Processed
from leasehold.worker.once.recording import Recording
from leasehold.worker.once.results import encode_result
from leasehold.worker.once.runs import Run
from leasehold.worker.timing import Time

_FIRST_LOOK_S: Final = 0.02
_LONGEST_LOOK_S: Final = 1.0
_THREADS: Final = 8
"""Calls of asynchronous handlers to the store at the same time."""

_T = TypeVar("_T")


class Guard:
    """Speaks with the store for :class:`~leasehold.worker.once.running.Once`, which explains it."""

    def __init__(  # noqa: PLR0913 - settings, most of them by name
        self,
        store: Processed | None,
        time: Time,
        *,
        wait_s: float,
        hold_s: float | None,
        retry_s: float,
        record_s: float,
    ) -> None:
        if not record_s >= 0:
            raise ValueError(f"record_s is {record_s}; it must be 0 or more")
        self._given = store
        self._time = time
        self._wait_s = wait_s
        self._hold_s = hold_s
        self.retry_s = retry_s
        self._record_s = record_s
        self._lock = threading.Lock()
        self._threads: ThreadPoolExecutor | None = None

    @property
    def _store(self) -> Processed:
        if self._given is None:
            raise ValueError("this Once was made without a store: only in_transaction works")
        return self._given

    def begin(self, run: Run, message: Delivered) -> None:
        """Enter the run, or find out that it is to be skipped."""
        looks = self._looks(run)
        message.check()
        while self._is_held_up(run):
            self._pause(next(looks))
            message.check()

    async def abegin(self, run: Run, message: Delivered) -> None:
        """See :meth:`begin`. If the task is cancelled meanwhile, the run is not entered."""
        looks = self._looks(run)
        message.check()
        try:
            while await self._in_thread(lambda: self._is_held_up(run)):
                await asyncio.sleep(next(looks))
                message.check()
        except asyncio.CancelledError as error:
            await self.aabandon(run, error)
            raise

    def finish(self, run: Run, result: str | None) -> None:
        """Record that it is done, in several tries if need be."""
        recording = self._recording(run, result)
        while (pause_s := recording.attempt()) is not None:
            self._pause(pause_s)

    async def afinish(self, run: Run, result: str | None) -> None:
        """See :meth:`finish`. If the task is cancelled between two tries there is a last one."""
        recording = self._recording(run, result)
        try:
            while True:
                pause_s = await self._in_thread(recording.attempt)
                if pause_s is None:
                    return
                await asyncio.sleep(pause_s)
        except asyncio.CancelledError:
            await self._in_thread(recording.end)
            raise

    def abandon(self, run: Run, error: BaseException) -> None:
        """Set the key free after *error*, which stays the one that is raised."""
        with _noting(error):
            self._store.abandon(run.key, run.holder)

    async def aabandon(self, run: Run, error: BaseException) -> None:
        """See :meth:`abandon`."""
        await self._in_thread(lambda: self.abandon(run, error))

    def close(self) -> None:
        """End the threads."""
        with self._lock:
            threads, self._threads = self._threads, None
        if threads is not None:
            threads.shutdown()

    def _is_held_up(self, run: Run) -> bool:
        entry = self._store.begin(run.key, run.holder, self._hold_s)
        return entry is not None and run.meet(entry)

    def _recording(self, run: Run, result: str | None) -> Recording:
        return Recording(self._store, run, result, self._time, self._record_s)

    def _pause(self, length_s: float) -> None:
        nobody = threading.Condition()
        with nobody:
            self._time.wait(nobody, length_s)

    def _looks(self, run: Run) -> Iterator[float]:
        """Give the seconds until the next look at somebody who is at it, until the time is up."""
        waited_s, wait_s = 0.0, _FIRST_LOOK_S
        while waited_s < self._wait_s:
            yield min(wait_s, self._wait_s - waited_s)
            waited_s += wait_s
            wait_s = min(wait_s * 2, _LONGEST_LOOK_S)
        raise Busy(self.retry_s, f"{run.key}: somebody else is at it")

    async def _in_thread(self, work: Callable[[], _T]) -> _T:
        """Do *work* in a thread. A task that is cancelled meanwhile waits for its end all the same.

        Otherwise nobody would know what was written.
        """
        with self._lock:
            if self._threads is None:
                self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="leasehold-once")
            future = asyncio.wrap_future(self._threads.submit(work))
        try:
            await asyncio.wait([future])
        except asyncio.CancelledError:
            await asyncio.wait([future])
            future.exception()
            raise
        return future.result()


class Guarded:
    """One use of :class:`~leasehold.worker.once.running.Once`, for ``with`` or ``async with``."""

    def __init__(self, guard: Guard, run: Run, message: Delivered) -> None:
        self._guard = guard
        self._run = run
        self._message = message

    def __enter__(self) -> Run:
        self._guard.begin(self._run, self._message)
        return self._run

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        run = self._run
        if error is None:
            result, problem = _encoded(run)
            if run.is_first:
                self._guard.finish(run, result)
            _complain(run, problem)
        elif run.is_first:
            self._guard.abandon(run, error)

    async def __aenter__(self) -> Run:
        await self._guard.abegin(self._run, self._message)
        return self._run

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        run = self._run
        if error is None:
            result, problem = _encoded(run)
            if run.is_first:
                await self._guard.afinish(run, result)
            _complain(run, problem)
        elif run.is_first:
            await self._guard.aabandon(run, error)


def _encoded(run: Run) -> tuple[str | None, UnstorableResult | None]:
    """Return the result to be kept, and why it cannot be."""
    if not run.is_first:
        return None, None
    try:
        return encode_result(run.result), None
    except UnstorableResult as error:
        return None, error


def _complain(run: Run, problem: UnstorableResult | None) -> None:
    """Say what was wrong with a body, now that its effect has been recorded."""
    run.check_asked()
    if problem is not None:
        raise problem


@contextmanager
def _noting(error: BaseException) -> Iterator[None]:
    """Let nothing that goes wrong in here take the place of *error*."""
    try:
        yield
    except Exception as second:  # noqa: BLE001 - whatever a driver raises
        error.add_note(f"the key could not be set free: {type(second).__name__}: {second}")
