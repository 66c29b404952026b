"""The folder of an export: whose it is, and its old days."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from leasehold.events.files import (
    ExportNote,
    FilePlan,
    FolderRefused,
    NoteUnreadable,
    last_seq_in,
    prepare,
    read_note,
    remove_before,
)
from leasehold.events.names import MARKER, TEMPORARY, file_of, folder_of, hour_of
from tests.unit.events.support import DAY_MS, HOUR_MS, TEN_MS


def place_file(root: Path, at_ms: int, first_seq: int, last_seq: int) -> Path:
    """Put an empty file where events of a moment would be."""
    path = root / folder_of(hour_of(at_ms)) / file_of(first_seq, last_seq)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    return path


def test_a_new_folder_is_made_and_marked(tmp_path: Path) -> None:
    """It says which log it belongs to, and may be made ready again."""
    root = tmp_path / "a" / "events"
    prepare(root, "log-1", 0)
    prepare(root, "log-1", 0)
    assert json.loads((root / MARKER).read_text("utf-8")) == {"log": "log-1"}


def test_leftovers_are_removed(tmp_path: Path) -> None:
    """Files that a killed exporter has not finished do not pile up."""
    prepare(tmp_path, "log-1", 0)
    (tmp_path / TEMPORARY).mkdir()
    (tmp_path / TEMPORARY / "events.partial").write_bytes(b"half")
    prepare(tmp_path, "log-1", 0)
    assert sorted(path.name for path in tmp_path.iterdir()) == [MARKER]


def test_the_folder_of_another_log_is_refused(tmp_path: Path) -> None:
    """Two servers cannot mix their events."""
    prepare(tmp_path, "log-1", 0)
    with pytest.raises(FolderRefused, match="another log"):
        prepare(tmp_path, "log-2", 0)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"log": 1}'])
def test_a_mark_that_was_cut_short_is_made_again(tmp_path: Path, content: str) -> None:
    """A crash while the folder was marked does not lock it."""
    (tmp_path / MARKER).write_text(content, "utf-8")
    prepare(tmp_path, "log-1", 0)
    assert json.loads((tmp_path / MARKER).read_text("utf-8")) == {"log": "log-1"}


def test_a_folder_that_is_ahead_is_refused(tmp_path: Path) -> None:
    """A log whose database was restored from a backup must not write other events with the same
    numbers."""
    place_file(tmp_path, TEN_MS, 1, 7)
    place_file(tmp_path, TEN_MS + HOUR_MS, 8, 9)
    (tmp_path / "notes.txt").touch()
    assert last_seq_in(tmp_path) == 9
    prepare(tmp_path, "log-1", 9)
    with pytest.raises(FolderRefused, match="up to batch 9, but this log has exported up to 8"):
        prepare(tmp_path, "log-1", 8)


def test_whole_days_are_removed(tmp_path: Path) -> None:
    """A day goes once its last moment is old enough; what is not ours stays."""
    midnight_ms = TEN_MS - 10 * HOUR_MS
    for day in (-2, -1, 0):
        place_file(tmp_path, midnight_ms + day * DAY_MS, 5 + day, 5 + day)
    (tmp_path / "mine").mkdir()
    assert remove_before(tmp_path, midnight_ms - 1) == ["date=2026-11-19"]
    assert remove_before(tmp_path, midnight_ms) == ["date=2026-11-20"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["date=2026-11-21", "mine"]
    assert remove_before(tmp_path / "missing", midnight_ms) == []


@pytest.mark.parametrize("plan", [None, FilePlan(first_seq=4, last_seq=9, path="date=x/y")])
def test_a_note_is_read_as_it_was_kept(plan: FilePlan | None) -> None:
    """With a plan and without."""
    note = ExportNote(log="l", done_seq=3, plan=plan)
    assert read_note(note.text()) == note
    assert note.known_seq() == (9 if plan else 3)


def test_a_note_of_a_newer_version_is_refused() -> None:
    """Who does not know what it means must not export anything twice."""
    text = ExportNote(log="l").text().replace('"format": 1', '"format": 2')
    with pytest.raises(NoteUnreadable):
        read_note(text)
