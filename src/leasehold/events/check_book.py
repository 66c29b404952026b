"""What the check of an event log knows by the events so far, and what it says.

Part of :mod:`leasehold.events.check`: the states of messages, queues, claims and groups, and the
bookkeeping of them.
"""

from __future__ import annotations

import heapq
import json
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, NamedTuple, TypeAlias
from zlib import crc32

from leasehold.domain.events import EventType
from leasehold.domain.model import NEVER_MS, Phase, row_key_of
from leasehold.domain.queue_settings import GroupOrder


class Row(NamedTuple):
    """An event: what is looked at of it, by the names of :class:`leasehold.domain.events.Event`.

    A type that is not known is a negative number. What it does not have is None.
    """

    seq: int
    place: int
    at_ms: int
    type: int
    account: str
    queue: Any
    message_id: Any
    expires_at_ms: Any
    visible_at_ms: Any
    dequeue_count: Any
    fence: Any
    phase: Any
    since_ms: Any
    visible_since_ms: Any
    renewals: Any
    session: Any
    reason: Any
    target: Any
    group_id: Any


FIELDS: Final = Row._fields
Place: TypeAlias = tuple[str, str]
"""Account and queue."""

KEPT: Final = 100
"""Violations of one rule that are kept whole; further ones are counted."""
ENDED: Final = 500_000
"""Messages whose end is remembered, the latest ones, some 100 MB."""
SESSIONS: Final = 100_000
"""Sessions whose end is remembered, the latest ones."""
_MOVED: Final = -1
"""In place of an order: that is not known, as the message was somewhere else before."""


class Rule(StrEnum):
    """What is never to happen. The names are shown, and never change their meaning."""

    LOG_ORDER = "log-order"
    """Events come in the order of seq and place, none twice, and those of one batch at one time."""
    KNOWN_MESSAGE = "known-message"
    """Nothing happens to a message that was never put, or is gone: settled once is for ever."""
    TWO_LEASES = "two-leases"
    """No message is on two leases."""
    TOO_EARLY = "too-early"
    """No lease lapses, and no delay is over, before its time; nothing is received while its queue
    is paused."""
    STALE_ACTION = "stale-action"
    """Only the newest receipt completes, renews and gives back, and only as long as it may."""
    EXPIRED_ACTION = "expired-action"
    """Nothing is received or acted on after its time to live, and nothing expires before."""
    FENCE_ORDER = "fence-order"
    """The fence rises by one with each receipt, and by nothing else."""
    EXACT_COUNT = "exact-count"
    """The dequeue count is the number of deliveries, and the counts of a queue are exact."""
    MESSAGE_STATE = "message-state"
    """An event leaves the message as the rules of visibility say."""
    NOTHING_LOST = "nothing-lost"
    """What was put is there until it is completed, removed or expired."""
    STAGED_HIDDEN = "staged-hidden"
    """What is staged is neither received nor acted on, and all of it is published or discarded."""
    CLAIM_MEMBERS = "claim-members"
    """The members of a claim never change, and are settled together."""
    SESSION_OVER = "session-over"
    """A session that is over receives nothing, and its leases end."""
    POISON_BUDGET = "poison-budget"
    """Nothing is delivered whose budget is used up."""
    GROUP_ORDER = "group-order"
    """A group in order gives nothing while an earlier message of it is out, or waits."""
    GROUP_LIMIT = "group-limit"
    """A group has no more in flight than its limit, and one that stands still gives nothing."""


class Violation(NamedTuple):
    """Something that must not be."""

    rule: Rule
    seq: int
    place: int
    at_ms: int
    account: str
    queue: str | None
    message_id: str | None
    sentence: str


