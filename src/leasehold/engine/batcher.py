"""Group commit: what arrives while one commit is under way shares the next.

Collects commands into batches and hands out their results; how a batch is carried out and committed
is the affair of a :class:`~leasehold.engine.commit_policy.CommitPolicy`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import Any, Final

import structlog

from leasehold.clock import Clock
from leasehold.domain import commands as c
from leasehold.domain.command import MAX_BATCH, Command, R
from leasehold.domain.errors import LeaseholdError, Stopping, StoreFailed
from leasehold.engine.commit_policy import INLINE_BELOW_S, BatchResult, policy_of, weight_of
from leasehold.engine.listeners import Pending
from leasehold.engine.long_poll import LongPolls
from leasehold.engine.maintenance import AdaptiveTimeouts
from leasehold.engine.peers import PeerNotifier
from leasehold.engine.stats import EngineStats
from leasehold.stores.base import COMMANDS, Store

QUIET_TURNS: Final = 3
"""Turns of the loop, some ten microseconds each, without a new command before a batch starts."""

GATHER_LIMIT_S: Final = 0.02
"""Longest wait for such a turn, under a load that never pauses; 512 commands take as long to read.

With 256 connections 5 ms cut batches short and cost a fifth of the throughput.
"""

_SETTLING_TURNS: Final = 1_000
_log = structlog.get_logger(__name__)


class Batcher:
    """Turns single commands into batches; lives in one event loop.

    Args:
        store: Where the batches go.
        clock: Read once per batch.
        stats: Where to count.
        on_failure: Called once when the store has failed and is of no more use.
        polls: Who waits for messages, and hears of every result.
        adaptive: Who watches how long leases take, and hears of every result.
        notifier: Who tells other servers of the results; None if there are none.
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
        adaptive: AdaptiveTimeouts,
        notifier: PeerNotifier | None = None,
        inline_below_s: float = INLINE_BELOW_S,
    ) -> None:
        self._clock = clock
        self._stats = stats
        self._polls = polls
        self._adaptive = adaptive
        self._notifier = notifier
        self._on_failure = on_failure
        self._gathering_since_s = 0.0
        self._loop = asyncio.get_running_loop()
        self._waiting: list[Pending] = []
        self._between: list[tuple[Callable[[], bool], asyncio.Future[bool]]] = []
        self._busy = False
        self._batch: list[Pending] = []
        """The one that is under way."""
        self._is_applying = False
        self._stopping = False
        self._failed = False
        self._idle = asyncio.Event()
        self._idle.set()
        self._woken = 0
        """How often there was something to do again after an idle moment."""
        self._policy = policy_of(store, clock, self._applied, inline_below_s)
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
            self._woken += 1
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
            self._woken += 1
            self._idle.clear()
            self._loop.call_soon(self._start_batch)
        return future

    async def wait_for_idle(self, quiet_s: float, most_s: float) -> None:
        """Wait until nobody here has wanted the store for *quiet_s*, but at most *most_s*."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(most_s):
                while True:
                    await self._idle.wait()
                    woken = self._woken
                    await asyncio.sleep(quiet_s)
                    if self._idle.is_set() and self._woken == woken:
                        return

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
        self._policy.stop()

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
        self._batch = batch
        now_ms = self._stats.now_ms = self._clock.now_ms()
        self._is_applying = True
        self._policy.apply([command for command, _ in batch], now_ms)
        self._is_applying = False

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

    def _applied(self, result: BatchResult) -> None:
        """Hear what became of the batch that was under way."""
        batch, self._batch = self._batch, []
        if result.error is not None:
            self._after_failed_batch(batch, result.error)
            return
        stats, results = self._stats, result.results
        stats.batches += 1
        stats.commands += len(batch)
        if result.commit_s is not None:
            stats.commit_seconds.observe(result.commit_s)
        polls = self._polls
        if polls.by_queue or polls.onlookers or self._adaptive.watched:
            self._tell(batch, results)
        else:
            count = stats.count
            for (command, answer), its_result in zip(batch, results, strict=True):
                count(command, its_result)
                if not answer.done():
                    answer.set_result(its_result)
        if self._notifier is not None:
            self._notifier.tell(batch, results)
        if self._is_applying and self._waiting:
            # Batch within batch, a long line of them would nest as deeply as it is long.
            self._loop.call_soon(self._start_batch)
        else:
            self._start_batch()

    def _tell(self, batch: list[Pending], results: Sequence[c.Result]) -> None:
        """Hand out the results in the order in which they came about, to all who listen."""
        count, note = self._stats.count, self._polls.note
        observe = self._adaptive.note if self._adaptive.watched else None
        for (command, answer), result in zip(batch, results, strict=True):
            count(command, result)
            note(command, result)
            if observe is not None:
                observe(command, result, self._stats.now_ms)
            if not answer.done():
                answer.set_result(result)
        self._polls.settle()

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


def _size(waiting: Sequence[Pending]) -> int:
    """Return how many of those who wait make a batch: one at least."""
    total = 0
    for place, (command, _) in enumerate(waiting):
        total += weight_of(command)
        if total > MAX_BATCH:
            return place or 1
    return len(waiting)


_RANKS: Final = {kind: int(kind.traits.rank) for kind in COMMANDS}
"""Plain integers: sorting compares them faster than members of an enumeration."""


def _order(waiting: Pending) -> int:
    return _RANKS[type(waiting[0])]
