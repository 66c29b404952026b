"""Backups of stores that are in use, and stores that are made of them."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from leasehold.bodies import open_bodies
from leasehold.cli import main
from leasehold.domain import commands as c
from leasehold.domain.errors import LeaseLost
from leasehold.domain.model import BodyRef, Detail, Lease
from leasehold.stores.sqlite.store import FILE_NAME
from leasehold.testing import InProcessServer, ManualClock
from tests.contract.stores.conftest import Asker

from .support import OTHER, Place, all_of, worked_on
from .test_moving import PAIRS

KEY = "0123456789abcdef" * 2


def run(*arguments: str | Path) -> Result:
    """Run a command."""
    return CliRunner().invoke(main, list(map(str, arguments)), env={"COLUMNS": "120"})


def backed_up(source: Place, folder: Path) -> dict[str, object]:
    """Back a store up; return what the backup says of itself."""
    done = run("backup", source.named, folder)
    assert done.exit_code == 0, done.output
    found: dict[str, object] = json.loads((folder / "backup.json").read_text())
    return found


@pytest.mark.parametrize(("here", "there"), PAIRS)
def test_a_store_is_as_it_was_when_it_was_backed_up(tmp_path: Path, here: str, there: str) -> None:
    """It is served while the copy is made, and what is done afterwards is not in it."""
    source, target = Place(here, tmp_path, "a"), Place(there, tmp_path, "b")
    asker, work = worked_on(source)
    told = all_of(asker)
    theirs = all_of(asker, OTHER, ("theirs",))
    then = ManualClock(asker.clock.now_ms())
    said = backed_up(source, tmp_path / "copy")
    work.play(40)  # the server goes on
    asker.store.close()
    assert source.problems() == []
    assert isinstance(said["messages"], int)
    assert said["messages"] > 10
    done = run("restore", tmp_path / "copy", target.named)
    assert done.exit_code == 0, done.output
    restored = Asker(target.open(), then)
    assert all_of(restored) == told
    assert all_of(restored, OTHER, ("theirs",)) == theirs
    restored.store.close()
    assert target.problems() == []


@pytest.mark.parametrize("there", ["sqlite", "postgres"])
def test_receipts_of_before_are_void(tmp_path: Path, there: str) -> None:
    """What a worker got after the backup cannot act on the lease that another has now."""
    source, target = Place("sqlite", tmp_path, "a"), Place(there, tmp_path, "b")
    clock = ManualClock()
    asker = Asker(source.open(), clock)
    asker.create()
    asker.put("work")
    backed_up(source, tmp_path / "copy")
    lost: Lease = asker.receive_one()
    sealing_key = asker.store.sealing_key
    asker.store.close()
    assert run("restore", tmp_path / "copy", target.named).exit_code == 0
    asker = Asker(target.open(), clock)
    assert asker.store.sealing_key != sealing_key  # a backup's reader makes no sessions of it
    again: Lease = asker.receive_one()
    assert again.message.message_id == lost.message.message_id
    assert isinstance(asker.complete(lost), LeaseLost)
    assert asker.complete(again) == c.DONE
    asker.store.close()


def test_a_server_under_load_is_backed_up_whole(tmp_path: Path) -> None:
    """Large bodies too, also those that come and go while the copy is made."""
    data, copy = tmp_path / "data", tmp_path / "copy"
    with InProcessServer(store=data, clock="system") as server, server.client() as client:
        queue = client.queue("orders")
        queue.create(settings={"max_body_bytes": 1_000_000})
        kept = [queue.put(bytes([number]) * 200_000) for number in range(5)]
        for number in range(20):
            queue.put(f"order {number}")
            for message in queue.receive(1):
                queue.complete(message)
            if number == 10:
                done = run("backup", data, copy)
                assert done.exit_code == 0, done.output
    assert kept
    there = tmp_path / "there"
    assert run("restore", copy, there).exit_code == 0
    with InProcessServer(store=there, clock="system") as server, server.client() as client:
        queue = client.queue("orders")
        received = queue.receive(100)
        assert len(received) == queue.counts().leased
        for message in received:
            assert len(message.body) == 200_000 or message.text.startswith("order ")


# --- refused -----------------------------------------------------------------------------------


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """A store with a message whose body is in the body store."""
    place = Place("sqlite", tmp_path, "a")
    asker = Asker(place.open(), ManualClock())
    asker.create()
    asker.put("small")
    large = BodyRef(key=KEY, size_bytes=3, sha256="00" * 32)
    asker.put(b"", detail=Detail(body_ref=large))
    asker.store.close()
    return place


def store_body(folder: Path) -> None:
    """Put the large body where the server has it."""

    async def put() -> None:
        bodies = open_bodies(str(folder / "bodies"))
        await bodies.put(KEY, b"abc")
        await bodies.close()

    asyncio.run(put())


def test_a_body_that_is_not_there_is_told(place: Place, tmp_path: Path) -> None:
    """A backup that would miss one is none; with it the copy has it."""
    done = run("backup", place.named, tmp_path / "copy")
    assert (done.exit_code, "1 large body that the store names cannot be found" in done.output) == (
        1,
        True,
    )
    assert run("restore", tmp_path / "copy", tmp_path / "b").exit_code == 1  # it is not finished
    store_body(place.folder)
    said = backed_up(place, tmp_path / "second")
    assert said["large_bodies"] == 1
    assert run("restore", tmp_path / "second", tmp_path / "b").exit_code == 0

    async def get() -> bytes:
        bodies = open_bodies(str(tmp_path / "b" / "bodies"))
        try:
            return await bodies.get(KEY)
        finally:
            await bodies.close()

    assert asyncio.run(get()) == b"abc"


def test_nothing_is_overwritten(place: Place, tmp_path: Path) -> None:
    """Neither a folder with something in it, nor a store that is in use."""
    store_body(place.folder)
    copy, other = tmp_path / "copy", Place("postgres", tmp_path, "b")
    backed_up(place, copy)
    for words in (("backup", place.named, copy), ("restore", copy, place.named)):
        done = run(*words)
        assert done.exit_code == 1
        assert "is not empty" in done.output
    asker = Asker(other.open(), ManualClock())
    asker.create()
    asker.store.close()
    done = run("restore", copy, other.named, "--bodies", tmp_path / "bodies")
    assert done.exit_code == 1
    assert "is not empty" in done.output
    done = run("restore", copy, other.named)
    assert "say with --bodies" in done.output


def test_a_damaged_backup_is_refused(place: Place, tmp_path: Path) -> None:
    """Before anything is made of it."""
    store_body(place.folder)
    copy, target = tmp_path / "copy", tmp_path / "b"
    backed_up(place, copy)
    database = copy / FILE_NAME
    content = bytearray(database.read_bytes())
    content[len(content) // 2] ^= 0xFF
    database.write_bytes(content)
    done = run("restore", copy, target)
    assert (done.exit_code, "is not the database that was backed up" in done.output) == (1, True)
    (copy / "backup.json").write_text("[")
    assert "cannot be read" in run("restore", copy, target).output
    (copy / "backup.json").unlink()
    assert "it is no backup, or one not finished" in run("restore", copy, target).output
    assert not (target / FILE_NAME).exists()


def test_a_store_that_is_not_there(tmp_path: Path) -> None:
    """Is told as by the other commands."""
    done = run("backup", tmp_path / "nowhere", tmp_path / "copy")
    assert (done.exit_code, "there is no store in" in done.output) == (3, True)
