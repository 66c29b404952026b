"""How long a week takes on a virtual clock, and whether it is the same week each time.

``python -m benchmarks.seven_days [--runs 1000] [--out FILE]``

A week has delays, leases that run out, five rounds of dead-lettering and redriving, a wait that a
delayed message ends, back-off with jitter, and messages that expire. It is played on an engine in
this process, and over HTTP on the server for tests, each with a store in memory and with SQLite.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple, Protocol, cast

from benchmarks.machine import describe_machine
from leasehold.domain import admin as o
from leasehold.domain import commands as c
from leasehold.domain.command import AnyCommand
from leasehold.domain.errors import LeaseholdError
from leasehold.domain.model import ENTROPY_BYTES, Lease, Outcome
from leasehold.domain.queue_settings import Backoff, FailurePolicy, QueueSettings
from leasehold.engine import Engine, MaintenancePlan
from leasehold.http.test_mode import advance_time
from leasehold.stores.base import Store
from leasehold.stores.memory import MemoryStore
from leasehold.stores.sqlite import SqliteStore
from leasehold.testing import InProcessServer, ManualClock
from leasehold.testing.server import quiet_logs

HOUR_S: Final = 3_600
DAY_S: Final = 24 * HOUR_S
WEEK_S: Final = 7 * DAY_S
ROUNDS: Final = 5
DELIVERIES: Final = 3
"""How often a message is delivered before it goes to the poison queue."""
PLAN: Final = MaintenancePlan(note_time_interval_s=DAY_S)
"""As the server has it while its clock is virtual."""
MEMORY_FOLDER: Final = Path("/dev/shm")
"""Files in it are on no disk."""
BOUND_MS: Final = 100.0
"""What a week may take on an engine in this process."""
SETTINGS: Final = QueueSettings(
    visibility_timeout_s=HOUR_S,
    failure_policy=FailurePolicy(
        max_deliveries=DELIVERIES,
        backoff=Backoff(initial_s=600, cap_s=HOUR_S, jitter=0.5),
    ),
)


class Got(NamedTuple):
    """A message received."""

    message_id: str
    body: str
    dequeue_count: int
    receipt: str


class World(Protocol):
    """Where a week is played; times are those of its virtual clock."""

    async def create(self, queue: str, settings: QueueSettings) -> None:
        """Make a queue."""
        ...

    async def put(self, queue: str, body: str, *, delay_s: int = 0, life_s: int = WEEK_S) -> None:
        """Put a message."""
        ...

    async def receive(self, queue: str, limit: int = 1, wait_s: float = 0) -> list[Got]:
        """Receive messages."""
        ...

    async def complete(self, queue: str, got: Got) -> None:
        """Complete a message."""
        ...

    async def fail(self, queue: str, got: Got) -> None:
        """Give a message back because it failed."""
        ...

    async def redrive(self, queue: str) -> int:
        """Bring back what is in the poison queue; return how many messages that were."""
        ...

    async def count(self, queue: str) -> tuple[int, int]:
        """Return how many messages a queue holds, and how many of its messages are poisoned."""
        ...

    async def advance(self, seconds: float) -> None:
        """Let time pass."""
        ...

    def now_s(self) -> float:
        """Return the seconds since the world began."""
        ...


Delivery = tuple[float, str, int]
"""When, in seconds since the beginning; what; for the how manieth time."""


async def play_week(world: World, *, waits: bool = True) -> list[Delivery]:
    """Play seven days; return all deliveries in their order.

    Args:
        world: An empty one.
        waits: Whether to wait for the daily message, in place of asking once it is due.
    """
    deliveries: list[Delivery] = []

    def note(got: Got) -> Got:
        deliveries.append((world.now_s(), got.body, got.dequeue_count))
        return got

    await world.create("unlucky", SETTINGS)
    await world.create("daily", SETTINGS)
    await world.put("unlucky", "unlucky", life_s=2 * WEEK_S)
    await world.put("daily", "nobody asks for it", delay_s=WEEK_S - 1)
    for day in range(1, 8):
        await world.put("daily", f"day {day}", delay_s=day * DAY_S - HOUR_S)
    for day in range(1, 8):
        if day <= ROUNDS:
            await _poison(world, note)
        until_due_s = day * DAY_S - HOUR_S - world.now_s()
        if waits:
            await world.advance(until_due_s - 30)
            waiting = asyncio.create_task(world.receive("daily", wait_s=60))
            await world.advance(60)
            (got,) = await waiting
        else:
            await world.advance(until_due_s)
            (got,) = await world.receive("daily")
        await world.complete("daily", note(got))
    assert await world.count("daily") == (1, 0)
    await world.advance(WEEK_S + 1 - world.now_s())
    assert await world.count("daily") == (0, 0), "what has expired is still there"
    return deliveries


async def _poison(world: World, note: Callable[[Got], Got]) -> None:
    """Let the unlucky message fail and lapse until it is given up, and bring it back."""
    for delivery in range(DELIVERIES):
        (got,) = await world.receive("unlucky")
        note(got)
        assert not await world.receive("unlucky")
        if delivery == 0:
            await world.fail("unlucky", got)
        await world.advance(HOUR_S)
    assert not await world.receive("unlucky")  # and with this it is given up
    assert await world.count("unlucky") == (0, 1)
    assert await world.redrive("unlucky") == 1


async def play_at_random(world: World, seed: int, steps: int = 120) -> list[Delivery]:
    """Do what *seed* says: put, receive, fail, complete, wait; return all deliveries."""
    dice = random.Random(seed)
    deliveries: list[Delivery] = []
    held: list[Got] = []
    await world.create("unlucky", SETTINGS)
    for step in range(steps):
        match dice.randrange(5):
            case 0 | 1:
                await world.put("unlucky", str(step), delay_s=dice.choice((0, 0, 60, 900)))
            case 2:
                for got in await world.receive("unlucky", limit=dice.randint(1, 4)):
                    deliveries.append((world.now_s(), got.body, got.dequeue_count))
                    held.append(got)
            case 3 if held:
                got = held.pop(dice.randrange(len(held)))
                finish = dice.choice((world.complete, world.fail, world.fail))
                with contextlib.suppress(LookupError):
                    await finish("unlucky", got)
            case _:
                await world.advance(dice.choice((1, 30, 600, 4 * HOUR_S)))
    return deliveries


# --- the engine itself ---------------------------------------------------------------------------


class EngineWorld:
    """An engine in this process, without HTTP."""

    def __init__(self, store: Store, seed: int = 0) -> None:
        self._clock = ManualClock()
        self._start_ms = self._clock.now_ms()
        self._dice = random.Random(seed)
        self.engine = Engine(store, self._clock, plan=PLAN, timers=self._clock)

    async def create(self, queue: str, settings: QueueSettings) -> None:
        """See :class:`World`."""
        await self.engine.perform(c.CreateQueue("a", queue, {}, settings))

    async def put(self, queue: str, body: str, *, delay_s: int = 0, life_s: int = WEEK_S) -> None:
        """See :class:`World`."""
        entropy = self._dice.randbytes(ENTROPY_BYTES)
        await self.engine.perform(c.Put("a", queue, body.encode(), delay_s, life_s, entropy))

    async def receive(self, queue: str, limit: int = 1, wait_s: float = 0) -> list[Got]:
        """See :class:`World`."""
        leases = await self.engine.receive(c.Receive("a", queue, limit, None), wait_s)
        return [_got(lease) for lease in leases]

    async def complete(self, queue: str, got: Got) -> None:
        """See :class:`World`."""
        await self._settle(c.Complete("a", queue, got.message_id, got.receipt))

    async def fail(self, queue: str, got: Got) -> None:
        """See :class:`World`."""
        named = ("a", queue, got.message_id, got.receipt)
        await self._settle(c.Release(*named, Outcome.FAILED, jitter=self._dice.random()))

    async def _settle(self, command: AnyCommand) -> None:
        try:
            await self.engine.perform(command)
        except LeaseholdError as error:
            raise LookupError from error

    async def redrive(self, queue: str) -> int:
        """See :class:`World`."""
        job_id = self._dice.randbytes(8).hex()
        plan = o.JobPlan(kind=o.JobKind.REDRIVE)
        await self.engine.perform(o.StartJob("a", queue, job_id, plan))
        job = await self.engine.jobs.wait("a", job_id, 60)
        return job.moved

    async def count(self, queue: str) -> tuple[int, int]:
        """See :class:`World`."""
        counts = cast("o.Counts", await self.engine.perform(o.CountMessages("a", queue)))
        return counts.visible + counts.leased + counts.delayed + counts.deferred, counts.poisoned

    async def advance(self, seconds: float) -> None:
        """See :class:`World`."""
        await advance_time(self.engine, self._clock, round(seconds * 1000))

    def now_s(self) -> float:
        """See :class:`World`."""
        return (self._clock.now_ms() - self._start_ms) / 1000


def _got(lease: Lease) -> Got:
    message = lease.message
    return Got(message.message_id, message.body.decode(), message.dequeue_count, lease.receipt)


# --- over HTTP -----------------------------------------------------------------------------------


class HttpWorld:
    """The server for tests, and the native client.

    The client waits for its answers without giving way to the loop: there is nothing else to do.
    """

    def __init__(self, server: InProcessServer) -> None:
        self._server = server
        self._start_ms = server.now_ms()
        self.client = server.client()

    async def create(self, queue: str, settings: QueueSettings) -> None:
        """See :class:`World`."""
        policy = cast("FailurePolicy", settings.failure_policy)
        backoff = cast("Backoff", policy.backoff)
        self.client.queue(queue).create(
            settings={
                "visibility_timeout_s": settings.visibility_timeout_s,
                "failure_policy": {
                    "max_deliveries": policy.max_deliveries,
                    "backoff": {
                        "initial_s": backoff.initial_s,
                        "cap_s": backoff.cap_s,
                        "jitter": backoff.jitter,
                    },
                },
            }
        )

    async def put(self, queue: str, body: str, *, delay_s: int = 0, life_s: int = WEEK_S) -> None:
        """See :class:`World`."""
        self.client.queue(queue).put(body, delay_s=delay_s, time_to_live_s=life_s)

    async def receive(self, queue: str, limit: int = 1, wait_s: float = 0) -> list[Got]:
        """See :class:`World`."""
        found = self.client.queue(queue).receive(limit, wait_s=wait_s)
        return [Got(one.id, one.body.decode(), one.dequeue_count, one.receipt) for one in found]

    async def complete(self, queue: str, got: Got) -> None:
        """See :class:`World`."""
        self._settle(self.client.queue(queue).complete, got)

    async def fail(self, queue: str, got: Got) -> None:
        """See :class:`World`."""
        handle = self.client.queue(queue)
        self._settle(lambda lease: handle.release(lease, outcome="failed"), got)

    def _settle(self, settle: Callable[[Any], object], got: Got) -> None:
        from leasehold.client import LeaseholdClientError  # noqa: PLC0415 - an extra
        from leasehold.client.models import LeaseRef  # noqa: PLC0415

        try:
            settle(LeaseRef(got.message_id, got.receipt))
        except LeaseholdClientError as error:
            raise LookupError from error

    async def redrive(self, queue: str) -> int:
        """See :class:`World`."""
        return self.client.queue(queue).redrive(wait_s=60).moved

    async def count(self, queue: str) -> tuple[int, int]:
        """See :class:`World`."""
        counts = self.client.queue(queue).counts()
        return counts.visible + counts.leased + counts.delayed + counts.deferred, counts.poisoned

    async def advance(self, seconds: float) -> None:
        """See :class:`World`."""
        self._server.advance(seconds)

    def now_s(self) -> float:
        """See :class:`World`."""
        return (self._server.now_ms() - self._start_ms) / 1000


# --- worlds to play in ---------------------------------------------------------------------------

Making = Callable[[int], AbstractAsyncContextManager[World]]
"""Makes an empty world; the seed is that of its back-off."""


@asynccontextmanager
async def engine_in_memory(seed: int = 0) -> AsyncIterator[World]:
    """Give an engine with a store in memory."""
    async with _running(MemoryStore(), seed) as world:
        yield world


@asynccontextmanager
async def engine_with_sqlite(seed: int = 0, where: Path | None = None) -> AsyncIterator[World]:
    """Give an engine with a new database, in a folder for temporary files unless told other."""
    with tempfile.TemporaryDirectory(prefix="leasehold-", dir=where) as folder:
        async with _running(SqliteStore(Path(folder)), seed) as world:
            yield world


@asynccontextmanager
async def _running(store: Store, seed: int) -> AsyncIterator[World]:
    world = EngineWorld(store, seed)
    await world.engine.start()
    try:
        yield world
    finally:
        await world.engine.stop()


@asynccontextmanager
async def http_in_memory(seed: int = 0) -> AsyncIterator[World]:
    """Give a server with a store in memory."""
    with _serving("memory", seed) as world:
        yield world


@asynccontextmanager
async def http_with_sqlite(seed: int = 0) -> AsyncIterator[World]:
    """Give a server with a new database."""
    with _serving("sqlite", seed) as world:
        yield world


@contextlib.contextmanager
def _serving(store: str, seed: int) -> Iterator[World]:
    with InProcessServer(store=store, seed=seed) as server:
        world = HttpWorld(server)
        with world.client:
            yield world


WORLDS: Final[dict[str, Making]] = {
    "engine, memory": engine_in_memory,
    "engine, SQLite": engine_with_sqlite,
    "HTTP, memory": http_in_memory,
    "HTTP, SQLite": http_with_sqlite,
}
if MEMORY_FOLDER.is_dir():
    # What is left when the disk takes no time: some 90 transactions of a week are synced to it.
    WORLDS["engine, SQLite without a disk"] = partial(engine_with_sqlite, where=MEMORY_FOLDER)


# --- measuring -----------------------------------------------------------------------------------


async def measure(make: Making, weeks: int, *, waits: bool) -> dict[str, Any]:
    """Play weeks, each in a world of its own; return how long each took, without the making."""
    took_ms: list[float] = []
    deliveries: list[list[Delivery]] = []
    for _ in range(weeks):
        async with make(0) as world:
            began_s = time.perf_counter()
            deliveries.append(await play_week(world, waits=waits))
            took_ms.append(round((time.perf_counter() - began_s) * 1000, 2))
    assert all(each == deliveries[0] for each in deliveries), "the weeks differ"
    return {
        "weeks": weeks,
        "deliveries": len(deliveries[0]),
        "median_ms": median(took_ms),
        "min_ms": min(took_ms),
        "max_ms": max(took_ms),
    }


async def repeat(make: Making, runs: int, seed: int = 1) -> dict[str, Any]:
    """Play the same random work again and again; return how often its deliveries were the same."""
    first: list[Delivery] | None = None
    same = 0
    began_s = time.perf_counter()
    for _ in range(runs):
        async with make(seed) as world:
            deliveries = await play_at_random(world, seed)
        first = first or deliveries
        same += deliveries == first
    return {
        "runs": runs,
        "same": same,
        "deliveries": len(first or ()),
        "seconds": round(time.perf_counter() - began_s, 1),
    }


def run(work: Awaitable[dict[str, Any]]) -> dict[str, Any]:
    """Run *work* in a loop of its own."""

    async def wait() -> dict[str, Any]:
        return await work

    return asyncio.run(wait())


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print and write down; exit code 1 if a promise is broken."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--weeks", type=int, default=20, help="weeks per world")
    parser.add_argument("--runs", type=int, default=1_000, help="repetitions of the random work")
    parser.add_argument("--out", type=Path, help="file for the figures, JSON")
    options = parser.parse_args(arguments)
    with quiet_logs():
        weeks, within_bound = _weeks(options.weeks)
        repeated, all_same = _repetitions(options.runs)
    if options.out is not None:
        machine = describe_machine(options.out.parent)
        report = {"machine": machine, "bound_ms": BOUND_MS, "weeks": weeks, "repeated": repeated}
        options.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return 0 if within_bound and all_same else 1


def _weeks(count: int) -> tuple[dict[str, Any], bool]:
    weeks: dict[str, Any] = {}
    kept = True
    for name, make in WORLDS.items():
        in_process = name.startswith("engine")
        found = weeks[name] = run(measure(make, count, waits=in_process))
        kept &= not in_process or found["median_ms"] < BOUND_MS
        print(
            f"{name}: 7 days in {found['median_ms']:.1f} ms ({found['min_ms']:.1f} to "
            f"{found['max_ms']:.1f}, {count} weeks, {found['deliveries']} deliveries each)"
        )
    return weeks, kept


def _repetitions(count: int) -> tuple[dict[str, Any], bool]:
    repeated: dict[str, Any] = {}
    kept = True
    for name, make in WORLDS.items():
        # A new database costs more than the work: a tenth of the runs is enough there.
        runs = count if name.endswith("memory") else -(-count // 10)
        found = repeated[name] = run(repeat(make, runs))
        kept &= found["same"] == runs
        print(
            f"{name}: {found['same']} of {runs} runs gave the same {found['deliveries']} "
            f"deliveries ({found['seconds']} s)"
        )
    return repeated, kept


if __name__ == "__main__":
    raise SystemExit(main())
