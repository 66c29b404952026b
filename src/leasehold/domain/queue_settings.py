"""What can be set for a queue, and the ranges.

The defaults are what a plain Azure client expects: nothing is moved, paused, limited or adapted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple

from leasehold.domain.limits import MAX_AZURE_QUEUE_NAME, MAX_QUEUE_NAME

DEFAULT_VISIBILITY_TIMEOUT_S: Final = 30
"""Azure, "Get Messages": the lease of a receive that names none."""
DEFAULT_DEDUP_WINDOW_S: Final = 300
"""As in SQS: a key sent again within five minutes is the same message."""
MAX_DEDUP_WINDOW_S: Final = 604_800
MAX_BUDGET: Final = 1_000_000
MAX_BODY_BYTES: Final = 64 * 1024 * 1024
MAX_WEIGHT: Final = 1_000
"""Of a message group."""
MAX_IN_FLIGHT: Final = 1_000_000
"""Highest limit for the messages of one group that are on leases at once."""
MAX_NAMED_GROUPS: Final = 1_000
"""Groups that a member of the settings names at most."""
MAX_TYPE_RULES: Final = 100
"""Message types and prefixes of types that a member of the settings names at most."""
PREFIX_END: Final = "*"
"""Ends the name of a rule that is for all types with a prefix."""
DEFAULT_MAX_MESSAGE_TIMEOUT_S: Final = 43_200
"""Twelve hours, the longest visibility timeout of SQS."""
POISON_SUFFIX: Final = "-poison"
"""The name that Azure Functions gives to the poison queue of a queue."""


class LapsedReceipts(StrEnum):
    """What a receipt is worth once its lease has run out and no other consumer has taken the
    message.
    """

    UNTIL_RETAKEN = "until-retaken"
    """It goes on working until another consumer receives the message (Azure's rule)."""

    STRICT = "strict"
    """It is dead from the moment the lease ends (MNS's rule)."""

    SAME_LEASE = "same-lease"
    """As STRICT, but until then the receipts that renewals of the lease have replaced act too (what
    the test suites of some clients of MNS expect)."""


class BackoffKind(StrEnum):
    """How the wait before the next attempt grows with the failures."""

    FIXED = "fixed"
    LINEAR = "linear"
    EXPONENTIAL = "exponential"


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """The wait after a failure; see :func:`leasehold.domain.failures.backoff_ms`."""

    kind: BackoffKind = BackoffKind.EXPONENTIAL
    initial_s: float = 1.0
    """Wait after the first failure, 0 to 604,800 s."""
    factor: float = 2.0
    """Of exponential growth, 1 to 10."""
    cap_s: float = 3_600.0
    """Longest wait before jitter, 0 to 604,800 s."""
    jitter: float = 0.1
    """Share of the wait by which it is shortened or lengthened at random, 0 to 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailurePolicy:
    """When a message goes to the poison queue. A limit of None is no limit; each is 1 or more."""

    max_deliveries: int | None = None
    """Deliveries, interrupted ones not counted."""
    max_failures: int | None = None
    max_interruptions: int | None = None
    max_lapses: int | None = None
    backoff: Backoff | None = None
    """None: a failed message is visible again at once, unless its worker says when."""
    poison_queue: str | None = None
    """None for the queue's name followed by POISON_SUFFIX."""
    poison_time_to_live_s: int | None = None
    """How long a message stays in the poison queue; None for ever."""


class GroupOrder(StrEnum):
    """In which order the messages of one group are handed out."""

    NONE = "none"
    """In no order of their own: a failed or slow message does not hold up its group."""
    FIFO = "fifo"
    """In the order in which they became visible for the first time. While one that was received
    is not visible, its group gives nothing more."""


class GroupRate(NamedTuple):
    """In any time of T seconds at most burst + T * per_s messages of a group are handed out."""

    per_s: float
    burst: int


class GroupPoison(StrEnum):
    """What becomes of a group in order when one of its messages goes to the poison queue."""

    CONTINUE = "continue"
    HALT = "halt"
    """It gives nothing more until an operator has it go on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSettings:
    """How the groups of a queue share it; see :mod:`leasehold.domain.groups`."""

    order: GroupOrder = GroupOrder.NONE
    fair: bool = False
    """Whether groups are served in turn, by weight, whatever their backlogs; otherwise the group
    whose first message is the oldest comes first."""
    limit_noisy: bool = False
    """Whether noisy groups leave consumers free for the others; see
    :mod:`leasehold.domain.noisy_groups`."""
    weights: Mapping[str, int] = field(default_factory=dict)
    """By group, 1 to :data:`MAX_WEIGHT`; 1 for all others."""
    max_in_flight: int | None = None
    """Most messages of one group that may be on leases at once; None for no limit."""
    max_in_flight_of: Mapping[str, int] = field(default_factory=dict)
    """By group, in place of :attr:`max_in_flight`."""

    rate_per_s: float | None = None
    """Most messages of one group that may be handed out a second; None for no limit."""
    rate_per_s_of: Mapping[str, float] = field(default_factory=dict)
    """By group, in place of :attr:`rate_per_s`."""
    burst: int = 1
    """Messages of a group that may be handed out at once, if none was for a while."""
    burst_of: Mapping[str, int] = field(default_factory=dict)
    """By group, in place of :attr:`burst`."""
    on_poison: GroupPoison = GroupPoison.CONTINUE
    """For groups in order."""

    def rate_of(self, group_id: str) -> GroupRate | None:
        """Return how many messages of a group may be handed out in some time; None for any."""
        per_s = self.rate_per_s_of.get(group_id, self.rate_per_s)
        return None if per_s is None else GroupRate(per_s, self.burst_of.get(group_id, self.burst))

    @property
    def has_rates(self) -> bool:
        """Tell whether there is any group of which not all may be handed out at once."""
        return self.rate_per_s is not None or bool(self.rate_per_s_of)

    @property
    def has_limits(self) -> bool:
        """Tell whether there is any group of which not all may be on leases at once."""
        return self.max_in_flight is not None or bool(self.max_in_flight_of)

    def halts(self, group_id: str | None) -> bool:
        """Tell whether a group stands still when a message of it is poisoned."""
        is_ordered = group_id is not None and self.order is GroupOrder.FIFO
        return is_ordered and self.on_poison is GroupPoison.HALT

    def limit_of(self, group_id: str) -> int | None:
        """Return how many messages of a group may be on leases at once; None for any number."""
        return self.max_in_flight_of.get(group_id, self.max_in_flight)


@dataclass(frozen=True, slots=True, kw_only=True)
class Adaptive:
    """Bounds within which the default visibility timeout follows the work."""

    floor_s: int = 5
    cap_s: int = 3_600


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapted:
    """The visibility timeout that the server has chosen, and why."""

    visibility_timeout_s: int
    because: str
    at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeTimeout:
    """The visibility timeout of a message type, or of all types with a prefix.

    With neither member the type has the timeout of the queue, whatever a shorter prefix has.
    """

    visibility_timeout_s: int | None = None
    """1 to 604,800 s; None for that of the queue, also as the start of one that adapts."""
    adaptive: Adaptive | None = None
    """Bounds within which it follows the work on messages of this rule alone."""


class TimeoutSource(StrEnum):
    """What decided how long the lease of a receive is that names none."""

    MESSAGE = "message"
    """Its producer named one."""
    TYPE = "type"
    """The settings of the queue have one for its type."""
    QUEUE = "queue"


class TimeoutInForce(NamedTuple):
    """How long the lease of a message is if the receive names none, and why."""

    visibility_timeout_s: int
    source: TimeoutSource
    rule: str | None = None
    """The type or prefix in the settings, for the source TYPE."""
    adapted: Adapted | None = None
    """Set if the server chose it."""

    @property
    def reason(self) -> str:
        """Why, as a part of a sentence."""
        if self.source is TimeoutSource.MESSAGE:
            return "as its producer asked"
        for_what = "the queue" if self.rule is None else f"type {self.rule}"
        if self.adapted is None:
            return f"as set for {for_what}"
        return f"which the server chose for {for_what} ({self.adapted.because})"

    def evidence(self) -> dict[str, object]:
        """Return the facts, as JSON can hold them."""
        told: dict[str, object] = {
            "visibility_timeout_s": self.visibility_timeout_s,
            "visibility_timeout_from": str(self.source),
        }
        if self.rule is not None:
            told["visibility_timeout_rule"] = self.rule
        if self.adapted is not None:
            told["visibility_timeout_because"] = self.adapted.because
        return told


@dataclass(frozen=True, slots=True, kw_only=True)
class Advised:
    """Advice that was written into the settings: told to clients, and what it replaced.

    The server does nothing by it. It stands here and not in the metadata because a queue with other
    metadata is another queue to clients that create it anew.
    """

    visibility_timeout_s: int | None = None
    """What was set, 1 to 604,800 s."""
    first_lease_s: int | None = None
    """For workers that renew: the first lease, 1 to 604,800 s..."""
    renew_every_s: int | None = None
    """...and then so often, 1 to 604,800 s."""
    batch: int | None = None
    """Messages to receive at once at most by those that do not renew, 1 to 1,000."""
    floor_s: int | None = None
    """Bounds that were set for a timeout that adapts; None if it does not."""
    cap_s: int | None = None
    because: str | None = None
    at_ms: int | None = None
    before_s: int | None = None
    """The visibility timeout that was replaced..."""
    before_floor_s: int | None = None
    """...and the bounds; None if it did not adapt."""
    before_cap_s: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MnsAttributes:
    """Attributes that a queue has for requests of MNS, and for no others.

    Source: MNS, "CreateQueue", table of attributes.
    """

    delay_s: int = 0
    """Delay of a message that names none, 0 to 604,800 s."""
    time_to_live_s: int = 345_600
    """Life of a message, 60 to 1,296,000 s."""
    wait_s: int = 0
    """How long a receive that does not say waits for messages, 0 to 30 s."""
    logging_enabled: bool = False
    """Kept and shown, without an effect."""
    modified_at_ms: int | None = None
    """When an attribute was last set through MNS; None for never since the queue was made."""

    def delays_past_expiry(self) -> bool:
        """Tell whether every message with the queue's delay would expire before it is visible."""
        return self.delay_s >= self.time_to_live_s


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSettings:
    """How a queue behaves."""

    visibility_timeout_s: int = DEFAULT_VISIBILITY_TIMEOUT_S
    """Lease of a receive that names none, 1 to 604,800 s."""
    lapsed_receipts: LapsedReceipts = LapsedReceipts.UNTIL_RETAKEN
    failure_policy: FailurePolicy | None = None
    dedup_window_s: int = DEFAULT_DEDUP_WINDOW_S
    """How long a deduplication key is remembered, 0 (not at all) to 604,800 s."""
    priority_ageing_s: int | None = None
    """Seconds of waiting that count as one step of priority; None: priority is strict."""
    paused_until_ms: int | None = None
    """Nothing is received before this moment; NEVER_MS until resumed; None when not paused."""
    pause_reason: str | None = None
    max_receives_per_s: float | None = None
    """Messages that may be received per second, above 0; None for no limit."""
    adaptive: Adaptive | None = None
    adapted: Adapted | None = None
    advised: Advised | None = None
    max_body_bytes: int | None = None
    """Largest body, 1 to MAX_BODY_BYTES; None for what the dialect allows (65,536)."""
    event_log: bool = True
    """Whether changes of its messages are recorded as events."""
    mns: MnsAttributes | None = None
    """None for the defaults of MNS."""
    groups: GroupSettings | None = None
    """None: whether messages name groups makes no difference."""
    timeouts_by_type: Mapping[str, TypeTimeout] = field(default_factory=dict)
    """By message type, or by a prefix followed by :data:`PREFIX_END`; the type itself counts before
    a prefix, and a longer prefix before a shorter one."""
    adapted_by_type: Mapping[str, Adapted] = field(default_factory=dict)
    """As :attr:`adapted`, by rule of :attr:`timeouts_by_type`."""
    advised_by_type: Mapping[str, Advised] = field(default_factory=dict)
    """As :attr:`advised`, by rule of :attr:`timeouts_by_type`."""
    max_message_timeout_s: int = DEFAULT_MAX_MESSAGE_TIMEOUT_S
    """Longest visibility timeout that a producer may name for a message, 0 (none) to 604,800 s. A
    longer one is refused; of messages that are there already it counts as this."""

    def lease_s(self) -> int:
        """Return the lease, in seconds, of a receive that names none.

        That of messages whose type has no rule, and that have no timeout of their own.
        """
        if self.adaptive is not None and self.adapted is not None:
            return self.adapted.visibility_timeout_s
        return self.visibility_timeout_s

    def lease_of(self, message_type: str | None, own_s: int | None) -> int:
        """Return the lease, in seconds, that a message has if its receive names none.

        Args:
            message_type: As its producer named it.
            own_s: The visibility timeout that its producer named.
        """
        if own_s is None and not self.timeouts_by_type:  # as for most queues
            return self.lease_s()
        return self.timeout_of(message_type, own_s).visibility_timeout_s

    def timeout_of(self, message_type: str | None, own_s: int | None) -> TimeoutInForce:
        """Return the same with the reason."""
        if own_s is not None and self.max_message_timeout_s:
            return TimeoutInForce(min(own_s, self.max_message_timeout_s), TimeoutSource.MESSAGE)
        name = self.rule_of(message_type)
        if name is not None:
            rule = self.timeouts_by_type[name]
            if rule.adaptive is not None or rule.visibility_timeout_s is not None:
                adapted = self.adapted_by_type.get(name) if rule.adaptive is not None else None
                return TimeoutInForce(self.lease_by(name), TimeoutSource.TYPE, name, adapted)
        adapted = self.adapted if self.adaptive is not None else None
        return TimeoutInForce(self.lease_s(), TimeoutSource.QUEUE, None, adapted)

    def lease_by(self, name: str) -> int:
        """Return the lease, in seconds, by one of :attr:`timeouts_by_type`."""
        rule, adapted = self.timeouts_by_type[name], self.adapted_by_type.get(name)
        if rule.adaptive is not None and adapted is not None:
            return adapted.visibility_timeout_s
        return self.lease_s() if rule.visibility_timeout_s is None else rule.visibility_timeout_s

    def rule_of(self, message_type: str | None) -> str | None:
        """Return which of :attr:`timeouts_by_type` is for a message type; None if none is."""
        rules = self.timeouts_by_type
        if not rules or not message_type:
            return None
        if message_type in rules:
            return message_type
        for end in range(len(message_type), -1, -1):
            prefix = message_type[:end] + PREFIX_END
            if prefix in rules:
                return prefix
        return None

    def is_paused(self, now_ms: int) -> bool:
        """Tell whether receives get nothing now."""
        return self.paused_until_ms is not None and now_ms < self.paused_until_ms


DEFAULT_SETTINGS: Final = QueueSettings()


def poison_queue_of(queue: str, settings: QueueSettings) -> str:
    """Return the name of the queue that poisoned messages of *queue* go to."""
    policy = settings.failure_policy
    if policy is not None and policy.poison_queue and policy.poison_queue != queue:
        return policy.poison_queue
    if has_room_for_poison(queue):
        return queue + POISON_SUFFIX
    # The name is cut, so that the poison has somewhere to go; and not so that it is the queue.
    name = queue[: _longest_of(queue) - len(POISON_SUFFIX)].rstrip("-") + POISON_SUFFIX
    return name if name != queue else queue[: -len(POISON_SUFFIX) - 1].rstrip("-") + POISON_SUFFIX


def has_room_for_poison(queue: str) -> bool:
    """Tell whether the name of a queue can be followed by POISON_SUFFIX as it is."""
    return len(queue) + len(POISON_SUFFIX) <= _longest_of(queue)


def _longest_of(queue: str) -> int:
    """Return how long a name may get; what Azure's clients may know stays short enough for them."""
    return MAX_AZURE_QUEUE_NAME if len(queue) <= MAX_AZURE_QUEUE_NAME else MAX_QUEUE_NAME
