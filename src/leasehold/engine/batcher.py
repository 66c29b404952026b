"""Group commit: what arrives while one commit is under way shares the next.

The statements of a batch run in the event loop. Where the commit runs depends on the disk: one that
takes long lets go of the interpreter lock on a thread of its own, so that requests are read
meanwhile; one that is over sooner than two threads can hand the lock to and fro runs in the loop.
Of a store behind a network everything runs in the loop while that is quick: two threads that take
the interpreter lock from each other at each of seven round trips cost a quarter of the throughput.
What is not over in a moment goes on on the thread. Long batches begin there, and the loop stands
back for the same moment. While commits are slow it does not wait at all, but reads requests.
Figures and the forms tried stand in ``docs/decisions/``: 0002 on commits, 0035 on PostgreSQL.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from queue import SimpleQueue
from typing import Any, Final, TypeAlias

import structlog

from leasehold.clock import Clock
from leasehold.domain import commands as c
from leasehold.domain.command import MAX_BATCH, AnyCommand, Command, R, one
from leasehold.domain.errors import LeaseholdError, Stopping, StoreFailed, StoreFull
from leasehold.engine.adapting import Adapting
from leasehold.engine.long_poll import LongPolls, Pending
from leasehold.engine.peers import PeerNotifier
from leasehold.engine.stats import EngineStats
from leasehold.stores.base import COMMANDS, NotInTime, Store

QUIET_TURNS: Final = 3
"""Turns of the loop, some ten microseconds each, without a new command before a batch starts."""

GATHER_LIMIT_S: Final = 0.02
"""Longest wait for such a turn, under a load that never pauses; 512 commands take as long to read.

