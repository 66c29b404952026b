"""What comes back: models, and errors of the class that the code has."""

from __future__ import annotations

import pickle
from typing import Any

import httpx
import pytest

from leasehold.client import (
    ConnectionFailed,
    LeaseholdClientError,
    LeaseLost,
    ReceivedMessage,
    ServerProblem,
    Unavailable,
    errors,
)
from leasehold.client.models import (
    Attempt,
    ErrorReport,
    GiveBack,
    LeaseRef,
    Poisoning,
    Progress,
    Released,
    Renewal,
    Sent,
)
from leasehold.client.retries import NO_RETRIES
from tests.unit.client.support import (
    COUNTS,
    ID,
    JOB,
    PUT_RESULT,
    QUEUE,
    RECEIVED,
    VIEW,
    Driver,
    Script,
    answer,
    problem,
    refused,
    results,
)

CODES = {
    "queue-not-found": (404, errors.QueueNotFound),
    "queue-exists": (409, errors.QueueExists),
    "settings-differ": (409, errors.QueueExists),
    "message-not-found": (404, errors.MessageNotFound),
    "job-not-found": (404, errors.JobNotFound),
    "lease-lost": (409, errors.LeaseLost),
    "message-leased": (409, errors.MessageLeased),
    "message-not-leased": (409, errors.MessageNotLeased),
    "out-of-range": (400, errors.OutOfRange),
    "body-too-large": (413, errors.BodyTooLarge),
    "not-done": (409, errors.NotDone),
    "session-not-found": (404, errors.SessionNotFound),
    "session-over": (409, errors.SessionOver),
    "stream-not-found": (404, errors.StreamNotFound),
    "stale-token": (409, errors.StaleToken),
    "claim-not-found": (404, errors.ClaimNotFound),
    "claim-out-of-turn": (409, errors.ClaimOutOfTurn),
    "claim-settled": (409, errors.ClaimSettled),
    "claim-lapsed": (409, errors.ClaimLapsed),
    "claim-broken": (409, errors.ClaimBroken),
    "member-not-found": (404, errors.MemberNotFound),
    "staged-not-found": (404, errors.StagedNotFound),
    "already-published": (409, errors.AlreadyPublished),
    "chunk-out-of-turn": (409, errors.ChunkOutOfTurn),
    "unauthenticated": (401, errors.Unauthenticated),
    "forbidden": (403, errors.Forbidden),
    "store-full": (503, errors.Unavailable),
    "overloaded": (503, errors.Unavailable),
    "stopping": (503, errors.Unavailable),
    "store-unavailable": (503, errors.Unavailable),
    "outcome-unknown": (503, errors.Unavailable),
    "store-failed": (503, errors.Unavailable),
    "invalid-request": (400, ServerProblem),
    "something-of-tomorrow": (418, ServerProblem),
    "another-reason-to-wait": (503, errors.Unavailable),
}


def receive(driver: Driver, content: dict[str, Any]) -> ReceivedMessage:
    """Return the one message that a receive gives."""
    queue = driver.client(Script(answer({"messages": [content]}))).queue("jobs")
    (message,) = driver.do(queue.receive())
    assert isinstance(message, ReceivedMessage)
    return message


def test_a_received_message_has_all_that_was_sent(driver: Driver) -> None:
    """Members that are left out have their defaults, the body is bytes."""
    message = receive(driver, RECEIVED | {"member_of_tomorrow": 1})
    assert message.body == "héllo".encode()
    assert message.text == "héllo"
    assert (message.id, message.receipt, message.fence) == (ID, "r1", 7)
    assert (message.dequeue_count, message.visible_at_ms) == (2, 31_000)
    assert message.expires_at_ms is None
    assert (message.priority, message.type, message.properties) == (8, None, {})
    full = {"priority": 1, "type": "t", "properties": {"a": "b"}, "dedup_key": "k"}
    message = receive(driver, RECEIVED | full | {"traceparent": "00", "expires_at_ms": 5})
    assert (message.priority, message.type, message.dedup_key) == (1, "t", "k")
    assert (message.properties, message.traceparent) == ({"a": "b"}, "00")
    assert message.expires_at_ms == 5


