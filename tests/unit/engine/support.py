"""An engine over a memory store, a clock that the test moves, and receives that wait."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, Self

from leasehold.domain import admin as o
from leasehold.domain import commands as c
from leasehold.domain.claims import AttachStream, Claim, OpenClaim, Opened, Stream
from leasehold.domain.command import AnyCommand
from leasehold.domain.model import Lease
from leasehold.domain.queue_settings import QueueSettings
from leasehold.engine import Engine
from leasehold.stores.memory import MemoryStore
from leasehold.testing import ManualClock
from tests.patience import PATIENCE_S

ENTROPY: Final = b"0123456789"
Received = tuple[Lease, ...]
Acts = tuple[str, str, str, str]
"""Account, queue, message id, receipt: what it takes to act on a message."""


def put(body: bytes = b"x", delay_s: int = 0, queue: str = "queue") -> c.Put:
    """Return a command that puts one message."""
    return c.Put("a", queue, body, delay_s, None, ENTROPY)


def receive(
    holder: str = "w", limit: int = 1, lease_s: int = 30, queue: str = "queue"
) -> c.Receive:
    """Return a command that receives."""
    return c.Receive("a", queue, limit, lease_s, holder)


def claim(
    *,
    number: int = 1,
    limit: int = 100,
    lease_s: int = 30,
    stream: str = "s",
    token: int = 1,
    queue: str = "queue",
) -> OpenClaim:
    """Return a command that opens a claim; the stream must have been attached."""
    return OpenClaim("a", queue, stream, token, number, limit, lease_s, stream)


class RecordingStore(MemoryStore):
    """Keeps all commands, batch by batch."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[list[AnyCommand]] = []
        self.errors: list[Exception] = []
        """Raised by the next batches, one each."""
        self.answers: dict[type, c.Result] = {}
        """What commands of some kinds are answered with, whatever the store would say."""
        self.held: type | None = None
        """Commits of batches with a command of this kind wait until the test lets them go."""
        self.let_go = threading.Event()

    def commit(self) -> bool:
        """See ``Store``; it must run on the thread if the test is to hold it."""
        if any(type(command) is self.held for command in self.batches[-1]):
            assert self.let_go.wait(PATIENCE_S)
        return True

    def execute(self, batch: Sequence[AnyCommand], *, now_ms: int) -> list[c.Result]:
        """See ``Store``; raises the errors that the test asks for first."""
        self.batches.append(list(batch))
        if self.errors:
            raise self.errors.pop(0)
        results = super().execute(batch, now_ms=now_ms)
        pairs = zip(batch, results, strict=True)
        return [self.answers.get(type(command), result) for command, result in pairs]

    def commands(self, kind: type) -> list[Any]:
        """Return all commands of a kind, in the order carried out."""
        return [command for batch in self.batches for command in batch if type(command) is kind]


class World:
    """An engine with one queue; commits run in the loop, or on the thread."""

    def __init__(self, *, on_thread: bool = False) -> None:
        self.store = RecordingStore()
        self.clock = ManualClock()
        self.engine = Engine(self.store, self.clock, inline_below_s=0.0 if on_thread else 1.0)
        self.tasks: list[asyncio.Task[Received]] = []
        self.claims: list[asyncio.Task[Opened]] = []

    async def __aenter__(self) -> Self:
        await self.engine.start()
        await self.engine.perform(c.CreateQueue("a", "queue", {}))
        self.store.batches.clear()
        return self

    async def __aexit__(self, *_: object) -> None:
        tasks: list[asyncio.Task[Any]] = [*self.tasks, *self.claims]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.engine.stop()
        assert not self.engine.waiting.by_queue, "waiters were left behind"

    async def rest(self) -> None:
        """Let the engine and all who wait come to rest."""
        batcher = self.engine._batcher
        assert batcher is not None
        for _ in range(3):
            await batcher._idle.wait()
            for _ in range(10):
                await asyncio.sleep(0)

    async def wait(self, command: c.Receive | None = None, **more: Any) -> asyncio.Task[Received]:
        """Begin a receive that waits for a minute, and let it settle down."""
        task = self.begin(command, **more)
        await self.rest()
        return task

    def begin(
        self, command: c.Receive | None = None, wait_s: float = 60.0, **more: Any
    ) -> asyncio.Task[Received]:
        """Begin a receive that waits."""
        waiting = self.engine.receive(command or receive(), wait_s, **more)
        task = asyncio.create_task(waiting)
        self.tasks.append(task)
        return task

    async def attach(self, stream: str = "s", queue: str = "queue") -> int:
        """Attach to a stream; return the token."""
        attached = await self.engine.perform(AttachStream("a", queue, stream))
        assert isinstance(attached, Stream)
        return attached.token

    async def wait_to_claim(self, command: OpenClaim | None = None) -> asyncio.Task[Opened]:
        """Begin a claim that waits for a minute, and let it settle down."""
        task = self.begin_claim(command)
        await self.rest()
        return task

    def begin_claim(
        self, command: OpenClaim | None = None, wait_s: float = 60.0, **more: Any
    ) -> asyncio.Task[Opened]:
        """Begin a claim that waits."""
        task = asyncio.create_task(self.engine.open_claim(command or claim(), wait_s, **more))
        self.claims.append(task)
        return task

    async def do(self, *commands: AnyCommand) -> list[Any]:
        """Have commands carried out side by side, and let everybody come to rest."""
        results = await asyncio.gather(*map(self.engine.perform, commands), return_exceptions=True)
        await self.rest()
        return results

    async def advance(self, *, s: float = 0, ms: int = 0) -> None:
        """Let time pass, and everybody notice."""
        self.clock.advance(s=s, ms=ms)
        self.engine.waiting.check()
        await self.rest()

    async def set(self, queue: str = "queue", **settings: Any) -> None:
        """Replace the settings of a queue."""
        await self.do(c.SetQueueSettings("a", queue, QueueSettings(**settings)))

    def missed(self) -> list[tuple[str, str]]:
        """Return the queues that somebody waits for although there is something to receive."""
        now_ms = self.clock.now_ms()
        found = []
        for key in self.engine.waiting.by_queue:
            (due,) = MemoryStore.execute(self.store, [o.NextDue(*key)], now_ms=now_ms)
            if isinstance(due, o.Due) and due.at_ms is not None and due.at_ms <= now_ms:
                found.append(key)
        return found


def bodies(task: asyncio.Task[Received]) -> list[bytes]:
    """Return what a receive that has ended was given."""
    assert task.done(), "it still waits"
    return [lease.message.body for lease in task.result()]


def claimed(task: asyncio.Task[Opened]) -> Claim:
    """Return the claim that a task which has ended was given."""
    assert task.done(), "it still waits"
    found = task.result().claim
    assert found is not None, "there was nothing to claim"
    return found


def play(scenario: Callable[[World], Awaitable[None]], *, on_thread: bool = False) -> None:
    """Run a scenario, and check afterwards that nobody is left."""

    async def run() -> None:
        async with World(on_thread=on_thread) as world:
            await scenario(world)

    asyncio.run(run())
