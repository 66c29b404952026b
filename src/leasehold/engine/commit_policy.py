"""How a batch is carried out and committed: in the event loop, on a thread, or over a network.

========================  ===========================  ========================================
Policy                    Statements run               The commit runs
========================  ===========================  ========================================
:class:`InlineCommit`     in the loop                  in the loop
:class:`ThreadedCommit`   in the loop                  on a thread; the loop reads requests
:class:`RemoteBatch`      in the loop while that is    likewise, with 20 ms for both together
                          quick, else on the thread
========================  ===========================  ========================================

:class:`LocalCommit` chooses between the first two, batch by batch. The figures, and the forms that
were tried, stand in ``docs/decisions``: 0002 on commits, 0035 on PostgreSQL, 0050 on this module.

A policy calls back: a task for each batch would cost more than all that a policy does.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from queue import SimpleQueue
from typing import Final, NamedTuple, Protocol, TypeAlias

from leasehold.clock import Clock
from leasehold.domain.command import MAX_BATCH, AnyCommand, one
from leasehold.domain.commands import Result
from leasehold.domain.errors import LeaseholdError, StoreFailed, StoreFull
from leasehold.stores.base import COMMANDS, RemoteStore, Store

INLINE_BELOW_S: Final = 0.001
"""Commits of a local store that typically take less than this run in the loop."""

STAND_BACK_S: Final = 0.02
"""Longest time that the loop waits for a batch of a remote store."""

_QUICK: Final = 3.0
"""For a remote store to be quick, its commits may take so many times what is done in the loop."""

_MEMORY: Final = 1 / 16
"""Weight of the newest commit in what is typical."""


class BatchResult(NamedTuple):
    """What became of a batch."""

    results: list[Result]
    """One for each command; of no use if there is an error."""
    error: BaseException | None = None
    """Why nothing of it was done. After OutcomeUnknown it is unknown whether it was."""
    commit_s: float | None = None
    """Seconds that the commit took, if it wrote anything."""


Done: TypeAlias = Callable[[BatchResult], None]


class CommitPolicy(Protocol):
    """Carries out batches, one at a time. It lives in one event loop."""

    def apply(self, commands: Sequence[AnyCommand], now_ms: int) -> None:
        """Carry out a batch and commit it; then call, in the loop, what the policy was made with.

        That may be before this returns. A batch for which there was no room is played once more,
        as what needs no room may succeed. The next one may be given when this one is over.
        """
        ...

    def stop(self) -> None:
        """Let go of everything, when no batch is under way."""
        ...


def policy_of(
    store: Store, clock: Clock, done: Done, inline_below_s: float = INLINE_BELOW_S
) -> CommitPolicy:
    """Return the policy that a store asks for by what it can do.

    Args:
        store: Where the batches go.
        clock: Measures commits.
        done: Called in the loop that runs now with what became of each batch.
        inline_below_s: See INLINE_BELOW_S; 0 to commit on the thread always.
    """
    if isinstance(store, RemoteStore):
        return RemoteBatch(store, clock, done, inline_below_s)
    return LocalCommit(store, clock, done, inline_below_s)


class _Steps:
    """The two steps of a batch, each waiting as long as it takes."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    def execute(self, commands: Sequence[AnyCommand], now_ms: int) -> list[Result]:
        """Carry out the commands; what is refused for want of room is known at the second try."""
        try:
            return self._store.execute(commands, now_ms=now_ms)
        except StoreFull:
            return self._store.execute(commands, now_ms=now_ms)

    def commit(self, results: list[Result]) -> BatchResult:
        """Commit what was executed, with *results*; it does not raise."""
        return timed(self._store.commit, results, self._clock)

    def end(
        self, commands: Sequence[AnyCommand], now_ms: int, results: list[Result] | None = None
    ) -> BatchResult:
        """Do what is left of a batch: all of it, or the commit if there are results."""
        try:
            if results is None:
                results = self.execute(commands, now_ms)
        except Exception as error:  # noqa: BLE001 - no caller may be left without an answer
            return BatchResult([], error)
        committed = timed(self._store.commit, results, self._clock)
        return self.again(commands, now_ms) if type(committed.error) is StoreFull else committed

    def again(self, commands: Sequence[AnyCommand], now_ms: int) -> BatchResult:
        """Play a batch once more for which there was no room when it was committed."""
        try:
            return self.commit(self.execute(commands, now_ms))
        except Exception as error:  # noqa: BLE001 - as for the first time
            return BatchResult([], error)


