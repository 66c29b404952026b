"""Looking at messages, explaining, changing, removing, ending leases."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import pytest

from leasehold.domain.admin import Amend, FindMessage
from tests.unit.http.native.support import ACCOUNT, BASE, MESSAGES, QUEUE, Native


def _states(native: Native, query: str = "") -> list[tuple[str, str]]:
    return [(view["body"], view["state"]) for view in native.get(MESSAGES, query)["messages"]]


def _fail(native: Native, message: dict[str, Any], text: str = "boom") -> None:
    item = {"id": message["id"], "receipt": message["receipt"], "outcome": "failed"}
    item["error"] = {"text": text, "type": "TimeoutError"}
    native.post(f"{MESSAGES}/release", {"items": [item]})


def test_list_shows_the_invisible(native: Native) -> None:
    """All messages are listed, oldest first, whatever their state."""
    native.put_bodies("leased")
    native.receive_one(holder="me")
    native.put_bodies("delayed", delay_s=10)
    native.put_bodies("visible")
    assert _states(native) == [
        ("leased", "leased"),
        ("delayed", "delayed"),
        ("visible", "visible"),
    ]
    assert _states(native, "state=leased,delayed&limit=1") == [("leased", "leased")]
    assert _states(native, "state=visible") == [("visible", "visible")]


def test_view_of_a_lease(native: Native) -> None:
    """A leased message says who holds it, since when and until when."""
    [sent] = native.put_bodies("x", type="t", properties={"k": "v"}, dedup_key="d")
    native.clock.advance(s=5)
    native.receive_one(holder="me", visibility_timeout_s=60)
    view = native.get(f"{MESSAGES}/{sent['id']}")
    now_ms = native.clock.now_ms()
    assert view["lease"] == {
        "holder": "me",
        "since_ms": now_ms,
        "until_ms": now_ms + 60_000,
        "renewals": 0,
        "progress": None,
    }
    assert (view["type"], view["properties"], view["dedup_key"]) == ("t", {"k": "v"}, "d")
    assert (view["body_bytes"], view["queue"], view["state"]) == (1, "orders", "leased")
    assert "me" in view["why"]
    assert view["first_visible_at_ms"] == view["last_visible_at_ms"] == sent["inserted_at_ms"]


def test_view_of_a_failure(native: Native) -> None:
    """A failure is shown with what the worker said, and lets the lease end."""
    native.put_bodies("x")
    _fail(native, native.receive_one(holder="me"))
    [view] = native.get(MESSAGES)["messages"]
    assert view["lease"] is None
    assert view["failures"] == 1
    assert view["last_error"]["text"] == "boom"
    [attempt] = view["attempts"]
    assert (attempt["number"], attempt["outcome"], attempt["holder"]) == (1, "failed", "me")
    assert attempt["error"] == {"text": "boom", "type": "TimeoutError", "fingerprint": None}


def test_poisoned_messages(native: Native) -> None:
    """Poisoned messages are listed behind the queue's own."""
    native.send("PATCH", QUEUE, {"settings": {"failure_policy": {"max_failures": 1}}})
    native.put_bodies("bad")
    _fail(native, native.receive_one())
    native.put_bodies("good")
    assert _states(native) == [("good", "visible"), ("bad", "poisoned")]
    [view] = native.get(MESSAGES, "state=poisoned")["messages"]
    assert (view["queue"], view["poisoned"]["queue"]) == ("orders-poison", "orders")
    assert view["poisoned"]["reason"] == "max_failures"


def test_pages(native: Native) -> None:
    """Pages follow each other without a gap."""
    native.put_bodies("one", "two", "three")
    page = native.get(MESSAGES, "limit=2")
    assert [view["body"] for view in page["messages"]] == ["one", "two"]
    page = native.get(MESSAGES, f"limit=2&after={page['next_after']}")
    assert [view["body"] for view in page["messages"]] == ["three"]
    assert page["next_after"] is None
    assert native.send("GET", MESSAGES, query="after=!").code == "invalid-marker"


def test_list_without_bodies(native: Native) -> None:
    """Bodies can be left out; bytes that are no text are base64."""
    native.post(MESSAGES, {"messages": [{"body_base64": "/w=="}]})
    [view] = native.get(MESSAGES)["messages"]
    assert view["body_base64"] == "/w=="
    [view] = native.get(MESSAGES, "body=false")["messages"]
    assert not {"body", "body_base64"} & view.keys()
    assert view["body_bytes"] == 1


