"""Disks that fail: every single call, and a disk that is full."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest

from leasehold.domain import commands as c
from leasehold.domain.command import AnyCommand
from leasehold.domain.errors import LeaseholdError, StoreFailed, StoreFull
from leasehold.domain.model import Lease
from leasehold.stores.sqlite import SqliteStore
from tests.sqlite import MEMORY, as_new

from .disks import mounted
from .powercut import snapshot

NOW_MS = 1_767_225_600_000
VFS_NAME = "leasehold-faulty"


class Fuse:
    """Lets a number of calls through and then fails one, or all from then on."""

    def __init__(self) -> None:
        self.left = -1
        self.error: type[Exception] = apsw.IOError
        self.lasting = False
        self.blown = 0

    def call(self) -> None:
        if self.left < 0:
            return
        if self.left == 0:
            self.blown += 1
            if not self.lasting:
                self.left = -1
            raise self.error
        self.left -= 1


FUSE = Fuse()


class FaultyFile(apsw.VFSFile):
    """A file whose writes, truncations and syncs pass the fuse."""

    def __init__(self, name: Any, flags: Any) -> None:
        super().__init__("", name, flags)

    def xWrite(self, data: Any, offset: int) -> None:  # noqa: N802 - SQLite's name
        FUSE.call()
        super().xWrite(data, offset)

    def xTruncate(self, newsize: int) -> None:  # noqa: N802
        FUSE.call()
        super().xTruncate(newsize)

    def xSync(self, flags: int) -> None:  # noqa: N802
        FUSE.call()
        super().xSync(flags)


class FaultyVfs(apsw.VFS):
    """The operating system's file system behind a fuse."""

    def __init__(self) -> None:
        super().__init__(VFS_NAME, "")

    def xOpen(self, name: Any, flags: Any) -> FaultyFile:  # noqa: N802
        return FaultyFile(name, flags)


@pytest.fixture
def faulty() -> Iterator[Fuse]:
    vfs = FaultyVfs()
    FUSE.__init__()  # type: ignore[misc]
    yield FUSE
    vfs.unregister()


def batches() -> Iterator[list[AnyCommand]]:
    """A fixed script that touches everything, with bodies that spill over pages."""
    yield [c.CreateQueue("a", "queue", {"k": "v"})]
    for number in range(12):
        body = bytes([number]) * (200 if number % 3 else 30_000)
        yield [c.Put("a", "queue", body, 0, 3600, bytes([number]) * 10)]
    yield [c.Receive("a", "queue", 4, 30)]
    yield [c.SetQueueMetadata("a", "queue", {"k": "w"}), c.Clear("a", "queue")]
    yield [c.Put("a", "queue", b"last", 0, 3600, b"0123456789"), c.ReapDropped(100)]


def play(store: SqliteStore) -> Iterator[str]:
    """Run the script; yield the state after each acknowledged batch. Raises what the store does."""
    for batch in batches():
        store.execute(batch, now_ms=NOW_MS)
        store.commit()
        yield snapshot(store)


@pytest.mark.parametrize("error", [apsw.IOError, apsw.FullError], ids=["io-error", "disk-full"])
def test_whichever_call_fails_nothing_acknowledged_is_lost(
    faulty: Fuse, error: type[Exception]
) -> None:
    """The n-th disk call fails, for every n: the store says so, and the file is whole."""
    expected = full_run()
    n = 0
    while True:
        faulty.left, faulty.error, faulty.blown = -1, error, 0
        folder = as_new(Path(tempfile.mkdtemp(dir=MEMORY)))
        try:
            states = expected[:1]
            raised: LeaseholdError | None = None
            store = SqliteStore(folder, cache_mib=1, vfs=VFS_NAME)
            faulty.left = n
            try:
                for state in play(store):  # not extend(): it would keep nothing of a run cut short
                    states.append(state)
            except LeaseholdError as caught:
                raised = caught
            blown, faulty.left = faulty.blown, -1
            kind = StoreFull if error is apsw.FullError else StoreFailed
            assert raised is None or isinstance(raised, kind)
            store.close()
            reopened = SqliteStore(folder, cache_mib=1)
            assert reopened._connection.pragma("integrity_check") == "ok"
            found = snapshot(reopened)
            reopened.close()
            # A sync that fails after the last write leaves the batch in the file, unacknowledged.
            assert found in {states[-1], expected[min(len(states), len(expected) - 1)]}
        finally:
            shutil.rmtree(folder)
        n += 1
        if not blown:
            break
    assert n > 50


