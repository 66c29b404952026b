"""The folder of lifecycle tables: what counts in it, and who may change it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from leasehold.advisor.tables.incremental import (
    STATE,
    Folder,
    State,
    TablesBusy,
    TablesTooNew,
    UnreadableTables,
)


def placed(folder: Folder, table: str, run: int) -> None:
    """Have a run make a folder of a table."""
    written = folder.temporary(table)
    (written / "day=2026-11-21").mkdir(parents=True)
    (written / "day=2026-11-21" / "part-0.parquet").write_bytes(b"x")
    folder.place([table], run)


def numbers(folder: Folder, table: str) -> list[int]:
    """Return the runs of which there are folders."""
    return [run for _, run in folder.runs(table)]


def test_a_state_comes_back_as_it_was_committed(tmp_path: Path) -> None:
    """All of it is in the file."""
    folder = Folder(tmp_path)
    assert folder.state() == State()
    folder.tidy(State())
    state = State(run=3, runs=(1, 3), source="/log", upto_seq=7, events=9, names=("a", "b"))
    folder.commit(state)
    assert folder.state() == state


def test_what_does_not_count_is_removed(tmp_path: Path) -> None:
    """Of tables that grow the runs named count, of the others the newest; before a commit, all."""
    folder = Folder(tmp_path)
    folder.tidy(State())
    for run in (1, 2, 3):
        for table in ("attempts", "messages", "open"):
            placed(folder, table, run)
    folder.commit(State(run=3, runs=(1, 3)))
    assert numbers(folder, "attempts") == numbers(folder, "messages") == [1, 3]
    assert numbers(folder, "open") == [3]
    placed(folder, "attempts", 4)
    folder.tidy(folder.state())
    assert numbers(folder, "attempts") == [1, 3]
    assert [path.name for path in folder.of_runs("attempts", (3, 4))] == ["run=000003"]


def test_a_folder_of_the_version_before_goes_on(tmp_path: Path) -> None:
    """Where the state does not say which runs count, those up to the last one do."""
    for name in ("attempts/run=000001", "attempts/run=000002", "messages/run=000002"):
        (tmp_path / name / "day=2026-11-21").mkdir(parents=True)
    (tmp_path / "attempts" / "run=000003").mkdir()
    (tmp_path / STATE).write_text(
        '{"format": 1, "run": 2, "source": "/log", "upto_seq": 7, "events": 9, "names": ["a"]}'
    )
    folder = Folder(tmp_path)
    state = folder.state()
    assert state == State(
        run=2, runs=(1, 2), source="/log", upto_seq=7, events=9, names=("a",), format=2
    )
    folder.tidy(state)
    assert numbers(folder, "attempts") == [1, 2]
    assert numbers(folder, "messages") == [2]


@pytest.mark.parametrize(
    "text",
    [
        "",
        '{"format": 2, "run": 1, "na',
        "[]",
        "null",
        "{}",
        '{"format": 2, "run": 1, "names": []}',
        '{"format": 2, "run": "x", "runs": [], "names": []}',
        '{"format": "two", "run": 1, "runs": [], "names": []}',
        '{"format": 2, "run": 1, "runs": [1], "names": 7}',
        "\udcff",
    ],
)
def test_a_torn_or_foreign_state_is_told_with_its_path(tmp_path: Path, text: str) -> None:
    """What cannot be understood is one error that names the file."""
    (tmp_path / STATE).write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(UnreadableTables, match=STATE):
        Folder(tmp_path).state()


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    """Whatever else such a state says."""
    (tmp_path / STATE).write_text(json.dumps({"format": 99}))
    with pytest.raises(TablesTooNew, match="format 99"):
        Folder(tmp_path).state()


def test_one_at_a_time(tmp_path: Path) -> None:
    """The second is refused while the first is at it, and let in when it is done or failed."""
    folder, other = Folder(tmp_path / "tables"), Folder(tmp_path / "tables")

    def failing() -> None:
        with folder.exclusively():
            with pytest.raises(TablesBusy, match="tables"), other.exclusively():
                pytest.fail("two at once")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        failing()
    with other.exclusively():
        pass


def test_files_are_on_the_disk_before_the_state_counts_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files, their folders and the state are synced before it is renamed, and the folder after."""
    folder = Folder(tmp_path)
    folder.tidy(State())
    done: list[str] = []
    sync, rename = os.fsync, Path.replace

    def synced(descriptor: int) -> None:
        done.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
        sync(descriptor)

    def renamed(self: Path, target: Path) -> Path:
        done.append("state counts")
        return rename(self, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "replace", renamed)
    placed(folder, "attempts", 1)
    folder.commit(State(run=1, runs=(1,)))
    place = done.index("state counts")
    written = folder.temporary("attempts")
    needed = {
        str(written / "day=2026-11-21" / "part-0.parquet"),
        str(written / "day=2026-11-21"),
        str(written),
        str(tmp_path / "attempts"),
        str(tmp_path),
        str(folder.temporary(STATE)),
    }
    assert needed <= {*done[:place]}
    assert str(tmp_path) in done[place:]
