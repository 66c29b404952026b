"""Sessions, streams and their claims, transactions and commits, and the switches of the test mode.

Lists of names are kept as they came until it is known that they are short: names read from JSON
take many times their text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final, Generic

from msgspec import UNSET, Meta, Struct

from leasehold.domain.limits import (
    DEFAULT_SESSION_TIMEOUT_S,
    DEFAULT_STAGING_TIMEOUT_S,
    MAX_CLAIM,
    MAX_ITEMS,
    MAX_PROGRESS,
    MAX_PUBLISHED_PARTS,
    MAX_WAIT_S,
    PROGRESS_TIMEOUTS_S,
    SESSION_TIMEOUTS_S,
    STAGING_TIMEOUTS_S,
)
from leasehold.wire.messages import (
    Outcome,
    ProgressReport,
    QueuedComplete,
    QueuedPut,
    QueuedRelease,
    QueuedRenew,
    R,
    ReportedError,
)
from leasehold.wire.parts import (
    MAX_NAME,
    NUMBERS,
    AnyJson,
    Delay,
    LeaseS,
    Ms,
    Name,
    Number,
    QueueName,
    Request,
    ShortText,
    between,
    one_of,
    said,
)

MAX_PUBLISHED: Final = 1_000
"""Names of transactions in one request."""
CHUNKS: Final = (0, NUMBERS[1])
MAX_ADVANCE_S: Final = 315_360_000
"""Longest single step of the clock: ten years."""
MAX_STAGES: Final = 100
MAX_EXECUTORS: Final = 1_000
MAX_FAULTS: Final = 1_000_000
MAX_DELAY_S: Final = 60

_MANY: Final = said(maxItems=MAX_ITEMS)
_SessionTimeout = Annotated[int, between(SESSION_TIMEOUTS_S, default=DEFAULT_SESSION_TIMEOUT_S)]
_StagingTimeout = Annotated[int, between(STAGING_TIMEOUTS_S, default=DEFAULT_STAGING_TIMEOUT_S)]
_Part = Annotated[str, said(maxLength=MAX_NAME)]
_Publish = Annotated[
    AnyJson,
    Meta(
        extra_json_schema={
            "type": ["array", "null"],
            "maxItems": MAX_PUBLISHED,
            "items": {"$ref": "#/components/schemas/Name"},
            "description": "Transactions to publish whole, in the same commit.",
        }
    ),
]


# --- sessions ------------------------------------------------------------------------------------


class OpenSessionRequest(Request):
    """Who begins a session, and how long it may be silent."""

    holder: ShortText
    """What the worker calls itself."""
    timeout_s: _SessionTimeout | None = None
    """Seconds without a heartbeat after which the session is lost."""
    progress_timeout_s: Annotated[int, between(PROGRESS_TIMEOUTS_S)] | None = None
    """Seconds without progress after which a lease ends; no watchdog if left out."""


class HeartbeatRequest(Request):
    """What a worker says besides that it lives."""

    progress: (
        Annotated[dict[str, ProgressReport | None], said(maxProperties=MAX_PROGRESS)] | None
    ) = None
    """By the id of a message; null for only "it gets on"."""


class EndSessionRequest(Request):
    """Why a session ends."""

    reason: ShortText | None = None


class SessionInfo(Struct, frozen=True, kw_only=True):
    """A worker process, as others see it."""

    session_id: str
    holder: str
    """What the worker calls itself; the holder of all its leases."""
    state: Annotated[str, one_of("live", "lost", "ended")]
    """``live``, ``lost`` (no heartbeat in time) or ``ended``."""
    timeout_s: int
    """Seconds without a heartbeat after which it is lost."""
    progress_timeout_s: int | None = None
    """Seconds without progress after which a lease of it ends; None: no watchdog."""
    started_at_ms: Ms = 0
    last_heartbeat_ms: Ms = 0
    ended_at_ms: Ms | None = None
    reason: str | None = None
    """Why it is over."""
    leases: int = 0
    """Messages on its leases now."""


class Sessions(Struct):
    """Some sessions, the newest first."""

    sessions: list[SessionInfo]


class CancelNotice(Struct, frozen=True):
    """An operator's wish as a session hears of it: with the message that is meant."""

    id: str
    """Of the message."""
    queue: str = ""
    reason: str | None = None
    at_ms: Ms = 0


