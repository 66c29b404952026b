"""The engine: one door to the store for all dialects."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final, NamedTuple, cast

from leasehold.clock import Clock
from leasehold.domain import commands as c
from leasehold.domain import oversight as o
from leasehold.domain.errors import LeaseholdError, Stopping
from leasehold.domain.types import Lease, Queue
from leasehold.engine.adapting import Adapting
from leasehold.engine.batching import INLINE_BELOW_S, Batcher
from leasehold.engine.jobs import JobRunner
from leasehold.engine.maintenance import Maintenance, MaintenancePlan
from leasehold.engine.stats import EngineStats, QueueActivity
from leasehold.engine.waiting import Gone, WaitingRooms
from leasehold.stores.base import Store, StoreHealth

_COUNTED_AT_ONCE: Final = 128


class Counted(NamedTuple):
    """The messages of one queue by state, and its visibility timeout in seconds."""

    account: str
    queue: str
    counts: o.Counts
    visibility_timeout_s: int


class Engine:
    """Performs commands against one store, durably.

    Args:
        store: Store that the engine owns from now on; it is closed with the engine.
        clock: Source of all time.
        plan: Pace of the maintenance; None for none (tests call :meth:`sweep` themselves).
        inline_below_s: Commits that typically take less run in the event loop, others on a thread.
    """

    def __init__(
        self,
        store: Store,
        clock: Clock,
        *,
        plan: MaintenancePlan | None = None,
        inline_below_s: float = INLINE_BELOW_S,
    ) -> None:
        self.stats = EngineStats(since_ms=clock.now_ms())
        self.failed = asyncio.Event()
        """Set when the store has failed: the process must end and start again from the file."""
        self.waiting = WaitingRooms(clock, store.find_queue)
        """Who waits for messages. ``wake`` is for news from outside, ``check`` for moved clocks."""
        self._store = store
        self._clock = clock
        self._plan = plan
        self._inline_below_s = inline_below_s
        self.jobs = JobRunner(self.perform)
        """Purges and redrives under way."""
        self.adapting = Adapting(store.find_queue)
        """Queues whose visibility timeout follows the work."""
        self._batcher: Batcher | None = None
        self._maintenance: Maintenance | None = None
        self._sweeper: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to take commands; call it in the event loop that will use the engine."""
        self._batcher = Batcher(
            self._store,
            self._clock,
            self.stats,
            self._fail,
            rooms=self.waiting,
            adapting=self.adapting,
            inline_below_s=self._inline_below_s,
        )
        self._maintenance = Maintenance(
            self._store,
            self._clock,
            self._plan or MaintenancePlan(),
            perform=self.perform,
            relieve=self._relieve,
            adapt=self.adapting.adapt,
        )
        self.adapting.watch(
            [
                queue
                for account, name, _ in self._store.message_counts()
                if (queue := self._store.find_queue(account, name)) is not None
            ]
        )
        if self._plan is not None:
            await self.jobs.resume()
            self._sweeper = asyncio.create_task(self._maintenance.run(), name="maintenance")

    async def stop(self) -> None:
        """Finish what was taken, refuse what is new, close the store."""
        self.drain()
        await self.jobs.stop()
        if self._sweeper is not None:
            self._sweeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._sweeper
        if self._batcher is not None:
            await self._batcher.stop()
            self._batcher = None
        self._store.close()

    async def perform(self, command: c.Command) -> c.Result:
        """Carry out *command* and return its result once that is durable.

        Raises:
            LeaseholdError: The command was refused; see :mod:`leasehold.domain.commands`.
        """
        if self._batcher is None:
            raise Stopping
        result = await self._batcher.submit(command)
        if isinstance(result, LeaseholdError):
            raise result
        if type(command) is o.StartJob and isinstance(result, o.Job):
            self.jobs.run(result)
        elif type(command) is c.SetQueueSettings:
            self.adapting.watch_one(command.account, command.queue)
        return result

    async def receive(
        self, command: c.Receive, wait_s: float, gone: Gone | None = None
    ) -> tuple[Lease, ...]:
        """Receive messages; if there are none, wait until there are.

        Those who came first are served first. The wait also ends, with nothing, when the engine
        drains, and with an error when the queue is deleted.

        Args:
            command: What to receive.
            wait_s: Longest wait, 0 to ``waiting.MAX_WAIT_S`` seconds; 0 to answer at once.
            gone: Called once the wait has begun. When what it returns is done, nobody wants the
                answer any more and the wait ends. Cancelling this call has the same effect.

        Raises:
            LeaseholdError: As for :meth:`perform`.
        """
        self.stats.is_received(command, self._clock.now_ms())
        if wait_s <= 0 or self.waiting.is_draining or self._batcher is None:
            result = await self.perform(command)
        else:
            waiter = self.waiting.enter(command, wait_s, gone)
            try:
                result = await waiter.future
            finally:
                waiter.leave()
            if isinstance(result, LeaseholdError):
                raise result
        return cast("tuple[Lease, ...]", result)

    def drain(self) -> None:
        """End all waits for messages with nothing; from now on nobody waits."""
        self.waiting.drain()

    def _fail(self) -> None:
        self.failed.set()
        self.waiting.fail()

    async def sweep(self) -> None:
        """Do all maintenance that is due now."""
        assert self._maintenance is not None
        await self._maintenance.sweep()

    async def _relieve(self) -> bool:
        if self._batcher is None:
            raise Stopping
        return await self._batcher.between_batches(self._store.relieve)

    def find_queue(self, account: str, queue: str) -> Queue | None:
        """Return a queue as the last batch left it, without waiting."""
        return self._store.find_queue(account, queue)

    def activity(self, account: str, queue: str) -> QueueActivity:
        """Return what happened in a queue since the engine was made."""
        room = self.waiting.by_queue.get((account, queue))
        activity = self.stats.activity(account, queue)
        return activity if room is None else activity._replace(waiting=room.count)

    def message_counts(self) -> list[tuple[str, str, int]]:
        """Return account, queue and message count of every queue."""
        return self._store.message_counts()

    async def counts(self) -> list[Counted]:
        """Count the messages of every queue by state, each queue at one instant.

        Queues that cannot be counted now, or are deleted meanwhile, are left out.
        """
        names = [(account, queue) for account, queue, _ in self._store.message_counts()]
        counted: list[Counted] = []
        for start in range(0, len(names), _COUNTED_AT_ONCE):
            part = names[start : start + _COUNTED_AT_ONCE]
            results = await asyncio.gather(
                *(self.perform(o.CountMessages(*name)) for name in part), return_exceptions=True
            )
            for name, counts in zip(part, results, strict=True):
                found = self._store.find_queue(*name)
                if found is not None and isinstance(counts, o.Counts):
                    counted.append(Counted(*name, counts, found.settings.lease_s()))
        return counted

    def health(self) -> StoreHealth:
        """Say how the store is."""
        return self._store.health()
