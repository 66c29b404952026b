"""Rows of the table ``message`` and the messages they stand for."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from operator import itemgetter
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

from leasehold.domain import commands as c
from leasehold.domain.claims import after_loss, as_member
from leasehold.domain.model import (
    NO_DETAIL,
    Detail,
    Message,
    Phase,
    id_from_blob,
    id_to_blob,
    issue_receipt,
    row_key_of,
)
from leasehold.stores.sql.catalog import (
    PARTITION_MASK,
    Entry,
    Lane,
    OpenClaimState,
    lane_number,
    priority_of,
)
from leasehold.stores.sql.plain_json import detail_from_json, detail_to_json
from leasehold.stores.sql.state import State

Row: TypeAlias = tuple[Any, ...]
"""A row as the statements that read messages give it, its columns in the order of :class:`Cell`.

Some add one, so no length is told. Rows stay plain tuples: to make a NamedTuple of each takes 0.4
us, and a claim has 1.5 us for each message. Unpacking is the fastest way to many columns.
"""
CellOf: TypeAlias = Callable[[Row], Any]
_VISIBLE_AT: Final = 4


class Cell:
    """The columns of a row by name: each is a function of the row."""

    row_key: Final[CellOf] = itemgetter(0)
    message_id: Final[CellOf] = itemgetter(1)
    """Its 16 bytes."""
    inserted_at_ms: Final[CellOf] = itemgetter(2)
    expires_at_ms: Final[CellOf] = itemgetter(3)
    visible_at_ms: Final[CellOf] = itemgetter(_VISIBLE_AT)
    dequeue_count: Final[CellOf] = itemgetter(5)
    fence: Final[CellOf] = itemgetter(6)
    body: Final[CellOf] = itemgetter(7)
    phase: Final[CellOf] = itemgetter(8)
    since_ms: Final[CellOf] = itemgetter(9)
    visible_since_ms: Final[CellOf] = itemgetter(10)
    renewals: Final[CellOf] = itemgetter(11)
    holder: Final[CellOf] = itemgetter(12)
    detail: Final[CellOf] = itemgetter(13)
    """JSON, or None."""
    lane: Final[CellOf] = itemgetter(14)
    session: Final[CellOf] = itemgetter(15)
    saved: Final[CellOf] = itemgetter(16)
    retired: Final[CellOf] = itemgetter(17)
    """Of ``find_message`` and ``rows_of_keys``: whether it has expired and is set aside."""
    body_bytes: Final[CellOf] = itemgetter(17)
    """Of ``next_visible_with_sizes``, which does not read the bodies themselves."""


_WIDTH: Final = 17
"""Columns of all statements."""
PHASES: Final = tuple(Phase)


def message_of(row: Row) -> Message:
    """Return the message in a row."""
    if len(row) > _WIDTH:
        row = row[:_WIDTH]
    (
        _, blob, inserted_at_ms, expires_at_ms, visible_at_ms, count, fence, body, phase, since_ms,
        visible_since_ms, renewals, holder, text, lane, session, saved,
    ) = row  # fmt: skip
    return Message(
        id_from_blob(blob),
        body,
        inserted_at_ms,
        expires_at_ms,
        visible_at_ms,
        count,
        fence,
        PHASES[phase],
        since_ms,
        visible_since_ms,
        renewals,
        holder,
        priority_of(lane),
        NO_DETAIL if text is None and saved is None else detail_of(text, saved),
        session,
    )


def detail_of(text: str | None, saved: str | None) -> Detail:
    """Return the detail of a message, with what was saved."""
    detail = detail_from_json(text)
    return detail if saved is None else replace(detail, saved=saved)


def visible_from(row: Row, moment_ms: int) -> Row:
    """Return a row as that of a message that is visible from another moment on."""
    return (*row[:_VISIBLE_AT], moment_ms, *row[_VISIBLE_AT + 1 :])


class Kept(NamedTuple):
    """A message, and where it is."""

    entry: Entry
    row_key: int
    message: Message
    held: OpenClaimState | None = None
    """The claim that it is a member of."""


Judge: TypeAlias = Callable[[c.Renew | c.Complete | c.Release, int], Kept]
"""Returns the message that a receipt acts on, or raises why it may not act."""


class SessionBook(Protocol):
    """Knows the sessions of a store, for the verbs on messages."""

    def receives(self, command: c.Receive, now_ms: int) -> str:
        """Return the holder of the session that receives, which is alive from now on.

        Raises:
            SessionNotFound: There is no such session.
            SessionOver: It is over.
        """
        ...

    def renewed(self, message: Message, now_ms: int) -> None:
        """Note that a lease of a session was renewed."""
        ...


def rewrite(state: State, kept: Kept, after: Message, target: Entry | None = None) -> None:
    """Write a message whose lease, lane or queue has changed, and keep the counts right.

    A message that is moved from one queue to another is so in this one statement.
    """
    source, row_key, before, held = kept
    target = target or source
    lane = state.open_lane(target, lane_number(after.priority, after.detail.group_id))
    bounds: tuple[object, ...] = (
        after.visible_at_ms,
        after.fence,
        row_key,
        after.phase,
        after.since_ms,
        after.renewals,
        detail_to_json(after.detail),
        lane.partition,
        after.expires_at_ms,
        after.dequeue_count,
        after.visible_since_ms,
        after.holder,
        after.session,
    )
    state.cursor.execute(state.sql["rewrite"], bounds)
    if after.body is not before.body or after.detail.body_ref != before.detail.body_ref:
        replace_body(state, row_key, before, after)
    if after.detail.saved != before.detail.saved:
        _replace_saved(state, row_key, before.detail.saved, after.detail.saved)
    if after.expires_at_ms < state.retired_until_ms:
        state.set_retired_until(after.expires_at_ms)
    uncount(state, source, before.visible_at_ms, before.phase, held)
    count(state, target, lane, after)
    if target is not source:
        free_group(source, before)


def count(state: State, entry: Entry, lane: Lane, message: Message) -> None:
    """Count a message in."""
    entry.message_count += 1
    state.touched.add(entry)
    lane.written(message)
    if entry.timeline is not None:
        entry.timeline.add(message.visible_at_ms, message.phase, 1)
    if entry.turns is not None:
        entry.turns.changed(message)


def free_group(entry: Entry, message: Message) -> None:
    """Have the group of a message looked at that is in its queue no more."""
    if entry.turns is not None:
        entry.turns.free(message.detail.group_id)


def uncount(
    state: State, entry: Entry, visible_at_ms: int, phase: int, held: OpenClaimState | None = None
) -> None:
    """Count a message out, of its claim too."""
    entry.message_count -= 1
    state.touched.add(entry)
    if held is not None:
        held.claim = after_loss(held.claim, 1)
        state.recorded.pop(held, None)
        state.touched_claims.add(held)
    elif entry.timeline is not None:
        entry.timeline.add(visible_at_ms, phase, -1)


# --- bodies ------------------------------------------------------------------------------------

INLINE_BYTES: Final = 256
"""Bodies up to this size stay in the row: a row of its own costs more than it saves.

