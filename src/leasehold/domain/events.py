"""The event log: every change of state is one event, kept with the change.

The events of one batch have one number, or several that follow each other if there are very many of
them. An event carries the message as it is *after* the change (for
one that is gone: as it was last), so that replaying events from empty gives the live state.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum, IntEnum, auto
from typing import Annotated, Any, Final, NamedTuple, TypeAlias, cast, get_type_hints

from leasehold.domain.command import (
    Answer,
    Command,
    Done,
    Lock,
    Rank,
    Refresh,
    Swept,
    always,
    by_limit,
    looks,
    never,
    one,
    quarter,
    upkeep,
)
from leasehold.domain.limits import MAX_RESULT_BYTES
from leasehold.domain.model import NEVER_MS, Detail, ErrorReport, Message, Phase

EVENT_FORMAT: Final = 1
"""Rises when readers of older events could misunderstand newer ones."""
OPERATOR: Final = "operator"
"""Reason of what was done without a receipt."""
ERROR_CHARS: Final = 256
"""What is kept of the text of an error, in characters."""


class EventType(IntEnum):
    """What happened. The numbers are kept in logs and never change their meaning."""

    # One message each.
    PUT = 1
    RECEIVED = 2
    RENEWED = 3
    """A lease or a delay was moved, or progress saved; also for a new body."""
    COMPLETED = 4
    RELEASED = 5
    """Given back by its holder; the reason is the outcome."""
    LAPSED = 6
    """Its lease had run out; noticed when the message was about to be received again, just before
    that event."""
    POISONED = 7
    """Moved to the poison queue ``target``; the reason says which budget."""
    REDRIVEN = 8
    """Moved back to the queue ``target``."""
    AMENDED = 9
    REMOVED = 10
    """By an operator or a purge."""
    LEASE_ENDED = 11
    """By an operator, a lost session or a watchdog; the reason says which."""
    EXPIRED = 12
    CANCEL_ASKED = 13
    REFUSED = 14
    """A complete came too late: with the lease's own times, it tells how long the work took."""
    STAGED = 15
    PUBLISHED = 16
    DISCARDED = 17
    """Dropped with its transaction; or, with a reason, when that was published."""
    CLAIMED = 18
    SETTLED = 19
    """Completed with its claim."""
    UNCLAIMED = 20
    """Back in the queue: its claim was given back or dissolved."""
    # One queue each, without a message.
    QUEUE_CREATED = 64
    QUEUE_DELETED = 65
    QUEUE_CLEARED = 66
    QUEUE_UPDATED = 67
    """The reason says which settings, metadata or access policies are others now."""
    QUEUE_PAUSED = 68
    """Until the moment ``visible_at_ms``, if that was said."""
    QUEUE_RESUMED = 69
    # One message group each; the target is the message that halted it, if one did.
    GROUP_HALTED = 72
    GROUP_RESUMED = 73
    # The same, with the session that holds it.
    GROUP_HELD = 74
    GROUP_RELEASED = 75
    # One claim or session each, without a message.
    CLAIM_EXTENDED = 80
    CLAIM_LAPSED = 81
    CLAIM_REOPENED = 82
    SESSION_STARTED = 96
    SESSION_LOST = 97
    SESSION_ENDED = 98


REMOVING: Final = frozenset(
    {
        EventType.COMPLETED,
        EventType.REMOVED,
        EventType.EXPIRED,
        EventType.DISCARDED,
        EventType.SETTLED,
    }
)
"""After these the message is gone."""


class Kind(Enum):
    """What the values of a column are, wherever events are shown."""

    INT8 = auto()
    INT32 = auto()
    INT64 = auto()
    TEXT = auto()
    MOMENT = auto()
    """Unix milliseconds."""
    TYPE = auto()
    """An :class:`EventType`, shown as a word."""
    PHASE = auto()
    """A :class:`~leasehold.domain.model.Phase`, shown as a word."""


@dataclass(frozen=True, slots=True)
class Column:
    """What is said of a field of :class:`Event`, once for all places that show it."""

    kind: Kind
    meaning: str
    """For the references, in Markdown without links; a sentence without the full stop."""
    none: int | None = None
    """A value that stands for none."""
    keywords: Mapping[str, object] = field(default_factory=dict)
    """What JSON Schema says of its values besides the type."""


