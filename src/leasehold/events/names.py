"""What files, folders, columns, types and phases are called. Standard library only.

A file holds whole batches with rising numbers, all of one hour, and is named after the first and
the last of them: whoever exports the same batches again writes the same file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, date, datetime
from typing import Final

from leasehold.domain.events import COLUMNS, EVENT_FORMAT, EventType, Kind
from leasehold.domain.model import Phase

HOUR_MS: Final = 3_600_000
FORMAT_KEY: Final = b"leasehold.format"
"""Key of the file's metadata with the number of the format."""
TEMPORARY: Final = "_tmp"
"""Folder of files that are being written. Readers pass over names that begin with ``_``."""
MARKER: Final = "_leasehold.json"
"""Says which log the folder belongs to."""

TYPE_NAMES: Final = {int(each): each.name.lower().replace("_", "-") for each in EventType}
PHASE_NAMES: Final = {int(each): each.name.lower() for each in Phase}

FIELDS: Final = {
    {"at_ms": "happened_at"}.get(name, name.removesuffix("_ms")): name for name in COLUMNS
}
"""Fields of an event by the names that they have as columns of a table.

These are without ``_ms``, because a moment is a timestamp there; and ``at_ms`` is ``happened_at``,
because ``AT`` is a word of SQL."""

_OF_KIND: Final[Mapping[Kind, Mapping[int, str]]] = {
    Kind.TYPE: TYPE_NAMES,
    Kind.PHASE: PHASE_NAMES,
}
WORDS: Final[Mapping[str, Mapping[int, str | None]]] = {
    **{name: _OF_KIND[each.kind] for name, each in COLUMNS.items() if each.kind in _OF_KIND},
    **{name: {each.none: None} for name, each in COLUMNS.items() if each.none is not None},
}
"""What is shown for values that are not shown as they are, by the names of fields."""

_DATE: Final = re.compile(r"date=(\d{4}-\d\d-\d\d)")
_HOUR: Final = re.compile(r"hour=(\d\d)")
_FILE: Final = re.compile(r"events-(\d{16})-(\d{16})\.parquet")


class FormatTooNew(ValueError):
    """A file of events has a format that this version does not know."""

    def __init__(self, path: str, number: int) -> None:
        super().__init__(
            f"{path} has format {number}, and this version knows {EVENT_FORMAT} and older ones; "
            "read it with the version that wrote it"
        )


def hour_of(at_ms: int) -> int:
    """Return the hour of a moment, counted from 1970."""
    return at_ms // HOUR_MS


def folder_of(hour: int) -> str:
    """Return the folder of an hour: ``date=2026-11-21/hour=09``, in UTC."""
    return f"{datetime.fromtimestamp(hour * HOUR_MS // 1000, tz=UTC):date=%Y-%m-%d/hour=%H}"


def file_of(first_seq: int, last_seq: int) -> str:
    """Return the name of the file with these batches."""
    return f"events-{first_seq:016d}-{last_seq:016d}.parquet"


def range_of(name: str) -> tuple[int, int] | None:
    """Return the numbers of the first and last batch in a file; None if it is not one of ours."""
    match = _FILE.fullmatch(name)
    return (int(match[1]), int(match[2])) if match else None


def date_in(name: str) -> date | None:
    """Return the day that a folder is for, None if it is not for a day."""
    match = _DATE.fullmatch(name)
    try:
        return date.fromisoformat(match[1]) if match else None
    except ValueError:
        return None


def hour_in(name: str) -> int | None:
    """Return the hour of the day that a folder is for, None if it is not for an hour."""
    match = _HOUR.fullmatch(name)
    return int(match[1]) if match else None
