"""Put, receive, peek."""

from __future__ import annotations

import json
from base64 import b64encode
from typing import Any

import pytest

from leasehold.domain.commands import Batch, Peek, Put, Receive
from leasehold.domain.errors import Overloaded, StoreFailed
from leasehold.http.native import messages
from leasehold.http.native.messages import ANSWER_BYTES
from tests.unit.http.native.support import BASE, MESSAGES, QUEUE, Native, errors_of_items

_TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
_HOUR_MS = 3_600_000


# --- put -----------------------------------------------------------------------------------------


def test_put_with_defaults(native: Native) -> None:
    """A message is visible at once and lives for a week."""
    [result] = native.put_bodies("hello")
    now_ms = native.clock.now_ms()
    assert result["inserted_at_ms"] == result["visible_at_ms"] == now_ms
    assert result["expires_at_ms"] == now_ms + 7 * 24 * _HOUR_MS
    assert len(result["receipt"]) == 36


def test_put_with_everything(native: Native) -> None:
    """What is sent along comes back with the message."""
    along = {"priority": 3, "type": "t", "properties": {"k": "v"}, "traceparent": _TRACE}
    [result] = native.put_bodies("x", delay_s=5, time_to_live_s=-1, dedup_key="key", **along)
    assert result["expires_at_ms"] is None
    assert result["visible_at_ms"] == native.clock.now_ms() + 5_000
    native.clock.advance(s=5)
    message = native.receive_one()
    assert {name: message[name] for name in along} == along
    assert (message["dedup_key"], message["expires_at_ms"]) == ("key", None)


def test_plain_message_is_short(native: Native) -> None:
    """A message with nothing sent along shows nothing of that."""
    native.put_bodies("x")
    message = native.receive_one()
    times = {"inserted_at_ms", "expires_at_ms", "visible_at_ms", "lease_s"}
    assert set(message) == {"id", "body", "dequeue_count", "fence", "receipt", *times}


@pytest.mark.parametrize(
    ("item", "shown"),
    [
        ({"body": "é€😀\x00"}, {"body": "é€😀\x00"}),
        ({"body": ""}, {"body": ""}),
        ({"body_base64": b64encode(b"plain").decode()}, {"body": "plain"}),
        ({"body_base64": "/wA="}, {"body_base64": "/wA="}),
        ({"json": {"a": [1, None]}}, {"body": '{"a":[1,null]}'}),
        ({"json": False}, {"body": "false"}),
        ({"json": None, "body": "x"}, {"body": "x"}),
    ],
)
def test_bodies(native: Native, item: dict[str, Any], shown: dict[str, str]) -> None:
    """A body is text, bytes or JSON; it is shown as text if its bytes are that."""
    assert native.post(MESSAGES, {"messages": [item]})["failed"] == 0
    message = native.receive_one()
    assert {name: message[name] for name in message if name.startswith("body")} == shown


def test_json_keeps_its_numbers(native: Native) -> None:
    """JSON loses its blanks and nothing else."""
    raw = b'{"messages": [{"json": { "n" : 1.000000000000000000000000000001E+400 }}]}'
    assert native.send("POST", MESSAGES, raw).json["failed"] == 0
    assert native.receive_one()["body"] == '{"n":1.000000000000000000000000000001E+400}'


