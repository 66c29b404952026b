"""``once``: the body runs at the first delivery, and is skipped at the others."""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
import secrets
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any, Final, TypeVar, cast, overload

from leasehold.worker.idempotency.errors import Busy, Fenced, NotRecorded, UnstorableResult
from leasehold.worker.idempotency.history import (
    Delivered,
    Holder,
    KnowsItsErrors,
    Processed,
    Run,
    check_fence_number,
    encode_result,
    join_key,
    may_pass,
)
from leasehold.worker.idempotency.transactions import History, InTransaction
from leasehold.worker.timing import SystemTime, Time

_F = TypeVar("_F", bound=Callable[..., Any])
_T = TypeVar("_T")


class Once:
    """Runs an effect at the first delivery of a message and skips it at all others.

    ::

        once = Once(SqliteProcessed("history.db"))

        @once.handler
        def handle(message):
            return charge(message.json())           # kept, and given back to repeated deliveries

        def handle(message):                        # the same by hand
            with once(message) as run:              # or: async with
                if run.first:
                    run.result = charge(message.json())

    When the body ends, the key is recorded as done; when it raises, the key is free again. While it
    runs, a newer delivery of the same message takes over at once (the lease of the older one has
    ended), and an older one gets Fenced. Another message with the same key, or the same delivery
    run a second time, waits for up to *wait_s* and then gets Busy, which is a Retry.

    **What is not promised.** Between the effect and its record the process can die, and a worker
    whose lease has ended can still be at work: then the effect happens a second time. Where both
    are in one database, :meth:`in_transaction` closes the gap; elsewhere a fenced write
    (:class:`~leasehold.worker.idempotency.fencing.FencedTable`,
    :func:`~leasehold.worker.idempotency.headers.fence_headers`) does.

    The window of the history has to be longer than a message can live, and than the body can run:
    what is forgotten happens again.

    Args:
        store: The history; may be left out where only :meth:`in_transaction` is used.
        step: Name of the effect, for messages that have several. Each is done once.
        wait_s: How long to wait for another worker, in seconds; 0: not at all.
        hold_s: How long what a worker began keeps *other messages* with that key away, in seconds,
            if they neither end nor fail. None: as long as the window. The effect can happen twice
            if it is shorter than the work.
        retry_s: The delay of a Busy, in seconds.
        record_s: How long to go on trying to record what has happened while the store fails for a
            reason that may pass, in seconds; 0: one try. Then the handler gets NotRecorded.
        history: Where :meth:`in_transaction` writes.
        time: That waits are measured by.
    """

    def __init__(  # noqa: PLR0913 - settings, all but the first by name
        self,
        store: Processed | None = None,
        *,
        step: str = "",
        wait_s: float = 10.0,
        hold_s: float | None = None,
        retry_s: float = 5.0,
        record_s: float = 30.0,
        history: History | None = None,
        time: Time | None = None,
    ) -> None:
        self._step = step
        self._guard = Guard(
            store,
            time or SystemTime(),
            wait_s=wait_s,
            hold_s=hold_s,
            retry_s=retry_s,
            record_s=record_s,
        )
        if history is None:
            history = History() if store is None else History(store.window_s)
        self._history = history

    def __call__(self, message: Delivered, key: str | None = None) -> Guarded:
        """Return a context manager, for ``with`` and ``async with``, that gives a :class:`Run`.

        Args:
            message: As the handler got it.
            key: What is to be done once, if that is not the message: an order number, say, that two
                messages may be about. Keys and messages never meet.

        Raises:
            LeaseLost: On entering: the message is not held any more.
            Fenced: On entering: a newer delivery is at it. On leaving: it took over meanwhile.
            Busy: On entering; see above.
            NotRecorded: On leaving: the effect happened, and may happen again.
        """
        return Guarded(self._guard, self._identify(message, key), message)

    def call(self, message: Delivered, work: Callable[[], _T], key: str | None = None) -> _T:
        """Return what *work* returns at the first time, and the same again at the others."""
        with self(message, key) as run:
            if run.first:
                run.result = work()
        return cast("_T", run.result)

    async def acall(
        self, message: Delivered, work: Callable[[], Awaitable[_T]], key: str | None = None
    ) -> _T:
        """Do what :meth:`call` does, with an asynchronous *work*."""
        async with self(message, key) as run:
            if run.first:
                run.result = await work()
        return cast("_T", run.result)

    @overload
    def handler(self, function: _F, *, key: Callable[[Any], str] | None = None) -> _F: ...

    @overload
    def handler(
        self, function: None = None, *, key: Callable[[Any], str] | None = None
    ) -> Callable[[_F], _F]: ...

    def handler(
        self, function: _F | None = None, *, key: Callable[[Any], str] | None = None
    ) -> _F | Callable[[_F], _F]:
        """Make a handler, synchronous or not, that runs once. To be used as a decorator.

        Args:
            function: Takes the message; what it returns is kept.
            key: Makes the key of a message; see :meth:`__call__`.
        """
        if function is None:
            return lambda function: self._wrap(function, key)
        return self._wrap(function, key)

    def in_transaction(
        self, connection: Any, message: Delivered, key: str | None = None
    ) -> InTransaction:
        """Write the history into the database of the effect, so that both happen or neither.

        That is exactly once, crashes and late workers included.

        ::

            with once.in_transaction(connection, message) as run:
                if run.first:
                    connection.execute("UPDATE account SET ...")

        A transaction is begun, and committed at the end, or rolled back if the body raises. If one
        is open already, the body gets a savepoint in it, and to commit is the caller's business.
        A worker with the same key waits in the database until the transaction ends.

        The table must be there; see
        :meth:`~leasehold.worker.idempotency.transactions.History.create`.

        Args:
            connection: A ``sqlite3.Connection``, a ``psycopg.Connection``, or, with ``async with``,
                a ``psycopg.AsyncConnection``.
            message: As the handler got it.
            key: See :meth:`__call__`.

        Raises:
            Fenced: On entering: a newer delivery of the message has done it.
            Busy: On entering: another worker is at it outside of a transaction, with the same
                table.
        """
        run = self._identify(message, key)
        return InTransaction(self._history, connection, run, message, self._guard.retry_s)

    @property
    def history(self) -> History:
        """Where :meth:`in_transaction` writes."""
        return self._history

    def close(self) -> None:
        """End the threads that serve asynchronous handlers. The store is left open."""
        self._guard.close()

    def _identify(self, message: Delivered, key: str | None) -> Run:
        check_fence_number(message.fence)
        source = join_key(message.queue, message.id)
        if key is None:
            full = join_key("message", message.queue, message.id, self._step)
        else:
            full = join_key("key", key, self._step)
        return Run(full, Holder(source=source, fence=message.fence, run=secrets.token_hex(8)))

    def _wrap(self, function: _F, key: Callable[[Any], str] | None) -> _F:
        def key_of(message: Any) -> str | None:
            return None if key is None else key(message)

        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def arun(message: Any) -> Any:
                return await self.acall(message, lambda: function(message), key_of(message))

            return cast("_F", arun)

        @functools.wraps(function)
        def run(message: Any) -> Any:
            return self.call(message, lambda: function(message), key_of(message))

        return cast("_F", run)