class Beat(Struct, frozen=True):
    """What a session hears at a heartbeat."""

    until_ms: Ms
    """When it is lost unless there is another heartbeat, Unix milliseconds."""
    cancels: tuple[CancelNotice, ...] = ()
    """All messages on its leases whose work is to be stopped."""
    lost: tuple[str, ...] = ()
    """Of the messages whose progress was told: those no longer on a lease of this session."""


# --- streams and claims --------------------------------------------------------------------------


class TokenRequest(Request):
    """Proof that no other consumer has attached."""

    token: Number
    """That of the last attach."""


class OpenClaimRequest(TokenRequest, kw_only=True):
    """How much to claim, and for how long."""

    limit: Annotated[int, between((1, MAX_CLAIM))]
    """Most members."""
    lease_s: LeaseS
    """Seconds from now that the members are hidden from others."""
    holder: ShortText | None = None
    max_bytes: Number | None = None
    """Bytes of bodies after which no further member is taken."""
    accept_loss: Annotated[bool, said(default=False)] | None = None
    """Whether to go on with what remains of a broken claim."""
    wait_s: Annotated[float, between((0, MAX_WAIT_S), default=0)] | None = None
    """How long to wait if there is nothing to claim."""


class ExtendClaimRequest(TokenRequest, kw_only=True):
    """For how long to keep a claim."""

    lease_s: LeaseS
    """Seconds from now that the members are hidden from others."""
    park: Annotated[bool, said(default=False)] | None = None
    """Whether nobody extends it any more; ``lease_s`` is then the replay window."""


class NotedExemption(Request, kw_only=True, gc=False):
    """A member of a claim that is not completed, and what becomes of it."""

    id: str
    """Of the message."""
    outcome: Outcome
    delay_s: Delay | None = None
    error: ReportedError | None = None


class Exemption(NotedExemption, kw_only=True, gc=False):
    """A member, of any claim of a stream, that is not completed, and what becomes of it."""

    number: Number
    """Of its claim."""


class ExemptRequest(TokenRequest, kw_only=True):
    """What becomes of members when their claim is settled."""

    exemptions: Annotated[list[NotedExemption], said(maxItems=MAX_ITEMS)]
    """Of a claim up to 10,000 members are noted. At least one, unless ``replace`` is true."""
    replace: Annotated[bool, said(default=False)] | None = None
    """Whether whatever was noted of the claim before is forgotten."""


class BindRequest(TokenRequest, kw_only=True):
    """Which transaction settles a claim."""

    transaction: Name


class SettleRequest(TokenRequest, kw_only=True):
    """What to settle, and what to do with it in one."""

    upto: Number
    """All claims up to this number are settled."""
    exemptions: Annotated[list[Exemption], _MANY] | None = None
    """Members that are not completed."""
    publish: _Publish = UNSET
    sends: Annotated[list[QueuedPut], _MANY] | None = None


class Claim(Struct, frozen=True, kw_only=True):
    """A claim: messages leased together, to be read as often as wanted and settled together."""

    number: int
    """1, 2, 3 and so on within its stream."""
    state: Annotated[str, one_of("opening", "open", "parked", "lapsed", "broken", "settled")]
    """``opening``, ``open``, ``parked``, ``lapsed`` or ``broken``. ``parked``: nobody extends it,
    and it can be replayed until ``until_ms``. ``lapsed``: nobody extended it in time, so others may
    take its members. ``broken``: some of them are gone."""
    size: int
    """Members, those lost included."""
    lost: int = 0
    """Members that others have taken or removed."""
    remaining: int = 0
    """Members that are still in it."""
    limit: int = 0
    """How many it may have, as was said when it was first opened."""
    max_bytes: int | None = None
    opened_at_ms: Ms = 0
    until_ms: Ms = 0
    """End of the lease of all members, Unix milliseconds; of a parked claim the end of the replay
    window. Until then they are hidden from others."""
    holder: str | None = None
    extensions: int = 0
    noted: int = 0
    """Members whose exemption is noted for when it is settled."""
    transaction: str | None = None
    """Name of the transaction whose publishing settles it."""


