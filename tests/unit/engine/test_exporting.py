"""The exporter: each event once, however often it is stopped in between; and forgetting."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from leasehold import events
from leasehold.domain.command import AnyCommand
from leasehold.domain.errors import Stopping
from leasehold.domain.events import Event, LogExtent, ReadEvents
from leasehold.engine import event_export
from leasehold.engine.event_export import EventLogPlan, Exporter
from leasehold.events.files import NOTE
from leasehold.events.parquet import FileBuilder, events_of
from leasehold.testing import ManualClock
from tests.unit.events.support import DAY_MS, EVENT_BYTES, HOUR_MS, TEN_MS, FakeLog, put


class Killed(BaseException):
    """Stands for the end of the process: nothing may catch it."""


class World:
    """A log, a folder, and exporters one after the other."""

    def __init__(self, folder: Path | None) -> None:
        self.log = FakeLog()
        self.folder = folder
        self.clock = ManualClock(TEN_MS)
        self.history: list[Event] = []
        """All events there ever were."""
        self.options: dict[str, Any] = {}
        """Of the plan."""

    def add(self, count: int = 3, *, gap: int = 0) -> None:
        """Let a batch happen."""
        now_ms = self.clock.now_ms()
        self.history += self.log.add([put(n, now_ms) for n in range(count)], gap=gap)

    def exporter(self, **more: Any) -> Exporter:
        """Return a new exporter, as after a start of the process."""
        plan = EventLogPlan(folder=self.folder, **self.options)
        return Exporter(self.log.perform, self.clock, plan, **{"sleep": asyncio.sleep, **more})

    def round(self, exporter: Exporter | None = None) -> Exporter:
        """Let an exporter do one round."""
        exporter = exporter or self.exporter()
        asyncio.run(exporter.round())
        return exporter

    def exported(self) -> list[Event]:
        """Return what is in the folder, in order."""
        assert self.folder is not None
        return list(events_of(events.read(self.folder)))

    def files(self) -> list[str]:
        """Return all files but the folder's mark."""
        assert self.folder is not None
        return sorted(
            str(path.relative_to(self.folder))
            for path in self.folder.rglob("*")
            if path.is_file() and path.suffix != ".json"
        )

    def note(self) -> dict[str, Any]:
        """Return what the store keeps for the exporter."""
        content: dict[str, Any] = json.loads(self.log.notes[NOTE])
        return content


@pytest.fixture
def world(tmp_path: Path) -> World:
    """A world with an empty log and a folder that is not there yet."""
    return World(tmp_path / "events")


# --- exporting -------------------------------------------------------------------------------


def test_each_event_once(world: World) -> None:
    """Rounds with and without news, by one exporter and by the next."""
    exporter = world.exporter()
    for _ in range(3):
        world.add()
        world.add(gap=2)
        world.round(exporter)
        world.round(exporter)
        world.round()
        assert world.exported() == world.history
    assert len(world.files()) == 3
    assert exporter.exported == len(world.history)
    assert exporter.files == 3
    assert (exporter.lag_batches, exporter.exported_seq, exporter.failures) == (0, 12, 0)


def test_nothing_to_export_costs_nothing(world: World) -> None:
    """A quiet log is asked for its extent, and nothing is written."""
    world.add()
    exporter = world.round()
    world.log.asked.clear()
    world.round(exporter)
    assert {type(command) for command in world.log.asked} == {LogExtent}


def test_files_are_limited_by_rows_and_hours(world: World) -> None:
    """Many files may come of one round, none of two hours."""
    for _ in range(5):
        world.add(4)
    world.clock.advance(s=3_600)
    world.add(4)
    exporter = world.exporter(max_rows=8)
    world.round(exporter)
    assert world.exported() == world.history
    assert [name[16:].replace("0", "") for name in world.files()] == [
        "hour=1/events-1-2.parquet",
        "hour=1/events-3-4.parquet",
        "hour=1/events-5-5.parquet",
        "hour=11/events-6-6.parquet",
    ]