# --- guarding ----------------------------------------------------------------------------------
#
# What happens around the body of ``once``: begin, wait, finish or abandon.


_FIRST_LOOK_S: Final = 0.02
_LONGEST_LOOK_S: Final = 1.0
_THREADS: Final = 8
"""Calls of asynchronous handlers to the store at the same time."""


class Guard:
    """Speaks with the store for :class:`Once`, which explains it."""

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
            raise ValueError("this Once has no store: only in_transaction works")
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
        """Give the seconds until the next look at a worker that is at it, until the time is up."""
        waited_s, wait_s = 0.0, _FIRST_LOOK_S
        while waited_s < self._wait_s:
            yield min(wait_s, self._wait_s - waited_s)
            waited_s += wait_s
            wait_s = min(wait_s * 2, _LONGEST_LOOK_S)
        raise Busy(self.retry_s, f"{run.key}: another worker is processing it")

    async def _in_thread(self, work: Callable[[], _T]) -> _T:
        """Do *work* in a thread. A task that is cancelled meanwhile waits for its end all the same.

        Otherwise it would be unknown what was written.
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
    """One use of :class:`Once`, for ``with`` or ``async with``."""

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
        error.add_note(f"the key could not be released: {type(second).__name__}: {second}")


# --- recording ---------------------------------------------------------------------------------
#
# Recording what has happened although the history does not answer at once.


_log: Final = logging.getLogger("leasehold.worker")
_FIRST_PAUSE_S: Final = 0.1
_LONGEST_PAUSE_S: Final = 2.0


class Recording:
    """The tries to record one run that has ended.

    A lease that is lost meanwhile does not end them: the next delivery of the message is better off
    with the record, and if it has begun, the history says so.

    Args:
        store: The history.
        run: What is done.
        result: What came of it, in JSON.
        time: By which it goes.
        record_s: After so many seconds no try begins any more, but the first one.
    """

    def __init__(
        self, store: Processed, run: Run, result: str | None, time: Time, record_s: float
    ) -> None:
        self._store = store
        self._run = run
        self._result = result
        self._time = time
        self._until_s = time.monotonic_s() + record_s
        self._pause_s = _FIRST_PAUSE_S
        self._is_over = False
        self._problem: Fenced | NotRecorded | None = None

    def attempt(self) -> float | None:
        """Try once.

        Returns:
            None if it is recorded; otherwise seconds until the next try.

        Raises:
            Fenced: Another worker took over.
            NotRecorded: It failed, and there is no next try.
        """
        try:
            self._store.finish(self._run.key, self._run.holder, self._result)
        except Fenced as error:
            self._is_over, self._problem = True, error
            raise
        except Exception as error:
            why = f"{type(error).__name__}: {error}"
            pause_s = self._pause_s
            is_late = self._time.monotonic_s() + pause_s > self._until_s
            if is_late or not self._may_pass(error):
                self._is_over, self._problem = True, NotRecorded(self._run.key, why)
                raise self._problem from error
            _log.warning("%s is done; recording it is retried: %s", self._run.key, why)
            self._pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
            return pause_s
        self._is_over = True
        return None

    def end(self) -> None:
        """Try a last time unless it is over; what is wrong is logged, not raised.

        For who is cancelled and will not hear of it.
        """
        if not self._is_over:
            self._until_s = self._time.monotonic_s()
            with suppress(Fenced, NotRecorded):
                self.attempt()
        if self._problem is not None:
            _log.error("%s", self._problem)

    def _may_pass(self, error: Exception) -> bool:
        store = self._store
        return store.may_pass(error) if isinstance(store, KnowsItsErrors) else may_pass(error)
