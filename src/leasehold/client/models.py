"""What the client takes and gives back: plain, immutable values with the names of the wire.

Times are Unix milliseconds (``*_ms``), lengths of time are seconds (``*_s``). Members that a newer
server adds are passed over.
"""

from __future__ import annotations

import hashlib
import json
import traceback
from collections.abc import Mapping
from typing import Any, Final, Literal

from msgspec import UNSET, Struct

from leasehold.client._flow_models import (
    Beat,
    BoundClaim,
    CancelNotice,
    CancelRequest,
    ClaimInfo,
    Discarded,
    Event,
    EventPage,
    Faults,
    Published,
    SessionInfo,
    Settled,
    Staged,
    StagedPart,
    StreamInfo,
    StreamSettled,
    TransactionInfo,
)
from leasehold.domain.limits import NEVER
from leasehold.domain.model import DEFAULT_PRIORITY

__all__ = [
    "DEFAULT_PRIORITY",
    "DEFAULT_TIME_TO_LIVE_S",
    "NEVER",
    "Activity",
    "Adapted",
    "Adaptive",
    "Advised",
    "Attempt",
    "Backoff",
    "Beat",
    "BoundClaim",
    "CancelNotice",
    "CancelRequest",
    "ClaimInfo",
    "Committed",
    "Counts",
    "Discarded",
    "ErrorReport",
    "Event",
    "EventPage",
    "Exemption",
    "Explanation",
    "FailurePolicy",
    "Faults",
    "Filter",
    "GiveBack",
    "Job",
    "LeaseInfo",
    "LeaseRef",
    "MessageView",
    "MnsAttributes",
    "NewMessage",
    "Outcome",
    "Outgoing",
    "PeekedMessage",
    "Poisoning",
    "Progress",
    "Published",
    "QueueInfo",
    "ReceivedMessage",
    "Released",
    "Renewal",
    "Sent",
    "SessionInfo",
    "Settings",
    "Settled",
    "Staged",
    "StagedPart",
    "StreamInfo",
    "StreamSettled",
    "TransactionInfo",
]

DEFAULT_TIME_TO_LIVE_S: Final = 604_800
"""Seven days, as in Azure's "Put Message"."""

Outcome = Literal["failed", "interrupted", "returned", "buried"]
"""Why a message is given back: the work went wrong; the worker had to stop; no reason; or the
message is to go to the poison queue at once."""

_SHOWN_BYTES: Final = 60
_FINGERPRINT_CHARS: Final = 16


class NewMessage(Struct, frozen=True, omit_defaults=True):
    """A message to be put."""

    body: str | bytes
    """Text is sent as UTF-8; how large it may be is set on the server, 64 KiB unless changed."""
    delay_s: int = 0
    """Seconds until it can first be received, 0 to 315,360,000 (ten years)."""
    time_to_live_s: int = DEFAULT_TIME_TO_LIVE_S
    """Seconds until it expires, 1 to 2,147,483,647, or -1 for never."""
    priority: int = DEFAULT_PRIORITY
    """1 (received first) to 16 (received last)."""
    dedup_key: str | None = None
    """A second message with the same key, within the queue's window, is not put. A message with
    a key can safely be put again when an answer got lost, so the client does that by itself."""
    type: str | None = None
    """What kind of work it is, for filters and statistics."""
    properties: Mapping[str, str] | None = None
    """Names and values that travel with the body."""
    traceparent: str | None = None
    """W3C trace context of the sender, ``00-...``."""


class Outgoing(NewMessage, frozen=True, omit_defaults=True, kw_only=True):
    """A message to be put, and the queue that it is for: ``Outgoing("hello", queue="orders")``."""

    queue: str


class Sent(Struct, frozen=True):
    """A message that was put."""

    id: str
    inserted_at_ms: int
    expires_at_ms: int | None
    """None: never."""
    visible_at_ms: int
    receipt: str
    """Acts on the message until it is first received."""
    duplicate: bool = False
    """Nothing was put: the values are those of the message put before with the same key."""


