"""The event log over HTTP."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from leasehold.client import models as client_models
from leasehold.domain.commands import CreateQueue
from leasehold.domain.events import COLUMNS, Event, EventPage, EventType, Kind, ReadEvents
from leasehold.domain.model import NEVER_MS
from leasehold.events.names import TYPE_NAMES
from leasehold.http.native.account import show_event
from tests.unit.http.native.checking import document, errors_of
from tests.unit.http.native.support import ACCOUNT, BASE, MESSAGES, QUEUE, Native

EVENTS = f"{BASE}/events"


def _types(page: dict[str, Any]) -> list[str]:
    return [event["type"] for event in page["events"]]


def test_events(native: Native) -> None:
    """Every change is an event, with what the message was like after it."""
    [sent] = native.put_bodies("x", time_to_live_s=-1)
    native.receive_one(holder="me", visibility_timeout_s=30)
    page = native.get(EVENTS)
    assert _types(page) == ["queue-created", "put", "received"]
    assert page["finished"] is True
    now_ms = native.clock.now_ms()
    created, put, received = page["events"]
    assert set(created) == {"seq", "place", "at_ms", "type", "queue", "actor"}
    assert created["actor"] == f"key:{ACCOUNT}/1"
    assert "actor" not in put
    assert "expires_at_ms" not in put
    assert put["phase"] == "waiting"
    assert received == {
        "seq": received["seq"],
        "place": 0,
        "at_ms": now_ms,
        "type": "received",
        "queue": "orders",
        "message_id": sent["id"],
        "inserted_at_ms": now_ms,
        "visible_at_ms": now_ms + 30_000,
        "dequeue_count": 1,
        "fence": received["fence"],
        "phase": "leased",
        "since_ms": now_ms,
        "visible_since_ms": now_ms,
        "renewals": 0,
        "holder": "me",
        "priority": 8,
    }


def test_types_and_errors(native: Native) -> None:
    """Each event tells the message's type, and that which ends an attempt the worker's error."""
    native.post(MESSAGES, {"messages": [{"body": "x", "type": "clip"}]})
    message = native.receive_one()
    error = {"text": "x" * 300, "type": "KeyError", "fingerprint": "f00d"}
    item = {"id": message["id"], "receipt": message["receipt"], "outcome": "failed", "error": error}
    native.post(f"{MESSAGES}/release", {"items": [item]})
    put, received, released = native.get(f"{MESSAGES}/{message['id']}/trace")["events"]
    assert [each["message_type"] for each in (put, received, released)] == ["clip"] * 3
    assert "error" not in received
    assert released["error"] == "x" * 253 + "..."
    assert (released["error_type"], released["error_fingerprint"]) == ("KeyError", "f00d")


def test_pages(native: Native) -> None:
    """A page ends with a batch, and the next one begins where it says."""
    native.put_bodies("one", "two", "three")
    native.put_bodies("four")
    first = native.get(EVENTS, "limit=2")
    assert _types(first) == ["queue-created", "put", "put", "put"]
    assert first["finished"] is False
    second = native.get(EVENTS, f"limit=2&after={first['next_after']}")
    assert (_types(second), second["finished"]) == (["put"], True)
    third = native.get(EVENTS, f"after={second['next_after']}")
    end = second["next_after"]
    extent = {"last_seq": end, "first_seq": first["events"][0]["seq"]}
    assert third == {"events": [], "next_after": end, "finished": True, **extent}


def test_the_newest_number(native: Native) -> None:
    """Each page says where the log ends, whatever the page itself has."""
    native.put_bodies("one")
    native.put_bodies("two")
    first = native.get(EVENTS, "limit=1")
    end = native.get(EVENTS)["next_after"]
    assert first["next_after"] < first["last_seq"] == end
    assert native.get(EVENTS, f"after={end + 100}")["last_seq"] == end


def test_trace(native: Native) -> None:
    """A trace has what concerns one message, also when that is gone."""
    [sent, _] = native.put_bodies("x", "y")
    message = native.receive_one()
    item = {"id": message["id"], "receipt": message["receipt"]}
    native.post(f"{MESSAGES}/complete", {"items": [item]})
    page = native.get(f"{MESSAGES}/{sent['id']}/trace")
    assert _types(page) == ["put", "received", "completed"]
    assert {event["message_id"] for event in page["events"]} == {sent["id"]}
    page = native.get(f"{MESSAGES}/nothing/trace")
    assert (page["events"], page["finished"]) == ([], True)


def test_a_trace_follows_into_the_poison_queue(native: Native) -> None:
    """What happened before and after a message was poisoned is one story."""
    native.send("PATCH", QUEUE, {"settings": {"failure_policy": {"max_failures": 1}}})
    native.put_bodies("x")
    message = native.receive_one()
    item = {"id": message["id"], "receipt": message["receipt"], "outcome": "buried"}
    native.post(f"{MESSAGES}/release", {"items": [item]})
    events = native.get(f"{MESSAGES}/{message['id']}/trace")["events"]
    assert [event["type"] for event in events][:2] == ["put", "received"]
    [poisoned] = [event for event in events if event["type"] == "poisoned"]
    assert (poisoned["target"], poisoned["reason"]) == ("orders-poison", "buried")


def test_a_trace_shows_nothing_of_other_queues(native: Native) -> None:
    """Who may look at one queue cannot follow messages of another one."""
    native.send("PUT", f"{BASE}/queues/other")
    body = {"messages": [{"body": "secret"}]}
    [sent] = native.post(f"{BASE}/queues/other/messages", body)["results"]
    assert native.get(f"{MESSAGES}/{sent['id']}/trace")["events"] == []
    assert len(native.get(f"{BASE}/queues/other/messages/{sent['id']}/trace")["events"]) == 1


def test_a_trace_goes_on_through_empty_pages(native: Native) -> None:
    """Pages without an event of the message are passed over, but not without end."""
    asked: list[int] = []
    perform = native.perform

    async def empty(command: Any) -> Any:
        if isinstance(command, ReadEvents):
            asked.append(command.after_seq)
            return EventPage((), command.after_seq + 10, finished=False)
        return await perform(command)

    native.change_services(perform=empty)
    page = native.get(f"{MESSAGES}/x/trace", "after=5")
    assert page == {"events": [], "next_after": 45, "finished": False}
    assert asked == list(range(5, 45, 10))


def test_a_trace_ends_with_the_first_page_that_has_something(native: Native) -> None:
    """Where to go on from is behind what is shown, and nothing is passed over."""
    native.put_bodies("x")
    message = native.receive_one()
    item = {"id": message["id"], "receipt": message["receipt"], "visibility_timeout_s": 60}
    native.post(f"{MESSAGES}/renew", {"items": [item]})
    path, after, seen = f"{MESSAGES}/{message['id']}/trace", 0, []
    while True:
        page = native.get(path, f"limit=1&after={after}")
        seen += _types(page)
        if page["finished"]:
            break
        after = page["next_after"]
    assert seen == ["put", "received", "renewed"]


def test_accounts_are_apart(native: Native) -> None:
    """Nobody is shown the events of another account."""
    native.runner.run(native.perform(CreateQueue("other", "secret", {})))
    native.put_bodies("x")
    page = native.get(EVENTS)
    assert [(event["type"], event["queue"]) for event in page["events"]] == [
        ("queue-created", "orders"),
        ("put", "orders"),
    ]
    assert page["finished"] is True


@pytest.mark.parametrize("query", ["limit=0", "limit=10001", "after=-1", f"after={2**53 + 1}"])
def test_limits(native: Native, query: str) -> None:
    """Pages have limits."""
    answer = native.send("GET", EVENTS, query=query)
    assert (answer.code, answer.json["field"]) == ("out-of-range", query.partition("=")[0])


def test_a_missing_queue(native: Native) -> None:
    """A trace is asked of a queue that there is."""
    assert native.send("GET", f"{BASE}/queues/nowhere/messages/x/trace").code == "queue-not-found"


def test_all_types_are_in_the_document() -> None:
    """The document has a name for each type of event."""
    told = document()["components"]["schemas"]
    assert told["EventType"]["enum"] == [TYPE_NAMES[each] for each in EventType]
    assert told["Event"]["required"] == ["seq", "place", "at_ms", "type"]


def test_what_is_shown_is_what_the_document_and_the_client_know() -> None:
    """Every column of an event but the account, and in the order of the columns."""
    names = [name for name in Event._fields if name != "account"]
    values: dict[str, Any] = dict.fromkeys(Event._fields, "1" * 32)
    values |= {name: 1 for name, each in COLUMNS.items() if each.kind is not Kind.TEXT}
    shown = json.loads(msgspec.json.encode(show_event(Event(**values))))
    assert list(shown) == names
    schema = document()["components"]["schemas"]["Event"]
    assert errors_of(schema, shown) == []
    assert list(schema["properties"]) == names
    known = msgspec.convert(shown, client_models.Event)
    assert {name: getattr(known, name) for name in known.__struct_fields__} == shown


def test_every_part_of_an_event_is_shown() -> None:
    """What an event has comes under its own name, but for the account, which the path has."""
    values: dict[str, Any] = {name: number for number, name in enumerate(Event._fields, 1)}
    values |= {"type": EventType.LEASE_ENDED, "phase": 2}
    shown = show_event(Event(**values))
    expected = {**values, "type": "lease-ended", "phase": "leased"}
    del expected["account"]
    assert msgspec.structs.asdict(shown) == expected
    never = show_event(Event(**{**values, "expires_at_ms": NEVER_MS, "visible_since_ms": 0}))
    left_out = {"expires_at_ms", "visible_since_ms"}
    assert msgspec.to_builtins(never).keys() == expected.keys() - left_out