class Event(NamedTuple):
    """One event, as stores give it out, and the declaration of its columns: see :data:`COLUMNS`.

    From a field here follow the column of the exported files and of Spark, the member in answers
    of the native API, and its schema in the OpenAPI document. ``tools/make_events.py`` writes the
    client's model and the table in ``docs/reference/event-log.md``. New ones come at the end.
    """

    seq: Annotated[
        int,
        Column(
            Kind.INT64,
            "Number of the batch. Rises, with gaps. A batch of more than 16,000 events has several"
            " that follow each other, so it can be split over files",
        ),
    ]
    place: Annotated[
        int,
        Column(
            Kind.INT32,
            "Position within the batch, from 0. `seq` and `place` identify an event, and their "
            "order is the order of the changes",
        ),
    ]
    at_ms: Annotated[int, Column(Kind.MOMENT, "Time of the change; the same for a whole batch")]
    type: Annotated[
        EventType, Column(Kind.TYPE, "Type of the event, such as `put` or `lease-ended`")
    ]
    account: Annotated[str, Column(Kind.TEXT, "The account")]
    queue: Annotated[str | None, Column(Kind.TEXT, "The queue; none for sessions")] = None
    message_id: Annotated[
        str | None,
        Column(Kind.TEXT, "Id of the message; none for events of queues, claims and sessions"),
    ] = None
    inserted_at_ms: Annotated[int | None, Column(Kind.MOMENT, "Time when the message was put")] = (
        None
    )
    expires_at_ms: Annotated[
        int | None, Column(Kind.MOMENT, "Time when the message expires; none for never", NEVER_MS)
    ] = None
    visible_at_ms: Annotated[
        int | None,
        Column(
            Kind.MOMENT,
            "Time from which the message can be received (again): the end of the lease or delay. "
            "For events of claims: end of the claim's lease; of pauses: end of the pause",
        ),
    ] = None
    dequeue_count: Annotated[
        int | None, Column(Kind.INT32, "Number of times the message was received")
    ] = None
    fence: Annotated[int | None, Column(Kind.INT64, "Number of the message's newest receipt")] = (
        None
    )
    phase: Annotated[
        int | None,
        Column(
            Kind.PHASE,
            "Phase of the message: `waiting`, `delayed`, `leased` or `deferred`",
        ),
    ] = None
    since_ms: Annotated[
        int | None,
        Column(
            Kind.MOMENT,
            "Time when the message entered its phase: for a leased message, and for the end of a "
            "lease, when the lease began",
        ),
    ] = None
    visible_since_ms: Annotated[
        int | None,
        Column(
            Kind.MOMENT,
            "Time when the message became visible before its current or last lease; none if it "
            "was never received",
            0,
        ),
    ] = None
    renewals: Annotated[int | None, Column(Kind.INT32, "Of the current or last lease")] = None
    holder: Annotated[
        str | None,
        Column(
            Kind.TEXT,
            "Name of the holder of the current or last lease, if the client gave one; for "
            "sessions, the name of the worker",
        ),
    ] = None
    priority: Annotated[int | None, Column(Kind.INT8, "1 to 16")] = None
    session: Annotated[
        str | None,
        Column(Kind.TEXT, "Id of the session that the lease belongs to, or of the session"),
    ] = None
    reason: Annotated[
        str | None, Column(Kind.TEXT, "Reason of the change; its values depend on the type")
    ] = None
    target: Annotated[
        str | None,
        Column(
            Kind.TEXT,
            "The queue moved to, stream and number of the claim, or the name of the transaction",
        ),
    ] = None
    message_type: Annotated[
        str | None, Column(Kind.TEXT, "Message type, as set by the producer")
    ] = None
    error_type: Annotated[
        str | None,
        Column(
            Kind.TEXT,
            "Type of the error that was reported with the attempt that the event ended. For"
            " `poisoned`, with the newest attempt",
        ),
    ] = None
    error_fingerprint: Annotated[
        str | None, Column(Kind.TEXT, "Of the same report: the hash that similar failures share")
    ] = None
    error: Annotated[
        str | None,
        Column(
            Kind.TEXT,
            f"Beginning of the error text, at most {ERROR_CHARS} characters",
            keywords={"maxLength": ERROR_CHARS},
        ),
    ] = None
    trace_id: Annotated[
        str | None,
        Column(
            Kind.TEXT,
            "Trace id of the message's `traceparent`: 32 hexadecimal digits",
            keywords={"pattern": "^[0-9a-f]{32}$"},
        ),
    ] = None
    group_id: Annotated[str | None, Column(Kind.TEXT, "Group id of the message")] = None
    actor: Annotated[
        str | None,
        Column(
            Kind.TEXT,
            "Operator that requested the change, or the server itself: the kind of credentials "
            "and the identity, such as `key:shop/1` or `console:ana@example.org`",
        ),
    ] = None
    result: Annotated[
        str | None,
        Column(
            Kind.TEXT,
            "Of `completed`: result of the work as reported by the holder, JSON of at most"
            f" {MAX_RESULT_BYTES:,} bytes",
        ),
    ] = None


