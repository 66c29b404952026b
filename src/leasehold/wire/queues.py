"""Queues: their settings, counts and activity, and why they behave as they do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final

from msgspec import Meta, Struct

from leasehold.domain.limits import (
    MAX_POLICIES,
    MAX_POLICY_ID,
    MNS,
    NATIVE,
    POLICY_PERMISSIONS,
    WEEK_S,
)
from leasehold.domain.model import NEVER_MS
from leasehold.domain.queue_settings import (
    DEFAULT_DEDUP_WINDOW_S,
    DEFAULT_MAX_MESSAGE_TIMEOUT_S,
    DEFAULT_VISIBILITY_TIMEOUT_S,
    MAX_BODY_BYTES,
    MAX_BUDGET,
    MAX_DEDUP_WINDOW_S,
    MAX_IN_FLIGHT,
    MAX_NAMED_GROUPS,
    MAX_TYPE_RULES,
    MAX_WEIGHT,
)
from leasehold.wire.parts import (
    MAX_TEXT,
    GroupId,
    LeaseS,
    Ms,
    NextAfter,
    QueueName,
    Request,
    ShortText,
    State,
    between,
    one_of,
    said,
)

MAX_PAUSE_S: Final = 315_360_000
"""Ten years; a pause without a length lasts until the queue is resumed."""
MAX_RECEIVES_PER_S: Final = 1_000_000
MIN_RECEIVES_PER_S: Final = 0.001

_Budget = Annotated[int, between((1, MAX_BUDGET))]
_Weight = Annotated[int, between((1, MAX_WEIGHT))]
_InFlight = Annotated[int, between((1, MAX_IN_FLIGHT))]
_Rate = Annotated[float, between((MIN_RECEIVES_PER_S, MAX_RECEIVES_PER_S))]
_Moment = Annotated[int, between((0, NEVER_MS))]
_WeekS = Annotated[float, between((0, WEEK_S))]
_LongText = Annotated[str, said(maxLength=MAX_TEXT)]
_MetadataName = Annotated[
    str, said(pattern="^(?![Ll][Ee][Aa][Ss][Ee][Hh][Oo][Ll][Dd]_)[A-Za-z_][A-Za-z0-9_]*$")
]
_TypeRule = Annotated[str, said(minLength=1, maxLength=MAX_TEXT, pattern=r"^[^*]*\*?$")]
_HeaderText = Annotated[str, said(pattern=r"^[\t\x20-\x7e\xa0-\xff]*$")]


# --- settings ------------------------------------------------------------------------------------


class Part(Struct, frozen=True):
    """A part of a queue's settings.

    An answer has all members. In a request any may be left out, which leaves it as it is, or null,
    which brings the default back.
    """


class Backoff(Part, frozen=True):
    """The wait after a failure."""

    kind: Annotated[str, one_of("fixed", "linear", "exponential")] = "exponential"
    """``fixed``, ``linear`` or ``exponential``."""
    initial_s: _WeekS = 1.0
    factor: Annotated[float, between((1, 10))] = 2.0
    cap_s: _WeekS = 3_600.0
    jitter: Annotated[float, between((0, 1))] = 0.1


class FailurePolicy(Part, frozen=True):
    """When a message goes to the poison queue; a limit of None is no limit."""

    max_deliveries: _Budget | None = None
    max_failures: _Budget | None = None
    max_interruptions: _Budget | None = None
    max_lapses: _Budget | None = None
    backoff: Backoff | None = None
    """The wait after a failure; None for none."""
    poison_queue: QueueName | None = None
    """If None, the queue's name followed by ``-poison``."""
    poison_time_to_live_s: Annotated[int, between(NATIVE.time_to_live_s)] | None = None
    """How long a message stays in the poison queue; None for ever."""


class GroupSettings(Part, frozen=True, kw_only=True):
    """How message groups share the queue."""

    order: Annotated[str, one_of("none", "fifo")] = "none"
    """With ``fifo`` a group is handed out in the order of its puts, and gives nothing while a
    message that was received before is not visible."""
    fair: bool = False
    """Whether groups are served in turn, by weight, whatever their backlogs."""
    limit_noisy: bool = False
    """Whether noisy groups leave consumers free, as many as the others need."""
    weights: Annotated[Mapping[GroupId, _Weight], said(maxProperties=MAX_NAMED_GROUPS)] = {}
    """By group; 1 for all others."""
    max_in_flight: _InFlight | None = None
    """Most messages of one group on leases at once; None for no limit."""
    max_in_flight_of: Annotated[
        Mapping[GroupId, _InFlight], said(maxProperties=MAX_NAMED_GROUPS)
    ] = {}
    """By group, in place of ``max_in_flight``."""
    rate_per_s: _Rate | None = None
    """Most messages of one group handed out a second; None for no limit."""
    rate_per_s_of: Annotated[Mapping[GroupId, _Rate], said(maxProperties=MAX_NAMED_GROUPS)] = {}
    """By group, in place of ``rate_per_s``."""
    burst: _InFlight = 1
    """Messages of a group handed out at once, if none was for a while. In any T seconds these and
    T times the rate are handed out at most."""
    burst_of: Annotated[Mapping[GroupId, _InFlight], said(maxProperties=MAX_NAMED_GROUPS)] = {}
    """By group, in place of ``burst``."""
    on_poison: Annotated[str, one_of("continue", "halt")] = "continue"
    """What becomes of a group in order when one of its messages goes to the poison queue: it goes
    on, or gives nothing until it is resumed."""


