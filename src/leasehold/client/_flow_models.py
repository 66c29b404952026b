"""The models of sessions, claims, transactions, events and the test mode.

They belong to :mod:`leasehold.client.models`, which has all models for those who import them.
"""

from __future__ import annotations

from msgspec import Struct


class CancelRequest(Struct, frozen=True):
    """An operator's wish that the work on a message be stopped."""

    at_ms: int
    reason: str | None = None


class CancelNotice(Struct, frozen=True):
    """The same, as a session hears of it: with the message that is meant."""

    id: str
    """Of the message."""
    queue: str = ""
    reason: str | None = None
    at_ms: int = 0


class Beat(Struct, frozen=True):
    """What a session hears at a heartbeat."""

    until_ms: int
    """When it is lost unless there is another heartbeat."""
    cancels: tuple[CancelNotice, ...] = ()
    """All messages on its leases whose work is to be stopped."""
    lost: tuple[str, ...] = ()
    """Of the messages whose progress was told: those no longer on a lease of this session."""


class SessionInfo(Struct, frozen=True, kw_only=True):
    """A worker process, as others see it."""

    session_id: str
    holder: str
    """What the worker calls itself; the holder of all its leases."""
    state: str
    """``live``, ``lost`` (no heartbeat in time) or ``ended``."""
    timeout_s: int
    """Seconds without a heartbeat after which it is lost."""
    progress_timeout_s: int | None = None
    """Seconds without progress after which a lease of it ends; None: no watchdog."""
    started_at_ms: int = 0
    last_heartbeat_ms: int = 0
    ended_at_ms: int | None = None
    reason: str | None = None
    """Why it is over."""
    leases: int = 0
    """Messages on its leases now."""


class ClaimInfo(Struct, frozen=True, kw_only=True):
    """A claim: messages leased together, to be read as often as wanted and settled together."""

    number: int
    """1, 2, 3 and so on within its stream."""
    state: str
    """``opening``, ``open``, ``parked``, ``lapsed`` or ``broken``."""
    size: int
    """Members, those lost included."""
    lost: int = 0
    """Members that others have taken or removed."""
    remaining: int = 0
    """Members that are still in it."""
    limit: int = 0
    """How many it may have, as was said when it was first opened."""
    max_bytes: int | None = None
    opened_at_ms: int = 0
    until_ms: int = 0
    """End of the lease of all members; of a parked claim the end of the replay window."""
    holder: str | None = None
    extensions: int = 0
    noted: int = 0
    """Members whose exemption is noted for when it is settled."""
    transaction: str | None = None
    """Name of the transaction whose publishing settles it."""
    replayed: bool = False
    """As the answer to ``open``: it was there already."""


class StreamInfo(Struct, frozen=True, kw_only=True):
    """A consumer that works in numbered claims."""

    stream: str
    token: int = 0
    """Rises with each attach; calls with an older one are refused."""
    last_settled: int = 0
    """All claims up to this number are settled; 0: none yet."""
    attached_at_ms: int = 0
    settled_with: str | None = None
    """Name of the transaction whose publishing settled the last claims that were; None if they were
    settled by themselves."""
    claims: tuple[ClaimInfo, ...] = ()
    """Those not settled, by number."""


class StreamSettled(Struct, frozen=True, kw_only=True):
    """What publishing did to a stream of which claims were bound to the transaction."""

    queue: str
    stream: str
    last_settled: int
    completed: int = 0
    exempted: int = 0
    lost: int = 0
    """Members that others had taken meanwhile, which the consumer had accepted."""


class Settled(Struct, frozen=True, kw_only=True):
    """What settling did."""

    last_settled: int
    completed: int = 0
    exempted: int = 0
    lost: int = 0
    """Members that others had taken meanwhile: they were not completed."""
    published: int = 0
    """Messages of staged transactions that became visible."""
    duplicates: int = 0
    """Staged messages that were dropped instead, as their deduplication key had been used."""
    already: bool = False
    """All of it was settled before; also where an earlier try of this very call did it."""
    beside: tuple[StreamSettled, ...] = ()
    """Other streams, of which claims were bound to what was published."""


class Staged(Struct, frozen=True):
    """How much a part of a transaction has now."""

    rows: int
    chunks: int
    """The next chunk of the part has this number."""
    duplicate: bool = False
    """All of it had been staged before and was not staged again, whatever it said."""


class Published(Struct, frozen=True):
    """What publishing did."""

    rows: int
    """Messages published under the name."""
    already: bool = False
    """They were published before; also where an earlier try of this very call did it."""
    settled: tuple[StreamSettled, ...] = ()
    """Streams of which claims were bound to the name; empty if they were settled before."""
    duplicates: int = 0
    """Messages that were dropped instead, as their deduplication key had been used."""


class Discarded(Struct, frozen=True):
    """What discarding did."""

    rows: int
    """Messages dropped."""
    published: bool = False
    """The transaction had been published: nothing was dropped."""


class StagedPart(Struct, frozen=True):
    """What one task has staged."""

    part: str
    rows: int
    chunks: int


class BoundClaim(Struct, frozen=True):
    """A claim that is settled when the transaction is published."""

    queue: str
    stream: str
    number: int


class TransactionInfo(Struct, frozen=True, kw_only=True):
    """Messages staged under a name, or the memory of those that were published."""

    name: str
    state: str
    """``staged`` or ``published``."""
    created_at_ms: int = 0
    until_ms: int = 0
    """When it vanishes, or when its publishing is forgotten."""
    rows: int = 0
    """Messages staged, or published."""
    duplicates: int = 0
    """Messages that were dropped when it was published, as their key had been used."""
    parts: tuple[StagedPart, ...] = ()
    """By name; empty once it is published."""
    claims: tuple[BoundClaim, ...] = ()
    """Those that publishing it settles; empty once it is published."""


class Event(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One change of state, with the message as it was after it (one that is gone: before it)."""

    # Made by tools/make_events.py from the declaration in leasehold/domain/events.py.
    # columns of events: begin
    seq: int
    """Number of the batch. Rises, with gaps. A batch of more than 16,000 events has several that
    follow each other, so it can be split over files."""
    place: int
    """Place within the batch, from 0. ``seq`` and ``place`` name an event for ever, and their order
    is the order in which things happened."""
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
    until when the claim hides its messages."""
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


class Faults(Struct, frozen=True, omit_defaults=True):
    """Failures that a server in test mode is to make."""

    fail_commits: int = 0
    """So many commits fail, from the next one on."""
    delay_answers_s: float = 0
    """Every answer is held back so long."""
    drop_answers: int = 0
    """So many requests are carried out and get no answer."""
