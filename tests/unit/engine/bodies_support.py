"""An engine with large bodies over stores that outlive it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Self

from leasehold.domain import admin as o
from leasehold.domain import commands as c
from leasehold.domain.command import AnyCommand
from leasehold.domain.model import Lease, Message
from leasehold.engine import Engine
from leasehold.engine.large_bodies import LargeBodies
from leasehold.engine.maintenance import MaintenancePlan
from leasehold.stores.base import StoreHealth
from leasehold.testing import ManualClock
from tests.patience import PATIENCE_S
from tests.unit.bodies.faulty import FaultyBodies
from tests.unit.engine.support import RecordingStore, put

INLINE = 10
SMALL, LARGE = b"x" * INLINE, b"y" * (INLINE + 1)
LARGER = b"z" * 50
BUDGET = 1_000
QUEUE = ("a", "queue")


class Store(RecordingStore):
    """A memory store that outlives its engine, and can be full."""

    def __init__(self) -> None:
        super().__init__()
        self.writable = True
        self.commit_errors: list[Exception] = []

    def commit(self) -> bool:
        """See ``Store``."""
        if self.commit_errors:
            raise self.commit_errors.pop(0)
        return super().commit()

    def health(self) -> StoreHealth:
        """See ``Store``."""
        return StoreHealth(kind="test", durable=True, writable=self.writable, details={})


class World:
    """An engine whose store and bodies stay when it is gone."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.store = Store()
        self.kept = FaultyBodies(self.clock)
        self.buffered = 0
        """Bytes that requests and answers hold."""
        self.engine = self.begin()

    def begin(self, plan: MaintenancePlan | None = None) -> Engine:
        """Return another engine over the same store and bodies, as after a crash."""
        self.bodies = LargeBodies(
            self.kept,
            self.clock,
            inline_bytes=INLINE,
            budget_bytes=BUDGET,
            buffered=lambda: self.buffered,
        )
        engine = Engine(self.store, self.clock, plan=plan, inline_below_s=1.0, bodies=self.bodies)
        self.engine = engine
        return engine

    async def __aenter__(self) -> Self:
        await self.engine.start()
        await self.do(c.CreateQueue(*QUEUE, {}))
        self.store.batches.clear()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.engine.stop()

    async def do(self, command: AnyCommand) -> Any:
        """Carry a command out."""
        return await self.engine.perform(command)

    async def put(self, body: bytes = LARGE, **more: Any) -> Lease:
        """Put a message."""
        lease = await self.do(put(body, **more))
        assert isinstance(lease, Lease)
        return lease

    async def receive(self, limit: int = 1, lease_s: int = 30) -> tuple[Lease, ...]:
        """Receive messages."""
        leases = await self.do(c.Receive(*QUEUE, limit, lease_s))
        assert isinstance(leases, tuple)
        return leases

    async def find(self, message_id: str) -> o.Seen:
        """Look at a message."""
        seen = await self.do(o.FindMessage(*QUEUE, message_id))
        assert isinstance(seen, o.Seen)
        return seen

    async def settle(self) -> None:
        """Let what goes on in the background come to its end."""
        while self.bodies._tasks:
            await asyncio.gather(*self.bodies._tasks)
            await asyncio.sleep(0)  # their callbacks take them out

    async def crash(self) -> None:
        """Drop the engine without a word, and begin another one."""
        old = self.engine
        for task in self.bodies._tasks:
            task.cancel()
        self.begin()
        await self.engine.start()
        batcher = old._batcher
        assert batcher is not None
        batcher._policy.stop()  # its thread, for the sake of the test

    def refs(self) -> set[str]:
        """Return the keys that messages refer to."""
        (known,) = self.store.execute(
            [c.KnownBodies(tuple(self.kept.kept))], now_ms=self.clock.now_ms()
        )
        assert isinstance(known, c.BodyKeys)
        return set(known.keys)


async def until(condition: Callable[[], object]) -> None:
    """Let others have their turns until something is so."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110 - it is no event of ours
            await asyncio.sleep(0.0005)


Scenario = Callable[[World], Awaitable[None]]


def play(scenario: Scenario) -> None:
    """Run a scenario."""

    async def run() -> None:
        async with World() as world:
            await scenario(world)
            await world.settle()

    asyncio.run(run())


def body_of(message: Message) -> bytes:
    """Return the body of a message that must have one."""
    assert message.detail.body_ref is None or message.detail.body_ref.problem is None
    return message.body


def puts(*bodies: bytes) -> tuple[c.Put, ...]:
    """Return puts of several bodies."""
    return tuple(put(body) for body in bodies)


async def complete(world: World, lease: Lease) -> None:
    """Complete a message."""
    await world.do(c.Complete(*QUEUE, lease.message.message_id, lease.receipt))