class Adaptive(Part, frozen=True):
    """Bounds within which the server chooses the visibility timeout by itself, in seconds."""

    floor_s: LeaseS = 5
    cap_s: LeaseS = 3_600


class TypeTimeout(Part, frozen=True, kw_only=True):
    """The visibility timeout of a message type, or of all types with a prefix.

    With neither member the type has the queue's, whatever a shorter prefix has.
    """

    visibility_timeout_s: LeaseS | None = None
    """None for the queue's, also as the start of one that adapts."""
    adaptive: Adaptive | None = None
    """Bounds within which it follows the work on messages of this rule alone."""


class Adapted(Struct, frozen=True):
    """The lease that the server has chosen, and why."""

    visibility_timeout_s: int
    because: str
    at_ms: Ms


class Advised(Part, frozen=True, kw_only=True):
    """Advice that was written into the settings, told to clients, and what it replaced; in seconds.

    The server does nothing by it.
    """

    visibility_timeout_s: LeaseS | None = None
    first_lease_s: LeaseS | None = None
    """For workers that renew: the first lease..."""
    renew_every_s: LeaseS | None = None
    """...and then so often."""
    batch: Annotated[int, between(NATIVE.receive_count)] | None = None
    """Messages to receive at once at most by those that do not renew."""
    floor_s: LeaseS | None = None
    cap_s: LeaseS | None = None
    because: _LongText | None = None
    at_ms: _Moment | None = None
    before_s: LeaseS | None = None
    """The visibility timeout before; and the bounds, if it adapted."""
    before_floor_s: LeaseS | None = None
    before_cap_s: LeaseS | None = None


class MnsAttributes(Part, frozen=True, kw_only=True):
    """Attributes that count for requests of the MNS protocol, and for no others."""

    delay_s: Annotated[int, between(MNS.delay_s)] = 0
    """Delay of a message that names none."""
    time_to_live_s: Annotated[int, between(MNS.time_to_live_s)] = 345_600
    """Life of a message."""
    wait_s: Annotated[int, between((0, 30))] = 0
    """How long a receive that does not say waits for messages."""
    logging_enabled: bool = False
    """Kept and shown, without an effect."""
    modified_at_ms: _Moment | None = None
    """When an attribute was last set through that protocol."""


class Settings(Part, frozen=True, kw_only=True):
    """How a queue behaves. To change it, send a dict with the same names; see ``update``."""

    visibility_timeout_s: LeaseS = DEFAULT_VISIBILITY_TIMEOUT_S
    """Lease of a receive that names none."""
    lapsed_receipts: Annotated[str, one_of("until-retaken", "strict", "same-lease")] = (
        "until-retaken"
    )
    """What a receipt is worth when its lease has run out and nobody has taken the message: it still
    acts (``until-retaken``), or it is dead (``strict``). With ``same-lease`` it is dead as well,
    but until then those act too that renewals of the lease have replaced."""
    failure_policy: FailurePolicy | None = None
    dedup_window_s: Annotated[int, between((0, MAX_DEDUP_WINDOW_S))] = DEFAULT_DEDUP_WINDOW_S
    """How long a deduplication key is remembered, in seconds; 0 for not at all."""
    priority_ageing_s: Annotated[int, between((1, WEEK_S))] | None = None
    """Seconds of waiting that count as one step of priority; None for strict order."""
    paused_until_ms: _Moment | None = None
    """Nothing is received before this moment."""
    pause_reason: _LongText | None = None
    max_receives_per_s: (
        Annotated[float, between((MIN_RECEIVES_PER_S, MAX_RECEIVES_PER_S))] | None
    ) = None
    """Messages that may be received per second; None for no limit."""
    adaptive: Adaptive | None = None
    adapted: Annotated[Adapted | None, said(readOnly=True)] = None
    """Read-only."""
    advised: Advised | None = None
    max_body_bytes: Annotated[int, between((1, MAX_BODY_BYTES))] | None = None
    """Largest body; None for 65,536."""
    event_log: bool = True
    """Whether changes of its messages are recorded as events."""
    mns: MnsAttributes | None = None
    groups: GroupSettings | None = None
    """How message groups share the queue; None if groups make no difference."""
    timeouts_by_type: Annotated[
        Mapping[_TypeRule, TypeTimeout], said(maxProperties=MAX_TYPE_RULES)
    ] = {}
    """By message type, or by a prefix of types followed by ``*``: the lease of a receive that names
    none. The type itself counts before a prefix, and a longer prefix before a shorter one."""
    adapted_by_type: Annotated[Mapping[str, Adapted], said(readOnly=True)] = {}
    """By rule of ``timeouts_by_type``. Read-only."""
    advised_by_type: Annotated[Mapping[_TypeRule, Advised], said(maxProperties=MAX_TYPE_RULES)] = {}
    """As ``advised``, by rule of ``timeouts_by_type``."""
    max_message_timeout_s: Annotated[int, between((0, WEEK_S))] = DEFAULT_MAX_MESSAGE_TIMEOUT_S
    """Longest visibility timeout that a producer may name for a message; 0 for none. A longer one
    is refused, and of messages that are there already it counts as this."""


