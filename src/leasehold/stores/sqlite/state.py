"""What the verbs of a SQLite store share: cursor, statements, catalog, row keys."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any, Final, cast

import apsw

from leasehold.domain.types import NEVER_MS
from leasehold.stores.moving.marks import away_in, refuse_marked
from leasehold.stores.plain_json import to_plain
from leasehold.stores.sqlite import setwise
from leasehold.stores.sqlite.annexes import Held, StreamBox, load_annexes
from leasehold.stores.sqlite.catalog import Catalog, Entry, Lane, QueueRow
from leasehold.stores.sqlite.epoch import was_put_back
from leasehold.stores.sqlite.recorder import Recorder
from leasehold.stores.timeline import Timeline

_BLOCK: Final = 65_536
"""Row keys are reserved in blocks, so that a restart never uses one twice and puts need not write
a counter each time."""
_EPOCH_BITS: Final = 32
"""Tokens are drawn from 2**32 of each epoch of the database."""


class State:
    """Shared state of one store; counts and row keys taken belong to the open batch."""

    removes_all_from: int = setwise.SET_WISE
    """From so many messages on, looking at all and then removing them is the faster way."""

    def __init__(
        self,
        cursor: apsw.Cursor,
        queries: dict[str, str],
        catalog: Catalog,
        keep_mark: Callable[[str], None],
    ) -> None:
        self.cursor = cursor
        self.sql = queries
        self.catalog = catalog
        self._keep_mark = keep_mark
        self.receipt_key = b""
        self.touched: set[Entry] = set()
        self.touched_claims: set[Held] = set()
        self.log = Recorder(cursor, queries)
        self.is_full = False
        """Whether the disk is full: what can be had in small steps is."""
        self.next_lapse_ms = NEVER_MS
        """When the next claim lapses; the claims' verbs keep it right."""
        self._next_row_key = 0
        self._reserved = 0
        self._last_partition = 0
        self._last_token = 0
        self._has_loaded = False
        self.retired_until_ms = 0
        self.last_seen_ms = 0
        self.epoch = 1
        self.away: frozenset[str] = frozenset()
        """Accounts that have moved to another store."""

    def mark(self, beside: str | None, new_mark: str, new_key: bytes) -> bool:
        """Mark the database as opened; see :mod:`leasehold.stores.sqlite.epoch`.

        Args:
            beside: The mark in the file beside the database, or None.
            new_mark: A mark that has never been used.
            new_key: Key that seals the receipts of a new epoch.

        Returns:
            Whether the database was put back from a copy. It is then in a new epoch.
        """
        meta = self._read_meta()
        put_back = was_put_back(beside, meta.get("mark"), meta.get("last_mark"))
        if put_back or "receipt_key" not in meta:
            self.set_meta("receipt_key", new_key)
        self.set_meta("epoch", meta.get("epoch", 1) + put_back)
        self.set_meta("event_bytes", meta.get("event_bytes", 0))
        # What the file holds until it is replaced, so that a crash before that is no restore.
        self.set_marks(new_mark, beside or "")
        return put_back

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

    def is_put_back(self, beside: str | None) -> bool:
        """Tell whether the database was put back, without marking it; it must have a key."""
        meta = self._read_meta()
        put_back = was_put_back(beside, meta.get("mark"), meta.get("last_mark"))
        return put_back or "receipt_key" not in meta

    def _read_meta(self) -> dict[str, Any]:
        return {str(name): value for name, value in self.cursor.execute(self.sql["load_meta"])}

    def load(self) -> None:
        """Read everything from the database, at the start and after an undone batch."""
        meta = self._read_meta()
        refuse_marked(meta)
        self.away = away_in(meta)
        self.epoch = meta.get("epoch", 1)  # an older store on a full disk has not been marked
        self.receipt_key = meta["receipt_key"]
        self._reserved = meta["row_keys_reserved"]
        # Never below what was handed out already: keys of an undone batch are not used again.
        self._next_row_key = max(self._next_row_key, self._reserved + 1)
        self._last_partition = meta["last_partition"]
        # Above all that the same queue may have given out after the copy was made.
        self._last_token = max(meta.get("last_token", 0), (self.epoch - 1) << _EPOCH_BITS)
        self.retired_until_ms = meta["retired_until_ms"]
        self.last_seen_ms = meta["last_seen_ms"]
        self.catalog.load(cast("list[QueueRow]", self.fetch("load_queues")))
        load_annexes(self.catalog, self.fetch)
        self.find_next_lapse()
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

    def fetch(self, query: str, bounds: tuple[object, ...] = ()) -> list[Any]:
        """Run a query and return its rows."""
        return self.cursor.execute(self.sql[query], bounds).fetchall()

    @staticmethod
    def keys_of(row_keys: Iterable[int]) -> object:
        """Return numbers as one value that statements can look them up in."""
        return setwise.keys_of(row_keys)

    @staticmethod
    def key_text(key: str) -> str:
        """Return a deduplication key as it is kept."""
        return key

    def set_meta(self, name: str, value: int | str | bytes) -> None:
        """Keep a value under a name."""
        self.cursor.execute(self.sql["set_meta"], (name, value))

    def note_log(self) -> None:
        """Write down how many bytes of events there are, for the next start.

        Those of the open batch are not among them yet.
        """
        self.set_meta("event_bytes", self.log.bytes_kept)
        self.set_meta("event_bytes_seq", self.log.last_seq)

    def set_retired_until(self, moment_ms: int) -> None:
        """Note that everything that expired before *moment_ms* has been retired."""
        self.retired_until_ms = moment_ms
        self.set_meta("retired_until_ms", moment_ms)

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

    def new_partition(self) -> int:
        """Return the number of a partition that has never been used."""
        self._last_partition += 1
        self.set_meta("last_partition", self._last_partition)
        return self._last_partition

    def next_token(self) -> int:
        """Return a token for a stream: higher than all before, also of streams that are gone."""
        self._last_token += 1
        self.set_meta("last_token", self._last_token)
        return self._last_token

    def drop_partition(self, entry: Entry) -> None:
        """Leave the messages of a queue to the reaper."""
        dropped = [(lane.partition,) for lane in entry.lanes]
        self.cursor.executemany(self.sql["drop_partition"], dropped)
        self.touched.discard(entry)

    def open_lane(self, entry: Entry, priority: int) -> Lane:
        """Return the lane of a priority, opened if this is its first message."""
        if not entry.lanes_used >> priority & 1:
            lanes = entry.lanes_used | 1 << priority
            bounds = (lanes, entry.queue.account, entry.queue.name)
            self.cursor.execute(self.sql["set_lanes"], bounds)
            opened = {lane.priority: lane for lane in entry.lanes}
            entry.open_lanes(entry.partition, lanes)
            entry.lanes = [opened.get(lane.priority, lane) for lane in entry.lanes]
        return entry.lane(priority)

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

    def find_next_lapse(self) -> None:
        """Find when the next claim lapses."""
        moments = [
            held.claim.until_ms
            for held in self.catalog.claims.values()
            if not (held.lapsed or held.dissolving)
        ]
        self.next_lapse_ms = min(moments, default=NEVER_MS)

    def keep_stream(self, stream: StreamBox) -> None:
        """Write a stream as it is now."""
        figures = stream.token, stream.last_settled, stream.attached_at_ms, stream.settled_with
        self.cursor.execute(self.sql["set_stream"], (stream.stream_id, *figures))

    def keep_claim(self, held: Held) -> None:
        """Write a claim as it is now."""
        content = {
            "claim": to_plain(held.claim),
            "lapsed": held.lapsed,
            "accepted": held.accepted,
            "dissolving": held.dissolving,
        }
        bounds = (held.partition, held.stream.stream_id, held.lanes_used, json.dumps(content))
        self.cursor.execute(self.sql["keep_claim"], bounds)
        self.touched_claims.discard(held)

    def forget_claim(self, held: Held) -> None:
        """Take a claim without members out, with what is noted of them."""
        self.cursor.execute(self.sql["drop_claim"], (held.partition,))
        self.forget_notes(held)
        self.touched_claims.discard(held)
        del self.catalog.claims[held.partition]
        if held.dissolving:
            self.catalog.dissolving.remove(held)
        else:
            del held.stream.claims[held.claim.number]
        held.entry.claims.remove(held)
        if held.lapsed:
            held.entry.lapsed.remove(held)

    def forget_notes(self, held: Held) -> None:
        """Forget what is noted of the members of a claim."""
        if held.claim.noted:
            self.cursor.execute(self.sql["forget_exemptions"], (held.partition,))

    def write_counts(self) -> None:
        """Write the message counts that the batch has changed."""
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