With larger ones in the row, each lease wrote them again: a claim of 100,000 messages of 1 KiB took
1.6 s instead of 0.15."""
SEGMENT_BODIES: Final = 16
"""Bodies in one segment: what is left of it stays until its last message goes, and who reads one
body reads all of them."""
SEGMENT_BODY_BYTES: Final = 4096
"""Larger bodies have pages of their own anyway, which are freed as quickly."""
HERE, APART, OUTSIDE, IN_SEGMENT = range(4)
"""Where a body is; see the migrations."""


def placed(message: Message) -> tuple[bytes, int, bytes | None]:
    """Return what to write as body and place, and what goes to the table of bodies."""
    ref = message.detail.body_ref
    if ref is not None:
        return ref.key.encode(), OUTSIDE, None
    if len(message.body) <= INLINE_BYTES:
        return message.body, HERE, None
    return b"", APART, message.body


def replace_body(state: State, row_key: int, before: Message, after: Message) -> None:
    """Give a row that is there another body; the key of an old one outside is garbage then."""
    body, place, apart = placed(after)
    if apart is not None:
        state.cursor.execute(state.sql["replace_body"], (row_key, apart))
    else:
        state.cursor.execute(state.sql["remove_body"], (row_key,))
    ref = before.detail.body_ref
    if ref is not None and ref != after.detail.body_ref:
        state.cursor.execute(state.sql["keep_garbage"], (ref.key,))
    state.cursor.execute(state.sql["set_body"], (row_key, body, place))


def _replace_saved(state: State, row_key: int, before: str | None, after: str | None) -> None:
    if after is None:
        state.cursor.execute(state.sql["remove_saved"], (row_key,))
    else:
        state.cursor.execute(state.sql["keep_saved"], (row_key, after))
    if before is None or after is None:
        state.cursor.execute(state.sql["mark_saved"], (row_key, after is not None))


# --- members of claims ---------------------------------------------------------------------------


def kept_in(state: State, entry: Entry, row: Row) -> Kept | None:
    """Return the message of a row that is in a queue or in one of its claims; None if in neither.

    A member of a claim is visible when the claim says so, and not when its row does.
    """
    message, row_key = message_of(row), Cell.row_key(row)
    partition = Cell.lane(row) & PARTITION_MASK
    if partition == entry.partition:
        return Kept(entry, row_key, message)
    held = state.catalog.claims.get(partition)
    if held is None or held.entry is not entry:
        return None
    return Kept(entry, row_key, as_member(message, held.claim), held)


# --- dedup -------------------------------------------------------------------------------------
#
# Deduplication keys in a database.


def first_with(state: State, entry: Entry, key: str, now_ms: int) -> c.Duplicate | None:
    """Return the message that has used a deduplication key, if its window is open."""
    rows = state.fetch("find_key", (entry.scope, key, now_ms))
    if not rows:
        return None
    blob, inserted_at_ms, expires_at_ms, visible_at_ms = rows[0]
    message_id = id_from_blob(blob)
    row_key = row_key_of(message_id)
    assert row_key is not None
    receipt = issue_receipt(state.receipt_key, row_key, 0)
    return c.Duplicate(message_id, receipt, inserted_at_ms, expires_at_ms, visible_at_ms)


def claim_keys(state: State, entry: Entry, lanes: Iterable[int], now_ms: int) -> list[int]:
    """Remember the keys of staged rows that are about to be published to a queue.

    Returns:
        Row keys of those that are not to be published, as a message has used their key before.
    """
    lanes = tuple(lanes)
    window_s = entry.queue.settings.dedup_window_s
    if window_s:
        until_ms = now_ms + window_s * 1000
        bounds = state.keys_of(lanes), now_ms, entry.scope, until_ms
        state.cursor.execute(state.sql["keep_staged_keys"], bounds)
    found = state.fetch("staged_duplicates", (state.keys_of(lanes), now_ms, entry.scope))
    return [row_key for (row_key,) in found]


def keep_key(state: State, entry: Entry, key: str, message: Message) -> None:
    """Remember the key of a message that was put, for as long as the queue's window."""
    window_s = entry.queue.settings.dedup_window_s
    if window_s:
        bounds = (
            entry.scope,
            key,
            id_to_blob(message.message_id),
            message.inserted_at_ms,
            message.expires_at_ms,
            message.visible_at_ms,
            message.inserted_at_ms + window_s * 1000,
        )
        state.cursor.execute(state.sql["keep_key"], bounds)