class Opened(Struct):
    """A claim that was opened."""

    claim: Claim | None = None
    """None if there was nothing to claim."""
    replayed: bool = False
    """It was there already."""


class Stream(Struct, frozen=True, kw_only=True):
    """A consumer that works in numbered claims."""

    stream: str
    token: int = 0
    """Rises with each attach; calls with an older one are refused."""
    last_settled: int = 0
    """All claims up to this number are settled; 0: none yet."""
    attached_at_ms: Ms = 0
    settled_with: str | None = None
    """Name of the transaction whose publishing settled the last claims that were; None if they were
    settled by themselves."""
    claims: tuple[Claim, ...] = ()
    """Those not settled, by number."""


class Streams(Struct):
    """The streams of a queue, by name."""

    streams: Sequence[Stream]


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


# --- transactions --------------------------------------------------------------------------------


class StageRequest(Request):
    """Messages to stage."""

    part: _Part
    """Name of the part; may be empty."""
    chunk: Annotated[int, between(CHUNKS)]
    messages: Annotated[list[QueuedPut], _MANY]
    timeout_s: _StagingTimeout | None = None
    """Seconds until the transaction vanishes."""


class PartsRequest(Request):
    """Which parts of a transaction are meant."""

    parts: Annotated[list[_Part], said(maxItems=MAX_PUBLISHED_PARTS)] | None = None
    """All parts if left out; none if empty."""


class Staged(Struct, frozen=True):
    """How much a part of a transaction has now."""

    rows: int
    """Messages that the part has."""
    chunks: int
    """The next chunk of the part has this number."""
    duplicate: bool = False
    """All of it had been staged before and was not staged again, whatever it said."""


class Published(Struct, frozen=True):
    """What publishing did."""

    rows: int
    """Messages published under the name."""
    duplicates: int = 0
    """Messages that were dropped instead, as their deduplication key had been used."""
    already: bool = False
    """They were published before; also where an earlier try of this very call did it."""
    settled: tuple[StreamSettled, ...] = ()
    """Streams of which claims were bound to the name; empty if they were settled before."""


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
    state: Annotated[str, one_of("staged", "published")]
    """``staged`` or ``published``."""
    created_at_ms: Ms = 0
    until_ms: Ms = 0
    """When it vanishes, or when its publishing is forgotten; Unix milliseconds."""
    rows: int = 0
    """Messages staged, or published."""
    duplicates: int = 0
    """Staged messages that were dropped when it was published, as their deduplication key had been
    used."""
    parts: tuple[StagedPart, ...] = ()
    """By name; empty once it is published."""
    claims: tuple[BoundClaim, ...] = ()
    """Those that publishing it settles; empty once it is published."""


class Transactions(Struct):
    """Some transactions, by name."""

    transactions: list[TransactionInfo]


# --- commits -------------------------------------------------------------------------------------


class CommitRequest(Request):
    """What to do as one.

    At least one list has something in it; all together at most 10,000 items.
    """

    name: Name | None = None
    """Kept like that of a transaction, so that a repetition does nothing."""
    send: Annotated[list[QueuedPut], _MANY] | None = None
    complete: Annotated[list[QueuedComplete], _MANY] | None = None
    release: Annotated[list[QueuedRelease], _MANY] | None = None
    renew: Annotated[list[QueuedRenew], _MANY] | None = None
    publish: _Publish = UNSET


def _or_problem(name: str) -> Meta:
    """Say in the document that a list has results of one kind, and problems."""
    kinds = [{"$ref": f"#/components/schemas/{each}"} for each in (name, "ItemProblem")]
    return said(items={"anyOf": kinds})


