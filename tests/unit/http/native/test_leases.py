"""Renew, complete, release; and requests that cannot be read."""

from __future__ import annotations

import json
from typing import Any

import pytest

from leasehold.domain.commands import Complete
from leasehold.domain.limits import NATIVE
from tests.unit.http.native.support import MESSAGES, QUEUE, Native, errors_of_items


def _named(message: dict[str, Any], **members: Any) -> dict[str, Any]:
    return {"id": message["id"], "receipt": message["receipt"], **members}


def test_renew(native: Native) -> None:
    """A renewal moves the end of the lease, and its receipt replaces the old one."""
    native.put_bodies("x")
    message = native.receive_one()
    progress = {"fraction": 0.5, "note": "n" * 2_000}
    item = _named(message, visibility_timeout_s=100, json={"a": 1}, progress=progress)
    [renewed] = native.post(f"{MESSAGES}/renew", {"items": [item]})["results"]
    assert renewed["id"] == message["id"]
    assert renewed["visible_at_ms"] == native.clock.now_ms() + 100_000
    view = native.get(f"{MESSAGES}/{message['id']}")
    assert view["body"] == '{"a":1}'
    assert view["lease"]["progress"] == {
        "fraction": 0.5,
        "note": "n" * 1_024,
        "at_ms": native.clock.now_ms(),
    }
    answer = native.post(f"{MESSAGES}/complete", {"items": [_named(message)]})
    assert answer["results"][0]["error"]["reason"] == "superseded"
    answer = native.post(f"{MESSAGES}/complete", {"items": [_named(renewed)]})
    assert answer == {"results": [{"id": message["id"]}], "failed": 0}


def test_a_renewal_sent_again_is_answered(native: Native) -> None:
    """If the answer to a renewal gets lost, the receipt that it was made with tells the new one."""
    native.put_bodies("x")
    message = native.receive_one()
    item = _named(message, visibility_timeout_s=100, saved={"frame": 1})
    [lost] = native.post(f"{MESSAGES}/renew", {"items": [item]})["results"]
    plain = _named(message, visibility_timeout_s=50)
    for again in (item, plain):
        [told] = native.post(f"{MESSAGES}/renew", {"items": [again]})["results"]
        assert told == lost
    for other in (
        {**item, "saved": {"frame": 2}},
        {**plain, "body": "new"},
        {**plain, "visibility_timeout_s": 0},
    ):
        [refused] = native.post(f"{MESSAGES}/renew", {"items": [other]})["results"]
        assert refused["error"]["reason"] == "superseded"
    answer = native.post(f"{MESSAGES}/complete", {"items": [_named(lost)]})
    assert answer["failed"] == 0


@pytest.mark.parametrize(
    ("members", "code", "field"),
    [
        ({"visibility_timeout_s": -1}, "out-of-range", ".visibility_timeout_s"),
        ({"visibility_timeout_s": 604_801}, "out-of-range", ".visibility_timeout_s"),
        ({"visibility_timeout_s": 604_800}, "visibility-past-expiry", ""),
        ({"progress": {"fraction": 1.5}}, "out-of-range", ".progress.fraction"),
        ({"body": "x", "json": 1}, "invalid-request", ""),
        ({"receipt": "x"}, "receipt-malformed", ".receipt"),
        ({"receipt": "A" * 36}, "lease-lost", ".receipt"),
        ({"id": "x"}, "message-not-found", ".id"),
    ],
)
def test_refused_renewals(native: Native, members: dict[str, Any], code: str, field: str) -> None:
    """A renewal that will not do is refused with its place; the others are done."""
    native.put_bodies("one", "two", time_to_live_s=3_600)
    one, two = native.post(f"{MESSAGES}/receive", {"max_messages": 2})["messages"]
    items = [
        {**_named(one, visibility_timeout_s=1), **members},
        _named(two, visibility_timeout_s=1),
    ]
    answer = native.post(f"{MESSAGES}/renew", {"items": items})
    assert errors_of_items(answer) == [(code, f"$.items[0]{field}"), None]


def test_complete_twice_in_one_request(native: Native) -> None:
    """A message named twice is done once; all or nothing refuses that beforehand."""
    native.put_bodies("one", "two")
    one, two = native.post(f"{MESSAGES}/receive", {"max_messages": 2})["messages"]
    request: dict[str, Any] = {"items": [_named(one), _named(one)]}
    answer = native.post(f"{MESSAGES}/complete", request)
    assert errors_of_items(answer) == [None, ("message-not-found", "$.items[1].id")]
    request = {"items": [_named(two), _named(two)], "atomic": True}
    answer = native.post(f"{MESSAGES}/complete", request)
    assert errors_of_items(answer) == [("not-done", "$.items[0]"), ("named-twice", "$.items[1].id")]


def test_complete_is_one_plain_command(native: Native) -> None:
    """A single item goes to the engine as itself, to share its statement with other requests'."""
    native.put_bodies("x")
    native.post(f"{MESSAGES}/complete", {"items": [_named(native.receive_one())]})
    assert isinstance(native.commands[-1], Complete)


