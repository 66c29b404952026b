"""What became of a message, as a sentence that still lacks its full stop.

The parts that :mod:`leasehold.domain.explain` puts together with what it knows of the queue.
"""

from __future__ import annotations

from typing import Final

from leasehold.domain.failures import (
    BURIED,
    MAX_DELIVERIES,
    MAX_FAILURES,
    MAX_INTERRUPTIONS,
    MAX_LAPSES,
    has_lapsed,
    last_error,
)
from leasehold.domain.queue_settings import FailurePolicy
from leasehold.domain.types import NEVER_MS, Attempt, Message, MessageState, Outcome, Phase
from leasehold.domain.wording import future, length_of, past, quote, times_of

_ROUNDING: Final = 1e-9


def story(
    message: Message,
    state: MessageState,
    now_ms: int,
    policy: FailurePolicy | None,
    under: str | None = None,
) -> str:
    """Tell why a message is in its state, since when and until when.

    Args:
        message: The message.
        state: Its state.
        now_ms: The time.
        policy: Of the queue; with it an attempt is one of so many.
        under: Claim or transaction that it is in, as in
            :class:`~leasehold.domain.oversight.Seen`.
    """
    if state is MessageState.LEASED and under is not None:
        return _claimed(message, under, now_ms)
    if state is MessageState.LEASED:
        return _leased(message, now_ms, policy)
    if state is MessageState.DEFERRED:
        return _deferred(message, now_ms, policy)
    if state is MessageState.VISIBLE:
        return _visible(message, now_ms, policy)
    if state is MessageState.STAGED:
        name = "a transaction" if under is None else f"transaction {under}"
        return f"It is staged under {name} and not published yet"
    tellers = {
        MessageState.EXPIRED: _expired,
        MessageState.POISONED: _poisoned,
        MessageState.DELAYED: _delayed,
    }
    return tellers[state](message, now_ms)


def _delayed(message: Message, now_ms: int) -> str:
    return f"It is delayed until {future(message.visible_at_ms, now_ms)}"


def _claimed(message: Message, under: str, now_ms: int) -> str:
    stream, _, number = under.rpartition("/")
    return (
        f"It is in claim {number} of stream {stream}, held by {_holder(message.holder)}, until "
        f"{future(message.visible_at_ms, now_ms)}"
    )


def _leased(message: Message, now_ms: int, policy: FailurePolicy | None) -> str:
    renewed = f"renewed {times_of(message.renewals)}" if message.renewals else "not renewed"
    cancel = message.detail.cancel
    asked = "" if cancel is None else f", asked to stop at {past(cancel.at_ms, now_ms)}"
    return (
        f"It is leased to {_holder(message.holder)} until {future(message.visible_at_ms, now_ms)}: "
        f"{_attempt(message, policy)}, since {past(message.since_ms, now_ms)}, {renewed}, "
        f"{_progress(message, now_ms)}{asked}"
    )


def _progress(message: Message, now_ms: int) -> str:
    progress = message.detail.progress
    if progress is None:
        return "no progress reported"
    parts = []
    if progress.fraction is not None:
        parts.append(f"{int(progress.fraction * 100 + _ROUNDING)} %")
    if progress.note:
        parts.append(quote(progress.note))
    told = f" {', '.join(parts)}" if parts else ""
    return f"last progress{told} {length_of(now_ms - progress.at_ms)} ago"


def _deferred(message: Message, now_ms: int, policy: FailurePolicy | None) -> str:
    when = future(message.visible_at_ms, now_ms)
    since = past(message.since_ms, now_ms)
    outcome = ended_now(message)
    if outcome is Outcome.FAILED:
        return (
            f"It failed at {since} in {_failed(message, policy)}; the next attempt can begin at "
            f"{when}"
        )
    if outcome is None:
        return f"It was put off at {since} until {when}"
    return f"It was {_given_back(message, outcome)} at {since} and is put off until {when}"


def _expired(message: Message, now_ms: int) -> str:
    lived = length_of(message.expires_at_ms - message.inserted_at_ms)
    leased = message.phase is Phase.LEASED and message.visible_at_ms > message.expires_at_ms
    held = f", while it was leased to {_holder(message.holder)}" if leased else ""
    return (
        f"It expired at {past(message.expires_at_ms, now_ms)}{held}: its time to live ended "
        f"{lived} after it was put"
    )


def _poisoned(message: Message, now_ms: int) -> str:
    poisoning = message.detail.poisoning
    if poisoning is None:
        return (
            f"It was put directly into the poison queue at {past(message.inserted_at_ms, now_ms)}"
        )
    attempt = last_error(message)
    error = ""
    if attempt is not None and attempt.error is not None:
        error = f" (last error: {_error_text(attempt)})"
    return (
        f"It was moved to the poison queue at {past(poisoning.at_ms, now_ms)} because "
        f"{because(poisoning.reason, message)}{error}"
    )