def test_a_long_backlog_is_read_in_pages(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of limited size, also where one file takes many of them."""
    monkeypatch.setattr(event_export, "PAGE_EVENTS", 10)
    for _ in range(20):
        world.add(4)
    world.round()
    assert world.exported() == world.history
    pages = [each for each in world.log.asked if isinstance(each, ReadEvents)]
    assert {page.limit for page in pages} == {10}
    assert len(pages) == 7
    assert len(world.files()) == 1


def test_batches_without_events_are_passed(world: World) -> None:
    """Numbers at the end that nobody has events of do not hold it up."""
    world.add()
    world.log.last_seq += 5
    exporter = world.round()
    world.round(exporter)
    assert world.exported() == world.history
    assert world.note()["done_seq"] == 6
    assert exporter.lag_batches == 0


def kill_at(world: World, monkeypatch: pytest.MonkeyPatch, point: int) -> bool:
    """Let an exporter run until its *point*-th step and end there; tell whether it came so far.

    Steps are commands to the store, before and after they are done, and the parts of writing.
    """
    steps = 0

    def step(_: object = None) -> None:
        nonlocal steps
        steps += 1
        if steps == point:
            raise Killed

    async def perform(command: AnyCommand) -> Any:
        step()
        result = await world.log.perform(command)
        step()
        return result

    def stepped(function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **more: Any) -> Any:
            step()
            result = function(*args, **more)
            step()
            return result

        return run

    exporter = world.exporter(max_rows=6)
    with monkeypatch.context() as patched:
        patched.setattr(exporter, "_perform", perform)
        patched.setattr(FileBuilder, "_write_rows", stepped(FileBuilder._write_rows))
        patched.setattr(Path, "replace", stepped(Path.replace))
        # What is half written stays, as after a kill.
        patched.setattr(Path, "unlink", lambda *_, **__: None)
        try:
            asyncio.run(exporter.round())
        except Killed:
            return True
    return False


def test_an_end_at_any_point_neither_loses_nor_doubles(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a kill between any two steps, the next exporter makes exactly the right files."""
    point = 0
    ended = True
    while ended:
        point += 1
        world.add()
        world.add()
        world.clock.advance(s=1_800)
        ended = kill_at(world, monkeypatch, point)
        # What is there by now is right already, if not complete.
        found = world.exported() if world.folder and world.folder.exists() else []
        assert found == world.history[: len(found)], point
    assert point > 25
    world.round()
    assert world.exported() == world.history
    assert all(name.endswith(".parquet") for name in world.files())


def test_an_end_before_the_file_is_named_gives_the_same_file(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plan is carried out again although there is more by then, and limits have changed."""
    world.add()
    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", lambda *_: (_ for _ in ()).throw(Killed))
        with pytest.raises(Killed):
            world.round()
    assert world.note()["plan"]["last_seq"] == 1
    assert world.files() == []
    world.add()
    world.round(world.exporter(max_rows=1))
    assert [events.names.range_of(Path(name).name) for name in world.files()] == [(1, 1), (2, 2)]
    assert world.exported() == world.history


def test_what_cannot_be_written_is_tried_again(world: World) -> None:
    """A full or missing disk delays, and is said; the lag shows it."""
    world.add()
    assert world.folder is not None
    world.folder.write_text("a file where the folder should be", "utf-8")
    exporter = world.exporter()
    with capture_logs() as logs:
        world.round(exporter)
    assert [(log["event"], log["step"]) for log in logs] == [("events.failed", "export")]
    assert exporter.lag_batches == 1
    world.clock.advance(s=90)
    assert exporter.lag_s() == 90
    world.folder.unlink()
    world.round(exporter)
    assert world.exported() == world.history
    assert (exporter.lag_batches, exporter.lag_s()) == (0, 0)


def test_a_database_from_a_copy_does_not_export_into_the_same_folder(world: World) -> None:
    """Its batches have numbers that are in the folder with other events; it is said and counted."""
    world.add()
    world.round()
    copy = dict(world.log.notes)
    world.add()
    world.round()
    kept = world.exported()
    world.log.notes = copy
    exporter = world.exporter()
    with capture_logs() as logs:
        world.round(exporter)
    assert [log["event"] for log in logs] == ["events.export_refused"]
    assert "was restored from a backup" in logs[0]["reason"]
    assert world.exported() == kept
    assert exporter.lag_batches == 1
    # Once the folder was moved away it goes on.
    shutil.rmtree(world.folder or "")
    world.round(exporter)
    assert world.exported() == kept[-3:]


def test_stop_exports_what_is_there(world: World) -> None:
    """The last events before a stop are in the folder after it."""

    async def run() -> None:
        exporter = world.exporter()
        exporter.start()
        world.add()
        await exporter.stop()

    asyncio.run(run())
    assert world.exported() == world.history


def test_stop_does_not_wait_for_a_long_backlog(world: World) -> None:
    """Two files at most are written at the end; the next exporter goes on."""
    for _ in range(10):
        world.add()

    async def run() -> None:
        exporter = world.exporter(max_rows=3)
        exporter.start()
        await exporter.stop()
        assert exporter.lag_batches == 8

    asyncio.run(run())
    assert world.exported() == world.history[:6]
    world.round()
    assert world.exported() == world.history


def test_it_runs_by_its_interval(world: World) -> None:
    """Each interval, one round, until it is stopped."""
    world.options = {"interval_s": 10.0}

    waits: asyncio.Queue[asyncio.Future[None]] = asyncio.Queue()

    async def sleep(length_s: float) -> None:
        if length_s == 10:
            over = asyncio.get_running_loop().create_future()
            waits.put_nowait(over)
            await over

    async def run() -> None:
        exporter = world.exporter(sleep=sleep)
        world.add()
        exporter.start()
        for number in (1, 2, 3):
            over = await waits.get()
            assert exporter.files == number
            world.add()
            over.set_result(None)
        await exporter.stop()

    asyncio.run(run())
    assert world.exported() == world.history


def test_a_store_that_stops_is_no_news(world: World) -> None:
    """While the engine stops, refused commands are not logged."""

    def refuse(_: AnyCommand) -> None:
        raise Stopping

    world.add()
    world.log.before = refuse
    with capture_logs() as logs:
        world.round()
    assert logs == []


# --- forgetting ------------------------------------------------------------------------------


def test_old_batches_are_forgotten_once_exported(world: World) -> None:
    """By their age, to the batch."""
    world.options = {"retention_s": 3_600}
    for _ in range(500):
        world.add(1, gap=1)
        world.clock.advance(s=10)
    exporter = world.round()
    assert len(world.log.batches) == 360
    assert world.log.batches[0][0].at_ms == world.clock.now_ms() - HOUR_MS
    assert exporter.trimmed == 140
    assert world.exported() == world.history


def test_without_a_folder_they_are_forgotten_too(tmp_path: Path) -> None:
    """Age and size bound a log that nobody exports."""
    world = World(None)
    world.options = {"retention_s": 100, "max_bytes": 5 * EVENT_BYTES}
    for _ in range(20):
        world.add(1)
        world.clock.advance(s=10)
    exporter = world.round()
    assert len(world.log.batches) == 5
    assert exporter.lost == 0
    assert exporter.lag_s() == 0
    assert world.log.notes == {}
    assert list(tmp_path.iterdir()) == []


def unwritable(world: World) -> None:
    """Let nothing be exported."""
    assert world.folder is not None
    world.folder.write_text("in the way", "utf-8")


def test_age_alone_forgets_nothing_that_is_not_exported(world: World) -> None:
    """An export that fails for days loses nothing while there is room."""
    world.options = {"retention_s": 100}
    unwritable(world)
    world.add()
    world.clock.advance(s=10_000)
    assert world.round().trimmed == 0
    assert world.log.events() == world.history


def test_size_forgets_what_is_exported_first(world: World) -> None:
    """And what is not only when nothing else is left, which is said."""
    world.options = {"max_bytes": 40 * EVENT_BYTES}
    for _ in range(30):
        world.add(1)
    exporter = world.round()
    shutil.rmtree(world.folder or "")
    unwritable(world)
    for _ in range(20):
        world.add(1)
    world.round(exporter)
    assert (exporter.trimmed, exporter.lost) == (10, 0)
    for _ in range(40):
        world.add(1)
    exporter = world.exporter()
    with capture_logs() as logs:
        world.round(exporter)
    assert (exporter.trimmed, exporter.lost) == (40, 20)
    assert [log["event"] for log in logs] == ["events.failed", "events.lost"]
    assert logs[1]["batches"] == 20


def test_a_plan_whose_batches_are_gone_is_dropped(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is left of them is planned anew, so that nothing is there twice."""
    for _ in range(4):
        world.add(1)
    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", lambda *_: (_ for _ in ()).throw(Killed))
        with pytest.raises(Killed):
            world.round()
    del world.log.batches[:2]
    world.add(1)
    with capture_logs() as logs:
        world.round()
    assert [log["event"] for log in logs] == ["events.lost", "events.exported"]
    assert world.exported() == world.history[2:]


def test_a_doubted_clock_forgets_nothing_by_age(world: World) -> None:
    """Somebody may have set it wrong: what is gone is gone. Size still counts."""
    world.options = {
        "retention_s": 10,
        "parquet_retention_s": 10,
        "max_bytes": 5 * EVENT_BYTES,
    }
    for _ in range(8):
        world.add(1)
    world.clock.advance(s=5 * DAY_MS / 1000)
    world.round(world.exporter(trusts_clock=lambda: False))
    assert len(world.log.batches) == 5
    assert world.exported() == world.history


def test_old_days_are_removed_from_the_folder(world: World) -> None:
    """Whole days, and the export goes on."""
    world.options = {"parquet_retention_s": DAY_MS // 1000}
    exporter = world.exporter()
    for _ in range(4):
        world.add()
        world.round(exporter)
        world.clock.advance(s=DAY_MS / 1000)
    with capture_logs() as logs:
        world.round(exporter)
    assert [log["event"] for log in logs] == ["events.day_removed"]
    assert world.exported() == world.history[-3:]
    world.add()
    world.round()
    assert world.exported() == world.history[-6:]


def test_a_removed_folder_is_made_again(world: World) -> None:
    """Somebody who empties it loses what was in it, and nothing else."""
    world.add()
    exporter = world.round()
    shutil.rmtree(world.folder or "")
    world.add()
    with capture_logs() as logs:
        world.round(exporter)
    assert [log["event"] for log in logs] == ["events.failed"]
    world.round(exporter)
    assert world.exported() == world.history[-3:]
