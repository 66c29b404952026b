"""Whose turn it is: how the groups of a queue share it.

A store asks :class:`Turns` which group comes next, looks for the next messages of that group, and
says how that ended. So nothing here depends on how many messages there are, and a group that is
taken for ready and is not costs one look.

Fairness is start-time fair queueing (Goyal, Vin and Cheng, 1996): each message that a group is
given moves its finish by 1/weight, a group that comes back begins no earlier than the group that is
served now, and the smallest start is served first. Of deficit round robin it has the shares, and a
newcomer does not wait for a whole round.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from heapq import heapify, heappop, heappush
from itertools import islice
from math import ceil
from typing import Final, NamedTuple, Protocol, TypeAlias, TypeVar
from zlib import crc32

from leasehold.domain.command import DONE as DONE  # noqa: PLC0414 - answers some of these
from leasehold.domain.command import Answer, Command, Done, Lock, always, changes, never, one
from leasehold.domain.command import Rank as BatchRank
from leasehold.domain.errors import GroupNotHeld
from leasehold.domain.model import NEVER_MS, GroupHalt, GroupHold, Message, Phase
from leasehold.domain.noisy_groups import Group as Group  # noqa: PLC0414 - part of this
from leasehold.domain.noisy_groups import Work
from leasehold.domain.queue_settings import GroupOrder, GroupRate, GroupSettings
from leasehold.domain.visibility import first_visible_ms, order_of

Rank: TypeAlias = tuple[float, int, int]
"""Of a fair queue: when the group is served in virtual time. Of others: the place of its first
message, see :func:`leasehold.domain.visibility.order_of`."""
ANY: Final = 0.0, 0, 0
"""As the rank of a group in a fair queue, whose turns know it."""
NOW: Final = 0
"""As a moment: at the next look, whatever the time is."""


_Row = TypeVar("_Row")
_Row_co = TypeVar("_Row_co", covariant=True)


def call_for(message: Message) -> int:
    """Return from when on the group of a message that was put or changed is to be looked at."""
    if message.phase is Phase.LEASED:
        return min(message.visible_at_ms, message.expires_at_ms)
    return message.visible_at_ms if message.phase is Phase.DELAYED else NOW


def place_in_group(message: Message, row_key: int) -> tuple[int, int]:
    """Return the sort key of a message in a group that is in order, which no lease changes.

    A message that is put with a delay takes its place when the delay is over.
    """
    first_ms = first_visible_ms(message)
    return message.inserted_at_ms if first_ms is None else first_ms, row_key


def is_of_part(name: str, part: int, parts: int) -> bool:
    """Tell whether a part of a claim has the members of a group, where groups are whole.

    Args:
        name: Of the group; for a message without one its id.
        part: 0 to *parts* - 1.
        parts: How many there are.
    """
    return crc32(name.encode()) % parts == part


class _Before(NamedTuple):
    """What an undone batch has changed."""

    virtual: float
    heard_ms: int
    finishes: dict[Group, float | None]
    """Of groups that were looked at."""


class _Nobody(Enum):
    NOBODY = auto()


_NOBODY: Final = _Nobody.NOBODY


class Turns:
    """Which groups of a queue may have something to give, and which of them is next.

    Args:
        settings: Those of the queue.
    """

    __slots__ = (
        "_before",
        "_calls",
        "_count",
        "_due",
        "_finish",
        "_forget_at",
        "_heaviest",
        "_now_ms",
        "_ranks",
        "_ready",
        "_served_since",
        "_soon",
        "_virtual",
        "ageing_s",
        "heard_late_ms",
        "heard_ms",
        "settings",
        "urgent",
        "work",
    )

    def __init__(self, settings: GroupSettings) -> None:
        self.settings = settings
        self.work = Work(settings)
        """What groups have of the consumers."""
        self._ready = _Ready()
        """Those whose rank is not the one in ``_ranks`` are out of date."""
        self._ranks: dict[Group, Rank] = {}
        """Groups that are taken for ready."""
        self._calls: list[tuple[int, int, Group]] = []
        """When a group is to be looked at; out of date if it is not the moment in ``_due``."""
        self._soon: list[Group] = []
        """Those that are to be looked at NOW; they are not among the calls."""
        self._due: dict[Group, tuple[int, int]] = {}
        """That moment, and the oldest that a group may have."""
        self._finish: dict[Group, float] = {}
        """Of groups that were given something, the latest last."""
        self._forget_at = _KEPT
        self._virtual = 0.0
        self._served_since = 0
        """Messages given since that moved on."""
        self._heaviest = max(settings.weights.values(), default=1)
        self._count = 0
        self._now_ms = 0
        """When it was last asked who is next."""
        self.urgent = 1
        """The most urgent priority that a message can have."""
        self.ageing_s: int | None = None
        """Of the queue's settings."""
        self.heard_ms = 0
        """Up to when it is known what other servers have made visible, if there are any."""
        self.heard_late_ms = 0
        """When it was last asked what of that could be seen late."""
        self._before: _Before | None = None

    @classmethod
    def found(cls, settings: GroupSettings, first: Mapping[Group, tuple[int, int]]) -> Turns:
        """Return the turns of groups with messages that are there.

        Of groups that may be served at the same time the one comes first whose first message does:
        so they are served in the order of their messages, and neighbours lie together.

        Args:
            settings: Those of the queue.
            first: By group, a moment before which nothing of it is visible, or NOW, and the row key
                of what is visible then.
        """
        turns = cls(settings)
        for group, (at_ms, _) in sorted(first.items(), key=lambda each: (each[1], each[0] or "")):
            turns.call(group, at_ms, at_ms)
        return turns

    def begin(self) -> None:
        """Remember how it is, until :meth:`keep` or :meth:`undo`."""
        if self._before is None:
            self._before = _Before(self._virtual, self.heard_ms, {})

    def keep(self) -> None:
        """Note that what was given since :meth:`begin` has been given for good."""
        self._before = None

    def undo(self) -> None:
        """Note that nothing of that was given: those groups are where they were."""
        if self._before is not None:
            (self._virtual, self.heard_ms, finishes), self._before = self._before, None
            for group, finish in reversed(finishes.items()):
                self._ranks.pop(group, None)
                if finish is None:
                    self._finish.pop(group, None)
                else:
                    self._finish[group] = finish
                if self.settings.fair:  # those of equal rank came later than it
                    self.enter(group, ANY, is_first=True)
                else:
                    self.call(group, NOW)

    def call(self, group: Group, at_ms: int, oldest_ms: int = 0) -> None:
        """Have a group looked at from a moment on: it may have something to give then.

        Args:
            group: Which.
            at_ms: The moment, or NOW.
            oldest_ms: Nothing that it can give then was visible before, if that is known.
        """
        known = self._due.get(group)
        if known is None or at_ms < known[0]:
            if at_ms == NOW:
                self._soon.append(group)
            elif at_ms < NEVER_MS:
                self._count += 1
                heappush(self._calls, (at_ms, self._count, group))
            elif oldest_ms >= NEVER_MS:
                return
        elif oldest_ms >= known[1]:
            return
        if known is not None:
            at_ms, oldest_ms = min(at_ms, known[0]), min(oldest_ms, known[1])
        self._due[group] = at_ms, oldest_ms
        if at_ms != NOW and len(self._calls) > 2 * len(self._due) + _KEPT:
            self._forget_moved()

    def arrived(self, group: Group, at_ms: int) -> None:
        """Note that a message was put that is visible from now on.

        A group that is ready is looked at anyway, and no sooner for what is behind the rest of it.
        """
        known = self._ranks.get(group)
        if known is None or not (
            self.settings.fair or known <= order_of(self.urgent, at_ms, 0, self.ageing_s)
        ):
            self.call(group, at_ms, at_ms)

    def changed(self, message: Message) -> None:
        """Have the group of a message looked at that was put or changed, as it is now."""
        self.call(message.detail.group_id, call_for(message), message.visible_at_ms)

    def free(self, group: Group) -> None:
        """Have a group looked at that has one message less.

        Where it is known that it has nothing else to give by now, that is not for its sake.
        """
        known = self._due.get(group)
        if group in self._ranks:
            return
        if known is None:
            self.call(group, NOW)
        elif known[1] <= self._now_ms:
            self.call(group, NOW, known[1])

    def _forget_moved(self) -> None:
        """Forget moments at which no group is looked at any more."""
        due = self._due
        calls = [call for call in self._calls if due.get(call[2], _NEVER)[0] == call[0]]
        heapify(calls)
        self._calls = calls

    def call_due(self, now_ms: int) -> None:
        """Take those for ready whose moment has come.

        What their first message is will be seen when they are looked at; until then they have the
        rank of the most urgent that there can be.
        """
        if now_ms < self._now_ms:  # the clock was set back, and moments may be far off
            for group in list(self._due):
                self.call(group, NOW)
        self._now_ms = now_ms
        urgent, ageing_s, is_fair = self.urgent, self.ageing_s, self.settings.fair
        calls, due = self._calls, self._due
        called = [(NOW, 0, group) for group in self._soon]
        self._soon.clear()
        while calls and calls[0][0] <= now_ms:
            called.append(heappop(calls))
        for at_ms, _, group in called:
            known = due.get(group)
            if known is not None and known[0] == at_ms:
                del due[group]
                self.enter(group, ANY if is_fair else order_of(urgent, known[1], 0, ageing_s))

    def enter(self, group: Group, rank: Rank, *, is_first: bool = False) -> None:
        """Take a group for ready; *rank* is that of its first message, or an earlier one."""
        known = self._ranks.get(group)
        if self.settings.fair:
            if known is not None:
                return
            rank = max(self._finish.get(group, 0.0), self._virtual), 0, 0
        if known is None or rank < known:
            self._ranks[group] = self._ready.push(rank, group, is_first=is_first)

    def next(self) -> tuple[Group, Rank] | None:
        """Take the group whose turn it is out of those that are ready; None if there is none."""
        ready, ranks = self._ready, self._ranks
        while ready:
            group, rank = ready.pop()
            if ranks.get(group) == rank:
                del ranks[group]
                if self._before is not None:
                    self._before.finishes.setdefault(group, self._finish.get(group))
                return group, rank
        return None

    def ahead(self, most: int, known: Mapping[Group, object]) -> list[Group]:
        """Return who comes next if those before have nothing, each once, and leave them there.

        Args:
            most: So many groups.
            known: Groups that are left out.
        """
        ranks = self._ranks
        # A group that left and came back with the same rank is there twice.
        seen: set[Group] = set()
        found: list[Group] = []
        if most:
            for group, rank in islice(self._ready.walk(), 2 * most):
                if ranks.get(group) == rank and group not in seen:
                    seen.add(group)
                    if group not in known:
                        found.append(group)
                        if len(found) == most:
                            break
        return found

    def served(self, group: Group, rank: Rank) -> None:
        """Note that a group whose turn it was has given one message."""
        if self.settings.fair:
            weights = self.settings.weights
            weight = weights.get(group, 1) if weights and group is not None else 1
            self._move_on(rank[0])
            self._finish.pop(group, None)
            self._finish[group] = rank[0] + self.work.costs.get(group, 1.0) / weight
            if len(self._finish) > self._forget_at:
                self._forget_idle()

    def _move_on(self, start: float) -> None:
        """Note which turn is served, so that whoever comes anew begins no earlier.

        With groups that come anew without an end the others would wait for ever. So after a turn
        of each group by the weight of the heaviest, those included that had theirs, it moves on.
        """
        self._served_since += 1
        if start > self._virtual:
            self._virtual, self._served_since = start, 0
            return
        groups = len(self._ranks) + len(self._due) + len(self._finish)
        if self._served_since > self._heaviest * (groups + 1):
            self._virtual, self._served_since = self._virtual + 1.0, 0

    def limit_of(self, group: str) -> int | None:
        """Return how many messages of a group may be on leases now; None for any number."""
        limit, own = self.settings.limit_of(group), self.work.limits.get(group)
        return limit if own is None else own if limit is None else min(limit, own)

    def _forget_idle(self) -> None:
        """Forget what makes no difference: whoever comes back begins now at the earliest.

        And of groups that have nothing the ones that were served long ago, or there could be ever
        more of them.
        """
        now, ranks, due = self._virtual, self._ranks, self._due
        long_ago = len(self._finish) - _KEPT // 2
        self._finish = {
            group: at
            for number, (group, at) in enumerate(self._finish.items())
            if at > now and (number >= long_ago or group in ranks or group in due)
        }
        self._forget_at = 2 * len(self._finish) + _KEPT

    def first(self) -> Group | _Nobody:
        """Return the group whose turn it is, and leave it there; ``_NOBODY`` if there is none."""
        ready, ranks = self._ready, self._ranks
        while ready:
            group, rank = next(ready.walk())
            if ranks.get(group) == rank:
                return group
            ready.pop()
        return _NOBODY

    def leave(self, groups: Iterable[Group]) -> None:
        """Take some groups for ready no more."""
        for group in groups:
            self._ranks.pop(group, None)

    def call_looked_at(self, looks: Mapping[Group, Look[object]]) -> None:
        """Have those that are not ready looked at again when they may have something."""
        for group, look in looks.items():
            if group not in self._ranks:
                self.call(group, *look.again())

    def waiting(self) -> int:
        """Return how many groups are to be looked at at some moment."""
        return len(self._due)

    def due_ms(self) -> int | None:
        """Return when a group is next to be looked at, None for never."""
        calls, due = self._calls, self._due
        if any(due.get(group, _NEVER)[0] == NOW for group in self._soon):
            return NOW
        while calls and due.get(calls[0][2], _NEVER)[0] != calls[0][0]:
            heappop(calls)
        return calls[0][0] if calls else None


