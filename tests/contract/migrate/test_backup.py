"""Backups of stores that are in use, and stores that are made of them."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Any

import pytest
from click.testing import CliRunner, Result

from leasehold.bodies import open_bodies
from leasehold.cli import backup, main
from leasehold.clock import SystemClock
from leasehold.domain import commands as c
from leasehold.domain.errors import LeaseLost
from leasehold.domain.model import BodyRef, Detail, Lease
from leasehold.domain.queue_settings import QueueSettings
from leasehold.engine import Engine
from leasehold.engine import large_bodies as large_bodies_module
from leasehold.engine.large_bodies import LargeBodies
from leasehold.stores.migrate.backup import large_bodies
from leasehold.stores.migrate.ends import LargeBody
from leasehold.stores.migrate.holds import FileHold, Hold, HoldFailed, keep_bodies
from leasehold.stores.migrate.postgres import PostgresHold
from leasehold.stores.sql.state import HOLD_MS
from leasehold.stores.sqlite.store import FILE_NAME
from leasehold.testing import InProcessServer, ManualClock
from tests.contract.stores.conftest import Asker
from tests.unit.engine.support import put

from .support import OTHER, Place, all_of, worked_on
from .test_moving import PAIRS

KEY = "0123456789abcdef" * 2
OTHER_KEY = "fedcba9876543210" * 2


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


class _Served:
    """An engine over a store whose large bodies are in a folder."""

    def __init__(self, place: Place, folder: Path) -> None:
        self.clock = SystemClock()
        self.bodies = LargeBodies(open_bodies(str(folder)), self.clock, inline_bytes=100)
        self.engine = Engine(place.open(), self.clock, inline_below_s=1.0, bodies=self.bodies)

    async def put(self, count: int) -> list[Lease]:
        """Put large messages into a new queue."""
        await self.engine.start()
        settings = QueueSettings(max_body_bytes=1_000)
        await self.engine.perform(c.CreateQueue("a", "queue", {}, settings))
        puts = [put(bytes([number]) * 500) for number in range(count)]
        leases: list[Any] = [await self.engine.perform(each) for each in puts]
        return leases

    async def complete(self, leases: Sequence[Lease]) -> None:
        """Complete them, and remove the bodies that may be removed."""
        for lease in leases:
            named = ("a", "queue", lease.message.message_id, lease.receipt)
            await self.engine.perform(c.Complete(*named))
        await self.bodies.collect()
        await self.bodies.search()


@pytest.mark.parametrize("kept", [True, False], ids=["kept", "control"])
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_bodies_stay_while_a_backup_may_name_them(
    tmp_path: Path, kind: str, kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All messages are completed between the copy of the database and that of the bodies."""
    place, folder, copy = Place(kind, tmp_path, "a"), tmp_path / "bodies", tmp_path / "copy"
    if not kept:
        monkeypatch.setattr(backup, "keep_bodies", lambda _: nullcontext())

    async def play() -> tuple[Result, int]:
        served, loop = _Served(place, folder), asyncio.get_running_loop()
        leases = await served.put(5)
        monkeypatch.setattr(large_bodies_module, "ORPHAN_AGE_MS", -60_000)  # all are old

        def read_and_complete(database: Path) -> list[LargeBody]:
            named = large_bodies(database)
            asyncio.run_coroutine_threadsafe(served.complete(leases), loop).result()
            leases.clear()
            return named

        monkeypatch.setattr(backup, "large_bodies", read_and_complete)
        arguments = ("backup", place.named, copy, "--bodies", folder)
        done = await asyncio.to_thread(run, *arguments)
        monkeypatch.undo()
        await served.complete([])
        await served.engine.stop()
        return done, len(_body_files(tmp_path))

    done, left = asyncio.run(play())
    assert done.exit_code == 0, done.output
    # Without the mark the database is copied again, until no body of it is gone.
    assert json.loads((copy / "backup.json").read_text())["large_bodies"] == (5 if kept else 0)
    assert left == 0
    if kept:
        to = ("--bodies", tmp_path / "restored")
        assert run("restore", copy, tmp_path / "b", *to).exit_code == 0
        assert len(_body_files(copy)) == 5


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_killed_backup_keeps_bodies_for_minutes_only(tmp_path: Path, kind: str) -> None:
    """And the next one removes what it has left behind."""
    place, clock = Place(kind, tmp_path, "a"), ManualClock(SystemClock().now_ms())
    asker = Asker(place.open(), clock)

    def held() -> bool:
        return bool(asker.ask(c.KnownBodies(())).held)

    assert not held()
    with _hold_of(place, clock) as hold:
        hold.extend()
        assert held()
        clock.advance(ms=HOLD_MS + 5_000)
        assert not held()
    if kind == "sqlite":
        with _hold_of(place, clock) as hold, keep_bodies(hold):
            assert len(list(place.folder.glob("*.hold"))) == 1
            assert held()
        assert list(place.folder.glob("*.hold")) == []
    asker.store.close()


