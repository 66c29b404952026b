"""What the check of an event log knows, and what it says: states and results.

Part of :mod:`leasehold.events.check`.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, NamedTuple, TypeAlias

from leasehold.domain.events import EventType
from leasehold.domain.model import NEVER_MS

FIELDS: Final = (
    "seq",
    "place",
    "at_ms",
    "type",
    "account",
    "queue",
    "message_id",
    "expires_at_ms",
    "visible_at_ms",
    "dequeue_count",
    "fence",
    "phase",
    "since_ms",
    "visible_since_ms",
    "renewals",
    "session",
    "reason",
    "target",
    "group_id",
)
"""What is looked at of an event, by the names of :class:`leasehold.domain.events.Event`."""

Row: TypeAlias = tuple[Any, ...]
Place: TypeAlias = tuple[str, str]
"""Account and queue."""

KEPT: Final = 100
"""Violations of one rule that are kept whole; further ones are counted."""


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
        self.group: str | None = row[-1]
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
        "count", "created", "halted", "held", "is_blind", "paused_until", "settings", "since",
    )  # fmt: skip

    def __init__(self, settings: Mapping[str, Any] | None) -> None:
        self.settings: dict[str, Any] = dict(settings or {})
        """Those that are known, by their names; what is not there is not known."""
        self.count: int | None = None
        """Messages in it; None for not known."""
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


_NAME: Final = re.compile(r"(?:([a-z_.0-9]+)(: )|metadata\.[^;]*|access policies)(?:; |$)?")
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
            if found[2]:  # a setting, and not metadata or policies, of which no values are told
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
