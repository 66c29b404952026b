"""How long messages wait, and when they are set aside."""

from __future__ import annotations

from typing import Any

import pytest

from leasehold.worker.queues import Delivery
from leasehold.worker.retrying import PoisonRule, RetryRule


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


def test_message_over_the_limit_is_refused_before_work() -> None:
    """What comes once more than it may is set aside, and the reason says how often it came."""
    rule = PoisonRule(max_failures=3)
    assert rule.refusal(delivery(3)) is None
    fault = rule.refusal(delivery(4))
    assert fault is not None
    assert "delivered 3 times" in fault.text
    assert PoisonRule(max_failures=None).refusal(delivery(400)) is None


def test_unreadable_message_is_refused_before_work() -> None:
    """A body whose stored form cannot be read is set aside with that as the reason."""
    fault = PoisonRule().refusal(delivery(problem="not base64"))
    assert fault is not None
    assert fault.text == "encoding: not base64"


def test_poison_rule_needs_one_delivery() -> None:
    """A limit of no delivery at all is refused."""
    assert PoisonRule(max_failures=0).problems()
    assert not PoisonRule().problems()
