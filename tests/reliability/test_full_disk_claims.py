"""A full disk, with claims and the event log: what makes room goes on, and the log gives way."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from leasehold.domain import claims as cl
from leasehold.domain import commands as c
from leasehold.domain import transactions as sg
from leasehold.domain.errors import StoreFull
from leasehold.domain.events import Extent, LogExtent
from leasehold.domain.limits import MAX_CLAIM
from leasehold.domain.model import NO_DETAIL, Detail, Lease
from leasehold.engine import Engine
from leasehold.engine.event_export import EventLogPlan
from leasehold.engine.maintenance import MaintenancePlan
from leasehold.stores.sqlite import SqliteStore
from leasehold.testing import ManualClock

from .disks import mounted
from .test_disk_faults import ask

MIB = 1024 * 1024
QUEUE = ("a", "queue")
NUMBERS = count(1)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 32 MiB."""
    with mounted(tmp_path / "disk", size_mib=32) as disk:
        yield disk


@pytest.fixture
def store(small_disk: Path) -> Iterator[SqliteStore]:
    """A store on it, with a queue and a stream, and 12 MiB in reserve: more than the WAL has."""
    store = SqliteStore(small_disk / "data", cache_mib=1, reserve_bytes=12 * MIB)
    ask(store, c.CreateQueue(*QUEUE, {}))
    ask(store, cl.AttachStream(*QUEUE, "s"))
    yield store
    store.close()


def put(size: int, detail: Detail = NO_DETAIL) -> c.Put:
    return c.Put(*QUEUE, b"x" * size, 0, None, next(NUMBERS).to_bytes(10, "big"), detail)


def fill(store: SqliteStore, size: int) -> int:
    """Put until the disk is full; return how many messages that was."""
    sent = 0
    while True:
        batch = c.Batch(tuple(put(size) for _ in range(50)), atomic=True)
        results = ask(store, batch)
        if isinstance(results, StoreFull) or isinstance(results[0], StoreFull):
            return sent
        sent += len(results)


@pytest.mark.parametrize("size", [20, 8_000])
def test_claims_drain_a_full_disk(store: SqliteStore, size: int) -> None:
    """Each as large as what is in reserve allows, until there is room again."""
    left = fill(store, size)
    assert not store.health().writable
    assert left > 500
    for number in count(1):
        opened = ask(store, cl.OpenClaim(*QUEUE, "s", 1, number, MAX_CLAIM, 60))
        assert isinstance(opened, cl.Opened), opened
        if opened.claim is None:
            break
        assert opened.claim.state is cl.ClaimState.OPEN
        ask(store, cl.ExtendClaim(*QUEUE, "s", 1, number, 60))
        refused = ask(store, cl.SettleClaims(*QUEUE, "s", 1, number, sends=(put(size),)))
        settled = ask(store, cl.SettleClaims(*QUEUE, "s", 1, number))
        assert isinstance(refused, StoreFull)
        assert settled.completed == opened.claim.size
        left -= settled.completed
        while ask(store, c.ReapDropped(500)).count == 500:
            pass
    assert left == 0
    assert store.relieve()
    assert isinstance(ask(store, put(size)), Lease)


def test_what_takes_no_room_is_committed_together(store: SqliteStore) -> None:
    """Completing goes on, sending does not; nothing is done by halves."""
    fill(store, 8_000)
    first, second = ask(store, c.Receive(*QUEUE, 2, 600))
    complete = c.Complete(*QUEUE, first.message.message_id, first.receipt)
    together = sg.CommitTogether("a", (complete, put(1)), name="both")
    assert isinstance(ask(store, together), StoreFull)
    alone = sg.CommitTogether("a", (complete,), name="both")
    assert ask(store, alone) == sg.Committed((c.DONE,))
    assert ask(store, alone).already
    release = c.Release(*QUEUE, second.message.message_id, second.receipt)
    assert isinstance(ask(store, sg.CommitTogether("a", (release,))).results[0], c.Released)


