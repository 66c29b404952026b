"""Rows of the table ``message`` and the messages they stand for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple, TypeAlias

from leasehold.domain import commands as c
from leasehold.domain.ids import id_from_blob
from leasehold.domain.types import NO_DETAIL, Message, Phase
from leasehold.stores.plain_json import detail_from_json, detail_to_json
from leasehold.stores.sqlite.catalog import Entry, Lane, priority_of
from leasehold.stores.sqlite.state import State

Row: TypeAlias = tuple[
    int, bytes, int, int, int, int, int, bytes, int, int, int, int, str | None, str | None, int
]
"""Row key, message id, inserted, expires, visible, dequeue count, fence, body, phase, since,
visible since, renewals, holder, detail, partition."""

PHASES: Final = tuple(Phase)


def message_of(row: Row) -> Message:
    """Return the message in a row."""
    return Message(
        id_from_blob(row[1]),
        row[7],
        row[2],
        row[3],
        row[4],
        row[5],
        row[6],
        PHASES[row[8]],
        row[9],
        row[10],
        row[11],
        row[12],
        priority_of(row[14]),
        NO_DETAIL if row[13] is None else detail_from_json(row[13]),
    )


class Kept(NamedTuple):
    """A message, and where it is."""

    entry: Entry
    row_key: int
    message: Message


Judge: TypeAlias = Callable[[c.Renew | c.Complete | c.Release, int], Kept]
"""Returns the message that a receipt acts on, or raises why it may not act."""


def rewrite(state: State, kept: Kept, after: Message, target: Entry | None = None) -> None:
    """Write a message whose lease, lane or queue has changed, and keep the counts right.

    A message that is moved from one queue to another is so in this one statement.
    """
    source, row_key, before = kept
    target = target or source
    lane = state.open_lane(target, after.priority)
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
    )
    if after.body is before.body:
        state.cursor.execute(state.sql["rewrite"], bounds)
    else:
        state.cursor.execute(state.sql["rewrite_with_body"], (*bounds, after.body))
    if after.expires_at_ms < state.retired_until_ms:
        state.set_retired_until(after.expires_at_ms)
    uncount(state, source, before.visible_at_ms, before.phase)
    count(state, target, lane, after)


def count(state: State, entry: Entry, lane: Lane, message: Message) -> None:
    """Count a message in."""
    entry.message_count += 1
    state.touched.add(entry)
    lane.written(message)
    if entry.timeline is not None:
        entry.timeline.add(message.visible_at_ms, message.phase, 1)


def uncount(state: State, entry: Entry, visible_at_ms: int, phase: int) -> None:
    """Count a message out."""
    entry.message_count -= 1
    state.touched.add(entry)
    if entry.timeline is not None:
        entry.timeline.add(visible_at_ms, phase, -1)
