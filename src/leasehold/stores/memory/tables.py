"""What a memory store holds: queues, the messages in them, and how to get at them."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, Protocol, TypeAlias

from leasehold.domain import claims as claim_rules
from leasehold.domain.admin import Job, Seen
from leasehold.domain.claims import Claim, Exemption, Step, Stream, place_ms
from leasehold.domain.commands import Complete, Duplicate, Release, Renew
from leasehold.domain.errors import (
    LeaseLost,
    MessageNotFound,
    NoGroups,
    QueueNotFound,
    ReceiptMalformed,
)
from leasehold.domain.event_recorder import (
    Recorder,
    changes_between,
    is_recorded,
    late,
    late_elsewhere,
)
from leasehold.domain.events import EventType
from leasehold.domain.failures import POISONED_AT_ONCE, exhausted_on_receive, newest_error
from leasehold.domain.groups import (
    NOW,
    Group,
    Look,
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
from leasehold.domain.model import (
    NEVER_MS,
    ErrorReport,
    GroupHalt,
    GroupHold,
    Lease,
    Message,
    MessageState,
    Queue,
    ReceiptParts,
    issue_receipt,
    read_receipt,
    row_key_of,
    size_of,
)
from leasehold.domain.queue_settings import FailurePolicy, poison_queue_of
from leasehold.domain.transactions import Bound
from leasehold.domain.visibility import (
    Bucket,
    after_lapse,
    after_poison,
    allowance,
    is_expired,
    is_receivable,
    order_of,
    receipt_refusal,
    receive_order,
    spend,
    state_of,
)

Rows: TypeAlias = dict[int, Message]


@dataclass(slots=True, eq=False)
class Holding:
    """A claim and its members, which stay in the table of their queue."""

    claim: Claim
    members: set[int] = field(default_factory=set)
    """Row keys of those that are still in it."""
    hidden: bool = True
    """Whether no other consumer can have the members: until the claim lapses."""
    accepted_loss: bool = False
    """Whether it was opened in spite of its last loss."""
    dissolving: bool = False
    """Whether it was given back: its stream knows it no more, and its members leave it in steps."""
    notes: dict[int, Exemption] = field(default_factory=dict)
    """By row key: what becomes of members, also of some lost since, when it is settled."""


@dataclass(slots=True)
class StreamTable:
    """A stream and its claims by number."""

    account: str
    queue: str
    name: str
    token: int = 0
    last_settled: int = 0
    attached_at_ms: int = 0
    settled_with: str | None = None
    claims: dict[int, Holding] = field(default_factory=dict)

    def as_stream(self) -> Stream:
        """Return the stream as others see it."""
        return Stream(
            account=self.account,
            queue=self.queue,
            stream=self.name,
            token=self.token,
            last_settled=self.last_settled,
            attached_at_ms=self.attached_at_ms,
            settled_with=self.settled_with,
            claims=tuple(self.claims[number].claim for number in sorted(self.claims)),
        )


@dataclass(slots=True)
class QueueTable:
    """A queue and what is in it."""

    queue: Queue
    rows: Rows = field(default_factory=dict)
    retired: Rows = field(default_factory=dict)
    bucket: Bucket | None = None
    keys: dict[str, tuple[Duplicate, int]] = field(default_factory=dict)
    """By deduplication key: the first message, and the end of the window."""
    streams: dict[str, StreamTable] = field(default_factory=dict)
    held: dict[int, Holding] = field(default_factory=dict)
    """By row key: the claim that the message is in, hidden or not."""
    halts: dict[str, GroupHalt] = field(default_factory=dict)
    """By group: those that stand still."""
    holds: dict[str, GroupHold] = field(default_factory=dict)
    """By group: those that sessions hold."""
    group_states: dict[str, bytes] = field(default_factory=dict)
    """By group: what was saved for it."""
    full_at_us: dict[str, int] = field(default_factory=dict)
    """By group: how far its rate is used up; see :func:`leasehold.domain.groups.rate_room`."""
    turns: Turns | None = None
    """Of its groups; None if its settings have none, or they are to be found out."""

    def first_with(self, key: str | None, now_ms: int) -> Duplicate | None:
        """Return the message that has used a deduplication key, if its window is open."""
        if key is None or key not in self.keys or now_ms >= self.keys[key][1]:
            return None
        return self.keys[key][0]

    def keep_key(self, message: Message, receipt: str) -> None:
        """Remember the key of a message that is put now, for as long as the window is."""
        key, window_s = message.detail.dedup_key, self.queue.settings.dedup_window_s
        if key is not None and window_s:
            first = Duplicate(
                message.message_id,
                receipt,
                message.inserted_at_ms,
                message.expires_at_ms,
                message.visible_at_ms,
            )
            self.keys[key] = first, message.inserted_at_ms + window_s * 1000

    def hides(self, row_key: int) -> bool:
        """Tell whether a claim hides the message from everybody else."""
        holding = self.held.get(row_key)
        return holding is not None and holding.hidden

    def state_of(self, row_key: int, now_ms: int) -> MessageState:
        """Say in which state a message is; what a claim hides does not expire."""
        if self.hides(row_key):
            return MessageState.LEASED
        return state_of(self.rows[row_key], now_ms)

    def seen(self, row_key: int, now_ms: int) -> Seen:
        """Return a message as an inspector sees it: under a claim while that hides it."""
        under = claim_rules.name_of(self.held[row_key].claim) if self.hides(row_key) else None
        return Seen(self.rows[row_key], self.state_of(row_key, now_ms), self.queue.name, under)


class _OfQueue(Protocol):
    @property
    def account(self) -> str: ...

    @property
    def queue(self) -> str: ...


class Tables:
    """All queues of a store, and the time of the batch."""

    def __init__(self, receipt_key: bytes) -> None:
        self.receipt_key = receipt_key
        self.queues: dict[tuple[str, str], QueueTable] = {}
        self.jobs: dict[str, Job] = {}
        self.holdings: list[Holding] = []
        """All claims that are not settled, in the order in which they were opened."""
        self.log = Recorder()
        self.last_row_key = 0
        self.last_token = 0
        self.dropped: list[Message] = []
        """What was cleared, deleted, settled or discarded, until it is reaped."""
        self.body_keys: set[str] = set()
        """Keys of the body store that a message has referred to, until they are forgotten."""
        self.now_ms = 0

    def get(self, account: str, queue: str) -> QueueTable:
        """Return a queue, or raise QueueNotFound."""
        try:
            return self.queues[account, queue]
        except KeyError:
            raise QueueNotFound from None

    def create(self, queue: Queue) -> QueueTable:
        """Put up a new queue."""
        table = self.queues[queue.account, queue.name] = QueueTable(queue)
        self.note(EventType.QUEUE_CREATED, table)
        return table

    def change(self, table: QueueTable, queue: Queue) -> None:
        """Have a queue be as *queue* says, and record what is different."""
        before, table.queue = table.queue, queue
        if before.settings.event_log or queue.settings.event_log:
            for kind, reason, until_ms in changes_between(before, queue):
                self.log.add_of_queue(kind, queue.account, queue.name, reason, until_ms)

    def poison_of(self, table: QueueTable) -> QueueTable | None:
        """Return the poison queue of a queue, if there is one."""
        name = poison_queue_of(table.queue.name, table.queue.settings)
        return self.queues.get((table.queue.account, name))

    def make_poison_of(self, table: QueueTable) -> QueueTable:
        """Return the poison queue of a queue, created if need be."""
        found = self.poison_of(table)
        if found is None:
            queue = table.queue
            name = poison_queue_of(queue.name, queue.settings)
            found = self.create(Queue(account=queue.account, name=name, created_at_ms=self.now_ms))
        return found

    # --- changes -----------------------------------------------------------------------------

    @staticmethod
    def stir(table: QueueTable, message: Message, at_ms: int | None = None) -> None:
        """Have the group of a message looked at that has changed, or is free as of *at_ms*."""
        if table.turns is not None:
            if at_ms is None:
                table.turns.changed(message)
            else:
                table.turns.call(message.detail.group_id, at_ms)

    @staticmethod
    def turns_of(table: QueueTable) -> Turns | None:
        """Return whose turn it is, None for a queue that knows no groups."""
        settings = table.queue.settings.groups
        if settings is None:
            table.turns = None
        elif table.turns is None or table.turns.settings != settings:
            first: dict[Group, tuple[int, int]] = {}
            for row_key, message in table.rows.items():
                group, place = message.detail.group_id, (message.visible_at_ms, row_key)
                first[group] = min(first.get(group, place), place)
            table.turns = Turns.found(settings, first)
        if table.turns is not None:
            table.turns.ageing_s = table.queue.settings.priority_ageing_s
        return table.turns

    def keep(self, table: QueueTable, row_key: int, message: Message) -> Lease:
        """Put a message in a table; return it with the receipt that acts on it now.

        One that was in a claim has been taken from it.
        """
        self.leave(table, row_key)
        table.rows[row_key] = message
        self.stir(table, message)
        self.note_body(message)
        return Lease(message, issue_receipt(self.receipt_key, row_key, message.fence))

    def note_body(self, message: Message) -> None:
        """Note where the body of a new or changed message is."""
        if message.detail.body_ref is not None:
            self.body_keys.add(message.detail.body_ref.key)

    def take(self, table: QueueTable, row_key: int) -> Message:
        """Take a message from its table, and from its claim."""
        self.leave(table, row_key)
        if table.turns is not None:
            table.turns.free(table.rows[row_key].detail.group_id)
        return table.rows.pop(row_key)

    def leave(self, table: QueueTable, row_key: int) -> None:
        """Take a message out of its claim, if it is in one: that is a loss to the claim."""
        holding = table.held.pop(row_key, None)
        if holding is not None:
            holding.members.remove(row_key)
            holding.claim = claim_rules.after_loss(holding.claim, 1)
            holding.accepted_loss = False

    def drop(self, table: QueueTable) -> None:
        """Note that the messages of a queue wait for the reaper."""
        self.dropped += [*table.rows.values(), *table.retired.values()]

    def note(  # noqa: PLR0913, PLR0917 - the parts of an event
        self,
        kind: EventType,
        table: QueueTable,
        message: Message | None = None,
        reason: str | None = None,
        target: str | None = None,
        error: ErrorReport | None = None,
        result: str | None = None,
    ) -> None:
        """Record what happened to a message, which is as it is after that, or to a queue."""
        if table.queue.settings.event_log:
            of = table.queue.account, table.queue.name
            self.log.add(kind, *of, message, reason, target, error, result)

    def note_group(
        self,
        kind: EventType,
        table: QueueTable,
        group: str,
        halt: GroupHalt | None = None,
        by: tuple[str, str] | None = None,
    ) -> None:
        """Record what happened to a message group; *by* is session and holder."""
        if table.queue.settings.event_log:
            of = table.queue.account, table.queue.name
            reason, message_id = (halt.reason, halt.message_id) if halt else (None, None)
            self.log.add_group(kind, *of, group, reason, message_id, *(by or ()))

    # --- looking -----------------------------------------------------------------------------

    def live(self, table: QueueTable, message_id: str) -> tuple[int, Message]:
        """Return the row of a message that has not expired, or raise MessageNotFound."""
        row_key = row_key_of(message_id)
        message = table.rows.get(row_key) if row_key is not None else None
        if (
            row_key is None
            or message is None
            or message.message_id != message_id
            or table.state_of(row_key, self.now_ms) is MessageState.EXPIRED
        ):
            raise MessageNotFound
        return row_key, message

    def acting(self, command: Renew | Complete | Release) -> tuple[QueueTable, int, Message]:
        """Return the message a receipt acts on, or raise why it may not."""
        table = self.get(command.account, command.queue)
        try:
            row_key, message = self.live(table, command.message_id)
        except MessageNotFound:
            raise self._not_found(command, table) from None
        receipt = read_receipt(self.receipt_key, command.receipt)
        rule = table.queue.settings.lapsed_receipts
        renew = command if isinstance(command, Renew) else None
        refusal = receipt_refusal(message, row_key, receipt, self.now_ms, rule, renew)
        if refusal:
            if isinstance(command, Complete) and isinstance(refusal, LeaseLost):
                self._note_late(table, message, receipt, refusal)
            raise refusal
        return table, row_key, message

    def _not_found(self, command: Renew | Complete | Release, table: QueueTable) -> MessageNotFound:
        """Return the refusal; record a complete that came when its message had left the queue."""
        row_key = row_key_of(command.message_id)
        if not isinstance(command, Complete) or row_key is None:
            return MessageNotFound()
        try:
            receipt = read_receipt(self.receipt_key, command.receipt)
        except ReceiptMalformed:
            return MessageNotFound()
        own = table.queue
        for place in self.queues.values():
            message = place.rows.get(row_key)
            is_it = message is not None and message.message_id == command.message_id
            if message is None or not is_it or place.queue.account != own.account:
                continue
            told = late_elsewhere(message, row_key, receipt, own.name, here=place is table)
            if told is not None:
                self.note(EventType.REFUSED, table, *told)
                return MessageNotFound(late=True)
        return MessageNotFound()

    def _note_late(
        self, table: QueueTable, message: Message, receipt: ReceiptParts, refusal: LeaseLost
    ) -> None:
        if is_recorded(refusal):
            self.note(EventType.REFUSED, table, late(message, receipt), refusal.reason)

    def everything(self) -> Iterator[tuple[QueueTable, int, Message]]:
        """Go over all messages that are not retired."""
        for table in self.queues.values():
            for row_key, message in table.rows.items():
                yield table, row_key, message


def grouped(tables: Tables, command: _OfQueue) -> QueueTable:
    """Return the queue of a command on message groups, or raise QueueNotFound or NoGroups."""
    table = tables.get(command.account, command.queue)
    if table.queue.settings.groups is None:
        raise NoGroups
    return table


# --- boxes -------------------------------------------------------------------------------------
#
# What is staged in memory, and which claims are bound to it.


BoundTo: TypeAlias = tuple[str, str, int]
"""Queue, stream and number of a claim."""


class Row(NamedTuple):
    """A staged message, and the queue that it is for."""

    queue: str
    message: Message


@dataclass(slots=True)
class Part:
    """What one task has staged."""

    chunks: int = 0
    rows: dict[int, Row] = field(default_factory=dict)


@dataclass(slots=True)
class Box:
    """A transaction."""

    created_at_ms: int
    until_ms: int = 0
    published: int | None = None
    """How many rows were published; None while it is staged."""
    duplicates: int = 0
    """How many were dropped then, as their key had been used."""
    parts: dict[str, Part] = field(default_factory=dict)
    bound: dict[BoundTo, Bound] = field(default_factory=dict)
    """Claims that its publishing settles."""

    @property
    def is_empty(self) -> bool:
        """Tell whether there is nothing left to publish or to settle."""
        return self.published is None and not self.parts and not self.bound


Boxes: TypeAlias = dict[tuple[str, str], Box]
"""All transactions by account and name."""


# --- taking ------------------------------------------------------------------------------------
#
# Which messages come next: what receives and claims have in common.


NO_POLICY = FailurePolicy()
_Found: TypeAlias = tuple[int, Message]
"""Row key and message, with its lapse noted."""
_Judge: TypeAlias = Callable[[int, int], tuple[_Found | None, bool]]
"""See :meth:`Taking._good`."""


class Taking:
    """Finds what can be received, and moves what may not be delivered again."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    def in_order(self, table: QueueTable) -> list[int]:
        """Return the row keys of what can be received, as if there were no groups."""
        now_ms, ageing_s = self._tables.now_ms, table.queue.settings.priority_ageing_s
        receivable = [
            key
            for key, message in table.rows.items()
            if is_receivable(message, now_ms) and not table.hides(key)
        ]
        return sorted(receivable, key=lambda key: _order(table, key, ageing_s))

    def reason_against(self, table: QueueTable, message: Message) -> str | None:
        """Say why a message, its lapse noted, may not be delivered again; None if it may."""
        policy = table.queue.settings.failure_policy
        return None if policy is None else exhausted_on_receive(message, policy)

    def take(
        self, table: QueueTable, limit: int, step: Step | None = None, group: str | None = None
    ) -> Iterator[tuple[int, Message]]:
        """Go over the messages to lease now, as far as the queue's settings allow.

        What may not be delivered again goes to the poison queue on the way.

        Args:
            table: The queue.
            limit: Messages at most.
            step: Says after which message to end before that; None for none.
            group: Only those of this group, for the session that holds it.

        Yields:
            Row key and message, with its lapse noted. All of them must be taken.
        """
        now_ms = self._tables.now_ms
        settings = table.queue.settings
        if settings.is_paused(now_ms):
            return
        rate_per_s = settings.max_receives_per_s
        if rate_per_s is not None:
            allowed, table.bucket = allowance(table.bucket, rate_per_s, now_ms)
            limit = min(limit, allowed)
        left = [POISONED_AT_ONCE]
        good = partial(self._good, table, left)
        turns = self._tables.turns_of(table)
        if turns is None:
            keys = self.in_order(table)
            source: Generator[_Found] = (
                found for key in keys if (found := good(key)[0]) is not None
            )
        elif group is not None:
            source = take_from(turns, group, limit, _GroupLooks(table, turns, now_ms, good, group))
        else:
            source = take_turns(turns, now_ms, (limit,), _GroupLooks(table, turns, now_ms, good))
        taken, ended = 0, False
        with contextlib.closing(source):
            while taken < limit and not ended and left[0] >= 0:
                found = next(source, None)
                if found is None:
                    break
                yield found
                taken += 1
                if step is not None:
                    ended = not step.takes(found[1].dequeue_count, size_of(found[1]))
        if rate_per_s is not None and table.bucket is not None:
            table.bucket = spend(table.bucket, taken)

    def next_turn_ms(self, table: QueueTable, turns: Turns) -> int | None:
        """Return when a queue that groups share may next give something."""
        now_ms = self._tables.now_ms
        looks = _GroupLooks(table, turns, now_ms, _any)
        return next_turn_ms(turns, now_ms, looks)

    def next_group(self, table: QueueTable, turns: Turns) -> str | None:
        """Return the group whose turn it is of those that have something."""
        now_ms = self._tables.now_ms
        return next_group(turns, now_ms, _GroupLooks(table, turns, now_ms, _any))

    def _good(
        self, table: QueueTable, left: list[int], row_key: int, given: int = 0
    ) -> tuple[_Found | None, bool]:
        """Return a message, None if it had to go to the poison queue, and whether to go on.

        *left* says how many may go there. What would halt its group waits if others of it, which
        are *given*, are delivered at the same time: they were not stopped by that.
        """
        message = after_lapse(table.rows[row_key], self._tables.now_ms)
        reason = self.reason_against(table, message)
        groups = table.queue.settings.groups
        if reason is not None and given and groups and groups.halts(message.detail.group_id):
            return None, False
        left[0] -= reason is not None
        if left[0] < 0:
            return None, False
        if message is not table.rows[row_key]:
            self._tables.note(EventType.LAPSED, table, message)
        if reason is None:
            return (row_key, message), True
        self.poison(table, row_key, message, reason)
        return None, True

    def poison(self, table: QueueTable, row_key: int, message: Message, reason: str) -> Message:
        """Move a message, its attempt closed, to the poison queue."""
        tables = self._tables
        poison = tables.make_poison_of(table)
        queue = table.queue
        policy = queue.settings.failure_policy or NO_POLICY
        poisoned = after_poison(message, tables.now_ms, policy, queue.name, reason)
        tables.take(table, row_key)
        poison.rows[row_key] = poisoned
        tables.stir(poison, poisoned)
        error = newest_error(poisoned)
        tables.note(EventType.POISONED, table, poisoned, reason, poison.queue.name, error)
        group, groups = message.detail.group_id, queue.settings.groups
        is_halting = group is not None and groups is not None and groups.halts(group)
        if group is not None and is_halting and group not in table.halts:
            halt = GroupHalt(tables.now_ms, message.message_id, reason)
            table.halts[group] = halt
            tables.note_group(EventType.GROUP_HALTED, table, group, halt)
        return poisoned