@contextmanager
def _hold_of(place: Place, clock: ManualClock) -> Iterator[Hold]:
    if place.kind == "sqlite":
        yield FileHold(place.folder, clock.now_ms)
        return
    hold = PostgresHold(place.named)
    yield hold
    hold.end()


def test_hold_that_the_server_cannot_read_counts_from_its_last_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A backup of another user may leave a file that only that user reads."""
    place, clock = Place("sqlite", tmp_path, "a"), ManualClock(SystemClock().now_ms())
    asker = Asker(place.open(), clock)
    FileHold(place.folder, clock.now_ms).extend()

    def refuse(*_: Any, **__: Any) -> str:
        raise PermissionError

    monkeypatch.setattr(Path, "read_text", refuse)
    assert asker.ask(c.KnownBodies(())).held
    FileHold(place.folder, clock.now_ms)
    clock.advance(ms=HOLD_MS + 5_000)
    assert not asker.ask(c.KnownBodies(())).held
    monkeypatch.undo()
    asker.store.close()


def test_hold_of_a_wrong_clock_is_not_believed(tmp_path: Path) -> None:
    """It would keep bodies for years; the next backup removes it."""
    place, clock = Place("sqlite", tmp_path, "a"), ManualClock(SystemClock().now_ms())
    asker = Asker(place.open(), clock)
    FileHold(place.folder, lambda: clock.now_ms() + 10**11).extend()
    assert not asker.ask(c.KnownBodies(())).held
    FileHold(place.folder, clock.now_ms)
    assert list(place.folder.glob("*.hold")) == []
    asker.store.close()


def test_hold_in_postgresql_outlives_its_connection(tmp_path: Path) -> None:
    """A failover must not end it while a backup goes on."""
    place, clock = Place("postgres", tmp_path, "a"), ManualClock(SystemClock().now_ms())
    asker = Asker(place.open(), clock)
    hold = PostgresHold(place.named)
    hold.extend()
    assert hold._connection is not None
    hold._connection.close()
    hold.extend()
    assert asker.ask(c.KnownBodies(())).held
    hold.end()
    assert not asker.ask(c.KnownBodies(())).held
    asker.store.close()


def test_mark_is_renewed_while_a_backup_runs(tmp_path: Path) -> None:
    """However long it takes."""

    class Counted:
        def __init__(self) -> None:
            self.extended = self.ended = 0
            self.enough = threading.Event()

        def extend(self) -> None:
            self.extended += 1
            if self.extended == 3:
                self.enough.set()
                raise HoldFailed

        def end(self) -> None:
            self.ended += 1

    hold = Counted()
    with keep_bodies(hold, renew_s=0.001):
        assert hold.enough.wait(120)
    assert hold.ended == 1


def test_a_read_only_store_is_backed_up(place: Place, tmp_path: Path) -> None:
    """Its server cannot be told to keep bodies; the database is copied again if one is gone."""
    store_body(place.folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FileHold, "extend", raise_hold_failed)
        backed_up(place, tmp_path / "copy")


def raise_hold_failed(_: FileHold) -> None:
    """Fail as where the folder is another user's."""
    raise HoldFailed


# --- refused -----------------------------------------------------------------------------------


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """A store with a message whose body is in the body store."""
    place = Place("sqlite", tmp_path, "a")
    asker = Asker(place.open(), ManualClock())
    asker.create()
    asker.put("small")
    large = BodyRef(key=KEY, size_bytes=3, sha256=sha256(b"abc").hexdigest())
    asker.put(b"", detail=Detail(body_ref=large))
    asker.store.close()
    return place