def full_run() -> list[str]:
    """Return the states of a run without faults, from the empty store on."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        store = SqliteStore(Path(folder))
        states = [snapshot(store), *play(store)]
        store.close()
    return states


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 12 MiB."""
    with mounted(tmp_path / "disk", size_mib=12) as disk:
        yield disk


def ask(store: SqliteStore, command: AnyCommand) -> Any:
    """Ask as the engine does: once more after StoreFull."""
    for attempt in (1, 2):
        try:
            (result,) = store.execute([command], now_ms=NOW_MS)
            store.commit()
        except StoreFull as full:
            if attempt == 2:
                return full
        else:
            return result
    raise AssertionError


def test_full_disk_refuses_puts_and_lets_consumers_drain(small_disk: Path) -> None:
    """Everything acknowledged before the disk was full can be received and completed on it."""
    store = SqliteStore(small_disk / "data", cache_mib=1, reserve_bytes=4 * 1024 * 1024)
    ask(store, c.CreateQueue("a", "queue", {}))
    put = 0
    while True:
        result = ask(store, c.Put("a", "queue", b"x" * 8_000, 0, None, put.to_bytes(10, "big")))
        if isinstance(result, StoreFull):
            break
        put += 1
        assert put < 5_000
    assert not store.health().writable
    assert put > 100
    leases: list[Lease] = []
    while batch := ask(store, c.Receive("a", "queue", 32, 600)):
        assert isinstance(batch, tuple)
        leases += batch
    assert len(leases) == put
    renewed = ask(store, c.Renew("a", "queue", leases[0].message.message_id, leases[0].receipt, 60))
    assert isinstance(renewed, Lease)
    leases[0] = renewed
    for lease in leases:
        done = ask(store, c.Complete("a", "queue", lease.message.message_id, lease.receipt))
        assert done == c.DONE
    assert store.relieve()
    assert store.health().writable
    again = ask(store, c.Put("a", "queue", b"y" * 8_000, 0, None, b"0123456789"))
    assert isinstance(again, Lease)
    store.close()


def test_disk_filled_by_others_is_noticed_and_recovered_from(small_disk: Path) -> None:
    """When somebody else fills the disk, puts resume once they have made room again."""
    store = SqliteStore(small_disk / "data", cache_mib=1, reserve_bytes=2 * 1024 * 1024)
    ask(store, c.CreateQueue("a", "queue", {}))
    leases = [result for result in put_many(store, 5) if isinstance(result, Lease)]
    hog = small_disk / "hog"
    with hog.open("wb") as file:
        try:
            while True:
                file.write(b"\0" * 65_536)
                file.flush()
        except OSError:
            pass
    for _ in range(3):  # however often it tries again, it only ever refuses puts
        results = put_many(store, 200)
        assert isinstance(results[-1], StoreFull)
        lease = leases.pop()
        message_id = lease.message.message_id
        assert ask(store, c.Complete("a", "queue", message_id, lease.receipt)) == c.DONE
        store.relieve()
    hog.unlink()
    assert store.relieve()
    assert all(isinstance(result, Lease) for result in put_many(store, 20))
    store.close()


def put_many(store: SqliteStore, count: int) -> list[Any]:
    return [
        ask(store, c.Put("a", "queue", b"x" * 60_000, 0, None, number.to_bytes(10, "big")))
        for number in range(count)
    ]
