"""The rules of failing: how an attempt ends, how long to wait, when a message is given up.

A message has budgets of deliveries, failures, interruptions and lapses
(:class:`~leasehold.domain.queue_settings.FailurePolicy`). They are separate so that workers that
are restarted often do not use up the tries of a message that has nothing wrong with it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from leasehold.domain.model import (
    MAX_ATTEMPTS,
    Attempt,
    Detail,
    ErrorReport,
    Message,
    Outcome,
    Phase,
    Poisoning,
)
from leasehold.domain.queue_settings import MAX_BUDGET, Backoff, BackoffKind, FailurePolicy

_MS: Final = 1000

MAX_DELIVERIES: Final = "max_deliveries"
MAX_FAILURES: Final = "max_failures"
MAX_INTERRUPTIONS: Final = "max_interruptions"
MAX_LAPSES: Final = "max_lapses"
BURIED: Final = "buried"

POISONED_AT_ONCE: Final = 500
"""Messages that one search moves to the poison queue, some 30 milliseconds' worth: where a policy
is new, or a whole queue has lapsed, there can be millions. The next receive goes on."""


_LAPSES: Final = frozenset({Outcome.LAPSED, Outcome.LOST, Outcome.STUCK})
_NOT_POISONED: Final = Poisoning(queue="", reason="", at_ms=0)
OLD_ERROR_CHARS: Final = 256
"""What is kept of the text of an error once there is a later attempt: twenty texts of full length,
rewritten with each delivery, would hold the store up."""


def backoff_ms(backoff: Backoff, failures: int, jitter: float) -> int:
    """Return the wait before the next attempt, in milliseconds, 0 or more.

    Args:
        backoff: The queue's rule.
        failures: How often the message has failed by now, the last time included; from 1.
        jitter: A random number from 0 to 1; 0.5 gives the wait without jitter.
    """
    # No wait grows past a million failures, and float powers overflow with larger counts.
    count = min(max(failures, 1), MAX_BUDGET)
    wait_s = min(_growth_s(backoff, count), backoff.cap_s)
    return max(0, round(wait_s * _MS * (1 + backoff.jitter * (2 * jitter - 1))))


def _growth_s(backoff: Backoff, count: int) -> float:
    if backoff.kind is BackoffKind.FIXED or backoff.initial_s == 0:
        return backoff.initial_s
    if backoff.kind is BackoffKind.LINEAR:
        return backoff.initial_s * count
    try:
        return float(backoff.initial_s * float(backoff.factor) ** (count - 1))
    except OverflowError:
        return backoff.cap_s


def exhausted_on_receive(message: Message, policy: FailurePolicy) -> str | None:
    """Say which budget keeps *message* from being delivered once more; None if it may be.

    The message is that from before the delivery; a lapse of its lease is noted in it already.
    """
    detail = message.detail
    before = detail.poisoning or _NOT_POISONED
    deliveries = message.dequeue_count - detail.interruptions
    if _used_up(deliveries - before.deliveries, policy.max_deliveries):
        return MAX_DELIVERIES
    if _used_up(detail.failures - before.failures, policy.max_failures):
        return MAX_FAILURES
    if _used_up(detail.interruptions - before.interruptions, policy.max_interruptions):
        return MAX_INTERRUPTIONS
    if _used_up(detail.lapses - before.lapses, policy.max_lapses):
        return MAX_LAPSES
    return None


def exhausted_on_release(message: Message, policy: FailurePolicy, outcome: Outcome) -> str | None:
    """Say why *message*, just given back, goes to the poison queue at once; None if it stays.

    The message is that from after :func:`close_attempt`. One whose next receive could only move it
    does not wait for that, except when an operator ended its lease: whoever did that wants to see
    the message in its queue.
    """
    if outcome is Outcome.BURIED:
        return BURIED
    if outcome is Outcome.ENDED:
        return None
    return exhausted_on_receive(message, policy)


def release_reason(message: Message, policy: FailurePolicy | None, outcome: Outcome) -> str | None:
    """Do as :func:`exhausted_on_release`, also for a queue without a policy."""
    if policy is None:
        return BURIED if outcome is Outcome.BURIED else None
    return exhausted_on_release(message, policy, outcome)


def close_attempt(
    message: Message, outcome: Outcome, ended_at_ms: int, error: ErrorReport | None
) -> Message:
    """Return *message* with its current lease written down as an attempt that has ended.

    The first attempt and the latest ones are kept, MAX_ATTEMPTS in all. The counters of the budgets
    rise by the outcome and the progress is cleared; times, phase, fence and holder stay.

    Args:
        message: A message on a lease, which may have lapsed.
        outcome: How the attempt ended.
        ended_at_ms: When; for a lapse the moment at which the lease ran out.
        error: What the worker said about it.

    Returns:
        The message unchanged if it is on no lease: a sender's receipt acts as well, and so does
        that of a lease given back with a timeout of nothing.
    """
    if message.phase is not Phase.LEASED:
        return message
    attempt = Attempt(
        number=message.dequeue_count,
        leased_at_ms=message.since_ms,
        ended_at_ms=ended_at_ms,
        outcome=outcome,
        holder=message.holder,
        renewals=message.renewals,
        error=error,
        fence=message.fence,
    )
    detail = message.detail
    return message._replace(
        detail=replace(
            detail,
            attempts=_append(detail, attempt),
            failures=detail.failures + (outcome is Outcome.FAILED),
            interruptions=detail.interruptions + (outcome is Outcome.INTERRUPTED),
            lapses=detail.lapses + (outcome in _LAPSES),
            progress=None,
            cancel=None,
        )
    )


def has_lapsed(message: Message, now_ms: int) -> bool:
    """Tell whether the message was received and its lease has run out without a word."""
    return message.phase is Phase.LEASED and message.visible_at_ms <= now_ms


def newest_error(message: Message) -> ErrorReport | None:
    """Return what was said about the newest attempt that has ended; None for nothing."""
    attempts = message.detail.attempts
    return attempts[-1].error if attempts else None


def last_error(message: Message) -> Attempt | None:
    """Return the latest attempt that ended with an error report, or None."""
    for attempt in reversed(message.detail.attempts):
        if attempt.error is not None:
            return attempt
    return None


def _append(detail: Detail, attempt: Attempt) -> tuple[Attempt, ...]:
    attempts = detail.attempts
    if attempts:
        attempts = (*attempts[:-1], _shortened(attempts[-1]))
    if len(attempts) < MAX_ATTEMPTS:
        return (*attempts, attempt)
    return (attempts[0], *attempts[-(MAX_ATTEMPTS - 2) :], attempt)


def _shortened(attempt: Attempt) -> Attempt:
    error = attempt.error
    if error is None or len(error.text) <= OLD_ERROR_CHARS:
        return attempt
    return replace(attempt, error=replace(error, text=error.text[:OLD_ERROR_CHARS] + "..."))


def _used_up(count: int, budget: int | None) -> bool:
    return budget is not None and count >= budget


def has_failed_in(queue_name: str, poisoned: Message) -> bool:
    """Tell whether a message of a poison queue failed in this queue, as far as is known."""
    poisoning = poisoned.detail.poisoning
    return poisoning is None or poisoning.queue == queue_name