def test_a_body_that_is_no_text_comes_as_it_was(driver: Driver) -> None:
    """Base64 is taken off; asking for text then fails."""
    message = receive(driver, RECEIVED | {"body": None, "body_base64": "/wA="})
    assert message.body == b"\xff\x00"
    with pytest.raises(UnicodeDecodeError):
        _ = message.text


def test_a_body_can_be_read_as_json(driver: Driver) -> None:
    """Both answers of a body: what it says, or that it is not JSON."""
    assert receive(driver, RECEIVED | {"body": '{"a": [1]}'}).json() == {"a": [1]}
    with pytest.raises(ValueError, match="Expecting value"):
        receive(driver, RECEIVED).json()


def test_a_large_body_and_the_receipt_stay_out_of_logs(driver: Driver) -> None:
    """The repr shows the beginning of the body and its size."""
    shown = repr(receive(driver, RECEIVED | {"body": "x" * 5_000, "receipt": "secret"}))
    assert len(shown) < 200
    assert "5000 bytes" in shown
    assert "secret" not in shown


def test_a_put_message_is_described(driver: Driver) -> None:
    """The answer to a put has the id, the times and the receipt."""
    sent = driver.do(driver.client(Script(results(PUT_RESULT))).queue("jobs").put("x"))
    assert sent == Sent(ID, 1, None, 1, "r0")
    assert not sent.duplicate


def test_a_renewed_message_has_its_new_receipt_and_body(driver: Driver) -> None:
    """The message returned takes the place of the one given; that one stays as it was."""
    script = Script(results({"id": ID, "receipt": "r2", "visible_at_ms": 60_000}))
    old = ReceivedMessage(id=ID, receipt="r1", body=b"old", fence=3)
    queue = driver.client(script).queue("jobs")
    new = driver.do(queue.renew(old, 60))
    assert (new.receipt, new.visible_at_ms, new.body, new.fence) == ("r2", 60_000, b"old", 3)
    renewed = driver.do(queue.renew(old, 60, body="néw"))
    assert (renewed.body, renewed.body_bytes) == ("néw".encode(), 4)
    assert driver.do(queue.renew(LeaseRef(ID, "r1"), 60, body="x")) == LeaseRef(ID, "r2", 60_000)
    assert old.receipt == "r1"


def test_what_was_saved_comes_with_the_message(driver: Driver) -> None:
    """With a receive and for inspectors; a renewal that saves changes it in what it returns."""
    assert receive(driver, RECEIVED).saved is None
    old = receive(driver, RECEIVED | {"saved": {"page": [3]}})
    assert old.saved == {"page": [3]}
    view = driver.do(driver.client(Script(answer(VIEW | {"saved": 0}))).queue("jobs").get(ID))
    assert view.saved == 0
    script = Script(results({"id": ID, "receipt": "r2", "visible_at_ms": 60_000}))
    queue = driver.client(script).queue("jobs")
    assert driver.do(queue.renew(old, 60)).saved == {"page": [3]}
    assert driver.do(queue.renew(old, 60, saved=[4])).saved == [4]
    assert driver.do(queue.renew(old, 60, saved=None)).saved is None
    assert driver.do(queue.renew(LeaseRef(ID, "r1"), 60, saved=1)) == LeaseRef(ID, "r2", 60_000)
    with pytest.raises(TypeError):
        driver.do(queue.renew(old, 60, saved=object()))


def test_a_released_message_says_where_it_is(driver: Driver) -> None:
    """When it is visible again, or why it was poisoned."""
    script = Script(results({"id": ID, "visible_at_ms": 9, "poisoned": "max_failures"}))
    released = driver.do(driver.client(script).queue("jobs").release(LeaseRef(ID, "r")))
    assert released == Released(ID, 9, "max_failures")