class PeekedMessage(Struct, frozen=True, kw_only=True):
    """A message that was looked at, not leased."""

    id: str
    body: bytes = b""
    """Empty where there is a ``body_problem``."""
    body_problem: str | None = None
    """Why a large body is not here: ``missing``, ``corrupt``, ``unreachable``, or ``left-out`` of
    an answer that has as much as it can hold. One that is received is always whole."""
    body_bytes: int = 0
    """Size of the body, also where it is not here."""
    inserted_at_ms: int = 0
    expires_at_ms: int | None = None
    """None: never."""
    visible_at_ms: int = 0
    """From this moment on it can be received (again)."""
    dequeue_count: int = 0
    """How often it was received."""
    priority: int = DEFAULT_PRIORITY
    type: str | None = None
    properties: Mapping[str, str] = {}
    traceparent: str | None = None
    dedup_key: str | None = None

    @property
    def text(self) -> str:
        """The body as text.

        Raises:
            UnicodeDecodeError: It is not UTF-8.
        """
        return self.body.decode()

    def json(self) -> Any:
        """Return what the body says as JSON.

        Raises:
            ValueError: It is not JSON.
        """
        return json.loads(self.body)

    def __repr__(self) -> str:
        return _repr_of_message(self.__class__.__name__, self.id, self.dequeue_count, self.body)


class ReceivedMessage(PeekedMessage, frozen=True, kw_only=True):
    """A message on a lease, which runs until ``visible_at_ms``."""

    receipt: str
    """Proves the lease; each renewal gives a new one."""
    fence: int = 0
    """Rises with every lease of this message: hand it to what you write to, so that it can refuse
    a writer that has been overtaken."""
    queue: str = ""
    """The queue that it was received from."""
    session: str | None = None
    """Id of the session that the lease belongs to."""
    saved: Any = None
    """What this holder or the one before has saved with a renewal; None if there is nothing."""
    cancel: CancelRequest | None = None
    """Set by a renewal if an operator wants the work stopped."""

    def __repr__(self) -> str:
        return _repr_of_message(self.__class__.__name__, self.id, self.dequeue_count, self.body)


class LeaseRef(Struct, frozen=True):
    """The id and receipt of a leased message, for callers that kept nothing else of it."""

    id: str
    receipt: str
    visible_at_ms: int = 0
    queue: str = ""
    """Needed only where messages of several queues are handled together."""
    cancel: CancelRequest | None = None
    """Set by a renewal if an operator wants the work stopped."""


class Progress(Struct, frozen=True, omit_defaults=True):
    """How far the holder of a lease has come."""

    fraction: float | None = None
    """0 to 1."""
    note: str | None = None
    at_ms: int | None = None
    """When it was reported; the server sets it."""


class ErrorReport(Struct, frozen=True, omit_defaults=True):
    """What went wrong with a message."""

    text: str
    type: str | None = None
    """Name of the exception, for example."""
    fingerprint: str | None = None
    """A hash of the stack trace, so that like failures can be counted together."""
    at_ms: int | None = None
    """When it was reported; the server sets it."""

    @classmethod
    def of(cls, error: ErrorReport | BaseException | str) -> ErrorReport:
        """Return a report of *error*; that of an exception has its type and a fingerprint.

        The fingerprint covers the exception's type and the files and functions it passed through,
        not line numbers, so that it stays the same over small edits.
        """
        if isinstance(error, ErrorReport):
            return error
        if isinstance(error, str):
            return cls(text=error)
        name = f"{type(error).__module__}.{type(error).__qualname__}".removeprefix("builtins.")
        frames = traceback.extract_tb(error.__traceback__)
        seen = "\n".join([name, *(f"{frame.filename}:{frame.name}" for frame in frames)])
        fingerprint = hashlib.sha256(seen.encode("utf-8", "replace")).hexdigest()
        return cls(str(error) or name, name, fingerprint[:_FINGERPRINT_CHARS])


class Released(Struct, frozen=True):
    """A message that was given back."""

    id: str
    visible_at_ms: int
    """From this moment on it can be received again."""
    poisoned: str | None = None
    """Which budget it had used up, or ``buried``; None if it stays in its queue."""


class Exemption(Struct, frozen=True, omit_defaults=True):
    """A member that is not completed when its claim is settled, and what becomes of it."""

    number: int
    """Of the claim."""
    id: str
    """Of the message."""
    outcome: Outcome = "failed"
    delay_s: int | None = None
    """As for ``release``: None is the queue's back-off after a failure, and at once otherwise."""
    error: ErrorReport | None = None


class Renewal(Struct, frozen=True, omit_defaults=True):
    """A lease to renew together with other things; see ``renew``."""

    message: ReceivedMessage | LeaseRef
    visibility_timeout_s: int
    body: str | bytes | None = None
    progress: Progress | None = None
    saved: Any = UNSET
    """What JSON can say; None removes what was saved, and left out it stays."""


class GiveBack(Struct, frozen=True, omit_defaults=True):
    """A message to give back together with other things; see ``release``."""

    message: ReceivedMessage | LeaseRef
    outcome: Outcome = "returned"
    delay_s: int | None = None
    error: ErrorReport | None = None