class _GroupLooks:
    """Looks at the groups of a queue; see :class:`leasehold.domain.groups.Looks`."""

    def __init__(
        self, table: QueueTable, turns: Turns, now_ms: int, good: _Judge, held: str | None = None
    ) -> None:
        self.known: dict[Group, Look[_Found]] = {}
        self._table, self._turns, self._now_ms, self._good = table, turns, now_ms, good
        self._held = held
        """The group that whoever receives holds."""

    def read(self, groups: Sequence[Group]) -> None:
        """See :class:`Looks`."""
        for group in groups:
            look = _GroupLook(self._table, self._turns, group, self._now_ms, self._good)
            self.known[group] = look
            if group in self._table.holds and group != self._held:
                look.give_up()
            elif self._good is not _any and group not in self._table.halts:
                look.keep_rate()  # who only looks changes nothing

    def in_flight(self) -> Mapping[Group, int]:
        """See :class:`Looks`."""
        return Counter(
            message.detail.group_id
            for key, message in self._table.rows.items()
            if self._table.state_of(key, self._now_ms) is MessageState.LEASED
        )


class _GroupLook:
    """What one group can give to a receive; see :class:`leasehold.domain.groups.Look`."""

    def __init__(
        self,
        table: QueueTable,
        turns: Turns,
        group: Group,
        now_ms: int,
        good: _Judge,
    ) -> None:
        settings = table.queue.settings
        policy, ageing_s = settings.groups, settings.priority_ageing_s
        assert policy is not None
        own = [
            (key, message)
            for key, message in table.rows.items()
            if message.detail.group_id == group
            and (table.hides(key) or not is_expired(message, now_ms))
        ]
        ready = [
            (key, message)
            for key, message in own
            if message.visible_at_ms <= now_ms and not table.hides(key)
        ]
        others = [each for each in own if each not in ready]
        self._good, self._given = good, 0
        self._again_ms = min((_ends_ms(table, *each) for each in others), default=NEVER_MS)
        self._oldest_ms = min((message.visible_at_ms for _, message in ready), default=NEVER_MS)
        if is_ordered(policy, group):
            ready.sort(key=lambda each: place_in_group(each[1], each[0]))
            if any(message.dequeue_count for _, message in others):
                ready = []
        else:
            ready.sort(key=lambda each: _order(table, each[0], ageing_s))
        limit = None if group is None else turns.limit_of(group)
        self._room = len(ready)
        """How many may be given: what goes to the poison queue instead is not among them."""
        if limit is not None:
            leased = sum(table.state_of(key, now_ms) is MessageState.LEASED for key, _ in others)
            self._room = min(self._room, limit - leased)
            if group in turns.work.limits:
                self._again_ms = min(self._again_ms, turns.work.next_ms)
        self._table, self._group, self._now_ms = table, group, now_ms
        self._rate = None if group is None else policy.rate_of(group)
        if group in table.halts:
            ready, self._again_ms = [], NEVER_MS
        if self._rate is not None and group is not None:
            full_at_us = table.full_at_us.get(group, 0)
            self._room = min(self._room, rate_room(self._rate, full_at_us, now_ms))
        self._ready = [
            (key, order_of(message.priority, message.visible_at_ms, key, ageing_s))
            for key, message in ready
        ]

    def give_up(self) -> None:
        """Give nothing for as long as another session holds the group."""
        self._ready, self._again_ms = [], NEVER_MS

    def keep_rate(self) -> None:
        """Note how far the rate is used up at this time: the clock may have been set back."""
        if self._rate is not None and self._group is not None:
            full_at_us = self._table.full_at_us.get(self._group, 0)
            self._table.full_at_us[self._group] = rate_kept(self._rate, full_at_us, self._now_ms)

    def _rated_ms(self) -> int:
        """Return when the rate of the group allows one more."""
        assert self._rate is not None
        assert self._group is not None
        full_at_us = self._table.full_at_us.get(self._group, 0)
        return room_again_ms(self._rate, full_at_us, self._now_ms)

    def rank(self) -> Rank | None:
        """See :class:`Look`."""
        return self._ready[0][1] if self._ready and self._room > 0 else None

    rank_bound = rank

    def take(self) -> _Found | None:
        """See :class:`Look`."""
        while self._ready and self._room > 0:
            found, may_go_on = self._good(self._ready.pop(0)[0], self._given)
            if found is not None:
                self._room -= 1
                self._given += 1
                self._count_given()
                return found
            if self._group in self._table.halts:
                self.give_up()
            if not may_go_on:
                self._ready, self._again_ms = [], NOW
        return None

    def _count_given(self) -> None:
        if self._rate is not None and self._group is not None:
            full_at_us = self._table.full_at_us.get(self._group, 0)
            full_at_us = after_given(self._rate, full_at_us, self._now_ms, 1)
            self._table.full_at_us[self._group] = full_at_us

    def again(self) -> tuple[int, int]:
        """See :class:`Look`."""
        at_ms = self._again_ms
        if self._ready and self._rate is not None:
            at_ms = min(at_ms, self._rated_ms())
        return at_ms, min(self._oldest_ms, at_ms)


def _any(_: int, __: int) -> tuple[None, bool]:
    return None, False


def _ends_ms(table: QueueTable, row_key: int, message: Message) -> int:
    """Return when a message that cannot be received now frees its group."""
    if table.hides(row_key):
        return table.held[row_key].claim.until_ms
    return min(message.visible_at_ms, message.expires_at_ms)


def _order(table: QueueTable, row_key: int, ageing_s: int | None) -> tuple[int, int, int, int]:
    """Return the sort key of a message to receive.

    The members of a claim that has lapsed became visible all at once; they come in the order that
    they have in the claim.
    """
    message = table.rows[row_key]
    urgency, visible_at_ms, _ = receive_order(message, row_key, ageing_s)
    held = table.held.get(row_key)
    was_visible_ms = message.visible_at_ms if held is None else place_ms(message, held.claim)
    return urgency, visible_at_ms, was_visible_ms, row_key
