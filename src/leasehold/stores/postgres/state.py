"""What the verbs of a PostgreSQL store share, on one server of many."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, cast

from leasehold.domain import commands as c
from leasehold.domain.command import AnyCommand
from leasehold.domain.model import KEY_BYTES, Message, Phase, row_key_of
from leasehold.domain.sessions import Heartbeat
from leasehold.stores.postgres.cursor import Cursor, array_of
from leasehold.stores.sql.catalog import Catalog, Entry, Lane, Timeline
from leasehold.stores.sql.recorder import ENCODE, Recorder
from leasehold.stores.sql.state import State

BLOCK: Final = 65_536
"""Row keys are taken in blocks, each by one server."""
_MAX_LOCKS: Final = 1_024
"""PostgreSQL has room for some 6,400, of all servers; a batch with more has the store to itself."""
_TO_TAKE: Final = {
    "next_visible": "next_visible_to_take",
    "group_heads": "group_heads_to_take",
}
_KEPT_IN_MEMORY: Final = (
    *("insert_queue", "delete_queue", "move_queue", "set_lanes"),
    *("set_metadata", "set_policies", "set_settings", "set_meta"),
    *("keep_stream", "set_stream", "drop_stream", "keep_claim", "drop_claim"),
    *("keep_slot", "forget_slot", "keep_bound", "forget_bound"),
    *("keep_session", "forget_session"),
    *("keep_halt", "drop_halt", "forget_halts", "keep_hold", "end_hold", "forget_holds"),
)
"""Statements that change what every server keeps in memory."""
_OF_LOG: Final = 0
"""Partition under which the bytes of events are counted."""


class NotExclusive(Exception):
    """The batch must have the store to itself.

    It changes what all servers keep in memory, or would take too many locks.
    """


class SharedState(State):
    """As :class:`State`, while other servers write to the same database.

    A batch on messages shares the store with those of other servers: its statements lock the rows
    that they are about to change. Whatever changes what all servers keep in memory has the store
    to itself; the others read it anew, when they see that the version has changed.
    """

    log: SharedRecorder
    removes_all_from = sys.maxsize
    """Never: one statement removes a run and says what it has removed."""
    late_us = 60_000_000
    """A server that was stopped after the time of its batch was checked carries on with that."""

    def __init__(self, cursor: Cursor, queries: dict[str, str]) -> None:
        super().__init__(cursor, queries, SharedCatalog())
        cursor.guard({queries[name] for name in _KEPT_IN_MEMORY}, self._guard)
        self.log = SharedRecorder(cursor, queries)
        self.exclusive = True
        """Whether this batch has the store to itself."""
        self.taking = False
        """Whether messages are looked for to take them."""
        self.now_ms = 0
        """The time of the open batch."""
        self.changed = False
        """Whether the batch has changed what other servers keep in memory."""
        self.slot = 0
        """Of this server, for what it counts."""
        self._block_end = 0

    # --- reading -----------------------------------------------------------------------------

    def count_retired(self) -> None:
        """Count what is retired in a store in which that was not done; called with the store
        locked.

        That is one written by 0.1, or one that an account or all of a store was moved to.
        """
        self.cursor.execute(self.sql["forget_retired_counts"])
        self.cursor.execute(self.sql["count_retired"])
        self.set_meta("retired_counted", 1)

    def begin_store(self) -> None:
        """Make what a new store needs; called with the store locked."""
        meta = self._read_meta()
        if "receipt_key" not in meta:
            self.set_meta("receipt_key", secrets.token_bytes(KEY_BYTES))
            self.set_meta("epoch", 1)
        if "retired_counted" not in meta:
            self.count_retired()

    def ends_of_holds(self) -> list[int]:
        """See :meth:`State.ends_of_holds`."""
        return [end_ms for (end_ms,) in self.fetch("ends_of_holds")]

    def _read_meta(self) -> dict[str, Any]:
        rows = self.cursor.execute(self.sql["load_meta"])
        return {name: number if content is None else content for name, number, content in rows}

    def load(self) -> None:
        """Read everything that is kept in memory."""
        meta = self._read_meta()
        self._load(meta)
        self.epoch = meta["epoch"]
        self._last_token = meta.get("last_token", 0)
        if self._next_row_key <= meta["row_keys_after"]:
            self._block_end = 0  # a job means all keys up to there; those left are not used
        self.forget_batch()

    def forget_batch(self) -> None:
        """Forget what an undone batch has counted and recorded."""
        for entry in self.touched:
            if isinstance(entry, SharedEntry):
                entry.message_count, entry.retired = entry.noted_count, entry.noted_retired
        self.touched.clear()
        self.touched_claims.clear()
        self.restore_buckets()
        self.log.clear()
        self.changed = False

    def refresh_counts(self, names: Iterable[tuple[str, str]]) -> None:
        """Read how many messages some queues have, and their poison queues, on all servers."""
        entries: dict[int, Entry] = {}
        for name in names:
            entry = self.catalog.find(*name)
            for each in (entry, entry and self.catalog.poison_of(entry)):
                if each is not None:
                    entries[each.partition] = each
        wanted = [*entries, *(-partition for partition in entries)]
        rows = dict(self.fetch("read_counts", (wanted,))) if entries else {}
        for partition, entry in entries.items():
            entry.message_count = rows.get(partition, 0)
            entry.retired = rows.get(-partition, 0)
            _note_counts(cast("SharedEntry", entry))

    def fetch(self, query: str, bounds: tuple[object, ...] = ()) -> list[Any]:
        """Run a query and return its rows."""
        if query == "oldest_in_phase":
            bounds = *bounds, self.now_ms  # what is visible is in no such phase
        if self.taking and not self.exclusive:
            query = _TO_TAKE.get(query, query)
        return self.cursor.execute(self.sql[query], bounds).fetchall()

    def keys_of(self, row_keys: Iterable[int]) -> object:
        """Return numbers as one value that statements can look them up in."""
        return array_of(tuple(row_keys))

    def names_of(self, names: Sequence[str]) -> object:
        """Return texts as one value that statements can look them up in."""
        return array_of(names)

    def timeline(self, entry: Entry, now_ms: int) -> Timeline:
        """Count what is invisible in a queue."""
        first_ms = now_ms // 1000 * 1000
        return Timeline(
            now_ms,
            [
                row
                for lane in entry.lanes
                for row in self.fetch("timeline", (lane.partition, first_ms))
            ],
        )

    def retired(self, entry: Entry) -> int:
        """Return how many rows of a queue are retired, as read when the batch began."""
        return cast("SharedEntry", entry).retired

    def lock_named(self, batch: Sequence[AnyCommand]) -> None:
        """Lock the deduplication keys and the messages that the commands of a batch name.

        They would lock them one by one in their own order, and two servers whose clients name the
        same ones in different orders would wait for each other.

        Raises:
            NotExclusive: There are too many keys to lock each.
        """
        puts = [
            (entry.scope, command.detail.dedup_key)
            for command in _each_of(batch)
            if type(command) is c.Put and command.detail.dedup_key is not None
            if (entry := self.catalog.find(command.account, command.queue)) is not None
        ]
        if len(puts) > _MAX_LOCKS:
            raise NotExclusive
        if puts:
            scopes, keys = zip(*puts, strict=True)
            self.cursor.execute(self.sql["lock_keys"], (array_of(scopes), array_of(keys)))
        # A run of completes is one statement, which takes them in order.
        if _CROSSING.isdisjoint(map(type, batch)):
            return
        row_keys = {key for command in _each_of(batch) for key in _row_keys_of(command)}
        if len(row_keys) > 1:
            self.cursor.execute(self.sql["lock_messages"], (self.keys_of(row_keys),))

    def lock_groups(self, entry: Entry, groups: Sequence[str]) -> Sequence[str]:
        """See :meth:`State.lock_groups`."""
        if self.exclusive:
            return groups
        rows = self.fetch("try_lock_groups", (entry.scope, self.names_of(groups)))
        return [name for (name,) in rows]

    # --- row keys ----------------------------------------------------------------------------

    def take_row_keys(self, count: int) -> int:
        """Return the first of *count* row keys that follow each other; none are taken for 0."""
        first = self._next_row_key
        if count and first + count > self._block_end:
            blocks = [self.value("take_block") for _ in range(-(-count // BLOCK))]
            while blocks[-1] - blocks[0] != len(blocks) - 1:  # another server was in between
                blocks = [*blocks[1:], self.value("take_block")]
            first = blocks[0] * BLOCK + 1
            self._block_end = (blocks[-1] + 1) * BLOCK + 1
        self._next_row_key = first + count
        return first

    def drop_block(self) -> None:
        """Use no more of the row keys that were taken."""
        self._block_end = 0

    @property
    def last_row_key(self) -> int:
        """The highest row key that any server may have handed out; later ones will be higher."""
        last = int(self.value("take_block")) * BLOCK
        self.set_meta("row_keys_after", last)
        self._block_end = 0
        return last

    # --- what other servers keep in memory ---------------------------------------------------

    def _guard(self) -> None:
        """Let nothing be changed that other servers keep in memory, unless they cannot look."""
        if not self.exclusive:
            raise NotExclusive
        self.changed = True

    def set_meta(self, name: str, value: int | str | bytes) -> None:
        """Keep a value under a name."""
        if name == "last_seen_ms":
            self.cursor.execute(self.sql["note_meta"], (name, value))
            return
        number, content = (value, None) if isinstance(value, int) else (None, value)
        self.cursor.execute(self.sql["set_meta"], (name, number, content))

    def set_retired_until(self, moment_ms: int) -> None:
        """Note that everything that expired before *moment_ms* has been retired.

        Servers that learn of it later look at some rows in vain; of an earlier moment, which comes
        of a message put when the clock was set back, they must know.
        """
        is_later, self.retired_until_ms = moment_ms >= self.retired_until_ms, moment_ms
        if is_later:
            self.cursor.execute(self.sql["note_meta"], ("retired_until_ms", moment_ms))
        else:
            self.set_meta("retired_until_ms", moment_ms)

    def renew_mark(self, new_mark: str) -> None:
        """Do nothing: there is no file beside this database that a mark could be compared with."""

    def note_log(self) -> None:
        """Do nothing: each batch writes down how many bytes of events there are."""

    def drop_partition(self, entry: Entry) -> None:
        """Leave the messages of a queue to the reaper."""
        super().drop_partition(entry)
        self.cursor.execute(self.sql["forget_counts"], (entry.partition,))

    # --- the end of a batch ------------------------------------------------------------------

    def write_down(self, now_ms: int) -> None:
        """Write the events of the batch, and what it has changed of the counts.

        The last row of events and the counts go together: each statement is a round trip.
        """
        rows = self.log.take()
        deltas = self._deltas()
        if rows:
            *others, last = rows
            for row in others:
                self._keep_events("keep_events", now_ms, row)
            self._keep_events("keep_events_and_counts", now_ms, last, self._counts(deltas))
        elif deltas:
            self.add_counts(deltas)
        for held in tuple(self.touched_claims):
            self.keep_claim(held)

    def _keep_events(
        self, query: str, now_ms: int, row: tuple[int, bytes], more: tuple[object, ...] = ()
    ) -> None:
        count, content = row
        seq = self.value(query, (now_ms, count, len(content), content, *more))
        self.log.wrote(seq, content)

    def _deltas(self) -> dict[int, int]:
        """Return what the batch has changed of the numbers of messages, and of bytes of events."""
        deltas: dict[int, int] = {}
        for entry in self.touched:
            assert isinstance(entry, SharedEntry)
            for partition, change in (
                (entry.partition, entry.message_count - entry.noted_count),
                (-entry.partition, entry.retired - entry.noted_retired),
            ):
                if change:
                    deltas[partition] = deltas.get(partition, 0) + change
        if self.log.grown:
            deltas[_OF_LOG] = self.log.grown
        return deltas

    def _counts(self, deltas: dict[int, int]) -> tuple[object, ...]:
        """Return the bounds of a statement that adds to counts."""
        return self.slot, array_of(list(deltas)), array_of(list(deltas.values()))

    def add_counts(self, deltas: dict[int, int]) -> None:
        """Add numbers to what this server has counted, by partition."""
        self.cursor.execute(self.sql["add_counts"], self._counts(deltas))

    def committed(self) -> None:
        """Note that what the batch has counted is written down."""
        for entry in self.touched:
            _note_counts(cast("SharedEntry", entry))
        self.touched.clear()
        self.buckets.clear()
        if self.turns:
            self.keep_turns(done=True)
        self.log.committed()
        self.changed = False


def _note_counts(entry: SharedEntry) -> None:
    """Note that what is counted of a queue is written down."""
    entry.noted_count, entry.noted_retired = entry.message_count, entry.retired


_CROSSING: Final = frozenset({c.Renew, c.Release, c.Batch, Heartbeat})
"""Commands that lock the messages they name in an order of their own."""


def _each_of(batch: Sequence[AnyCommand]) -> Iterator[AnyCommand]:
    for command in batch:
        yield from command.subcommands() or (command,)


def _row_keys_of(command: Any) -> Iterator[int]:
    if type(command) in {c.Complete, c.Renew, c.Release}:
        ids: Iterable[str] = (command.message_id,)
    else:
        ids = command.progress or () if type(command) is Heartbeat else ()
    return (key for key in map(row_key_of, ids) if key is not None)


# --- catalog -----------------------------------------------------------------------------------
#
# The queues of a PostgreSQL store in the memory of one server of many.
#
# What a server finds out while it receives, others make untrue without a word. So lanes remember
# only for a moment where the first visible message was, and what is invisible is counted anew each
# time.


TRUST_MS: Final = 250
"""How long a search begins where the last one has found something.

