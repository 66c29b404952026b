"""What each method sends."""

from __future__ import annotations

import json
from typing import Any

import pytest

from leasehold.client import Filter, NewMessage, QueueNotFound, ReceivedMessage
from leasehold.client import _calls as calls
from leasehold.client.models import (
    NEXT_GROUP,
    ErrorReport,
    GiveBack,
    LeaseRef,
    Policy,
    Progress,
    Renewal,
)
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
    results,
)

A = "/v1/accounts/devstoreaccount1"
Q = f"{A}/queues/jobs"
M = f"{Q}/messages"
LEASED = LeaseRef(ID, "r1")
POLICY = {"id": "readers", "permission": "r"}
GROUPS = {
    "at_ms": 1,
    "total": 0,
    "waiting": 0,
    "in_flight": 0,
    "noisy": 0,
    "halted": 0,
    "groups": [],
}
HELD = {
    "hold": {"group_id": "a/b", "session": "s1", "holder": "w1", "fence": 3, "since_ms": 1},
    "state_base64": "YQ==",
}
RELEASED = {"id": ID, "visible_at_ms": 9}

# Method of the client or, from a dot on, of the handle; arguments; answer; what must be sent.
CASES: dict[str, tuple[str, tuple[Any, ...], dict[str, Any], object, str, str, object]] = {
    "list_queues": (
        *("list_queues", ("jo",), {"counts": True}, {"queues": [QUEUE], "next_after": None}),
        *("GET", f"{A}/queues?limit=1000&prefix=jo&counts=true", None),
    ),
    "create_queue": (
        *("create_queue", ("jobs",), {"metadata": {"a": "b"}}, QUEUE),
        *("PUT", Q, {"metadata": {"a": "b"}}),
    ),
    "delete_queue": ("delete_queue", ("jobs",), {}, None, "DELETE", Q, None),
    "get_job": ("get_job", ("j1",), {}, JOB, "GET", f"{A}/jobs/j1", None),
    "list_jobs": ("list_jobs", (), {}, {"jobs": [JOB]}, "GET", f"{A}/jobs?limit=100", None),
    "list_jobs of a queue": (
        *("list_jobs", ("jobs",), {"limit": 5}, {"jobs": [JOB]}),
        *("GET", f"{A}/jobs?limit=5&queue=jobs", None),
    ),
    "stop_job": ("stop_job", ("j1",), {}, JOB, "POST", f"{A}/jobs/j1/stop", {}),
    "create": (
        *(".create", (), {"settings": {"visibility_timeout_s": 60}}, QUEUE),
        *("PUT", Q, {"settings": {"visibility_timeout_s": 60}}),
    ),
    "delete": (".delete", (), {}, None, "DELETE", Q, None),
    "info": (".info", (), {}, QUEUE | {"counts": COUNTS}, "GET", Q, None),
    "update": (
        *(".update", (), {"settings": {"adaptive": None}}, QUEUE),
        *("PATCH", Q, {"settings": {"adaptive": None}}),
    ),
    "counts": (".counts", (), {}, COUNTS, "GET", f"{Q}/counts", None),
    "explain": (
        *(".explain", (), {}, {"sentence": "S", "code": "empty", "evidence": {"n": 1}}),
        *("GET", f"{Q}/explain", None),
    ),
    "groups": (
        *(".groups", (), {"order": "oldest", "limit": 5, "noisy": True, "halted": True}, GROUPS),
        *("GET", f"{Q}/groups?order=oldest&limit=5&noisy=true&halted=true", None),
    ),
    "group": (
        *(".group", ("order 1/a",), {}, {"at_ms": 1, "group": {"group_id": "a"}, "held": []}),
        *("GET", f"{Q}/groups/order%201%2Fa", None),
    ),
    "hold a group": (
        *(".hold_group", ("a/b",), {"session": "s1"}, HELD),
        *("POST", f"{Q}/groups/hold", {"session": "s1", "group_id": "a/b"}),
    ),
    "hold the next group": (
        *(".hold_group", (), {"session": "s1"}, {"hold": None, "state_base64": ""}),
        *("POST", f"{Q}/groups/hold", {"session": "s1"}),
    ),
    "receive of a group": (
        *(".receive", (3,), {"session": "s1", "group": "a"}, {"messages": []}),
        *("POST", f"{M}/receive", {"max_messages": 3, "session": "s1", "group_id": "a"}),
    ),
    "receive of the next group": (
        *(".receive", (3,), {"session": "s1", "group": NEXT_GROUP}, {"messages": []}),
        *("POST", f"{M}/receive", {"max_messages": 3, "session": "s1", "next_group": True}),
    ),
    "end a hold": (".end_hold", ("a/b",), {}, None, "DELETE", f"{Q}/groups/a%2Fb/hold", None),
    "policies": (".policies", (), {}, {"policies": [POLICY]}, "GET", f"{Q}/policies", None),
    "set policies": (
        *(".set_policies", ([Policy("readers", permission="r")],), {}, {"policies": [POLICY]}),
        *("PUT", f"{Q}/policies", {"policies": [POLICY]}),
    ),
    "halt a group": (
        *(".halt_group", ("a/b", "why"), {}, {"group_id": "a/b", "halt": {"since_ms": 1}}),
        *("POST", f"{Q}/groups/a%2Fb/halt", {"reason": "why"}),
    ),
    "resume a group": (
        *(".resume_group", ("a/b",), {}, {"group_id": "a/b", "halt": None}),
        *("POST", f"{Q}/groups/a%2Fb/resume", {}),
    ),
    "pause": (
        *(".pause", (), {"for_s": 60, "reason": "why"}, QUEUE),
        *("POST", f"{Q}/pause", {"for_s": 60, "reason": "why"}),
    ),
    "pause for ever": (".pause", (), {}, QUEUE, "POST", f"{Q}/pause", {}),
    "resume": (".resume", (), {}, QUEUE, "POST", f"{Q}/resume", {}),
    "put": (
        *(".put", ("hé",), {}, {"results": [PUT_RESULT]}),
        *("POST", M, {"messages": [{"body": "hé"}]}),
    ),
    "put with everything": (
        ".put",
        (b"\xff",),
        {
            "delay_s": 5,
            "time_to_live_s": -1,
            "priority": 1,
            "dedup_key": "k",
            "type": "t",
            "properties": {"a": "b"},
            "traceparent": "00-1",
        },
        {"results": [PUT_RESULT | {"duplicate": True}]},
        "POST",
        M,
        {
            "messages": [
                {
                    "body_base64": "/w==",
                    "delay_s": 5,
                    "time_to_live_s": -1,
                    "priority": 1,
                    "dedup_key": "k",
                    "type": "t",
                    "properties": {"a": "b"},
                    "traceparent": "00-1",
                }
            ]
        },
    ),
    "put_many": (
        *(".put_many", (["a", b"b", NewMessage("c", priority=1)],), {"atomic": True}),
        *({"results": [PUT_RESULT] * 3}, "POST", M),
        {
            "messages": [{"body": "a"}, {"body": "b"}, {"body": "c", "priority": 1}],
            "atomic": True,
        },
    ),
    "receive": (
        *(".receive", (), {}, {"messages": [RECEIVED]}),
        *("POST", f"{M}/receive", {"max_messages": 1}),
    ),
    "receive with everything": (
        *(".receive", (5,), {"visibility_timeout_s": 60, "wait_s": 2.5, "holder": "me"}),
        *({"messages": [], "paused": True}, "POST", f"{M}/receive"),
        {"max_messages": 5, "visibility_timeout_s": 60, "wait_s": 2.5, "holder": "me"},
    ),
    "peek": (
        *(".peek", (3,), {}, {"messages": [RECEIVED]}),
        *("POST", f"{M}/peek", {"max_messages": 3}),
    ),
    "renew": (
        *(".renew", (LEASED, 60), {}, {"results": [{"id": ID, "receipt": "r2"}]}),
        *("POST", f"{M}/renew"),
        {"items": [{"id": ID, "receipt": "r1", "visibility_timeout_s": 60}]},
    ),
    "renew with everything": (
        ".renew",
        (LEASED, 0),
        {"body": b"\xff", "progress": Progress(0.5, "half", 99), "saved": {"page": 3}},
        *({"results": [{"id": ID, "receipt": "r2"}]}, "POST", f"{M}/renew"),
        {
            "items": [
                {
                    "id": ID,
                    "receipt": "r1",
                    "visibility_timeout_s": 0,
                    "body_base64": "/w==",
                    "progress": {"fraction": 0.5, "note": "half"},
                    "saved": {"page": 3},
                }
            ]
        },
    ),
    "renew with nothing saved any more": (
        *(".renew", (LEASED, 60), {"saved": None}),
        *({"results": [{"id": ID, "receipt": "r2"}]}, "POST", f"{M}/renew"),
        {"items": [{"id": ID, "receipt": "r1", "visibility_timeout_s": 60, "saved": None}]},
    ),
    "give back each for its own reason": (
        ".release_each",
        (
            [
                GiveBack(LEASED),
                GiveBack(LEASED, "failed", 9, ErrorReport("bad", at_ms=5)),
            ],
        ),
        {},
        *({"results": [{"id": ID, "visible_at_ms": 4}] * 2}, "POST", f"{M}/release"),
        {
            "items": [
                {"id": ID, "receipt": "r1"},
                {
                    "id": ID,
                    "receipt": "r1",
                    "outcome": "failed",
                    "delay_s": 9,
                    "error": {"text": "bad"},
                },
            ]
        },
    ),
    "renew each in its own way": (
        *(".renew_each", ([Renewal(LEASED, 60), Renewal(LEASED, 9, saved=[1], body="b")],)),
        *({}, {"results": [{"id": ID, "receipt": "r2"}] * 2}, "POST", f"{M}/renew"),
        {
            "items": [
                {"id": ID, "receipt": "r1", "visibility_timeout_s": 60},
                {"id": ID, "receipt": "r1", "visibility_timeout_s": 9, "body": "b", "saved": [1]},
            ]
        },
    ),
    "complete": (
        *(".complete", (LEASED,), {}, {"results": [{"id": ID}]}),
        *("POST", f"{M}/complete", {"items": [{"id": ID, "receipt": "r1"}]}),
    ),
    "release": (
        *(".release", (LEASED,), {}, {"results": [RELEASED]}),
        *("POST", f"{M}/release", {"items": [{"id": ID, "receipt": "r1"}]}),
    ),
    "release with everything": (
        ".release",
        (LEASED,),
        {"outcome": "failed", "delay_s": 0, "error": ErrorReport("boom", "E", "f", 99)},
        {"results": [RELEASED]},
        "POST",
        f"{M}/release",
        {
            "items": [
                {
                    "id": ID,
                    "receipt": "r1",
                    "outcome": "failed",
                    "delay_s": 0,
                    "error": {"text": "boom", "type": "E", "fingerprint": "f"},
                }
            ]
        },
    ),
    "bury": (
        *(".bury", (LEASED, "bad"), {}, {"results": [RELEASED | {"poisoned": "buried"}]}),
        *("POST", f"{M}/release"),
        {
            "items": [
                {"id": ID, "receipt": "r1", "outcome": "buried", "error": {"text": "bad"}},
            ]
        },
    ),
    "inspect": (
        *(".inspect", (), {}, {"messages": [VIEW], "next_after": None}),
        *("GET", f"{M}?limit=100", None),
    ),
    "inspect with everything": (
        ".inspect",
        (),
        {
            "states": ["leased", "delayed"],
            "filter": Filter(
                states=("visible",),
                min_age_s=0.00001,
                max_age_s=60,
                min_dequeue_count=1,
                max_dequeue_count=2,
                holder="a b",
                message_type="t",
                group_id="g 1",
                reason="r",
                error="e&f",
                text="ü+",
                json_path="a[0].b",
                json_value=None,
            ),
            "page_size": 7,
            "body": False,
        },
        {"messages": [], "next_after": None},
        "GET",
        (
            f"{M}?limit=7&state=leased%2Cdelayed&min_age_s=0.000010&max_age_s=60&min_dequeue_count=1"
            "&max_dequeue_count=2&holder=a%20b&type=t&group=g%201&reason=r&error=e%26f&text=%C3%BC%2B"
            "&json_path=a%5B0%5D.b&json_value=null&body=false"
        ),
        None,
    ),
    "inspect one state": (
        *(".inspect", (), {"states": "leased"}, {"messages": [], "next_after": None}),
        *("GET", f"{M}?limit=100&state=leased", None),
    ),
    "get": (".get", (ID,), {}, VIEW, "GET", f"{M}/{ID}", None),
    "explain_message": (
        *(".explain_message", (ID,), {}, {"sentence": "S", "code": "leased"}),
        *("GET", f"{M}/{ID}/explain", None),
    ),
    "amend": (
        *(".amend", (ID,), {"delay_s": 0, "body": "x", "priority": 1, "force": True}, VIEW),
        *("PATCH", f"{M}/{ID}", {"delay_s": 0, "body": "x", "priority": 1, "force": True}),
    ),
    "amend the rest": (
        *(".amend", (ID,), {"time_to_live_s": -1, "properties": {}, "body": b"\xff"}, VIEW),
        *("PATCH", f"{M}/{ID}", {"time_to_live_s": -1, "properties": {}, "body_base64": "/w=="}),
    ),
    "remove": (".remove", (ID,), {}, None, "DELETE", f"{M}/{ID}", None),
    "remove with force": (
        *(".remove", (ID,), {"force": True}, None),
        *("DELETE", f"{M}/{ID}?force=true", None),
    ),
    "end_lease": (
        *(".end_lease", (ID, 5), {"reason": "stuck"}, VIEW),
        *("POST", f"{M}/{ID}/end-lease", {"delay_s": 5, "reason": "stuck"}),
    ),
    "purge": (".purge", (), {}, JOB, "POST", f"{Q}/purge", {}),
    "purge with everything": (
        *(".purge", (Filter(states=("visible",), json_value=[1]),), {"dry_run": True}, JOB),
        *("POST", f"{Q}/purge"),
        {"filter": {"states": ["visible"], "json_value": [1]}, "dry_run": True},
    ),
    "redrive": (
        *(".redrive", (), {"rate_per_s": 5, "canary": 2, "target": "q2", "wait_s": 3}, JOB),
        *("POST", f"{Q}/redrive"),
        {"rate_per_s": 5, "canary": 2, "target": "q2", "wait_s": 3},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_each_method_sends_what_the_api_takes(driver: Driver, name: str) -> None:
    """Path, query and JSON are those of the native API, defaults left out."""
    method, arguments, named, content, verb, target, expected = CASES[name]
    script = Script(answer({}, 204) if content is None else answer(content))
    client = driver.client(script)
    owner = client.queue("jobs") if method.startswith(".") else client
    driver.do(getattr(owner, method.lstrip("."))(*arguments, **named))
    assert len(script.requests) == 1
    assert script.last.method == verb
    assert script.last.url.raw_path.decode() == target
    if expected is None:
        assert script.last.content == b""
    else:
        assert script.sent == expected
        assert script.last.headers["content-type"] == "application/json"


def test_the_address_and_who_asks_are_sent(driver: Driver) -> None:
    """Host, agent and accepted type are there, and no compression is asked for."""
    script = Script(answer(QUEUE))
    driver.do(driver.client(script, url="http://queue.test:123").queue("jobs").info())
    headers = script.last.headers
    assert headers["host"] == "queue.test:123"
    assert headers["user-agent"].startswith("leasehold-python/")
    assert headers["accept"] == "application/json"
    assert headers["accept-encoding"] == "identity"


@pytest.mark.parametrize("name", ["", ".", ".."])
def test_a_name_that_would_lead_elsewhere_is_refused(driver: Driver, name: str) -> None:
    """An empty or dotted segment would address another resource than the one meant."""
    client = driver.client(Script())
    with pytest.raises(ValueError, match="cannot be the queue"):
        client.queue(name)
    with pytest.raises(ValueError, match="cannot be the message id"):
        driver.do(client.queue("jobs").get(name))


def test_any_character_of_a_name_is_escaped(driver: Driver) -> None:
    """A slash or a question mark in a name stays part of it."""
    script = Script(problem("queue-not-found", 404))
    with pytest.raises(QueueNotFound):
        driver.do(driver.client(script).queue("a/b?c#d%e ü").info())
    expected = f"{A}/queues/a%2Fb%3Fc%23d%25e%20%C3%BC".encode()
    assert script.last.url.raw_path == expected


@pytest.mark.parametrize("body", [{"a": 1}, None, 7])
def test_a_body_that_is_no_text_is_refused_before_sending(driver: Driver, body: Any) -> None:
    """The error says how to turn it into text."""
    script = Script()
    with pytest.raises(TypeError, match=r"json\.dumps"):
        driver.do(driver.client(script).queue("jobs").put(body))
    assert not script.requests


def test_one_text_is_not_put_letter_by_letter(driver: Driver) -> None:
    """A list was meant, or put."""
    with pytest.raises(TypeError, match="see put"):
        driver.do(driver.client(Script()).queue("jobs").put_many("hello"))


def test_many_messages_are_split(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request has so many items at most, and results come in the order of the items."""
    monkeypatch.setattr(calls, "MAX_ITEMS", 2)
    made = [PUT_RESULT | {"id": str(number)} for number in range(5)]
    script = Script(results(*made[:2]), results(*made[2:4]), results(*made[4:]))
    done = driver.do(driver.client(script).queue("jobs").put_many(str(n) for n in range(5)))
    assert [sent.id for sent in done] == ["0", "1", "2", "3", "4"]
    bodies = [
        [message["body"] for message in json.loads(request.content)["messages"]]
        for request in script.requests
    ]
    assert bodies == [["0", "1"], ["2", "3"], ["4"]]


def test_large_messages_are_split_by_size(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request goes on in another one before it is too large."""
    monkeypatch.setattr(calls, "MAX_REQUEST_BYTES", 250)
    script = Script(results(PUT_RESULT, PUT_RESULT), results(PUT_RESULT))
    driver.do(driver.client(script).queue("jobs").put_many(["x" * 100] * 3))
    assert len(script.requests) == 2


def test_all_or_nothing_is_never_split(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """An atomic list goes in one request, or is refused by the server."""
    monkeypatch.setattr(calls, "MAX_ITEMS", 2)
    script = Script(results(*[PUT_RESULT] * 3))
    driver.do(driver.client(script).queue("jobs").put_many(["a", "b", "c"], atomic=True))
    assert len(script.requests) == 1


@pytest.mark.parametrize("method", ["put_many", "complete_many", "release_many", "release_each"])
def test_nothing_to_do_asks_nothing(driver: Driver, method: str) -> None:
    """An empty list makes no request."""
    script = Script()
    assert driver.do(getattr(driver.client(script).queue("jobs"), method)([])) == []
    assert not script.requests


def test_pages_are_fetched_until_the_last(driver: Driver) -> None:
    """Listing goes on where the page before ended, over empty pages too."""
    pages = [
        {"queues": [QUEUE | {"name": "a"}], "next_after": "a"},
        {"queues": [], "next_after": "b c"},
        {"queues": [QUEUE | {"name": "d"}], "next_after": None},
    ]
    script = Script(*map(answer, pages))
    found = driver.do(driver.client(script).list_queues())
    assert [queue.name for queue in found] == ["a", "d"]
    assert [request.url.params.get("after") for request in script.requests] == [None, "a", "b c"]


def test_messages_are_inspected_page_by_page(driver: Driver) -> None:
    """Inspection follows the markers too."""
    script = Script(
        answer({"messages": [VIEW], "next_after": "m1"}),
        answer({"messages": [VIEW | {"id": "2"}], "next_after": None}),
    )
    found = driver.do(driver.client(script).queue("jobs").inspect())
    assert [view.id for view in found] == [ID, "2"]
    assert script.last.url.params["after"] == "m1"


def test_a_message_as_received_can_be_completed(driver: Driver) -> None:
    """What receive returns is what the other methods take."""
    script = Script(answer({"messages": [RECEIVED]}), results({"id": ID}))
    queue = driver.client(script).queue("jobs")
    (message,) = driver.do(queue.receive())
    assert isinstance(message, ReceivedMessage)
    assert driver.do(queue.complete(message)) is None
    assert script.sent == {"items": [{"id": ID, "receipt": "r1"}]}
