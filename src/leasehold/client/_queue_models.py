"""The models of queues and of what concerns a queue as a whole.

They belong to :mod:`leasehold.client.models`, which has all models for those who import them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct


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