def test_a_view_shows_the_life_of_a_message(driver: Driver) -> None:
    """Nested parts are models, and a body that was not asked for is empty."""
    queue = driver.client(Script(answer(VIEW))).queue("jobs")
    view = driver.do(queue.get(ID))
    assert (view.state, view.queue, view.why) == ("leased", "jobs", "It is on a lease.")
    assert view.lease.holder == "me"
    assert view.attempts == (
        Attempt(
            number=1, leased_at_ms=1, ended_at_ms=2, outcome="failed", error=ErrorReport("boom")
        ),
    )
    assert view.poisoned == Poisoning("jobs", "failures", 9)
    assert view.properties == {"a": "b"}
    assert view.priority == 3
    bare = {name: value for name, value in VIEW.items() if name != "body"}
    view = driver.do(driver.client(Script(answer(bare))).queue("jobs").get(ID))
    assert (view.body, view.body_bytes) == (b"", 6)


def test_a_large_body_that_is_not_there_is_not_an_empty_one(driver: Driver) -> None:
    """Looking at such a message says why its body is left out, and how large it is."""
    lacking = {"body": None, "body_problem": "missing", "body_bytes": 300_000}
    view = driver.do(driver.client(Script(answer(VIEW | lacking))).queue("jobs").get(ID))
    assert (view.body, view.body_problem, view.body_bytes) == (b"", "missing", 300_000)
    shown = {name: value for name, value in RECEIVED.items() if name not in {"receipt", "fence"}}
    script = Script(answer({"messages": [shown | lacking, shown]}))
    first, second = driver.do(driver.client(script).queue("jobs").peek(2))
    assert (first.body, first.body_problem, first.body_bytes) == (b"", "missing", 300_000)
    assert (second.body_problem, second.body_bytes) == (None, 6)
    assert receive(driver, RECEIVED).body_bytes == 6


def test_progress_of_a_lease_is_shown(driver: Driver) -> None:
    """What the holder has reported is part of the lease."""
    lease = {"since_ms": 1, "until_ms": 2, "progress": {"fraction": 0.5, "at_ms": 3}}
    view = driver.do(driver.client(Script(answer(VIEW | {"lease": lease}))).queue("j").get(ID))
    assert view.lease.progress == Progress(0.5, None, 3)


def test_a_queue_is_described(driver: Driver) -> None:
    """Settings, counts and activity are models; what is left out is None."""
    content = QUEUE | {"counts": COUNTS, "activity": {"since_ms": 1, "sent": 4}}
    info = driver.do(driver.client(Script(answer(content))).queue("jobs").info())
    assert info.settings.failure_policy.max_failures == 3
    assert info.settings.failure_policy.backoff.kind == "fixed"
    assert info.settings.adaptive.cap_s == 60
    assert (info.counts.total, info.counts.oldest_age_s) == (10, {"visible": 1.25})
    assert (info.activity.sent, info.activity.received) == (4, 0)
    info = driver.do(driver.client(Script(answer(QUEUE))).queue("jobs").info())
    assert (info.counts, info.activity, info.metadata) == (None, None, {"team": "a"})


def test_a_job_is_waited_for(driver: Driver) -> None:
    """The job is looked at until it is over, and each look is reported."""
    states = ["running", "canary", "done"]
    script = Script(*[answer(JOB | {"state": state}) for state in states])
    seen: list[str] = []
    job = driver.do(
        driver.client(script).wait_for_job(
            "j1", on_progress=lambda job: seen.append(job.state), poll_s=0
        )
    )
    assert job.state == "done"
    assert seen == states


@pytest.mark.parametrize("code", CODES)
def test_each_code_has_its_class(driver: Driver, code: str) -> None:
    """A refusal is an exception of the class that its code has, with the facts as attributes."""
    status, kind = CODES[code]
    reply = problem(code, status, field="$.x", value=9, minimum=1, maximum=7, remedy="Try less.")
    with pytest.raises(ServerProblem) as caught:
        driver.do(driver.client(Script(reply), retries=NO_RETRIES).queue("jobs").info())
    error = caught.value
    assert type(error) is kind
    assert (error.code, error.status, error.detail) == (code, status, "D")
    assert (error.field, error.value, error.minimum, error.maximum) == ("$.x", 9, 1, 7)
    assert error.request_id == "r-1"
    assert str(error) == f"{code}: D (at $.x) Try less."