def test_release(native: Native) -> None:
    """A message given back can be received again, with a delay if asked for."""
    native.put_bodies("one", "two")
    one, two = native.post(f"{MESSAGES}/receive", {"max_messages": 2})["messages"]
    items = [_named(one), _named(two, delay_s=9, outcome="interrupted")]
    now_ms = native.clock.now_ms()
    assert native.post(f"{MESSAGES}/release", {"items": items})["results"] == [
        {"id": one["id"], "visible_at_ms": now_ms},
        {"id": two["id"], "visible_at_ms": now_ms + 9_000},
    ]


def test_failures_lead_to_the_poison_queue(native: Native) -> None:
    """A report of an error is kept, cut to a length; the last failure moves the message."""
    settings = {"failure_policy": {"max_failures": 1}}
    native.send("PATCH", QUEUE, {"settings": settings})
    native.put_bodies("x")
    message = native.receive_one()
    error = {"text": "boom" * 5_000, "type": "E", "fingerprint": "f" * 2_000}
    item = _named(message, outcome="failed", error=error)
    [result] = native.post(f"{MESSAGES}/release", {"items": [item]})["results"]
    assert result["poisoned"] == "max_failures"
    view = native.get(f"{MESSAGES}/{message['id']}")
    assert (view["state"], view["queue"]) == ("poisoned", "orders-poison")
    assert view["last_error"]["text"] == "boom" * 2_048
    assert view["last_error"]["fingerprint"] == "f" * 1_024


def test_bury(native: Native) -> None:
    """A worker can send a message to the poison queue by itself."""
    native.put_bodies("x")
    items = [_named(native.receive_one(), outcome="buried")]
    [result] = native.post(f"{MESSAGES}/release", {"items": items})["results"]
    assert result["poisoned"] == "buried"


def test_refused_release(native: Native) -> None:
    """A delay outside its range is refused for that item."""
    native.put_bodies("x")
    items = [_named(native.receive_one(), delay_s=NATIVE.delay_s[1] + 1)]
    answer = native.post(f"{MESSAGES}/release", {"items": items})
    assert errors_of_items(answer) == [("out-of-range", "$.items[0].delay_s")]


# --- requests that cannot be read ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("", b"", "$.messages"),
        ("", b"{}", "$.messages"),
        ("", b"[", "$"),
        ("", b'{"messages":[]} x', "$"),
        ("", b"\xff", "$"),
        ("", b'{"messages":[{"body":"\xff"}]}', "$"),
        ("", b'{"messages":[{"properties":{"\xff":""}}]}', "$"),
        ("", b'{"messages":[{"body":"\\ud800"}]}', "$"),
        ("", b'{"messages":[{"json":' + b"[" * 100_000, "$"),
        ("", b"null", "$"),
        ("", b"[]", "$"),
        ("", b'{"messages":[{"body":1}]}', "$.messages[0].body"),
        ("", b'{"messages":[{"delay_s":1.5}]}', "$.messages[0].delay_s"),
        ("", b'{"messages":[{"delay_s":true}]}', "$.messages[0].delay_s"),
        ("", b'{"messages":[{"properties":{"a":1}}]}', "$.messages[0].properties[...]"),
        ("", b'{"messages":[{"delay":1}]}', "$.messages[0].delay"),
        ("", b'{"messages":[],"extra":1}', "$.extra"),
        ("/receive", b'{"max_message":1}', "$.max_message"),
        ("/receive", b'{"wait_s":"1"}', "$.wait_s"),
        ("/receive", b'{"wait_s":NaN}', "$"),
        ("/receive", b'{"wait_s":1e999}', "$.wait_s"),
        ("/renew", b'{"items":[{"id":"","receipt":""}]}', "$.items[0].visibility_timeout_s"),
        ("/release", b'{"items":[{"id":"","receipt":"","outcome":"x"}]}', "$.items[0].outcome"),
    ],
)
def test_unreadable(native: Native, path: str, body: bytes, field: str) -> None:
    """What cannot be read is refused as a whole, with the place at fault."""
    answer = native.send("POST", MESSAGES + path, body)
    assert (answer.status, answer.code) == (400, "invalid-request")
    assert answer.json["field"] == field


def test_misspelt_member(native: Native) -> None:
    """A member that is not known is met with the one that is like it."""
    answer = native.send("POST", f"{MESSAGES}/receive", {"visibility_timeout": 1})
    assert "Did you mean `visibility_timeout_s`?" in answer.json["detail"]


def test_deep_json_is_refused_or_kept(native: Native) -> None:
    """JSON that is nested as deep as can be read comes back as it was."""
    deep = json.loads("[" * 500 + "]" * 500)
    assert native.post(MESSAGES, {"messages": [{"json": deep}]})["failed"] == 0
    assert native.receive_one()["body"] == "[" * 500 + "]" * 500