COLUMNS: Final[Mapping[str, Column]] = {
    name: hint.__metadata__[0] for name, hint in get_type_hints(Event, include_extras=True).items()
}
"""By the names of the fields, in their order."""


Core: TypeAlias = tuple[int, int, int, int, int, int, int, int, int, str | None]
"""Inserted, expires, visible, dequeue count, fence, phase, since, visible since, renewals,
holder."""

Told: TypeAlias = tuple[str | None, str | None, str]
"""Of an error: type, fingerprint, text."""

Recorded: TypeAlias = tuple[
    int,
    int,
    str,
    Core | None,
    int,
    str | None,
    str | None,
    str | None,
    str | None,
    *tuple[Any, ...],
]
"""Type, number of the queue in the batch, message id (empty for none), core, priority, session,
holder if there is no core, reason, target: what a store writes, as lean as can be. Of a claim
there is no core, and in the place of the priority until when it hides its members.

Then what :func:`ending_of` returns, who asked for it, and the result of the work; most events have
less of it."""
_PLAIN: Final = 9
"""Members before that."""
_ENDING: Final = 4
_ACTOR: Final = _PLAIN + _ENDING

_TRACEPARENT: Final = re.compile(
    r"(?!ff|00.{54})[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(?:-.*)?"
)
"""See https://www.w3.org/TR/trace-context/; only versions after 00 may have more at the end."""
_CORE: Final = slice(2, 12)
_NOTHING: Final = (None,) * (_ENDING + 2)


def core_of(message: Message) -> Core:
    """Return the times and counts of a message, for :data:`Recorded`."""
    return cast("Core", message[_CORE])


def more_of(detail: Detail, error: ErrorReport | None) -> tuple[Any, ...]:
    """Return what comes at the end of :data:`Recorded`; nothing for a message without it."""
    if error is None and detail.traceparent is None and detail.group_id is None:  # as most often
        return () if detail.message_type is None else (encodable(detail.message_type), None)
    told = None
    if error is not None:
        text = error.text
        if len(text) > ERROR_CHARS:
            text = f"{text[: ERROR_CHARS - 3]}..."
        told = _encodable(error.type), _encodable(error.fingerprint), encodable(text)
    trace_id = None if detail.traceparent is None else trace_id_of(detail.traceparent)
    group_id = _encodable(detail.group_id)
    return ending_of(_encodable(detail.message_type), told, trace_id, group_id)


def ending_of(
    message_type: object, told: Told | None, trace_id: object, group_id: object
) -> tuple[Any, ...]:
    """Return the type of the message, the error, the trace and the group, as far as there are."""
    if group_id is not None:
        return message_type, told, trace_id, group_id
    if trace_id is not None:
        return message_type, told, trace_id
    return () if message_type is None and told is None else (message_type, told)


def signed(recorded: Any, actor: str) -> tuple[Any, ...]:
    """Return an event as it is written down, with who asked for it."""
    missing = (None,) * (_ACTOR - len(recorded))
    return (*recorded[:_ACTOR], *missing, encodable(actor), *recorded[_ACTOR + 1 :])


def with_result(recorded: Any, result: str) -> tuple[Any, ...]:
    """Return an event as it is written down, with what came of the work."""
    return (*recorded, *(None,) * (_ACTOR + 1 - len(recorded)), result)


def trace_id_of(traceparent: str) -> str | None:
    """Return the trace of a W3C trace context; None for any other text."""
    found = _TRACEPARENT.fullmatch(traceparent)
    return None if found is None else found[1]


