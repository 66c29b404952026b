"""What to do about a lease: functions of what is known and the time, nothing else."""

from __future__ import annotations

import enum
import math
from typing import Final, Protocol

from leasehold.worker.adapters.protocol import (
    BodyTooLarge,
    Denied,
    LeaseGone,
    NotSupported,
    PastExpiry,
    QueueMissing,
    Renewed,
    Unreachable,
)
from leasehold.worker.leases.held import HeldState
from leasehold.worker.leases.settings import LeaseSettings

MIN_CALL_TIMEOUT_S = 0.05
"""No request is given less, however near its deadline."""
REACH_S: Final = 0.2
"""For a renewal's way to the service, where it must not end after the message expires."""
_NEAR_S: Final = 1.5
_SEARCHED_S: Final = 2
_GAIN_S: Final = 0.1
_EARLY_S: Final = 0.02
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

    @property
    def expires_s(self) -> float:
        """Monotonic seconds at which the message may expire; infinity: never, or not known."""
        ...

    @property
    def longest_s(self) -> float:
        """What a renewal may ask for at most, as the service has refused more."""
        ...


def fitting_s(entry: Entry, now_s: float, wanted_s: int) -> int:
    """Return the longest renewal, up to *wanted_s*, that ends before the message expires.

    Services refuse one that ends later. 0: there is none any more.

    Args:
        entry: The message.
        now_s: Monotonic seconds; the request is sent at once.
        wanted_s: Whole seconds.
    """
    left_s = min(entry.expires_s - now_s - REACH_S, entry.longest_s)
    return wanted_s if left_s >= wanted_s else max(0, math.floor(left_s))


def shorter_s(entry: Entry, refused_s: int) -> int:
    """Return what to ask for at most after so long a renewal was refused because of the expiry.

    Where the expiry is known it was a matter of moments, else it has to be found.
    """
    return refused_s - 1 if entry.expires_s < math.inf else refused_s * 3 // 4


def is_at_expiry(entry: Entry) -> bool:
    """Return whether it is the expiry of the message that the lease ends for."""
    return entry.longest_s < _SEARCHED_S or entry.deadline_s >= entry.expires_s - _NEAR_S


def leased_from_s(asked_at_s: float, answered_s: float, wait_s: float, slack_s: float) -> float:
    """Return the moment from which a lease is counted.

    That is when its request was sent, since the lease may begin the moment it arrives. Where the
    service could wait for a message it is the answer, less a little for its way; but no later than
    that wait can have been.

    Args:
        asked_at_s: Monotonic seconds before the request was sent.
        answered_s: Monotonic seconds when the answer was there.
        wait_s: How long the service was asked to wait for a message at most.
        slack_s: Taken off for the way of the answer.
    """
    if not wait_s:
        return asked_at_s
    return max(asked_at_s, min(answered_s - slack_s, asked_at_s + wait_s))


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
    is_due = deadline_s - now_s <= _left_s(entry, settings)
    return Action.RENEW if is_due and _is_of_use(entry, now_s, settings) else Action.NOTHING


def _is_of_use(entry: Entry, now_s: float, settings: LeaseSettings) -> bool:
    """Return whether a renewal makes the lease longer; one that is cut for the expiry may not."""
    length_s = fitting_s(entry, now_s, settings.visibility_timeout_s)
    is_whole = length_s == settings.visibility_timeout_s
    return is_whole or now_s + length_s > entry.deadline_s + _GAIN_S


def _left_s(entry: Entry, settings: LeaseSettings) -> float:
    """Return how much of a lease may be left when it is renewed."""
    return min(settings.renew_at_s + entry.early_s, entry.longest_s / 2)


def look_again_s(entry: Entry, settings: LeaseSettings, now_s: float) -> float:
    """Return the moment from which :func:`decide` says something else than NOTHING.

    Leases are whole seconds. The last one is renewed when a whole number of them is left until the
    message expires, so that nothing of its life is given away.
    """
    give_up_s = entry.registered_s + settings.message_timeout_s
    renew_s = entry.deadline_s - _left_s(entry, settings)
    begin_s = max(renew_s, now_s)
    if fitting_s(entry, begin_s, settings.visibility_timeout_s) == settings.visibility_timeout_s:
        return min(renew_s, give_up_s)
    end_s = entry.expires_s - REACH_S
    if entry.longest_s < 1 or entry.deadline_s >= end_s - 2 * _GAIN_S:
        return min(entry.deadline_s, give_up_s)
    if end_s < math.inf:
        whole_s = begin_s + max(0.0, (end_s - begin_s) % 1.0 - _EARLY_S)
        if whole_s + settings.call_timeout_s < entry.deadline_s:
            begin_s = whole_s
    return min(begin_s, give_up_s)


def judge(answer: Renewed | Exception) -> Verdict:
    """Return what the answer to a renewal means.

    What no adapter should raise is taken for a failure of the moment: the deadline bounds it.
    """
    if isinstance(answer, Renewed):
        return Verdict.RENEWED
    if isinstance(answer, LeaseGone | QueueMissing):
        return Verdict.LOST
    if isinstance(answer, PastExpiry):
        return Verdict.RETRY
    return Verdict.DENIED if isinstance(answer, _NO_LEASE) else Verdict.RETRY


def is_ambiguous(failure: Exception) -> bool:
    """Return whether the request may have been carried out all the same."""
    return failure.outcome_unknown if isinstance(failure, Unreachable | PastExpiry) else True


def retry_s(
    failure: Exception, now_s: float, deadline_s: float, settings: LeaseSettings, jitter: float
) -> float:
    """Return when to try again: before the next tick is due, and never after the deadline.

    Args:
        failure: What came of the last try. A service that asks for more time gets it, up to half
            of what is left.
        now_s: Monotonic seconds.
        deadline_s: Monotonic seconds at which the lease may have ended.
        settings: By which it is kept.
        jitter: 0 to 1.
    """
    pause_s = settings.timer_interval_s * (0.5 + 0.5 * jitter)
    asked_s = failure.retry_after_s if isinstance(failure, Unreachable) else None
    if asked_s is not None:
        pause_s = max(pause_s, min(asked_s * (1 + 0.1 * jitter), (deadline_s - now_s) / 2))
    return min(now_s + pause_s, deadline_s)


def call_timeout_s(now_s: float, deadline_s: float, settings: LeaseSettings) -> float:
    """Return how long a request may take that is sent now: its lease is not to end meanwhile."""
    return max(MIN_CALL_TIMEOUT_S, min(settings.call_timeout_s, deadline_s - now_s))