@pytest.mark.parametrize(
    ("item", "code", "member"),
    [
        ({}, "invalid-request", ""),
        ({"json": None}, "invalid-request", ""),
        ({"body": "x", "json": 1}, "invalid-request", ""),
        ({"body": "x", "body_base64": ""}, "invalid-request", ""),
        ({"body_base64": "a"}, "invalid-request", ".body_base64"),
        ({"body_base64": "é"}, "invalid-request", ".body_base64"),
        ({"body": "x" * 65_537}, "body-too-large", ".body"),
        ({"body": "é" * 32_769}, "body-too-large", ".body"),
        ({"json": "x" * 65_535}, "body-too-large", ".json"),
        ({"body_base64": b64encode(bytes(65_537)).decode()}, "body-too-large", ".body_base64"),
        ({"body": "x", "delay_s": -1}, "out-of-range", ".delay_s"),
        ({"body": "x", "delay_s": 315_360_001}, "out-of-range", ".delay_s"),
        ({"body": "x", "time_to_live_s": 0}, "out-of-range", ".time_to_live_s"),
        ({"body": "x", "time_to_live_s": -2}, "out-of-range", ".time_to_live_s"),
        ({"body": "x", "time_to_live_s": 2**31}, "out-of-range", ".time_to_live_s"),
        ({"body": "x", "priority": 0}, "out-of-range", ".priority"),
        ({"body": "x", "priority": 17}, "out-of-range", ".priority"),
        ({"body": "x", "dedup_key": ""}, "out-of-range", ".dedup_key"),
        ({"body": "x", "type": "x" * 1_025}, "out-of-range", ".type"),
        ({"body": "x", "properties": {"k": "x" * 8_192}}, "out-of-range", ".properties"),
        ({"body": "x", "traceparent": "00-1"}, "invalid-request", ".traceparent"),
        ({"body": "x", "delay_s": 9, "time_to_live_s": 9}, "visibility-past-expiry", ""),
    ],
)
def test_refused_items(native: Native, item: dict[str, Any], code: str, member: str) -> None:
    """A message that will not do is refused with its place; the others are put."""
    answer = native.post(MESSAGES, {"messages": [{"body": "one"}, item, {"body": "two"}]})
    assert errors_of_items(answer) == [None, (code, f"$.messages[1]{member}"), None]
    assert answer["failed"] == 1
    received = native.post(f"{MESSAGES}/receive", {"max_messages": 10})["messages"]
    assert [message["body"] for message in received] == ["one", "two"]


@pytest.mark.parametrize(
    "item",
    [
        {"body": "x" * 65_536},
        {"body": "é" * 32_768},
        {"json": "x" * 65_534},
        {"body": "x", "delay_s": 315_360_000, "time_to_live_s": -1},
        {"body": "x", "time_to_live_s": 2**31 - 1, "priority": 16, "type": "x" * 1_024},
        {"body": "x", "properties": {"k": "x" * 8_191}},
        {"body": "x", "properties": {}, "delay_s": None, "traceparent": None},
    ],
)
def test_ends_of_ranges(native: Native, item: dict[str, Any]) -> None:
    """Both ends of every range are allowed."""
    assert native.post(MESSAGES, {"messages": [item]})["failed"] == 0


def test_body_too_large_says_how_to_go_on(native: Native) -> None:
    """The refusal of a body names both sizes and says what to do."""
    answer = native.post(MESSAGES, {"messages": [{"body": "x" * 140_000}]})
    error = answer["results"][0]["error"]
    assert (error["value"], error["limit"]) == (140_000, 65_536)
    assert "140,000" in error["detail"]
    assert "65,536" in error["detail"]
    assert "3 messages" in error["remedy"]


def test_traceparent_of_the_request(native: Native) -> None:
    """The header counts for messages that bring no context, and a wrong one for nothing."""
    own = _TRACE.replace("b7", "c7")
    items = {"messages": [{"body": "1"}, {"body": "2", "traceparent": own}]}
    native.send("POST", MESSAGES, items, headers={"traceparent": _TRACE})
    native.send("POST", MESSAGES, {"messages": [{"body": "3"}]}, headers={"traceparent": "wrong"})
    received = native.post(f"{MESSAGES}/receive", {"max_messages": 3})["messages"]
    assert [message.get("traceparent") for message in received] == [_TRACE, own, None]


def test_duplicate(native: Native) -> None:
    """A key sent again gives the first message once more."""
    [first] = native.put_bodies("x", dedup_key="k")
    native.clock.advance(s=1)
    [again] = native.put_bodies("y", dedup_key="k")
    assert again == {**first, "duplicate": True}


def test_atomic_put_with_a_refused_item(native: Native) -> None:
    """All or nothing: one bad message keeps the others out, and each says why."""
    items = [{"body": "one"}, {"body": "two", "priority": 0}, {"body": "three"}]
    answer = native.post(MESSAGES, {"messages": items, "atomic": True})
    assert errors_of_items(answer) == [
        ("not-done", "$.messages[0]"),
        ("out-of-range", "$.messages[1].priority"),
        ("not-done", "$.messages[2]"),
    ]
    assert native.post(f"{MESSAGES}/receive")["messages"] == []


