"""Bodies as they are: put raw, read raw, and what is said where a body cannot be read."""

from __future__ import annotations

from typing import Any

import pytest

from leasehold.domain import admin as o
from leasehold.domain import commands as c
from leasehold.domain.model import BodyRef, Detail, Lease
from leasehold.http.requests import Request
from tests.unit.http.native.support import ACCOUNT, KEY, MESSAGES, QUEUE, Answer, Native

BYTES = bytes(range(256))
ALL_PARAMS = "delay_s=5&time_to_live_s=60&priority=2&type=scan&dedup_key=k"
REF = BodyRef(key="0" * 32, size_bytes=70_000, sha256="0" * 64)


def allow(native: Native, max_body_bytes: int | None) -> None:
    """Set how large bodies may be."""
    answer = native.send("PATCH", QUEUE, {"settings": {"max_body_bytes": max_body_bytes}})
    assert answer.status == 200, answer.json


def put_without_body(native: Native, problem: str | None) -> str:
    """Put a message whose body is elsewhere, and cannot be read; return its id."""
    ref = BodyRef(key=REF.key, size_bytes=REF.size_bytes, sha256=REF.sha256, problem=problem)
    put = c.Put(ACCOUNT, "orders", b"", 0, None, b"0123456789", Detail(body_ref=ref))
    lease = native.runner.run(native.perform(put))
    assert isinstance(lease, Lease)
    return lease.message.message_id


def test_any_bytes_go_in_and_come_out(native: Native) -> None:
    """The body of the request is that of the message, without an encoding around it."""
    answer = native.send("POST", f"{MESSAGES}/raw", BYTES)
    assert answer.status == 201
    body = native.send("GET", f"{MESSAGES}/{answer.json['id']}/body")
    assert (body.status, body.body) == (200, BYTES)
    assert body.headers["content-type"] == "application/octet-stream"
    assert native.receive_one()["receipt"]


def test_an_empty_body_is_a_body(native: Native) -> None:
    """Nothing is something that can be sent."""
    answer = native.send("POST", f"{MESSAGES}/raw")
    assert native.send("GET", f"{MESSAGES}/{answer.json['id']}/body").body == b""


def test_what_goes_along_is_in_the_query(native: Native) -> None:
    """Delay, time to live, priority, type and key are those of a message in JSON."""
    trace = "00-" + "a" * 32 + "-" + "b" * 16 + "-01"
    now_ms = native.clock.now_ms()
    answer = native.send(
        "POST", f"{MESSAGES}/raw", b"x", query=ALL_PARAMS, headers={"traceparent": trace}
    )
    assert answer.json["visible_at_ms"] == now_ms + 5_000
    assert answer.json["expires_at_ms"] == now_ms + 60_000
    seen = native.get(f"{MESSAGES}/{answer.json['id']}")
    told = [seen[name] for name in ("priority", "type", "dedup_key", "traceparent")]
    assert told == [2, "scan", "k", trace]
    again = native.send("POST", f"{MESSAGES}/raw", b"y", query=ALL_PARAMS)
    assert (again.status, again.json["duplicate"], again.json["id"]) == (201, True, seen["id"])


def test_a_message_may_live_for_ever(native: Native) -> None:
    """A time to live of -1 is never, and none is a week."""
    for query, life_ms in (("time_to_live_s=-1", None), ("", 604_800_000)):
        answer = native.send("POST", f"{MESSAGES}/raw", b"x", query=query)
        expires_at_ms = None if life_ms is None else native.clock.now_ms() + life_ms
        assert answer.json["expires_at_ms"] == expires_at_ms


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("delay_s=-1", "delay_s"),
        ("time_to_live_s=0", "time_to_live_s"),
        ("time_to_live_s=-2", "time_to_live_s"),
        ("priority=17", "priority"),
        ("type=" + "t" * 1025, "type"),
        ("dedup_key=" + "t" * 1025, "dedup_key"),
    ],
)
def test_values_outside_their_ranges_are_refused(native: Native, query: str, field: str) -> None:
    """The refusal names the parameter, and nothing is put."""
    answer = native.send("POST", f"{MESSAGES}/raw", b"x", query=query)
    assert (answer.code, answer.json["field"]) == ("out-of-range", field)
    assert native.get(QUEUE)["counts"]["visible"] == 0


@pytest.mark.parametrize(("limit", "fits"), [(None, 65_536), (10, 10), (100_000, 100_000)])
def test_the_limit_is_that_of_the_queue(native: Native, limit: int | None, fits: int) -> None:
    """A body as large as the queue allows is put, one byte more is refused."""
    allow(native, limit)
    assert native.send("POST", f"{MESSAGES}/raw", b"x" * fits).status == 201
    answer = native.send("POST", f"{MESSAGES}/raw", b"x" * (fits + 1))
    assert answer.code == "body-too-large"
    assert (answer.json["value"], answer.json["limit"]) == (fits + 1, fits)


