"""Sweeps in a database, each in slices, so that no sweep holds up a client."""

from __future__ import annotations

import json
import secrets
from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from typing import Any, Final

import msgspec

from leasehold.domain import commands as c
from leasehold.domain import events as e
from leasehold.domain.events import EventType
from leasehold.domain.model import id_from_blob, id_to_blob
from leasehold.domain.visibility import after_catching_up
from leasehold.stores.sql.catalog import PARTITION_MASK, Entry, priority_of
from leasehold.stores.sql.recorder import ID_BYTES, SWAPPED, Column, Texts
from leasehold.stores.sql.rows import kept_in, rewrite, uncount
from leasehold.stores.sql.state import BODY_MARK, State, is_held

_NOTED_EVERY_MS: Final = 600_000
_PARTITIONS: Final = 1_000
"""Dropped partitions that one step looks at: most are empty and cost a look-up each."""


class MaintenanceHandlers:
    """Each method carries out one command."""

    def __init__(self, state: State) -> None:
        self._state = state

    def retire_expired(self, command: c.RetireExpired, now_ms: int) -> c.Result:
        """Take expired rows out of the way of receives, oldest first.

        The sweep remembers how far it came, so it never walks over retired rows again.
        """
        state = self._state
        reached_ms = min(state.retired_until_ms, now_ms)
        hidden = [each.partition for each in state.catalog.claims.values() if not each.lapsed]
        hidden += state.catalog.slots
        bounds = (reached_ms, now_ms, command.limit, json.dumps(hidden))
        rows = state.fetch("expired", bounds)
        retired = []
        for (
            row_key, lane, expires_at_ms, own_visible_at_ms, phase, blob, inserted_at_ms, count,
            fence, since_ms, visible_since_ms, renewals, holder, session, detail,
        ) in rows:  # fmt: skip
            entry = state.catalog.of_partition(lane)
            assert entry is not None
            retired.append((row_key, entry.partition))
            held = state.catalog.claims.get(lane & PARTITION_MASK)
            visible_at_ms = own_visible_at_ms if held is None else held.claim.until_ms
            uncount(state, entry, visible_at_ms, phase, held)
            _count_retired(state, entry, 1)
            if entry.logged:
                times = (inserted_at_ms, expires_at_ms, visible_at_ms, count, fence, phase)
                core = (*times, since_ms, visible_since_ms, renewals, holder)
                message_id, priority = id_from_blob(blob), priority_of(lane)
                told = core, priority, session, detail
                state.log.add_one(EventType.EXPIRED, entry, message_id, *told)
        state.cursor.executemany(state.sql["retire"], retired)
        for entry in state.catalog.entries():
            # Also where nothing is counted for a long time, what has passed must not pile up.
            if entry.timeline is not None and not entry.timeline.advance(now_ms):
                entry.timeline = None
        reached_ms = expires_at_ms if len(rows) == command.limit else now_ms
        # An idle server need not write every second; after a restart the sweep looks once more
        # at a few minutes.
        if rows or abs(reached_ms - state.retired_until_ms) > _NOTED_EVERY_MS:
            state.set_retired_until(reached_ms)
        return c.Swept(len(rows))

    def remove_retired(self, command: c.RemoveRetired, _now_ms: int) -> c.Result:
        """Remove rows that have been expired for long enough."""
        state = self._state
        rows = state.fetch("remove_retired", (command.expired_before_ms, command.limit))
        for (lane,) in rows:
            entry = state.catalog.of_partition(lane)
            assert entry is not None
            _count_retired(state, entry, -1)
        return c.Swept(len(rows))

    def reap_dropped(self, command: c.ReapDropped, _now_ms: int) -> c.Result:
        """Remove rows of dropped partitions, and forget a partition once it is empty."""
        state = self._state
        removed = 0
        for (partition,) in state.fetch("dropped_partitions", (_PARTITIONS,)):
            if removed == command.limit:
                break
            wanted = command.limit - removed
            count = self._reap(partition, wanted)
            removed += count
            if count < wanted:
                state.cursor.execute(state.sql["forget_partition"], (partition,))
        return c.Swept(removed)

    def _reap(self, partition: int, limit: int) -> int:
        """Remove rows of a partition, at most so many, and return how many it was."""
        state = self._state
        if "dropped_run" in state.sql:
            ((first, last, count),) = state.fetch("dropped_run", (partition, limit))
            if not count:
                return 0
            if last - first == count - 1:
                state.cursor.execute(state.sql["reap_run"], (first, last))
                return int(count)
        state.cursor.execute(state.sql["reap"], (partition, limit))
        return int(state.cursor.connection.changes())

    def forget_keys(self, command: c.ForgetKeys, now_ms: int) -> c.Result:
        """Forget deduplication keys whose window is over."""
        self._state.cursor.execute(self._state.sql["forget_keys"], (now_ms, command.limit))
        return c.Swept(self._state.cursor.connection.changes())

    def catch_up(self, command: c.CatchUp, now_ms: int) -> c.Result:
        """Make visible what was visible before the clock was set back."""
        state = self._state
        count, after_ms = 0, now_ms + c.AHEAD_MS
        for entry in state.catalog.entries():
            for lane in tuple(entry.lanes):
                bounds = lane.partition, after_ms, command.until_ms, command.limit - count
                for (row_key,) in state.fetch("to_catch_up", bounds):
                    (row,) = state.fetch("get_message", (row_key,))
                    kept = kept_in(state, entry, row)
                    assert kept is not None
                    rewrite(state, kept, after_catching_up(kept.message, command.at_ms))
                    count += 1
        return c.Swept(count)

    def note_time(self, command: c.NoteTime, now_ms: int) -> c.Result:
        """Keep the time for the next start, and mark the database anew."""
        if command.trusted:
            self._state.set_meta("last_seen_ms", now_ms)
        self._state.note_log()
        self._state.renew_mark(secrets.token_hex(16))
        return c.DONE