@dataclass(slots=True, kw_only=True)
class Report:
    """What came of a check."""

    events: int = 0
    """Read."""
    consumed: int = 0
    """Judged, or taken into account: all but those of types that this version does not know."""
    first_seq: int = 0
    last_seq: int = 0
    first_at_ms: int | None = None
    last_at_ms: int | None = None
    whole: bool = True
    """Whether the log was known from its beginning on."""
    messages: int = 0
    """Whose beginning was seen."""
    known_from: int = 0
    """Messages that were there before the log, or whose events it left out: these are known from
    their first event on, which itself could not be judged."""
    live: int = 0
    """Messages that there are at the end."""
    violations: list[Violation] = field(default_factory=list)
    """In the order of the log; of each rule the first :data:`KEPT`."""
    found: Counter[str] = field(default_factory=Counter)
    """How many violations of each rule there were."""
    not_judged: Counter[str] = field(default_factory=Counter)
    """What could not be judged, and of how many events."""
    counts: dict[Place, int] = field(default_factory=dict)
    """Messages by account and queue at the end, where they are known."""

    @property
    def total(self) -> int:
        """How many violations there were."""
        return sum(self.found.values())

    def plus(self, other: Report) -> None:
        """Take in what was found in other messages of the same log."""
        self.events += other.events
        self.consumed += other.consumed
        self.messages += other.messages
        self.known_from += other.known_from
        self.live += other.live
        self.found += other.found
        self.not_judged += other.not_judged
        for place, many in other.counts.items():
            self.counts[place] = self.counts.get(place, 0) + many
        kept: Counter[str] = Counter()
        merged = sorted(self.violations + other.violations, key=lambda each: each[1:3])
        self.violations = []
        for each in merged:
            kept[each.rule] += 1
            if kept[each.rule] <= KEPT:
                self.violations.append(each)


class MessageState:
    """A message as its last event has left it."""

    __slots__ = (
        "acts",
        "base",
        "claim",
        "count",
        "expires",
        "failures",
        "fence",
        "group",
        "interruptions",
        "lapses",
        "number",
        "phase",
        "queue",
        "renewals",
        "session",
        "since",
        "staged",
        "type",
        "visible",
    )  # fmt: skip

    def __init__(self, queue: Place, row: Row) -> None:
        self.queue = queue
        self.claim: ClaimState | None = None
        self.staged: str | None = None
        self.acts = True
        """Whether there is a receipt that acts."""
        self.failures = self.interruptions = self.lapses = 0
        """Since it was put, poisoned or redriven."""
        self.base: int | None = 0
        """The dequeue count then; None: that was before the log."""
        self.group: str | None = row.group_id
        self.number = 0
        """Order of its coming."""
        self.take(row)

    def take(self, row: Row) -> None:
        """Be as the event says."""
        (
            _, _, _, self.type, _, _, _, expires, self.visible, self.count, self.fence, self.phase,
            self.since, _, self.renewals, self.session, _, _, _,
        ) = row  # fmt: skip
        self.expires = NEVER_MS if expires is None else expires


class ClaimState:
    """A claim, as far as the log tells."""

    __slots__ = (
        "born", "extended_seq", "hides", "is_lossy", "members", "name", "settled_seq", "step",
        "step_ms", "step_seq", "until",
    )  # fmt: skip

    def __init__(self, name: str, until_ms: int) -> None:
        self.name = name
        self.until = until_ms
        self.hides = True
        self.members = 0
        self.step = 0
        """Members of the newest step."""
        self.step_seq = self.step_ms = self.extended_seq = -2
        self.born = 0
        """Number of the event that it was known with."""
        self.settled_seq: int | None = None
        self.is_lossy = False
        """Whether it may have become another one of the same name."""


