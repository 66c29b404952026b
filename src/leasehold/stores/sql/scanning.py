"""Going over a queue's messages by row key, in pages, without an index for it.

Row keys never change, so each message is seen once however it moves meanwhile. An index by queue
and row key would cost every put and every complete; instead, the keys of a queue that is small are
sorted, and a store of which the queue is a large part is read row by row. The two meet at some ten
milliseconds a page.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from operator import attrgetter, itemgetter
from typing import Any, Final, NamedTuple, TypeAlias

from leasehold.domain import claims as cl
from leasehold.domain.admin import CountGroups, GroupPage, GroupPlace, Seen
from leasehold.domain.events import EventType
from leasehold.domain.failures import POISONED_AT_ONCE, exhausted_on_receive, has_failed_in
from leasehold.domain.filters import MessageFilter, needs_body
from leasehold.domain.limits import LOOK_BYTES
from leasehold.domain.model import (
    MAX_ROW_KEY,
    NEVER_MS,
    GroupFigures,
    MessageState,
    Phase,
    Place,
)
from leasehold.domain.noisy_groups import GroupWork
from leasehold.domain.visibility import (
    after_lapse,
    allowance,
    spend,
    state_of,
)
from leasehold.stores.sql.catalog import (
    PARTITION_MASK,
    Entry,
    Lane,
    OpenClaimState,
    is_grouped,
    lanes_of,
)
from leasehold.stores.sql.failures import poison
from leasehold.stores.sql.groups import Good, GroupSearch, order_of_row
from leasehold.stores.sql.rows import Cell, Kept, Row, kept_in, message_of, visible_from
from leasehold.stores.sql.state import State

SORTED_UP_TO: Final = 200_000
"""Messages of a queue whose keys are sorted once for each look, in 30 milliseconds."""
CHUNK_ROWS: Final = 500
MAX_CHUNKS: Final = 10
"""Chunks that one look may go over: it holds the store for some 40 milliseconds."""
ROWS_AT_ONCE: Final = 50
"""Rows read with one statement: each can hold a megabyte."""
READ_BYTES: Final = LOOK_BYTES
"""Bytes of bodies, details and the like that one look may read."""
SEARCHED_BYTES: Final = 4 * 1024 * 1024
"""The same where the filter looks into bodies: to read so much JSON takes as long."""
OTHERS_ROWS: Final = 20_000
"""Rows of other queues that one chunk may step over."""
_INVISIBLE: Final = frozenset(
    {
        MessageState.LEASED,
        MessageState.DELAYED,
        MessageState.DEFERRED,
        MessageState.POISONED,
        MessageState.STAGED,
        MessageState.EXPIRED,
    }
)


class Step(NamedTuple):
    """A place that was reached, and the message there; None where only others were stepped over."""

    place: Place
    seen: Seen | None
    retired: bool = False
    held: OpenClaimState | None = None
    """The claim that the message is a member of."""


class _Span(NamedTuple):
    """What of a queue is to be gone over."""

    after: int
    """Behind this row key."""
    until: int
    """Up to this one."""
    invisible_at_ms: int | None
    """Only what is invisible at this moment, as far as that is cheaper; None for all."""
    staged: bool = False
    """Also what is staged."""
    expired_at_ms: int | None = None
    """With what is invisible, also what has expired at this moment."""
    group_id: str | None = None
    """Only of this group, as far as that is cheaper."""


class Scanner:
    """Walks over the rows of one store."""

    def __init__(self, state: State) -> None:
        self._state = state

    def walk(  # noqa: PLR0913 - a look has that many sides
        self,
        entry: Entry,
        after: Place,
        wanted: MessageFilter,
        now_ms: int,
        until: int = MAX_ROW_KEY,
        *,
        staged: bool = False,
    ) -> Iterator[Step | None]:
        """Go over a queue's messages and, if they are asked for, those in its poison queue.

        Args:
            entry: The queue.
            after: Where to go on.
            wanted: Which messages; some that it does not mean may come as well.
            now_ms: The time.
            until: The last row key to look at, in both queues.
            staged: Whether to go over what is staged as well, if the filter means it.

        Yields:
            Steps, and None where the budget of one look is spent: whoever goes on had better do
            so in another batch.
        """
        states = wanted.states
        budget = SEARCHED_BYTES if needs_body(wanted) else READ_BYTES
        if not after.poison:
            if states != frozenset({MessageState.POISONED}):
                only_invisible = states is not None and states <= _INVISIBLE
                with_staged = staged and (states is None or MessageState.STAGED in states)
                invisible_at_ms = now_ms if only_invisible else None
                with_expired = only_invisible and MessageState.EXPIRED in (states or ())
                expired_at_ms = now_ms if with_expired else None
                only = invisible_at_ms, with_staged, expired_at_ms, wanted.group_id
                span = _Span(after.row_key, until, *only)
                yield from self._chunks(entry, span, budget, now_ms)
            after = Place(poison=True, row_key=0)
        poison = self._state.catalog.poison_of(entry)
        if poison is None or not (states is None or MessageState.POISONED in states):
            return
        span = _Span(after.row_key, until, None, group_id=wanted.group_id)
        for step in self._chunks(poison, span, budget, now_ms):
            if step is None:
                yield None
                continue
            place, seen, retired, held = step
            if seen is not None:
                gone = retired or seen.state is MessageState.EXPIRED
                mine = has_failed_in(entry.queue.name, seen.message) and not gone
                seen = seen._replace(state=MessageState.POISONED) if mine else None
            yield Step(place._replace(poison=True), seen, held=held)

    def _chunks(self, entry: Entry, span: _Span, budget: int, now_ms: int) -> Iterator[Step | None]:
        """Go over the messages of one queue."""
        chunks, left = 0, budget
        catalog = self._state.catalog
        span = self._without_large_group(entry, span)
        is_small = self._is_small(entry, span)
        while True:
            reached, keys = self._keys(entry, span, is_small=is_small)
            for start in range(0, len(keys), ROWS_AT_ONCE):
                part = json.dumps(keys[start : start + ROWS_AT_ONCE])
                for row in self._state.fetch("rows_of_keys", (part,)):
                    if left <= 0:
                        yield None
                        left = budget
                    left -= len(Cell.body(row))
                    left -= len(Cell.detail(row) or "") + len(Cell.saved(row) or "")
                    place = Place(poison=False, row_key=Cell.row_key(row))
                    slot = catalog.slots.get(Cell.lane(row) & PARTITION_MASK)
                    if slot is not None:
                        seen = Seen(message_of(row), MessageState.STAGED, slot.queue, slot.name)
                        yield Step(place, seen)
                        continue
                    kept = kept_in(self._state, entry, row)
                    assert kept is not None
                    seen, retired = seen_of(kept, now_ms), bool(Cell.retired(row))
                    if retired:
                        seen = seen._replace(state=MessageState.EXPIRED)
                    yield Step(place, seen, retired, kept.held)
            if reached is None:
                return
            if not keys or keys[-1] < reached:
                yield Step(Place(poison=False, row_key=reached), None)
            span = span._replace(after=reached)
            chunks += 1
            if chunks % MAX_CHUNKS == 0 or len(keys) == CHUNK_ROWS * MAX_CHUNKS:
                yield None

    def _keys(self, entry: Entry, span: _Span, *, is_small: bool) -> tuple[int | None, list[int]]:
        """Return the next keys of a queue, and how far that went; None to the end."""
        state = self._state
        if span.group_id is not None:
            limit = CHUNK_ROWS * MAX_CHUNKS
            lanes = self._lanes_of_groups(entry, span)
            bounds: tuple[object, ...] = (lanes, span.after, span.until, limit, span.group_id)
            keys = [row_key for (row_key,) in state.fetch("keys_of_group", bounds)]
            return (keys[-1] if len(keys) == limit else None), keys
        if is_small:
            own = [lane.partition for lane in entry.lanes]
            apart = self._apart(entry, span)
            lanes = json.dumps(own + apart)
            # To sort the keys is what costs, so those of all chunks of a look come at once.
            limit = CHUNK_ROWS * MAX_CHUNKS
            bounds = (lanes, span.after, span.until, limit)
            if span.invisible_at_ms is None:
                rows = state.fetch("keys_by_visibility", bounds)
            else:
                bounds = (json.dumps(own), *bounds[1:], span.invisible_at_ms, json.dumps(apart))
                rows = state.fetch("invisible_keys", bounds)
            keys = [row_key for (row_key,) in rows]
            if span.expired_at_ms is not None:
                keys = sorted({*keys, *self._expired_keys(entry, span, own, limit)})[:limit]
            return (keys[-1] if len(keys) == limit else None), keys
        rows = state.fetch("keys_by_age", (span.after, span.until, OTHERS_ROWS))
        partitions = {
            entry.partition,
            *(lane & PARTITION_MASK for lane in self._apart(entry, span)),
        }
        keys = [row_key for row_key, partition in rows if partition in partitions]
        if len(keys) > CHUNK_ROWS:
            return keys[CHUNK_ROWS - 1], keys[:CHUNK_ROWS]
        return (Cell.row_key(rows[-1]) if len(rows) == OTHERS_ROWS else None), keys

    def _expired_keys(self, entry: Entry, span: _Span, own: list[int], limit: int) -> list[int]:
        """Return the next keys of what is retired, and of what has expired since the last sweep."""
        reached_ms = min(self._state.retired_until_ms, span.expired_at_ms or 0)
        partitions = [entry.partition, *(held.partition for held in entry.lapsed)]
        bounds = (json.dumps(own), span.after, span.until, limit, reached_ms, span.expired_at_ms)
        rows = self._state.fetch("expired_keys", (*bounds, json.dumps(partitions)))
        return [row_key for (row_key,) in rows]

    def _apart(self, entry: Entry, span: _Span) -> list[int]:
        """Return the lanes of claims, and those of what is staged if that is asked for."""
        lanes = [
            lane
            for held in entry.claims
            if not (held.lapsed and span.invisible_at_ms is not None)
            for lane in lanes_of(held.partition, held.lanes_used)
        ]
        if span.staged and entry.staged:
            of = entry.queue.account, entry.queue.name
            for slot in self._state.catalog.slots.values():
                if (slot.account, slot.queue) == of:
                    lanes += lanes_of(slot.partition, slot.lanes_used)
        return lanes

    def _lanes_of_groups(self, entry: Entry, span: _Span) -> str:
        """Return the lanes that may have messages of groups, as JSON."""
        lanes = [*(lane.partition for lane in entry.lanes), *self._apart(entry, span)]
        return json.dumps([lane for lane in lanes if is_grouped(lane)])

    def _without_large_group(self, entry: Entry, span: _Span) -> _Span:
        """Return the same, without the group if its keys are too many to be sorted."""
        if span.group_id is None:
            return span
        bounds = (self._lanes_of_groups(entry, span), span.group_id, SORTED_UP_TO + 1)
        if self._state.value("group_size", bounds) <= SORTED_UP_TO:
            return span
        return span._replace(group_id=None)

    def _is_small(self, entry: Entry, span: _Span) -> bool:
        """Tell whether a queue's keys may be sorted, those of what has expired included."""
        missing = SORTED_UP_TO - entry.message_count - (entry.staged if span.staged else 0)
        if missing < 0:
            return False
        if span.invisible_at_ms is not None and span.expired_at_ms is None:
            return True
        lanes = json.dumps([lane.partition for lane in entry.lanes])
        return bool(self._state.value("retired", (lanes, missing + 1)) <= missing)