class Committed(Struct, Generic[R], kw_only=True):
    """What a commit did; the lists, of ItemResult each, are in the order of what was given."""

    already: bool = False
    """The name was used before. Nothing was done, and the lists are empty."""
    published: int = 0
    """Messages of staged transactions that became visible."""
    duplicates: int = 0
    """Staged messages that were dropped instead, as their deduplication key had been used."""
    settled: tuple[StreamSettled, ...] = ()
    """Streams of which claims were bound to the name, or to what was published."""
    failed: Annotated[int, said(minimum=0)] = 0
    """How many of the results are problems."""
    send: Annotated[Sequence[R], _or_problem("PutResult")] = ()
    complete: Annotated[Sequence[R], _or_problem("CompleteResult")] = ()
    release: Annotated[Sequence[R], _or_problem("ReleaseResult")] = ()
    renew: Annotated[Sequence[R], _or_problem("RenewResult")] = ()


# --- test mode -----------------------------------------------------------------------------------


class StageReport(Request):
    """How a stage of a pipeline is doing."""

    name: ShortText
    working: int = 0
    """Messages in it now."""
    done: int = 0
    failed: int = 0
    skipped: int = 0
    overdue: int = 0
    mean_s: float | None = None
    """Seconds that it takes for a message, on average."""


class ExecutorReport(Request):
    """How an executor of a pipeline is doing."""

    name: ShortText
    tasks: int = 0
    """Tasks on it that are at work."""
    in_work: int = 0
    """Messages that these work on."""
    done: int = 0


class PipelineReport(Request, kw_only=True):
    """How a pipeline is doing, told by its driver every few seconds."""

    queue: QueueName
    state: Annotated[str, one_of("running", "done", "stopped", "failed")]
    began_at_ms: Ms
    """By the server's time."""
    stages: Annotated[tuple[StageReport, ...], said(maxItems=MAX_STAGES)] = ()
    """In their order."""
    executors: Annotated[tuple[ExecutorReport, ...], said(maxItems=MAX_EXECUTORS)] = ()
    done: int = 0
    """Messages completed."""
    failed: int = 0
    """Deliveries that failed, and whose message comes again."""
    poisoned: int = 0
    lost: int = 0
    """Deliveries whose lease was lost."""
    in_work: int = 0
    waiting: int = 0
    """Received by a task, and not begun yet."""
    backlog: int | None = None
    """Messages in the queue that no worker has; None: that is not known."""
    per_s: float = 0.0
    """Messages done in each of the last few seconds."""
    failure: ShortText | None = None
    """Why it could not go on."""


class AdvanceRequest(Request):
    """How far to move the clock."""

    seconds: Annotated[float, between((0, MAX_ADVANCE_S))]
    """How long, counted in whole milliseconds."""


class FaultsRequest(Request):
    """What is to fail; what is left out is not."""

    fail_commits: Annotated[int, between((0, MAX_FAULTS))] | None = None
    """Transactions that write something for clients and fail. Nothing of them is done, and all
    whose requests shared one are told ``store-unavailable``."""
    drop_answers: Annotated[int, between((0, MAX_FAULTS))] | None = None
    """Answers to requests that changed something and are not given: what was asked for is done, and
    the connection is cut."""
    delay_answers_s: Annotated[float, between((0, MAX_DELAY_S))] | None = None
    """Seconds by the system's clock that every answer is kept back."""


class Clock(Struct):
    """The time that messages go by."""

    now_ms: Ms
    virtual: bool = False
    """Whether it stands still until it is moved."""
    waiting: Annotated[int, said(minimum=0)] = 0
    """Receives that wait for messages, over all queues."""


class Faults(Struct, frozen=True):
    """Failures that a server in test mode is to make."""

    fail_commits: Annotated[int, said(minimum=0)] = 0
    """So many commits fail, from the next one on."""
    drop_answers: Annotated[int, said(minimum=0)] = 0
    """So many requests are carried out and get no answer."""
    delay_answers_s: Annotated[float, said(minimum=0)] = 0
    """Every answer is held back so long."""