class QueueState:
    """A queue, as far as the log tells."""

    __slots__ = (
        "count", "created", "halted", "held", "is_blind", "known", "paused_until", "settings",
        "since",
    )  # fmt: skip

    def __init__(self, settings: Mapping[str, Any] | None) -> None:
        self.settings: dict[str, Any] = dict(settings or {})
        """Those that are known, by their names; what is not there is not known."""
        self.count: int | None = None
        """Messages in it; None for not known."""
        self.known = 0
        """Messages in it that are known."""
        self.created = False
        self.is_blind = False
        """Whether its log is off, or was."""
        self.paused_until = 0
        self.halted: set[str] = set()
        self.held: dict[str, str | None] = {}
        """By group: the session that has it to itself."""
        self.since = -1
        """Number of the event that has emptied it, or has had the log begin anew."""

    def update(self, changes: Mapping[str, tuple[Any, Any]]) -> None:
        """Have other settings, by what :func:`changes_in` returns."""
        for path, (_, after) in changes.items():
            section, _, member = path.partition(".")
            if not member:
                self.settings[section] = after
            elif isinstance(self.settings.get(section), dict):
                self.settings[section] = {**self.settings[section], member: after}

    def note_group(self, kind: int, group: str, session: str | None) -> None:
        """Take an event of a message group into account."""
        if kind == EventType.GROUP_HALTED:
            self.halted.add(group)
        elif kind == EventType.GROUP_RESUMED:
            self.halted.discard(group)
        elif kind == EventType.GROUP_HELD:
            self.held[group] = session
        else:
            self.held.pop(group, None)


_NAME: Final = re.compile(
    r"(?:([a-z_.0-9]+)(: )|metadata\.[^;]*|access policies|(?:stream|job) [^;]*)(?:; |$)?"
)
_ARROW: Final = " -> "


def changes_in(reason: str) -> dict[str, tuple[Any, Any]] | None:
    """Return what an event ``queue-updated`` says; None if it does not say all of it.

    Returns:
        Values before and after, by the names of settings.
    """
    changes: dict[str, tuple[Any, Any]] = {}
    decoder = json.JSONDecoder()
    at = 0
    try:
        while at < len(reason):
            found = _NAME.match(reason, at)
            if found is None:
                return None
            at = found.end()
            if found[2]:  # a setting, of anything else no values are told
                before, at = decoder.raw_decode(reason, at)
                if not reason.startswith(_ARROW, at):
                    return None
                after, at = decoder.raw_decode(reason, at + len(_ARROW))
                changes[found[1]] = before, after
                if not reason.startswith("; ", at) and at < len(reason):
                    return None
                at += 2
    except ValueError:
        return None
    return changes


# --- groups -------------------------------------------------------------------------------------


class _Group:
    """The messages of one group."""

    __slots__ = ("firsts", "order", "out", "seq")

    def __init__(self) -> None:
        self.out: dict[str, MessageState] = {}
        """What was received before and is still there."""
        self.firsts: list[tuple[int, int, str, MessageState]] = []
        """A heap of what was not, by place; entries may be out of date."""
        self.order: dict[str, int] = {}
        """Of all that is there: what comes first of those that are visible since the same time."""
        self.seq: dict[str, int] = {}
        """In which batch a message was received last."""


