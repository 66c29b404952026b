"""What is kept of an event log for analysis: little, whatever the size of the log.

Spark makes these, see ``leasehold.spark.analytics.summaries``; :mod:`leasehold.analysis` reads
them. They are plain data, so that they can be saved as JSON and read again: see
:mod:`leasehold.analysis.saving`.

Moments are Unix milliseconds, lengths seconds. Outcomes of attempts and messages are the words of
the lifecycle tables.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

BIN_RATIO: Final = 1.02
"""Each bin of lengths is 2 % wider than the one before: some 1,000 from a millisecond to a week."""
SHORTEST_BIN_S: Final = 0.001
"""Where the bins begin; what is shorter goes into the first."""
MOST_TIMELINES: Final = 50
"""Redelivered messages that are kept with all their attempts, per queue."""
MOST_SAMPLE_IDS: Final = 5
"""Ids of messages that are kept of a cluster."""
MOST_REPEATS: Final = 1_000
"""Pairs of finished attempts at the same message that are kept, per queue and type."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bin:
    """Messages whose work took about as long.

    There is one observation for each message, made as ``leasehold.tuning.observing.observe`` makes
    it: late completions are finished, lapses and lost sessions are not.
    """

    seconds: float
    """Mean of those in the bin, 0 or more: not its middle, so that sums come out right."""
    finished: bool
    """Whether they were done then; else they lasted longer."""
    count: float
    """How many, above 0."""
    day: int = 0
    """How many whole days before the end of the summary they ended; 0 for the last 24 hours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What became of the messages of one type in a queue. Counts are of attempts unless said."""

    message_type: str | None = None
    """None for messages without a type."""
    bins: tuple[Bin, ...] = ()
    crashes: float = 0.0
    """Attempts that ended because their worker died."""
    silent: float = 0.0
    """Those of them of which nobody knows when, and which are in no bin."""
    work_s: float = 0.0
    """Seconds of work in which the crashes happened."""
    left_out: int = 0
    """Given back, buried, or at a third delivery or later of a message that was not done: in no
    bin."""
    given_up: int = 0
    """Messages that were given up since each of their leases lapsed, and nobody was seen to die:
    in a bin, as not finished."""
    messages: int = 0
    """Messages that were received at least once."""
    deliveries: int = 0
    done: int | None = None
    """Messages that were completed; None in summaries that did not count them."""
    set_aside: int = 0
    """Messages that went to the poison queue."""
    redelivered: int = 0
    """Messages that were received more than once."""
    redeliveries: int = 0
    """Deliveries that were not a message's first."""
    completed: int = 0
    """In time."""
    late: int = 0
    """Completed when the lease was over, accepted or not."""
    late_accepted: int = 0
    """Those of them that counted, since nobody had received the message again."""
    lapsed: int = 0
    session_lost: int = 0
    failed: int = 0
    returned: int = 0
    interrupted: int = 0
    buried: int = 0
    renewed: int = 0
    """Attempts whose lease was renewed at least once."""
    unrenewed: int | None = None
    """Attempts whose lease was over before the work, never renewed: completed late, or lapsed.
    None in summaries that did not count them."""
    wasted_work_s: float = 0.0
    """Seconds of work that came to nothing: refused completions, and what died with its worker."""
    worst_hidden_s: float = 0.0
    """Longest time from the death of a worker, as far as it is known, or else from the beginning of
    its lease, until the message was visible again; 0 if none died."""
    usual_lease_s: float | None = None
    """The length that most leases began with; None without any."""
    newest_lease_s: float | None = None
    """The length that most leases of the last hour with any began with: what is in force, where it
    was changed or adapts."""
    newest_hour: int = 0
    """That hour, counted from the Unix epoch."""
    repeats: tuple[tuple[float, float], ...] = ()
    """Seconds of two finished attempts at the same message, for up to MOST_REPEATS messages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hour:
    """One hour of a queue. Counts are of events in it."""

    start_ms: int
    """A whole hour, UTC."""
    put: int = 0
    leased: int = 0
    completed: int = 0
    """In time or late, but accepted: messages that left the queue."""
    late: int = 0
    lapsed: int = 0
    failed: int = 0
    buried: int = 0
    expired: int = 0
    backlog_end: int = 0
    """Messages in the queue when the hour ended: put, and not gone."""
    oldest_wait_s: float = 0.0
    """Longest wait from put to first receive among those first received in the hour."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """One attempt at a message, for its timeline."""

    attempt: int
    """1 for the first."""
    leased_at_ms: int
    ended_at_ms: int | None
    """When work ended as far as it was seen; None while it goes on."""
    lease_s: float
    """Length granted in all."""
    outcome: str
    holder: str | None = None
    renewals: int = 0
    error_type: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """A message that was received more than once."""

    message_id: str
    message_type: str | None
    inserted_at_ms: int
    outcome: str
    """What became of the message."""
    attempts: tuple[Span, ...]
    """In the order of their beginnings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoisonCluster:
    """Messages that were given up for the same reason."""

    error_type: str | None
    fingerprint: str | None
    message_type: str | None
    count: int
    """Messages."""
    first_ms: int
    last_ms: int
    sample_ids: tuple[str, ...] = ()
    """Up to MOST_SAMPLE_IDS of them, the newest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """What one holder of leases did. Counts are of attempts."""

    holder: str
    attempts: int
    completed: int = 0
    late: int = 0
    lapsed: int = 0
    failed: int = 0
    lost: int = 0
    """Ended with its session."""
    work_s: float = 0.0
    p50_s: float | None = None
    """Of what it completed."""
    p99_s: float | None = None
    first_seen_ms: int = 0
    last_seen_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSummary:
    """One queue."""

    queue: str
    works: tuple[Work, ...] = ()
    """One for each type of message; the types share the queue and its workers."""
    hours: tuple[Hour, ...] = ()
    """Rising, without gaps."""
    open_messages: int = 0
    """In the queue at the end."""
    oldest_open_ms: int | None = None
    """When the oldest of them was put."""
    next_expiry_ms: int | None = None
    """When the first of them expires; None if none does."""
    time_to_live_s: float | None = None
    """Seconds that messages live, those that live shortest among common ones (10th percentile);
    None: for ever."""
    timelines: tuple[Timeline, ...] = ()
    """Up to MOST_TIMELINES, those with most attempts first."""
    poison: tuple[PoisonCluster, ...] = ()
    """The largest first."""
    workers: tuple[Worker, ...] = ()
    """Those with most attempts first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSummary:
    """A stretch of an event log."""

    since_ms: int
    """Included."""
    until_ms: int
    """Not included."""
    events: int
    """How many were read."""
    queues: tuple[QueueSummary, ...] = ()
    """By name."""
    source: str = ""
    """Where the log came from, for people. No credentials."""
    accounts: tuple[str, ...] = ()
    """Whose queues these are, by name; none in summaries that did not say."""