def test_atomic_put_refused_by_the_store(native: Native) -> None:
    """All or nothing holds for what only the store can tell as well."""
    items = [{"body": "one"}, {"body": "two", "delay_s": 2, "time_to_live_s": 1}]
    answer = native.post(MESSAGES, {"messages": items, "atomic": True})
    assert [error and error[0] for error in errors_of_items(answer)] == [
        "not-done",
        "visibility-past-expiry",
    ]
    answer = native.post(MESSAGES, {"messages": items[:1] * 3, "atomic": True})
    assert answer["failed"] == 0
    assert [type(command) for command in native.commands[-2:]] == [Batch, Batch]


def test_parts_of_a_large_put(native: Native) -> None:
    """Many messages go to the engine a thousand at a time, unless they are all or nothing."""
    items = [{"body": str(number)} for number in range(2_500)]
    assert native.post(MESSAGES, {"messages": items})["failed"] == 0
    assert native.post(MESSAGES, {"messages": items, "atomic": True})["failed"] == 0
    batches = [command for command in native.commands if isinstance(command, Batch)]
    assert [(len(batch.commands), batch.atomic) for batch in batches] == [
        (1_000, False),
        (1_000, False),
        (500, False),
        (2_500, True),
    ]
    assert native.get(f"{QUEUE}/counts")["visible"] == 5_000


