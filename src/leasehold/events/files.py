"""The folder of an export: whose it is, how far it goes, and what the exporter keeps of it."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from leasehold.disk import make_folder, sync, write_file
from leasehold.events.names import (
    MARKER,
    TEMPORARY,
    date_in,
    hour_in,
    range_of,
)

_DAY_S: Final = 86_400


class FolderRefused(Exception):
    """Exporting into the folder would mix the events of two histories. The text says why."""


def prepare(root: Path, log_id: str, known_seq: int) -> None:
    """Make the folder ready for the events of one log.

    Files left over by an exporter that was killed while it wrote them are removed.

    Args:
        root: The folder; made if it is missing.
        log_id: Which log is exported.
        known_seq: Number of the last batch that this log believes to be in the folder, or is about
            to put there.

    Raises:
        FolderRefused: It has events of another log, or of a later state of this one.
        OSError: It cannot be used.
    """
    make_folder(root)
    owner = _owner(root)
    if owner is not None and owner != log_id:
        raise FolderRefused(f"{root} has the events of another log ({owner}, and not {log_id})")
    found_seq = last_seq_in(root)
    if found_seq > known_seq:
        raise FolderRefused(
            f"{root} has events up to batch {found_seq}, but this log has exported up to "
            f"{known_seq}: the database was restored from a backup, or another server exports into "
            "it"
        )
    shutil.rmtree(root / TEMPORARY, ignore_errors=True)
    if owner is None:
        _mark(root, log_id)


def last_seq_in(root: Path) -> int:
    """Return the highest number of a batch in the folder, 0 if there is none."""
    return max(
        (
            found[1]
            for of_day in root.iterdir()
            if date_in(of_day.name)
            for of_hour in of_day.iterdir()
            if hour_in(of_hour.name) is not None
            for path in of_hour.iterdir()
            if (found := range_of(path.name))
        ),
        default=0,
    )


def remove_before(root: Path, before_ms: int) -> list[str]:
    """Remove the days that were over at a moment, Unix milliseconds; return their folders."""
    removed = []
    for path in sorted(root.iterdir()) if root.is_dir() else ():
        day = date_in(path.name)
        if day is None:
            continue
        begin = datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp()
        if (begin + _DAY_S) * 1000 <= before_ms:
            shutil.rmtree(path)
            removed.append(path.name)
    return removed


def _owner(root: Path) -> str | None:
    try:
        content = json.loads((root / MARKER).read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):  # not there, or cut short by a crash
        return None
    owner = content.get("log") if isinstance(content, dict) else None
    return owner if isinstance(owner, str) else None


def _mark(root: Path, log_id: str) -> None:
    write_file(root / MARKER, json.dumps({"log": log_id}).encode())
    sync(root)


# --- notes -------------------------------------------------------------------------------------
#
# What an exporter keeps in the store: how far it came, and which file it is about to write.
#
# A file is planned in the store before it is written, and noted as done once it is in its place.
# After a crash the same plan is carried out again, and makes the same file. Standard library only.


NOTE: Final = "export"
"""Name of the note."""
_FORMAT: Final = 1


class NoteUnreadable(Exception):
    """The note was not written by this version or an older one."""

    def __init__(self) -> None:
        super().__init__("a newer version has exported events from this database")


@dataclass(frozen=True, slots=True, kw_only=True)
class FilePlan:
    """A file that is about to be written."""

    first_seq: int
    last_seq: int
    path: str
    """Under the folder of the export."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportNote:
    """How far an export is."""

    log: str
    """Id of the log, drawn at its first export; the folder has it too."""
    done_seq: int = 0
    """Batches up to this number are in their files, or had no events."""
    plan: FilePlan | None = None

    def known_seq(self) -> int:
        """Return the highest number of a batch that can be in the folder."""
        return self.done_seq if self.plan is None else max(self.done_seq, self.plan.last_seq)

    def text(self) -> str:
        """Return the note as the store keeps it."""
        return json.dumps({"format": _FORMAT, **asdict(self)})


def read_note(text: str) -> ExportNote:
    """Return a note that was kept.

    Raises:
        NoteUnreadable: A newer version wrote it.
    """
    content = json.loads(text)
    if content["format"] > _FORMAT:
        raise NoteUnreadable
    plan = content["plan"]
    return ExportNote(
        log=content["log"],
        done_seq=content["done_seq"],
        plan=None
        if plan is None
        else FilePlan(first_seq=plan["first_seq"], last_seq=plan["last_seq"], path=plan["path"]),
    )