# --- groups ------------------------------------------------------------------------------------


class GroupScanner:
    """Counts the messages of groups, in the order of the index by group of each lane."""

    def __init__(self, state: State) -> None:
        self._state = state

    def page(self, entry: Entry, command: CountGroups, now_ms: int) -> GroupPage:
        """Count some messages, from a place on."""
        found: dict[str, GroupFigures] = {}
        place, left = command.after, command.limit
        for lane, held in self._lanes(entry):
            if place is not None and lane < place.lane:
                continue
            after = place if place is not None and lane == place.lane else None
            rows = self._rows(lane, command.group_id, after, left)
            for group, part in groupby(rows, itemgetter(0)):
                figures = _figures_of(list(part), held, now_ms)
                found[group] = found.get(group, _NO_FIGURES).plus(figures)
            left -= len(rows)
            if left <= 0:
                place = GroupPlace(lane, *rows[-1][:4])
                return GroupPage(_without_empty(found), place, dict(entry.halts))
        settings = entry.queue.settings.groups
        weights = {} if settings is None else settings.weights
        shares = {} if entry.turns is None else entry.turns.work.shares()
        work = GroupWork(shares, weights)
        return GroupPage(_without_empty(found), None, dict(entry.halts), work)

    def _lanes(self, entry: Entry) -> list[tuple[int, OpenClaimState | None]]:
        """Return the lanes of groups, also those of claims, in an order that does not change."""
        lanes: list[tuple[int, OpenClaimState | None]] = [
            (lane.partition, None) for lane in entry.lanes if lane.is_grouped
        ]
        for held in entry.claims:
            numbers = lanes_of(held.partition, held.lanes_used)
            lanes += [(number, held) for number in numbers if is_grouped(number)]
        return sorted(lanes, key=itemgetter(0))

    def _rows(
        self, lane: int, group_id: str | None, after: GroupPlace | None, limit: int
    ) -> list[Any]:
        """Return rows of one lane: of one group or of all, from a place on."""
        state, rows = self._state, list[Any]()
        name = group_id if after is None else after.group_id
        if name is not None:
            _, _, received, *place = after or GroupPlace(lane, name, 0, -1, -1)
            for side in range(received, 2):
                bounds = (lane, name, side, *place, limit - len(rows))
                rows += state.fetch("group_rows", bounds)
                place = [-1, -1]
        if group_id is None and len(rows) < limit:
            rows += state.fetch("group_rows_after", (lane, name or "", limit - len(rows)))
        return rows


