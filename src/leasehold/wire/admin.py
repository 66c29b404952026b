"""What those send and get who look after a queue: filters, messages in any state, jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final

from msgspec import UNSET, Struct, UnsetType

from leasehold.domain.limits import MAX_GROUP_STATE_BYTES, NATIVE, PRIORITIES
from leasehold.domain.model import DEFAULT_PRIORITY
from leasehold.wire.messages import BodyProblem, CancelRequest
from leasehold.wire.parts import (
    AnyJson,
    Delay,
    GroupId,
    Ms,
    NextAfter,
    Priority,
    Properties,
    QueueName,
    Request,
    ShortText,
    State,
    TimeToLive,
    Wait,
    WithBody,
    between,
    one_of,
    said,
)

MAX_AGE_S: Final = 3_153_600_000
"""A hundred years."""
MAX_COUNT: Final = 2**31 - 1
MAX_CANARY: Final = 1_000
RATES_PER_S: Final = (0.001, 1_000_000)

_Age = Annotated[float, between((0, MAX_AGE_S))]
_Count = Annotated[int, between((0, MAX_COUNT))]


# --- requests ------------------------------------------------------------------------------------


class Filter(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Which messages are meant; what is left out matches all."""

    states: Annotated[tuple[State, ...], said(minItems=1)] | None = None
    """Of ``visible``, ``leased``, ``delayed``, ``deferred``, ``expired``, ``poisoned`` and
    ``staged``."""
    min_age_s: _Age | None = None
    """Inserted at least so many seconds ago."""
    max_age_s: _Age | None = None
    min_dequeue_count: _Count | None = None
    max_dequeue_count: _Count | None = None
    holder: ShortText | None = None
    message_type: ShortText | None = None
    group_id: ShortText | None = None
    """The message group that it belongs to."""
    reason: ShortText | None = None
    """Why it was poisoned."""
    error: ShortText | None = None
    """Part of the text, or the whole type, or the fingerprint, of its last error."""
    max_error_age_s: _Age | None = None
    """The attempt of its last error ended at most so many seconds ago."""
    search: ShortText | None = None
    """Part of the body, of a property (``name=value``), or of its type, group, id or deduplication
    key; in any case of letters."""
    property: ShortText | None = None
    """Part of a property, which is taken as ``name=value``; in any case of letters."""
    session: ShortText | None = None
    """Id of the session that its current or last lease belongs to."""
    min_failures: _Count | None = None
    """At least so many of its attempts counted as failures."""
    max_failures: _Count | None = None
    min_priority: Priority | None = None
    """1 is the most urgent."""
    max_priority: Priority | None = None
    text: ShortText | None = None
    """Part of the body."""
    json_path: ShortText | None = None
    """Dotted path into a body that is JSON, such as ``order.lines[0].sku``."""
    json_value: Any = UNSET
    """What must be there, at most 100 levels deep; left out, or None: anything."""


class PurgeRequest(Request):
    """What to purge."""

    filter: Filter | None = None
    dry_run: bool | None = None
    """Only count."""
    wait_s: Wait | None = None
    rate_per_s: Annotated[float, between(RATES_PER_S)] | None = None
    """Messages a second; as fast as they go if left out."""


class ChangeRequest(Request):
    """What to do to many messages."""

    action: Annotated[str, one_of("amend", "end-lease", "extend-lease")]
    """``amend``: what waits, with ``delay_s``, ``time_to_live_s`` or ``priority``. ``end-lease``:
    what is leased, which is visible after ``delay_s``. ``extend-lease``: what is leased, whose
    holders have ``visibility_timeout_s`` from now."""
    filter: Filter | None = None
    dry_run: bool | None = None
    """Only count."""
    rate_per_s: Annotated[float, between(RATES_PER_S)] | None = None
    """Messages a second; as fast as they go if left out."""
    delay_s: Delay | None = None
    time_to_live_s: TimeToLive | None = None
    priority: Priority | None = None
    force: Annotated[bool, said(default=False)] | None = None
    """Of ``amend``: also what is leased, whose leases end then."""
    visibility_timeout_s: Annotated[int, between(NATIVE.lease_s)] | None = None
    reason: ShortText | None = None
    """Why leases end, for those who look at the messages later."""
    wait_s: Wait | None = None


class RedriveRequest(Request):
    """What to redrive, and how."""

    filter: Filter | None = None
    rate_per_s: Annotated[float, between(RATES_PER_S)] | None = None
    """Messages a second; as fast as they go if left out."""
    dry_run: bool | None = None
    """Only count."""
    canary: Annotated[int, between((0, MAX_CANARY), default=0)] | None = None
    """Bring so many first, and go on only when all of them have been completed."""
    target: QueueName | None = None
    """Queue to bring them to; the one that each failed in if left out."""
    wait_s: Wait | None = None


class AmendRequest(WithBody):
    """What to change about a message."""

    delay_s: Delay | None = None
    time_to_live_s: TimeToLive | None = None
    priority: Priority | None = None
    properties: Properties | None = None
    force: Annotated[bool, said(default=False)] | None = None
    """Also if a worker has it, whose lease ends then."""