def test_one_message_is_shown_without_its_body(native: Native) -> None:
    """Its size is told, and all else."""
    sent = native.put_bodies("hello")[0]
    whole = native.get(f"{MESSAGES}/{sent['id']}")
    view = native.get(f"{MESSAGES}/{sent['id']}", "body=false")
    assert (whole.pop("body"), view["body_bytes"]) == ("hello", 5)
    assert view == whole


@pytest.mark.parametrize(
    ("query", "bodies"),
    [
        ("min_age_s=1", ["old"]),
        ("max_age_s=0.5", ['{"a":[1,"x"]}', "plain"]),
        ("min_dequeue_count=1", ["old"]),
        ("max_dequeue_count=0", ['{"a":[1,"x"]}', "plain"]),
        ("holder=me", ["old"]),
        ("type=t", ["plain"]),
        ("error=TimeoutError", ["old"]),
        ("error=boom+now", ["old"]),
        ("reason=x", []),
        ("text=LAI", ["plain"]),
        ("json_path=a%5B0%5D", ['{"a":[1,"x"]}']),
        ("json_path=a[1]&json_value=%22x%22", ['{"a":[1,"x"]}']),
        ("json_path=a[0]&json_value=2", []),
        ("json_value=" + quote('{"a": [1.0, "x"]}'), ['{"a":[1,"x"]}']),
        ("state=&holder=&limit=", ["old", '{"a":[1,"x"]}', "plain"]),
    ],
)
def test_filters(native: Native, query: str, bodies: list[str]) -> None:
    """Every parameter of the filter does what it says."""
    native.put_bodies("old")
    _fail(native, native.receive_one(holder="me"), "boom now")
    native.clock.advance(s=2)
    native.post(MESSAGES, {"messages": [{"json": {"a": [1, "x"]}}, {"body": "plain", "type": "t"}]})
    assert [body for body, _ in _states(native, query)] == bodies


@pytest.mark.parametrize(
    ("query", "code", "field"),
    [
        ("state=gone", "invalid-request", "state"),
        ("state=visible,", "invalid-request", "state"),
        ("min_age_s=-1", "invalid-request", "min_age_s"),
        ("min_age_s=inf", "invalid-request", "min_age_s"),
        ("max_age_s=9999999999", "out-of-range", "max_age_s"),
        ("min_dequeue_count=-1", "out-of-range", "min_dequeue_count"),
        ("holder=" + "x" * 1_025, "out-of-range", "holder"),
        ("json_path=a..b", "invalid-request", "json_path"),
        ("json_value=paid", "invalid-request", "json_value"),
        ("states=visible", "invalid-request", "states"),
        ("limit=0", "out-of-range", "limit"),
        ("body=1", "invalid-request", "body"),
    ],
)
def test_refused_filters(native: Native, query: str, code: str, field: str) -> None:
    """A filter that cannot be read is refused, by the name that the sender used."""
    answer = native.send("GET", MESSAGES, query=query)
    assert (answer.code, answer.json["field"]) == (code, field)


def test_missing_message(native: Native) -> None:
    """A message that is not there is a 404, but can be explained."""
    path = f"{MESSAGES}/00000000-0009-8a84-afc8-09158aa09ecb"
    for method, rest in (("GET", ""), ("PATCH", ""), ("DELETE", ""), ("POST", "/end-lease")):
        assert native.send(method, path + rest).code == "message-not-found"
    assert native.get(f"{path}/explain")["code"] == "not-found"
    assert native.get(f"{MESSAGES}/x/explain")["code"] == "not-an-id"


def test_explain_a_message(native: Native) -> None:
    """A visible message says how many are before it."""
    native.put_bodies("one", priority=1)
    [_, sent] = native.put_bodies("two", "three")
    native.post(f"{MESSAGES}/receive", {"max_messages": 0 + 1, "visibility_timeout_s": 1})
    native.clock.advance(s=2)
    told = native.get(f"{MESSAGES}/{sent['id']}/explain")
    assert (told["code"], told["evidence"]["ahead"]) == ("behind-priorities", 2)
    assert told["evidence"]["more_urgent"] == 1


