"""Exported events in Parquet files, and how they are made from events and read back.

New columns come at the end, and readers ask for columns by name, so that neither adding one nor
reading an older file needs a new number of the format.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import takewhile
from operator import attrgetter
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from leasehold.disk import sync
from leasehold.domain.events import COLUMNS, EVENT_FORMAT, Event, EventType, Kind
from leasehold.events.names import (
    FIELDS,
    FORMAT_KEY,
    HOUR_MS,
    TEMPORARY,
    TYPE_NAMES,
    WORDS,
    FormatTooNew,
    date_in,
    file_of,
    folder_of,
    hour_in,
    hour_of,
    range_of,
)

MOMENT: Final = pa.timestamp("ms", tz="UTC")

_ARROW: Final = {
    Kind.INT8: pa.int8(),
    Kind.INT32: pa.int32(),
    Kind.INT64: pa.int64(),
    Kind.TEXT: pa.string(),
    Kind.MOMENT: MOMENT,
    Kind.TYPE: pa.string(),
    Kind.PHASE: pa.string(),
}
SCHEMA: Final = pa.schema([(name, _ARROW[COLUMNS[of].kind]) for name, of in FIELDS.items()])
"""In the order of the fields of :class:`leasehold.domain.events.Event`."""
METADATA: Final = {FORMAT_KEY: str(EVENT_FORMAT).encode()}

_TYPES: Final = {name: EventType(number) for number, name in TYPE_NAMES.items()}
_VALUES: Final = {
    name: {shown: value for value, shown in words.items()} for name, words in WORDS.items()
}
"""What was shown, by the names of fields; that none stands for a value holds for messages only."""


def batch_of(events: Sequence[Event]) -> pa.RecordBatch:
    """Return one row for each event; there is at least one."""
    arrays = []
    for field, kind, column in zip(
        Event._fields, SCHEMA.types, zip(*events, strict=True), strict=True
    ):
        words = WORDS.get(field)
        shown = column if words is None else list(map(words.get, column, column))
        arrays.append(pa.array(shown, kind))
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def events_of(table: pa.Table) -> Iterator[Event]:
    """Return the events that rows were made from, exactly as the store gave them out.

    Args:
        table: With the columns of :data:`SCHEMA`, in any order.

    Raises:
        KeyError: A row has a type that this version does not know.
    """
    table = table.select(SCHEMA.names)
    columns = [
        column.cast(pa.int64()) if field.type == MOMENT else column
        for field, column in zip(SCHEMA, table.columns, strict=True)
    ]
    for row in zip(*(column.to_pylist() for column in columns), strict=True):
        fields: dict[str, Any] = dict(zip(Event._fields, row, strict=True))
        kind = _TYPES[fields["type"]]
        if fields["message_id"] is not None:
            for name, values in _VALUES.items():
                fields[name] = values.get(fields[name], fields[name])
        yield Event(**{**fields, "type": kind})


# --- reading -----------------------------------------------------------------------------------
#
# Reading exported events: hours by their folders, row groups by what they can hold.


def read_table(  # noqa: PLR0913 - keyword-only, and each is a condition of its own
    folder: Path,
    *,
    message_id: str | None,
    account: str | None,
    queue: str | None,
    since_ms: int | None,
    until_ms: int | None,
) -> pa.Table:
    """See :func:`leasehold.events.read`."""
    if not folder.is_dir():
        raise FileNotFoundError(f"there is no folder {folder}")
    conditions = [
        pc.field(name) == value
        for name, value in (("message_id", message_id), ("account", account), ("queue", queue))
        if value is not None
    ]
    if since_ms is not None:
        conditions.append(pc.field("happened_at") >= pa.scalar(since_ms, MOMENT))
    if until_ms is not None:
        conditions.append(pc.field("happened_at") < pa.scalar(until_ms, MOMENT))
    paths = [str(path) for path in files_of(folder, since_ms, until_ms)]
    if not paths:
        return SCHEMA.empty_table()
    dataset = ds.dataset(paths, schema=SCHEMA, format="parquet")
    for fragment in dataset.get_fragments():
        check_format(fragment.path, fragment.metadata)
    condition: Any = None
    for each in conditions:
        condition = each if condition is None else condition & each
    table = dataset.to_table(filter=condition)
    return table.sort_by([("seq", "ascending"), ("place", "ascending")])


def files_of(folder: Path, since_ms: int | None, until_ms: int | None) -> Iterator[Path]:
    """Yield the files whose hours touch a span of time, in the order of time."""
    for day, hour, path in sorted(_hours(folder)):
        first = hour_of(int(datetime(day[0], day[1], day[2], hour, tzinfo=UTC).timestamp() * 1000))
        if since_ms is not None and (first + 1) * HOUR_MS <= since_ms:
            continue
        if until_ms is not None and first * HOUR_MS >= until_ms:
            continue
        yield from sorted(file for file in path.iterdir() if range_of(file.name))


def _hours(folder: Path) -> Iterator[tuple[tuple[int, int, int], int, Path]]:
    for of_day in folder.iterdir():
        day = date_in(of_day.name)
        if day is not None:
            for of_hour in of_day.iterdir():
                hour = hour_in(of_hour.name)
                if hour is not None:
                    yield (day.year, day.month, day.day), hour, of_hour


def check_formats(paths: Iterable[str]) -> None:
    """Check that this version can read files of events, by what stands at their ends.

    Raises:
        FormatTooNew: A newer version has written one of them.
        OSError: One cannot be read.
        pyarrow.ArrowInvalid: One is no Parquet.
    """
    for path in paths:
        try:
            footer = pq.read_metadata(path)
        except pa.ArrowInvalid as error:
            raise pa.ArrowInvalid(f"{path}: {error}") from None
        check_format(path, footer)


def check_format(path: str, footer: pq.FileMetaData) -> None:
    """Check that this version can read a file of events, by what stands at its end.

    Raises:
        FormatTooNew: It was written by a newer version in a way that could be misunderstood.
    """
    number = int((footer.metadata or {}).get(FORMAT_KEY, b"1"))
    if number > EVENT_FORMAT:
        raise FormatTooNew(path, number)


# --- writing -----------------------------------------------------------------------------------
#
# One Parquet file of events: gathered in bounded memory, written whole or not at all.


MAX_ROWS: Final = 131_072
"""Events of one file: some 50 MB while it is made, 2 MB when it is there. It can only be more if a
single batch has more."""
ROW_GROUP_ROWS: Final = 16_384
"""Whoever looks for one message reads so many rows of a file."""

_ORDER: Final = (("message_id", "ascending"), ("seq", "ascending"), ("place", "ascending"))
_SEQ: Final = attrgetter("seq")


class FileBuilder:
    """Gathers what goes into one file: whole batches with rising numbers, all of one hour.

    Args:
        max_rows: Events after which it is full.
        upto_seq: Number of the last batch to take, if that is known, whatever *max_rows* says.
    """

    def __init__(self, *, max_rows: int = MAX_ROWS, upto_seq: int | None = None) -> None:
        self.rows = 0
        self.first_seq = 0
        self.last_seq = 0
        self.until_ms = 0
        """When the last batch was made."""
        self._max_rows = max_rows
        self._upto_seq = upto_seq
        self._hour = 0
        self._parts: list[pa.RecordBatch] = []

    @property
    def path(self) -> str:
        """The file's place in the folder of the export."""
        return f"{folder_of(self._hour)}/{file_of(self.first_seq, self.last_seq)}"

    def add(self, events: Sequence[Event]) -> bool:
        """Take what fits, in the order of the log; tell whether that was everything.

        Args:
            events: Whole batches, that is with all of each batch's events.
        """
        if not events:
            return True
        if not self.rows:
            self._hour = hour_of(events[0].at_ms)
        count = self._count_fitting(events)
        if count:
            self._parts.append(batch_of(events[:count]))
            self.first_seq = self.first_seq or events[0].seq
            self.last_seq = events[count - 1].seq
            self.until_ms = events[count - 1].at_ms
            self.rows += count
        return count == len(events)

    def _count_fitting(self, events: Sequence[Event]) -> int:
        count = len(events)
        if self._upto_seq is not None:
            return bisect_right(events, self._upto_seq, key=_SEQ)
        if {event.at_ms // HOUR_MS for event in events} != {self._hour}:
            count = sum(1 for _ in takewhile(lambda e: hour_of(e.at_ms) == self._hour, events))
        room = self._max_rows - self.rows
        if count <= room:
            return count
        # Up to the last batch that fits whole; a first one is taken in any case.
        while room > 0 and events[room].seq == events[room - 1].seq:
            room -= 1
        if room <= 0 and not self.rows:
            return bisect_right(events, events[0].seq, key=_SEQ)
        return max(room, 0)

    def write(self, root: Path) -> int:
        """Write the file to its place under *root*, durably; return its size in bytes.

        It is there whole or not at all, whatever happens. One that was there is replaced. The
        builder is of no more use afterwards.

        Raises:
            OSError: It cannot be written.
        """
        target = root / self.path
        temporary = root / TEMPORARY / f"{target.name}.partial"
        temporary.parent.mkdir(exist_ok=True)
        try:
            self._write_rows(temporary)
            size = temporary.stat().st_size
            sync(temporary)
            target.parent.mkdir(parents=True, exist_ok=True)
            temporary.replace(target)
        finally:
            temporary.unlink(missing_ok=True)
        confirm(root, self.path)
        return size

    def _write_rows(self, path: Path) -> None:
        table = pa.Table.from_batches(self._parts, SCHEMA).combine_chunks()
        self._parts.clear()
        order = pc.sort_indices(table, sort_keys=list(_ORDER))
        with pq.ParquetWriter(
            path,
            SCHEMA.with_metadata(METADATA),
            compression="zstd",
            write_page_index=True,
        ) as writer:
            for start in range(0, len(order), ROW_GROUP_ROWS):
                writer.write_table(table.take(order[start : start + ROW_GROUP_ROWS]))
        del table, order
        pa.default_memory_pool().release_unused()


def confirm(root: Path, path: str) -> bool:
    """Tell whether a file is in its place; if so, make that durable.

    The folders on the way are synced whether or not they are new: whoever made them may have been
    killed before it came to that.
    """
    target = root / path
    if not target.exists():
        return False
    for folder in (target.parent, target.parent.parent, root):
        sync(folder)
    return True
