"""The groups of queues in a database: which messages each can give, found without the others.

Messages of groups are in lanes of their own, with an index by group. Whose turn it is stands in
memory (:class:`~leasehold.domain.groups.Turns`); what a group can give is looked up each time, so
what is in memory may be out of date and costs a look in vain, never a wrong message.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Final, TypeAlias

from leasehold.domain.groups import (
    NOW,
    Group,
    Rank,
    Turns,
    is_ordered,
    next_turn_ms,
    place_in_group,
    take_turns,
)
from leasehold.domain.visibility import order_of
from leasehold.stores.sql.catalog import Entry, is_grouped, lanes_of, priority_of
from leasehold.stores.sql.rows import Cell, Row, message_of, visible_from
from leasehold.stores.sql.state import State

Good: TypeAlias = Callable[[Row], bool | None]
"""Tells whether a message may be delivered; if not, it has moved it to the poison queue. None if
there were too many of those."""
_AT_ONCE: Final = 32
"""Messages of one group that are read at first; four times as many each time that is not enough."""
_BUSY_MS: Final = 20
"""Until a group is looked at again that another server was giving messages of."""
_UNSURE_MS: Final = 100
"""The same for a group that another server may free at any moment."""
_FOR_GROUPS: Final = {
    "next_visible": "group_visible",
    "next_visible_without_bodies": "group_visible_without_bodies",
    "next_visible_with_sizes": "group_visible_with_sizes",
}
"""What finds messages of one group in place of those of a lane."""


class GroupSearch:
    """Finds what can be received from queues whose settings speak of groups.

    Args:
        state: The store's.
    """

    def __init__(self, state: State) -> None:
        self._state = state

    def take(
        self, entry: Entry, now_ms: int, wanted: int, query: str, good: Good
    ) -> Generator[Row]:
        """Go over the messages that one receive or claim gets; whoever has enough closes it."""
        turns = self._turns_of(entry, now_ms)
        limit = min(wanted, _AT_ONCE)
        return take_turns(
            turns,
            now_ms,
            wanted,
            lambda group: _Look(self._state, entry, group, now_ms, query, limit, good),
        )

    def next_due_ms(self, entry: Entry, now_ms: int) -> int | None:
        """Return when a receive may next get something; None for not by itself."""
        turns = self._turns_of(entry, now_ms)
        query = "next_visible_without_bodies"
        return next_turn_ms(
            turns, now_ms, lambda group: _Look(self._state, entry, group, now_ms, query, 1, _any)
        )

    def held(self, entry: Entry, group: str, now_ms: int, limit: int) -> tuple[int, list[Row]]:
        """Return how many messages of a group are on leases, and what is not visible of it."""
        state, leased = self._state, 0
        rows: list[Row] = []
        for lane in entry.lanes:
            if is_grouped(lane.partition):
                bounds = (lane.partition, group, now_ms)
                ((_, own_leased, _),) = state.fetch("group_held", bounds)
                leased += own_leased
                rows += state.fetch("group_held_rows", (*bounds, limit))
        for number, _ in _hiding_lanes(entry, now_ms):
            leased += state.value("group_members", (number, group))
            rows += state.fetch("group_held_rows", (number, group, -1, limit))
        return leased, rows

    def _turns_of(self, entry: Entry, now_ms: int) -> Turns:
        """Return whose turn it is, found out from the rows where that is not known."""
        settings = entry.queue.settings.groups
        assert settings is not None
        turns = entry.turns
        if turns is None or turns.settings != settings:
            first: dict[Group, int] = {None: NOW}
            for lane in entry.lanes:
                if is_grouped(lane.partition):
                    for group, at_ms in self._state.fetch("groups_of_lane", (lane.partition,)):
                        if at_ms is not None:  # not all of it has expired
                            first[group] = min(first.get(group, at_ms), at_ms)
            for held in entry.lapsed:
                for number in filter(is_grouped, lanes_of(held.partition, held.lanes_used)):
                    for group, _ in self._state.fetch("groups_of_lane", (number,)):
                        first[group] = NOW
            turns = Turns.found(settings, first)
            turns.heard_ms = now_ms
            entry.turns = turns
        turns.urgent = entry.lanes[0].priority
        turns.ageing_s = entry.queue.settings.priority_ageing_s
        turns.begin()
        self._state.turns.add(turns)
        if self._state.is_shared:
            self._hear_of_others(entry, turns, now_ms)
        else:
            turns.heard_ms = now_ms
        return turns

    def _hear_of_others(self, entry: Entry, turns: Turns, now_ms: int) -> None:
        """Have the groups looked at of which something became visible, by whatever server."""
        turns.call(None, NOW)
        since_ms, turns.heard_ms = turns.heard_ms - _UNSURE_MS, now_ms
        for lane in entry.lanes:
            if is_grouped(lane.partition):
                bounds = (lane.partition, since_ms, now_ms)
                for (group,) in self._state.fetch("groups_since", bounds):
                    turns.call(group, NOW)


def call_lanes(state: State, turns: Turns, lanes: Sequence[int]) -> None:
    """Have the groups looked at that have messages in lanes of a claim, or of what is staged."""
    turns.call(None, NOW)
    for lane in filter(is_grouped, lanes):
        for group, _ in state.fetch("groups_of_lane", (lane,)):
            turns.call(group, NOW)


def _hiding_lanes(entry: Entry, now_ms: int) -> Iterator[tuple[int, int]]:
    """Go over the lanes with members of groups that claims hide, and until when they do."""
    for held in entry.claims:
        if not held.lapsed or held.claim.until_ms > now_ms:
            for number in filter(is_grouped, lanes_of(held.partition, held.lanes_used)):
                yield number, held.claim.until_ms


def _any(_: Row) -> bool:
    return True


class _Look:
    """What one group can give to a receive; see :class:`leasehold.domain.groups.Look`."""

    def __init__(  # noqa: PLR0913, PLR0917 - what the search is for
        self,
        state: State,
        entry: Entry,
        group: Group,
        now_ms: int,
        query: str,
        limit: int,
        good: Good,
    ) -> None:
        policy = entry.queue.settings.groups
        assert policy is not None
        self._state, self._entry, self._group = state, entry, group
        self._now_ms, self._query, self._limit, self._good = now_ms, query, limit, good
        self._ageing_s = entry.queue.settings.priority_ageing_s
        self._is_ordered = is_ordered(policy, group)
        self._room = None if group is None else policy.limit_of(group)
        self._taken: set[int] = set()
        self._held_until_ms: int | None = None
        """When the group may be free, if it gives nothing for what is on leases."""
        if group is not None and not state.lock_group(entry, group):
            self._rows: list[Row] = []
            self._is_whole, self._held_until_ms = True, now_ms + _BUSY_MS
            return
        self._read()
        if self._is_ordered or self._room is not None:
            self._weigh_leases()

    # --- reading -----------------------------------------------------------------------------

    def _read(self) -> None:
        """Read the next messages in their order, those taken before left out."""
        limit = self._limit
        found: list[Row] = []
        most = 0
        for lane, until_ms in self._lanes():
            rows = self._visible(lane, limit)
            most = max(most, len(rows))
            if until_ms is not None:
                rows = [visible_from(row, until_ms) for row in rows]
            found += rows
        self._is_whole = most < limit
        found = [row for row in found if Cell.row_key(row) not in self._taken]
        if self._is_ordered:
            found.sort(key=lambda row: place_in_group(message_of(row), Cell.row_key(row)))
        else:
            found.sort(key=self._rank_of)
        self._rows = found[:limit]
        self._is_whole = self._is_whole and len(found) <= limit

    def _lanes(self) -> Iterator[tuple[int, int | None]]:
        """Go over the lanes that may have messages to give; of a lapsed claim with its end."""
        wants_grouped = self._group is not None
        for lane in self._entry.lanes:
            if is_grouped(lane.partition) is wants_grouped:
                yield lane.partition, None
        for held in self._entry.lapsed:
            if held.claim.until_ms <= self._now_ms and held.claim.remaining:
                for number in lanes_of(held.partition, held.lanes_used):
                    if is_grouped(number) is wants_grouped:
                        yield number, held.claim.until_ms

    def _visible(self, lane: int, limit: int) -> list[Row]:
        """Return the visible messages of one lane; of a group in order, all received before."""
        state, now_ms = self._state, self._now_ms
        if self._group is None:
            return state.fetch(self._query, (lane, now_ms, limit, 0))
        query, group = _FOR_GROUPS[self._query], self._group
        most = -1 if self._is_ordered else limit
        rows = state.fetch(query, (lane, group, now_ms, 1, most))
        return rows + state.fetch(query, (lane, group, now_ms, 0, limit))

    def _weigh_leases(self) -> None:
        """Find out what is on leases, and so how many more may be."""
        held, leased, until_ms = 0, 0, None
        for lane in self._entry.lanes:
            if is_grouped(lane.partition):
                bounds = (lane.partition, self._group, self._now_ms)
                ((own, own_leased, ends_ms),) = self._state.fetch("group_held", bounds)
                held, leased = held + own, leased + own_leased
                until_ms = _earlier(until_ms, ends_ms)
        for number, ends_ms in _hiding_lanes(self._entry, self._now_ms):
            members = self._state.value("group_members", (number, self._group))
            if members:
                held, leased = held + members, leased + members
                until_ms = _earlier(until_ms, ends_ms)
        if self._room is not None:
            self._room -= leased
        if (self._is_ordered and held) or (self._room is not None and self._room <= 0):
            self._rows, self._is_whole, self._held_until_ms = [], True, until_ms

    # --- giving ------------------------------------------------------------------------------

    def _rank_of(self, row: Row) -> Rank:
        priority = priority_of(Cell.lane(row))
        return order_of(priority, Cell.visible_at_ms(row), Cell.row_key(row), self._ageing_s)

    def rank(self) -> Rank | None:
        """See :class:`Look`."""
        if self._room is not None and self._room <= 0:
            return None
        if not self._rows and not self._is_whole:
            self._limit *= 4
            self._read()
        return self._rank_of(self._rows[0]) if self._rows else None

    def take(self) -> Row | None:
        """See :class:`Look`."""
        while self.rank() is not None:
            row = self._rows.pop(0)
            self._taken.add(Cell.row_key(row))
            is_good = self._good(row)
            if is_good:
                if self._room is not None:
                    self._room -= 1
                return row
            if is_good is None:
                self._rows, self._is_whole, self._held_until_ms = [], True, NOW
        return None

    def again_ms(self) -> int | None:
        """See :class:`Look`."""
        again_ms = self._held_until_ms
        if again_ms is None:
            for lane, _ in self._lanes():
                bounds = (lane, self._now_ms)
                if self._group is None:
                    rows = self._state.fetch("next_invisible", bounds)
                else:
                    rows = self._state.fetch("group_next", (*bounds, self._group))
                for (at_ms,) in rows:
                    again_ms = _earlier(again_ms, at_ms)
        if self._state.is_shared and self._group is not None:
            return _earlier(again_ms, self._now_ms + _UNSURE_MS)
        return again_ms


def _earlier(first_ms: int | None, second_ms: int | None) -> int | None:
    if first_ms is None or second_ms is None:
        return second_ms if first_ms is None else first_ms
    return min(first_ms, second_ms)
