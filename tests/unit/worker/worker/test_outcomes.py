"""What became of a message, and what is done with it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from leasehold.worker.adapters import Delivery, Fault
from leasehold.worker.errors import Cancelled, GiveBack, LeaseLost, Poison, Retry
from leasehold.worker.outcomes import (
    COMPLETE,
    DONE,
    INTERRUPTED,
    LOST,
    RETURNED,
    Bury,
    Give,
    Kind,
    Outcome,
    fault_of,
    outcome_of,
    settlement_of,
)
from leasehold.worker.retry_policy import PoisonRule, RetryRule


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (None, Kind.DONE),
        (Poison("no"), Kind.POISONED),
        (Retry(), Kind.FAILED),
        (GiveBack(), Kind.RETURNED),
        (LeaseLost("gone"), Kind.LOST),
        (RuntimeError("oh"), Kind.FAILED),
        (SystemExit(1), Kind.FAILED),
        (Cancelled("stop"), Kind.INTERRUPTED),
        (asyncio.CancelledError(), Kind.FAILED),
    ],
)
def test_what_a_handler_says(error: BaseException | None, kind: Kind) -> None:
    """Each thing that a handler can raise has its meaning; returning is success."""
    assert outcome_of(error, is_lost=False, asked=None).kind is kind


@pytest.mark.parametrize("error", [None, Poison("no"), Retry(), RuntimeError("oh")])
def test_lost_lease_overrules_the_handler(error: BaseException | None) -> None:
    """Whatever the handler says, a message that is lost is not settled."""
    assert outcome_of(error, is_lost=True, asked=None) is LOST


@pytest.mark.parametrize("error", [Cancelled("why"), asyncio.CancelledError()])
def test_cancel_of_an_operator_is_no_retry(error: BaseException) -> None:
    """A handler that stops because an operator wanted it has its message set aside."""
    outcome = outcome_of(error, is_lost=False, asked="cancelled")
    assert outcome.kind is Kind.CANCELLED
    assert isinstance(settled(outcome), Bury)


@pytest.mark.parametrize("error", [Cancelled("why"), asyncio.CancelledError()])
def test_stop_of_the_worker_is_no_failure(error: BaseException) -> None:
    """A handler that stops because the worker does has its message given back uncounted."""
    assert outcome_of(error, is_lost=False, asked="stopping").kind is Kind.INTERRUPTED


def test_cancellation_that_nobody_asked_for_says_so() -> None:
    """It has no text of its own, so that people would look for a reason in vain."""
    fault = outcome_of(asyncio.CancelledError(), is_lost=False, asked=None).fault
    assert fault is not None
    assert fault.text == "the handler was cancelled, which nobody asked for"
    assert fault.type == "asyncio.exceptions.CancelledError"


def test_handler_that_finishes_although_cancelled_is_done() -> None:
    """Being asked to stop counts only if the handler stops for it."""
    assert outcome_of(None, is_lost=False, asked="cancelled") is DONE
    failed = outcome_of(RuntimeError("oh"), is_lost=False, asked="stopping")
    assert failed.kind is Kind.FAILED


def settled(outcome: Outcome, *, dequeue_count: int = 1, **options: Any) -> Any:
    delivery = Delivery(queue="q", message_id="m", receipt="r", dequeue_count=dequeue_count)
    rules: dict[str, Any] = {
        "retries": RetryRule(initial_s=4, jitter=0),
        "poison": PoisonRule(max_failures=5),
        "max_delay_s": 1000,
        "jitter": 0.5,
    }
    return settlement_of(outcome, delivery, **(rules | options))


def test_what_is_done_with_a_message() -> None:
    """Success completes, stopping gives back without a fault, a loss is left alone."""
    assert settled(DONE) is COMPLETE
    assert settled(RETURNED) == Give("returned", None, None)
    assert settled(INTERRUPTED) == Give("interrupted", None, None)
    assert settled(LOST) is None


def test_failure_waits_by_the_rule() -> None:
    """A failure is given back with the delay of its delivery, and its fault."""
    fault = Fault(text="oh")
    assert settled(Outcome(Kind.FAILED, fault)) == Give("failed", 4, fault)
    assert settled(Outcome(Kind.FAILED, fault), dequeue_count=3) == Give("failed", 16, fault)


def test_handler_overrides_the_delay() -> None:
    """What Retry asks for comes before the rule; 0 is at once, and a fraction is not."""
    assert settled(Outcome(Kind.FAILED, None, 0)).delay_s == 0
    assert settled(Outcome(Kind.FAILED, None, 0.2)).delay_s == 1
    assert settled(Outcome(Kind.FAILED, None, 77)).delay_s == 77


def test_delay_stays_within_the_service() -> None:
    """A delay is cut to what the service knows, and always a whole number."""
    found = settled(Outcome(Kind.FAILED, None, 12345.6), max_delay_s=900).delay_s
    assert found == 900
    assert type(found) is int


def test_service_may_choose_the_delay() -> None:
    """With the rule of the service no delay is sent."""
    found = settled(Outcome(Kind.FAILED), retries=RetryRule(kind="service"))
    assert found.delay_s is None


def test_last_failure_sets_aside_with_its_reason() -> None:
    """The failure of the last delivery buries the message, with that failure as the reason."""
    fault = Fault(text="oh")
    assert settled(Outcome(Kind.FAILED, fault), dequeue_count=4) == Give("failed", 32, fault)
    assert settled(Outcome(Kind.FAILED, fault), dequeue_count=5) == Bury(fault)
    no_limit = settled(
        Outcome(Kind.FAILED, fault), dequeue_count=99, poison=PoisonRule(max_failures=None)
    )
    assert isinstance(no_limit, Give)


def test_like_failures_have_like_fingerprints() -> None:
    """A fingerprint depends on type and place, not on the text."""

    def fail(text: str) -> Fault:
        try:
            raise ValueError(text)  # noqa: TRY301 - it is the place that counts
        except ValueError as error:
            return fault_of(error)

    one, other = fail("one"), fail("other")
    assert one.fingerprint == other.fingerprint
    assert (one.text, one.type) == ("one", "ValueError")
    assert fault_of(KeyError("x")).fingerprint != one.fingerprint


def test_retry_does_not_take_a_negative_delay() -> None:
    """A delay below 0, or none that is a number, is refused where it is made."""
    with pytest.raises(ValueError, match="0 or more"):
        Retry(-1)
    with pytest.raises(ValueError, match="0 or more"):
        Retry(float("nan"))
