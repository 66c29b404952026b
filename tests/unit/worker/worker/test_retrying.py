"""How long messages wait, and when they are set aside."""

from __future__ import annotations

import math
from typing import Any

import pytest

from leasehold.worker.adapters import Delivery, Tried
from leasehold.worker.errors import Retry
from leasehold.worker.retry_policy import PoisonRule, RetryRule


@pytest.mark.parametrize(
    ("rule", "waits"),
    [
        (RetryRule(kind="fixed", initial_s=7, jitter=0), [7, 7, 7, 7]),
        (RetryRule(kind="linear", initial_s=5, jitter=0), [5, 10, 15, 20]),
        (RetryRule(kind="exponential", initial_s=3, factor=3, jitter=0), [3, 9, 27, 81]),
        (RetryRule(kind="exponential", initial_s=100, cap_s=250, jitter=0), [100, 200, 250, 250]),
        (RetryRule(kind="exponential", initial_s=0, jitter=0), [0, 0, 0, 0]),
        (RetryRule(kind="service"), [None, None, None, None]),
    ],
)
def test_growth(rule: RetryRule, waits: list[int | None]) -> None:
    """Each kind grows as it says, up to its cap."""
    assert [rule.delay_s(tries, 0.5) for tries in (1, 2, 3, 4)] == waits


def test_jitter_moves_the_wait_both_ways() -> None:
    """The dice moves the wait by up to the jitter's share."""
    rule = RetryRule(kind="fixed", initial_s=100, jitter=0.2)
    assert [rule.delay_s(1, dice) for dice in (0, 0.5, 1)] == [80, 100, 120]


def test_short_waits_are_one_second() -> None:
    """A wait is a whole number, and only what is meant to be at once is 0."""
    assert RetryRule(kind="fixed", initial_s=0.01).delay_s(1, 0.5) == 1


def test_very_many_tries_do_not_overflow() -> None:
    """A message that was delivered without end waits for the cap."""
    assert RetryRule(jitter=0).delay_s(10**9, 0.5) == 300


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"kind": "never"}, "retries.kind"),
        ({"initial_s": -1}, "retries.initial_s"),
        ({"factor": 0.5}, "retries.factor"),
        ({"cap_s": float("nan")}, "retries.cap_s"),
        ({"jitter": 1.5}, "retries.jitter"),
    ],
)
def test_problems_name_the_setting(options: dict[str, Any], named: str) -> None:
    """What cannot be is named with its bound."""
    (problem,) = RetryRule(**options).problems()
    assert problem.startswith(named)


def delivery(count: int = 1, problem: str | None = None) -> Delivery:
    return Delivery(
        queue="q", message_id="m", receipt="r", dequeue_count=count, body_problem=problem
    )


def test_count_alone_refuses_a_message_only_when_it_is_very_high() -> None:
    """Deliveries that nobody began are counted as well: four times the failures are let pass."""
    rule = PoisonRule(max_failures=3)
    assert rule.refusal(delivery(12)) is None
    fault = rule.refusal(delivery(13))
    assert fault is not None
    assert "delivered 12 times" in fault.text
    assert "whether its processing ever started is unknown" in fault.text
    assert PoisonRule(max_failures=None).refusal(delivery(400)) is None


def test_deliveries_may_have_a_limit_of_their_own() -> None:
    """With a number of its own a message is set aside unseen when it comes once more than that."""
    rule = PoisonRule(max_failures=3, max_deliveries=3)
    assert rule.refusal(delivery(3)) is None
    assert rule.refusal(delivery(4)) is not None
    assert PoisonRule(max_failures=None, max_deliveries=7).refusal(delivery(8)) is not None


def test_service_that_knows_failures_is_believed() -> None:
    """What was given back without a failure counts for nothing, however often."""
    rule = PoisonRule(max_failures=2)
    assert rule.refusal(delivery(100), Tried(0, 0)) is None
    fault = rule.refusal(delivery(100), Tried(1, 7))
    assert fault is not None
    assert fault.text.endswith(
        "delivered 8 times without being completed, at most 8: 1 failed, 7 lapsed"
    )
    assert not rule.is_last(delivery(100), Tried(0, 50))
    assert rule.is_last(delivery(100), Tried(1, 0))
    assert rule.is_last(delivery(2))
    assert not rule.is_last(delivery(1))


def test_service_is_asked_only_about_what_came_often() -> None:
    """Below the limits the count of deliveries says all there is to know."""
    rule = PoisonRule(max_failures=2)
    assert [rule.may_be_last(delivery(each)) for each in (1, 2)] == [False, True]
    assert [rule.is_suspect(delivery(each)) for each in (2, 3)] == [False, True]
    assert [rule.may_be_refused(delivery(each)) for each in (8, 9)] == [False, True]
    never = PoisonRule(max_failures=None)
    assert not never.may_be_last(delivery(99))
    assert not never.may_be_refused(delivery(99))


def test_unreadable_message_is_refused_before_work() -> None:
    """A body whose stored form cannot be read is set aside with that as the reason."""
    fault = PoisonRule().refusal(delivery(problem="not base64"))
    assert fault is not None
    assert fault.text == "encoding: not base64"


def test_poison_rule_needs_one_delivery() -> None:
    """A limit of no delivery at all is refused."""
    assert PoisonRule(max_failures=0).problems()
    assert PoisonRule(max_failures=5, max_deliveries=4).problems()
    assert PoisonRule(max_failures=None, max_deliveries=0).problems()
    assert not PoisonRule().problems()


def test_retry_does_not_take_a_negative_delay() -> None:
    """A delay below 0, or none that is a number, is refused where it is made."""
    with pytest.raises(ValueError, match="0 or more"):
        Retry(-1)
    with pytest.raises(ValueError, match="0 or more"):
        Retry(float("nan"))


@pytest.mark.parametrize(
    "rule",
    [
        RetryRule(initial_s=math.inf, cap_s=math.inf),
        RetryRule(initial_s=math.inf, cap_s=math.inf, jitter=1),
        RetryRule(cap_s=math.inf, factor=10),
    ],
)
def test_endless_waits_are_whole_seconds_too(rule: RetryRule) -> None:
    """A rule without an end gives a number, which the service cuts."""
    for tries in (1, 400):
        assert isinstance(rule.delay_s(tries, 0.0), int)
