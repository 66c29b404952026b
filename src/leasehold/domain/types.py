"""The nouns: queues, messages, leases.

Times are Unix milliseconds (``*_ms``) and lengths of time are seconds (``*_s``) everywhere. The
words are those of ``docs/glossary.md``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

NEVER_MS = 253_402_300_799_000
"""Expiry of a message that never expires: 9999-12-31T23:59:59Z, which dialects show as such."""


class MessageState(StrEnum):
    """Why a message can or cannot be received; decided by :func:`visibility.state_of`."""

    VISIBLE = "visible"
    DELAYED = "delayed"
    LEASED = "leased"
    EXPIRED = "expired"


class LapsedReceipts(StrEnum):
    """What a receipt is worth once its lease has run out and nobody has taken the message."""

    UNTIL_RETAKEN = "until-retaken"
    """It goes on working until somebody else receives the message (Azure's rule)."""

    STRICT = "strict"
    """It is dead from the moment the lease ends (MNS's rule)."""


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
    lapsed_receipts: LapsedReceipts = LapsedReceipts.UNTIL_RETAKEN
    created_at_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A message as the store holds it."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """A message together with the one receipt that acts on it now."""

    message: Message
    receipt: str