def _visible(message: Message, now_ms: int, policy: FailurePolicy | None) -> str:
    since = past(message.visible_at_ms, now_ms)
    if message.dequeue_count == 0:
        became = "was redriven" if message.detail.redriven else "became visible"
        return f"It has not been received since it {became} at {since}"
    visible = f"It has been visible since {since}"
    if has_lapsed(message, now_ms):
        attempt = _attempt(message, policy)
        return f"{visible}, when the lease of {_holder(message.holder)} ran out in {attempt}"
    poisoning = message.detail.poisoning
    if poisoning is not None and message.phase is Phase.WAITING:
        because_of = because(poisoning.reason, message)
        return f"{visible}, moved here from queue {poisoning.queue} because {because_of}"
    outcome = ended_now(message)
    if outcome is Outcome.FAILED:
        return f"{visible}, after it failed in {_failed(message, policy)}"
    if outcome is not None:
        return f"{visible}, after it was {_given_back(message, outcome)}"
    return visible


def _holder(holder: str | None) -> str:
    return holder or "a receiver that gave no name"


def _attempt(message: Message, policy: FailurePolicy | None) -> str:
    """Return ``attempt 2 of 5``, counted as the queue's limits count."""
    if policy is not None and policy.max_deliveries is not None:
        number = message.dequeue_count - message.detail.interruptions
        return f"attempt {max(number, 1)} of {policy.max_deliveries}"
    return f"attempt {message.dequeue_count}"


def ended_now(message: Message) -> Outcome | None:
    """Say how the attempt ended that put the message into its present phase."""
    attempts = message.detail.attempts
    if message.phase is not Phase.DEFERRED or not attempts:
        return None
    latest = attempts[-1]
    return latest.outcome if latest.ended_at_ms == message.since_ms else None


def _given_back(message: Message, outcome: Outcome) -> str:
    holder = _holder(message.holder)
    if outcome is Outcome.INTERRUPTED:
        return f"given back when {holder} was interrupted"
    if outcome is Outcome.ENDED:
        return f"taken from {holder} by an operator"
    if outcome is Outcome.LOST:
        return f"taken from {holder}, whose session was lost"
    if outcome is Outcome.STUCK:
        return f"taken from {holder}, who made no progress"
    return f"given back by {holder}"


def _failed(message: Message, policy: FailurePolicy | None) -> str:
    text = _attempt(message, policy)
    if policy is not None and policy.max_deliveries is None and policy.max_failures is not None:
        text += f" (failure {message.detail.failures} of {policy.max_failures})"
    latest = message.detail.attempts[-1]
    return text if latest.error is None else f"{text} with {_error_text(latest)}"


def _error_text(attempt: Attempt) -> str:
    error = attempt.error
    assert error is not None
    return f"{error.type}: {quote(error.text)}" if error.type else quote(error.text)


def because(reason: str, message: Message) -> str:
    """Return the rest of a sentence that ends in "because": why a message is given up."""
    detail = message.detail
    deliveries = message.dequeue_count - detail.interruptions
    causes = {
        MAX_DELIVERIES: f"it was delivered {times_of(deliveries)} without being completed",
        MAX_FAILURES: f"it failed {times_of(detail.failures)}",
        MAX_INTERRUPTIONS: f"its workers were interrupted {times_of(detail.interruptions)}",
        MAX_LAPSES: f"its lease ran out {times_of(detail.lapses)}",
        BURIED: f"{_holder(message.holder)} buried it",
    }
    return causes.get(reason) or f"of {quote(reason)}"


def evidence_of(message: Message, state: MessageState) -> dict[str, object]:
    """Return the facts about a message that its story rests on."""
    detail = message.detail
    evidence: dict[str, object] = {
        "state": str(state),
        "inserted_at_ms": message.inserted_at_ms,
        "expires_at_ms": None if message.expires_at_ms >= NEVER_MS else message.expires_at_ms,
        "visible_at_ms": message.visible_at_ms,
        "since_ms": message.since_ms,
        "dequeue_count": message.dequeue_count,
        "failures": detail.failures,
        "interruptions": detail.interruptions,
        "lapses": detail.lapses,
        "priority": message.priority,
        "holder": message.holder,
        "renewals": message.renewals,
    }
    if detail.progress is not None:
        evidence["progress"] = {
            "fraction": detail.progress.fraction,
            "note": detail.progress.note,
            "at_ms": detail.progress.at_ms,
        }
    if message.session is not None:
        evidence["session"] = message.session
    if detail.cancel is not None:
        evidence["cancel"] = {"at_ms": detail.cancel.at_ms, "reason": detail.cancel.reason}
    attempt = last_error(message)
    if attempt is not None and attempt.error is not None:
        evidence["last_error"] = {
            "text": attempt.error.text,
            "type": attempt.error.type,
            "fingerprint": attempt.error.fingerprint,
            "at_ms": attempt.ended_at_ms,
        }
    if detail.poisoning is not None:
        evidence["reason"] = detail.poisoning.reason
        evidence["poisoned_at_ms"] = detail.poisoning.at_ms
    return evidence