def timed(commit: Callable[[], bool], results: list[Result], clock: Clock) -> BatchResult:
    """Call *commit*, and return what came of it; it takes no time if it returns False."""
    started_s = clock.monotonic_s()
    try:
        took_effect = commit()
    except LeaseholdError as error:
        return BatchResult(results, error)
    except BaseException as raised:  # noqa: BLE001 - a dead commit thread would hang all
        failed = StoreFailed()
        failed.__cause__ = raised
        return BatchResult(results, failed)
    return BatchResult(results, None, clock.monotonic_s() - started_s if took_effect else None)


class CommitThread:
    """The one thread for what would hold up the event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._tasks: SimpleQueue[tuple[Callable[[], BatchResult], Future[BatchResult]] | None]
        self._tasks = SimpleQueue()
        self._commit_thread = threading.Thread(target=self._run, name="commit", daemon=True)
        self._commit_thread.start()

    def begin(self, work: Callable[[], BatchResult]) -> Future[BatchResult]:
        """Do *work* on the thread."""
        future: Future[BatchResult] = Future()
        self._tasks.put((work, future))
        return future

    def when_over(self, future: Future[BatchResult], done: Done) -> None:
        """Call *done* in the loop once that is over."""

        def tell(over: Future[BatchResult]) -> None:
            self._loop.call_soon_threadsafe(done, over.result())

        future.add_done_callback(tell)

    def stop(self) -> None:
        """Finish what was begun, and end."""
        self._tasks.put(None)
        self._commit_thread.join()

    def _run(self) -> None:
        while (task := self._tasks.get()) is not None:
            work, future = task
            try:
                result = work()
            except BaseException as raised:  # noqa: BLE001 - a dead commit thread would hang all
                result = BatchResult([], raised)
            future.set_result(result)


# --- a local store -----------------------------------------------------------------------------


class InlineCommit:
    """Statements and commit in the loop, for commits that are over sooner than two threads can hand
    the interpreter lock to and fro.
    """

    def __init__(self, steps: _Steps, done: Done) -> None:
        self._steps = steps
        self._done = done

    def apply(self, commands: Sequence[AnyCommand], now_ms: int) -> None:
        """See :class:`CommitPolicy`."""
        self._done(self._steps.end(commands, now_ms))


class ThreadedCommit:
    """Statements in the loop, the commit on a thread, where it lets go of the interpreter lock for
    as long as the disk takes: requests are read meanwhile.
    """

    def __init__(self, steps: _Steps, done: Done, thread: CommitThread) -> None:
        self._steps = steps
        self._done = done
        self._commit_thread = thread

    def apply(self, commands: Sequence[AnyCommand], now_ms: int) -> None:
        """See :class:`CommitPolicy`."""
        try:
            results = self._steps.execute(commands, now_ms)
        except Exception as error:  # noqa: BLE001 - no caller may be left without an answer
            self._done(BatchResult([], error))
            return
        future = self._commit_thread.begin(partial(self._steps.commit, results))
        self._commit_thread.when_over(future, partial(self._committed, commands, now_ms))

    def _committed(self, commands: Sequence[AnyCommand], now_ms: int, told: BatchResult) -> None:
        """Hear of the commit; a batch that is played once more is played in the loop."""
        is_full = type(told.error) is StoreFull
        self._done(self._steps.again(commands, now_ms) if is_full else told)


class LocalCommit:
    """Commits in the loop while that is typically quick, else on a thread.

    One command of more weight than others have together takes a while however quick the disk is: it
    is committed on the thread.
    """

    def __init__(self, store: Store, clock: Clock, done: Done, inline_below_s: float) -> None:
        self._done = done
        self._inline_below_s = inline_below_s
        self._typical_s = 0.0
        self._commit_thread = CommitThread()
        steps = _Steps(store, clock)
        self._in_loop = InlineCommit(steps, self._learn)
        self._threaded = ThreadedCommit(steps, self._learn, self._commit_thread)

    def apply(self, commands: Sequence[AnyCommand], now_ms: int) -> None:
        """See :class:`CommitPolicy`."""
        is_heavy = len(commands) == 1 and weight_of(commands[0]) > MAX_BATCH
        if self._typical_s < self._inline_below_s and not is_heavy:
            self._in_loop.apply(commands, now_ms)
        else:
            self._threaded.apply(commands, now_ms)

    def stop(self) -> None:
        """See :class:`CommitPolicy`."""
        self._commit_thread.stop()

    def _learn(self, result: BatchResult) -> None:
        if result.commit_s is not None:
            self._typical_s += (result.commit_s - self._typical_s) * _MEMORY
        self._done(result)


_WEIGHTS: Final = {kind: kind.traits.weight for kind in COMMANDS if kind.traits.weight is not one}


def weight_of(command: AnyCommand) -> int:
    """Return how many puts *command* costs as much as."""
    weigh = _WEIGHTS.get(type(command))
    return 1 if weigh is None else weigh(command)


# --- a remote store ----------------------------------------------------------------------------


class RemoteBatch:
    """Both steps in the loop while that is quick: two threads that take the interpreter lock from
    each other at each of seven round trips cost a quarter of the throughput.

    * The loop waits 20 ms at most. What is not over then goes on on the thread, and a COMMIT that
      was sent is waited for there.
    * Batches that typically take half of that begin on the thread, and the loop stands back for the
      same 20 ms.
    * While commits are typically slow it does not wait at all, but reads requests.
    """

    def __init__(self, store: RemoteStore, clock: Clock, done: Done, inline_below_s: float) -> None:
        self._store = store
        self._clock = clock
        self._done = done
        self._steps = _Steps(store, clock)
        self._commit_thread = CommitThread()
        self._quick_below_s = _QUICK * inline_below_s
        self._typical_commit_s = 0.0
        self._typical_batch_s = 0.0
        self._began_s = 0.0

    def apply(self, commands: Sequence[AnyCommand], now_ms: int) -> None:
        """See :class:`CommitPolicy`."""
        results: list[Result] | None = None
        is_waited_for = self._typical_commit_s < self._quick_below_s
        if is_waited_for and self._typical_batch_s < STAND_BACK_S / 2:
            results = self._try_execute(commands, now_ms)
            committed = None if results is None else self._try_commit(results)
            if committed is not None:
                self._learn(committed)
                return
            is_waited_for = False
        if results is None:
            self._began_s = self._clock.monotonic_s()
        future = self._commit_thread.begin(partial(self._steps.end, commands, now_ms, results))
        if is_waited_for:
            with contextlib.suppress(TimeoutError):
                future.result(STAND_BACK_S)
        if future.done():
            self._learn(future.result())
        else:
            self._commit_thread.when_over(future, self._learn)

    def stop(self) -> None:
        """See :class:`CommitPolicy`."""
        self._commit_thread.stop()

    def _try_execute(self, commands: Sequence[AnyCommand], now_ms: int) -> list[Result] | None:
        self._began_s = self._clock.monotonic_s()
        try:
            return self._store.try_execute(commands, now_ms=now_ms, within_s=STAND_BACK_S)
        except Exception:  # noqa: BLE001 - it will meet it again, where it is dealt with
            return None

    def _try_commit(self, results: list[Result]) -> BatchResult | None:
        """Commit, or return None if it is unknown whether that was done."""
        left_s = STAND_BACK_S - (self._clock.monotonic_s() - self._began_s)
        commit = partial(self._store.try_commit, within_s=left_s)
        committed = timed(commit, results, self._clock)
        return None if committed.commit_s is None and committed.error is None else committed

    def _learn(self, result: BatchResult) -> None:
        """Note how long a batch took; a pause now and then is not typical."""
        if result.commit_s is not None:
            commit_s = min(result.commit_s, 2 * self._quick_below_s)
            self._typical_commit_s += (commit_s - self._typical_commit_s) * _MEMORY
            batch_s = min(self._clock.monotonic_s() - self._began_s, STAND_BACK_S)
            self._typical_batch_s += (batch_s - self._typical_batch_s) * _MEMORY
        self._done(result)
