"""One Parquet file of events: gathered in bounded memory, written whole or not at all."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import takewhile
from operator import attrgetter
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from leasehold.disk import sync
from leasehold.domain.events import Event
from leasehold.eventlog.names import HOUR_MS, TEMPORARY, file_of, folder_of, hour_of
from leasehold.eventlog.schema import METADATA, SCHEMA, batch_of

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
