"""Several stores behind one server: each account is where it belongs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvloop

from leasehold.domain import admin as o
from leasehold.domain import commands as c
from leasehold.domain import sessions as s
from leasehold.domain.admin import JobKind, JobPlan
from leasehold.domain.command import AnyCommand
from leasehold.domain.errors import QueueNotFound, Stopping, StoreFailed
from leasehold.engine.account_router import AccountRouter
from leasehold.engine.engine import Engine
from leasehold.stores.memory import MemoryStore
from leasehold.testing import ManualClock

ENTROPY = bytes(10)
FATAL = b"fatal"


class FragileStore(MemoryStore):
    """Fails for good when it is to put a certain body."""

    def execute(self, batch: Sequence[AnyCommand], *, now_ms: int) -> list[c.Result]:
        """See ``Store``."""
        if any(isinstance(command, c.Put) and command.body == FATAL for command in batch):
            raise StoreFailed
        return super().execute(batch, now_ms=now_ms)


@asynccontextmanager
async def placed() -> AsyncIterator[tuple[AccountRouter, Engine, Engine]]:
    """Yield two engines with a router before them; shop has the second store."""
    clock = ManualClock()
    first = Engine(MemoryStore(), clock)
    second = Engine(FragileStore(), clock, beside=first)
    router = AccountRouter(first, {"shop": second, "till": second})
    await router.start()
    try:
        for account in ("bank", "shop"):
            await router.perform(c.CreateQueue(account, "jobs", {}))
        yield router, first, second
    finally:
        await router.stop()


def run(test: Callable[[AccountRouter, Engine, Engine], Awaitable[None]]) -> None:
    """Run a test in an event loop."""

    async def main() -> None:
        async with placed() as parts:
            await test(*parts)

    uvloop.run(main())


def put(account: str, body: bytes) -> c.Put:
    """Return a command."""
    return c.Put(account, "jobs", body, 0, None, ENTROPY)


def test_commands_go_to_the_store_of_their_account() -> None:
    """Also those that hold other commands, and those that wait."""

    async def test(router: AccountRouter, first: Engine, second: Engine) -> None:
        await router.perform(put("bank", b"money"))
        batch: Any = await router.perform(c.Batch((put("shop", b"a"), put("shop", b"b")), True))
        assert len(batch) == 2
        assert first.message_counts() == [("bank", "jobs", 1)]
        assert second.message_counts() == [("shop", "jobs", 2)]
        leases = await router.receive(c.Receive("shop", "jobs", 5, 30), 0)
        assert [lease.message.body for lease in leases] == [b"a", b"b"]
        with pytest.raises(QueueNotFound):
            await router.perform(put("till", b"nothing"))
        assert router.find_queue("shop", "jobs") is not None
        assert router.find_queue("till", "jobs") is None

    run(test)


def test_figures_are_those_of_all_stores() -> None:
    """Counts, sessions and counters, as if it were one."""

    async def test(router: AccountRouter, *_: Engine) -> None:
        for account in ("bank", "shop"):
            await router.perform(put(account, b"work"))
            await router.perform(s.OpenSession(account, "w1", ENTROPY))
        counted = await router.counts()
        assert [(each.account, each.counts.visible) for each in counted] == [
            ("bank", 1),
            ("shop", 1),
        ]
        totals = await router.totals()
        assert {account for account, _ in totals.sessions} == {"bank", "shop"}
        assert router.activity("shop", "jobs").waiting == 0
        assert router.health().kind == "memory"

    run(test)


def test_jobs_are_waited_for_where_they_are() -> None:
    """A purge in the second store ends, and is found."""

    async def test(router: AccountRouter, *_: Engine) -> None:
        await router.perform(put("shop", b"work"))
        plan = JobPlan(kind=JobKind.PURGE)
        job: Any = await router.perform(o.StartJob("shop", "jobs", "job1", plan))
        ended = await router.wait_for_job("shop", job.job_id, 5)
        assert ended.state is o.JobState.DONE

    run(test)


def test_any_store_that_fails_ends_the_server() -> None:
    """One event tells of all."""

    async def test(router: AccountRouter, *_: Engine) -> None:
        with pytest.raises(StoreFailed):
            await router.perform(put("shop", FATAL))
        assert router.failed.is_set()

    run(test)


def test_all_stores_are_closed() -> None:
    """A server that has stopped takes commands for none."""

    async def test() -> None:
        async with placed() as (router, *_):
            pass
        for account in ("bank", "shop"):
            with pytest.raises(Stopping):
                await router.perform(put(account, b"late"))

    uvloop.run(test())