def test_what_was_staged_is_published_on_a_full_disk(store: SqliteStore) -> None:
    """It has its room already."""
    ask(store, sg.Stage("a", "tx", "", 0, tuple(put(100) for _ in range(200))))
    fill(store, 8_000)
    assert isinstance(ask(store, sg.Stage("a", "more", "", 0, (put(1),))), StoreFull)
    assert ask(store, sg.Publish("a", "tx")).rows == 200


def test_what_is_alike_is_drained_on_a_full_disk(store: SqliteStore) -> None:
    """Segments of bodies give their room back, without a write for those that go with them."""
    bodies = [b"x" * 1_000] * 1_000
    for chunk in range(6):
        alike = sg.AlikePuts(*QUEUE, bodies, bytes(10_000), 0, 600, NO_DETAIL, 8)
        ask(store, sg.Stage("a", "tx", "", chunk, alike))
    ask(store, sg.Publish("a", "tx"))
    fill(store, 8_000)
    again = sg.AlikePuts(*QUEUE, bodies[:20], bytes(200), 0, 600, NO_DETAIL, 8)
    assert isinstance(ask(store, sg.Stage("a", "more", "", 0, again)), StoreFull)
    token = ask(store, cl.AttachStream(*QUEUE, "s")).token
    while ask(store, cl.OpenClaim(*QUEUE, "s", token, 1, 6_000, 60)).claim.state == "opening":
        pass
    ask(store, cl.SettleClaims(*QUEUE, "s", token, 1))
    while ask(store, c.ReapDropped(1_000)).count:
        pass
    assert store.relieve()
    assert ask(store, sg.Stage("a", "more", "", 0, again)).rows == 20


@pytest.mark.long
def test_a_log_that_fills_the_disk_gives_way(small_disk: Path, tmp_path: Path) -> None:
    """Without a restart, and without anything to drain, messages can be sent again."""

    async def scenario() -> None:
        store = SqliteStore(small_disk / "data", cache_mib=1, reserve_bytes=12 * MIB)
        engine = Engine(
            store, ManualClock(), events=EventLogPlan(interval_s=3_600, folder=tmp_path / "events")
        )
        await engine.start()
        try:
            await engine.perform(c.CreateQueue(*QUEUE, {}))
            for _ in range(5):
                await _log_until_full(engine)
                assert not store.health().writable
                for _ in range(50):
                    await engine.sweep()
                    if store.health().writable:
                        break
                assert isinstance(await engine.perform(put(1)), Lease)
            assert engine.exporter is not None
            assert engine.exporter.trimmed == engine.exporter.lost > 0
            extent = await _extent(engine)
            assert extent.bytes > MIB, "most of the disk can be the log's"
        finally:
            await engine.stop()

    asyncio.run(scenario())


async def _log_until_full(engine: Engine) -> None:
    """Send and complete messages until nothing can be sent.

    They have a type each: the log has a row of its own for what happened to them, and is full
    before it has as many events as one exported file takes.
    """
    while True:
        sends = tuple(put(1, Detail(message_type=f"type-{n}")) for n in range(500))
        try:
            sent: Any = await engine.perform(c.Batch(sends, atomic=True))
        except StoreFull:
            return
        if isinstance(sent[0], StoreFull):
            return
        acts = [(*QUEUE, lease.message.message_id, lease.receipt) for lease in sent]
        await engine.perform(c.Batch(tuple(c.Complete(*each) for each in acts)))


async def _extent(engine: Engine) -> Extent:
    extent = await engine.perform(LogExtent())
    assert isinstance(extent, Extent)
    return extent


def test_a_plan_of_maintenance_finds_the_room(small_disk: Path) -> None:
    """The sweeps of a running server do the same by themselves."""

    async def scenario() -> None:
        store = SqliteStore(small_disk / "data", cache_mib=1, reserve_bytes=12 * MIB)
        plan = MaintenancePlan(interval_s=0.01)
        engine = Engine(store, ManualClock(), plan=plan, events=EventLogPlan(interval_s=3_600))
        await engine.start()
        try:
            await engine.perform(c.CreateQueue(*QUEUE, {}))
            await _log_until_full(engine)
            for _ in range(1_000):
                if store.health().writable:
                    break
                await asyncio.sleep(0.01)
            assert isinstance(await engine.perform(put(1)), Lease)
        finally:
            await engine.stop()

    asyncio.run(scenario())