class GroupRules:
    """Judges deliveries by what else there is of their group.

    Args:
        violate: Called with the name of a rule and a sentence.
    """

    def __init__(self, violate: Callable[[Rule, str], None]) -> None:
        self._violate = violate
        self._groups: dict[tuple[Place, str], _Group] = {}
        self._arrived = 0

    def arrived(
        self,
        queue: QueueState,
        place: Place,
        message_id: str,
        message: MessageState,
        *,
        is_new: bool,
    ) -> None:
        """Take a message into account that comes into a queue.

        One that was somewhere else before has its place by a time that is not known here.
        """
        settings = queue.settings.get("groups")
        if settings is None or not _matters(settings) or message.group is None:
            return
        group = self._groups.setdefault((place, message.group), _Group())
        order = row_key_of(message_id) if is_new else _MOVED
        self._arrived += 1
        group.order[message_id] = self._arrived if order is None else order
        if message.count:
            group.out[message_id] = message
        elif is_new:
            entry = (message.visible, group.order[message_id], message_id, message)
            heapq.heappush(group.firsts, entry)

    def left(self, place: Place, message_id: str, message: MessageState) -> None:
        """Take into account that a message is in its queue no more."""
        key = place, message.group or ""
        group = self._groups.get(key)
        if group is None:
            return
        group.out.pop(message_id, None)
        group.seq.pop(message_id, None)
        group.order.pop(message_id, None)
        if not group.order:
            del self._groups[key]

    def forget(self, place: Place) -> None:
        """Know nothing of the groups of a queue any more."""
        for key in [key for key in self._groups if key[0] == place]:
            del self._groups[key]

    def delivered(self, queue: QueueState, row: Row, message: MessageState) -> None:
        """Judge a delivery, before the message is as it says."""
        seq, at_ms, message_id, session = row.seq, row.at_ms, row.message_id, row.session
        name = message.group or ""
        if name in queue.halted:
            self._violate(Rule.GROUP_LIMIT, f"group {name} stands still")
        if name in queue.held and queue.held[name] != session:
            self._violate(
                Rule.GROUP_LIMIT, f"session {queue.held[name]} has group {name} to itself"
            )
        settings = queue.settings.get("groups")
        if settings is None or not _matters(settings):
            return
        group = self._groups.setdefault((message.queue, name), _Group())
        others = {key: each for key, each in group.out.items() if key != message_id}
        if settings.get("order") == GroupOrder.FIFO:
            self._check_order(group, others, row, message)
        limit = (settings.get("max_in_flight_of") or {}).get(name, settings.get("max_in_flight"))
        if limit is not None:
            leased = sum(_is_leased(each, at_ms) for each in others.values())
            if leased >= limit:
                self._violate(Rule.GROUP_LIMIT, f"group {name} has {leased} in flight of {limit}")
        group.out[message_id] = message
        group.seq[message_id] = seq

    def _check_order(
        self, group: _Group, others: Mapping[str, MessageState], row: Row, message: MessageState
    ) -> None:
        seq, at_ms, message_id = row.seq, row.at_ms, row.message_id
        for key, each in others.items():
            # One receive takes several of a group.
            if group.seq.get(key) != seq and _is_hidden(each, at_ms):
                self._violate(Rule.GROUP_ORDER, f"message {key} of its group is out")
                break
        own = group.order.get(message_id)
        if message.count or own is None or own == _MOVED:
            return
        firsts = group.firsts
        while firsts:
            place_ms, order, key, first = firsts[0]
            if first.count or group.order.get(key) != order:
                heapq.heappop(firsts)
            elif first.visible != place_ms:  # its delay was changed
                heapq.heapreplace(firsts, (first.visible, order, key, first))
            else:
                is_ready = first.visible <= at_ms < first.expires
                if is_ready and (place_ms, order) < (message.visible, own):
                    self._violate(Rule.GROUP_ORDER, f"message {key} of its group waits before it")
                return


def _matters(settings: Mapping[str, Any]) -> bool:
    """Tell whether there is anything to judge."""
    return (
        settings.get("order") == GroupOrder.FIFO
        or settings.get("max_in_flight") is not None
        or bool(settings.get("max_in_flight_of"))
    )


def _is_hidden(message: MessageState, at_ms: int) -> bool:
    claim = message.claim
    if claim is not None:
        return claim.hides
    return message.visible > at_ms and message.expires > at_ms


def _is_leased(message: MessageState, at_ms: int) -> bool:
    return message.phase == Phase.LEASED and _is_hidden(message, at_ms)


# --- bookkeeping --------------------------------------------------------------------------------