_NO_FIGURES: Final = GroupFigures()


def _without_empty(found: dict[str, GroupFigures]) -> dict[str, GroupFigures]:
    return {group: figures for group, figures in found.items() if figures != _NO_FIGURES}


def _figures_of(rows: list[Any], held: OpenClaimState | None, now_ms: int) -> GroupFigures:
    """Count rows of one lane; what a claim hides is in flight, and does not expire."""
    if held is not None and (not held.lapsed or held.claim.until_ms > now_ms):
        return GroupFigures(in_flight=len(rows))
    waiting, oldest_ms = 0, None
    numbers = dict.fromkeys(Phase, 0)
    until_ms = None if held is None else held.claim.until_ms
    for _, _, visible_at_ms, _, phase, expires_at_ms, retired in rows:
        if retired or expires_at_ms <= now_ms:
            continue
        since_ms = visible_at_ms if until_ms is None else until_ms
        if since_ms > now_ms:
            numbers[Phase(phase)] += 1
            continue
        waiting += 1
        if oldest_ms is None or since_ms < oldest_ms:
            oldest_ms = since_ms
    delayed = numbers[Phase.DELAYED] + numbers[Phase.WAITING]
    return GroupFigures(waiting, numbers[Phase.LEASED], delayed, numbers[Phase.DEFERRED], oldest_ms)


