"""Staged sends: stage, publish, discard, look."""

from __future__ import annotations

from typing import Any

import pytest

from leasehold.domain.limits import DEFAULT_STAGING_TIMEOUT_S
from leasehold.domain.transactions import Stage
from tests.unit.http.native.support import BASE, MESSAGES, QUEUE, Native

TRANSACTION = f"{BASE}/transactions/batch:1"


def _published(rows: int, *, duplicates: int = 0, already: bool = False) -> dict[str, Any]:
    return {"rows": rows, "duplicates": duplicates, "already": already, "settled": []}


def stage(native: Native, *bodies: str, part: str = "a", chunk: int = 0, **members: Any) -> Any:
    """Stage messages."""
    messages = [{"queue": "orders", "body": body} for body in bodies]
    request = {"part": part, "chunk": chunk, "messages": messages, **members}
    return native.post(f"{TRANSACTION}/stage", request)


def test_stage_and_publish(native: Native) -> None:
    """Staged messages are seen by nobody who receives, until all of them are published."""
    assert stage(native, "one", "two") == {"rows": 2, "chunks": 1, "duplicate": False}
    assert stage(native, "one", "two") == {"rows": 2, "chunks": 1, "duplicate": True}
    assert stage(native, "three", chunk=1)["rows"] == 3
    counts = native.get(f"{QUEUE}/counts")
    assert (counts["staged"], counts["total"]) == (3, 0)
    assert native.post(f"{TRANSACTION}/publish") == _published(3)
    assert native.post(f"{TRANSACTION}/publish") == _published(3, already=True)
    received = native.post(f"{MESSAGES}/receive", {"max_messages": 9})["messages"]
    assert [message["body"] for message in received] == ["one", "two", "three"]


def test_staged_keys(native: Native) -> None:
    """A key that was used when the message is published drops it; publishing uses keys too."""
    native.put_bodies("put", dedup_key="one")
    keyed = [{"queue": "orders", "body": key, "dedup_key": key} for key in ("one", "two", "two")]
    native.post(f"{TRANSACTION}/stage", {"part": "", "chunk": 0, "messages": keyed})
    assert native.post(f"{TRANSACTION}/publish") == _published(1, duplicates=2)
    assert native.post(f"{TRANSACTION}/publish") == _published(1, duplicates=2, already=True)
    assert native.get(TRANSACTION)["duplicates"] == 2
    [again] = native.put_bodies("late", dedup_key="two")
    assert again["duplicate"] is True
    received = native.post(f"{MESSAGES}/receive", {"max_messages": 9})["messages"]
    assert [message["body"] for message in received] == ["put", "two"]


def test_parts(native: Native) -> None:
    """Of the parts those named are published, and the others dropped."""
    stage(native, "one", part="0.1")
    stage(native, "two", part="0.2")
    answer = native.send("POST", f"{TRANSACTION}/publish", {"parts": ["9"]})
    assert (answer.code, answer.json["value"]) == ("staged-not-found", "9")
    assert native.post(f"{TRANSACTION}/publish", {"parts": ["0.2"]})["rows"] == 1
    assert native.receive_one()["body"] == "two"
    assert native.get(f"{QUEUE}/counts")["staged"] == 0


def test_publishing_nothing(native: Native) -> None:
    """A name with nothing staged can be published as nothing, if no parts are named."""
    assert native.send("POST", f"{TRANSACTION}/publish").code == "staged-not-found"
    assert native.post(f"{TRANSACTION}/publish", {"parts": []}) == _published(0)
    answer = native.send("POST", f"{TRANSACTION}/stage", {"part": "", "chunk": 0, "messages": []})
    assert answer.code == "already-published"


def test_a_part_of_no_messages(native: Native) -> None:
    """A task that has nothing to send can say so, and its part can be published."""
    assert stage(native, part="empty") == {"rows": 0, "chunks": 1, "duplicate": False}
    assert native.post(f"{TRANSACTION}/publish", {"parts": ["empty"]})["rows"] == 0


def test_discard(native: Native) -> None:
    """What is discarded is gone; what was published stays."""
    stage(native, "one")
    assert native.post(f"{TRANSACTION}/discard") == {"rows": 1, "published": False}
    assert native.post(f"{TRANSACTION}/discard", {"parts": ["a"]})["rows"] == 0
    stage(native, "two")
    native.post(f"{TRANSACTION}/publish")
    assert native.post(f"{TRANSACTION}/discard") == {"rows": 0, "published": True}
    assert native.receive_one()["body"] == "two"


def test_look(native: Native) -> None:
    """A transaction says what is staged in which part, and is remembered when published."""
    stage(native, "one", "two", part="b", timeout_s=60)
    stage(native, "three", part="a", timeout_s=30)
    now_ms = native.clock.now_ms()
    shown = {
        "name": "batch:1",
        "state": "staged",
        "created_at_ms": now_ms,
        "until_ms": now_ms + 60_000,
        "rows": 3,
        "duplicates": 0,
        "parts": [
            {"part": "a", "rows": 1, "chunks": 1},
            {"part": "b", "rows": 2, "chunks": 1},
        ],
        "claims": [],
    }
    assert native.get(TRANSACTION) == shown
    path = f"{BASE}/transactions"
    assert native.get(path) == {"transactions": [shown]}
    assert native.get(path, "state=published") == {"transactions": []}
    native.post(f"{TRANSACTION}/publish")
    [published] = native.get(path, "state=published&limit=1")["transactions"]
    assert (published["state"], published["rows"], published["parts"]) == ("published", 3, [])
    assert native.send("GET", f"{path}/none").code == "staged-not-found"
    for wrong in ("state=lost", "limit=0"):
        refused = native.send("GET", path, query=wrong)
        assert refused.json["field"] == wrong.partition("=")[0]


