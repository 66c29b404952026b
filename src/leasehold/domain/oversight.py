"""What those ask who look after a queue: look, count, move, remove, by id and by filter.

As with :mod:`leasehold.domain.commands`, an answer is the value named in the docstring or an error.
None of these needs a receipt, and none but the moving ones changes anything a worker can see.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple, TypeAlias

from leasehold.domain.types import BodyRef, Message, MessageState

COUNTED_STATES = (
    MessageState.VISIBLE,
    MessageState.LEASED,
    MessageState.DELAYED,
    MessageState.DEFERRED,
    MessageState.POISONED,
    MessageState.EXPIRED,
)
"""States that messages are counted by, named like the fields of :class:`Counts`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageFilter:
    """Which messages are meant; what is left out matches all.

    :func:`leasehold.domain.matching.matches` decides.
    """

    states: frozenset[MessageState] | None = None
    min_age_s: float | None = None
    """Inserted at least so many seconds ago."""
    max_age_s: float | None = None
    min_dequeue_count: int | None = None
    max_dequeue_count: int | None = None
    holder: str | None = None
    message_type: str | None = None
    reason: str | None = None
    """Why it was poisoned."""
    error: str | None = None
    """Part of the text, or the whole type, or the fingerprint, of its last error."""
    text: str | None = None
    """Part of the body, which is taken as UTF-8, or base64 of it."""
    json_path: str | None = None
    """Dotted path into a body that is JSON, such as ``order.lines[0].sku``."""
    json_value: str | None = None
    """What must be there, as JSON; None: anything."""


EVERYTHING = MessageFilter()


@dataclass(frozen=True, slots=True)
class Inspect:
    """List messages, oldest first, without touching them. Answer: MessagePage, or QueueNotFound.

    With the state POISONED among those asked for, messages in the poison queue that came from this
    queue are listed after its own. A page may be short, or empty, and still not be the last.
    """

    account: str
    queue: str
    filter: MessageFilter
    after: str
    """``next_after`` of the page before; empty for the beginning."""
    limit: int
    with_bodies: bool = True
    """Whether bodies that are in the body store are read from there; stores do not look at it."""


class Seen(NamedTuple):
    """A message as an inspector sees it."""

    message: Message
    state: MessageState
    queue: str
    """The queue that it is in: a poisoned one is in another than the one asked."""
    under: str | None = None
    """``stream/number`` of the claim that holds it, or the name of the transaction that it is
    staged under."""


class MessagePage(NamedTuple):
    """Some messages, and where the next page starts (None at the end)."""

    messages: tuple[Seen, ...]
    next_after: str | None


@dataclass(frozen=True, slots=True)
class FindMessage:
    """Look for one message by id, in the queue and its poison queue.

    Answer: :class:`Seen`, or QueueNotFound or MessageNotFound.
    """

    account: str
    queue: str
    message_id: str
    with_bodies: bool = True
    """As for :class:`Inspect`."""


@dataclass(frozen=True, slots=True)
class CountMessages:
    """Count a queue's messages by state. Answer: :class:`Counts`, or QueueNotFound."""

    account: str
    queue: str


class Counts(NamedTuple):
    """How many messages are in each state, all at one instant.

    *since* says when the message that has been longest in a state entered it; expired ones, of
    which there may be very many, have no such time.
    """

    visible: int
    leased: int
    delayed: int
    deferred: int
    poisoned: int
    """Messages in the queue's poison queue, in whatever state they are there."""
    since: Mapping[MessageState, int]
    """Unix milliseconds by state; states without messages are left out."""
    exact: bool = True
    """False while many messages that expired during a standstill have not been set aside yet.

    Some of those may then be counted as what they were before.
    """
    staged: int = 0
    """Messages staged for the queue and not published; not part of the total."""
    claimed: int = 0
    """Of the leased ones, how many are in claims."""
    expired: int = 0
    """Messages whose time to live is over, until their rows are removed; not part of the total."""

    @property
    def total(self) -> int:
        """Return how many are in the queue itself."""
        return self.visible + self.leased + self.delayed + self.deferred


@dataclass(frozen=True, slots=True)
class NextDue:
    """Ask when the next message becomes visible. Answer: :class:`Due`, or QueueNotFound."""

    account: str
    queue: str


