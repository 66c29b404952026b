"""One server for accounts in several stores: an engine for each store, and who picks among them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Protocol, TypeVar

from leasehold.domain import admin as o
from leasehold.domain import commands as c
from leasehold.domain.claims import OpenClaim, Opened
from leasehold.domain.command import Command, R
from leasehold.domain.model import Lease, Queue
from leasehold.engine.engine import Counted, Engine, Served, account_of
from leasehold.engine.event_export import Exporter
from leasehold.engine.large_bodies import LargeBodies
from leasehold.engine.long_poll import Gone
from leasehold.engine.stats import EngineStats, QueueActivity, Totals
from leasehold.stores.base import StoreHealth

_K = TypeVar("_K")
_V = TypeVar("_V")


class ServerEngine(Protocol):
    """What the parts of a server ask of an :class:`Engine`, or of several by account."""

    @property
    def stats(self) -> EngineStats:
        """Counters since the start."""
        ...

    @property
    def failed(self) -> asyncio.Event:
        """Set when a store has failed: the process must end and start again from the file."""
        ...

    @property
    def bodies(self) -> LargeBodies | None:
        """Where large bodies go to and come from."""
        ...

    @property
    def exporter(self) -> Exporter | None:
        """Exports and trims the event log."""
        ...

    async def start(self) -> None:
        """See :meth:`Engine.start`."""
        ...

    async def stop(self) -> None:
        """See :meth:`Engine.stop`."""
        ...

    def drain(self) -> None:
        """See :meth:`Engine.drain`."""
        ...

    async def perform(self, command: Command[R], /) -> R:
        """See :meth:`Engine.perform`."""
        ...

    async def receive(
        self, command: c.Receive, wait_s: float, gone: Gone | None = None
    ) -> tuple[Lease, ...]:
        """See :meth:`Engine.receive`."""
        ...

    async def open_claim(
        self, command: OpenClaim, wait_s: float = 0, gone: Gone | None = None
    ) -> Opened:
        """See :meth:`Engine.open_claim`."""
        ...

    async def wait_for_job(self, account: str, job_id: str, wait_s: float) -> o.Job:
        """See :meth:`leasehold.engine.jobs.JobRunner.wait`."""
        ...

    def find_queue(self, account: str, queue: str) -> Queue | None:
        """See :meth:`Engine.find_queue`."""
        ...

    def activity(self, account: str, queue: str) -> QueueActivity:
        """See :meth:`Engine.activity`."""
        ...

    def queues_of(self, account: str) -> list[tuple[str, int]]:
        """See :meth:`Engine.queues_of`."""
        ...

    async def counts(self) -> list[Counted]:
        """See :meth:`Engine.counts`."""
        ...

    async def totals(self) -> Totals:
        """See :meth:`Engine.totals`."""
        ...

    def health(self) -> StoreHealth:
        """See :meth:`Engine.health`."""
        ...

    def stores(self) -> list[Served]:
        """See :meth:`Engine.stores`."""
        ...

    def sealing_key(self, account: str) -> bytes:
        """See :meth:`Engine.sealing_key`."""
        ...

    def is_relocated(self, account: str) -> bool:
        """See :meth:`Engine.is_relocated`."""
        ...


class AccountRouter:
    """A :class:`ServerEngine` over several engines.

    A command goes to the engine of its account. Each has an exporter and a body store of its own;
    those that are seen here, such as by metrics, are those of the first. A store that fails beyond
    repair ends the server, whichever it is.

    Args:
        first: The engine of all accounts that have none of their own; not started yet.
        others: The engines of those that have, made ``beside`` the first; one may serve several.
    """

    def __init__(self, first: Engine, others: Mapping[str, Engine]) -> None:
        self._first = first
        self._others = dict(others)
        self._engines = [first, *dict.fromkeys(self._others.values())]
        self.stats, self.failed = first.stats, first.failed
        self.bodies, self.exporter = first.bodies, first.exporter

    def of(self, account: str) -> Engine:
        """Return the engine of an account."""
        return self._others.get(account, self._first)

    async def start(self) -> None:
        """Begin to take commands."""
        for engine in self._engines:
            await engine.start()

    async def stop(self) -> None:
        """Finish what was taken, refuse what is new, close the stores."""
        await asyncio.gather(*(engine.stop() for engine in self._engines))

    def drain(self) -> None:
        """End all waits for messages."""
        for engine in self._engines:
            engine.drain()

    async def perform(self, command: Command[R]) -> R:
        """See :meth:`Engine.perform`."""
        return await self.of(account_of(command)).perform(command)

    async def receive(
        self, command: c.Receive, wait_s: float, gone: Gone | None = None
    ) -> tuple[Lease, ...]:
        """See :meth:`Engine.receive`."""
        return await self.of(command.account).receive(command, wait_s, gone)

    async def open_claim(
        self, command: OpenClaim, wait_s: float = 0, gone: Gone | None = None
    ) -> Opened:
        """See :meth:`Engine.open_claim`."""
        return await self.of(command.account).open_claim(command, wait_s, gone)

    def find_queue(self, account: str, queue: str) -> Queue | None:
        """See :meth:`Engine.find_queue`."""
        return self.of(account).find_queue(account, queue)

    def activity(self, account: str, queue: str) -> QueueActivity:
        """See :meth:`Engine.activity`."""
        return self.of(account).activity(account, queue)

    async def wait_for_job(self, account: str, job_id: str, wait_s: float) -> o.Job:
        """See :meth:`leasehold.engine.jobs.JobRunner.wait`."""
        return await self.of(account).wait_for_job(account, job_id, wait_s)

    def queues_of(self, account: str) -> list[tuple[str, int]]:
        """See :meth:`Engine.queues_of`."""
        return self.of(account).queues_of(account)

    async def counts(self) -> list[Counted]:
        """See :meth:`Engine.counts`."""
        found = await asyncio.gather(*(engine.counts() for engine in self._engines))
        return [each for counted in found for each in counted]

    async def totals(self) -> Totals:
        """See :meth:`Engine.totals`. How much event log there is, is told of the first store."""
        found = await asyncio.gather(*(engine.totals() for engine in self._engines))
        return Totals(
            sessions=_joined(each.sessions for each in found),
            lost_sessions=sum(each.lost_sessions for each in found),
            claims=_joined(each.claims for each in found),
            log=found[0].log,
        )

    def health(self) -> StoreHealth:
        """Say how the first store is; see :meth:`stores` for all."""
        return self._first.health()

    def stores(self) -> list[Served]:
        """Say how all stores are, the first one first."""
        found = self._first.stores()
        for engine in self._engines[1:]:
            its_own = sorted(name for name, of in self._others.items() if of is engine)
            found.append(engine.served(tuple(its_own)))
        return found

    def sealing_key(self, account: str) -> bytes:
        """See :meth:`Engine.sealing_key`."""
        return self.of(account).sealing_key(account)

    def is_relocated(self, account: str) -> bool:
        """See :meth:`Engine.is_relocated`."""
        return self.of(account).is_relocated(account)


def _joined(parts: Iterable[Mapping[_K, _V]]) -> dict[_K, _V]:
    joined: dict[_K, _V] = {}
    for part in parts:
        joined |= part
    return joined