def test_explain_a_message_behind_many(native: Native) -> None:
    """A message with very many before it is explained without counting them."""
    native.post(MESSAGES, {"messages": [{"body": "x"}] * 300})
    native.post(f"{MESSAGES}/receive")
    last = native.get(MESSAGES, "limit=300")["messages"][-1]
    told = native.get(f"{MESSAGES}/{last['id']}/explain")
    assert told["code"] == "visible"
    assert "ahead" not in told["evidence"]


def test_explain_a_queue(native: Native) -> None:
    """A queue says in one sentence why it gives nothing."""
    assert native.get(f"{QUEUE}/explain")["code"] == "empty"
    native.put_bodies("x", delay_s=10)
    told = native.get(f"{QUEUE}/explain")
    assert told["code"] == "all-delayed"
    assert told["evidence"]["next_due_ms"] == native.clock.now_ms() + 10_000
    native.post(f"{QUEUE}/pause", {"reason": "a move"})
    told = native.get(f"{QUEUE}/explain")
    assert told["code"] == "paused"
    assert "a move" in told["sentence"]


def test_amend(native: Native) -> None:
    """A waiting message can be changed without a receipt."""
    [sent] = native.put_bodies("x", delay_s=100)
    path = f"{MESSAGES}/{sent['id']}"
    change = {"delay_s": 0, "json": [1], "priority": 2, "properties": {"a": "b"}}
    view = native.send("PATCH", path, {**change, "time_to_live_s": -1}).json
    assert (view["state"], view["body"], view["priority"]) == ("visible", "[1]", 2)
    assert (view["properties"], view["expires_at_ms"]) == ({"a": "b"}, None)
    view = native.send("PATCH", path, {"properties": {}, "time_to_live_s": 5}).json
    assert view["properties"] == {}
    assert view["expires_at_ms"] == native.clock.now_ms() + 5_000
    assert native.send("PATCH", path).json["body"] == "[1]"


def test_amend_a_lease(native: Native) -> None:
    """A leased message is spared unless told otherwise; its lease then ends."""
    native.put_bodies("x")
    message = native.receive_one(holder="me")
    path = f"{MESSAGES}/{message['id']}"
    answer = native.send("PATCH", path, {"body": "y"})
    assert (answer.code, answer.json["holder"]) == ("message-leased", "me")
    assert answer.json["until_ms"] == message["visible_at_ms"]
    view = native.send("PATCH", path, {"body": "y", "delay_s": 0, "force": True}).json
    assert (view["state"], view["body"], view["lease"]) == ("visible", "y", None)


@pytest.mark.parametrize(
    ("change", "code", "field"),
    [
        ({"delay_s": -1}, "out-of-range", "$.delay_s"),
        ({"time_to_live_s": 0}, "out-of-range", "$.time_to_live_s"),
        ({"priority": 17}, "out-of-range", "$.priority"),
        ({"body": "x" * 65_537}, "body-too-large", "$.body"),
        ({"body_base64": "?"}, "invalid-request", "$.body_base64"),
        ({"body": "x", "json": 1}, "invalid-request", None),
        ({"properties": {"k": "x" * 8_192}}, "out-of-range", "$.properties"),
        ({"delay_s": 5, "time_to_live_s": 5}, "visibility-past-expiry", None),
        ({"text": "x"}, "invalid-request", "$.text"),
    ],
)
def test_refused_amendments(
    native: Native, change: dict[str, Any], code: str, field: str | None
) -> None:
    """A change that will not do is refused."""
    [sent] = native.put_bodies("x")
    answer = native.send("PATCH", f"{MESSAGES}/{sent['id']}", change)
    assert (answer.code, answer.json.get("field")) == (code, field)


def test_remove(native: Native) -> None:
    """A message can be removed without a receipt, a leased one by force."""
    native.put_bodies("x")
    path = f"{MESSAGES}/{native.receive_one()['id']}"
    answer = native.send("DELETE", path)
    assert (answer.code, answer.json.get("holder")) == ("message-leased", None)
    assert native.send("DELETE", path, query="force=false").code == "message-leased"
    assert native.send("DELETE", path, query="force=true").status == 204
    assert native.send("DELETE", path).code == "message-not-found"


