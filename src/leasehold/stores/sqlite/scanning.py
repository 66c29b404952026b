"""Going over a queue's messages by row key, in pages, without an index for it.

Row keys never change, so each message is seen once however it moves meanwhile. An index by queue
and row key would cost every put and every complete; instead, the keys of a queue that is small are
sorted, and a store of which the queue is a large part is read row by row. The two meet at some ten
milliseconds a page.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Final, NamedTuple

from leasehold.domain.cursors import Place
from leasehold.domain.ids import MAX_ROW_KEY
from leasehold.domain.matching import needs_body
from leasehold.domain.oversight import MessageFilter, Seen
from leasehold.domain.types import Message, MessageState
from leasehold.domain.visibility import is_expired, state_of
from leasehold.stores.sqlite.catalog import Entry
from leasehold.stores.sqlite.rows import message_of
from leasehold.stores.sqlite.state import State

SORTED_UP_TO: Final = 200_000
"""Messages of a queue whose keys are sorted once for each look, in 30 milliseconds."""
CHUNK_ROWS: Final = 500
MAX_CHUNKS: Final = 10
"""Chunks that one look may go over: it holds the store for some 40 milliseconds."""
ROWS_AT_ONCE: Final = 50
"""Rows read with one statement: each can hold a megabyte."""
READ_BYTES: Final = 32 * 1024 * 1024
"""Bytes of bodies and details that one look may read, some 40 milliseconds' worth."""
SEARCHED_BYTES: Final = 4 * 1024 * 1024
"""The same where the filter looks into bodies: to read so much JSON takes as long."""
OTHERS_ROWS: Final = 20_000
"""Rows of other queues that one chunk may step over."""
_INVISIBLE: Final = frozenset(
    {MessageState.LEASED, MessageState.DELAYED, MessageState.DEFERRED, MessageState.POISONED}
)


class Step(NamedTuple):
    """A place that was reached, and the message there; None where only others were stepped over."""

    place: Place
    seen: Seen | None
    retired: bool = False


class _Span(NamedTuple):
    """What of a queue is to be gone over."""

    after: int
    """Behind this row key."""
    until: int
    """Up to this one."""
    invisible_at_ms: int | None
    """Only what is invisible at this moment, as far as that is cheaper; None for all."""


class Scanner:
    """Walks over the rows of one store."""

    def __init__(self, state: State) -> None:
        self._state = state

    def walk(
        self,
        entry: Entry,
        after: Place,
        wanted: MessageFilter,
        now_ms: int,
        until: int = MAX_ROW_KEY,
    ) -> Iterator[Step | None]:
        """Go over a queue's messages and, if they are asked for, those in its poison queue.

        Args:
            entry: The queue.
            after: Where to go on.
            wanted: Which messages; some that it does not mean may come as well.
            now_ms: The time.
            until: The last row key to look at, in both queues.

        Yields:
            Steps, and None where the budget of one look is spent: whoever goes on had better do
            so in another batch.
        """
        states = wanted.states
        budget = SEARCHED_BYTES if needs_body(wanted) else READ_BYTES
        if not after.poison:
            if states != frozenset({MessageState.POISONED}):
                only_invisible = states is not None and states <= _INVISIBLE
                span = _Span(after.row_key, until, now_ms if only_invisible else None)
                yield from self._own(entry, span, budget, now_ms)
            after = Place(poison=True, row_key=0)
        poison = self._state.catalog.poison_of(entry)
        if poison is None or not (states is None or MessageState.POISONED in states):
            return
        for step in self._chunks(poison, _Span(after.row_key, until, None), budget):
            if step is None or step[1] is None:
                yield None if step is None else Step(Place(poison=True, row_key=step[0]), None)
                continue
            row_key, message, retired = step
            assert message is not None
            mine = is_from(entry, message) and not (retired or is_expired(message, now_ms))
            seen = Seen(message, MessageState.POISONED, poison.queue.name) if mine else None
            yield Step(Place(poison=True, row_key=row_key), seen)

    def _own(self, entry: Entry, span: _Span, budget: int, now_ms: int) -> Iterator[Step | None]:
        for step in self._chunks(entry, span, budget):
            if step is None:
                yield None
                continue
            row_key, message, retired = step
            seen = None
            if message is not None:
                seen = Seen(message, state_of(message, now_ms), entry.queue.name)
            yield Step(Place(poison=False, row_key=row_key), seen, retired)

    def _chunks(
        self, entry: Entry, span: _Span, budget: int
    ) -> Iterator[tuple[int, Message | None, bool] | None]:
        chunks, left = 0, budget
        is_small = self._is_small(entry, span)
        while True:
            reached, keys = self._keys(entry, span, is_small=is_small)
            for start in range(0, len(keys), ROWS_AT_ONCE):
                part = json.dumps(keys[start : start + ROWS_AT_ONCE])
                for row in self._state.fetch("rows_of_keys", (part,)):
                    if left <= 0:
                        yield None
                        left = budget
                    left -= len(row[7]) + len(row[13] or "")
                    yield row[0], message_of(row), bool(row[-1])
            if reached is None:
                return
            if not keys or keys[-1] < reached:
                yield reached, None, False
            span = span._replace(after=reached)
            chunks += 1
            if chunks % MAX_CHUNKS == 0 or len(keys) == CHUNK_ROWS * MAX_CHUNKS:
                yield None

    def _keys(self, entry: Entry, span: _Span, *, is_small: bool) -> tuple[int | None, list[int]]:
        """Return the next keys of a queue, and how far that went; None to the end."""
        state = self._state
        if is_small:
            lanes = json.dumps([lane.partition for lane in entry.lanes])
            # To sort the keys is what costs, so those of all chunks of a look come at once.
            limit = CHUNK_ROWS * MAX_CHUNKS
            bounds: tuple[object, ...] = (lanes, span.after, span.until, limit)
            if span.invisible_at_ms is None:
                rows = state.fetch("keys_by_visibility", bounds)
            else:
                rows = state.fetch("invisible_keys", (*bounds, span.invisible_at_ms))
            keys = [row_key for (row_key,) in rows]
            return (keys[-1] if len(keys) == limit else None), keys
        rows = state.fetch("keys_by_age", (span.after, span.until, OTHERS_ROWS))
        keys = [row_key for row_key, partition in rows if partition == entry.partition]
        if len(keys) > CHUNK_ROWS:
            return keys[CHUNK_ROWS - 1], keys[:CHUNK_ROWS]
        return (rows[-1][0] if len(rows) == OTHERS_ROWS else None), keys

    def _is_small(self, entry: Entry, span: _Span) -> bool:
        """Tell whether a queue's keys may be sorted, those of what has expired included."""
        missing = SORTED_UP_TO - entry.message_count
        if span.invisible_at_ms is not None or missing < 0:
            return missing >= 0
        lanes = json.dumps([lane.partition for lane in entry.lanes])
        return bool(self._state.fetch("retired", (lanes, missing + 1))[0][0] <= missing)


def is_from(entry: Entry, message: Message) -> bool:
    """Tell whether a poisoned message failed in this queue, as far as is known."""
    poisoning = message.detail.poisoning
    return poisoning is None or poisoning.queue == entry.queue.name