def test_facts_of_single_codes(driver: Driver) -> None:
    """Who holds the message, why the lease is lost, how long to wait."""

    def error_of(reply: httpx.Response) -> Any:
        client = driver.client(Script(reply))
        with pytest.raises(ServerProblem) as caught:
            driver.do(client.queue("jobs").info())
        return caught.value

    leased = error_of(problem("message-leased", 409, holder="me", until_ms=5))
    assert (leased.holder, leased.until_ms) == ("me", 5)
    assert error_of(problem("lease-lost", 409, reason="lapsed")).reason == "lapsed"
    assert error_of(problem("session-over", 409, state="ended")).state == "ended"
    assert error_of(problem("stale-token", 409, token=8)).token == 8
    assert error_of(problem("claim-out-of-turn", 409, expected=4)).expected == 4
    assert error_of(problem("chunk-out-of-turn", 409, expected=0)).expected == 0
    assert error_of(problem("claim-settled", 409, last_settled=3)).last_settled == 3
    assert error_of(problem("claim-lapsed", 409, until_ms=5)).until_ms == 5
    broken = error_of(problem("claim-broken", 409, size=9, lost=2))
    assert (broken.size, broken.lost) == (9, 2)
    full = error_of(problem("store-full", 503, retry_after_s=0))
    assert (full.retry_after_s, full.outcome_unknown) == (0, False)
    failed = error_of(problem("store-failed", 503, headers={"retry-after": "0"}))
    assert (failed.retry_after_s, failed.outcome_unknown) == (0, True)
    date = {"retry-after": "Sat, 21 Nov 2026 00:17:51 GMT"}
    assert error_of(problem("stopping", 503, headers=date)).retry_after_s is None


def test_items_of_a_batch_have_their_own_results(driver: Driver) -> None:
    """A refused item is an exception among the results, and is not raised."""
    lost = refused("lease-lost", reason="superseded", field="$.items[1].receipt")
    items = [LeaseRef("1", "a"), LeaseRef("2", "b")]

    def queue(*made: dict[str, Any]) -> Any:
        return driver.client(Script(results(*made))).queue("jobs")

    done = driver.do(queue({"id": "1"}, lost).complete_many(items))
    assert done[0] is None
    assert isinstance(done[1], LeaseLost)
    assert (done[1].reason, done[1].status) == ("superseded", 409)
    renewed = driver.do(queue({"id": "1", "receipt": "n"}, lost).renew_many(items, 5))
    assert renewed[0] == LeaseRef("1", "n")
    assert isinstance(renewed[1], LeaseLost)
    renewals = [Renewal(items[0], 5, saved={"frame": 1}), Renewal(items[1], 7)]
    each = driver.do(queue({"id": "1", "receipt": "n"}, lost).renew_each(renewals))
    assert each[0] == LeaseRef("1", "n")
    assert isinstance(each[1], LeaseLost)
    released = driver.do(queue({"id": "1", "visible_at_ms": 4}, lost).release_many(items))
    assert released[0] == Released("1", 4)
    assert isinstance(released[1], LeaseLost)
    put = driver.do(queue(PUT_RESULT, refused("out-of-range", status=400)).put_many(["a", "b"]))
    assert isinstance(put[0], Sent)
    assert isinstance(put[1], errors.OutOfRange)


@pytest.mark.parametrize(
    ("method", "arguments"),
    [
        ("put", ("x",)),
        ("complete", (LeaseRef("1", "a"),)),
        ("renew", (LeaseRef("1", "a"), 5)),
        ("release", (LeaseRef("1", "a"),)),
        ("bury", (LeaseRef("1", "a"),)),
    ],
)
def test_the_only_item_refused_is_raised(
    driver: Driver, method: str, arguments: tuple[Any, ...]
) -> None:
    """Where one message was asked for, its refusal is the call's."""
    queue = driver.client(Script(results(refused("lease-lost")))).queue("jobs")
    with pytest.raises(LeaseLost):
        driver.do(getattr(queue, method)(*arguments))


