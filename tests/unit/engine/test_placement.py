"""Several stores behind one server: each account is where it belongs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvloop

from leasehold.domain import admin as o
from leasehold.domain import commands as c
from leasehold.domain import sessions as s
from leasehold.domain.admin import JobKind, JobPlan
from leasehold.domain.errors import QueueNotFound, Stopping
from leasehold.engine.account_router import AccountRouter
from leasehold.engine.engine import Engine
from leasehold.stores.memory import MemoryStore
from leasehold.testing import ManualClock

ENTROPY = bytes(10)


@asynccontextmanager
async def placed() -> AsyncIterator[tuple[AccountRouter, Engine, Engine]]:
    """Yield two engines with a placement before them; shop has the second store."""
    clock = ManualClock()
    first = Engine(MemoryStore(), clock)
    second = Engine(MemoryStore(), clock, beside=first)
    placement = AccountRouter(first, {"shop": second, "till": second})
    await placement.start()
    try:
        for account in ("bank", "shop"):
            await placement.perform(c.CreateQueue(account, "jobs", {}))
        yield placement, first, second
    finally:
        await placement.stop()


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

    async def test(placement: AccountRouter, first: Engine, second: Engine) -> None:
        await placement.perform(put("bank", b"money"))
        batch: Any = await placement.perform(c.Batch((put("shop", b"a"), put("shop", b"b")), True))
        assert len(batch) == 2
        assert first.message_counts() == [("bank", "jobs", 1)]
        assert second.message_counts() == [("shop", "jobs", 2)]
        assert placement.message_counts() == [("bank", "jobs", 1), ("shop", "jobs", 2)]
        leases = await placement.receive(c.Receive("shop", "jobs", 5, 30), 0)
        assert [lease.message.body for lease in leases] == [b"a", b"b"]
        with pytest.raises(QueueNotFound):
            await placement.perform(put("till", b"nothing"))
        assert placement.find_queue("shop", "jobs") is not None
        assert placement.find_queue("till", "jobs") is None

    run(test)


def test_figures_are_those_of_all_stores() -> None:
    """Counts, sessions and counters, as if it were one."""

    async def test(placement: AccountRouter, *_: Engine) -> None:
        for account in ("bank", "shop"):
            await placement.perform(put(account, b"work"))
            await placement.perform(s.OpenSession(account, "w1", ENTROPY))
        counted = await placement.counts()
        assert [(each.account, each.counts.visible) for each in counted] == [
            ("bank", 1),
            ("shop", 1),
        ]
        census = await placement.census()
        assert {account for account, _ in census.sessions} == {"bank", "shop"}
        assert placement.activity("shop", "jobs").waiting == 0
        assert placement.health().kind == "memory"

    run(test)


def test_jobs_are_waited_for_where_they_are() -> None:
    """A purge in the second store ends, and is found."""

    async def test(placement: AccountRouter, *_: Engine) -> None:
        await placement.perform(put("shop", b"work"))
        plan = JobPlan(kind=JobKind.PURGE)
        job: Any = await placement.perform(o.StartJob("shop", "jobs", "job1", plan))
        ended = await placement.wait_for_job("shop", job.job_id, 5)
        assert ended.state is o.JobState.DONE

    run(test)


def test_any_store_that_fails_ends_the_server() -> None:
    """One event tells of all."""

    async def test(placement: AccountRouter, _: Engine, second: Engine) -> None:
        second._fail()
        assert placement.failed.is_set()

    run(test)


def test_all_stores_are_closed() -> None:
    """A server that has stopped takes commands for none."""

    async def test() -> None:
        async with placed() as (placement, *_):
            pass
        for account in ("bank", "shop"):
            with pytest.raises(Stopping):
                await placement.perform(put(account, b"late"))

    uvloop.run(test())
