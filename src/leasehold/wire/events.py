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
    """Place within the batch, from 0. ``seq`` and ``place`` identify an event, and their order is
    the order in which things happened."""
    at_ms: int
    """When; the same for a whole batch."""
    type: str
    """What happened, such as ``put`` or ``lease-ended``."""
    queue: str | None = None
    """The queue that it happened in; none for sessions."""
    message_id: str | None = None
    """The message; none for events of queues, claims and sessions."""
    inserted_at_ms: int | None = None
    """When the message was put."""
    expires_at_ms: int | None = None
    """When it expires; none for never."""
    visible_at_ms: int | None = None
    """From when on it can be received (again): the end of the lease or delay. For events of claims:
    until when the claim hides its messages; of pauses: until when."""
    dequeue_count: int | None = None
    """How often it was received."""
    fence: int | None = None
    """Number of its newest receipt."""
    phase: int | str | None = None
    """What last happened to it: ``waiting``, ``delayed``, ``leased`` or ``deferred``."""
    since_ms: int | None = None
    """When that was: for a leased message, and for the end of a lease, when the lease began."""
    visible_since_ms: int | None = None
    """When it became visible before its current or last lease; none if it was never received."""
    renewals: int | None = None
    """Of the current or last lease."""
    holder: str | None = None
    """Who received it last, as far as they said; for sessions, whose it is."""
    priority: int | None = None
    """1 to 16."""
    session: str | None = None
    """Id of the session that the lease belongs to, or of the session."""
    reason: str | None = None
    """Why; what it says depends on the type."""
    target: str | None = None
    """The queue moved to, stream and number of the claim, or the name of the transaction."""
    message_type: str | None = None
    """What the message was put with as its type."""
    error_type: str | None = None
    """Type of the error that was reported with the attempt that the event ended. For ``poisoned``,
    with the newest attempt."""
    error_fingerprint: str | None = None
    """Of the same report: what errors of one cause have alike."""
    error: str | None = None
    """The beginning of its text, 256 characters at most."""
    trace_id: str | None = None
    """The trace that the message was put in: 32 hexadecimal digits, of its ``traceparent``."""
    group_id: str | None = None
    """The message group that the message belongs to."""
    actor: str | None = None
    """Who asked for it, where that was an operator or the server itself: what was shown to prove
    it, and who that is, such as ``key:shop/1`` or ``console:ana@example.org``."""
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
