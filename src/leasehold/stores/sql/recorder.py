"""Collecting the events of a batch, as lean as can be: every put and every lease passes here."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Collection, Iterator, Sequence
from typing import Any, Final, NamedTuple, TypeAlias, cast

import msgspec

from leasehold.domain.claims import Claim
from leasehold.domain.events import (
    Core,
    encodable,
    ending_of,
    more_of,
    signed,
    trace_id_of,
    with_result,
)
from leasehold.domain.model import NO_DETAIL, ErrorReport, GroupHalt, Message
from leasehold.stores.sql.catalog import Entry, priority_of
from leasehold.stores.sql.plain_json import along_in_json
from leasehold.stores.sql.statements import Cursor

ENCODE: Final = msgspec.msgpack.Encoder().encode
SWAPPED: Final = sys.byteorder != "little"
ID_BYTES: Final = 16
MAX_EVENTS: Final = 16_000
"""Events of one row, some 30 milliseconds' worth for whoever reads it. It can only be more where
one statement has more."""

Column: TypeAlias = int | bytes
"""The same number for all, or as many as there are messages, 8 bytes each, little-endian."""
Texts: TypeAlias = str | list[str | None] | None
"""The same text for all, or one for each."""
Removed: TypeAlias = tuple[str, Core, int, str | None, str | None, str | None]
"""Of a message that is gone: id, core, priority, session, what its detail has of it, result."""
ALIKE_FROM: Final = 4
"""From so many messages on, one item for all that has happened to them costs less than one each."""


class Columns(NamedTuple):
    """Many messages, ready for the log."""

    ids: bytes
    core: tuple[Column, ...]
    """Inserted, expires, visible, dequeue count, fence, phase, since, visible since, renewals."""
    priorities: Column
    types: Texts = None
    """What their senders called their kind."""
    traces: Texts = None
    """Of the traces that they were put in, the ids."""
    groups: Texts = None
    """Their message groups."""

    def without(self, gone: Collection[bytes]) -> Columns | None:
        """Return the columns without the messages of these ids; None if none is left."""
        if not gone:
            return self
        ids = self.ids
        starts = range(0, len(ids), ID_BYTES)
        left = [n for n, start in enumerate(starts) if ids[start : start + ID_BYTES] not in gone]
        if len(left) == len(starts):
            return self
        if not left:
            return None

        def chosen_texts(texts: Texts) -> Texts:
            return [texts[n] for n in left] if isinstance(texts, list) else texts

        def chosen(column: Column) -> Column:
            if isinstance(column, int):
                return column
            numbers = array("q", column)  # which are only moved, so their byte order is no matter
            return array("q", [numbers[n] for n in left]).tobytes()

        return Columns(
            b"".join([ids[n * ID_BYTES : (n + 1) * ID_BYTES] for n in left]),
            tuple(map(chosen, self.core)),
            chosen(self.priorities),
            chosen_texts(self.types),
            chosen_texts(self.traces),
            chosen_texts(self.groups),
        )


def columns_of(
    ids: Sequence[bytes],
    core: Sequence[int | Sequence[int]],
    lanes: Sequence[int],
    details: Sequence[str | None],
) -> Columns:
    """Pack what the log says of messages; a field may be one number for all of them."""
    first = lanes[0]
    alike = lanes.count(first) == len(lanes)
    return Columns(
        b"".join(ids),
        tuple([each if isinstance(each, int) else _packed(each) for each in core]),
        priority_of(first) if alike else _packed([priority_of(lane) for lane in lanes]),
        *_sent_along(details),
    )


def _sent_along(details: Sequence[str | None]) -> tuple[Texts, Texts, Texts]:
    """Return the types, the traces and the groups of messages."""
    first = details[0]
    if details.count(first) == len(details):  # most often none has any
        return _along_in(first)
    known = {text: _along_in(text) for text in set(details)}
    if len(set(known.values())) == 1:
        return known[first]
    types, traces, groups = zip(*[known[text] for text in details], strict=True)
    return _texts(types), _texts(traces), _texts(groups)


def _texts(each: Sequence[str | None]) -> Texts:
    return each[0] if each.count(each[0]) == len(each) else [*each]


def _along_in(detail: str | None) -> tuple[str | None, str | None, str | None]:
    """Return the type, the trace and the group of a message."""
    if detail is None:
        return None, None, None
    along = along_in_json(detail)
    kind, trace, group = along.message_type, along.traceparent, along.group_id
    return (
        None if kind is None else encodable(kind),
        None if trace is None else trace_id_of(trace),
        None if group is None else encodable(group),
    )


class Recorder:
    """Collects the events of the open batch."""

    def __init__(self, cursor: Cursor, sql: dict[str, str]) -> None:
        self._cursor = cursor
        self._sql = sql
        self._events: list[Any] = []
        self._queues: dict[tuple[str, str | None], int] = {}
        self._count = 0
        self.last_seq = 0
        self.bytes_kept = 0
        """Of the batches kept; see ``State.note_log``."""
        self._open_bytes = 0
        """What the open batch adds to that; below 0 if it forgets more than it writes."""

    def load(self) -> None:
        """Begin anew, at the start and after an undone batch."""
        self.clear()
        self.bytes_kept -= self._open_bytes
        self._open_bytes = 0
        rows = self._cursor.execute(self._sql["last_event_batch"]).fetchall()
        self.last_seq = cast("int", rows[0][0]) if rows else 0

    def clear(self) -> None:
        """Forget what was collected."""
        self._events, self._queues, self._count = [], {}, 0

    def committed(self) -> None:
        """Note that what was written stays."""
        self._open_bytes = 0

    def trimmed(self, size: int) -> None:
        """Note that so many bytes are forgotten with the open batch."""
        size = min(size, self.bytes_kept)
        self.bytes_kept -= size
        self._open_bytes -= size

    @property
    def reached(self) -> int:
        """How many entries the open batch has, for :meth:`sign`."""
        return len(self._events)

    def sign(self, since: int, actor: str | None) -> None:
        """Say of all that was recorded from the entry *since* on who asked for it."""
        if actor is not None:
            self._events[since:] = [signed(each, actor) for each in self._events[since:]]

    def _number(self, account: str, queue: str | None) -> int:
        key = account, queue
        number = self._queues.get(key)
        if number is None:
            number = self._queues[key] = len(self._queues)
        return number

    def add(  # noqa: PLR0913, PLR0917 - what a tuple for the log is made of
        self,
        kind: int,
        entry: Entry,
        message: Message,
        reason: str | None = None,
        target: str | None = None,
        error: ErrorReport | None = None,
        result: str | None = None,
    ) -> None:
        """Record what happened to a message, which is as it is after that.

        *error* is what was said about the attempt that has ended with it, *result* what came of it.
        """
        if entry.logged:
            queue = entry.queue
            recorded: tuple[Any, ...] = (
                kind,
                self._number(queue.account, queue.name),
                message[0],
                message[2:12],
                message[12],
                message[14],
                None,
                reason,
                target,
            )
            detail = message[13]
            if detail is not NO_DETAIL:
                recorded += more_of(detail, error)
            if result is not None:
                recorded = with_result(recorded, result)
            self._events.append(recorded)
            self._count += 1

    def add_run(self, kind: int, entry: Entry, messages: Sequence[Message]) -> None:
        """Do as :meth:`add` for messages that the same has happened to."""
        if entry.logged and ALIKE_FROM <= len(messages) <= MAX_EVENTS:
            ids, _, *core, holders, priorities, details, sessions = zip(*messages, strict=True)
            alike = kind, entry, ids, core, holders, priorities, sessions
            if details.count(NO_DETAIL) == len(details) and self._add_alike(*alike):
                return
        for message in messages:
            self.add(kind, entry, message)

    def add_removed(self, kind: int, entry: Entry, removed: Sequence[Removed]) -> None:
        """Do as :meth:`add_run` for messages that were not made Messages of."""
        if not entry.logged:
            return
        if ALIKE_FROM <= len(removed) <= MAX_EVENTS:
            ids, cores, priorities, sessions, details, results = zip(*removed, strict=True)
            *core, holders = zip(*cores, strict=True)
            alike = kind, entry, ids, core, holders, priorities, sessions
            plain = details.count(None) == results.count(None) == len(removed)
            if plain and self._add_alike(*alike):
                return
        for each in removed:
            self.add_one(kind, entry, *each)

    def _add_alike(  # noqa: PLR0913, PLR0917 - as above
        self,
        kind: int,
        entry: Entry,
        ids: Sequence[str],
        core: Sequence[Sequence[int]],
        holders: Sequence[str | None],
        priorities: Sequence[int],
        sessions: Sequence[str | None],
    ) -> bool:
        """Record messages that have no detail as one item, if their holder is the same.

        Returns:
            Whether that was so.
        """
        count, holder, session = len(ids), holders[0], sessions[0]
        if holders.count(holder) != count or sessions.count(session) != count:
            return False
        queue = entry.queue
        self._events.append(
            (
                kind,
                self._number(queue.account, queue.name),
                bytes.fromhex("".join(ids).replace("-", "")),
                [*map(_packed, core), holder],
                _packed(priorities),
                session,
                None,
                None,
                None,
            )
        )
        self._count += count
        return True

    def add_one(  # noqa: PLR0913, PLR0917 - as above
        self,
        kind: int,
        entry: Entry,
        message_id: str,
        core: Core,
        priority: int,
        session: str | None,
        detail: str | None,
        result: str | None = None,
    ) -> None:
        """Record what happened to a message that was not made a Message of."""
        queue = entry.queue
        number = self._number(queue.account, queue.name)
        recorded: tuple[Any, ...]
        recorded = (kind, number, message_id, core, priority, session, None, None, None)
        if detail is not None:
            message_type, trace_id, group_id = _along_in(detail)
            recorded += ending_of(message_type, None, trace_id, group_id)
        if result is not None:
            recorded = with_result(recorded, result)
        self._events.append(recorded)
        self._count += 1

    def add_many(  # noqa: PLR0913, PLR0917 - as above
        self,
        kind: int,
        entry: Entry,
        rows: Sequence[Sequence[Any]],
        target: str,
        holder: str | None,
        reason: str | None = None,
    ) -> None:
        """Record what happened to many messages at once.

        Args:
            kind: What.
            entry: Their queue.
            rows: Message id (16 bytes), inserted, expires, visible, dequeue count, fence, phase,
                since, visible since, renewals, lane, and detail, of each.
            target: Claim or transaction.
            holder: Of all of them.
            reason: Why.
        """
        if entry.logged and rows:
            ids, *core, lanes, details = zip(*rows, strict=True)
            columns = columns_of(ids, core, lanes, details)
            self.add_columns(kind, entry, columns, target, holder, reason)

    def add_columns(  # noqa: PLR0913, PLR0917 - as above
        self,
        kind: int,
        entry: Entry,
        columns: Columns,
        target: str,
        holder: str | None,
        reason: str | None = None,
    ) -> None:
        """Do as :meth:`add_many` with what :func:`columns_of` has made."""
        if not entry.logged:
            return
        queue = entry.queue
        recorded = (
            kind,
            self._number(queue.account, queue.name),
            columns.ids,
            [*columns.core, holder],
            columns.priorities,
            None,
            None,
            reason,
            target,
        )
        ending = ending_of(columns.types, None, columns.traces, columns.groups)
        self._events.append((*recorded, *ending))
        self._count += len(columns.ids) // ID_BYTES

    def add_queue(
        self, kind: int, entry: Entry, reason: str | None = None, until_ms: int = 0
    ) -> None:
        """Record what happened to a queue."""
        if entry.logged:
            number = self._number(entry.queue.account, entry.queue.name)
            self._append((kind, number, "", None, until_ms, None, None, reason, None))

    def add_group(
        self,
        kind: int,
        entry: Entry,
        group: str,
        halt: GroupHalt | None = None,
        by: tuple[str | None, str | None] = (None, None),
    ) -> None:
        """Record what happened to a message group; *by* is session and holder."""
        if entry.logged:
            number = self._number(entry.queue.account, entry.queue.name)
            reason, message_id = (halt.reason, halt.message_id) if halt else (None, None)
            plain = (kind, number, "", None, 0, *by, reason, message_id)
            self._append((*plain, *ending_of(None, None, None, encodable(group))))

    def add_claim(self, kind: int, entry: Entry, claim: Claim) -> None:
        """Record what happened to a claim."""
        if entry.logged:
            number = self._number(entry.queue.account, entry.queue.name)
            target = f"{claim.stream}/{claim.number}"
            self._append((kind, number, "", None, claim.until_ms, None, claim.holder, None, target))

    def add_session(
        self, kind: int, account: str, session_id: str, holder: str, reason: str | None
    ) -> None:
        """Record what happened to a session."""
        number = self._number(account, None)
        self._append((kind, number, "", None, 0, session_id, holder, reason, None))

    def _append(self, recorded: tuple[Any, ...]) -> None:
        self._events.append(recorded)
        self._count += 1

    def write(self, now_ms: int) -> None:
        """Write what was collected as one row, or as several if it is very much."""
        if not self._events:
            return
        queues = list(self._queues)
        for count, events in self._rows():
            content = ENCODE([queues, events])
            self.last_seq += 1
            bounds = (self.last_seq, now_ms, count, len(content), content)
            self._cursor.execute(self._sql["keep_events"], bounds)
            self.bytes_kept += len(content)
            self._open_bytes += len(content)
        self.clear()

    def _rows(self) -> Iterator[tuple[int, list[Any]]]:
        """Return what goes into one row each, and how many events that is."""
        if self._count <= MAX_EVENTS:
            yield self._count, self._events
            return
        count = 0
        events: list[Any] = []
        for item in self._events:
            ids = item[2]
            weight = len(ids) // ID_BYTES if isinstance(ids, bytes) else 1
            if events and count + weight > MAX_EVENTS:
                yield count, events
                count, events = 0, []
            count += weight
            events.append(item)
        yield count, events


def _packed(column: Sequence[int]) -> Column:
    first = column[0]
    if column.count(first) == len(column):
        return int(first)
    numbers = array("q", column)
    if SWAPPED:
        numbers.byteswap()
    return numbers.tobytes()
