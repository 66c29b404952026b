"""The nouns: queues, messages, leases.

Times are Unix milliseconds (``*_ms``) and lengths of time are seconds (``*_s``) everywhere. The
words are those of ``docs/glossary.md``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import NamedTuple

from leasehold.domain.queue_settings import DEFAULT_SETTINGS, QueueSettings

NEVER_MS = 253_402_300_799_000
"""Expiry of a message that never expires: 9999-12-31T23:59:59Z, which dialects show as such."""


class MessageState(StrEnum):
    """Why a message can or cannot be received; decided by :func:`visibility.state_of`."""

    VISIBLE = "visible"
    DELAYED = "delayed"
    LEASED = "leased"
    DEFERRED = "deferred"
    EXPIRED = "expired"
    POISONED = "poisoned"
    STAGED = "staged"
    """Put under the name of a transaction that is not published yet."""


class Phase(IntEnum):
    """What last happened to a message. With the time it gives the state; stores keep the number."""

    WAITING = 0
    """Put without a delay, or made visible by an operator."""
    DELAYED = 1
    """Put with a delay."""
    LEASED = 2
    """Received; the lease may have run out since."""
    DEFERRED = 3
    """Given back, with a delay or without."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessPolicy:
    """A stored access policy of a queue; a field left out is ``None``, as the owner sent it."""

    policy_id: str
    """Name that a shared access signature refers to, 1 to 64 characters."""
    start: str | None = None
    """ISO 8601 time as sent, or None."""
    expiry: str | None = None
    """ISO 8601 time as sent, or None."""
    permission: str | None = None
    """Letters out of ``raup``, or None."""
    complete: bool = True
    """False when the owner sent the name alone, with no policy beside it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """One queue of one account."""

    account: str
    name: str
    metadata: Mapping[str, str] = field(default_factory=dict)
    """User's names and values; the case of a name is kept."""
    policies: tuple[AccessPolicy, ...] = ()
    settings: QueueSettings = DEFAULT_SETTINGS
    created_at_ms: int = 0


class Outcome(StrEnum):
    """How an attempt to work on a message ended, other than by completing it."""

    FAILED = "failed"
    """Given back because the work went wrong. Counts against the budget of failures."""
    INTERRUPTED = "interrupted"
    """Given back because the worker had to stop. Not a delivery that the queue's limit counts."""
    RETURNED = "returned"
    """Given back without a reason."""
    LAPSED = "lapsed"
    """The lease ran out; noticed when the message is received again."""
    ENDED = "ended"
    """An operator ended the lease."""
    BURIED = "buried"
    """The worker sent the message to the poison queue."""
    LOST = "lost"
    """The worker's session was lost. Counts as a lapse: the message may have killed it."""
    STUCK = "stuck"
    """The worker lives and reported no progress for too long. Counts as a lapse."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorReport:
    """What a worker says about a failure."""

    text: str
    type: str | None = None
    """Name of the exception, for example."""
    fingerprint: str | None = None
    """A hash of the stack trace, so that like failures can be counted together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One lease of a message that has ended without completing it."""

    number: int
    """The dequeue count of the lease."""
    leased_at_ms: int
    ended_at_ms: int
    """For a lapse, the moment at which the lease ran out."""
    outcome: Outcome
    holder: str | None = None
    renewals: int = 0
    error: ErrorReport | None = None
    fence: int = 0
    """Number of its newest receipt, each renewal having raised it by one; 0 where an older version
    wrote this down."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far the holder of a lease says it has come."""

    at_ms: int
    fraction: float | None = None
    """0 to 1."""
    note: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelRequest:
    """An operator's wish that the work on a message be stopped."""

    at_ms: int
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BodyRef:
    """Where a large body is kept, outside the store of messages."""

    key: str
    """Name within the body store."""
    size_bytes: int
    sha256: str
    """Of the body, in hexadecimal."""
    problem: str | None = None
    """In an answer without the body, why that is: ``missing``, ``corrupt``, ``unreachable``, or
    ``left-out`` to keep the answer small. Never kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Poisoning:
    """Why and when a message was moved to the poison queue."""

    queue: str
    """Name of the queue that it failed in."""
    reason: str
    """Which budget was used up, ``buried``, or what an operator gave as the reason."""
    at_ms: int
    time_to_live_ms: int | None = None
    """What the message had to live when it was put, for its return; None for ever."""
    deliveries: int = 0
    """Those that counted by then, and so on: in the poison queue the budgets begin anew."""
    failures: int = 0
    interruptions: int = 0
    lapses: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Detail:
    """What few messages have: what was sent along with the body, and what went wrong."""

    properties: Mapping[str, str] = field(default_factory=dict)
    """User's names and values, as with HTTP headers."""
    property_types: Mapping[str, str] = field(default_factory=dict)
    """By name, what a property is for those who send it through MNS; without one it is a text."""
    message_type: str | None = None
    traceparent: str | None = None
    """W3C trace context of the send, ``00-...``."""
    dedup_key: str | None = None
    progress: Progress | None = None
    failures: int = 0
    interruptions: int = 0
    lapses: int = 0
    first_visible_at_ms: int | None = None
    """Set once the message has been received for the second time; until then it follows from the
    other times."""
    attempts: tuple[Attempt, ...] = ()
    """The first one and the latest ones; :data:`MAX_ATTEMPTS` at most."""
    poisoning: Poisoning | None = None
    redriven: int = 0
    """How often the message was brought back from the poison queue."""
    cancel: CancelRequest | None = None
    """Set by an operator, gone with the lease."""
    body_ref: BodyRef | None = None
    """Set if the body is in the body store; ``Message.body`` is empty then."""
    saved: str | None = None
    """JSON that a holder saved for whoever has the message next. Stores keep it apart from the
    rest, which changes with every lease."""


MAX_ATTEMPTS = 20
NO_DETAIL = Detail()
DEFAULT_PRIORITY = 8
"""Of 1 (first) to 16 (last), as in MNS."""


class Message(NamedTuple):
    """A message as the store holds it. A tuple, because every answer is made of new ones."""

    message_id: str
    """Lower-case UUID; see :mod:`leasehold.domain.ids`."""
    body: bytes
    inserted_at_ms: int
    expires_at_ms: int
    """From this moment on the message can be neither received nor acted on; NEVER_MS for never."""
    visible_at_ms: int
    """From this moment on it can be received (again)."""
    dequeue_count: int = 0
    """How often it was received."""
    fence: int = 0
    """Rises with every new receipt, so of two holders the later one has the higher number."""
    phase: Phase = Phase.WAITING
    since_ms: int = 0
    """When the phase began: put, received, or given back."""
    visible_since_ms: int = 0
    """When it became visible before the current or last lease; 0 if never received."""
    renewals: int = 0
    """Renewals of the current or last lease."""
    holder: str | None = None
    """Who received it last, as far as they said."""
    priority: int = DEFAULT_PRIORITY
    detail: Detail = NO_DETAIL
    session: str | None = None
    """Id of the session that the current or last lease belongs to."""


class Lease(NamedTuple):
    """A message together with the one receipt that acts on it now."""

    message: Message
    receipt: str