def _count_retired(state: State, entry: Entry, number: int) -> None:
    """Count rows of a queue that are retired now, or removed."""
    if entry.retired is not None:
        entry.retired += number
        state.touched.add(entry)


# --- eventlog ----------------------------------------------------------------------------------
#
# The event log in a database: what a batch changed is one row, written with the change.
#
# If it is very much, it is several rows.
#
# A row's content is MessagePack: the queues named (account and queue), then the events as
# :data:`leasehold.domain.events.Recorded`. What happens to many messages at once, such as the
# members of a claim, is one item with a column for each field; readers see one event for each
# message.


_DECODE: Final = msgspec.msgpack.Decoder().decode
_SEARCHED_BYTES: Final = 16 * 1024 * 1024
"""Bytes of log that one look may go over to find anything."""
_SHOWN_BYTES: Final = 1024 * 1024
"""Bytes of log after which a page ends that has something: it takes many times as many in memory.
"""


_TAIL_SEARCHED_BYTES: Final = 4 * 1024 * 1024
_TAIL_SHOWN_BYTES: Final = 128 * 1024
"""The same for a look from the newest back, of which there can be several for one page."""


class EventHandlers:
    """Each method carries out one command."""

    def __init__(self, state: State) -> None:
        self._state = state

    def read(self, command: e.ReadEvents, _now_ms: int) -> c.Result:
        """Read events in their order."""
        found: list[e.Event] = []
        reached, looked_at = command.after_seq, 0
        needles = _needles(command.message_id)
        cursor = self._state.cursor.connection.cursor()
        try:
            rows = cursor.execute(self._state.sql["read_events"], (command.after_seq,))
            for seq, at_ms, content in rows:
                if found and (len(found) >= command.limit or looked_at > _SHOWN_BYTES):
                    return e.EventPage(tuple(found), reached, finished=False)
                looked_at += len(content)
                reached = seq
                if not needles or any(needle in content for needle in needles):
                    found += [
                        event
                        for event in events_in(seq, at_ms, content)
                        if command.message_id in {None, event.message_id}
                        and command.account in {None, event.account}
                    ]
                if looked_at > _SEARCHED_BYTES and not found:
                    return e.EventPage((), reached, finished=False)
        finally:
            cursor.close()
        return e.EventPage(tuple(found), reached, finished=True)

    def tail(self, command: e.TailEvents, _now_ms: int) -> c.Result:
        """Read events from the newest back."""
        found: list[e.Event] = []
        reached, looked_at, shown = command.upto_seq + 1, 0, 0
        oldest_at_ms: int | None = None
        needles = _needles(command.message_id)
        place = None if command.queue is None else command.queue.encode()
        bounds = command.upto_seq, e.TAIL_BATCHES
        rows = 0
        cursor = self._state.cursor.connection.cursor()
        try:
            for seq, at_ms, content in cursor.execute(self._state.sql["read_events_back"], bounds):
                if looked_at > _TAIL_SEARCHED_BYTES or shown > _TAIL_SHOWN_BYTES:
                    return e.EventTail(tuple(found), reached - 1, oldest_at_ms)
                rows += 1
                looked_at += len(content)
                reached, oldest_at_ms = seq, at_ms
                if place is not None and place not in content:
                    continue
                if needles and not any(needle in content for needle in needles):
                    continue
                shown += len(content)
                own = [each for each in events_in(seq, at_ms, content) if _is_asked(each, command)]
                found += reversed(own)
        finally:
            cursor.close()
        more = rows == e.TAIL_BATCHES
        return e.EventTail(tuple(found), reached - 1 if more else 0, oldest_at_ms)

    def extent(self, _command: e.LogExtent, _now_ms: int) -> c.Result:
        """Say how much log there is."""
        rows = self._state.fetch("first_event_batch")
        log = self._state.log
        if not rows:
            return e.Extent(log.last_seq + 1 if log.last_seq else 0, log.last_seq, 0, None)
        ((first_seq, first_at_ms),) = rows
        store_bytes = self._state.value("store_bytes")
        return e.Extent(first_seq, log.last_seq, log.bytes_kept, first_at_ms, store_bytes)

    def trim(self, command: e.TrimEvents, _now_ms: int) -> c.Result:
        """Forget the oldest batches; the last one stays, so that its number is not used again."""
        state = self._state
        upto = min(command.upto_seq, state.log.last_seq - 1)
        rows = state.fetch("oldest_events", (upto, command.limit))
        if rows:
            seqs, sizes = zip(*rows, strict=True)
            state.cursor.execute(state.sql["trim_events"], (max(seqs),))
            state.log.trimmed(sum(sizes))
            state.note_log()
        return c.Swept(len(rows))

    def keep_note(self, command: e.KeepNote, _now_ms: int) -> c.Result:
        """Keep a text."""
        self._state.cursor.execute(self._state.sql["keep_note"], (command.name, command.content))
        return c.DONE

    def read_note(self, command: e.ReadNote, _now_ms: int) -> c.Result:
        """Read a text."""
        return e.Note(self._state.value("read_note", (command.name,)))


