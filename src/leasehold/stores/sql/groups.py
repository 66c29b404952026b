"""The groups of queues in a database: which messages each can give, found without the others.

Messages of groups are in lanes of their own, with an index by group. Whose turn it is stands in
memory (:class:`~leasehold.domain.groups.Turns`); what a group can give is looked up each time, so
what is in memory may be out of date and costs a look in vain, never a wrong message.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias
from zlib import crc32

from leasehold.domain.groups import (
    ANY,
    NOW,
    Group,
    Rank,
    Turns,
    after_given,
    is_ordered,
    next_group,
    next_turn_ms,
    place_in_group,
    rate_kept,
    rate_room,
    room_again_ms,
    take_from,
    take_turns,
)
from leasehold.domain.model import NEVER_MS
from leasehold.domain.noisy_groups import MAX_COUNTED
from leasehold.domain.queue_settings import GroupOrder, GroupRate
from leasehold.domain.visibility import order_of
from leasehold.stores.sql.catalog import Entry, is_grouped, lanes_of, priority_of
from leasehold.stores.sql.rows import Cell, Row, message_of, visible_from
from leasehold.stores.sql.state import State

Good: TypeAlias = Callable[[Row, int], bool | None]
"""Tells whether a message may be delivered, told how many of its group came before it; if not, it
has moved it to the poison queue. None if none may go there now."""
_AT_ONCE: Final = 32
"""Messages of one group that are read at first, at most; four times as many each time that is not
enough."""
_BUSY_MS: Final = 20
"""Until a group is looked at again that another server was giving messages of."""
_UNSURE_MS: Final = 100
"""The same for a group that another server may free at any moment; and how long it may take, as a
rule, until what another server has put can be seen."""
_UNSURE_MOST_MS: Final = 5_000
_LOOKS_PER_MS: Final = 2
"""So many such groups are looked at in a millisecond at most: of very many each only every now and
then, at most after _UNSURE_MOST_MS. Who has freed a group knows that anyway."""
_LATE_MS: Final = 20_000
"""How long that may take at most. It is heard of in half of it."""
_FRONT: Final = 17
"""Columns of a row, behind which those stand that say more of its group."""
_FOR_GROUPS: Final = {
    "next_visible": "group_heads",
    "next_visible_without_bodies": "group_heads_without_bodies",
    "next_visible_with_sizes": "group_heads_with_sizes",
}
"""What finds messages of some groups in place of those of a lane."""


class GroupSearch:
    """Finds what can be received from queues whose settings speak of groups.

    Args:
        state: The store's.
    """

    def __init__(self, state: State) -> None:
        self._state = state

    def take(
        self, entry: Entry, now_ms: int, limits: Sequence[int], query: str, good: Good | None
    ) -> Generator[Row]:
        """Go over the messages that receives or a claim get; whoever has enough closes it.

        Args:
            entry: The queue.
            now_ms: The time.
            limits: Messages at most, of each receive.
            query: Finds messages of a queue without groups.
            good: Judges each message; None where all are good.
        """
        turns = self._turns_of(entry, now_ms)
        looks = _Looks(self._state, entry, turns, now_ms, query, sum(limits), good)
        source = take_turns(turns, now_ms, limits, looks)
        return _rated(source, looks) if looks.policy.has_rates else source

    def take_from(  # noqa: PLR0913, PLR0917 - as take
        self, entry: Entry, now_ms: int, group: str, limit: int, query: str, good: Good | None
    ) -> Generator[Row]:
        """Go over the messages of one group, for the session that holds it."""
        turns = self._turns_of(entry, now_ms)
        looks = _Looks(self._state, entry, turns, now_ms, query, limit, good, group)
        source = take_from(turns, group, limit, looks)
        return _rated(source, looks) if looks.policy.has_rates else source

    def next_group(self, entry: Entry, now_ms: int) -> str | None:
        """Return the group whose turn it is of those that have something."""
        turns = self._turns_of(entry, now_ms)
        return next_group(turns, now_ms, self._glance(entry, turns, now_ms))

    def next_due_ms(self, entry: Entry, now_ms: int) -> int | None:
        """Return when a receive may next get something; None for not by itself."""
        turns = self._turns_of(entry, now_ms)
        return next_turn_ms(turns, now_ms, self._glance(entry, turns, now_ms))

    def _glance(self, entry: Entry, turns: Turns, now_ms: int) -> _Looks:
        """Look at groups of which nothing is taken."""
        return _Looks(self._state, entry, turns, now_ms, "next_visible_without_bodies", 1, None)

    def again_ms(self, entry: Entry, group: str, now_ms: int) -> int | None:
        """Return when the rate of a group allows one more; None if it does now."""
        settings = entry.queue.settings.groups
        rate = None if settings is None else settings.rate_of(group)
        if rate is None:
            return None
        full_at_us = _full_at_us(self._state, entry, [group]).get(group, 0)
        if rate_room(rate, full_at_us, now_ms):
            return None
        return room_again_ms(rate, full_at_us, now_ms)

    def held(self, entry: Entry, group: str, now_ms: int, limit: int) -> tuple[int, list[Row]]:
        """Return how many messages of a group are on leases, and what is not visible of it."""
        state, leased = self._state, 0
        rows: list[Row] = []
        names = state.names_of([group])
        for lane in entry.lanes:
            if lane.is_grouped:
                bounds = (lane.partition, group, now_ms)
                for _, _, own_leased, *_ in state.fetch(
                    "groups_held", (lane.partition, names, now_ms)
                ):
                    leased += own_leased
                rows += state.fetch("group_held_rows", (*bounds, limit))
        for number, _ in _hiding_lanes(entry, now_ms):
            for _, members in state.fetch("groups_members", (number, names)):
                leased += members
            rows += state.fetch("group_held_rows", (number, group, -1, limit))
        return leased, rows

    def _turns_of(self, entry: Entry, now_ms: int) -> Turns:
        """Return whose turn it is, found out from the rows where that is not known."""
        settings = entry.queue.settings.groups
        assert settings is not None
        turns = entry.turns
        if turns is not None and turns.settings is not settings and turns.settings == settings:
            turns.settings = settings  # to compare them takes as long as a look
        if turns is None or turns.settings is not settings:
            first: dict[Group, tuple[int, int]] = {None: (NOW, 0)}
            for lane in entry.lanes:
                if lane.is_grouped:
                    for group, *at in self._state.fetch("groups_of_lane", (lane.partition,)):
                        place = (at[0], at[1])
                        first[group] = min(first.get(group, place), place)
            for held in entry.lapsed:
                for number in filter(is_grouped, lanes_of(held.partition, held.lanes_used)):
                    for group, *_ in self._state.fetch("groups_of_lane", (number,)):
                        first[group] = NOW, 0
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
        if not 0 <= now_ms - turns.heard_late_ms < _LATE_MS // 2:
            since_ms, turns.heard_late_ms = min(since_ms, now_ms - _LATE_MS), now_ms
        for lane in entry.lanes:
            if lane.is_grouped:
                bounds = (lane.partition, since_ms, now_ms)
                for (group,) in self._state.fetch("groups_since", bounds):
                    turns.call(group, NOW)


def call_lanes(state: State, turns: Turns, lanes: Sequence[int]) -> None:
    """Have the groups looked at that have messages in lanes of a claim, or of what is staged."""
    turns.call(None, NOW)
    for lane in filter(is_grouped, lanes):
        for group, *_ in state.fetch("groups_of_lane", (lane,)):
            turns.call(group, NOW)


def _unsure_ms(group: str, waiting: int) -> int:
    """Return when to look whether another server has freed a group, not all of them at once."""
    wait_ms = min(waiting // _LOOKS_PER_MS, _UNSURE_MOST_MS)
    if wait_ms <= _UNSURE_MS:
        return _UNSURE_MS
    return wait_ms * 3 // 4 + crc32(group.encode()) % (wait_ms // 2)


def _hiding_lanes(
    entry: Entry, now_ms: int, *, grouped: bool | None = True
) -> Iterator[tuple[int, int]]:
    """Go over the lanes with what claims hide, and until when they do.

    Args:
        entry: The queue.
        now_ms: The time.
        grouped: Only those of groups, or only the others; None for all.
    """
    for held in entry.claims:
        if not held.lapsed or held.claim.until_ms > now_ms:
            for number in lanes_of(held.partition, held.lanes_used):
                if grouped is None or is_grouped(number) is grouped:
                    yield number, held.claim.until_ms


def _full_at_us(state: State, entry: Entry, groups: Sequence[str]) -> dict[str, int]:
    """Return how far the rates of groups are used up."""
    if not groups:
        return {}
    return dict(state.fetch("group_rates", (entry.scope, state.names_of(groups))))


def _rated(source: Generator[Row], looks: _Looks) -> Generator[Row]:
    """Go over what receives get, and keep how far rates are used up after that."""
    try:
        yield from source
    finally:
        source.close()
        looks.keep_rates()


class _Looks:
    """Looks at the groups of a queue; see :class:`leasehold.domain.groups.Looks`.

    Groups are looked at together: a statement costs as much as ten of the looks that it makes.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - what the search is for
        self,
        state: State,
        entry: Entry,
        turns: Turns,
        now_ms: int,
        query: str,
        wanted: int,
        good: Good | None,
        own: str | None = None,
    ) -> None:
        policy = entry.queue.settings.groups
        assert policy is not None
        self.known: dict[Group, _Look] = {}
        self.state, self.entry, self.policy, self.turns = state, entry, policy, turns
        self.now_ms, self.query, self.wanted, self.good = now_ms, query, wanted, good
        self.ageing_s = entry.queue.settings.priority_ageing_s
        self.has_limits = True
        """Whether there is any group of which not all may be on leases at once."""
        self._own = own
        """The group that whoever receives holds."""
        self._front_lane = self._find_front_lane()
        self._places: dict[int, int] = {}
        """By row key: the places of members of lapsed claims."""

    def read(self, groups: Sequence[Group]) -> None:
        """See :class:`Looks`."""
        self.has_limits = bool(self.policy.has_limits or self.turns.work.limits)
        names = self._open_of(groups)
        if None in groups:
            self.known[None] = _Look(self, None, self._without_group(self.wanted))
        if self._front_lane is not None and self.wanted <= len(names):
            names = self._read_fronts(names, self._front_lane)
        if names:
            self._read_wholly(names)

    def _read_wholly(self, names: Sequence[str]) -> None:
        """Look at groups in which anything may be, whoever else gives messages of them."""
        allowed = self.state.lock_groups(self.entry, names)
        found = self._heads(allowed, min(self.wanted // max(1, len(names)) + 1, _AT_ONCE))
        held, visible = self._held(allowed)
        if self.policy.order is GroupOrder.FIFO:
            # Others give back, renew and settle what they hold while we look, and do not wait for
            # us: a message that came back in between is before those that were found.
            allowed = [name for name in allowed if visible[name] <= found[name].received]
        ended: dict[str, _Look] = {}
        full_at_us: dict[str, int] = {}
        if self.policy.has_rates:
            full_at_us = _full_at_us(self.state, self.entry, allowed)
        for name in allowed:
            look = self.known[name] = _Look(self, name, found[name])
            is_stopped = name in held and look.weigh(held[name])
            if self.policy.has_rates and look.ration(full_at_us.get(name, 0)):
                is_stopped = True
            if found[name].is_whole and not is_stopped:
                ended[name] = look
        for name, at_ms in self._next(tuple(ended)).items():
            ended[name].again_ms = at_ms
        for name in names:
            if name not in self.known:
                self._pass_over(name, self.now_ms + _BUSY_MS)

    def _find_front_lane(self) -> int | None:
        """Return the lane with all that groups can give, where one message of each is to be read.

        None where there are several, where claims have some of it, or rates are to be kept.
        """
        entry = self.entry
        if self.query not in self.state.fronts or entry.claims or self.policy.has_rates:
            return None
        lanes = [lane.partition for lane in entry.lanes if lane.is_grouped]
        return lanes[0] if len(lanes) == 1 else None

    def _read_fronts(self, names: Sequence[str], lane: int) -> Sequence[str]:
        """Look at groups with one statement for all there is to know; return those left over.

        These are groups that may have something else than what was never received.
        """
        state, now_ms, known = self.state, self.now_ms, self.known
        # What was received holds a group up that is in order, or fills its limit, till it is gone.
        is_fifo = self.policy.order is GroupOrder.FIFO
        is_free = not (is_fifo or self.has_limits)
        until_ms = now_ms if is_free else NEVER_MS
        if len(names) == 1:
            rows = state.fetch("group_front", (lane, names[0], now_ms, until_ms))
        else:
            rows = state.fetch("group_fronts", (lane, state.names_of(names), now_ms, until_ms))
        ended: dict[str, _Look] = {}
        for row in rows:
            name, received, behind_ms = row[_FRONT:]
            if not received:
                is_whole = behind_ms is None or behind_ms > now_ms
                look = known[name] = _Look(self, name, _Heads([row[:_FRONT]], is_whole=is_whole))
                if not is_whole:
                    look.behind_ms = behind_ms
                elif is_free:
                    ended[name] = look
                elif behind_ms is not None:
                    look.again_ms = behind_ms
        if ended:
            for name, at_ms in self._next(tuple(ended)).items():
                ended[name].again_ms = at_ms
        return [name for name in names if name not in known]

    def in_flight(self) -> Mapping[Group, int]:
        """See :class:`Looks`."""
        found: Counter[Group] = Counter()
        for lane in self.entry.lanes:
            for group, leased in self.state.fetch(
                "lane_in_flight", (lane.partition, self.now_ms, MAX_COUNTED)
            ):
                found[group] += leased
        for number, _ in _hiding_lanes(self.entry, self.now_ms, grouped=None):
            for group, members in self.state.fetch("lane_members", (number, MAX_COUNTED)):
                found[group] += members
        return found

    def _open_of(self, groups: Sequence[Group]) -> Sequence[str]:
        """Return those of groups that do not stand still, and that no other session holds."""
        names = [group for group in groups if group is not None]
        halts, holds = self.entry.halts, self.entry.holds
        if not halts and not holds:
            return names
        shut = {name for name in names if name in halts or (name in holds and name != self._own)}
        for name in shut:
            self._pass_over(name, NEVER_MS)
        return [name for name in names if name not in shut]

    def _pass_over(self, group: str, again_ms: int) -> None:
        """Give nothing of a group until some moment."""
        look = self.known[group] = _Look(self, group, _Heads([], is_whole=True))
        look.give_up(again_ms)

    def keep_rates(self) -> None:
        """Write down how far the rates of groups are used up that have given something."""
        state, scope = self.state, self.entry.scope
        used = [(scope, *each) for look in self.known.values() if (each := look.used())]
        state.cursor.executemany(state.sql["keep_rate"], used)

    # --- messages that can be given -------------------------------------------------------------

    def heads(self, group: Group, limit: int) -> _Heads:
        """Return the next messages of one group, in their order."""
        if group is None:
            return self._without_group(limit)
        return self._heads([group], limit)[group]

    def _heads(self, names: Sequence[str], limit: int) -> dict[str, _Heads]:
        """Return the next messages of groups, in their order: so many, or more, of each."""
        found = {name: _Heads([], is_whole=True) for name in names}
        if not names:
            return found
        query = _FOR_GROUPS[self.query]
        is_ordered = self.policy.order is GroupOrder.FIFO
        # Of a group in order all that was received before: the first of those may be any of them.
        bounds = self.state.names_of(names), self.now_ms, limit, -1 if is_ordered else limit
        for lane, until_ms in self._lanes(grouped=True):
            counts: dict[tuple[str, bool], int] = {}
            visible_ms = self._visible_until(until_ms)
            for name, *columns in self.state.fetch(query, (lane, *bounds, visible_ms)):
                heads, row = found[name], tuple(columns)
                again = Cell.dequeue_count(row) > 0
                heads.received += again and until_ms is None
                counts[name, again] = count = counts.get((name, again), 0) + 1
                if count >= limit and not (again and is_ordered):
                    heads.is_whole = False
                heads.rows.append(row if until_ms is None else self._lapsed(row, until_ms))
        for heads in found.values():
            if len(heads.rows) > 1:
                heads.rows.sort(key=_place if is_ordered else self._order_of)
                del heads.rows[limit if not heads.is_whole else len(heads.rows) :]
        return found

    def _without_group(self, limit: int) -> _Heads:
        """Return the next messages that are of no group."""
        rows: list[Row] = []
        is_whole = True
        for lane, until_ms in self._lanes(grouped=False):
            bounds = lane, self.now_ms, limit, 0, self._visible_until(until_ms)
            some = self.state.fetch(self.query, bounds)
            is_whole = is_whole and len(some) < limit
            rows += some if until_ms is None else [self._lapsed(row, until_ms) for row in some]
        rows.sort(key=self._order_of)
        return _Heads(rows[:limit], is_whole=is_whole and len(rows) <= limit)

    def _lanes(self, *, grouped: bool) -> Iterator[tuple[int, int | None]]:
        """Go over the lanes that may have messages to give; of a lapsed claim with its end."""
        for lane in self.entry.lanes:
            if lane.is_grouped is grouped:
                yield lane.partition, None
        for held in self.entry.lapsed:
            if held.claim.until_ms <= self.now_ms and held.claim.remaining:
                for number in lanes_of(held.partition, held.lanes_used):
                    if is_grouped(number) is grouped:
                        yield number, held.claim.until_ms

    def _visible_until(self, until_ms: int | None) -> int:
        """Return up to which moment of a lane its messages are visible.

        All that a lapsed claim had are: their moments are their places in it.
        """
        return self.now_ms if until_ms is None else NEVER_MS

    def _lapsed(self, row: Row, until_ms: int) -> Row:
        """Return a member of a lapsed claim as it can be received; remember its place there."""
        self._places[Cell.row_key(row)] = Cell.visible_at_ms(row)
        return visible_from(row, until_ms)

    def _order_of(self, row: Row) -> tuple[int, int, int, int]:
        return order_of_row(row, self.ageing_s, self._places.get(Cell.row_key(row)))

    def rank_of(self, row: Row) -> Rank:
        """Return the rank of a message."""
        priority = priority_of(Cell.lane(row))
        return order_of(priority, Cell.visible_at_ms(row), Cell.row_key(row), self.ageing_s)

    # --- what holds groups up ------------------------------------------------------------------

    def _held(self, names: Sequence[str]) -> tuple[dict[str, _Held], Counter[str]]:
        """Return what is received and not visible, of groups to which it matters.

        And how much of each is received and visible, where others may have changed that.
        """
        policy = self.policy
        if policy.order is not GroupOrder.FIFO:
            names = [name for name in names if self.turns.limit_of(name) is not None]
        found: dict[str, _Held] = {}
        visible: Counter[str] = Counter()
        if not names:
            return found, visible
        known = self.state.names_of(names)
        # First those of claims, which come back into the lanes.
        for number, until_ms in _hiding_lanes(self.entry, self.now_ms):
            for name, members in self.state.fetch("groups_members", (number, known)):
                found[name] = _Held(members, members, until_ms).with_more(found.get(name))
        for lane in self.entry.lanes:
            if lane.is_grouped:
                bounds = (lane.partition, known, self.now_ms)
                for name, received, *own, ready in self.state.fetch("groups_held", bounds):
                    visible[name] += ready
                    if received:
                        found[name] = _Held(received, *own).with_more(found.get(name))
        return found, visible

    def _next(self, names: Sequence[str]) -> dict[str, int]:
        """Return when groups that have nothing more to give now may have, if that is known."""
        found: dict[str, int] = {}
        if names:
            known = self.state.names_of(names)
            for lane, _ in self._lanes(grouped=True):
                for name, *each in self.state.fetch("groups_next", (lane, known, self.now_ms)):
                    at_ms = min((at_ms for at_ms in each if at_ms is not None), default=NEVER_MS)
                    found[name] = min(found.get(name, NEVER_MS), at_ms)
        return found

    def next_ms(self, group: Group) -> int:
        """Return when more of a group becomes visible; NEVER_MS for never."""
        if group is not None:
            return self._next([group]).get(group, NEVER_MS)
        rows = [
            row
            for lane, _ in self._lanes(grouped=False)
            for row in self.state.fetch("next_invisible", (lane, self.now_ms))
        ]
        return min((at_ms for (at_ms,) in rows), default=NEVER_MS)


@dataclass(slots=True)
class _Heads:
    """The next messages of a group that can be given."""

    rows: list[Row]
    is_whole: bool
    """Whether there are no others."""
    received: int = 0
    """How many were found that were received before, in the queue's own lanes."""


class _Held(NamedTuple):
    """What of a group was received and is not visible."""

    received: int
    leased: int
    until_ms: int
    """When the first of them is free."""

    def with_more(self, more: _Held | None) -> _Held:
        """Return both together."""
        if more is None:
            return self
        until_ms = min(self.until_ms, more.until_ms)
        received = self.received + more.received
        return _Held(received, self.leased + more.leased, until_ms)


def order_of_row(
    row: Row, ageing_s: int | None, place_ms: int | None = None
) -> tuple[int, int, int, int]:
    """Return the sort key of a message to receive.

    Of those that are due at the same moment, what was visible first comes first: members of a
    lapsed claim became visible all at once, and have their place in it.
    """
    priority, visible_at_ms = priority_of(Cell.lane(row)), Cell.visible_at_ms(row)
    urgency, due_ms, row_key = order_of(priority, visible_at_ms, Cell.row_key(row), ageing_s)
    return urgency, due_ms, visible_at_ms if place_ms is None else place_ms, row_key


def _place(row: Row) -> tuple[int, int]:
    """Return the place of a message in its group, see :func:`place_in_group`."""
    detail = Cell.detail(row)
    if Cell.dequeue_count(row) or (detail is not None and "first_visible_at_ms" in detail):
        return place_in_group(message_of(row), Cell.row_key(row))
    return Cell.visible_at_ms(row), Cell.row_key(row)


class _Look:
    """What one group can give; see :class:`leasehold.domain.groups.Look`."""

    __slots__ = (
        "_bound",
        "_full_at_us",
        "_group",
        "_heads",
        "_is_set_back",
        "_limit",
        "_looks",
        "_room",
        "_taken",
        "again_ms",
        "behind_ms",
        "given",
        "rate",
    )

    def __init__(self, looks: _Looks, group: Group, heads: _Heads) -> None:
        self._looks, self._group, self._heads = looks, group, heads
        self._limit = len(heads.rows) or 1
        self._room: int | None = None
        if looks.has_limits and group is not None:
            self._room = looks.turns.limit_of(group)
        self._taken: set[int] = set()
        self.given = 0
        """Messages, to receives."""
        self.rate: GroupRate | None = None
        self._full_at_us = 0
        self._is_set_back = False
        """Whether the clock was, since the rate was used."""
        self._bound: Row | None = None
        """What was taken last."""
        self.behind_ms = 0
        """What was not read yet was not visible before, as far as that is known."""
        self.again_ms = NEVER_MS
        """When the group may have something that it does not have now, as far as that is known."""

    def weigh(self, held: _Held) -> bool:
        """Note what of the group is not visible; tell whether it gives nothing for that."""
        if self._room is not None:
            self._room -= held.leased
        if is_ordered(self._looks.policy, self._group):
            self._room = 0
        if self._room is None or self._room > 0:
            return False
        self.again_ms = held.until_ms
        return True

    def ration(self, full_at_us: int) -> bool:
        """Note how far the rate of the group is used up; tell whether it gives nothing for that."""
        assert self._group is not None
        rate = self.rate = self._looks.policy.rate_of(self._group)
        if rate is None:
            return False
        now_ms = self._looks.now_ms
        self._full_at_us = rate_kept(rate, full_at_us, now_ms)
        self._is_set_back = full_at_us - self._full_at_us > self._looks.state.late_us
        room = rate_room(rate, full_at_us, now_ms)
        self._room = room if self._room is None else min(self._room, room)
        if room > 0:
            return False
        self.again_ms = min(self.again_ms, room_again_ms(rate, full_at_us, now_ms))
        return True

    def used(self) -> tuple[str, int] | None:
        """Return how far the rate of the group is used up now; None if that is as it was."""
        is_same = not self.given and not self._is_set_back
        if self.rate is None or is_same or self._group is None:
            return None
        now_ms = self._looks.now_ms
        return self._group, after_given(self.rate, self._full_at_us, now_ms, self.given)

    def give_up(self, again_ms: int) -> None:
        """Give no more until some moment."""
        self._room, self.again_ms = 0, again_ms
        self._heads = _Heads([], is_whole=False)

    def rank(self) -> Rank | None:
        """See :class:`Look`."""
        if self._room is not None and self._room <= 0:
            return None
        if not self._heads.rows and not self._heads.is_whole:
            self._read_more()
        rows = self._heads.rows
        return self._looks.rank_of(rows[0]) if rows else None

    def _read_more(self) -> None:
        """Read messages behind those that were taken."""
        heads, taken = self._heads, self._taken
        while not heads.rows and not heads.is_whole:
            self._limit, self.behind_ms = self._limit * 4, 0
            heads = self._looks.heads(self._group, self._limit + len(taken))
            heads.rows = [row for row in heads.rows if Cell.row_key(row) not in taken]
        self._heads = heads
        if heads.is_whole and self._group is not None:
            self.again_ms = min(self.again_ms, self._looks.next_ms(self._group))

    def rank_bound(self) -> Rank | None:
        """See :class:`Look`."""
        if self._room is not None and self._room <= 0:
            return None
        rows = self._heads.rows
        first = rows[0] if rows else self._bound
        if first is None or (not rows and self._heads.is_whole):
            return self.rank()
        if self._looks.policy.fair:
            return ANY
        if not rows and self.behind_ms:
            priority = priority_of(Cell.lane(first))
            return order_of(priority, self.behind_ms, 0, self._looks.ageing_s)
        return self._looks.rank_of(first)

    def take(self) -> Row | None:
        """See :class:`Look`."""
        while self._room is None or self._room > 0:
            rows = self._heads.rows
            if not rows:
                if self._heads.is_whole:
                    return None
                self._read_more()
                continue
            row = self._bound = rows.pop(0)
            self._taken.add(Cell.row_key(row))
            good = self._looks.good
            is_good = True if good is None else good(row, self.given)
            if is_good:
                self._looks.wanted -= 1
                self.given += 1
                if self._room is not None:
                    self._room -= 1
                return row
            if self._group in self._looks.entry.halts:
                self.give_up(NEVER_MS)
            if is_good is None:
                self.give_up(NOW)
        return None

    def again(self) -> tuple[int, int]:
        """See :class:`Look`."""
        looks, group, rows = self._looks, self._group, self._heads.rows
        at_ms = looks.next_ms(None) if group is None else self.again_ms
        if self.rate is not None and (used := self.used()) is not None:
            at_ms = min(at_ms, room_again_ms(self.rate, used[1], looks.now_ms))
        if group in looks.turns.work.limits:  # it may be another then
            at_ms = min(at_ms, looks.turns.work.next_ms)
        if group is not None:
            # Of what is not visible now it is heard when that changes, whichever server did it.
            has_none = self._heads.is_whole and not rows
            if looks.state.is_shared and not has_none:
                return min(at_ms, looks.now_ms + _unsure_ms(group, looks.turns.waiting())), NOW
            if looks.policy.order is GroupOrder.FIFO and not (has_none and at_ms >= NEVER_MS):
                return at_ms, NOW  # where the clock was set back its first may be older than that
        if rows:
            return at_ms, Cell.visible_at_ms(rows[0])
        return at_ms, at_ms if self._heads.is_whole else self.behind_ms
