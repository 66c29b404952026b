"""Notes on members, and claims that are settled by publishing, as JSON."""

from __future__ import annotations

from typing import Any

import pytest

from leasehold.domain.claims import ExemptMembers
from leasehold.domain.model import Outcome
from tests.unit.http.native.support import BASE, MESSAGES, QUEUE, Native

STREAM = f"{QUEUE}/streams/daily"
EXEMPT = f"{STREAM}/claims/1/exemptions"
BIND = f"{STREAM}/claims/1/bind"
TRANSACTION = f"{BASE}/transactions/batch-1"


@pytest.fixture
def token(native: Native) -> int:
    """That of a stream with a claim of three messages."""
    native.put_bodies("one", "two", "three")
    token: int = native.send("PUT", STREAM).json["token"]
    native.send("PUT", f"{STREAM}/claims/1", {"token": token, "limit": 100, "lease_s": 60})
    return token


def _published(settled: list[dict[str, Any]], *, already: bool = False) -> dict[str, Any]:
    return {"rows": 1, "duplicates": 0, "already": already, "settled": settled}


def members(native: Native) -> list[str]:
    """Return the ids of the members."""
    page = native.get(f"{STREAM}/claims/1/messages")
    return [message["id"] for message in page["messages"]]


def test_noting_says_what_was_asked(native: Native, token: int) -> None:
    """All of it reaches the engine, and the claim tells how many are noted."""
    (first, second, _) = members(native)
    exemptions = [
        {"id": first, "outcome": "buried", "error": {"text": "boom", "type": "E"}},
        {"id": second, "outcome": "failed", "delay_s": 9},
    ]
    noted = native.post(EXEMPT, {"token": token, "exemptions": exemptions})
    assert (noted["number"], noted["noted"], noted["transaction"]) == (1, 2, None)
    [command] = [each for each in native.commands if isinstance(each, ExemptMembers)]
    assert (command.token, command.number, command.stream) == (token, 1, "daily")
    buried, failed = command.exemptions
    assert buried.error is not None
    assert (buried.number, buried.message_id, buried.outcome, buried.delay_s) == (
        *(1, first, Outcome.BURIED, None),
    )
    assert (buried.error.text, buried.error.type) == ("boom", "E")
    assert (failed.outcome, failed.delay_s, failed.error) == (Outcome.FAILED, 9, None)
    settled = native.post(f"{STREAM}/settle", {"token": token, "upto": 1})
    assert (settled["completed"], settled["exempted"]) == (1, 2)


def test_bound_and_published(native: Native, token: int) -> None:
    """The publishing tells what it has settled; whoever comes later is told with what it was."""
    staged = {"part": "", "chunk": 0, "messages": [{"queue": "orders", "body": "made"}]}
    native.post(f"{TRANSACTION}/stage", staged)
    bound = native.post(BIND, {"token": token, "transaction": "batch-1"})
    assert bound["transaction"] == "batch-1"
    claim = {"queue": "orders", "stream": "daily", "number": 1}
    assert native.get(TRANSACTION)["claims"] == [claim]
    done = {
        "queue": "orders",
        "stream": "daily",
        "last_settled": 1,
        "completed": 3,
        "exempted": 0,
        "lost": 0,
    }
    assert native.post(f"{TRANSACTION}/publish") == _published([done])
    assert native.post(f"{TRANSACTION}/publish") == _published([], already=True)
    assert native.get(STREAM)["settled_with"] == "batch-1"
    assert native.receive_one()["body"] == "made"
    for answer in (
        native.send("POST", BIND, {"token": token, "transaction": "batch-1"}),
        native.send("GET", f"{STREAM}/claims/1"),
    ):
        assert answer.code == "claim-settled"
        assert (answer.json["last_settled"], answer.json["settled_with"]) == (1, "batch-1")


def test_a_commit_tells_what_it_has_settled(native: Native, token: int) -> None:
    """That which is bound to its name."""
    native.post(BIND, {"token": token, "transaction": "batch-1"})
    request = {"name": "batch-1", "send": [{"queue": "orders", "body": "made"}]}
    [done] = native.post(f"{BASE}/commit", request)["settled"]
    assert (done["stream"], done["completed"]) == ("daily", 3)