def test_end_lease(native: Native) -> None:
    """An operator can end a lease; the receipt of its holder is dead."""
    native.put_bodies("x")
    message = native.receive_one()
    path = f"{MESSAGES}/{message['id']}/end-lease"
    view = native.post(path, {"reason": "it hangs"})
    assert view["state"] == "visible"
    assert view["attempts"][-1]["outcome"] == "ended"
    items = [{"id": message["id"], "receipt": message["receipt"]}]
    [result] = native.post(f"{MESSAGES}/complete", {"items": items})["results"]
    assert result["error"]["code"] == "lease-lost"
    assert native.send("POST", path).code == "message-not-leased"
    native.receive_one()
    assert native.post(path, {"delay_s": 5})["state"] == "deferred"
    assert native.send("POST", path, {"delay_s": -1}).code == "out-of-range"
    assert native.send("POST", path, {"reason": ""}).code == "out-of-range"


def test_ids_are_of_one_queue(native: Native) -> None:
    """A message is found in its own queue only."""
    [sent] = native.put_bodies("x")
    native.send("PUT", f"{BASE}/queues/others")
    answer = native.send("GET", f"{BASE}/queues/others/messages/{sent['id']}")
    assert answer.code == "message-not-found"


@pytest.mark.parametrize(("levels", "code"), [(100, None), (101, "invalid-request")])
def test_a_value_to_look_for_has_a_hundred_levels(
    native: Native, levels: int, code: str | None
) -> None:
    """A deeper one could be read here, and then not by a job, which has other callers."""
    native.put_bodies("[1]")
    value = "[" * levels + "]" * levels
    body = f'{{"filter":{{"json_value":{value}}},"wait_s":1}}'.encode()
    answers = (
        native.send("POST", f"{QUEUE}/purge", body),
        native.send("GET", MESSAGES, query=f"json_value={quote(value)}"),
    )
    for answer in answers:
        assert (answer.status == 200) if code is None else (answer.code == code)


def test_extend_lease(native: Native) -> None:
    """An operator gives the holder more time; its receipt stays good."""
    native.put_bodies("x")
    message = native.receive_one(visibility_timeout_s=5)
    path = f"{MESSAGES}/{message['id']}/extend-lease"
    view = native.post(path, {"visibility_timeout_s": 100})
    assert view["lease"]["until_ms"] == native.clock.now_ms() + 100_000
    assert native.send("POST", path, {"visibility_timeout_s": 0}).code == "out-of-range"
    assert native.send("POST", path, {}).code == "invalid-request"
    native.clock.advance(s=50)
    items = [{"id": message["id"], "receipt": message["receipt"]}]
    [result] = native.post(f"{MESSAGES}/complete", {"items": items})["results"]
    assert "error" not in result
    assert native.send("POST", path, {"visibility_timeout_s": 1}).code == "message-not-found"


def test_what_undoes_a_change(native: Native) -> None:
    """The answer has what was changed as it was, and nothing else."""
    [sent] = native.put_bodies("x", priority=3, properties={"a": "1"})
    path = f"{MESSAGES}/{sent['id']}"
    change = {"priority": 1, "properties": {}, "body": "y", "delay_s": 60, "time_to_live_s": -1}
    previous = native.send("PATCH", path, change).json["previous"]
    assert previous == {
        "priority": 3,
        "properties": {"a": "1"},
        "body": "x",
        "delay_s": 0,
        "time_to_live_s": 604_800,
    }
    undone = native.send("PATCH", path, previous).json
    assert (undone["priority"], undone["body"], undone["state"]) == (3, "x", "visible")
    assert undone["previous"]["delay_s"] == 60
    assert undone["previous"]["time_to_live_s"] == -1
    assert native.send("PATCH", path, {"priority": 2}).json["previous"] == {"priority": 3}
    assert "previous" not in native.get(path)


def test_a_change_in_between_is_not_undone(native: Native) -> None:
    """If another change came between looking and changing, nothing is said of what was before."""
    [sent] = native.put_bodies("x", priority=3)
    other = Amend(ACCOUNT, "orders", sent["id"], priority=9)
    perform = native.perform
    done: list[Any] = []

    async def slow(command: Any) -> Any:
        found = await perform(command)
        if isinstance(command, FindMessage) and not done:
            done.append(await perform(other))
        return found

    native.change_services(perform=slow)
    answer = native.send("PATCH", f"{MESSAGES}/{sent['id']}", {"priority": 1})
    assert (answer.json["priority"], "previous" in answer.json) == (1, False)
