"""What the verbs of a SQLite store share."""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable, Iterable
from typing import Any, Final

import apsw

from leasehold.stores.sql.catalog import Catalog, Entry, Timeline
from leasehold.stores.sql.state import State
from leasehold.stores.sqlite.connection import is_restored

_BLOCK: Final = 65_536
"""Row keys are reserved in blocks, so that a restart never uses one twice and puts need not write
a counter each time."""
_EPOCH_BITS: Final = 32
"""Tokens are drawn from 2**32 of each epoch of the database."""


class SqliteState(State):
    """Shared state of one store, whose one connection is the only one that writes."""

    cursor: apsw.Cursor

    def __init__(
        self,
        cursor: apsw.Cursor,
        queries: dict[str, str],
        catalog: Catalog,
        keep_mark: Callable[[str], None],
    ) -> None:
        super().__init__(cursor, queries, catalog)
        self._keep_mark = keep_mark
        self._reserved = 0
        self._has_loaded = False

    def mark(self, beside: str | None, new_mark: str, new_key: bytes) -> bool:
        """Mark the database as opened; see :mod:`leasehold.stores.sqlite.connection`.

        Args:
            beside: The mark in the file beside the database, or None.
            new_mark: A mark that has never been used.
            new_key: Key that seals the receipts of a new epoch.

        Returns:
            Whether the database was restored from a backup. It is then in a new epoch.
        """
        meta = self._read_meta()
        restored_from_backup = is_restored(beside, meta.get("mark"), meta.get("last_mark"))
        if restored_from_backup or "receipt_key" not in meta:
            self.set_meta("receipt_key", new_key)
        self.set_meta("epoch", meta.get("epoch", 1) + restored_from_backup)
        self.set_meta("event_bytes", meta.get("event_bytes", 0))
        # What the file holds until it is replaced, so that a crash before that is no restore.
        self.set_marks(new_mark, beside or "")
        return restored_from_backup

    def set_marks(self, mark: str, last_mark: str) -> None:
        """Write the marks that the file beside the database may hold."""
        self.set_meta("last_mark", last_mark)
        self.set_meta("mark", mark)

    def renew_mark(self, new_mark: str) -> None:
        """Let the file catch up with the database and mark the database anew."""
        mark = self._read_meta()["mark"]
        try:
            self._keep_mark(mark)
        except OSError:  # a full disk: the marks that are there still match
            return
        self.set_marks(new_mark, mark)

    def is_restored(self, beside: str | None) -> bool:
        """Tell whether the database was restored, without marking it; it must have a key."""
        meta = self._read_meta()
        restored_from_backup = is_restored(beside, meta.get("mark"), meta.get("last_mark"))
        return restored_from_backup or "receipt_key" not in meta

    def _read_meta(self) -> dict[str, Any]:
        return {str(name): value for name, value in self.cursor.execute(self.sql["load_meta"])}

    def load(self) -> None:
        """Read everything from the database, at the start and after an undone batch."""
        self.restore_buckets()
        meta = self._read_meta()
        self._load(meta)
        self.epoch = meta.get("epoch", 1)  # an older store on a full disk has not been marked
        self._reserved = meta["row_keys_reserved"]
        # Never below what was handed out already: keys of an undone batch are not used again.
        self._next_row_key = max(self._next_row_key, self._reserved + 1)
        # Above all that the same queue may have given out after the copy was made.
        self._last_token = max(meta.get("last_token", 0), (self.epoch - 1) << _EPOCH_BITS)
        self.touched.clear()
        self.touched_claims.clear()
        if not self._has_loaded:
            self._has_loaded = True
            # What was written since the last note is added up: after a crash as well, it is exact.
            noted_seq = meta.get("event_bytes_seq")
            noted = 0 if noted_seq is None else meta["event_bytes"]
            ((more,),) = self.fetch("log_bytes", (noted_seq or 0,))
            self.log.bytes_kept = noted + more
        self.log.load()

    @staticmethod
    def keys_of(row_keys: Iterable[int]) -> object:
        """Return numbers as one value that statements can look them up in."""
        return apsw.carray(array("q", row_keys))

    def set_meta(self, name: str, value: int | str | bytes) -> None:
        """Keep a value under a name."""
        self.cursor.execute(self.sql["set_meta"], (name, value))

    def note_log(self) -> None:
        """Write down how many bytes of events there are, for the next start.

        Those of the open batch are not among them yet.
        """
        self.set_meta("event_bytes", self.log.bytes_kept)
        self.set_meta("event_bytes_seq", self.log.last_seq)

    @property
    def last_row_key(self) -> int:
        """The highest row key handed out."""
        return self._next_row_key - 1

    def take_row_keys(self, count: int) -> int:
        """Return the first of *count* row keys that follow each other."""
        first = self._next_row_key
        self._next_row_key += count
        if self._next_row_key > self._reserved + 1:
            self._reserved = self._next_row_key + _BLOCK
            self.set_meta("row_keys_reserved", self._reserved)
        return first

    def timeline(self, entry: Entry, now_ms: int) -> Timeline:
        """Return the timeline of a queue as of now, read from its rows if need be."""
        timeline = entry.timeline
        if timeline is None or not timeline.advance(now_ms):
            first_ms = now_ms // 1000 * 1000
            timeline = entry.timeline = Timeline(
                now_ms,
                [
                    row
                    for lane in entry.lanes
                    for row in self.fetch("timeline", (lane.partition, first_ms))
                ],
            )
        return timeline

    def retired(self, entry: Entry) -> int:
        """Return how many rows of a queue are retired, counted in its index the first time."""
        if entry.retired is None:
            lanes = json.dumps([lane.partition for lane in entry.lanes])
            entry.retired = int(self.fetch("retired", (lanes, -1))[0][0])
        return entry.retired

    def write_down(self, now_ms: int) -> None:
        """Write the events of the batch, and the message counts that it has changed."""
        if self.touched:
            self.cursor.executemany(
                self.sql["set_count"],
                [
                    (entry.message_count, entry.queue.account, entry.queue.name)
                    for entry in self.touched
                ],
            )
            self.touched.clear()
        for held in tuple(self.touched_claims):
            self.keep_claim(held)
        self.log.write(now_ms)