Before that place lie the entries of messages that were completed since the last vacuum, hundreds of
thousands after a minute of batches; a search that walks over them takes as long as all else. What
another server gives back with an earlier moment, because it committed late or its clock is behind,
is found after this time, or as soon as a search does not find as much as it wants.
"""
_BEHIND_MS: Final = 100
"""How far behind us the clock and the commits of other servers typically are, at the most."""


class SharedLane(Lane):
    """A lane that other servers write to as well."""

    __slots__ = ("_looked_at_ms",)

    is_sure = False

    def forget_scan(self) -> None:
        """Take it that any message may be alive."""
        self.live_from_ms = self.scanned_at_ms = self._looked_at_ms = 0

    @property
    def oldest_from_ms(self) -> list[int]:  # type: ignore[override]
        """By phase, the beginning of time: what is noted here is forgotten at once."""
        return [0] * len(Phase)

    def scanned(self, now_ms: int, first_visible_ms: int | None, *, found_all: bool) -> None:
        """Remember where to begin for a moment, if there is more than was looked for."""
        if not self.live_from_ms:
            self._looked_at_ms = now_ms
        self.scanned_at_ms = now_ms
        if found_all or first_visible_ms is None or now_ms - self._looked_at_ms >= TRUST_MS:
            self.live_from_ms = 0
        else:
            self.live_from_ms = min(first_visible_ms, now_ms - _BEHIND_MS)

    def leased_since(self, now_ms: int) -> None:
        """Remember nothing."""

    def written(self, message: Message) -> None:
        """Note that a message was put, or given back, as it is now."""
        self.live_from_ms = min(self.live_from_ms, message.visible_at_ms)


class SharedEntry(Entry):
    """A queue that other servers put to and receive from as well."""

    lane_type = SharedLane

    __slots__ = ("noted_count", "noted_retired")

    retired: int

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self.noted_count = self.message_count
        """The count when it was last written down, so that the difference can be."""
        self.retired = self.noted_retired = 0


class SharedCatalog(Catalog):
    """Queues by (account, name)."""

    entry_type = SharedEntry

    def move(self, entry: Entry, partition: int) -> None:
        """Give a queue a new, empty partition."""
        super().move(entry, partition)
        assert isinstance(entry, SharedEntry)
        entry.noted_count = entry.noted_retired = 0


# --- recorder ----------------------------------------------------------------------------------
#
# The events of a batch, numbered by the database.


class SharedRecorder(Recorder):
    """Collects the events of the open batch.

    A batch takes its number last, when it has locked all that it changes. So of two batches that
    changed the same message the later one has the higher number. Whoever reads the log has the
    store to himself: no lower number can appear behind his back.
    """

    def load(self) -> None:
        """Begin anew."""
        self.clear()
        rows = self._cursor.execute(self._sql["last_event_batch"]).fetchall()
        ((last_seq,),) = rows or [(0,)]
        self.last_seq = cast("int", last_seq)
        ((size,),) = self._cursor.execute(self._sql["log_size"]).fetchall()
        self.bytes_kept = cast("int", size)

    def clear(self) -> None:
        """Forget what was collected."""
        super().clear()
        self.grown = 0
        self.written: tuple[int, bytes] | None = None
        """Number and content of the last row that the open batch has written."""

    def committed(self) -> None:
        """Note that what was written stays."""
        self.grown = 0
        self.written = None

    def trimmed(self, size: int) -> None:
        """Note that so many bytes are forgotten with the open batch."""
        self.grown -= size

    def take(self) -> list[tuple[int, bytes]]:
        """Return what was collected as one row, or several if it is very much.

        Returns:
            Of each row how many events it is of, and its content.
        """
        if not self._events:
            return []
        queues = list(self._queues)
        rows = [(count, ENCODE([queues, events])) for count, events in self._rows()]
        super().clear()
        self.grown += sum(len(content) for _, content in rows)
        return rows

    def wrote(self, seq: int, content: bytes) -> None:
        """Note what number a row was given."""
        self.last_seq = seq
        self.written = seq, content