class Book:
    """What is known of the messages, queues, claims and sessions of a log.

    Args: see :class:`leasehold.events.check.Checker`.
    """

    def __init__(
        self,
        *,
        settings: Mapping[Place, Mapping[str, Any]] | None,
        whole: bool | None,
        all_accounts: bool,
        session_grace_ms: int,
        shard: tuple[int, int],
    ) -> None:
        self.report = Report()
        self._shards, self._shard = shard
        self._given = settings or {}
        self._whole = whole
        self._all_accounts = all_accounts
        self._grace_ms = session_grace_ms
        self._messages: dict[str, MessageState] = {}
        self._ended: dict[str, tuple[int, int]] = {}
        self._ended_before: dict[str, tuple[int, int]] = {}
        self._queues: dict[Place, QueueState] = {}
        self._claims: dict[tuple[Place, str], ClaimState] = {}
        self._settled: dict[int, tuple[Place, ClaimState]] = {}
        self._published: dict[tuple[str, str], int] = {}
        self._staged: dict[tuple[str, str], int] = {}
        """By account and transaction: how many messages are staged."""
        self._given_back: dict[tuple[Place, str], int] = {}
        """By stream: when members have left a claim last, which may have been given back."""
        self._over: dict[str, tuple[int, int, int]] = {}
        """Sessions that are over: since when on the clock of activity, on that of the log, and as
        of which batch."""
        self._groups = GroupRules(self._violate)
        self._row: Row
        """The event that is judged."""
        self._number = 0
        self._seq, self._place_in, self._at_ms = -1, -1, 0
        self._active_ms = 0
        self._any_blind = False

    @property
    def live(self) -> int:
        """How many messages are kept in memory."""
        return len(self._messages)

    @property
    def is_of_one_group(self) -> bool:
        """Whether all of these are of one group, which is never judged in parts."""
        found = iter(self._messages.values())
        first = next(found, None)
        if first is None or first.group is None:
            return False
        return all(each.group == first.group for each in found)

    def live_ids(self, place: tuple[str, str]) -> set[str]:
        """Return the messages that a queue has by now, without what is staged."""
        since = self._find(place).since
        return {
            message_id
            for message_id, message in self._messages.items()
            if message.queue == place and message.staged is None and message.number >= since
        }

    def forget(self) -> None:
        """Know nothing of the messages any more: events are left out here."""
        self._whole = False
        for known in (self._messages, self._claims, self._settled, self._staged, self._published):
            known.clear()
        self._ended, self._ended_before = {}, {}
        for place, queue in self._queues.items():
            queue.count, queue.known = None, 0
            self._groups.forget(place)

    def _is_mine(self, message_id: str | None, group: str | None) -> bool:
        """Tell whether an event is judged here: those of a group are all in one part."""
        if message_id is None:
            return not self._shard
        return crc32((group or message_id).encode()) % self._shards == self._shard

    def _is_emptied(self, message: MessageState) -> bool:
        """Tell whether a message went with all others of its queue; what is staged stays."""
        return message.staged is None and message.number < self._find(message.queue).since

    def _find(self, place: Place) -> QueueState:
        queue = self._queues.get(place)
        if queue is None:
            queue = self._queues[place] = QueueState(self._given.get(place))
        return queue

    def _violate(self, rule: Rule, sentence: str, message_id: str | None = None) -> None:
        report, row = self.report, self._row
        report.found[rule] += 1
        if report.found[rule] <= KEPT:
            seq, place, at_ms, _, account, queue, own = row[:7]
            named = own if message_id is None else message_id
            report.violations.append(
                Violation(rule, seq, place, at_ms, account, queue, named, sentence)
            )

    def _enter(
        self, place: Place, message_id: str, message: MessageState, *, is_new: bool = True
    ) -> None:
        """Count a message into a queue."""
        queue = self._find(place)
        queue.known += 1
        if queue.count is not None:
            queue.count += 1
        if message.group is not None:
            self._groups.arrived(queue, place, message_id, message, is_new=is_new)

    def _leave(self, message_id: str, message: MessageState) -> None:
        """Count a message out of its queue."""
        queue = self._find(message.queue)
        queue.known -= 1
        if queue.count is not None:
            queue.count -= 1
        if message.group is not None:
            self._groups.left(message.queue, message_id, message)

    def _gone(self, row: Row, message: MessageState) -> None:
        message_id = row.message_id
        self._unclaim(message)
        if message.staged is None:
            self._leave(message_id, message)
        else:
            self._unstage(row.account, message)
        del self._messages[message_id]
        self._remember_end(message_id)

    def _remember_end(self, message_id: str) -> None:
        if len(self._ended) >= ENDED // 2:
            # To delete the oldest entries of a dictionary one by one is slow: it finds the gaps.
            self._ended_before, self._ended = self._ended, {}
        self._ended[message_id] = self._seq, self._place_in

    def _end_of(self, message_id: str) -> tuple[int, int] | None:
        """Return with which event a message was gone; None if that is not known."""
        return self._ended.get(message_id) or self._ended_before.get(message_id)

    def _unclaim(self, message: MessageState, *, is_loss: bool = True) -> None:
        """Take a message out of its claim."""
        claim = message.claim
        if claim is not None:
            claim.members -= 1
            claim.is_lossy = claim.is_lossy or is_loss
            message.claim = None

    def _keep(self, row: Row, message: MessageState, *, acts: bool) -> None:
        """Have a message be as its event says, out of its claim."""
        if message.claim is not None:
            self._unclaim(message)
        message.take(row)
        message.acts = acts
        message.number = self._number

    def _unstage(self, account: str, message: MessageState) -> None:
        name = account, message.staged or ""
        left = self._staged.get(name, 0) - 1
        if left > 0:
            self._staged[name] = left
        else:
            self._staged.pop(name, None)
            self._published.pop(name, None)

    # --- queues, sessions --------------------------------------------------------------------

    def _queue_created(self, row: Row) -> None:
        place = row.account, row.queue
        given = None if place in self._queues else self._given.get(place)
        queue = self._queues[place] = QueueState(given)
        queue.created, queue.count, queue.since = True, 0, self._number
        self._forget_queue(place)

    def _queue_emptied(self, row: Row) -> None:
        place = row.account, row.queue
        queue = self._find(place)
        queue.count, queue.since = 0, self._number
        queue.halted.clear()
        # Most queues that are deleted are empty, and there can be many.
        for message_id, message in tuple(self._messages.items()) if queue.known else ():
            if message.queue == place and message.staged is None:
                self._unclaim(message)
                del self._messages[message_id]
                self._remember_end(message_id)
        queue.known = 0
        self._forget_queue(place, claims=row.type == EventType.QUEUE_DELETED)

    def _forget_queue(self, place: Place, *, claims: bool = True) -> None:
        self._groups.forget(place)
        for key in [key for key in self._claims if key[0] == place] if claims else ():
            del self._claims[key]

    def _queue_updated(self, row: Row) -> None:
        place, reason = (row.account, row.queue), row.reason or ""
        queue = self._find(place)
        changes = changes_in(reason)
        if changes is None:
            queue.settings = {}
            self.report.not_judged["changes of settings that are too long to record"] += 1
            return
        queue.update(changes)
        if "event_log" in changes:
            queue.is_blind = self._any_blind = True
            queue.count, queue.known, queue.since = None, 0, self._number
            self._groups.forget(place)

    def _queue_paused(self, row: Row) -> None:
        until = NEVER_MS if row.visible_at_ms is None else row.visible_at_ms
        paused = row.type == EventType.QUEUE_PAUSED
        self._find((row.account, row.queue)).paused_until = until if paused else 0

    def _group_event(self, row: Row) -> None:
        self._find((row.account, row.queue)).note_group(row.type, row.group_id, row.session)

    def _session_event(self, row: Row) -> None:
        if row.type != EventType.SESSION_STARTED:
            self._over[row.session] = self._active_ms, row.at_ms, row.seq
            if len(self._over) > SESSIONS:
                del self._over[next(iter(self._over))]