def seen_of(kept: Kept, now_ms: int) -> Seen:
    """Return a message of a queue as inspectors see it; what a claim hides does not expire."""
    entry, _, message, held = kept
    if held is None:
        return Seen(message, state_of(message, now_ms), entry.queue.name)
    if held.lapsed:
        return Seen(message, state_of(message, now_ms), entry.queue.name)
    return Seen(message, MessageState.LEASED, entry.queue.name, held.under())


# --- searching ---------------------------------------------------------------------------------
#
# Finding what can be received in a database, in the order in which it is received.
#
# What may not be delivered again is moved to the poison queue on the way.


WITHOUT_BODIES: Final = "next_visible_without_bodies"
WITH_SIZES: Final = "next_visible_with_sizes"
"""Queries that can find messages as well."""
SearchStep: TypeAlias = tuple[Callable[[], None], Callable[[Row], bool]]
"""Begins to take; is told of each message that is taken, and tells whether one more is wanted."""


def _first_of(rows: list[Row], step: SearchStep) -> list[Row]:
    """Return rows up to the first one after which none is wanted."""
    begin, takes = step
    begin()
    for place, row in enumerate(rows):
        if not takes(row):
            return rows[: place + 1]
    return rows


def _cut(limits: Sequence[int], most: int) -> list[int]:
    """Return limits whose sum is not above *most*."""
    cut = []
    for limit in limits:
        cut.append(min(limit, most))
        most -= cut[-1]
    return cut