class _Ready:
    """Groups by rank, those of one rank in the order in which they came.

    In a fair queue most have the rank of many others, so that few are ever compared; a group alone
    with its rank takes no room but for that.
    """

    __slots__ = ("_at", "_last", "_ranks")

    def __init__(self) -> None:
        self._ranks: list[Rank] = []
        """A heap, each once."""
        self._at: dict[Rank, Group | deque[Group]] = {}
        self._last: Rank | None = None
        """The rank that was pushed last."""

    def __bool__(self) -> bool:
        """Tell whether there are any."""
        return bool(self._ranks)

    def push(self, rank: Rank, group: Group, *, is_first: bool = False) -> Rank:
        """Add a group; return its rank, the same object for those that come one after another."""
        if rank == self._last:
            rank = self._last
        self._last = rank
        if rank not in self._at:
            self._at[rank] = group
            heappush(self._ranks, rank)
        elif isinstance(there := self._at[rank], deque):
            (there.appendleft if is_first else there.append)(group)
        else:
            self._at[rank] = deque((group, there) if is_first else (there, group))
        return rank

    def pop(self) -> tuple[Group, Rank]:
        """Take the first out; there must be one."""
        rank = self._ranks[0]
        there = self._at[rank]
        if isinstance(there, deque):
            group = there.popleft()
            if there:
                return group, rank
        else:
            group = there
        heappop(self._ranks)
        del self._at[rank]
        return group, rank

    def walk(self) -> Iterator[tuple[Group, Rank]]:
        """Go over all in their order; nothing may change meanwhile."""
        ranks = self._ranks
        next_up = [(ranks[0], 0)] if ranks else []
        while next_up:
            rank, place = heappop(next_up)
            there = self._at[rank]
            for group in there if isinstance(there, deque) else (there,):
                yield group, rank
            for below in range(2 * place + 1, min(2 * place + 3, len(ranks))):
                heappush(next_up, (ranks[below], below))


