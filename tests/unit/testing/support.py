"""An engine that goes by a virtual clock, without a server around it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Self, cast

from leasehold.domain import commands as c
from leasehold.domain.errors import LeaseholdError
from leasehold.domain.model import Lease
from leasehold.domain.queue_settings import QueueSettings
from leasehold.engine import Engine
from leasehold.engine.faults import Faults, faulty
from leasehold.http.test_mode import advance_time
from leasehold.stores.base import Store
from leasehold.stores.memory import MemoryStore
from leasehold.testing import ManualClock

ENTROPY = b"0123456789"


class World:
    """An engine with one queue, ``queue`` of account ``a``."""

    def __init__(self, store: Store | None = None, settings: QueueSettings | None = None) -> None:
        self.clock = ManualClock()
        self.faults = Faults()
        self.inner = store or MemoryStore()
        self.engine = Engine(faulty(self.inner, self.faults), self.clock, timers=self.clock)
        self._settings = settings or QueueSettings()
        self._start_ms = self.clock.now_ms()

    async def __aenter__(self) -> Self:
        await self.engine.start()
        await self.engine.perform(c.CreateQueue("a", "queue", {}, self._settings))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.engine.stop()

    @property
    def now_s(self) -> float:
        """Seconds since the world began."""
        return (self.clock.now_ms() - self._start_ms) / 1000

    async def pass_s(self, length_s: float) -> None:
        """Let time pass."""
        await advance_time(self.engine, self.clock, round(length_s * 1000))

    async def put(self, body: bytes = b"x", delay_s: int = 0, **more: Any) -> Lease:
        """Put a message that never expires unless told other."""
        named: dict[str, Any] = {"time_to_live_s": None, "entropy": ENTROPY, **more}
        put = c.Put("a", "queue", body, delay_s, **named)
        return cast("Lease", await self.engine.perform(put))

    async def receive(
        self, wait_s: float = 0, lease_s: int | None = 30, limit: int = 1, queue: str = "queue"
    ) -> tuple[Lease, ...]:
        """Receive messages."""
        return await self.engine.receive(c.Receive("a", queue, limit, lease_s), wait_s)

    async def complete(self, lease: Lease, queue: str = "queue") -> None:
        """Complete a message."""
        await self.engine.perform(c.Complete("a", queue, lease.message.message_id, lease.receipt))


def play(
    scenario: Callable[[World], Awaitable[None]],
    store: Store | None = None,
    settings: QueueSettings | None = None,
) -> None:
    """Run a scenario in a world of its own."""

    async def run() -> None:
        async with World(store, settings) as world:
            await scenario(world)

    asyncio.run(run())


async def refused(work: Awaitable[object]) -> type[LeaseholdError] | None:
    """Return the type of error that *work* ends with."""
    try:
        await work
    except LeaseholdError as error:
        return type(error)
    return None
