"""What every place for bodies owes: a folder, and an object store by its library."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from leasehold.bodies import BodyMissing, BodyStore, open_bodies
from leasehold.bodies.base import DirectoryBodies, is_key
from leasehold.domain.errors import Unavailable

KEY = "0123456789abcdef0123456789abcdef"
OTHER = "f" * 32
DATA = bytes(range(256)) * 1024

Scenario = Callable[[BodyStore], Awaitable[None]]


@pytest.fixture(params=["folder", "file", "memory"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return an address of each kind that needs nobody else."""
    if request.param == "memory":
        pytest.importorskip("obstore")
        return "memory:///"
    folder = tmp_path / "some where"
    return str(folder) if request.param == "folder" else folder.as_uri()


def play(where: str, scenario: Scenario) -> None:
    """Run a scenario over one place."""

    async def run() -> None:
        store = open_bodies(where)
        await scenario(store)
        await store.close()

    asyncio.run(run())


async def keys_of(store: BodyStore) -> set[str]:
    """Return all keys that a place lists."""
    return {each.key async for page in store.pages() for each in page}


def test_what_was_put_is_given_back(where: str) -> None:
    """A body comes back as it was, also one that has every byte in it."""

    async def scenario(store: BodyStore) -> None:
        await store.put(KEY, DATA)
        await store.put(OTHER, b"x")
        assert await store.get(KEY) == DATA
        assert type(await store.get(OTHER)) is bytes
        assert await keys_of(store) == {KEY, OTHER}

    play(where, scenario)


def test_a_missing_body_is_told_from_a_failure(where: str) -> None:
    """Nothing under a key has an error of its own, which names the key."""

    async def scenario(store: BodyStore) -> None:
        with pytest.raises(BodyMissing) as found:
            await store.get(KEY)
        assert found.value.key == KEY

    play(where, scenario)


def test_a_removal_can_be_repeated(where: str) -> None:
    """What is removed is gone, and removing it again is no error."""

    async def scenario(store: BodyStore) -> None:
        await store.put(KEY, DATA)
        await store.delete(KEY)
        await store.delete(KEY)
        assert await keys_of(store) == set()
        with pytest.raises(BodyMissing):
            await store.get(KEY)

    play(where, scenario)


def test_a_list_says_how_old_a_body_is(where: str, tmp_path: Path) -> None:
    """The time in a list is the one at which the body was written."""

    async def scenario(store: BodyStore) -> None:
        await store.put(KEY, DATA)
        ((kept,),) = [page async for page in store.pages()]
        marker = tmp_path / "now"
        marker.touch()
        now_ms = marker.stat().st_mtime_ns // 1_000_000
        assert abs(now_ms - kept.modified_at_ms) < 60_000

    play(where, scenario)


def test_many_bodies_are_listed_in_pages(where: str) -> None:
    """A list has everything, however much there is."""
    keys = {f"{number:032x}" for number in range(100)}

    async def scenario(store: BodyStore) -> None:
        await asyncio.gather(*(store.put(key[::-1], b"x") for key in keys))
        assert await keys_of(store) == {key[::-1] for key in keys}

    play(where, scenario)


def test_a_folder_belongs_to_its_owner(tmp_path: Path) -> None:
    """Nobody else on the machine can read a body or list one."""

    async def scenario(store: BodyStore) -> None:
        await store.put(KEY, DATA)

    play(str(tmp_path / "bodies"), scenario)
    modes = {path.stat().st_mode & 0o077 for path in (tmp_path / "bodies").rglob("*")}
    assert modes == {0}
    assert (tmp_path / "bodies").stat().st_mode & 0o077 == 0
    assert (tmp_path / "bodies" / "0" / "01" / KEY).read_bytes() == DATA


def test_files_of_others_are_left_alone(tmp_path: Path) -> None:
    """What has no name of ours in the folder is not listed, so that nobody removes it."""

    async def scenario(store: BodyStore) -> None:
        await store.put(KEY, DATA)
        (tmp_path / "README").write_text("not a body")
        (tmp_path / "0" / "01" / "notes.txt").write_text("neither")
        (tmp_path / "lost+found").mkdir()
        assert await keys_of(store) == {KEY}

    play(str(tmp_path), scenario)