def test_view_of_a_staged_message(native: Native) -> None:
    """Who looks after a queue sees what is staged for it, and under which name."""
    stage(native, "x")
    [view] = native.get(MESSAGES, "state=staged")["messages"]
    assert (view["state"], view["under"], view["lease"]) == ("staged", "batch:1", None)


def test_staging_says_what_was_asked(native: Native) -> None:
    """All that can be sent along reaches the engine, and the time-out has a default."""
    message = {
        "queue": "orders",
        "json": {"a": 1},
        "delay_s": 5,
        "time_to_live_s": -1,
        "priority": 3,
        "type": "t",
        "properties": {"k": "v"},
    }
    request = {"part": "p", "chunk": 0, "messages": [message, {"queue": "orders", "body": ""}]}
    trace = f"00-{'a' * 32}-{'b' * 16}-01"
    answer = native.send("POST", f"{TRANSACTION}/stage", request, headers={"traceparent": trace})
    assert answer.status == 200
    [command] = [each for each in native.commands if isinstance(each, Stage)]
    assert (command.name, command.part, command.chunk) == ("batch:1", "p", 0)
    assert command.timeout_s == DEFAULT_STAGING_TIMEOUT_S
    first, second = command.puts
    assert (first.queue, first.body, first.delay_s) == ("orders", b'{"a":1}', 5)
    assert (first.time_to_live_s, first.priority) == (None, 3)
    assert (first.detail.message_type, first.detail.properties) == ("t", {"k": "v"})
    assert first.detail.traceparent == second.detail.traceparent == trace
    assert first.entropy != second.entropy


def test_chunks_come_in_order(native: Native) -> None:
    """A chunk that is ahead of its turn is refused with the number expected."""
    answer = native.send("POST", f"{TRANSACTION}/stage", {"part": "a", "chunk": 2, "messages": []})
    assert (answer.code, answer.json["expected"]) == ("chunk-out-of-turn", 0)


@pytest.mark.parametrize(
    ("members", "code", "field"),
    [
        ({"part": "x" * 257}, "out-of-range", "$.part"),
        ({"chunk": -1}, "out-of-range", "$.chunk"),
        ({"chunk": None}, "invalid-request", "$.chunk"),
        ({"timeout_s": 0}, "out-of-range", "$.timeout_s"),
        ({"timeout_s": 604_801}, "out-of-range", "$.timeout_s"),
        ({"messages": [{"body": "x"}]}, "invalid-request", "$.messages[0].queue"),
        ({"messages": [{"queue": "orders"}]}, "invalid-request", "$.messages[0]"),
        (
            {"messages": [{"queue": "orders", "body": "", "dedup_key": "k" * 1025}]},
            "out-of-range",
            "$.messages[0].dedup_key",
        ),
        (
            {"messages": [{"queue": "orders", "body": "", "priority": 17}]},
            "out-of-range",
            "$.messages[0].priority",
        ),
        (
            {"messages": [{"queue": "or_ders", "body": ""}]},
            "invalid-queue-name",
            "$.messages[0].queue",
        ),
        ({"messages": [{"queue": "orders", "body": ""}] * 10_001}, "out-of-range", "$.messages"),
        (
            {"messages": [{"queue": "orders", "body": "x" * 100}] * 10_001},
            "out-of-range",
            "$.messages",
        ),
    ],
)
def test_limits_of_staging(native: Native, members: dict[str, Any], code: str, field: str) -> None:
    """What is wrong with a request to stage is told with its place, and nothing is staged."""
    answer = native.send(
        "POST", f"{TRANSACTION}/stage", {"part": "", "chunk": 0, "messages": [], **members}
    )
    assert (answer.code, answer.json["field"]) == (code, field)
    assert native.send("GET", TRANSACTION).code == "staged-not-found"


def test_a_queue_that_is_not_there(native: Native) -> None:
    """Nothing is staged if one of the messages has nowhere to go."""
    messages = [{"queue": name, "body": "x"} for name in ("orders", "nowhere")]
    request = {"part": "", "chunk": 0, "messages": messages}
    assert native.send("POST", f"{TRANSACTION}/stage", request).code == "queue-not-found"
    assert native.get(f"{QUEUE}/counts")["staged"] == 0


@pytest.mark.parametrize("query", ["part=a", "chunk=0", "timeout_s=9", "queue=orders"])
def test_in_json_the_body_says_it_all(native: Native, query: str) -> None:
    """Parameters that are for Arrow are refused beside JSON, and not passed over."""
    request = {"part": "", "chunk": 0, "messages": []}
    answer = native.send("POST", f"{TRANSACTION}/stage", request, query=query)
    assert (answer.code, answer.json["field"]) == ("invalid-request", query.partition("=")[0])


@pytest.mark.parametrize("verb", ["publish", "discard"])
def test_limits_of_parts(native: Native, verb: str) -> None:
    """So many parts can be named, with names of such a length."""
    for parts, field in ((["x"] * 10_001, "$.parts"), (["", "x" * 257], "$.parts[1]")):
        answer = native.send("POST", f"{TRANSACTION}/{verb}", {"parts": parts})
        assert (answer.code, answer.json["field"]) == ("out-of-range", field)


def test_names_of_transactions(native: Native) -> None:
    """A name is made of what an address can hold."""
    answer = native.send("GET", f"{BASE}/transactions/a%20b")
    assert (answer.code, answer.json["field"]) == ("invalid-request", "name")