def test_failure_in_a_later_part(native: Native) -> None:
    """What was put before a failure is told, and what was not is told too."""
    perform = native.perform
    calls = 0

    async def fail_second(command: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise Overloaded
        return await perform(command)

    native.change_services(perform=fail_second)
    answer = native.post(MESSAGES, {"messages": [{"body": "x"}] * 1_001})
    assert errors_of_items(answer)[:1_000] == [None] * 1_000
    assert errors_of_items(answer)[1_000:] == [("overloaded", "$.messages[1000]")]


@pytest.mark.parametrize("count", [0, 10_001])
def test_number_of_items(native: Native, count: int) -> None:
    """A request has one item at least and ten thousand at most."""
    for path, name, item in (
        (MESSAGES, "messages", {"body": ""}),
        (f"{MESSAGES}/complete", "items", {"id": "", "receipt": ""}),
    ):
        answer = native.send("POST", path, {name: [item] * count})
        assert (answer.code, answer.json["field"]) == ("out-of-range", f"$.{name}")
        assert (answer.json["value"], answer.json["maximum"]) == (count, 10_000)


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("atomic", [True, False])
def test_unknown_queue(native: Native, count: int, atomic: bool) -> None:
    """A queue that is not there is the fault of the whole request."""
    path = f"{BASE}/queues/nowhere/messages"
    request: dict[str, Any] = {"messages": [{"body": "x"}] * count, "atomic": atomic}
    assert native.send("POST", path, request).code == "queue-not-found"
    request["items"] = [{"id": "x", "receipt": "x"}] * count
    del request["messages"]
    assert native.send("POST", f"{path}/complete", request).code == "queue-not-found"
    assert native.send("POST", f"{path}/receive").code == "queue-not-found"


@pytest.mark.parametrize("count", [1, 2])
def test_failed_store(native: Native, count: int) -> None:
    """What keeps all items from being done is the answer to the request."""
    native.failures = {Put: StoreFailed(), Batch: StoreFailed()}
    answer = native.send("POST", MESSAGES, {"messages": [{"body": "x"}] * count})
    assert (answer.status, answer.code) == (503, "store-failed")
    assert answer.headers["retry-after"] == "1"


# --- receive and peek ----------------------------------------------------------------------------


def test_receive(native: Native) -> None:
    """A receive leases for as long as asked, else for what is set for the queue."""
    native.put_bodies("one", "two", "three")
    now_ms = native.clock.now_ms()
    message = native.receive_one(visibility_timeout_s=5, holder="me")
    assert (message["visible_at_ms"], message["dequeue_count"]) == (now_ms + 5_000, 1)
    assert native.receive_one()["visible_at_ms"] == now_ms + 30_000
    native.send("PATCH", QUEUE, {"settings": {"visibility_timeout_s": 7}})
    assert native.receive_one()["visible_at_ms"] == now_ms + 7_000
    [view] = native.get(MESSAGES, "holder=me")["messages"]
    assert view["id"] == message["id"]


def test_receive_without_a_body(native: Native) -> None:
    """A request without a body asks for one message."""
    native.put_bodies("one", "two")
    assert len(native.post(f"{MESSAGES}/receive")["messages"]) == 1


def test_fence_rises(native: Native) -> None:
    """A later lease has a higher fence."""
    native.put_bodies("x")
    first = native.receive_one(visibility_timeout_s=1)
    native.clock.advance(s=1)
    second = native.receive_one()
    assert second["fence"] > first["fence"]
    assert second["dequeue_count"] == 2


def test_receive_waits(native: Native) -> None:
    """A receive that may wait asks the engine to."""
    native.put_bodies("x", delay_s=10)
    assert native.receive_one(wait_s=12.5)["body"] == "x"
    assert native.waits == [12.5]
    assert native.post(f"{MESSAGES}/receive", {"wait_s": 0})["messages"] == []
    assert native.waits == [12.5]


def test_receive_of_a_paused_queue(native: Native) -> None:
    """An empty answer says when the pause is the reason."""
    native.put_bodies("x")
    native.post(f"{QUEUE}/pause", {"for_s": 10})
    assert native.post(f"{MESSAGES}/receive") == {"messages": [], "paused": True}
    native.clock.advance(s=10)
    assert "paused" not in native.post(f"{MESSAGES}/receive")
    assert native.post(f"{MESSAGES}/receive") == {"messages": []}


@pytest.mark.parametrize(
    ("path", "member", "value", "bounds"),
    [
        ("receive", "max_messages", 0, (1, 10_000)),
        ("receive", "max_messages", 10_001, (1, 10_000)),
        ("receive", "visibility_timeout_s", 0, (1, 604_800)),
        ("receive", "visibility_timeout_s", 604_801, (1, 604_800)),
        ("receive", "wait_s", -0.5, (0, 60)),
        ("receive", "wait_s", 60.5, (0, 60)),
        ("peek", "max_messages", 0, (1, 1_000)),
        ("peek", "max_messages", 1_001, (1, 1_000)),
    ],
)
def test_ranges_of_receive(
    native: Native, path: str, member: str, value: float, bounds: tuple[int, int]
) -> None:
    """A value outside its range is named with both ends."""
    answer = native.send("POST", f"{MESSAGES}/{path}", {member: value})
    told = answer.json
    assert (answer.code, told["field"], told["value"]) == ("out-of-range", f"$.{member}", value)
    assert (told["minimum"], told["maximum"]) == bounds
    assert str(value).rstrip("0") in told["detail"].replace(",", "") + "0"


def test_large_receive(native: Native) -> None:
    """Many messages come in parts: first so many as surely fit, then a thousand at a time."""
    native.post(MESSAGES, {"messages": [{"body": str(number)} for number in range(2_300)]})
    native.commands.clear()
    answer = native.post(f"{MESSAGES}/receive", {"max_messages": 10_000, "wait_s": 1})
    assert [message["body"] for message in answer["messages"]] == [str(n) for n in range(2_300)]
    assert native.waits == [1]
    assert [command.limit for command in native.commands if isinstance(command, Receive)] == [
        ANSWER_BYTES // 65_536,
        1_000,
        1_000,
        1_000,
    ]


def test_large_receive_of_large_messages(native: Native) -> None:
    """A receive takes no more messages than fit in an answer, and leaves the others alone."""
    native.post(MESSAGES, {"messages": [{"body": "x" * 65_536}] * 100})
    answer = native.post(f"{MESSAGES}/receive", {"max_messages": 10_000})
    assert len(answer["messages"]) == ANSWER_BYTES // 65_536 == 64
    assert native.get(f"{QUEUE}/counts")["visible"] == 36


def test_large_receive_is_exact(native: Native) -> None:
    """No more messages are leased than asked for."""
    native.post(MESSAGES, {"messages": [{"body": ""}] * 2_300})
    answer = native.post(f"{MESSAGES}/receive", {"max_messages": 1_500})
    assert len(answer["messages"]) == 1_500
    assert native.get(f"{QUEUE}/counts")["leased"] == 1_500


def test_receive_stops_at_many_bytes(native: Native, monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer that is large enough takes no further part."""
    monkeypatch.setattr(messages, "ANSWER_BYTES", 1_000)
    native.post(MESSAGES, {"messages": [{"body": "x"}] * 2_000})
    assert len(native.post(f"{MESSAGES}/receive", {"max_messages": 2_000})["messages"]) == 1_000


def test_failure_after_the_first_part_of_a_receive(native: Native) -> None:
    """What is leased already is told, or nobody could work on it."""
    native.post(MESSAGES, {"messages": [{"body": "x"}] * 2_000})
    native.failures = {Receive: Overloaded()}

    async def first_part(command: Receive, wait_s: float, gone: object) -> Any:
        native.failures.clear()
        leases = await native.perform(command)
        native.failures[Receive] = Overloaded()
        return leases

    native.change_services(receive=first_part)
    answer = native.post(f"{MESSAGES}/receive", {"max_messages": 2_000, "wait_s": 1})
    assert len(answer["messages"]) == ANSWER_BYTES // 65_536


def test_peek(native: Native) -> None:
    """A look gives no receipt and takes nothing."""
    native.put_bodies("one", "two", type="t")
    native.post(MESSAGES, {"messages": [{"body_base64": "/w=="}]})
    seen = native.post(f"{MESSAGES}/peek", {"max_messages": 2})["messages"]
    assert [message["body"] for message in seen] == ["one", "two"]
    assert not {"receipt", "fence"} & seen[0].keys()
    assert seen[0]["type"] == "t"
    assert len(native.post(f"{MESSAGES}/peek")["messages"]) == 3
    assert native.commands[-1] == Peek("devstoreaccount1", "orders", 32)


# --- large batches -------------------------------------------------------------------------------


def test_a_large_batch_is_read_like_a_small_one(native: Native) -> None:
    """Above a megabyte items are counted while they are read; what they mean stays the same."""
    large = [{"body": "x" * 60_000, "properties": {"a": "b"}}] * 20
    results = native.post(MESSAGES, {"messages": [*large, {"json": [1, 2]}, {"delay_s": -1}]})
    assert errors_of_items(results)[20:] == [None, ("invalid-request", "$.messages[21]")]
    answer = native.send("POST", MESSAGES, {"messages": [*large, {"bdy": "x"}]})
    assert answer.json["field"] == "$.messages[20].bdy"
    assert "Did you mean `body`?" in answer.json["detail"]
    assert native.send("POST", MESSAGES, {"messages": large, "atomc": True}).status == 400
    results = native.post(MESSAGES, {"messages": [*large, {"delay_s": -1}], "atomic": True})
    assert results["failed"] == 21


@pytest.mark.parametrize(
    ("path", "item"),
    [
        ("", {"body": "x" * 100}),
        ("/renew", {"id": "x" * 100, "receipt": "x", "visibility_timeout_s": 1}),
        ("/complete", {"id": "x" * 100, "receipt": "x"}),
        ("/release", {"id": "x" * 100, "receipt": "x"}),
    ],
)
def test_reading_stops_at_the_first_item_too_many(
    native: Native, path: str, item: dict[str, Any]
) -> None:
    """No more objects are made of a request than it may have items."""
    name = "items" if path else "messages"
    tail = b',"nonsense"'  # which is not reached
    body = json.dumps({name: [item] * 10_001}).encode()
    answer = native.send("POST", MESSAGES + path, body.replace(b"]}", tail))
    assert (answer.code, answer.json["field"]) == ("out-of-range", f"$.{name}")
    assert (answer.json["value"], answer.json["maximum"]) == (10_001, 10_000)