With 256 connections 5 ms cut batches short and cost a fifth of the throughput.
"""

INLINE_BELOW_S: Final = 0.001
"""Commits that typically take less than this run in the loop."""

STAND_BACK_S: Final = 0.02
"""Longest time that the loop waits for a batch of a remote store."""

_QUICK: Final = 3.0
"""For a remote store to be quick, its commits may take so many times what is done in the loop."""

_SETTLING_TURNS: Final = 1_000
_MEMORY: Final = 1 / 16
"""Weight of the newest commit in what is typical."""

_log = structlog.get_logger(__name__)


_Outcome: TypeAlias = "Future[tuple[Any, ...]]"
"""What the loop is to call when a batch is over, and with what."""

_Work: TypeAlias = Callable[[], tuple[Any, ...]]
"""What the thread is to do; it returns such a thing, whatever happens."""


class Batcher:
    """Turns single commands into batches; lives in one event loop.

    Args:
        store: Where the batches go.
        clock: Read once per batch.
        stats: Where to count.
        on_failure: Called once when the store has failed and is of no more use.
        polls: Who waits for messages, and hears of every result.
        adapting: Who watches how long leases take, and hears of every result.
        herald: Who tells other servers of the results; None if there are none.
        inline_below_s: See INLINE_BELOW_S; 0 to commit on the thread always.
    """

    def __init__(  # noqa: PLR0913 - each is a collaborator of its own
        self,
        store: Store,
        clock: Clock,
        stats: EngineStats,
        on_failure: Callable[[], None],
        *,
        polls: LongPolls,
        adapting: Adapting,
        herald: PeerNotifier | None = None,
        inline_below_s: float = INLINE_BELOW_S,
    ) -> None:
        self._store = store
        self._is_remote = store.is_remote
        self._clock = clock
        self._stats = stats
        self._polls = polls
        self._adapting = adapting
        self._herald = herald
        self._on_failure = on_failure
        self._inline_below_s = inline_below_s
        self._typical_commit_s = 0.0
        self._typical_batch_s = 0.0
        """Of a remote store."""
        self._began_s = 0.0
        self._gathering_since_s = 0.0
        self._loop = asyncio.get_running_loop()
        self._waiting: list[Pending] = []
        self._between: list[tuple[Callable[[], bool], asyncio.Future[bool]]] = []
        self._busy = False
        self._is_inline = False
        self._stopping = False
        self._failed = False
        self._idle = asyncio.Event()
        self._idle.set()
        self._for_thread: SimpleQueue[tuple[_Work, _Outcome] | None] = SimpleQueue()
        self._results: list[c.Result] = []
        self._thread = threading.Thread(target=self._commit_loop, name="commit", daemon=True)
        self._thread.start()
        polls.open(self.hand_in)

    def submit(self, command: Command[R]) -> asyncio.Future[R | LeaseholdError]:
        """Put *command* in the next batch; the future has its result once that is durable."""
        future: asyncio.Future[Any] = self._loop.create_future()
        self.hand_in((command, future))
        return future

    def hand_in(self, pending: Pending) -> None:
        """Put a command in the next batch; its result is set once that is durable."""
        if self._stopping or self._failed:
            pending[1].set_result(StoreFailed() if self._failed else Stopping())
            return
        self._waiting.append(pending)
        if not self._busy:
            self._busy = True
            self._idle.clear()
            self._gathering_since_s = self._clock.monotonic_s()
            self._loop.call_soon(self._gather, 0, 0)

    def _gather(self, seen: int, quiet_turns: int) -> None:
        """Start the batch once the loop has brought nothing new for a few turns.

        The clients answered after the last commit are about to ask again: letting them in costs
        microseconds, and saves a commit for every batch that would otherwise go off half full.
        """
        here = len(self._waiting)
        quiet_turns = 0 if here > seen else quiet_turns + 1
        gathering_s = self._clock.monotonic_s() - self._gathering_since_s
        if quiet_turns < QUIET_TURNS and here < MAX_BATCH and gathering_s < GATHER_LIMIT_S:
            self._loop.call_soon(self._gather, here, quiet_turns)
        else:
            self._start_batch()

    def between_batches(self, work: Callable[[], bool]) -> asyncio.Future[bool]:
        """Call *work* when no batch is open, for what cannot be part of one."""
        future: asyncio.Future[bool] = self._loop.create_future()
        if self._failed:
            future.set_exception(StoreFailed())
            return future
        self._between.append((work, future))
        if not self._busy:
            self._busy = True
            self._idle.clear()
            self._loop.call_soon(self._start_batch)
        return future

    async def settle(self) -> None:
        """Wait for a few turns of the loop without work, but not for ever."""
        quiet_turns = 0
        for _ in range(_SETTLING_TURNS):
            await self._idle.wait()
            await asyncio.sleep(0)
            quiet_turns = quiet_turns + 1 if self._idle.is_set() else 0
            if quiet_turns > QUIET_TURNS:
                return

    async def stop(self) -> None:
        """Refuse what is new, finish what was taken."""
        self._stopping = True
        await self._idle.wait()
        self._for_thread.put(None)
        self._thread.join()

    def _start_batch(self) -> None:
        if self._between and not self._do_between():
            return
        waiting = self._waiting
        if not waiting:
            self._busy = False
            self._idle.set()
            return
        size = _size(waiting)
        if size < len(waiting):
            batch, self._waiting = waiting[:size], waiting[size:]
        else:
            batch, self._waiting = waiting, []
        if self._polls.by_queue:
            self._polls.anticipate(batch)
        batch.sort(key=_order)
        if self._is_remote:
            self._carry_out(batch)
            return
        try:
            self._execute(batch)
        except Exception as error:  # noqa: BLE001 - no caller may be left without an answer
            self._after_failed_batch(batch, error)
            return
        if self._typical_commit_s < self._inline_below_s and not _is_heavy(batch):
            self._finish_here(self._committed, batch, *self._commit())
        else:
            work = partial(self._commit_only, batch)
            self._to_thread(work).add_done_callback(self._finish_later)

    def _to_thread(self, work: _Work) -> _Outcome:
        """Have the thread do something."""
        outcome: _Outcome = Future()
        self._for_thread.put((work, outcome))
        return outcome

    def _carry_out(self, batch: list[Pending]) -> None:
        """Carry out a batch of a remote store: here, or on the thread."""
        is_executed = False
        is_quick = self._typical_commit_s < _QUICK * self._inline_below_s
        if is_quick and self._typical_batch_s < STAND_BACK_S / 2:
            ending, is_executed = self._try(batch)
            if ending is not None:
                self._finish_here(*ending)
                return
            is_quick = False
        outcome = self._to_thread(partial(self._execute_and_commit, batch, is_executed=is_executed))
        if is_quick:
            with contextlib.suppress(TimeoutError):
                outcome.result(STAND_BACK_S)
        if outcome.done():
            self._finish_here(*outcome.result())
        else:
            outcome.add_done_callback(self._finish_later)

    def _try(self, batch: list[Pending]) -> tuple[tuple[Any, ...] | None, bool]:
        """Carry out a batch in the loop.

        Returns:
            What is to be called, or None if there is no time for it here; and whether the commit is
            all that is left.
        """
        is_executed = False
        self._store.set_deadline(STAND_BACK_S)
        try:
            self._execute(batch)
            is_executed = True
            return (self._committed, batch, *self._commit()), is_executed
        except NotInTime:
            return None, is_executed
        except Exception as error:  # noqa: BLE001 - no caller may be left without an answer
            return (self._after_failed_batch, batch, error), is_executed
        finally:
            self._store.set_deadline(None)

    def _finish_here(self, finish: Callable[..., None], *of: Any) -> None:
        self._is_inline = True
        finish(*of)
        self._is_inline = False

    def _learn(self, commit_s: float, batch_s: float) -> None:
        """Note how long a batch of a remote store took; a pause now and then is not typical."""
        commit_s = min(commit_s, 2 * _QUICK * self._inline_below_s)
        self._typical_commit_s += (commit_s - self._typical_commit_s) * _MEMORY
        batch_s = min(batch_s, STAND_BACK_S)
        self._typical_batch_s += (batch_s - self._typical_batch_s) * _MEMORY

    def _finish_later(self, outcome: _Outcome) -> None:
        self._loop.call_soon_threadsafe(*outcome.result())

    def _do_between(self) -> bool:
        """Do what waits for the time between batches; False if the store failed at it."""
        between, self._between = self._between, []
        for work, future in between:
            try:
                done = work()
            except Exception as error:  # noqa: BLE001 - as for batches
                if not future.done():
                    future.set_exception(error)
                if isinstance(error, StoreFailed):
                    self._after_failed_batch([], error)
                    return False
                continue
            if not future.done():
                future.set_result(done)
        return True

    def _execute(self, batch: Sequence[Pending]) -> None:
        self._began_s = self._clock.monotonic_s()
        commands = [command for command, _ in batch]
        now_ms = self._stats.now_ms = self._clock.now_ms()
        try:
            self._results = self._store.execute(commands, now_ms=now_ms)
        except StoreFull:
            self._results = self._store.execute(commands, now_ms=now_ms)

    def _commit(self) -> tuple[LeaseholdError | None, float | None]:
        """Commit; return what went wrong, and the seconds it took if it wrote anything."""
        started_s = self._clock.monotonic_s()
        error: LeaseholdError | None = None
        wrote = True
        try:
            wrote = self._store.commit()
        except NotInTime:
            raise
        except LeaseholdError as raised:
            error = raised
        except BaseException as raised:  # noqa: BLE001 - a dead commit thread would hang all
            error = StoreFailed()
            error.__cause__ = raised
        return error, self._clock.monotonic_s() - started_s if wrote else None

    def _commit_loop(self) -> None:
        """Run on the commit thread."""
        while (task := self._for_thread.get()) is not None:
            work, outcome = task
            outcome.set_result(work())

    def _commit_only(self, batch: list[Pending]) -> tuple[Any, ...]:
        """Commit a batch that the loop has executed; return what the loop is to call."""
        return self._committed, batch, *self._commit()

    def _execute_and_commit(self, batch: list[Pending], *, is_executed: bool) -> tuple[Any, ...]:
        """Carry out a batch of a remote store, or the rest of it; return what the loop is to call.

        Args:
            batch: Commands, and who waits for their results.
            is_executed: Whether the commit is the rest.
        """
        try:
            if not is_executed:
                self._execute(batch)
            error, duration_s = self._commit()
            if isinstance(error, StoreFull):
                self._execute(batch)
                error, duration_s = self._commit()
        except BaseException as raised:  # noqa: BLE001 - a dead commit thread would hang all
            return self._after_failed_batch, batch, raised
        if error is not None:
            return self._after_failed_batch, batch, error
        return self._committed, batch, None, duration_s

    def _committed(
        self, batch: list[Pending], error: LeaseholdError | None, duration_s: float | None
    ) -> None:
        if error is not None:
            self._after_failed_commit(batch, error)
            return
        stats = self._stats
        stats.batches += 1
        stats.commands += len(batch)
        if duration_s is not None:
            stats.commit_seconds.observe(duration_s)
            if self._is_remote:
                self._learn(duration_s, self._clock.monotonic_s() - self._began_s)
            else:
                self._typical_commit_s += (duration_s - self._typical_commit_s) * _MEMORY
        count = stats.count
        if self._polls.by_queue or self._adapting.windows:
            self._tell(batch)
        else:
            for (command, answer), result in zip(batch, self._results, strict=True):
                count(command, result)
                if not answer.done():
                    answer.set_result(result)
        if self._herald is not None:
            self._herald.tell(batch, self._results)
        if self._is_inline and self._waiting:
            # Batch within batch, a long line of them would nest as deeply as it is long.
            self._loop.call_soon(self._start_batch)
        else:
            self._start_batch()

    def _tell(self, batch: list[Pending]) -> None:
        """Hand out the results in the order in which they came about, to all who listen."""
        count, note, observe = self._stats.count, self._polls.note, self._adapting.note
        for (command, answer), result in zip(batch, self._results, strict=True):
            count(command, result)
            note(command, result)
            observe(command, result, self._stats.now_ms)
            if not answer.done():
                answer.set_result(result)
        self._polls.settle()

    def _after_failed_commit(self, batch: list[Pending], error: LeaseholdError) -> None:
        """Play the batch once more if the disk was full: what needs no room may succeed."""
        if not isinstance(error, StoreFull):
            self._after_failed_batch(batch, error)
            return
        try:
            self._execute(batch)
            self._store.commit()
        except Exception as again:  # noqa: BLE001 - as for the first time
            self._after_failed_batch(batch, again)
        else:
            self._committed(batch, None, None)

    def _after_failed_batch(self, batch: Sequence[Pending], error: BaseException) -> None:
        """Tell those who wait. Only a failed store ends the service, not a failed batch."""
        if not isinstance(error, LeaseholdError):
            _log.error("batch.failed", exc_info=error)
            error = LeaseholdError()
        _answer(batch, error)
        if not isinstance(error, StoreFailed):
            self._polls.settle()
            self._loop.call_soon(self._start_batch)
            return
        # Whether the disk still holds what it took is unknown: only a new start from the file can
        # tell, and no further batch may be written on the same handle.
        _log.critical("store.failed", exc_info=error)
        self._failed = True
        _answer(self._waiting, StoreFailed())
        for _, future in self._between:
            if not future.done():
                future.set_exception(StoreFailed())
        self._waiting, self._between = [], []
        self._busy = False
        self._idle.set()
        self._on_failure()


def _answer(batch: Sequence[Pending], error: LeaseholdError) -> None:
    for _, answer in batch:
        if not answer.done():  # its caller may have gone away
            answer.set_result(error)


def _is_heavy(batch: Sequence[Pending]) -> bool:
    """Tell whether a batch is one command of more weight than others have together.

    However quick the disk is as a rule, so much takes it a while.
    """
    return len(batch) == 1 and weight_of(batch[0][0]) > MAX_BATCH


def _size(waiting: Sequence[Pending]) -> int:
    """Return how many of those who wait make a batch: one at least."""
    total = 0
    for place, (command, _) in enumerate(waiting):
        total += weight_of(command)
        if total > MAX_BATCH:
            return place or 1
    return len(waiting)


def _order(waiting: Pending) -> int:
    return order_of(waiting[0])


# --- the measure of a batch --------------------------------------------------------------------


_RANKS: Final = {kind: int(kind.traits.rank) for kind in COMMANDS}
"""Plain integers: sorting compares them faster than members of an enumeration."""
_WEIGHTS: Final = {kind: kind.traits.weight for kind in COMMANDS if kind.traits.weight is not one}


def order_of(command: AnyCommand) -> int:
    """Return the rank of *command* in its batch."""
    return _RANKS[type(command)]


def weight_of(command: AnyCommand) -> int:
    """Return how many puts *command* costs as much as."""
    weigh = _WEIGHTS.get(type(command))
    return 1 if weigh is None else weigh(command)