_KEPT: Final = 1_000
_NEVER: Final = -1, NEVER_MS
"""In place of a moment at which a group is looked at."""


def is_ordered(settings: GroupSettings, group: Group) -> bool:
    """Tell whether the messages of a group are handed out in their order."""
    return group is not None and settings.order is GroupOrder.FIFO


# --- rates -------------------------------------------------------------------------------------
#
# A bucket of tokens is kept as one number: the moment, in microseconds, at which it would be full
# again. That is the generic cell rate algorithm of ATM (ITU-T I.371).


_US: Final = 1_000_000


def rate_kept(rate: GroupRate, full_at_us: int, now_ms: int) -> int:
    """Return the number as it is at this time: with the clock set back, the bucket is empty."""
    return min(full_at_us, now_ms * 1000 + rate.burst * _step_us(rate))


def rate_room(rate: GroupRate, full_at_us: int, now_ms: int) -> int:
    """Return how many messages of a group may be handed out now."""
    step_us = _step_us(rate)
    return (rate.burst * step_us - _missing_us(rate, full_at_us, now_ms)) // step_us


def after_given(rate: GroupRate, full_at_us: int, now_ms: int, given: int) -> int:
    """Return the number to keep after so many messages were handed out."""
    return now_ms * 1000 + _missing_us(rate, full_at_us, now_ms) + given * _step_us(rate)


