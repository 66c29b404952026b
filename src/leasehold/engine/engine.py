"""The engine: one door to the store for all dialects."""

from __future__ import annotations

import asyncio
import contextlib

from leasehold.clock import Clock
from leasehold.domain import commands as c
from leasehold.domain.errors import LeaseholdError, Stopping
from leasehold.domain.types import Queue
from leasehold.engine.batching import INLINE_BELOW_S, Batcher
from leasehold.engine.maintenance import Maintenance, MaintenancePlan
from leasehold.engine.stats import EngineStats
from leasehold.stores.base import Store, StoreHealth


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
        self.stats = EngineStats()
        self.failed = asyncio.Event()
        """Set when the store has failed: the process must end and start again from the file."""
        self._store = store
        self._clock = clock
        self._plan = plan
        self._inline_below_s = inline_below_s
        self._batcher: Batcher | None = None
        self._maintenance: Maintenance | None = None
        self._sweeper: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to take commands; call it in the event loop that will use the engine."""
        self._batcher = Batcher(
            self._store,
            self._clock,
            self.stats,
            self.failed.set,
            inline_below_s=self._inline_below_s,
        )
        self._maintenance = Maintenance(
            self._store,
            self._clock,
            self._plan or MaintenancePlan(),
            perform=self.perform,
            relieve=self._relieve,
        )
        if self._plan is not None:
            self._sweeper = asyncio.create_task(self._maintenance.run(), name="maintenance")

    async def stop(self) -> None:
        """Finish what was taken, refuse what is new, close the store."""
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
        return result

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

    def message_counts(self) -> list[tuple[str, str, int]]:
        """Return account, queue and message count of every queue."""
        return self._store.message_counts()

    def health(self) -> StoreHealth:
        """Say how the store is."""
        return self._store.health()