def test_a_settling_tells_of_streams_beside(native: Native, token: int) -> None:
    """Those that what it publishes was bound to."""
    native.post(BIND, {"token": token, "transaction": "batch-1"})
    native.put_bodies("four")
    other = native.send("PUT", f"{QUEUE}/streams/other").json["token"]
    opening = {"token": other, "limit": 1, "lease_s": 60}
    native.send("PUT", f"{QUEUE}/streams/other/claims/1", opening)
    settle = {"token": other, "upto": 1, "publish": ["batch-1"]}
    [done] = native.post(f"{QUEUE}/streams/other/settle", settle)["beside"]
    assert (done["stream"], done["completed"]) == ("daily", 3)


def test_a_fenced_publishing_is_refused(native: Native, token: int) -> None:
    """With the token that counts now; nothing was done."""
    native.post(BIND, {"token": token, "transaction": "batch-1"})
    newer = native.send("PUT", STREAM).json["token"]
    answer = native.send("POST", f"{TRANSACTION}/publish")
    assert (answer.status, answer.code, answer.json["token"]) == (409, "stale-token", newer)
    assert native.get(TRANSACTION)["state"] == "staged"


@pytest.mark.parametrize(
    ("request_", "code", "field"),
    [
        ({"token": 0}, "out-of-range", "$.token"),
        ({"exemptions": []}, "out-of-range", "$.exemptions"),
        ({"exemptions": None}, "invalid-request", "$.exemptions"),
        ({"exemptions": [{"id": "x"}]}, "invalid-request", "$.exemptions[0]"),
        (
            {"exemptions": [{"id": "x", "outcome": "lapsed"}]},
            "invalid-request",
            "$.exemptions[0].outcome",
        ),
        (
            {"exemptions": [{"id": "x", "outcome": "failed", "number": 1}]},
            "invalid-request",
            "$.exemptions[0]",
        ),
        (
            {"exemptions": [{"id": "x", "outcome": "failed", "delay_s": -1}]},
            "out-of-range",
            "$.exemptions[0].delay_s",
        ),
        (
            {"exemptions": [{"id": "", "outcome": "failed"}] * 10_001},
            "out-of-range",
            "$.exemptions",
        ),
        ({"exemptions": [{"id": "x", "outcome": "failed"}]}, "member-not-found", "$.exemptions"),
    ],
)
def test_limits_of_noting(
    native: Native, token: int, request_: dict[str, Any], code: str, field: str
) -> None:
    """What is wrong is told with its place."""
    good = {"token": token, "exemptions": [{"id": "x", "outcome": "failed"}]}
    answer = native.send("POST", EXEMPT, {**good, **request_})
    assert answer.code == code
    assert answer.json["field"].startswith(field)


@pytest.mark.parametrize(
    ("request_", "code", "field"),
    [
        ({"token": 0}, "out-of-range", "$.token"),
        ({"transaction": ""}, "invalid-request", "$.transaction"),
        ({"transaction": "a b"}, "invalid-request", "$.transaction"),
        ({"transaction": "x" * 257}, "invalid-request", "$.transaction"),
        ({"transaction": None}, "invalid-request", "$.transaction"),
    ],
)
def test_limits_of_binding(
    native: Native, token: int, request_: dict[str, Any], code: str, field: str
) -> None:
    """The same."""
    answer = native.send("POST", BIND, {"token": token, "transaction": "batch-1", **request_})
    assert (answer.code, answer.json["field"]) == (code, field)


def test_nothing_is_changed_by_what_is_refused(native: Native, token: int) -> None:
    """A claim that is not there, or is somebody else's."""
    native.send("PUT", STREAM)
    for path, request in (
        (EXEMPT, {"token": token, "exemptions": [{"id": "x", "outcome": "failed"}]}),
        (BIND, {"token": token, "transaction": "batch-1"}),
    ):
        assert native.send("POST", path, request).code == "stale-token"
    assert native.send("GET", TRANSACTION).code == "staged-not-found"
    assert native.get(f"{MESSAGES}", "state=leased")["messages"]
