"""What is kept beside the database survives a power cut where names are durable by their folder."""

from __future__ import annotations

import asyncio
import errno
import random
from pathlib import Path

import pytest

from leasehold import disk
from leasehold.bodies.base import DirectoryBodies
from leasehold.events import files as events_folder
from leasehold.events.names import MARKER
from leasehold.events.parquet import FileBuilder
from tests.unit.events.support import put

from .powercut import Names, check_complete, crash, lay_out
from .recording import RECORD, Operation, recording

KEYS = [f"{number:032x}" for number in (1, 2, 0xF << 124, 0xF1 << 120)]


async def put_all(folder: Path) -> None:
    """Put bodies, and say when each was acknowledged."""
    bodies = DirectoryBodies(folder)
    for key in KEYS:
        await bodies.put(key, key.encode() * 100)
        RECORD.append(Operation("ack", snapshot=key))
    await bodies.close()


async def check_all(folder: Path, keys: list[str]) -> None:
    """Read bodies back."""
    bodies = DirectoryBodies(folder)
    for key in keys:
        assert await bodies.get(key) == key.encode() * 100
    await bodies.close()


def test_bodies_that_were_acknowledged_are_there(tmp_path: Path) -> None:
    """Also where their folders were made for them, and wherever the power is cut."""
    live, left = tmp_path / "live", tmp_path / "left"
    live.mkdir()
    left.mkdir()
    with recording(live) as record:
        asyncio.run(put_all(live / "a" / "bodies"))
        done = list(record)
    check_complete(done, live)
    rng = random.Random(0)
    for until in range(len(done) + 1):
        put = [each.snapshot for each in done[:until] if each.kind == "ack"]
        lay_out(crash(done, until, "none", rng, strict=True), left)
        asyncio.run(check_all(left / "a" / "bodies", put))


def test_files_of_events_are_there(tmp_path: Path) -> None:
    """Once one is written; also below folders whose maker was killed before it synced them."""
    root = tmp_path / "a" / "events"
    builder = FileBuilder()
    builder.add([put()])
    with recording(tmp_path) as record:
        (root / builder.path).parent.mkdir(parents=True)
        events_folder.prepare(root, "log", 0)
        builder.write(root)
        names = Names()
        for operation in record:
            names.apply(operation)
    left = names.after_a_cut(random.Random(0))
    assert f"a/events/{builder.path}" in left
    assert f"a/events/{MARKER}" in left


def test_folders_of_others_need_not_be_readable(tmp_path: Path) -> None:
    """Making a folder below one that only lets pass goes on without syncing that."""
    outer = tmp_path / "outer"
    outer.mkdir()
    refused: list[Path] = []
    real = disk.sync

    def sync(path: str | Path) -> None:
        if Path(path) == tmp_path:
            refused.append(Path(path))
            raise PermissionError
        real(path)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(disk, "sync", sync)
        disk.make_folder(outer / "a" / "b")
    assert (outer / "a" / "b").is_dir()
    assert refused == [tmp_path]


def test_a_name_that_cannot_be_synced_is_an_error(tmp_path: Path) -> None:
    """Of a folder that was made, that is."""

    def sync(_: str | Path) -> None:
        raise OSError(errno.EIO, "the disk fails")

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(disk, "sync", sync)
        with pytest.raises(OSError, match="the disk fails"):
            disk.make_folder(tmp_path / "a")