@dataclass(slots=True)
class _Budget:
    """How many messages may go to the poison queue."""

    count: int


_priority_of_lane: Final = attrgetter("priority")


class FreshRun(NamedTuple):
    """Messages that were never received before, and are the same but for ids and bodies."""

    size: int
    """How many."""
    ids: bytes
    """16 bytes of each."""
    ends: tuple[int, int]
    """The lowest and the highest of their row keys."""
    size_bytes: int
    """Of all their bodies; 0 if that was not asked for."""
    inserted_at_ms: int
    expires_at_ms: int
    visible_at_ms: int
    fence: int
    phase: int

    @property
    def is_dense(self) -> bool:
        """Whether there is no other message between the lowest and the highest row key."""
        return self.ends[1] - self.ends[0] + 1 == self.size


_TRIED_FIRST: Final = 64
"""Where so many messages are not the same, more of them are not looked at."""


class Search:
    """Finds messages.

    Args:
        state: The store's.
    """

    def __init__(self, state: State) -> None:
        self._state = state
        self._groups = GroupSearch(state)

    def next_visible(
        self, entry: Entry, now_ms: int, limit: int, query: str = "next_visible"
    ) -> list[Row]:
        """Return what is visible, in the order in which it is received."""
        if entry.lapsed:
            return self._with_lapsed(entry, now_ms, limit, query)
        if len(entry.lanes) == 1:
            return self._visible_in(entry.lanes[0], now_ms, limit, query)
        ageing_s = entry.queue.settings.priority_ageing_s
        rows: list[Row] = []
        for _, lanes in groupby(entry.lanes, _priority_of_lane):
            if ageing_s is None and len(rows) >= limit:
                break
            missing = limit if ageing_s is not None else limit - len(rows)
            for lane in lanes:
                rows += self._visible_in(lane, now_ms, missing, query)
        rows.sort(key=lambda row: order_of_row(row, ageing_s))
        return rows[:limit]

    def _with_lapsed(self, entry: Entry, now_ms: int, limit: int, query: str) -> list[Row]:
        """Return what is visible in a queue and in its claims that have lapsed."""
        ageing_s = entry.queue.settings.priority_ageing_s
        found: list[tuple[tuple[int, int, int, int], Row]] = []
        for lane in entry.lanes:
            rows = self._visible_in(lane, now_ms, limit, query)
            found += [(order_of_row(row, ageing_s), row) for row in rows]
        for held in entry.lapsed:
            until_ms = held.claim.until_ms
            if until_ms <= now_ms and held.claim.remaining:
                for number in lanes_of(held.partition, held.lanes_used):
                    for row in self._state.fetch(query, (number, now_ms, limit, 0, NEVER_MS)):
                        as_claimed = visible_from(row, until_ms)
                        # They all became visible at once: their place in the claim decides,
                        # which is in the future if the clock was set back.
                        place_ms = Cell.visible_at_ms(row)
                        found.append((order_of_row(as_claimed, ageing_s, place_ms), as_claimed))
        found.sort(key=itemgetter(0))
        return [row for _, row in found[:limit]]

    def _visible_in(self, lane: Lane, now_ms: int, limit: int, query: str) -> list[Row]:
        if now_ms < lane.scanned_at_ms:
            lane.forget_scan()
        bounds = (lane.partition, now_ms, limit, lane.live_from_ms, now_ms)
        rows = self._state.fetch(query, bounds)
        found_all = len(rows) < limit
        if found_all and lane.live_from_ms and not lane.is_sure:
            lane.forget_scan()
            rows = self._state.fetch(query, (*bounds[:3], 0, now_ms))
        first_ms = Cell.visible_at_ms(rows[0]) if rows else None
        lane.scanned(now_ms, first_ms, found_all=found_all)
        return rows

    def next_run(
        self, entry: Entry, now_ms: int, wanted: int, *, sized: bool
    ) -> tuple[Lane, FreshRun] | None:
        """Return what a claim may take next, if that is of one lane, and all the same.

        None where it is not, or where there is more to look at than what is visible.
        """
        query = "next_run_with_sizes" if sized else "next_run"
        if not entry.plain or entry.lapsed or len(entry.lanes) > 1 or query not in self._state.sql:
            return None
        lane = entry.lanes[0]
        if now_ms < lane.scanned_at_ms:
            lane.forget_scan()
        for limit in sorted({min(_TRIED_FIRST, wanted), wanted}):
            bounds = (lane.partition, now_ms, limit, lane.live_from_ms)
            ((count, again, detailed, *found),) = self._state.fetch(query, bounds)
            least, most = found[4::2], found[5::2]
            if not count or again or detailed or least != most:
                return None
        ids, first_key, last_key, size_bytes = found[:4]
        run = FreshRun(count, ids, (first_key, last_key), size_bytes, *least)
        lane.scanned(now_ms, run.visible_at_ms, found_all=count < wanted)
        return lane, run

    def next_for_claim(
        self, entry: Entry, now_ms: int, wanted: int, query: str, step: SearchStep
    ) -> list[Row]:
        """Return what a claim may take next; no more than *step* wants."""
        if not entry.plain:
            return self.allowed(entry, now_ms, (wanted,), query, step)
        rows = self._next(entry, now_ms, wanted, query, step)
        if query == WITHOUT_BODIES and not any(map(Cell.dequeue_count, rows)):
            return rows  # nothing that *step* counts
        return _first_of(rows, step)

    def _next(
        self, entry: Entry, now_ms: int, wanted: int, query: str, step: SearchStep | None
    ) -> list[Row]:
        """Return what is visible; no more than can be wanted if all was received before."""
        again = cl.AGAIN_STEP
        if step is not None and wanted > again:
            first = self.next_visible(entry, now_ms, 1, query)
            if any(map(Cell.dequeue_count, first)):
                rows = self.next_visible(entry, now_ms, again, query)
                if len(rows) == again and all(map(Cell.dequeue_count, rows)):
                    return rows
        return self.next_visible(entry, now_ms, wanted, query)

    def allowed(  # noqa: PLR0913, PLR0917 - what the search is for
        self,
        entry: Entry,
        now_ms: int,
        limits: Sequence[int],
        query: str = "next_visible",
        step: SearchStep | None = None,
        group: str | None = None,
    ) -> list[Row]:
        """Return what may be received from a queue that is limited; poison goes its way.

        Args:
            entry: The queue.
            now_ms: The time.
            limits: Most messages, of each receive. One that gets fewer is the last that gets any.
            query: Finds them.
            step: Begins, and is told of each message in turn; tells whether one more is wanted.
            group: Only messages of this group, for the session that holds it.
        """
        settings = entry.queue.settings
        if settings.is_paused(now_ms):
            return []
        wanted = sum(limits)
        rate_per_s = self._state.catalog.rate_of(entry)
        if rate_per_s is not None:
            allowed, bucket = allowance(entry.bucket, rate_per_s, now_ms)
            self._state.set_bucket(entry, bucket)
            wanted = min(wanted, allowed)
        if group is not None:
            rows = self._of_group(entry, now_ms, group, wanted, query)
        elif settings.groups is not None:
            if rate_per_s is not None:
                limits = _cut(limits, wanted)
            rows = self._in_turn(entry, now_ms, limits, query, step)
        else:
            rows = self._next(entry, now_ms, wanted, query, step) if wanted else []
            if settings.failure_policy is not None:
                rows = self._without_poison(entry, rows, now_ms, wanted, query, step)
            elif step is not None:
                rows = _first_of(rows, step)
        if rate_per_s is not None and entry.bucket is not None:
            self._state.set_bucket(entry, spend(entry.bucket, len(rows)))
        return rows

    def _without_poison(  # noqa: PLR0913, PLR0917 - positional: what the search was for
        self,
        entry: Entry,
        rows: list[Row],
        now_ms: int,
        wanted: int,
        query: str,
        step: SearchStep | None,
    ) -> list[Row]:
        """Move what may not be delivered again, and see what comes in its place."""
        left = _Budget(POISONED_AT_ONCE)
        while True:
            good: list[Row] = []
            if step is not None:
                step[0]()
            for row in rows:
                is_good = self._is_good(entry, now_ms, left, row)
                if is_good is None:
                    return good
                if is_good:
                    good.append(row)
                    if step is not None and not step[1](row):
                        return good
            if len(good) == len(rows):
                return rows
            rows = self._next(entry, now_ms, wanted, query, step)

    def _is_good(
        self, entry: Entry, now_ms: int, left: _Budget, row: Row, given: int = 0
    ) -> bool | None:
        """Tell whether a message may be delivered; what may not goes to the poison queue.

        Args:
            entry: The queue.
            now_ms: The time.
            left: How many may go there.
            row: The message.
            given: Messages of its group that are delivered before it.

        Returns:
            None if it is to wait: too many have gone there, or it would halt its group, which
            was given something in the same batch.
        """
        policy = entry.queue.settings.failure_policy
        # What was never received before has used up nothing.
        if policy is None or not Cell.dequeue_count(row):
            return True
        message = message_of(row)
        lapsed = after_lapse(message, now_ms)
        reason = exhausted_on_receive(lapsed, policy)
        if reason is None:
            return True
        groups = entry.queue.settings.groups
        if given and groups is not None and groups.halts(message.detail.group_id):
            return None
        if not left.count:
            return None
        if lapsed is not message:
            self._state.log.add(EventType.LAPSED, entry, lapsed)
        held = self._state.catalog.claims.get(Cell.lane(row) & PARTITION_MASK)
        poison(self._state, Kept(entry, Cell.row_key(row), message, held), lapsed, reason, now_ms)
        left.count -= 1
        return False

    def _of_group(
        self, entry: Entry, now_ms: int, group: str, wanted: int, query: str
    ) -> list[Row]:
        """Return what one group gives to the session that holds it."""
        good = self._judge(entry, now_ms)
        return list(self._groups.take_from(entry, now_ms, group, wanted, query, good))

    def _in_turn(
        self,
        entry: Entry,
        now_ms: int,
        limits: Sequence[int],
        query: str,
        step: SearchStep | None,
    ) -> list[Row]:
        """Return what the groups of a queue give that is shared by them."""
        source = self._groups.take(entry, now_ms, limits, query, self._judge(entry, now_ms))
        if step is None:
            return list(source)
        step[0]()
        rows: list[Row] = []
        with contextlib.closing(source):
            for row in source:
                rows.append(row)
                if not step[1](row):
                    break
        return rows

    def _judge(self, entry: Entry, now_ms: int) -> Good | None:
        """Return what tells whether a message may be delivered; None where all may."""
        if entry.queue.settings.failure_policy is None:
            return None
        return partial(self._is_good, entry, now_ms, _Budget(POISONED_AT_ONCE))
