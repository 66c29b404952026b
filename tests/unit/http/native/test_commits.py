"""Commits: several things in several queues, as one."""

from __future__ import annotations

from typing import Any

import pytest

from leasehold.domain.errors import StoreFull
from leasehold.domain.transactions import Committed, CommitTogether
from tests.unit.http.native.support import BASE, MESSAGES, Native

COMMIT = f"{BASE}/commit"
_EMPTY: dict[str, list[Any]] = {"send": [], "complete": [], "release": [], "renew": []}


@pytest.fixture
def leased(native: Native) -> dict[str, dict[str, Any]]:
    """Give four leased messages by their bodies, and another queue to send to."""
    native.send("PUT", f"{BASE}/queues/parcels")
    native.put_bodies("one", "two", "three", "four")
    received = native.post(f"{MESSAGES}/receive", {"max_messages": 4})["messages"]
    return {
        message["body"]: {"queue": "orders", "id": message["id"], "receipt": message["receipt"]}
        for message in received
    }


def _codes(answer: dict[str, Any]) -> dict[str, list[tuple[str, str] | None]]:
    return {
        name: [
            (each["error"]["code"], each["error"].get("field", "")) if "error" in each else None
            for each in answer[name]
        ]
        for name in _EMPTY
        if answer[name]
    }


def test_commit(native: Native, leased: dict[str, dict[str, Any]]) -> None:
    """Everything is carried out, and each item has its result in its own list."""
    made = {"queue": "parcels", "body": "staged", "dedup_key": "k"}
    staged = {"part": "", "chunk": 0, "messages": [made, made]}
    native.post(f"{BASE}/transactions/batch/stage", staged)
    now_ms = native.clock.now_ms()
    answer = native.post(
        COMMIT,
        {
            "send": [{"queue": "parcels", "body": "sent", "priority": 1}],
            "complete": [leased["one"]],
            "release": [{**leased["two"], "delay_s": 5}],
            "renew": [{**leased["three"], "visibility_timeout_s": 90}],
            "publish": ["batch"],
        },
    )
    assert (answer["already"], answer["published"], answer["failed"]) == (False, 1, 0)
    assert answer["duplicates"] == 1
    assert answer["send"][0]["inserted_at_ms"] == now_ms
    assert answer["complete"] == [{"id": leased["one"]["id"]}]
    assert answer["release"] == [{"id": leased["two"]["id"], "visible_at_ms": now_ms + 5_000}]
    assert answer["renew"][0]["visible_at_ms"] == now_ms + 90_000
    path = f"{BASE}/queues/parcels/messages/receive"
    received = native.post(path, {"max_messages": 9})["messages"]
    assert [message["body"] for message in received] == ["sent", "staged"]
    assert native.get(MESSAGES, "state=leased")["messages"][0]["id"] == leased["three"]["id"]


def test_a_name_is_used_once(native: Native, leased: dict[str, dict[str, Any]]) -> None:
    """A commit repeated under its name does nothing, and says so."""
    request = {
        "name": "order-7",
        "send": [{"queue": "parcels", "body": "x"}],
        "complete": [leased["one"]],
    }
    assert native.post(COMMIT, request)["already"] is False
    assert native.post(COMMIT, request) == {
        "already": True,
        "published": 0,
        "duplicates": 0,
        "settled": [],
        "failed": 0,
        **_EMPTY,
    }
    assert native.get(f"{BASE}/queues/parcels/counts")["visible"] == 1


def test_one_refused_item_keeps_all_from_being_done(
    native: Native, leased: dict[str, dict[str, Any]]
) -> None:
    """What the store refuses has its problem, the others are not done, and the name is free."""
    wrong = {**leased["two"], "receipt": leased["one"]["receipt"]}
    request = {
        "name": "n",
        "send": [{"queue": "parcels", "body": "x"}, {"queue": "nowhere", "body": "x"}],
        "complete": [leased["one"], wrong],
        "renew": [{**leased["three"], "visibility_timeout_s": 9}],
    }
    answer = native.post(COMMIT, request)
    assert _codes(answer) == {
        "send": [("not-done", "$.send[0]"), ("queue-not-found", "$.send[1]")],
        "complete": [("not-done", "$.complete[0]"), ("lease-lost", "$.complete[1].receipt")],
        "renew": [("not-done", "$.renew[0]")],
    }
    assert (answer["failed"], answer["published"], answer["already"]) == (5, 0, False)
    native.post(COMMIT, {"name": "n", "complete": [leased["one"]]})
    assert native.get(f"{BASE}/queues/parcels/counts")["visible"] == 0