def _is_asked(event: e.Event, command: e.TailEvents) -> bool:
    return (
        event.account == command.account
        and command.queue in {None, event.queue}
        and command.message_id in {None, event.message_id}
    )


def events_in(seq: int, at_ms: int, content: bytes) -> Iterator[e.Event]:
    """Return the events of a batch, one for each message."""
    queues, recorded = _DECODE(content)
    place = 0
    for each in recorded:
        of = tuple(queues[each[1]])
        if isinstance(each[2], bytes):
            yield from _unpacked(seq, place, at_ms, of, each)
            place += len(each[2]) // ID_BYTES
        else:
            yield e.event_of(seq, place, at_ms, of, tuple(each))
            place += 1


def _needles(message_id: str | None) -> tuple[bytes, ...]:
    """Return what a batch must contain that says anything of a message."""
    if message_id is None:
        return ()
    try:
        return message_id.encode(), id_to_blob(message_id)
    except ValueError:
        return (message_id.encode(),)


def _unpacked(
    seq: int, place: int, at_ms: int, of: tuple[str, str | None], item: Any
) -> Iterator[e.Event]:
    """Return the events of many messages; made at once, because there can be thousands."""
    kind, _, ids, columns, priorities, session, _, reason, target, *more = item
    count = len(ids) // ID_BYTES
    *times, holder = columns
    blobs = [ids[start : start + ID_BYTES] for start in range(0, len(ids), ID_BYTES)]
    alike = [repeat(each) for each in (at_ms, e.EventType(kind), *of)]
    core = [_column(column, count) for column in times]
    rest = [repeat(each) for each in (session, reason, target)]
    types, _, traces, groups, actor = (*more, None, None, None, None, None)[:5]
    errors = [repeat(None)] * 3
    return map(
        e.Event,
        repeat(seq),
        range(place, place + count),
        *alike,
        map(id_from_blob, blobs),
        *core,
        repeat(holder),
        _column(priorities, count),
        *rest,
        _texts(types),
        *errors,
        _texts(traces),
        _texts(groups),
        repeat(actor),
    )


def _texts(said: Texts) -> Iterable[str | None]:
    return said if isinstance(said, list) else repeat(said)


def _column(column: Column, count: int) -> Sequence[int]:
    if isinstance(column, int):
        return [column] * count
    numbers = array("q", column)
    if SWAPPED:
        numbers.byteswap()
    return numbers


# --- body keys ---------------------------------------------------------------------------------
#
# Keys of large bodies in a database: which of them no row refers to any more.


class BodyKeyHandlers:
    """Each method carries out one command."""

    def __init__(self, state: State) -> None:
        self._state = state

    def read_garbage(self, command: c.ReadBodyGarbage, _now_ms: int) -> c.Result:
        """List keys of bodies whose rows are gone."""
        rows = self._state.fetch("unused_garbage", (command.limit,))
        return c.BodyKeys(tuple(key for (key,) in rows))

    def forget_garbage(self, command: c.ForgetBodyGarbage, _now_ms: int) -> c.Result:
        """Forget keys whose bodies have been removed."""
        sql, cursor = self._state.sql["forget_unused_garbage"], self._state.cursor
        cursor.executemany(sql, [(key,) for key in command.keys])
        return c.DONE

    def read_place(self, command: c.ReadBodyPlace, _now_ms: int) -> c.Result:
        """Tell by what the place for bodies is known."""
        mark = self._state.body_mark()
        rows = self._state.fetch("some_bodies", (command.limit,))
        return c.BodyPlace(mark, tuple(bytes(body).decode() for (body,) in rows))

    def mark_place(self, command: c.MarkBodyPlace, _now_ms: int) -> c.Result:
        """Keep the mark of the place for bodies."""
        self._state.set_meta(BODY_MARK, command.mark)
        return c.DONE

    def known(self, command: c.KnownBodies, now_ms: int) -> c.Result:
        """Tell which of some keys a row refers to, and whether a backup is under way.

        In this order: a backup that begins after both looks reads no row that refers to the others.
        """
        known = [key for key in command.keys if self._state.fetch("known_body", (key.encode(),))]
        return c.BodyKeys(
            tuple(known),
            held=any(is_held(end_ms, now_ms) for end_ms in self._state.ends_of_holds()),
        )
