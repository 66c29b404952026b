"""What errors of the native client mean for a queue."""

from __future__ import annotations

from typing import Any

import pytest

from leasehold.client import errors as native
from leasehold.client.errors import Problem, problem_error, usual_status
from leasehold.worker.adapters import (
    BodyTooLarge,
    Denied,
    LeaseGone,
    PastExpiry,
    QueueError,
    QueueMissing,
    Unauthenticated,
    Unreachable,
)
from leasehold.worker.adapters.native import queue_error


def of_code(code: str, status: int = 0, **members: Any) -> native.ServerProblem:
    return problem_error(Problem(code=code, status=status or usual_status(code), **members))


@pytest.mark.parametrize(
    ("error", "meaning"),
    [
        (of_code("lease-lost"), LeaseGone),
        (of_code("message-not-found"), LeaseGone),
        (of_code("session-over"), LeaseGone),
        (of_code("session-not-found"), LeaseGone),
        (of_code("queue-not-found"), QueueMissing),
        (of_code("body-too-large"), BodyTooLarge),
        (of_code("unauthenticated"), Unauthenticated),
        (of_code("forbidden"), Denied),
        (of_code("out-of-range"), Denied),
        (of_code("visibility-past-expiry", 400), PastExpiry),
        (of_code("store-full"), Unreachable),
        (of_code("store-failed"), Unreachable),
        (of_code("too-many", 429), Unreachable),
        (of_code("internal", 500), Unreachable),
        (native.ConnectionFailed("http://h", "broken", True), Unreachable),
        (native.UnexpectedAnswer("http://h", 502, "text/html"), Unreachable),
        (native.UnexpectedAnswer("http://h", 200, "text/html"), Unreachable),
        (native.UnexpectedAnswer("http://h", 404, "text/html"), Denied),
        (native.LeaseholdClientError("odd"), Unreachable),
        (RuntimeError("the client is closed"), Unreachable),
    ],
)
def test_every_error_has_a_meaning(error: Exception, meaning: type[QueueError]) -> None:
    """Each error of the client is one of a queue."""
    assert type(queue_error(error)) is meaning


@pytest.mark.parametrize(
    ("error", "unknown"),
    [
        (of_code("store-full"), False),
        (of_code("overloaded"), False),
        (of_code("store-unavailable"), False),
        (of_code("outcome-unknown"), True),
        (of_code("store-failed"), True),
        (of_code("too-many", 429), False),
        (of_code("internal", 500), True),
        (native.ConnectionFailed("http://h", "refused", False), False),
        (native.ConnectionFailed("http://h", "broken", True), True),
        (native.UnexpectedAnswer("http://h", 504, "text/html"), True),
        (native.ConnectionFailed("http://h", "refused", False, repeated=True), True),
        (native.UnexpectedAnswer("http://h", 429, "text/html", repeated=True), True),
        (of_code("overloaded", repeated=True), True),
        (of_code("too-many", 429, repeated=True), True),
    ],
)
def test_whether_it_was_carried_out(error: Exception, unknown: bool) -> None:
    """What the client knows of that is passed on."""
    failure = queue_error(error)
    assert isinstance(failure, Unreachable)
    assert failure.outcome_unknown is unknown


@pytest.mark.parametrize("code", ["forbidden", "body-too-large", "queue-not-found", "lease-lost"])
def test_a_clear_refusal_may_follow_a_try_that_was_carried_out(code: str) -> None:
    """So who would undo something after a refusal must not."""
    assert queue_error(of_code(code, repeated=True)).outcome_unknown
    assert not queue_error(of_code(code)).outcome_unknown


def test_how_long_the_server_asks_to_be_left_alone() -> None:
    """Its wish is passed on."""
    failure = queue_error(of_code("overloaded", retry_after_s=3.0))
    assert isinstance(failure, Unreachable)
    assert failure.retry_after_s == 3.0
