"""Engines on one database, each with its link to the others."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final, Self

from leasehold.domain import commands as c
from leasehold.domain.command import AnyCommand
from leasehold.domain.model import Lease
from leasehold.engine import Engine
from leasehold.engine.maintenance import MaintenancePlan
from leasehold.stores.postgres import PostgresStore
from leasehold.stores.postgres.connection import Address, connect
from leasehold.stores.postgres.peers import PostgresPeers
from leasehold.stores.postgres.shared_time import open_time
from tests.patience import PATIENCE_S
from tests.postgres import shared_cluster

SCHEMA: Final = "peers"
NOWHERE: Final = Address("postgresql://leasehold@/postgres?host=/nowhere")
TICK_S: Final = 0.05
WAIT_S: Final = 60.0


class Server:
    """An engine with its link to the others."""

    def __init__(self, name: str) -> None:
        url = f"{shared_cluster().url}&schema={SCHEMA}"
        self.address = Address.parse(url)
        self.time = open_time(self.address)
        self.clock = self.time.clock
        self.store = PostgresStore(
            url, name=name, now_ms=self.clock.now_ms(), shared_time=self.time
        )
        self.peers = PostgresPeers(self.address, self.store, self.time, tick_s=TICK_S)
        plan = MaintenancePlan(interval_s=TICK_S)
        self.engine = Engine(self.store, self.clock, plan=plan, peers=self.peers)

    async def start(self) -> Self:
        await self.engine.start()
        return self

    async def do(self, command: AnyCommand) -> Any:
        return await self.engine.perform(command)

    def receives(self, queue: str = "queue") -> asyncio.Task[tuple[Lease, ...]]:
        """Begin a receive that waits."""
        command = c.Receive("a", queue, 1, 30, "w")
        return asyncio.create_task(self.engine.receive(command, WAIT_S))

    async def until_told(self, queue: str = "queue") -> None:
        """Return when others tell this server of a queue, and it has looked and come to rest."""
        of_this = "SELECT 1 FROM waiting WHERE queue = $1 AND slot = $2"
        await until(lambda: ask(of_this, queue, self.store.slot))
        for _ in range(3):
            await asyncio.sleep(TICK_S)
            await self.engine.settle()

    def lose_link(self) -> None:
        """Cut the connection to the others, and let it not come back."""
        self.peers._address = NOWHERE
        found = ask(
            "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND granted"
            " AND classid = ('change'::regclass::oid::bigint & 2147483647)::bigint::oid"
            " AND objid = $1::oid",
            self.store.slot,
        )
        assert found == [(True,)]

    def find_link(self) -> None:
        """Let it come back."""
        self.peers._address = self.address


def ask(statement: str, *bounds: object) -> list[tuple[Any, ...]]:
    """Ask the database."""
    with connect(Address.parse(f"{shared_cluster().url}&schema={SCHEMA}")) as connection:
        return connection.execute(statement, bounds).fetchall()


async def until(condition: Callable[[], object]) -> None:
    """Return when something holds."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110 - nobody tells of it
            await asyncio.sleep(0.005)


async def answer_of(waiting: Awaitable[Any]) -> Any:
    """Return what somebody who waits gets, if that comes long before the end of the wait."""
    return await asyncio.wait_for(waiting, PATIENCE_S)


def put(body: bytes = b"x", queue: str = "queue", delay_s: int = 0) -> c.Put:
    """Return a command that puts one message."""
    return c.Put("a", queue, body, delay_s, None, b"0123456789")
