"""Somebody sets the clock of a database that servers share, while they work."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from typing import Final

import pytest

from leasehold.domain import commands as c
from leasehold.domain.command import AnyCommand
from leasehold.domain.errors import Unavailable
from leasehold.domain.model import Lease
from leasehold.engine.maintenance import Maintenance
from leasehold.stores.postgres.connection import Address, connect
from tests.integration.servers import SCHEMA, Server, answer_of, until
from tests.patience import PATIENCE_S
from tests.postgres import find_programs, open_empty, shared_cluster

pytestmark = pytest.mark.skipif(find_programs() is None, reason="no PostgreSQL is installed")

HOUR_S: Final = 3600
CLOCK: Final = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
JUMPS: Final = [(2 * HOUR_S,), (2 * HOUR_S, -2 * HOUR_S), (60,), (60, -60), (-2 * HOUR_S,)]
BOUND_S: Final = 1.0
"""Twice what a server may differ by from the time that all share."""


def set_clock(ahead_s: float) -> None:
    """Set the database's clock, as all statements read it."""
    statement = "CREATE OR REPLACE FUNCTION clock_us() RETURNS bigint LANGUAGE sql VOLATILE"
    with connect(Address.parse(f"{shared_cluster().url}&schema={SCHEMA}")) as connection:
        text = f"{statement} RETURN {CLOCK} + {round(ahead_s * 1_000_000)}"
        connection.execute(text.encode(), prepare=False)


@pytest.fixture(autouse=True)
def right_clock() -> Iterator[None]:
    """Begin with an empty store and a right clock, and leave the clock so."""
    open_empty(SCHEMA).close()
    set_clock(0)
    yield
    set_clock(0)


async def surely(server: Server, command: AnyCommand) -> object:
    """Carry out a command, again as long as the server doubts its time."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            with suppress(Unavailable):
                return await server.do(command)
            await asyncio.sleep(0.01)


async def received(server: Server, queue: str, timeout_s: int) -> list[Lease]:
    """Receive all that there is now."""
    found: list[Lease] = []
    while more := await surely(server, c.Receive("a", queue, 32, timeout_s, "w")):
        assert isinstance(more, tuple)
        found += more
    return found


@asynccontextmanager
async def load(*servers: Server) -> AsyncIterator[None]:
    """Have clients put, receive and complete on all servers meanwhile."""

    async def work(server: Server) -> None:
        while True:
            await surely(server, c.Put("a", "load", b"x", 0, None, b"0123456789"))
            for lease in await received(server, "load", 30):
                of = "a", "load", lease.message.message_id, lease.receipt
                with suppress(Exception):
                    await surely(server, c.Complete(*of))

    tasks = [asyncio.create_task(work(server)) for server in servers]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(each, asyncio.CancelledError) for each in ended)


Scenario = Callable[[Server, Server, Callable[[], Awaitable[Server]]], Awaitable[None]]


def play(scenario: Scenario) -> None:
    """Play a scenario with two servers, and the means to start another one."""

    async def played() -> None:
        async with AsyncExitStack() as stack:

            async def start() -> Server:
                server = await asyncio.to_thread(Server, "server")
                stack.push_async_callback(server.engine.stop)
                return await server.start()

            first, second = await start(), await start()
            await first.do(c.CreateQueue("a", "queue", {}))
            await first.do(c.CreateQueue("a", "load", {}))
            await scenario(first, second, start)

    asyncio.run(played())


async def agreed(*servers: Server) -> None:
    """Return when all servers take batches again."""
    for server in servers:
        await surely(server, c.Peek("a", "queue", 1))


def is_ahead(server: Server, ahead_s: float) -> bool:
    """Tell whether a server knows that the database's clock is ahead of it by so much."""
    return abs(server.clock.wall_drift_s() - ahead_s) <= BOUND_S


def apart_s(*servers: Server) -> float:
    """Return how far the time of servers is apart."""
    times = [server.clock.now_ms() for server in servers]
    return (max(times) - min(times)) / 1000