def encodable(text: str) -> str:
    """Return a text that every log can take: Python's strings can hold half of a character."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def _encodable(text: str | None) -> str | None:
    return None if text is None else encodable(text)


def event_of(
    seq: int, place: int, at_ms: int, of: tuple[str, str | None], recorded: Recorded
) -> Event:
    """Return the event that was written as *recorded* for the account and queue *of*."""
    kind, _, message_id, core, priority, session, holder, reason, target, *more = recorded
    head = (seq, place, at_ms, EventType(kind), *of)
    ending: tuple[Any, ...] = (*more, *_NOTHING)
    message_type, told, trace_id, group_id, actor, result = ending[: len(_NOTHING)]
    if core is None:
        return Event(
            *head,
            visible_at_ms=priority or None,
            holder=holder,
            session=session,
            reason=reason,
            target=target,
            group_id=group_id,
            actor=actor,
        )
    error = told or (None, None, None)
    rest = (priority, session, reason, target, message_type, *error, trace_id, group_id)
    of_message: tuple[Any, ...] = (message_id, *core, *rest, actor, result)
    event = Event(*head, *of_message)
    if kind == EventType.REFUSED and not event.since_ms:  # the beginning of its lease is not known
        return event._replace(since_ms=None)
    return event


@dataclass(frozen=True, slots=True)
class ReadEvents(Command["EventPage"]):
    """Read events in their order. Answer: :class:`EventPage`."""

    traits = looks(Rank.FIRST, by_limit, Lock.ALONE, Answer.EVENTS, Refresh.LOG)

    after_seq: int
    limit: int
    """Events after which the page ends, with the batch that it is in."""
    message_id: str | None = None
    """Only those of this message; the search still goes batch by batch."""
    account: str | None = None


@dataclass(frozen=True, slots=True)
class TailEvents(Command["EventTail"]):
    """Read events from the newest back, of one account. Answer: :class:`EventTail`.

    One look is bounded: it ends after :data:`TAIL_BATCHES` batches, and after so many bytes of log
    as a store reads in a few milliseconds.
    """

    traits = looks(Rank.FIRST, quarter, Lock.ALONE, Answer.PLAIN, Refresh.LOG)

    account: str
    upto_seq: int
    """The newest batch to look at; NEWEST for the last one."""
    queue: str | None = None
    """Only events of this queue."""
    message_id: str | None = None
    """Only events of this message."""


NEWEST: Final = 2**63 - 1
TAIL_BATCHES: Final = 1_000


class EventTail(NamedTuple):
    """Some events, the newest first."""

    events: tuple[Event, ...]
    next_seq: int
    """The batch to go on with; 0 if there is no earlier one."""
    oldest_at_ms: int | None
    """When the oldest batch was that was looked at; None without any."""


class EventPage(NamedTuple):
    """Some events."""

    events: tuple[Event, ...]
    last_seq: int
    """Of the last batch looked at, or the ``after_seq`` asked; read on from there."""
    finished: bool
    """There are no later batches."""


@dataclass(frozen=True, slots=True)
class LogExtent(Command["Extent"]):
    """Ask how much log there is. Answer: :class:`Extent`."""

    traits = looks(Rank.FIRST, one, Lock.ALONE, Answer.PLAIN, Refresh.LOG)


class Extent(NamedTuple):
    """The batches kept."""

    first_seq: int
    last_seq: int
    """0 if there was never one."""
    bytes: int
    """Of the batches kept, roughly."""
    oldest_at_ms: int | None
    store_bytes: int = 0
    """Of all that the store has on its disk, the log included; 0 if that is not known, or there is
    no log."""


@dataclass(frozen=True, slots=True)
class TrimEvents(Command[Swept]):
    """Forget up to *limit* batches with numbers up to *upto_seq*. Answer: Swept."""

    traits = upkeep(Rank.FIRST, one, never, Refresh.LOG, wakes=False)

    upto_seq: int
    limit: int


@dataclass(frozen=True, slots=True)
class KeepNote(Command[Done]):
    """Keep a small text under a name, durably, for a background task. Answer: Done."""

    traits = upkeep(Rank.FIRST, one, always, Refresh.NOTHING, wakes=False)

    name: str
    content: str


@dataclass(frozen=True, slots=True)
class ReadNote(Command["Note"]):
    """Read what was kept. Answer: :class:`Note`."""

    traits = looks(Rank.FIRST, one, Lock.SHARED, Answer.PLAIN, Refresh.NOTHING)

    name: str


class Note(NamedTuple):
    """What was kept, or None."""

    content: str | None


def is_removing(kind: int) -> bool:
    """Tell whether the message is gone after an event of this type."""
    return kind in REMOVING


# --- replay ------------------------------------------------------------------------------------
#
# From the event log to the messages that there are: the log is exact, so this is the live state.
#
# It needs the events from the beginning, in their order, of queues whose log was never turned off.
# With events from later on it knows the messages that something has happened to since.


class ReplayedMessage(NamedTuple):
    """A message as its events tell; times are Unix milliseconds."""

    account: str
    queue: str
    inserted_at_ms: int
    expires_at_ms: int
    visible_at_ms: int
    dequeue_count: int
    fence: int
    phase: Phase
    since_ms: int
    visible_since_ms: int
    renewals: int
    holder: str | None
    priority: int
    session: str | None
    staged: str | None = None
    """Name of the transaction that it is staged under."""
    claim: str | None = None
    """``stream/number`` of the claim that hides it."""


class _Claim(NamedTuple):
    """What is known of a claim."""

    until_ms: int
    hides: bool


_Place: TypeAlias = tuple[str, str]
"""Account and queue."""

_MOVES: Final = frozenset({EventType.POISONED, EventType.REDRIVEN})
_STAYS_CLAIMED: Final = frozenset({EventType.CANCEL_ASKED, EventType.LAPSED})
"""After the first, the message is still in its claim; the second is followed by what takes it."""
_CLAIM_EVENTS: Final = frozenset(
    {EventType.CLAIM_EXTENDED, EventType.CLAIM_LAPSED, EventType.CLAIM_REOPENED}
)


def replay(events: Iterable[Event]) -> dict[str, ReplayedMessage]:
    """Return the messages that there are after *events*, by id.

    Args:
        events: In the order of their ``seq`` and ``place``.
    """
    state = Replay()
    for event in events:
        state.add(event)
    return state.messages()


class Replay:
    """The messages after the events so far; for those who read the log in pieces."""

    def __init__(self) -> None:
        self._messages: dict[str, ReplayedMessage] = {}
        self._claims: dict[tuple[str, str, str], _Claim] = {}
        self._in_queue: dict[_Place, set[str]] = {}

    def add(self, event: Event) -> None:
        """Take the next event into account."""
        kind = event.type
        if kind in _CLAIM_EVENTS:
            self._note_claim(event, hides=kind is not EventType.CLAIM_LAPSED)
        elif kind in {EventType.QUEUE_CLEARED, EventType.QUEUE_DELETED}:
            self._clear(event)
        elif event.message_id and kind is not EventType.REFUSED:
            self._change(event, event.message_id)

    def messages(self) -> dict[str, ReplayedMessage]:
        """Return the messages that there are now, by id."""
        return {
            message_id: message if message.claim is None else self._of_claim(message)
            for message_id, message in self._messages.items()
        }

    def _change(self, event: Event, message_id: str) -> None:
        before = self._messages.pop(message_id, None)
        if before is not None:
            self._in_queue[before.account, before.queue].discard(message_id)
        if is_removing(event.type):
            return
        staged = claim = None
        if event.type is EventType.STAGED:
            staged = event.target
        elif event.type is EventType.CLAIMED:
            self._note_claim(event, hides=True)
            claim = event.target
        elif event.type in _STAYS_CLAIMED and before is not None:
            claim = before.claim
        message = _message(event)._replace(staged=staged, claim=claim)
        self._messages[message_id] = message
        self._in_queue.setdefault((message.account, message.queue), set()).add(message_id)

    def _note_claim(self, event: Event, *, hides: bool) -> None:
        claim = _Claim(event.visible_at_ms or 0, hides)
        self._claims[event.account, event.queue or "", event.target or ""] = claim

    def _of_claim(self, message: ReplayedMessage) -> ReplayedMessage:
        claim = self._claims[message.account, message.queue, message.claim or ""]
        return message._replace(
            visible_at_ms=claim.until_ms, claim=message.claim if claim.hides else None
        )

    def _clear(self, event: Event) -> None:
        """Forget the messages of a queue; what is staged for it stays."""
        place = event.account, event.queue or ""
        for message_id in tuple(self._in_queue.get(place, ())):
            if self._messages[message_id].staged is None:
                del self._messages[message_id]
                self._in_queue[place].remove(message_id)


def _message(event: Event) -> ReplayedMessage:
    """Return the message of an event, which tells all of it."""
    queue = event.target if event.type in _MOVES else event.queue
    return ReplayedMessage(
        event.account,
        queue or "",
        event.inserted_at_ms or 0,
        event.expires_at_ms or 0,
        event.visible_at_ms or 0,
        event.dequeue_count or 0,
        event.fence or 0,
        Phase(event.phase or 0),
        event.since_ms or 0,
        event.visible_since_ms or 0,
        event.renewals or 0,
        event.holder,
        event.priority or 0,
        event.session,
    )
