"""The event log in a database: what a batch changed is one row, written with the change.

If it is very much, it is several rows.

A row's content is MessagePack: the queues named (account and queue), then the events as
:data:`leasehold.domain.events.Recorded`. What happens to many messages at once, such as the members
of a claim, is one item with a column for each field; readers see one event for each message.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from itertools import repeat
from typing import Any, Final

import msgspec

from leasehold.domain import commands as c
from leasehold.domain import events as e
from leasehold.domain.ids import id_from_blob, id_to_blob
from leasehold.stores.sql.recorder import ID_BYTES, SWAPPED, Column
from leasehold.stores.sql.state import State

_DECODE: Final = msgspec.msgpack.Decoder().decode
_SEARCHED_BYTES: Final = 16 * 1024 * 1024
"""Bytes of log that one look may go over to find anything."""
_SHOWN_BYTES: Final = 1024 * 1024
"""Bytes of log after which a page ends that has something: it takes many times as many in memory.
"""


class EventVerbs:
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

    def extent(self, _command: e.LogExtent, _now_ms: int) -> c.Result:
        """Say how much log there is."""
        rows = self._state.fetch("first_event_batch")
        log = self._state.log
        if not rows:
            return e.Extent(log.last_seq + 1 if log.last_seq else 0, log.last_seq, 0, None)
        ((store_bytes,),) = self._state.fetch("store_bytes")
        return e.Extent(rows[0][0], log.last_seq, log.bytes_kept, rows[0][1], store_bytes)

    def trim(self, command: e.TrimEvents, _now_ms: int) -> c.Result:
        """Forget the oldest batches; the last one stays, so that its number is not used again."""
        state = self._state
        upto = min(command.upto_seq, state.log.last_seq - 1)
        rows = state.fetch("oldest_events", (upto, command.limit))
        if rows:
            state.cursor.execute(state.sql["trim_events"], (rows[-1][0],))
            state.log.trimmed(sum(row[1] for row in rows))
            state.note_log()
        return c.Swept(len(rows))

    def keep_note(self, command: e.KeepNote, _now_ms: int) -> c.Result:
        """Keep a text."""
        self._state.cursor.execute(self._state.sql["keep_note"], (command.name, command.content))
        return c.DONE

    def read_note(self, command: e.ReadNote, _now_ms: int) -> c.Result:
        """Read a text."""
        rows = self._state.fetch("read_note", (command.name,))
        return e.Note(rows[0][0] if rows else None)


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
    types = more[0] if more else None
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
        types if isinstance(types, list) else repeat(types),
    )


def _column(column: Column, count: int) -> Sequence[int]:
    if isinstance(column, int):
        return [column] * count
    numbers = array("q", column)
    if SWAPPED:
        numbers.byteswap()
    return numbers