class EndLeaseRequest(Request):
    """When the message is visible again, and why its lease ends."""

    delay_s: Delay | None = None
    reason: ShortText | None = None


class ExtendLeaseRequest(Request):
    """How much time the holder has from now."""

    visibility_timeout_s: Annotated[int, between(NATIVE.lease_s)]


class CancelMessage(Request):
    """Why the work on a message is to be stopped."""

    reason: ShortText | None = None


# --- messages ------------------------------------------------------------------------------------


class Progress(Struct, frozen=True):
    """How far the holder of a lease has come."""

    fraction: float | None = None
    """0 to 1."""
    note: str | None = None
    at_ms: Annotated[int | None, said(type="integer")] = None
    """When it was reported, Unix milliseconds; the server sets it."""


class LeaseInfo(Struct, frozen=True, kw_only=True):
    """Who works on a message."""

    holder: str | None = None
    since_ms: Ms
    until_ms: Ms
    renewals: int = 0
    progress: Progress | None = None


class ErrorView(Struct, frozen=True):
    """What was said about a failure."""

    text: str
    type: str | None = None
    """Name of the exception, for example."""
    fingerprint: str | None = None
    """A hash of the stack trace, so that like failures can be counted together."""


class LastError(ErrorView, frozen=True):
    """What was said about the last failure."""

    at_ms: Ms = 0
    """When it was reported, Unix milliseconds."""


class Attempt(Struct, frozen=True, kw_only=True):
    """One lease of a message that has ended without completing it."""

    number: int
    """The dequeue count of the lease."""
    leased_at_ms: Ms
    ended_at_ms: Ms
    outcome: Annotated[
        str,
        one_of(
            *("failed", "interrupted", "returned", "lapsed"), *("ended", "buried", "lost", "stuck")
        ),
    ]
    """``failed``, ``interrupted``, ``returned``, ``lapsed``, ``ended``, ``buried``, ``lost`` or
    ``stuck``."""
    holder: str | None = None
    renewals: int = 0
    error: ErrorView | None = None


class Poisoning(Struct, frozen=True):
    """Why and when a message was moved to the poison queue."""

    queue: str
    """The queue that it failed in."""
    reason: str
    at_ms: Ms


class Previous(Struct, kw_only=True, omit_defaults=True):
    """Members of a message before a change, as a change takes them."""

    delay_s: int | None = None
    """Seconds that were left until it could be received."""
    time_to_live_s: int | None = None
    """Seconds that were left until it expired, -1 for never."""
    body: str | None = None
    body_base64: bytes | None = None
    priority: int | None = None
    properties: Mapping[str, str] | None = None


class View(Struct, kw_only=True):
    """A message as an inspector sees it: in whatever state, and without touching it.

    It has ``body`` if its bytes are UTF-8, else ``body_base64``; neither in a list without bodies,
    nor ``saved``. Or it has ``body_problem``.
    """

    id: str
    queue: str
    """The queue that it is in, which may be a poison queue."""
    state: State
    why: str = ""
    """Why it can or cannot be received, in one sentence."""
    saved: AnyJson = UNSET
    """What a holder saved with a renewal: any JSON but null. Left out if there is nothing."""
    body: str | UnsetType | None = UNSET
    body_base64: bytes | UnsetType | None = UNSET
    body_problem: BodyProblem | UnsetType | None = UNSET
    body_bytes: int = 0
    """Size of the body."""
    inserted_at_ms: Ms
    expires_at_ms: Ms | None = None
    """Unix milliseconds; None for never."""
    visible_at_ms: Ms
    dequeue_count: int
    fence: int = 0
    priority: Annotated[int, between(PRIORITIES)] = DEFAULT_PRIORITY
    type: str | None = None
    properties: Mapping[str, str] = {}
    traceparent: str | None = None
    dedup_key: str | None = None
    visibility_timeout_s: int | None = None
    """Lease of receives that name none, if its producer asked for one."""
    first_visible_at_ms: Ms | None = None
    last_visible_at_ms: Ms | None = None
    lease: LeaseInfo | None = None
    last_error: LastError | None = None
    failures: int = 0
    interruptions: int = 0
    lapses: int = 0
    attempts: Annotated[Sequence[Attempt], said(maxItems=20)] = ()
    """The first one and the latest ones."""
    poisoned: Poisoning | None = None
    redriven: int = 0
    """How often it was brought back from the poison queue."""
    under: str | None = None
    """Of a member of a claim: ``stream/number``. Of a staged message: the transaction's name."""
    session: str | None = None
    """Id of the session that its lease belongs to."""
    cancel: CancelRequest | None = None
    """An operator has asked the holder to stop."""
    group_id: str | None = None
    """The message group that it belongs to."""
    previous: Previous | UnsetType = UNSET
    """Of an answer to a change: what it has changed, as it was, for a change that sets it back.
    Left out if somebody else has changed the message meanwhile."""


class Views(Struct):
    """Some messages."""

    messages: Sequence[View]
    next_after: NextAfter = None


