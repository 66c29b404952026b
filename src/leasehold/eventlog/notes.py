"""What an exporter keeps in the store: how far it came, and which file it is about to write.

A file is planned in the store before it is written, and noted as done once it is in its place.
After a crash the same plan is carried out again, and makes the same file. Standard library only.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Final

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
