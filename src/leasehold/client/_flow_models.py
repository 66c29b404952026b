"""The models of events.

They belong to :mod:`leasehold.client.models`, which has all models for those who import them.
"""

from __future__ import annotations

from msgspec import Struct


class Event(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One change of state, with the message as it was after it (one that is gone: before it)."""

    seq: int
    """Number of the batch of changes; rises, with gaps."""
    place: int
    """Place within the batch; the two name an event for ever."""
    at_ms: int
    type: str
    """What happened: ``put``, ``received``, ``lease-ended`` and so on."""
    queue: str | None = None
    message_id: str | None = None
    inserted_at_ms: int | None = None
    expires_at_ms: int | None = None
    visible_at_ms: int | None = None
    dequeue_count: int | None = None
    fence: int | None = None
    phase: int | str | None = None
    since_ms: int | None = None
    """When its state began: for the end of a lease, when the lease began."""
    visible_since_ms: int | None = None
    renewals: int | None = None
    holder: str | None = None
    priority: int | None = None
    session: str | None = None
    reason: str | None = None
    target: str | None = None
    """The queue moved to, the stream and number of a claim, or the name of a transaction."""
    message_type: str | None = None
    """What the sender gave as the type of the message."""
    error_type: str | None = None
    """What was said about the attempt that the event ended: the type of the error,"""
    error_fingerprint: str | None = None
    """what like errors have in common,"""
    error: str | None = None
    """and the beginning of its text."""


class EventPage(Struct, frozen=True):
    """Some events, in their order."""

    events: tuple[Event, ...]
    next_after: int
    """Where the next page begins."""
    finished: bool
    """There is nothing later yet."""
    last_seq: int | None = None
    """Number of the newest batch of the log, 0 if there was never one; not given by a trace."""
