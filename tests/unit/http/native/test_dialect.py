"""Paths, methods, headers, failures of the server."""

from __future__ import annotations

import pytest
import structlog.testing

from leasehold.domain.commands import GetQueue, ListQueues
from leasehold.domain.errors import (
    NotReplicated,
    OutcomeUnknown,
    Overloaded,
    Stopping,
    StoreFailed,
    StoreFull,
    Unavailable,
)
from leasehold.http.native import MAX_REQUEST_BODY_BYTES
from tests.unit.http.native.support import ACCOUNT, BASE, MESSAGES, QUEUE, Native


@pytest.mark.parametrize(
    "path",
    [
        "/v1/",
        "/v1/nothing",
        "/v1/accounts",
        f"/v1/accounts/{ACCOUNT}",
        "/v1/accounts//queues",
        f"{BASE}/queues/",
        f"{QUEUE}/",
        f"{BASE}/queues//messages",
        f"{QUEUE}/nothing",
        f"{MESSAGES}/",
        f"{MESSAGES}/id/nothing",
        f"{MESSAGES}/id/explain/more",
        "/v1/openapi.json/",
        "/v1/problems",
        "/V1/openapi.json",
    ],
)
def test_unknown_paths(native: Native, path: str) -> None:
    """A path that is none of the protocol's needs no credentials to be told so."""
    answer = native.send("GET", path, key=None)
    assert (answer.status, answer.code) == (404, "no-such-route")


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("HEAD", QUEUE, "DELETE, GET, PATCH, PUT"),
        ("OPTIONS", f"{BASE}/queues", "GET"),
        ("PUT", MESSAGES, "GET, POST"),
        ("GET", f"{MESSAGES}/receive", "POST"),
        ("BREW", "/v1/openapi.json", "GET"),
    ],
)
def test_methods(native: Native, method: str, path: str, allowed: str) -> None:
    """A method that the path does not take is met with those it does."""
    answer = native.send(method, path, key=None)
    assert (answer.status, answer.headers["allow"]) == (405, allowed)
    assert answer.json is None if method == "HEAD" else answer.code == "method-not-allowed"


def test_percent_encoding(native: Native) -> None:
    """A path is decoded once, part by part."""
    assert native.get(f"{BASE}/queues/%6frders")["name"] == "orders"
    assert native.send("GET", f"{BASE}/queues/a%2fb").code == "invalid-queue-name"
    for broken in ("%", "%zz", "%ff", "é"):
        assert native.send("GET", f"{BASE}/queues/{broken}").code == "invalid-request"


def test_headers(native: Native) -> None:
    """Every answer has an id of its own; what is read is not to be kept."""
    first, second = native.send("GET", QUEUE), native.send("GET", QUEUE)
    assert first.headers["request-id"] != second.headers["request-id"]
    assert first.headers["content-type"] == "application/json"
    assert first.headers["cache-control"] == "no-store"
    gone = native.send("DELETE", QUEUE)
    assert set(gone.headers) == {"request-id"}


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (Overloaded(), "overloaded"),
        (Stopping(), "stopping"),
        (StoreFull(), "store-full"),
        (Unavailable(), "store-unavailable"),
        (OutcomeUnknown(), "outcome-unknown"),
        (NotReplicated(), "outcome-unknown"),
        (StoreFailed(), "store-failed"),
    ],
)
def test_unavailable(native: Native, error: Exception, code: str) -> None:
    """What may work later says when to try again."""
    native.failures = {ListQueues: error}
    answer = native.send("GET", f"{BASE}/queues")
    assert (answer.status, answer.code) == (503, code)
    assert (answer.headers["retry-after"], answer.json["retry_after_s"]) == ("1", 1)


def test_unexpected_failure(native: Native) -> None:
    """A mistake of the server is told without its particulars, and logged without values."""
    native.failures = {GetQueue: RuntimeError("a secret")}
    with structlog.testing.capture_logs() as logs:
        answer = native.send("GET", QUEUE)
    assert (answer.status, answer.code) == (500, "internal-error")
    [entry] = logs
    assert entry["action"] == "native.internal_error"
    assert entry["request_id"] == answer.headers["request-id"]
    assert (entry["operation"], entry["error"]) == ("native-get-queue", "RuntimeError")
    assert "secret" not in str(logs) + str(answer.json)


def test_request_too_large(native: Native) -> None:
    """A body that was not read is refused, after the credentials were looked at."""
    answer = native.send("POST", MESSAGES, too_large=True)
    assert (answer.status, answer.code) == (413, "request-too-large")
    assert answer.json["limit"] == MAX_REQUEST_BODY_BYTES == 64 * 1024 * 1024
    assert native.send("POST", MESSAGES, too_large=True, key=None).code == "unauthenticated"


def test_observed(native: Native) -> None:
    """Each request is counted by the name of its route."""
    native.observed.clear()
    native.send("GET", QUEUE)
    native.send("GET", QUEUE, key=None)
    native.send("GET", "/v1/nothing")
    native.send("POST", MESSAGES, b"?")
    assert native.observed == [
        ("native-get-queue", 200),
        ("native-get-queue", 401),
        ("native-unknown", 404),
        ("native-put", 400),
    ]