class Due(NamedTuple):
    """The earliest moment, from now on, at which a receive may get something; None: no such."""

    at_ms: int | None


@dataclass(frozen=True, slots=True)
class Amend:
    """Change a message without a receipt. Answer: Seen.

    Or QueueNotFound, MessageNotFound, MessageLeased, VisibilityPastExpiry. What is None stays.
    A new fence kills the receipts of before.
    """

    account: str
    queue: str
    message_id: str
    delay_s: int | None = None
    """Seconds from now until it can be received."""
    time_to_live_s: int | None = None
    """Seconds from now until it expires; -1 for never."""
    body: bytes | BodyRef | None = None
    """New body, or where it is in the body store."""
    priority: int | None = None
    properties: Mapping[str, str] | None = None
    force: bool = False
    """Also if it is leased: the lease ends then."""


@dataclass(frozen=True, slots=True)
class Remove:
    """Remove a message without a receipt. Answer: Done.

    Or QueueNotFound, MessageNotFound, MessageLeased.
    """

    account: str
    queue: str
    message_id: str
    force: bool = False


@dataclass(frozen=True, slots=True)
class EndLease:
    """End a lease: its receipt is dead, the message visible. Answer: Seen.

    Or QueueNotFound, MessageNotFound, MessageNotLeased.
    """

    account: str
    queue: str
    message_id: str
    delay_s: int = 0
    reason: str | None = None


class JobKind(StrEnum):
    """What a job does with the messages it finds."""

    PURGE = "purge"
    REDRIVE = "redrive"


class JobState(StrEnum):
    """How far a job is."""

    RUNNING = "running"
    CANARY = "canary"
    """It has moved its first few messages and waits to see what becomes of them."""
    DONE = "done"
    STOPPED = "stopped"
    """An operator, or a failing canary, has stopped it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPlan:
    """What a job is to do."""

    kind: JobKind
    filter: MessageFilter = EVERYTHING
    dry_run: bool = False
    """Only count."""
    rate_per_s: float | None = None
    """Messages a second; None: as fast as they go."""
    canary: int = 0
    """Redrive so many first, and go on only when all of them have been completed."""
    target: str | None = None
    """Queue to redrive to; None for the one that each message failed in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A purge or a redrive, kept by the store until it is done and for a while after."""

    job_id: str
    account: str
    queue: str
    """The queue asked: a redrive takes from its poison queue."""
    plan: JobPlan
    state: JobState
    created_at_ms: int
    updated_at_ms: int
    examined: int = 0
    matched: int = 0
    moved: int = 0
    """Messages purged or redriven."""
    expected: int = 0
    """Messages there when it started, for those who watch."""
    note: str | None = None
    """Why it stopped."""
    cursor: str = ""
    """Where it goes on."""
    end: int = 0
    """It looks at nothing that came later than this."""
    canaries: tuple[str, ...] = field(default=())
    """Message ids that it waits for."""


@dataclass(frozen=True, slots=True)
class StartJob:
    """Begin a job. Answer: :class:`Job`, or QueueNotFound."""

    account: str
    queue: str
    job_id: str
    plan: JobPlan


@dataclass(frozen=True, slots=True)
class StepJob:
    """Carry a job on by up to *limit* messages. Answer: the Job, or JobNotFound."""

    job_id: str
    limit: int


@dataclass(frozen=True, slots=True)
class StopJob:
    """Stop a job where it is. Answer: the Job, or JobNotFound."""

    account: str
    job_id: str


@dataclass(frozen=True, slots=True)
class GetJob:
    """Look at a job. Answer: the Job, or JobNotFound."""

    account: str
    job_id: str


@dataclass(frozen=True, slots=True)
class ListJobs:
    """List jobs, the newest first. Answer: tuple of Job. Without an account: all that run."""

    account: str | None
    queue: str | None = None
    limit: int = 100


OversightCommand: TypeAlias = (
    Inspect
    | FindMessage
    | CountMessages
    | NextDue
    | Amend
    | Remove
    | EndLease
    | StartJob
    | StepJob
    | StopJob
    | GetJob
    | ListJobs
)
OversightResult: TypeAlias = MessagePage | Seen | Counts | Due | Job | tuple[Job, ...]