def test_a_file_that_was_not_finished_is_listed_and_removed(tmp_path: Path) -> None:
    """What a killed server had half written is found by the search, and can be removed."""

    async def scenario(store: BodyStore) -> None:
        (tmp_path / "incoming" / KEY).write_bytes(b"half")
        assert await keys_of(store) == {KEY}
        with pytest.raises(BodyMissing):
            await store.get(KEY)
        await store.delete(KEY)
        assert await keys_of(store) == set()

    play(str(tmp_path), scenario)


def test_a_body_is_on_disk_before_put_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is synced before it has its name, and its folder after that."""
    steps: list[str] = []
    fsync, rename = os.fsync, Path.rename

    def noted_fsync(file: int) -> None:
        synced = str(Path(f"/proc/self/fd/{file}").readlink())
        steps.append("sync " + synced.removeprefix(str(tmp_path)))
        fsync(file)

    def noted_rename(path: Path, target: Path) -> Path:
        steps.append("rename")
        return rename(path, target)

    async def scenario(store: BodyStore) -> None:
        monkeypatch.setattr(os, "fsync", noted_fsync)
        monkeypatch.setattr(Path, "rename", noted_rename)
        await store.put(KEY, DATA)
        steps.append("-")
        await store.put(KEY[:-1] + "0", DATA)

    play(str(tmp_path), scenario)
    first, second = steps[: steps.index("-")], steps[steps.index("-") + 1 :]
    assert first == [f"sync /incoming/{KEY}", "sync ", "sync /0", "rename", "sync /0/01"]
    assert second == [f"sync /incoming/{KEY[:-1]}0", "rename", "sync /0/01"], "folders stay"


def test_a_folder_that_cannot_be_written_is_said_at_once(tmp_path: Path) -> None:
    """A file where the folder should be is no place for bodies."""
    (tmp_path / "bodies").write_text("a file")
    with pytest.raises(OSError, match="bodies"):
        open_bodies(str(tmp_path / "bodies"))


def test_a_folder_that_is_gone_is_a_failure_that_may_pass(tmp_path: Path) -> None:
    """Whoever unmounts the folder gets an answer that says to come back, not a crash."""

    async def scenario(store: BodyStore) -> None:
        (tmp_path / "bodies" / "incoming").rmdir()
        (tmp_path / "bodies").rmdir()
        with pytest.raises(Unavailable):
            await store.put(KEY, DATA)
        with pytest.raises(Unavailable):
            await keys_of(store)

    play(str(tmp_path / "bodies"), scenario)


@pytest.mark.parametrize("where", ["ftp://server/x", "http://server/x", "S3:/x://y"])
def test_an_address_nobody_knows_is_refused(where: str) -> None:
    """The refusal names the addresses there are."""
    with pytest.raises(ValueError, match="s3://"):
        open_bodies(where)


def test_an_address_that_lacks_something_is_refused() -> None:
    """What the library says of an address reaches the one who wrote it, in one line."""
    pytest.importorskip("obstore")
    with pytest.raises(ValueError, match="Account must be specified") as found:
        open_bodies("az://container/prefix")
    assert "\n" not in str(found.value)


def test_an_object_store_that_does_not_answer_may_come_back() -> None:
    """A bucket that cannot be reached is a failure that may pass."""
    library = pytest.importorskip("obstore.store")

    async def scenario() -> None:
        store: Any = open_bodies("memory:///")
        store._store = library.S3Store(
            "bucket",
            endpoint="http://127.0.0.1:1",
            access_key_id="x",
            secret_access_key="y",
            region="z",
            client_options={"allow_http": True},
            retry_config={"max_retries": 0},
        )
        for attempt in (store.put(KEY, DATA), store.get(KEY), store.delete(KEY), keys_of(store)):
            with pytest.raises(Unavailable) as found:
                await attempt
            assert found.value.__cause__ is not None

    asyncio.run(scenario())


def test_keys_are_nothing_but_hexadecimal() -> None:
    """No key can name a file elsewhere."""
    assert is_key(KEY)
    assert not any(map(is_key, ("", "../../etc/passwd", KEY.upper(), KEY + "0", KEY[:-1] + "/")))


def test_reading_goes_on_while_others_wait_for_the_disk(tmp_path: Path) -> None:
    """The loop has turns while a body is being written."""

    async def scenario() -> None:
        store = DirectoryBodies(tmp_path)
        turns = 0
        writing = asyncio.create_task(store.put(KEY, DATA))
        while not writing.done():
            await asyncio.sleep(0)
            turns += 1
        await writing
        assert turns > 1
        await store.close()

    asyncio.run(scenario())
