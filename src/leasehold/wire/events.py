"""Events as JSON."""

from __future__ import annotations

from msgspec import Struct


class Event(Struct, frozen=True, omit_defaults=True, gc=False):
    """One change of state, with the message as it was after it (one that is gone: before it)."""

    # Made by tools/make_events.py from the declaration in leasehold/domain/events.py.
    # columns of events: begin
    seq: int
    """Number of the batch. Rises, with gaps. A batch of more than 16,000 events has several that
    follow each other, so it can be split over files."""
    place: int
    """Position within the batch, from 0. ``seq`` and ``place`` identify an event, and their order
    is the order of the changes."""
    at_ms: int
    """Time of the change; the same for a whole batch."""
    type: str
    """Type of the event, such as ``put`` or ``lease-ended``."""
    queue: str | None = None
    """The queue; none for sessions."""
    message_id: str | None = None
    """Id of the message; none for events of queues, claims and sessions."""
    inserted_at_ms: int | None = None
    """Time when the message was put."""
    expires_at_ms: int | None = None
    """Time when the message expires; none for never."""
    visible_at_ms: int | None = None
    """Time from which the message can be received (again): the end of the lease or delay. For
    events of claims: end of the claim's lease; of pauses: end of the pause."""
    dequeue_count: int | None = None
    """Number of times the message was received."""
    fence: int | None = None
    """Number of the message's newest receipt."""
    phase: int | str | None = None
    """Phase of the message: ``waiting``, ``delayed``, ``leased`` or ``deferred``."""
    since_ms: int | None = None
    """Time when the message entered its phase: for a leased message, and for the end of a lease,
    when the lease began."""
    visible_since_ms: int | None = None
    """Time when the message became visible before its current or last lease; none if it was never
    received."""
    renewals: int | None = None
    """Of the current or last lease."""
    holder: str | None = None
    """Name of the holder of the current or last lease, if the client gave one; for sessions, the
    name of the worker."""
    priority: int | None = None
    """1 to 16."""
    session: str | None = None
    """Id of the session that the lease belongs to, or of the session."""
    reason: str | None = None
    """Reason of the change; its values depend on the type."""
    target: str | None = None
    """The queue moved to, stream and number of the claim, or the name of the transaction."""
    message_type: str | None = None
    """Message type, as set by the producer."""
    error_type: str | None = None
    """Type of the error that was reported with the attempt that the event ended. For ``poisoned``,
    with the newest attempt."""
    error_fingerprint: str | None = None
    """Of the same report: the hash that similar failures share."""
    error: str | None = None
    """Beginning of the error text, at most 256 characters."""
    trace_id: str | None = None
    """Trace id of the message's ``traceparent``: 32 hexadecimal digits."""
    group_id: str | None = None
    """Group id of the message."""
    actor: str | None = None
    """Operator that requested the change, or the server itself: the kind of credentials and the
    identity, such as ``key:shop/1`` or ``console:ana@example.org``."""
    result: str | None = None
    """Of ``completed``: result of the work as reported by the holder, JSON of at most 16,384 bytes.
    """
    # columns of events: end


class EventPage(Struct, frozen=True):
    """Some events, in their order."""

    events: tuple[Event, ...]
    next_after: int
    """Where the next page begins."""
    finished: bool
    """There is nothing later yet."""
    last_seq: int | None = None
    """Number of the newest batch of the log, 0 if there was never one; not given by a trace."""
    first_seq: int | None = None
    """Number of the oldest batch that is kept, whatever account it is of, 0 if there was never one:
    batches before it were deleted. Not given by a trace."""
