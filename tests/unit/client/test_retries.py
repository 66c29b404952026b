"""When a call is made again, and when it must not be."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from leasehold.client import (
    ConnectionFailed,
    LeaseholdClientError,
    LeaseLost,
    NewMessage,
    RetryPolicy,
    ServerProblem,
    Unavailable,
)
from leasehold.client._answers import Tries
from leasehold.client.errors import MessageNotFound, Problem, UnexpectedAnswer, problem_error
from leasehold.client.models import GiveBack, LeaseRef
from leasehold.client.retries import NO_RETRIES
from tests.unit.client.support import (
    COUNTS,
    ID,
    JOB,
    PUT_RESULT,
    QUEUE,
    VIEW,
    Driver,
    Script,
    answer,
    problem,
    refused,
    results,
)

LEASED = LeaseRef(ID, "r1")
REFUSED = httpx.ConnectError("[Errno 111] Connection refused")
LOST = httpx.ReadTimeout("")
STORE_FAILED = problem("store-failed", 503, retry_after_s=0)
GATEWAY = httpx.Response(502, text="Bad Gateway")
OVERLOADED = problem("overloaded", 503, retry_after_s=0)

SAFE: dict[str, tuple[str, tuple[Any, ...], dict[str, Any], object]] = {
    "info": ("info", (), {}, QUEUE),
    "counts": ("counts", (), {}, COUNTS),
    "create": ("create", (), {}, QUEUE),
    "update": ("update", (), {"metadata": {}}, QUEUE),
    "delete": ("delete", (), {}, {}),
    "pause": ("pause", (), {}, QUEUE),
    "peek": ("peek", (), {}, {"messages": []}),
    "put with a key": ("put", ("x",), {"dedup_key": "k"}, {"results": [PUT_RESULT]}),
    "renew": ("renew", (LEASED, 5), {}, {"results": [{"id": ID, "receipt": "r2"}]}),
    "complete": ("complete", (LEASED,), {}, {"results": [{"id": ID}]}),
    "release": ("release", (LEASED,), {}, {"results": [{"id": ID}]}),
    "inspect": ("inspect", (), {}, {"messages": []}),
    "get": ("get", (ID,), {}, VIEW),
    "amend": ("amend", (ID,), {"priority": 1}, VIEW),
    "remove": ("remove", (ID,), {}, {}),
    "dry purge": ("purge", (), {"dry_run": True}, JOB),
}
MAYBE_DONE = (LOST, STORE_FAILED, GATEWAY, httpx.ReadError("reset"))
NOT_BEGUN = (
    REFUSED,
    httpx.ConnectTimeout(""),
    OVERLOADED,
    problem("stopping", 503, retry_after_s=0),
    problem("store-full", 503, retry_after_s=0),
    problem("some-limit", 429),
    httpx.Response(429),
)
UNSAFE: dict[str, tuple[str, tuple[Any, ...], dict[str, Any], object]] = {
    "put": ("put", ("x",), {}, {"results": [PUT_RESULT]}),
    "put of which one has no key": (
        "put_many",
        ([NewMessage("a", dedup_key="k"), NewMessage("b")],),
        {},
        {"results": [PUT_RESULT, PUT_RESULT]},
    ),
    "receive": ("receive", (), {}, {"messages": []}),
    "amend with force": ("amend", (ID,), {"priority": 1, "force": True}, VIEW),
    "end_lease": ("end_lease", (ID,), {}, VIEW),
    "purge": ("purge", (), {}, JOB),
    "redrive": ("redrive", (), {}, JOB),
}


def run(driver: Driver, script: Script, case: tuple[str, tuple[Any, ...], Any, Any]) -> Any:
    """Make one call."""
    method, arguments, named, _ = case
    return driver.do(getattr(driver.client(script).queue("jobs"), method)(*arguments, **named))


@pytest.mark.parametrize("name", SAFE)
def test_what_can_be_repeated_is_tried_again(driver: Driver, name: str) -> None:
    """After a lost answer, a call is made again if twice is the same as once."""
    for failure in MAYBE_DONE:
        script = Script(failure, answer(SAFE[name][3]))
        run(driver, script, SAFE[name])
        assert len(script.requests) == 2, failure
        assert script.requests[0].content == script.requests[1].content


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("renew", (LEASED, 5)),
        ("complete_many", ([LEASED],)),
        ("release_many", ([LEASED],)),
        ("release_each", ([GiveBack(LEASED)],)),
        ("bury", (LEASED,)),
    ],
)
def test_a_call_with_a_time_of_its_own_is_made_once(
    driver: Driver, name: str, arguments: tuple[Any, ...]
) -> None:
    """Whoever says how long it may take tries again itself; a repeat could outlive the lease."""
    for failure in (LOST, STORE_FAILED, OVERLOADED, REFUSED):
        script = Script(failure, answer(SAFE["renew"][3]))
        call = getattr(driver.client(script).queue("jobs"), name)
        with pytest.raises(LeaseholdClientError):
            driver.do(call(*arguments, timeout_s=3))
        assert len(script.requests) == 1, failure
        driver.do(call(*arguments, timeout_s=3))


@pytest.mark.parametrize("name", UNSAFE)
def test_what_may_have_been_done_is_not_done_twice(driver: Driver, name: str) -> None:
    """A put without a key, a receive and the start of a job are not repeated blindly."""
    for failure in MAYBE_DONE:
        script = Script(failure, answer(UNSAFE[name][3]))
        with pytest.raises(LeaseholdClientError):
            run(driver, script, UNSAFE[name])
        assert len(script.requests) == 1, failure


@pytest.mark.parametrize("name", [*SAFE, *UNSAFE])
def test_what_was_not_begun_is_tried_again(driver: Driver, name: str) -> None:
    """Any call is made again when it is certain that nothing was done."""
    case = (SAFE | UNSAFE)[name]
    for failure in NOT_BEGUN:
        script = Script(failure, answer(case[3]))
        run(driver, script, case)
        assert len(script.requests) == 2, failure


@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 413, 500])
def test_a_refusal_is_not_argued_with(driver: Driver, status: int) -> None:
    """What would be refused again is not tried again."""
    script = Script(problem("some-code", status))
    with pytest.raises(ServerProblem):
        run(driver, script, SAFE["info"])
    assert len(script.requests) == 1


def test_tries_are_bounded(driver: Driver) -> None:
    """Four by default, and the last failure is raised."""
    script = Script(REFUSED)
    with pytest.raises(ConnectionFailed, match="Connection refused"):
        run(driver, script, SAFE["info"])
    assert len(script.requests) == 4


def test_retries_can_be_turned_off(driver: Driver) -> None:
    """With one attempt the first failure is the last."""
    script = Script(OVERLOADED)
    with pytest.raises(Unavailable):
        driver.do(driver.client(script, retries=NO_RETRIES).queue("jobs").info())
    assert len(script.requests) == 1


@pytest.mark.parametrize(
    ("method", "arguments", "code"),
    [("remove", (ID,), "message-not-found"), ("delete", (), "queue-not-found")],
)
def test_gone_after_a_lost_answer_is_success(
    driver: Driver, method: str, arguments: tuple[Any, ...], code: str
) -> None:
    """The try whose answer was lost has removed it; without such a try it is an error."""
    gone = problem(code, 404)
    run(driver, Script(LOST, gone), (method, arguments, {}, None))
    for first in (REFUSED, OVERLOADED):
        with pytest.raises(ServerProblem, match=code):
            run(driver, Script(first, gone), (method, arguments, {}, None))
    with pytest.raises(ServerProblem, match="message-leased"):
        run(driver, Script(LOST, problem("message-leased", 409)), (method, arguments, {}, None))


def test_completed_by_the_lost_try(driver: Driver) -> None:
    """A message that is gone at the second try counts as completed, a lost lease does not."""
    gone = results(refused("message-not-found"))
    run(driver, Script(LOST, gone), SAFE["complete"])
    with pytest.raises(MessageNotFound):
        run(driver, Script(REFUSED, gone), SAFE["complete"])
    with pytest.raises(LeaseLost) as caught:
        run(driver, Script(LOST, results(refused("lease-lost"))), SAFE["complete"])
    assert caught.value.repeated


def test_a_refused_repeat_says_that_it_is_one(driver: Driver) -> None:
    """Whoever renews learns that the lease may be theirs, with a receipt that nobody knows."""
    script = Script(LOST, results(refused("lease-lost", reason="superseded")))
    with pytest.raises(LeaseLost, match="may have succeeded") as caught:
        run(driver, script, SAFE["renew"])
    assert caught.value.repeated
    with pytest.raises(LeaseLost) as caught:
        run(driver, Script(results(refused("lease-lost"))), SAFE["renew"])
    assert not caught.value.repeated


def test_a_signature_is_made_for_each_try(driver: Driver) -> None:
    """A token that ran out between two tries is not used again."""
    script = Script(REFUSED, answer(QUEUE))
    provider = driver.token_provider(["one", "two"])
    driver.do(driver.client(script, token_provider=provider).queue("jobs").info())
    used = [request.headers["authorization"] for request in script.requests]
    assert used == ["Bearer one", "Bearer two"]


POLICY = RetryPolicy(attempts=10, initial_s=1, cap_s=8, patience_s=1_000)
NOBODY = ConnectionFailed("u", "r", outcome_unknown=False)


def waits(policy: RetryPolicy, failure: LeaseholdClientError, dice: float, count: int) -> Any:
    """Return the waits before the tries after the first."""
    tries = Tries(policy, repeatable=True)
    return [tries.wait_s(failure, dice) for _ in range(count)]


def busy(retry_after_s: float | None) -> ServerProblem:
    """Return what an overloaded server says."""
    return problem_error(Problem(code="overloaded", status=503, retry_after_s=retry_after_s))


def test_waits_double_up_to_the_cap() -> None:
    """Between half and all of 1, 2, 4, 8, 8 seconds, as the dice fall."""
    assert waits(POLICY, NOBODY, 1.0, 5) == [1, 2, 4, 8, 8]
    assert waits(POLICY, NOBODY, 0.0, 5) == [0.5, 1, 2, 4, 4]


def test_the_servers_wait_is_the_least() -> None:
    """Retry-After is kept, and spread upwards so that clients do not come back all at once."""
    assert waits(POLICY, busy(3), 0.0, 3) == [3, 3, 3]
    assert waits(POLICY, busy(3), 1.0, 3) == [4, 5, 7]
    assert waits(POLICY, busy(None), 1.0, 2) == [1, 2]
    assert waits(POLICY, busy(-5), 0.0, 1) == [0]


def test_patience_ends() -> None:
    """The waits of a call come to no more than the caller allows."""
    policy = RetryPolicy(attempts=10, initial_s=1, cap_s=8, patience_s=7)
    assert waits(policy, NOBODY, 1.0, 4) == [1, 2, 4, None]
    assert waits(policy, busy(8), 0.0, 1) == [None]


def test_a_proxys_answer_may_hide_what_was_done() -> None:
    """A gateway error is of unknown outcome, other strange answers are not tried again."""
    tries = Tries(POLICY, repeatable=True)
    assert tries.wait_s(UnexpectedAnswer("u", 200, "text/html"), 1.0) is None
    assert tries.maybe_done
    tries = Tries(POLICY, repeatable=True)
    assert tries.wait_s(UnexpectedAnswer("u", 302, "text/html"), 1.0) is None
    assert not tries.maybe_done
    assert tries.wait_s(UnexpectedAnswer("u", 504, "text/html"), 1.0) is not None
    assert tries.maybe_done


@pytest.mark.parametrize(
    "wrong", [{"attempts": 0}, {"initial_s": -1}, {"cap_s": -1}, {"patience_s": -0.1}]
)
def test_a_policy_that_makes_no_sense_is_refused(wrong: dict[str, Any]) -> None:
    """The error names the field and the value."""
    name, value = next(iter(wrong.items()))
    with pytest.raises(ValueError, match=f"{name} must be .* not {value}"):
        RetryPolicy(**wrong)
