"""From the settings to the files: a server exports what its store recorded."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from leasehold import events
from leasehold.domain import commands as c
from leasehold.domain.events import Event, EventPage, EventType, ReadEvents
from leasehold.domain.model import Lease
from leasehold.engine import Engine
from leasehold.engine.event_export import EventLogPlan
from leasehold.events.parquet import events_of
from leasehold.server.settings import Settings, all_settings, load_settings
from leasehold.server.startup import ExitCode, StartFailed, event_log_plan
from leasehold.stores.base import Store
from leasehold.stores.memory import MemoryStore
from leasehold.stores.sqlite import SqliteStore
from leasehold.testing import ManualClock
from tests.unit.events.support import TEN_MS

STORES: dict[str, Callable[[Path], Store]] = {
    "memory": lambda _: MemoryStore(),
    "sqlite": SqliteStore,
}


async def work(engine: Engine) -> None:
    """Put three messages, receive them, complete one."""
    await engine.perform(c.CreateQueue("shop", "orders", {}))
    for _ in range(3):
        await engine.perform(c.Put("shop", "orders", b"x", 0, None, b"0123456789"))
    leases: Any = await engine.perform(c.Receive("shop", "orders", 3, 30, "w1"))
    assert isinstance(leases[0], Lease)
    await engine.perform(
        c.Complete("shop", "orders", leases[0].message.message_id, leases[0].receipt)
    )


async def log_of(engine: Engine) -> list[Event]:
    """Return all events that the store has."""
    page = await engine.perform(ReadEvents(0, 10_000))
    assert isinstance(page, EventPage)
    assert page.finished
    return list(page.events)


@pytest.mark.parametrize("store", STORES)
def test_an_engine_exports_what_its_store_records(tmp_path: Path, store: str) -> None:
    """After a stop, the folder has the log, event by event; after the next one, still."""

    async def run() -> list[Event]:
        plan = EventLogPlan(folder=tmp_path / "events")
        engine = Engine(made, ManualClock(TEN_MS), events=plan)
        await engine.start()
        await work(engine)
        log = await log_of(engine)
        await engine.stop()
        assert engine.exporter is not None
        assert engine.exporter.lag_batches == 0
        return log

    made = STORES[store](tmp_path / "data")
    log = asyncio.run(run())
    assert list(events_of(events.read(tmp_path / "events"))) == log
    types = [event.type for event in log]
    assert types.count(EventType.PUT) == types.count(EventType.RECEIVED) == 3
    assert types[-1] is EventType.COMPLETED


def test_an_engine_without_a_plan_exports_nothing() -> None:
    """Tests and tools that use a store leave its log alone."""
    assert Engine(MemoryStore(), ManualClock()).exporter is None


def test_the_plan_is_what_the_settings_say() -> None:
    """0 for Parquet means for ever; no folder, no export."""
    settings = load_settings(
        {
            "events_folder": "somewhere",
            "events_export_interval_s": "5",
            "events_retention_s": "3600",
            "events_max_bytes": "2000000",
            "events_parquet_retention_s": "86400",
        },
        environment={},
    ).settings
    assert event_log_plan(settings) == EventLogPlan(
        folder=Path("somewhere"),
        interval_s=5.0,
        retention_s=3600,
        max_bytes=2_000_000,
        parquet_retention_s=86_400,
    )
    assert event_log_plan(Settings()) == EventLogPlan()


def test_a_missing_library_is_said_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not an hour later in the log; and only if there is something to export."""
    monkeypatch.setitem(sys.modules, "leasehold.events.parquet", None)
    assert event_log_plan(Settings()).folder is None
    with pytest.raises(StartFailed, match=r"pip install '\.\[arrow\]'") as failure:
        event_log_plan(Settings(events_folder=Path("somewhere")))
    assert failure.value.code is ExitCode.SETTINGS


def test_the_settings_have_a_group_of_their_own() -> None:
    """It holds all of them and no other, and they stand together in the reference."""
    names = list(all_settings())
    grouped = [name for name in names if all_settings()[name][0].group == "Event log"]
    assert grouped == [name for name in names if name.startswith("events_")]
    first = names.index(grouped[0])
    assert names[first : first + len(grouped)] == grouped