# --- requests ------------------------------------------------------------------------------------


class QueueRequest(Request):
    """A queue's metadata and settings."""

    metadata: Mapping[_MetadataName, _HeaderText] | None = None
    """Replaces all metadata; 8,192 bytes together. Names that begin with ``leasehold_`` are the
    server's own, and two names must differ in more than the case of letters."""
    settings: (
        Annotated[
            Mapping[str, Any], Meta(extra_json_schema={"$ref": "#/components/schemas/Settings"})
        ]
        | None
    ) = None


class PauseRequest(Request):
    """How long to pause, and why."""

    for_s: Annotated[float, between((0, MAX_PAUSE_S))] | None = None
    """How long, in seconds; until the queue is resumed if left out."""
    reason: ShortText | None = None


class Policy(Struct, frozen=True, omit_defaults=True):
    """A stored access policy, by whose ``id`` a shared access signature says what it grants."""

    id: Annotated[str, said(minLength=1, maxLength=MAX_POLICY_ID)]
    start: str | None = None
    """ISO 8601 time, as it was sent; the signature says it if this does not."""
    expiry: str | None = None
    """ISO 8601 time, as it was sent; the signature says it if this does not."""
    permission: Annotated[str, said(pattern=f"^[{POLICY_PERMISSIONS}]+$")] | None = None
    """Letters out of ``raup``: read (peek), add, update, process."""


class PolicyItem(Policy, frozen=True, forbid_unknown_fields=True):
    """A policy that is sent."""


class PoliciesRequest(Request):
    """All stored access policies that a queue is to have."""

    policies: Annotated[list[PolicyItem], said(maxItems=MAX_POLICIES)]


# --- answers -------------------------------------------------------------------------------------


class Counts(Struct, frozen=True, kw_only=True):
    """How many messages are in each state, all at one instant."""

    at_ms: Ms
    visible: int
    leased: int
    delayed: int
    deferred: int
    """Given back with a delay."""
    poisoned: int
    """In the queue's poison queue."""
    staged: int = 0
    """Put under the name of a transaction that is not published yet; not part of the total."""
    claimed: int = 0
    """Of the leased ones, how many are in claims."""
    expired: int = 0
    """Past their time to live and not removed yet; not part of the total. A server of version 0.1
    does not say."""
    total: int
    """In the queue itself: visible, leased, delayed and deferred; the expired left out."""
    exact: bool = True
    """False while messages that expired during a standstill are counted as before."""
    oldest_age_s: Mapping[State, float] = {}
    """By state: seconds since the message that has been longest in it entered it."""


class DesiredWorkers(Struct, frozen=True, kw_only=True):
    """How many workers a queue needs, and the figures that say so."""

    at_ms: Ms
    workers: int
    """For an autoscaler: 0 only if nothing is visible or leased."""
    visible: int
    """Messages that can be received now: none while the queue is paused."""
    leased: int
    """Messages on leases of workers; those in claims are left out."""
    waiting_s: float
    """Seconds since the visible message that has waited longest became visible; 0 without one."""


class Activity(Struct, frozen=True, kw_only=True):
    """What happened in a queue since the server was started, at ``since_ms``."""

    since_ms: Ms = 0
    last_receive_ms: int | None = None
    """When a consumer last asked for messages, whether there were any or not."""
    last_receiver: str | None = None
    last_send_ms: Ms | None = None
    last_complete_ms: Ms | None = None
    sent: int = 0
    received: int = 0
    redelivered: int = 0
    completed: int = 0
    released: int = 0
    rejected_receipts: int = 0
    poisoned: int = 0
    waiting: int = 0
    """Receives that wait for messages now."""


class Before(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What of a queue was different before a change, as a change takes it to set it back."""

    settings: Mapping[str, Any] | None = None
    """A merge patch: null brings the default back."""
    metadata: Mapping[str, str] | None = None


class Queue(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A queue."""

    name: QueueName
    metadata: Mapping[str, str]
    settings: Settings
    visibility_timeout_s: int
    """The lease, in seconds, that a receive gets which names none."""
    created_at_ms: Ms
    counts: Counts | None = None
    activity: Activity | None = None
    previous: Before | None = None
    """Of an answer to a change: what it has changed, as it was; left out if that is nothing."""


class QueuePage(Struct):
    """Some queues by name."""

    queues: Sequence[Queue]
    next_after: NextAfter = None


class Policies(Struct):
    """The stored access policies of a queue."""

    policies: Sequence[Policy]


class Explanation(Struct, frozen=True):
    """Why a queue or a message behaves as it does."""

    sentence: str
    """For people; it may be worded better at any time."""
    code: str
    """For programs."""
    evidence: Mapping[str, Any] = {}
    """The facts that it rests on, under names that say their unit."""
