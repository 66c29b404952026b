"""What the client takes and gives back: plain, immutable values with the names of the wire.

Times are Unix milliseconds (``*_ms``), lengths of time are seconds (``*_s``). Members that a newer
server adds are passed over.
"""

from __future__ import annotations

import hashlib
import json
import traceback
from collections.abc import Mapping
from typing import Any, Final

from msgspec import UNSET, Struct

from leasehold.domain.limits import NEVER, WEEK_S
from leasehold.domain.model import DEFAULT_PRIORITY, NEXT_GROUP
from leasehold.wire import admin, flows, messages, queues
from leasehold.wire.admin import (
    Filter,
    GroupHalt,
    GroupHold,
    GroupInfo,
    Groups,
    GroupView,
    HaltState,
    HeldMessage,
    Job,
    LeaseInfo,
    Poisoning,
    Previous,
    Progress,
)
from leasehold.wire.events import Event, EventPage
from leasehold.wire.flows import (
    Beat,
    BoundClaim,
    CancelNotice,
    Discarded,
    ExecutorReport,
    Faults,
    PipelineReport,
    Published,
    SessionInfo,
    Settled,
    Staged,
    StagedPart,
    StageReport,
    StreamSettled,
    TransactionInfo,
)
from leasehold.wire.messages import CancelRequest, Outcome
from leasehold.wire.queues import (
    Activity,
    Adapted,
    Adaptive,
    Advised,
    Backoff,
    Before,
    Counts,
    Explanation,
    FailurePolicy,
    GroupSettings,
    MnsAttributes,
    Policy,
    Settings,
    TypeTimeout,
)

__all__ = [
    "DEFAULT_PRIORITY",
    "DEFAULT_TIME_TO_LIVE_S",
    "NEVER",
    "NEXT_GROUP",
    "Activity",
    "Adapted",
    "Adaptive",
    "Advised",
    "Attempt",
    "Backoff",
    "Beat",
    "Before",
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
    "ExecutorReport",
    "Exemption",
    "Explanation",
    "FailurePolicy",
    "Faults",
    "Filter",
    "GiveBack",
    "GroupHalt",
    "GroupHold",
    "GroupInfo",
    "GroupSettings",
    "GroupView",
    "Groups",
    "HaltState",
    "HeldMessage",
    "Job",
    "LeaseInfo",
    "LeaseRef",
    "MessageView",
    "MnsAttributes",
    "NewMessage",
    "Outcome",
    "Outgoing",
    "PeekedMessage",
    "PipelineReport",
    "Poisoning",
    "Policy",
    "Previous",
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
    "StageReport",
    "Staged",
    "StagedPart",
    "StreamInfo",
    "StreamSettled",
    "TransactionInfo",
    "TypeTimeout",
]

DEFAULT_TIME_TO_LIVE_S: Final = WEEK_S
"""Seven days, as in Azure's "Put Message"."""

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
    group_id: str | None = None
    """The message group that it belongs to (a tenant, an order, a device), 1 to 128 characters."""
    visibility_timeout_s: int | None = None
    """Lease of receives that name none, in seconds: 1 to what the queue's setting
    ``max_message_timeout_s`` allows; None for what is set for its type or the queue."""


class Outgoing(NewMessage, frozen=True, omit_defaults=True, kw_only=True):
    """A message to be put, and the queue that it is for: ``Outgoing("hello", queue="orders")``."""

    queue: str


class Sent(messages.PutResult, frozen=True, omit_defaults=False):
    """A message that was put."""


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
    group_id: str | None = None

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
    lease_s: int | None = None
    """Length of the lease, in seconds, if the receive named none."""

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


class ErrorReport(admin.ErrorView, frozen=True, omit_defaults=True):
    """What went wrong with a message."""

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


class Released(messages.ReleaseResult, frozen=True, omit_defaults=False):
    """A message that was given back."""


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


class Attempt(admin.Attempt, frozen=True, kw_only=True):
    """One lease of a message that has ended without completing it."""

    error: ErrorReport | None = None


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
    visibility_timeout_s: int | None = None
    """Lease of receives that name none, if its producer asked for one."""
    under: str | None = None
    """Of a member of a claim: ``stream/number``. Of a staged message: the transaction's name."""
    session: str | None = None
    """Id of the session that its lease belongs to."""
    saved: Any = None
    """What a holder has saved with a renewal; None if there is nothing, or bodies were not asked
    for."""
    cancel: CancelRequest | None = None
    """An operator has asked the holder to stop."""
    previous: Previous | None = None
    """Of an answer to a change: what was changed, as it was; None if another came between."""

    def __repr__(self) -> str:
        return _repr_of_message(self.state, self.id, self.dequeue_count, self.body)


def _repr_of_message(name: str, message_id: str, dequeue_count: int, body: bytes) -> str:
    """Keep a large body, and the receipt, out of logs."""
    more = f"... {len(body)} bytes" if len(body) > _SHOWN_BYTES else ""
    return f"<{name} {message_id} dequeue_count={dequeue_count} body={body[:_SHOWN_BYTES]!r}{more}>"


# --- queues, streams and claims ------------------------------------------------------------------


class QueueInfo(queues.Queue, frozen=True, kw_only=True, omit_defaults=False):
    """A queue; ``counts`` and ``activity`` are None where they were not asked for."""

    metadata: Mapping[str, str] = {}
    created_at_ms: int = 0


class ClaimInfo(flows.Claim, frozen=True, kw_only=True):
    """A claim: messages leased together, to be read as often as wanted and settled together."""

    replayed: bool = False
    """As the answer to ``open``: it was there already."""


class StreamInfo(flows.Stream, frozen=True, kw_only=True):
    """A consumer that works in numbered claims."""

    claims: tuple[ClaimInfo, ...] = ()
    """Those not settled, by number."""