def test_an_item_that_makes_no_sense(native: Native, leased: dict[str, dict[str, Any]]) -> None:
    """An item that the engine need not look at keeps all others from being done as well."""
    answer = native.post(
        COMMIT,
        {
            "send": [
                {"queue": "parcels", "body": "x", "delay_s": -1},
                {"queue": "parcels", "body": "x"},
                {"queue": "A_", "body": "x"},
            ],
            "complete": [leased["one"], {**leased["two"], "queue": "-"}],
            "release": [{**leased["three"], "delay_s": -1}],
            "renew": [{**leased["four"], "visibility_timeout_s": -1}],
        },
    )
    assert _codes(answer) == {
        "send": [
            ("out-of-range", "$.send[0].delay_s"),
            ("not-done", "$.send[1]"),
            ("invalid-queue-name", "$.send[2].queue"),
        ],
        "complete": [
            ("not-done", "$.complete[0]"),
            ("invalid-queue-name", "$.complete[1].queue"),
        ],
        "release": [("out-of-range", "$.release[0].delay_s")],
        "renew": [("out-of-range", "$.renew[0].visibility_timeout_s")],
    }
    assert answer["failed"] == 7
    assert not any(isinstance(each, CommitTogether) for each in native.commands)


def test_a_message_named_twice(native: Native, leased: dict[str, dict[str, Any]]) -> None:
    """One message can be acted on once in a commit."""
    answer = native.post(COMMIT, {"complete": [leased["one"]], "release": [leased["one"]]})
    assert _codes(answer)["release"] == [("named-twice", "$.release[0].id")]


def test_what_was_staged_must_be_there(native: Native, leased: dict[str, dict[str, Any]]) -> None:
    """A commit that publishes what is not there is refused as a whole."""
    answer = native.send("POST", COMMIT, {"complete": [leased["one"]], "publish": ["none"]})
    assert (answer.code, answer.json["value"]) == ("staged-not-found", "none")
    assert native.post(COMMIT, {"complete": [leased["one"]]})["failed"] == 0


def test_failures_of_the_server_are_plain_errors(
    native: Native, leased: dict[str, dict[str, Any]]
) -> None:
    """Where no item is to blame, the answer is no list of results."""
    perform = native.perform

    async def full(command: Any) -> Any:
        if isinstance(command, CommitTogether):
            return Committed((StoreFull(),))
        return await perform(command)

    native.change_services(perform=full)
    answer = native.send("POST", COMMIT, {"complete": [leased["one"]]})
    assert answer.code == "store-full"


@pytest.mark.parametrize(
    ("body", "code", "field"),
    [
        ({}, "invalid-request", "$"),
        ({"name": "n"}, "invalid-request", "$"),
        ({"name": "", "publish": ["x"]}, "invalid-request", "$.name"),
        ({"publish": ["."]}, "invalid-request", "$.publish[0]"),
        ({"complete": [{"id": "x", "receipt": "y"}]}, "invalid-request", "$.complete[0].queue"),
        (
            {
                "send": [{"queue": "orders", "body": "x"}] * 5_001,
                "complete": [{"queue": "orders", "id": "", "receipt": ""}] * 5_000,
            },
            "out-of-range",
            "$",
        ),
    ],
)
def test_limits_of_a_commit(native: Native, body: Any, code: str, field: str) -> None:
    """What is wrong with the request as a whole is a plain error."""
    answer = native.send("POST", COMMIT, body)
    assert (answer.code, answer.json["field"]) == (code, field)


def test_ten_thousand_items(native: Native) -> None:
    """A commit can have as many items as a batch, also where it is so large that they count."""
    commands: list[Any] = []

    async def done_before(command: Any) -> Any:
        commands.append(command)
        return Committed((), already=True)

    native.change_services(perform=done_before)
    request = {
        "send": [{"queue": "orders", "body": "x" * 100}] * 5_000,
        "complete": [{"queue": "orders", "id": "x" * 36, "receipt": "y" * 36}] * 5_000,
    }
    assert native.post(COMMIT, request)["already"]
    [command] = commands
    assert len(command.commands) == 10_000
    request["send"].append(request["send"][0])
    assert native.send("POST", COMMIT, request).json["field"] == "$"