def store_body(folder: Path, body: bytes = b"abc") -> None:
    """Put the large body where the server has it."""

    async def put() -> None:
        bodies = open_bodies(str(folder / "bodies"))
        await bodies.delete(KEY)
        await bodies.put(KEY, body)
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


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A backup of a store with 25 large bodies."""
    source, folder = Place("sqlite", tmp_path, "a"), tmp_path / "copy"
    asker = Asker(source.open(), ManualClock())
    asker.create()

    async def put() -> None:
        bodies = open_bodies(str(source.folder / "bodies"))
        for number in range(25):
            key, body = f"{number:032x}", bytes([number]) * 100
            ref = BodyRef(key=key, size_bytes=100, sha256=sha256(body).hexdigest())
            asker.put(b"", detail=Detail(body_ref=ref))
            await bodies.put(key, body)
        await bodies.close()

    asyncio.run(put())
    asker.store.close()
    backed_up(source, folder)
    return folder


def _body_files(folder: Path) -> list[Path]:
    return sorted(path for path in (folder / "bodies").rglob("*") if len(path.name) == 32)


def _is_refused(copy: Path, name: str, target: Path) -> bool:
    """Tell whether a backup is refused with what is wrong, and nothing was written."""
    done = run("restore", copy, target)
    return done.exit_code == 1 and name in done.output.replace("\n", "") and not target.exists()


@pytest.mark.parametrize("what", ["leasehold.db", "backup.json", "bodies"])
def test_each_flipped_bit_of_a_backup_is_noticed(copy: Path, tmp_path: Path, what: str) -> None:
    """In the database, in what the backup says of itself, and in each body."""
    random = Random(what)
    files = _body_files(copy) if what == "bodies" else [copy / what]
    unnoticed = []
    for number in range(50):
        file = files[number % len(files)]
        before = file.read_bytes()
        changed, at = bytearray(before), random.randrange(len(before))
        changed[at] ^= 1 << random.randrange(8)
        file.write_bytes(changed)
        name = file.name if what == "bodies" else what
        if not _is_refused(copy, name, tmp_path / "b"):
            unnoticed.append((file.name, at))
        file.write_bytes(before)
    assert unnoticed == []
    assert run("restore", copy, tmp_path / "b").exit_code == 0


@pytest.mark.parametrize("how", ["missing", "cut short"])
def test_each_body_that_a_backup_lacks_is_noticed(copy: Path, tmp_path: Path, how: str) -> None:
    """Nothing is written, so that the next try does not find something there."""
    for file in _body_files(copy):
        before = file.read_bytes()
        file.unlink()
        if how == "cut short":
            file.write_bytes(before[:-1])
        assert _is_refused(copy, file.name, tmp_path / "b"), file
        file.write_bytes(before)
    assert run("restore", copy, tmp_path / "b").exit_code == 0


def test_a_backup_is_restored_without_some_bodies_if_that_is_wanted(
    copy: Path, tmp_path: Path
) -> None:
    """Most of it may be better than nothing; and the server takes the place as it is."""
    for file in _body_files(copy)[1:]:
        file.unlink()
    done = run("restore", copy, tmp_path / "b", "--accept-bad-bodies")
    assert done.exit_code == 4
    assert len(_body_files(tmp_path / "b")) == 1
    assert (tmp_path / "b" / "bodies" / "mark").read_text() == ""


def test_a_body_that_goes_between_check_and_copy_is_noticed(
    copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is restored that is not whole."""
    check = backup._checked_bodies

    def check_and_remove(*arguments: Any) -> Any:
        found = check(*arguments)
        _body_files(copy)[0].unlink()
        return found

    monkeypatch.setattr(backup, "_checked_bodies", check_and_remove)
    done = run("restore", copy, tmp_path / "b")
    assert (done.exit_code, "was changed meanwhile" in done.output) == (1, True)
    assert not (tmp_path / "b" / FILE_NAME).exists()


@pytest.mark.parametrize("is_whole", [True, False])
def test_a_backup_of_0_1_is_restored(copy: Path, tmp_path: Path, is_whole: bool) -> None:
    """Its manifest has no digest of itself, and it may have copied corrupt bodies unseen."""
    if not is_whole:
        _body_files(copy)[0].write_bytes(b"corrupt")
    path = copy / "backup.json"
    facts = json.loads(path.read_text())
    for name in ("manifest_sha256", "bad_bodies"):
        del facts[name]
    path.write_text(json.dumps(facts, indent=2) + "\n")
    assert run("restore", copy, tmp_path / "b").exit_code == (0 if is_whole else 4)


@pytest.mark.parametrize("body", [b"abd", None], ids=["corrupt", "missing"])
def test_a_bad_body_of_the_store_prevents_no_backup(tmp_path: Path, body: bytes | None) -> None:
    """It is made, names the message, and so is what is restored from it."""
    source, copy = Place("sqlite", tmp_path, "a"), tmp_path / "copy"
    asker = Asker(source.open(), ManualClock())
    asker.create()
    ids = []
    for key in (KEY, OTHER_KEY):
        ref = BodyRef(key=key, size_bytes=3, sha256=sha256(b"abc").hexdigest())
        ids.append(asker.put(b"", detail=Detail(body_ref=ref)).message.message_id)
    asker.store.close()

    async def put() -> None:
        bodies = open_bodies(str(source.folder / "bodies"))
        await bodies.put(OTHER_KEY, b"abc")
        if body is not None:
            await bodies.put(KEY, body)
        await bodies.close()

    asyncio.run(put())
    problem = "missing" if body is None else "corrupt"
    done = run("backup", source.named, copy)
    assert done.exit_code == 4
    assert f"The body of message {ids[0]} is {problem} in the store." in done.output
    assert ids[1] not in done.output
    restored = run("restore", copy, tmp_path / "b")
    assert restored.exit_code == 4
    assert ids[0] in restored.output
    # But no other body may be bad.
    (other,) = [path for path in _body_files(copy) if path.name == OTHER_KEY]
    other.write_bytes(b"abx")
    assert _is_refused(copy, OTHER_KEY, tmp_path / "c")


def test_a_store_that_is_not_there(tmp_path: Path) -> None:
    """Is told as by the other commands."""
    done = run("backup", tmp_path / "nowhere", tmp_path / "copy")
    assert (done.exit_code, "there is no store in" in done.output) == (3, True)