def admit(native: Native, length: int, key: str | None = KEY) -> Answer | None:
    """Send the head of a request to put a raw body."""
    headers = {"content-length": str(length)}
    if key is not None:
        headers["authorization"] = f"Bearer {key}"
    request = Request(
        method="POST",
        raw_path=f"{MESSAGES}/raw",
        raw_query="",
        headers=headers,
        body=b"",
        body_too_large=False,
        client_ip="127.0.0.1",
        https=False,
    )
    response = native.runner.run(native.dialect.enter(native.dialect.begin(request)))
    return None if response is None else Answer(response)


def test_a_body_that_is_too_large_is_refused_by_its_head(native: Native) -> None:
    """Nobody sends megabytes only to hear that the queue does not take them."""
    refused = admit(native, 200_000)
    assert refused is not None
    assert refused.code == "body-too-large"
    allow(native, 200_000)
    assert admit(native, 200_000) is None
    refused = admit(native, 200_000, key=None)
    assert refused is not None
    assert refused.status == 401


def test_json_brings_large_bodies_as_well(native: Native) -> None:
    """Putting, renewing and changing in JSON go by the limit of the queue."""
    allow(native, 2_000_000)
    body = "y" * 1_500_000
    [put] = native.put_bodies(body)
    leased = native.receive_one()
    assert leased["body"] == body
    item = {"id": put["id"], "receipt": leased["receipt"], "visibility_timeout_s": 30}
    renewed = native.post(f"{MESSAGES}/renew", {"items": [{**item, "body": body + "z"}]})
    assert renewed["failed"] == 0
    change = {"body": '"' * 1_500_002, "force": True}  # twice as long in JSON
    assert native.send("PATCH", f"{MESSAGES}/{put['id']}", change).json["body_bytes"] == 1_500_002


def test_a_small_limit_holds_for_json(native: Native) -> None:
    """A queue for small messages refuses what other queues take."""
    allow(native, 4)
    answer = native.post(MESSAGES, {"messages": [{"body": "four"}, {"body": "fives"}]})
    problem = answer["results"][1]["error"]
    assert (answer["failed"], problem["code"], problem["limit"]) == (1, "body-too-large", 4)


@pytest.mark.parametrize("problem", ["missing", "corrupt", "unreachable", "left-out"])
def test_lists_say_why_there_is_no_body(native: Native, problem: str) -> None:
    """A message whose body cannot be read is shown with the reason, and with its size."""
    message_id = put_without_body(native, problem)
    [listed] = native.get(MESSAGES)["messages"]
    [peeked] = native.post(f"{MESSAGES}/peek")["messages"]
    found = native.get(f"{MESSAGES}/{message_id}")
    for shown in (listed, peeked, found):
        assert (shown["body_problem"], shown["body_bytes"]) == (problem, REF.size_bytes)
        assert "body" not in shown
        assert "body_base64" not in shown


@pytest.mark.parametrize(
    ("problem", "status", "code"),
    [
        ("missing", 500, "body-unreadable"),
        ("corrupt", 500, "body-unreadable"),
        ("unreachable", 503, "store-unavailable"),
    ],
)
def test_a_body_that_cannot_be_read_is_an_error(
    native: Native, problem: str, status: int, code: str
) -> None:
    """Whoever asks for the body alone must not take nothing for it."""
    message_id = put_without_body(native, problem)
    answer = native.send("GET", f"{MESSAGES}/{message_id}/body")
    assert (answer.status, answer.code) == (status, code)
    if status == 500:
        assert (answer.json["reason"], answer.json["value"]) == (problem, message_id)


def test_a_message_that_is_not_there_has_no_body(native: Native) -> None:
    """The address of a body answers like that of the message."""
    assert native.send("GET", f"{MESSAGES}/none/body").code == "message-not-found"
    [put] = native.put_bodies("x")
    receipt = native.receive_one()["receipt"]
    native.post(f"{MESSAGES}/complete", {"items": [{"id": put["id"], "receipt": receipt}]})
    assert native.send("GET", f"{MESSAGES}/{put['id']}/body").code == "message-not-found"


def test_nobody_reads_large_bodies_who_does_not_show_them(native: Native) -> None:
    """Explaining, and a list without bodies, ask for none."""
    [put] = native.put_bodies("x")
    native.commands.clear()
    native.get(f"{MESSAGES}/{put['id']}/explain")
    native.get(MESSAGES, "body=false")
    looks: list[Any] = [
        each for each in native.commands if isinstance(each, c.Peek | o.FindMessage | o.Inspect)
    ]
    assert {type(each) for each in looks} == {c.Peek, o.FindMessage, o.Inspect}
    assert not any(each.with_bodies for each in looks)