def room_again_ms(rate: GroupRate, full_at_us: int, now_ms: int) -> int:
    """Return from when on one more may be handed out."""
    step_us = _step_us(rate)
    wait_us = _missing_us(rate, full_at_us, now_ms) - (rate.burst - 1) * step_us
    return now_ms + max(0, -(-wait_us // 1000))


def _step_us(rate: GroupRate) -> int:
    return ceil(_US / rate.per_s)


def _missing_us(rate: GroupRate, full_at_us: int, now_ms: int) -> int:
    """Return how long it is until the bucket is full."""
    return max(0, rate_kept(rate, full_at_us, now_ms) - now_ms * 1000)


# --- taking ------------------------------------------------------------------------------------


class Look(Protocol[_Row_co]):
    """What a group can give to the receives of a batch."""

    def rank(self) -> Rank | None:
        """Return the rank of the next message, in a fair queue any; None for no more now."""
        ...

    def rank_bound(self) -> Rank | None:
        """Return the same, or an earlier rank where the next message is not read yet."""
        ...

    def take(self) -> _Row_co | None:
        """Take that message; None if it turned out that there is none."""
        ...

    def again(self) -> tuple[int, int]:
        """Return from when on the group may have something for a later receive.

        Returns:
            The moment, NEVER_MS if it is not by itself, and the oldest that it may have then, or
            when it is free.
        """
        ...


class Looks(Protocol[_Row_co]):
    """Looks at groups, each once for the receives of a batch."""

    @property
    def known(self) -> Mapping[Group, Look[_Row_co]]:
        """Those there were."""
        ...

    def read(self, groups: Sequence[Group]) -> None:
        """Look at some groups that are not known yet, each named once."""
        ...

    def in_flight(self) -> Mapping[Group, int]:
        """Return how many messages of each group are on leases, members of claims included."""
        ...


def take_turns(
    turns: Turns, now_ms: int, limits: Sequence[int], looks: Looks[_Row]
) -> Generator[_Row]:
    """Go over what some receives get, in the order in which groups have their turns.

    What a group in order gives goes to one of them.

    Args:
        turns: Those of the queue.
        now_ms: The time.
        limits: Messages at most, of each receive in turn. One that gets fewer was the last that
            gets any.
        looks: Looks what groups can give.

    Yields:
        What looks take. Whoever has enough closes it.
    """
    missing = sum(limits)
    in_vain = 0  # looks: the more there were, the more groups are looked at together
    turns.begin()
    if limits and turns.work.is_due(now_ms):
        turns.work.note(now_ms, looks.in_flight(), limits[0])
    turns.call_due(now_ms)
    given: list[Group] = []
    """Groups in order that have given to this receive."""
    is_fair, is_fifo = turns.settings.fair, turns.settings.order is GroupOrder.FIFO
    try:
        for limit in limits:
            wanted = limit
            while wanted and (found := turns.next()) is not None:
                group, rank = found
                look = _look_at(turns, group, looks, missing + in_vain)
                if is_fair or ((own := look.rank()) is not None and own <= rank):
                    row = look.take()
                else:
                    row = None
                if row is not None:
                    if is_fifo and group is not None:
                        given.append(group)
                    turns.served(group, rank)
                    wanted, missing = wanted - 1, missing - 1
                else:
                    in_vain += 1
                if wanted or row is None or not is_fifo or group is None:  # or it is done for now
                    bound = look.rank_bound()
                    if bound is not None:
                        turns.enter(group, bound)
                if row is not None:
                    yield row
            turns.leave(given)
            given.clear()
    finally:
        turns.leave(given)
        turns.call_looked_at(looks.known)


_AHEAD: Final = 256
"""Groups that are looked at together, at most."""


def _look_at(turns: Turns, group: Group, looks: Looks[_Row], missing: int) -> Look[_Row]:
    """Look at a group, and if that is new, at those that will be next."""
    look = looks.known.get(group)
    if look is None:
        more = turns.ahead(min(missing, _AHEAD) - 1, looks.known) if missing > 1 else []
        looks.read([group, *more])
        look = looks.known[group]
    return look


def take_from(turns: Turns, group: str, limit: int, looks: Looks[_Row]) -> Generator[_Row]:
    """Go over what a receive gets of one group, which takes no turns while it is held.

    Args:
        turns: Those of the queue.
        group: Which.
        limit: Messages at most.
        looks: Looks what groups can give.

    Yields:
        What looks take. Whoever has enough closes it.
    """
    looks.read([group])
    look = looks.known[group]
    try:
        while limit and (row := look.take()) is not None:
            limit -= 1
            yield row
    finally:
        turns.call_looked_at(looks.known)


def next_group(turns: Turns, now_ms: int, looks: Looks[object]) -> str | None:
    """Return the group whose turn it is of those that have something, None for none.

    That is its turn: in a fair queue others go before it comes again.
    """
    turns.begin()
    turns.call_due(now_ms)
    without_group: Rank | None = None
    try:
        while (found := turns.next()) is not None:
            group, rank = found
            own = _look_at(turns, group, looks, 1).rank()
            if own is None:
                continue
            if group is None:
                without_group = own
            elif not turns.settings.fair and own > rank:
                turns.enter(group, own)
            else:
                turns.served(group, rank)
                return group
        return None
    finally:
        if without_group is not None:
            turns.enter(None, without_group)
        turns.call_looked_at(looks.known)


def next_turn_ms(turns: Turns, now_ms: int, looks: Looks[object]) -> int | None:
    """Return when a receive may next get something: now, later, or None for not by itself."""
    turns.call_due(now_ms)
    while (group := turns.first()) is not _NOBODY:
        if group not in looks.known:
            looks.read([group])
        look = looks.known[group]
        if look.rank() is not None:
            return now_ms
        turns.leave([group])
        at_ms, oldest_ms = look.again()
        turns.call(group, max(at_ms, now_ms + 1), oldest_ms)
    return turns.due_ms()


# --- standing still ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class HaltGroup(Command[GroupHalt]):
    """Have a message group give nothing more. Answer: GroupHalt, QueueNotFound or NoGroups.

    What is on leases is worked on. A group that stands still already stays as it is.
    """

    traits = changes(
        BatchRank.FIRST, one, Lock.ALONE, never, Answer.PLAIN, finishes=False, wakes=False
    )

    account: str
    queue: str
    group_id: str
    reason: str | None = None
    actor: str | None = None
    """Who asks for it, for the event log."""


@dataclass(frozen=True, slots=True)
class ResumeGroup(Command[bool]):
    """Have a message group go on. Answer: whether it stood still, QueueNotFound or NoGroups."""

    traits = changes(
        BatchRank.FIRST, one, Lock.ALONE, never, Answer.PLAIN, finishes=False, wakes=True
    )

    account: str
    queue: str
    group_id: str
    actor: str | None = None
    """Who asks for it, for the event log."""


# --- holding -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class HoldGroup(Command[GroupHold | None]):
    """Give a message group to a session alone. Answer: GroupHold, with its state; or None.

    None if another session holds it, or, where any will do, if no group has something that could be
    received. Or QueueNotFound, NoGroups, SessionNotFound, SessionOver. A session that holds the
    group already keeps its hold as it is. A hold ends with its session, or when it is released;
    until then only receives of that session for that group get messages of it.
    """

    traits = changes(
        BatchRank.TAKE, one, Lock.SHARED, always, Answer.PLAIN, finishes=False, wakes=False
    )

    account: str
    queue: str
    session: str
    group_id: str | None = None
    """None for the one whose turn it is."""


@dataclass(frozen=True, slots=True)
class SaveGroupState(Command[Done]):
    """Keep some bytes for a message group across holds, in place of what was kept. Answer: Done.

    Or QueueNotFound, NoGroups, GroupNotHeld.
    """

    traits = changes(
        BatchRank.FIRST, one, Lock.SHARED, always, Answer.PLAIN, finishes=False, wakes=False
    )

    account: str
    queue: str
    group_id: str
    session: str
    fence: int
    state: bytes
    """At most MAX_GROUP_STATE_BYTES; empty to keep nothing."""


@dataclass(frozen=True, slots=True)
class ReleaseGroup(Command[bool]):
    """End a hold; what the session has leased of the group stays on lease. Answer: whether it was.

    Or QueueNotFound, NoGroups, GroupNotHeld.
    """

    traits = changes(
        BatchRank.FIRST, one, Lock.ALONE, never, Answer.PLAIN, finishes=False, wakes=True
    )

    account: str
    queue: str
    group_id: str
    session: str | None = None
    """Whose hold; None for whoever has it, as an operator asks."""
    actor: str | None = None
    """Who asks for it, for the event log."""


def check_hold(hold: GroupHold | None, session: str | None, fence: int | None = None) -> None:
    """Let only the session go on that holds a group.

    Raises:
        GroupNotHeld: It does not, or not under that fence.
    """
    if hold is None or hold.session != session or fence not in {None, hold.fence}:
        raise GroupNotHeld