class Committed(Struct, frozen=True, kw_only=True):
    """What a commit did; the lists are in the order of what was given."""

    already: bool = False
    """The name was used before and nothing was done again; also where an earlier try of this very
    call did it. The lists are empty then."""
    published: int = 0
    """Messages of staged transactions that became visible."""
    duplicates: int = 0
    """Staged messages that were dropped instead, as their deduplication key had been used."""
    settled: tuple[StreamSettled, ...] = ()
    """Streams of which claims were bound to the name, or to what was published."""
    sent: tuple[Sent, ...] = ()
    renewed: tuple[ReceivedMessage | LeaseRef, ...] = ()
    """The messages with their new receipts."""
    released: tuple[Released, ...] = ()


class Filter(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Which messages are meant; what is left out matches all."""

    states: tuple[str, ...] | None = None
    """Of ``visible``, ``leased``, ``delayed``, ``deferred``, ``expired``, ``poisoned`` and
    ``staged``."""
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
    """Part of the body."""
    json_path: str | None = None
    """Dotted path into a body that is JSON, such as ``order.lines[0].sku``."""
    json_value: Any = UNSET
    """What must be there; left out: anything."""


class LeaseInfo(Struct, frozen=True, kw_only=True):
    """Who works on a message."""

    holder: str | None = None
    since_ms: int
    until_ms: int
    renewals: int = 0
    progress: Progress | None = None


class Attempt(Struct, frozen=True, kw_only=True):
    """One lease of a message that has ended without completing it."""

    number: int
    leased_at_ms: int
    ended_at_ms: int
    outcome: str
    """``failed``, ``interrupted``, ``returned``, ``lapsed``, ``ended``, ``buried``, ``lost`` or
    ``stuck``."""
    holder: str | None = None
    renewals: int = 0
    error: ErrorReport | None = None


class Poisoning(Struct, frozen=True):
    """Why and when a message was moved to the poison queue."""

    queue: str
    """The queue that it failed in."""
    reason: str
    at_ms: int


class MessageView(PeekedMessage, frozen=True, kw_only=True):
    """A message as an inspector sees it: in whatever state, and without touching it.

    ``body`` is empty where it was not asked for; ``body_bytes`` is its size all the same.
    """

    queue: str
    """The queue that it is in: a poisoned one is in another than the one asked."""
    state: str
    why: str = ""
    """Why it can or cannot be received, and until when, in one sentence."""
    fence: int = 0
    first_visible_at_ms: int | None = None
    last_visible_at_ms: int | None = None
    lease: LeaseInfo | None = None
    last_error: ErrorReport | None = None
    failures: int = 0
    interruptions: int = 0
    lapses: int = 0
    attempts: tuple[Attempt, ...] = ()
    poisoned: Poisoning | None = None
    redriven: int = 0
    """How often it was brought back from the poison queue."""
    under: str | None = None
    """Of a member of a claim: ``stream/number``. Of a staged message: the transaction's name."""
    session: str | None = None
    """Id of the session that its lease belongs to."""
    saved: Any = None
    """What a holder has saved with a renewal; None if there is nothing, or bodies were not asked
    for."""
    cancel: CancelRequest | None = None
    """An operator has asked the holder to stop."""

    def __repr__(self) -> str:
        return _repr_of_message(self.state, self.id, self.dequeue_count, self.body)


def _repr_of_message(name: str, message_id: str, dequeue_count: int, body: bytes) -> str:
    """Keep a large body, and the receipt, out of logs."""
    more = f"... {len(body)} bytes" if len(body) > _SHOWN_BYTES else ""
    return f"<{name} {message_id} dequeue_count={dequeue_count} body={body[:_SHOWN_BYTES]!r}{more}>"


# --- queue models ------------------------------------------------------------------------------
#
# The models of queues and of what concerns a queue as a whole.
#
# They belong to :mod:`leasehold.client.models`, which has all models for those who import them.


class Backoff(Struct, frozen=True):
    """The wait after a failure."""

    kind: str = "exponential"
    """``fixed``, ``linear`` or ``exponential``."""
    initial_s: float = 1.0
    factor: float = 2.0
    cap_s: float = 3_600.0
    jitter: float = 0.1


class FailurePolicy(Struct, frozen=True):
    """When a message goes to the poison queue; a limit of None is no limit."""

    max_deliveries: int | None = None
    max_failures: int | None = None
    max_interruptions: int | None = None
    max_lapses: int | None = None
    backoff: Backoff | None = None
    poison_queue: str | None = None
    poison_time_to_live_s: int | None = None


class Adaptive(Struct, frozen=True):
    """Bounds within which the default lease follows the work, in seconds."""

    floor_s: int
    cap_s: int


class Adapted(Struct, frozen=True):
    """The lease that the server has chosen, and why."""

    visibility_timeout_s: int
    because: str
    at_ms: int


class Advised(Struct, frozen=True, kw_only=True):
    """Advice that was written into the settings, in seconds, and what it replaced."""

    visibility_timeout_s: int | None = None
    first_lease_s: int | None = None
    """For workers that renew: the first lease..."""
    renew_every_s: int | None = None
    """...and then so often."""
    batch: int | None = None
    """Messages to receive at once at most by those that do not renew."""
    floor_s: int | None = None
    cap_s: int | None = None
    because: str | None = None
    at_ms: int | None = None
    before_s: int | None = None
    """The visibility timeout before; and the bounds, if it adapted."""
    before_floor_s: int | None = None
    before_cap_s: int | None = None


class MnsAttributes(Struct, frozen=True, kw_only=True):
    """Attributes that count for requests of the MNS protocol, and for no others."""

    delay_s: int = 0
    time_to_live_s: int = 345_600
    wait_s: int = 0
    logging_enabled: bool = False
    modified_at_ms: int | None = None


class Settings(Struct, frozen=True, kw_only=True):
    """How a queue behaves. To change it, send a dict with the same names; see ``update``."""

    visibility_timeout_s: int
    """Lease of a receive that names none, 1 to 604,800 s."""
    lapsed_receipts: str = "until-retaken"
    """What a receipt is worth once its lease has run out: ``until-retaken``, ``strict`` or
    ``same-lease``."""
    failure_policy: FailurePolicy | None = None
    dedup_window_s: int = 300
    """How long a deduplication key is remembered, 0 to 604,800 s."""
    priority_ageing_s: int | None = None
    """Seconds of waiting that count as one step of priority; None: priority is strict."""
    paused_until_ms: int | None = None
    pause_reason: str | None = None
    max_receives_per_s: float | None = None
    adaptive: Adaptive | None = None
    adapted: Adapted | None = None
    """Read-only."""
    advised: Advised | None = None
    max_body_bytes: int | None = None
    """Largest body, 1 to 67,108,864; None: 65,536, as in Azure's protocol."""
    event_log: bool = True
    """Whether changes of its messages are recorded as events."""
    mns: MnsAttributes | None = None


class Counts(Struct, frozen=True, kw_only=True):
    """How many messages are in each state, all at one instant."""

    at_ms: int
    visible: int
    leased: int
    delayed: int
    deferred: int
    poisoned: int
    """In the queue's poison queue."""
    total: int
    """In the queue itself: visible, leased, delayed and deferred."""
    staged: int = 0
    """Put under the name of a transaction that is not published yet; not part of the total."""
    claimed: int = 0
    """Of the leased ones, how many are in claims."""
    expired: int = 0
    """Past their time to live and not removed yet; not part of the total. A server of version 0.1
    does not say."""
    exact: bool = True
    oldest_age_s: Mapping[str, float] = {}
    """By state: seconds since the message that has been longest in it entered it."""


class Activity(Struct, frozen=True, kw_only=True):
    """What happened in a queue since the server was started, at ``since_ms``."""

    since_ms: int = 0
    last_receive_ms: int | None = None
    last_receiver: str | None = None
    last_send_ms: int | None = None
    last_complete_ms: int | None = None
    sent: int = 0
    received: int = 0
    redelivered: int = 0
    completed: int = 0
    released: int = 0
    rejected_receipts: int = 0
    poisoned: int = 0


class QueueInfo(Struct, frozen=True, kw_only=True):
    """A queue."""

    name: str
    metadata: Mapping[str, str] = {}
    settings: Settings
    visibility_timeout_s: int
    """The lease, in seconds, that a receive gets which names none."""
    created_at_ms: int = 0
    counts: Counts | None = None
    """None where they were not asked for."""
    activity: Activity | None = None


class Explanation(Struct, frozen=True):
    """Why a queue or a message behaves as it does."""

    sentence: str
    code: str
    evidence: Mapping[str, Any] = {}


class Job(Struct, frozen=True, kw_only=True):
    """A purge or a redrive."""

    job_id: str
    queue: str
    kind: str
    """``purge`` or ``redrive``."""
    state: str
    """``running``, ``canary``, ``done`` or ``stopped``."""
    dry_run: bool = False
    created_at_ms: int = 0
    updated_at_ms: int = 0
    examined: int = 0
    matched: int = 0
    moved: int = 0
    """Messages purged or redriven."""
    expected: int = 0
    """Messages there when it started."""
    note: str | None = None
    """Why it stopped."""

    @property
    def is_over(self) -> bool:
        """Whether it has ended, one way or the other."""
        return self.state in {"done", "stopped"}
