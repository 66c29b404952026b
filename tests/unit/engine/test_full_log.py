"""A log that has no room: what it forgets, and in which order."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from leasehold.domain.command import AnyCommand
from leasehold.domain.errors import StoreFull
from leasehold.domain.events import KeepNote
from tests.unit.engine.test_exporting import World
from tests.unit.events.support import EVENT_BYTES


@pytest.fixture
def world(tmp_path: Path) -> World:
    """A world with an empty log and a folder that is not there yet."""
    return World(tmp_path / "events")


def test_on_a_full_disk_the_log_gives_way(world: World) -> None:
    """What was exported goes first; a log that is a small part of the disk stays."""
    for _ in range(40):
        world.add(1)
    exporter = world.round()
    for _ in range(40):
        world.add(1)
    for store_bytes in (0, 400 * EVENT_BYTES):
        world.log.store_bytes = store_bytes
        asyncio.run(exporter.give_way())
        assert exporter.trimmed == 0
    world.log.store_bytes = 200 * EVENT_BYTES
    asyncio.run(exporter.give_way())
    assert (exporter.trimmed, exporter.lost) == (30, 0)
    world.log.store_bytes = 120 * EVENT_BYTES
    with capture_logs() as logs:
        asyncio.run(exporter.give_way())
    assert (exporter.trimmed, exporter.lost) == (50, 10)
    assert [(log["event"], log["batches"]) for log in logs] == [("events.lost", 10)]


def test_a_log_that_cannot_be_exported_is_still_trimmed(world: World) -> None:
    """Also where not even the first note of an export can be kept."""
    world.options = {"max_bytes": 10 * EVENT_BYTES}

    def full(command: AnyCommand) -> None:
        if isinstance(command, KeepNote):
            raise StoreFull

    world.log.before = full
    for _ in range(30):
        world.add(1)
    exporter = world.round()
    assert (exporter.trimmed, exporter.lost, exporter.failures) == (20, 20, 1)