# --- groups --------------------------------------------------------------------------------------


class GroupHalt(Struct, frozen=True, kw_only=True):
    """Why a group gives nothing until it is resumed."""

    since_ms: Ms
    message_id: str | None = None
    """The message that went to the poison queue; None if an operator stopped the group."""
    reason: str | None = None


class HaltRequest(Request):
    """Why to stop a group."""

    reason: ShortText | None = None


class HaltState(Struct, frozen=True, kw_only=True):
    """Whether a group gives messages."""

    group_id: str
    halt: GroupHalt | None = None
    """Why it gives none until it is resumed; None if it may."""


class GroupHold(Struct, frozen=True, kw_only=True):
    """Which session has a group to itself."""

    group_id: str
    session: str
    holder: str | None = None
    """What the worker calls itself whose session it is."""
    fence: int
    """Higher than that of all holds before, of whatever group."""
    since_ms: Ms


class HoldRequest(Request):
    """Which group is to be held, and by whom."""

    session: ShortText
    group_id: GroupId | None = None
    """None for whichever has its turn and something to give."""


class HeldGroup(Struct, frozen=True, kw_only=True):
    """A group that a session holds."""

    hold: GroupHold | None = None
    """None if another session holds it, or none has anything to give."""
    state_base64: bytes = b""
    """What was saved for the group."""


class GroupStateRequest(Request):
    """What is to be kept for a group across holds."""

    session: ShortText
    fence: int
    """Of the hold."""
    state_base64: Annotated[bytes, said(**{"x-max-bytes": MAX_GROUP_STATE_BYTES})]
    """In place of what was saved before; empty to keep nothing."""


class ReleaseGroupRequest(Request):
    """Whose hold is to end."""

    session: ShortText


class GroupInfo(Struct, frozen=True, kw_only=True):
    """How many messages of a group are in each state, without those that have expired."""

    group_id: str
    waiting: int = 0
    """Visible, whether the group lets them be received now or not."""
    in_flight: int = 0
    """On leases, members of claims included."""
    delayed: int = 0
    deferred: int = 0
    """Given back with a delay."""
    oldest_ms: Ms | None = None
    """Since when the one that waits longest has been visible."""
    time_share: float = 0.0
    """Of the time that consumers worked in about the last minute, 0 to 1."""
    noisy: bool = False
    """It has so much of the consumers that it is at the cost of other groups."""
    halt: GroupHalt | None = None
    """Why it gives nothing until it is resumed; None if it may."""


class Groups(Struct, kw_only=True):
    """Groups of a queue that have messages: the first ones in the order asked for, and sums."""

    at_ms: Ms
    """When the look began."""
    total: int
    """Groups that have messages."""
    waiting: int
    """Groups with messages that wait."""
    in_flight: int
    """Groups with messages in flight."""
    noisy: int
    """Groups that are noisy."""
    halted: int
    """Groups that give nothing until they are resumed, also those without messages."""
    groups: Sequence[GroupInfo]


class HeldMessage(Struct, frozen=True, kw_only=True):
    """A message of a group that was received and is not visible."""

    id: str
    state: State
    until_ms: Ms
    """When its lease or its delay ends."""
    dequeue_count: int
    holder: str | None = None
    """Who has it, or had it last."""
    under: str | None = None
    """``stream/number`` of the claim that it is in."""


class GroupView(Struct, kw_only=True):
    """One group, and what holds it up."""

    at_ms: Ms
    group: GroupInfo
    held: Sequence[HeldMessage]
    """On leases or given back with a delay, at most 10; the first to end comes first."""
    hold: GroupHold | None = None
    """Which session alone gets messages of it; None if every consumer does."""
    rate_again_ms: Ms | None = None
    """When its rate allows the next message; None if it does now."""
    noisy_limit: int | None = None
    """How many messages of it may be in flight for as long as it is noisy; None for any number."""


# --- jobs ----------------------------------------------------------------------------------------


class Job(Struct, frozen=True, kw_only=True):
    """A purge, a redrive or another change of many messages."""

    job_id: str
    queue: str
    kind: Annotated[str, one_of("purge", "redrive", "amend", "end-lease", "extend-lease")]
    """``purge``, ``redrive``, ``amend``, ``end-lease`` or ``extend-lease``."""
    state: Annotated[str, one_of("running", "canary", "done", "stopped")]
    """``running``, ``canary``, ``done`` or ``stopped``. ``canary``: the first few are moved, and it
    waits to see what becomes of them."""
    dry_run: bool = False
    created_at_ms: Ms = 0
    updated_at_ms: Ms = 0
    examined: int = 0
    matched: int = 0
    moved: int = 0
    """Messages purged, redriven or changed."""
    expected: int = 0
    """Messages there when it started."""
    note: str | None = None
    """Why it stopped."""
    actor: str | None = None
    """Who started it."""

    @property
    def is_over(self) -> bool:
        """Whether it has ended, one way or the other."""
        return self.state in {"done", "stopped"}


class Jobs(Struct):
    """Some jobs, the newest first."""

    jobs: list[Job]