@pytest.mark.parametrize("jumps", JUMPS, ids=str)
def test_servers_stay_together(jumps: tuple[int, ...]) -> None:
    """Also one started meanwhile has their time, and time has passed as it does elsewhere."""

    async def scenario(
        first: Server, second: Server, start: Callable[[], Awaitable[Server]]
    ) -> None:
        loop = asyncio.get_running_loop()
        begun = first.clock.now_ms() / 1000 - loop.time()
        servers, ahead_s = [first, second], 0
        async with load(first, second):
            for jump_s in jumps:
                ahead_s += jump_s
                await asyncio.to_thread(set_clock, ahead_s)
                servers.append(await start())
                await agreed(*servers)
                assert apart_s(*servers) <= BOUND_S
        passed = first.clock.now_ms() / 1000 - loop.time()
        assert abs(passed - begun) <= BOUND_S
        for server in servers:
            await until(partial(is_ahead, server, ahead_s))

    play(scenario)


def test_messages_outlive_a_clock_that_is_put_right() -> None:
    """What has ten minutes to live is there after two hours ahead and two hours back."""

    async def scenario(
        first: Server, second: Server, start: Callable[[], Awaitable[Server]]
    ) -> None:
        await first.do(c.Put("a", "queue", b"x", 0, 600, b"0123456789"))
        async with load(first, second):
            for ahead_s in (2 * HOUR_S, 0):
                await asyncio.to_thread(set_clock, ahead_s)
                third = await start()
                await agreed(first, second, third)
                for server in (first, second, third):
                    assert len(await surely(server, c.Peek("a", "queue", 1))) == 1  # type: ignore[arg-type]
        assert len(await received(third, "queue", 30)) == 1

    play(scenario)


@pytest.mark.parametrize("jump_s", [2 * HOUR_S, 60])
def test_leases_are_not_handed_out_twice(jump_s: int) -> None:
    """What a server that is started meanwhile leases for a minute the others do not hand out."""

    async def scenario(
        first: Server, second: Server, start: Callable[[], Awaitable[Server]]
    ) -> None:
        for _ in range(20):
            await first.do(c.Put("a", "queue", b"x", 0, 600, b"0123456789"))
        async with load(first, second):
            held = 0
            for ahead_s in (jump_s, 0, -jump_s, 0):
                await asyncio.to_thread(set_clock, ahead_s)
                third = await start()
                if not held:
                    held = len(await received(third, "queue", 60))
                for server in (first, second, third):
                    assert await received(server, "queue", 60) == []
            assert held == 20

    play(scenario)


def test_who_waits_gets_what_another_server_puts() -> None:
    """A put through a server started meanwhile reaches whoever waits on one from before."""

    async def scenario(
        first: Server, second: Server, start: Callable[[], Awaitable[Server]]
    ) -> None:
        for ahead_s in (60, 0, 2 * HOUR_S, 0):
            await asyncio.to_thread(set_clock, ahead_s)
            third = await start()
            await agreed(first, second, third)
            waiting = first.receives()
            await first.until_told()
            await surely(third, c.Put("a", "queue", b"x", 0, None, b"0123456789"))
            assert len(await answer_of(waiting)) == 1

    play(scenario)


def test_nothing_is_retired_while_the_clock_is_off() -> None:
    """Whoever leads sweeps no expired messages away until the clock is put right."""

    async def scenario(
        first: Server, second: Server, start: Callable[[], Awaitable[Server]]
    ) -> None:
        del start
        sweeps = first.engine._maintenance
        assert isinstance(sweeps, Maintenance)
        await until(first.peers.leads)
        await until(lambda: sweeps.trusts_clock)
        await asyncio.to_thread(set_clock, 2 * HOUR_S)
        await agreed(first, second)
        await until(lambda: not sweeps.trusts_clock)
        await asyncio.to_thread(set_clock, 0)
        await until(lambda: sweeps.trusts_clock)

    play(scenario)
