"""Visibility timeouts by message type, and of single messages, through the native API."""

from __future__ import annotations

import io
from typing import Any

import pyarrow as pa
import pytest

from leasehold.domain.commands import SetAdapted
from leasehold.domain.queue_settings import Adapted

from .support import ACCOUNT, BASE, MESSAGES, QUEUE, Answer, Native

RULES = {"encode": {"visibility_timeout_s": 600}, "thumb.*": {"visibility_timeout_s": 20}}


def change(native: Native, **settings: Any) -> Answer:
    return native.send("PATCH", QUEUE, {"settings": settings})


def leases(native: Native, **request: Any) -> list[int]:
    """Receive, and return how long the leases are, in seconds."""
    answer = native.post(f"{MESSAGES}/receive", {"max_messages": 10, **request})
    now_ms = native.clock.now_ms()
    return [(each["visible_at_ms"] - now_ms) // 1000 for each in answer["messages"]]


def test_each_message_has_its_own_lease(native: Native) -> None:
    """What its producer asked for, what is set for its type, or what is set for the queue."""
    assert change(native, timeouts_by_type=RULES).status == 200
    for members in (
        {"type": "encode"},
        {"type": "thumb.small"},
        {"type": "thumb.small", "visibility_timeout_s": 5},
        {},
    ):
        native.put_bodies("work", **members)
    assert leases(native) == [600, 20, 5, 30]
    native.clock.advance(s=600)
    assert leases(native, visibility_timeout_s=9) == [9, 9, 9, 9]


def test_rules_are_merged_one_by_one(native: Native) -> None:
    """A patch names the rules that it changes; null removes one, and what came before is told."""
    change(native, timeouts_by_type=RULES)
    answer = change(
        native, timeouts_by_type={"encode": None, "thumb.*": {"adaptive": {"cap_s": 60}}}
    )
    rules = answer.json["settings"]["timeouts_by_type"]
    adaptive = {"floor_s": 5, "cap_s": 60}
    assert rules == {"thumb.*": {"visibility_timeout_s": 20, "adaptive": adaptive}}
    previous = answer.json["previous"]["settings"]
    assert change(native, **previous).json["settings"]["timeouts_by_type"] == {
        name: {**rule, "adaptive": None} for name, rule in RULES.items()
    }
    assert change(native, timeouts_by_type=None).json["settings"]["timeouts_by_type"] == {}


def test_what_the_server_chose_is_shown_and_cannot_be_set(native: Native) -> None:
    """It comes back unharmed from a client that sends the settings it was shown."""
    change(native, timeouts_by_type={"a": {"adaptive": {}}})
    chosen = Adapted(visibility_timeout_s=44, because="the work", at_ms=1)
    native.runner.run(native.perform(SetAdapted(ACCOUNT, "orders", chosen, "a")))
    shown = native.send("GET", QUEUE).json["settings"]
    assert shown["adapted_by_type"]["a"]["visibility_timeout_s"] == 44
    assert shown["adapted"] is None
    again = change(native, **{**shown, "adapted_by_type": {}})
    assert again.json["settings"] == shown
    native.put_bodies("work", type="a")
    assert leases(native) == [44]


@pytest.mark.parametrize(
    ("settings", "code", "field"),
    [
        ({"timeouts_by_type": {"a": {"visibility_timeout_s": 0}}}, "out-of-range", ".a.vis"),
        ({"timeouts_by_type": {"a.b": {"timeout": 1}}}, "invalid-request", ".a.b"),
        (
            {"timeouts_by_type": {"a": {"adaptive": {"bottom": 1}}}},
            "invalid-request",
            ".a.adaptive",
        ),
        (
            {"timeouts_by_type": {"a": {"adaptive": {"floor_s": 9, "cap_s": 8}}}},
            *("out-of-range", ".a.adaptive.floor_s"),
        ),
        ({"timeouts_by_type": {"a*b": {}}}, "invalid-request", ""),
        ({"timeouts_by_type": {"": {}}}, "out-of-range", ""),
        ({"timeouts_by_type": {"a": 3}}, "invalid-request", ""),
        ({"timeouts_by_type": {str(n): {} for n in range(101)}}, "out-of-range", ""),
        ({"advised_by_type": {"a": {"batch": 0}}}, "out-of-range", ".a.batch"),
    ],
)
def test_what_makes_no_sense_is_refused(
    native: Native, settings: dict[str, Any], code: str, field: str
) -> None:
    """With the place, however it is named."""
    answer = change(native, **settings)
    (member,) = settings
    assert answer.status == 400
    assert answer.json["code"] == code, answer.json
    assert answer.json["field"].startswith(f"$.settings.{member}{field}"), answer.json
    assert native.send("GET", QUEUE).json["settings"]["timeouts_by_type"] == {}


def test_a_queue_that_is_there_must_have_the_same_rules(native: Native) -> None:
    """Rule by rule, as far as they are named."""
    path = f"{BASE}/queues/typed"
    native.send("PUT", path, {"settings": {"timeouts_by_type": RULES}})
    same = {"timeouts_by_type": {"encode": RULES["encode"]}}
    assert native.send("PUT", path, {"settings": same}).status == 200
    other = {"timeouts_by_type": {"encode": {"visibility_timeout_s": 601}}}
    assert native.send("PUT", path, {"settings": other}).code == "settings-differ"


# --- of a message -------------------------------------------------------------------------------


def test_a_timeout_that_is_too_long_is_refused(native: Native) -> None:
    """With the limit of the queue; the other messages of the request are put."""
    change(native, max_message_timeout_s=60)
    items = [{"body": "a", "visibility_timeout_s": 61}, {"body": "b", "visibility_timeout_s": 60}]
    answer = native.post(MESSAGES, {"messages": items})
    problem = answer["results"][0]["error"]
    assert (problem["code"], problem["maximum"]) == ("out-of-range", 60)
    assert problem["field"] == "$.messages[0].visibility_timeout_s"
    assert answer["failed"] == 1
    assert leases(native) == [60]


def test_raw_puts_and_views_have_it_too(native: Native) -> None:
    """The query names it, and whoever looks at the message sees it."""
    answer = native.send("POST", f"{MESSAGES}/raw", b"x", query="visibility_timeout_s=7&type=a")
    assert answer.status == 201
    shown = native.send("GET", f"{MESSAGES}/{answer.json['id']}").json
    assert (shown["visibility_timeout_s"], shown["type"]) == (7, "a")
    refused = native.send("POST", f"{MESSAGES}/raw", b"x", query="visibility_timeout_s=0")
    assert refused.code == "out-of-range"
    assert leases(native) == [7]


def test_an_arrow_stream_has_a_column_for_it(native: Native) -> None:
    """Rows without a value have none; one that is out of range is refused with its place."""

    def stage(values: list[int | None]) -> Answer:
        table = pa.table({"body": [b"x"] * len(values), "visibility_timeout_s": values})
        sink = io.BytesIO()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        return native.send(
            "POST",
            f"{BASE}/transactions/job/stage",
            sink.getvalue(),
            query="queue=orders&part=p&chunk=0",
            headers={"content-type": "application/vnd.apache.arrow.stream"},
        )

    refused = stage([1, None, 0])
    assert refused.json["field"] == "visibility_timeout_s[2]", refused.json
    assert stage([70, None, 70]).status == 200
    native.post(f"{BASE}/transactions/job/publish", {})
    assert leases(native) == [70, 30, 70]


# --- why ----------------------------------------------------------------------------------------


def test_explain_says_which_timeout_applies_and_why(native: Native) -> None:
    """In the sentence where it is not that of the queue, and always in the evidence."""
    change(native, timeouts_by_type=RULES)

    def explained(**members: Any) -> tuple[str, dict[str, Any]]:
        [sent] = native.put_bodies("work", **members)
        answer = native.send("GET", f"{MESSAGES}/{sent['id']}/explain").json
        return answer["sentence"], answer["evidence"]

    sentence, evidence = explained(type="thumb.small")
    assert sentence.endswith("; by default it is leased for 20 s, as set for type thumb.*.")
    assert evidence["visibility_timeout_s"] == 20
    assert evidence["visibility_timeout_from"] == "type"
    assert evidence["visibility_timeout_rule"] == "thumb.*"
    sentence, evidence = explained(visibility_timeout_s=40)
    assert sentence.endswith("; by default it is leased for 40 s, as its producer asked.")
    assert evidence["visibility_timeout_from"] == "message"
    sentence, evidence = explained(type="other")
    assert "by default" not in sentence
    assert (evidence["visibility_timeout_s"], evidence["visibility_timeout_from"]) == (30, "queue")