def test_results_before_a_failure_are_kept(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """When a later request of a long list fails, the error has what was done before it."""
    monkeypatch.setattr("leasehold.client._calls.MAX_ITEMS", 1)
    item = LeaseRef("1", "a")
    for method, arguments, good in (
        ("put_many", (["a", "b"],), PUT_RESULT),
        ("complete_many", ([item, item],), {"id": "1"}),
        ("renew_many", ([item, item], 5), {"id": "1", "receipt": "n"}),
        ("renew_each", ([Renewal(item, 5)] * 2,), {"id": "1", "receipt": "n"}),
        ("release_many", ([item, item],), {"id": "1", "visible_at_ms": 4}),
        ("release_each", ([GiveBack(item)] * 2,), {"id": "1", "visible_at_ms": 4}),
    ):
        script = Script(results(good), problem("forbidden", 403))
        queue = driver.client(script).queue("jobs")
        with pytest.raises(errors.Forbidden) as caught:
            driver.do(getattr(queue, method)(*arguments))
        assert len(caught.value.results_so_far) == 1


@pytest.mark.parametrize(
    "reply",
    [
        httpx.Response(200, text="<html>", headers={"content-type": "text/html; charset=x"}),
        httpx.Response(404, text="<html>", headers={"content-type": "text/html"}),
        httpx.Response(302, headers={"location": "http://elsewhere.test/"}),
        httpx.Response(200),
        answer([]),
        answer({"name": "jobs"}),
        answer({"hello": "world"}, 404),
        answer("no such thing", 400),
    ],
)
def test_an_answer_of_something_else_is_told_apart(driver: Driver, reply: httpx.Response) -> None:
    """What is not the native API is named, with the address that answered."""
    with pytest.raises(errors.UnexpectedAnswer, match=r"http://127\.0\.0\.1:10001 answered"):
        driver.do(driver.client(Script(reply)).queue("jobs").info())


def test_results_that_do_not_fit_the_items_are_not_taken(driver: Driver) -> None:
    """Nobody could say which result belongs to which item."""
    with pytest.raises(errors.UnexpectedAnswer, match="1 results for 2 items"):
        driver.do(driver.client(Script(results(PUT_RESULT))).queue("jobs").put_many(["a", "b"]))


@pytest.mark.parametrize(
    "error",
    [
        ConnectionFailed("http://a", "refused", outcome_unknown=True),
        errors.UnexpectedAnswer("http://a", 200, "text/html"),
        LeaseLost(errors.Problem(code="lease-lost", reason="lapsed")),
        Unavailable(errors.Problem(code="stopping", status=503)),
    ],
)
def test_errors_travel_between_processes(error: LeaseholdClientError) -> None:
    """Pickling keeps the class, the text and the attributes."""
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert vars(copy) == vars(error)


def test_a_report_is_made_of_an_exception() -> None:
    """Type, text, and a fingerprint that is the same for the same failure."""

    def fail(text: str) -> ErrorReport:
        try:
            int(text)
        except ValueError as error:
            return ErrorReport.of(error)
        raise AssertionError

    first, second = fail("a"), fail("b")
    assert first.type == "ValueError"
    assert first.text.endswith("'a'")
    assert first.fingerprint == second.fingerprint
    assert ErrorReport.of(ValueError("a")).fingerprint != first.fingerprint
    assert ErrorReport.of(ValueError()).text == "ValueError"
    assert ErrorReport.of("text") == ErrorReport("text")
    assert ErrorReport.of(first) is first
    assert ErrorReport.of(LeaseLost(errors.Problem(code="c"))).type == (
        "leasehold.client.errors.LeaseLost"
    )
