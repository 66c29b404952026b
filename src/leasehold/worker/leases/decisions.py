"""What to do about a lease: functions of what is known and the time, nothing else."""

from __future__ import annotations

import enum
from typing import Protocol

from leasehold.worker.leases.held import HeldState
from leasehold.worker.leases.settings import LeaseSettings
from leasehold.worker.queues.errors import (
    BodyTooLarge,
    Denied,
    LeaseGone,
    NotSupported,
    QueueMissing,
    Unreachable,
)
from leasehold.worker.queues.protocol import Renewed

MIN_CALL_TIMEOUT_S = 0.05
"""No request is given less, however near its deadline."""
_NO_LEASE = (Denied, NotSupported, BodyTooLarge)


class Action(enum.Enum):
    """What a check of one message comes to."""

    NOTHING = enum.auto()
    SKIP = enum.auto()
    """Something is under way; count it as late."""
    ABANDON = enum.auto()
    LOSE = enum.auto()
    RENEW = enum.auto()


class Verdict(enum.Enum):
    """What the answer to a renewal means."""

    RENEWED = enum.auto()
    LOST = enum.auto()
    RETRY = enum.auto()
    DENIED = enum.auto()


class Entry(Protocol):
    """What a decision looks at; see :class:`~leasehold.worker.leases.held.Held`."""

    @property
    def state(self) -> HeldState:
        """Where it stands."""
        ...

    @property
    def is_in_flight(self) -> bool:
        """Whether something is on its way that changes the receipt."""
        ...

    @property
    def registered_s(self) -> float:
        """Monotonic seconds before its receive was sent."""
        ...

    @property
    def deadline_s(self) -> float:
        """Monotonic seconds at which the lease may have ended."""
        ...

    @property
    def early_s(self) -> float:
        """By this much it is renewed earlier than others."""
        ...


def decide(entry: Entry, now_s: float, settings: LeaseSettings) -> Action:
    """Check one message; the first rule that fits counts.

    Args:
        entry: The message.
        now_s: Monotonic seconds.
        settings: By which it is kept.
    """
    if entry.state is not HeldState.HELD:
        return Action.NOTHING
    deadline_s = entry.deadline_s
    # A request that is overdue itself must not put off the bad news.
    if entry.is_in_flight and now_s < deadline_s + settings.allowed_lag_s:
        return Action.SKIP
    if now_s - entry.registered_s >= settings.message_timeout_s:
        return Action.ABANDON
    if now_s >= deadline_s:
        return Action.LOSE
    if deadline_s - now_s > settings.renew_at_s + entry.early_s:
        return Action.NOTHING
    return Action.RENEW


def look_again_s(entry: Entry, settings: LeaseSettings) -> float:
    """Return the moment from which :func:`decide` says something else than NOTHING."""
    renew_s = entry.deadline_s - settings.renew_at_s - entry.early_s
    return min(renew_s, entry.registered_s + settings.message_timeout_s)


def judge(answer: Renewed | Exception) -> Verdict:
    """Return what the answer to a renewal means.

    What no adapter should raise is taken for a failure of the moment: the deadline bounds it.
    """
    if isinstance(answer, Renewed):
        return Verdict.RENEWED
    if isinstance(answer, LeaseGone | QueueMissing):
        return Verdict.LOST
    return Verdict.DENIED if isinstance(answer, _NO_LEASE) else Verdict.RETRY


def is_ambiguous(failure: Exception) -> bool:
    """Return whether the request may have been carried out all the same."""
    return failure.outcome_unknown if isinstance(failure, Unreachable) else True


def retry_s(
    failure: Exception, now_s: float, deadline_s: float, settings: LeaseSettings, dice: float
) -> float:
    """Return when to try again: before the next tick is due, and never after the deadline.

    Args:
        failure: What came of the last try. A service that asks for more time gets it, up to half
            of what is left.
        now_s: Monotonic seconds.
        deadline_s: Monotonic seconds at which the lease may have ended.
        settings: By which it is kept.
        dice: 0 to 1.
    """
    pause_s = settings.timer_interval_s * (0.5 + 0.5 * dice)
    asked_s = failure.retry_after_s if isinstance(failure, Unreachable) else None
    if asked_s is not None:
        pause_s = max(pause_s, min(asked_s * (1 + 0.1 * dice), (deadline_s - now_s) / 2))
    return min(now_s + pause_s, deadline_s)


def call_timeout_s(now_s: float, deadline_s: float, settings: LeaseSettings) -> float:
    """Return how long a request may take that is sent now: its lease is not to end meanwhile."""
    return max(MIN_CALL_TIMEOUT_S, min(settings.call_timeout_s, deadline_s - now_s))
