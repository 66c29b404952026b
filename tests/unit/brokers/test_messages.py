"""Messages and queues of AMQP as those of Leasehold."""

from __future__ import annotations

from typing import Any

import pytest

from leasehold.brokers.kombu.messages import (
    MAX_DELAY_S,
    Declared,
    bound_to,
    from_received,
    queue_name,
    to_put,
)
from leasehold.client.models import NEVER, NewMessage, ReceivedMessage
from leasehold.domain.limits import check_queue_name

NOW_MS = 1_767_225_600_000  # 2026-01-01T00:00:00Z


def put(
    *,
    headers: dict[str, Any] | None = None,
    properties: dict[str, Any] | None = None,
    max_priority: int = 9,
    time_to_live_s: int | None = None,
) -> NewMessage:
    """Return what is put for a message with these."""
    message = {
        "body": b"[]",
        "content-type": "application/json",
        "content-encoding": "utf-8",
        "headers": headers or {},
        "properties": properties or {},
    }
    return to_put(message, now_ms=NOW_MS, max_priority=max_priority, time_to_live_s=time_to_live_s)


@pytest.mark.parametrize(
    ("eta", "delay_s"),
    [
        (None, 0),
        ("2026-01-01T00:01:00+00:00", 60),
        ("2026-01-01T00:01:00Z", 60),
        ("2026-01-01T01:01:00+01:00", 60),
        ("2026-01-01T00:01:00", 60),
        ("2026-01-01T00:00:00.001+00:00", 1),
        ("2025-12-31T00:00:00+00:00", 0),
        ("2999-01-01T00:00:00+00:00", MAX_DELAY_S),
        ("tomorrow", 0),
    ],
)
def test_an_eta_is_a_delay(eta: str | None, delay_s: int) -> None:
    """It is rounded up, and no later than the server can hold a message."""
    assert put(headers={"eta": eta}).delay_s == delay_s


@pytest.mark.parametrize(
    ("given", "max_priority", "priority"),
    [(None, 9, 16), (0, 9, 16), (9, 9, 1), (99, 9, 1), (-1, 9, 16), (5, 9, 8), (255, 255, 1)],
)
def test_the_highest_priority_is_received_first(
    given: int | None, max_priority: int, priority: int
) -> None:
    """Of AMQP the highest number, of Leasehold the lowest."""
    properties = {"priority": given}
    assert put(properties=properties, max_priority=max_priority).priority == priority


def test_all_priorities_differ() -> None:
    """Ten of them find room among sixteen."""
    found = [put(properties={"priority": each}).priority for each in range(10)]
    assert found == sorted(set(found), reverse=True)


def test_messages_live_for_ever_unless_said_otherwise() -> None:
    """The time to live begins when the delay is over."""
    assert put().time_to_live_s == NEVER
    assert put(time_to_live_s=300).time_to_live_s == 300
    assert put(properties={"expiration": "1500"}, time_to_live_s=300).time_to_live_s == 2
    late = put(headers={"eta": "2026-01-01T00:01:00Z"}, properties={"expiration": "1000"})
    assert late.time_to_live_s == 61


def test_a_task_can_be_told_from_others() -> None:
    """Type, group and deduplication key are those of the message."""
    made = put(
        headers={"task": "shop.mail"},
        properties={"MessageGroupId": "tenant", "MessageDeduplicationId": "once"},
    )
    assert (made.type, made.group_id, made.dedup_key) == ("shop.mail", "tenant", "once")
    assert made.body == b"[]"


def received(made: NewMessage, **members: Any) -> ReceivedMessage:
    """Return the message as it is received."""
    assert isinstance(made.body, bytes)
    return ReceivedMessage(
        id="1", receipt="r", body=made.body, properties=made.properties or {}, **members
    )


def test_a_message_comes_back_as_it_was() -> None:
    """Body, headers, properties; and whether it was received before."""
    made = put(headers={"task": "t", "n": 1}, properties={"correlation_id": "c"})
    raw = from_received(received(made, dequeue_count=1), "tag")
    assert raw["body"] == b"[]"
    assert raw["headers"] == {"task": "t", "n": 1}
    assert raw["content-type"] == "application/json"
    assert raw["properties"] == {
        "correlation_id": "c",
        "delivery_tag": "tag",
        "delivery_info": {"redelivered": False},
    }
    again = from_received(received(made, dequeue_count=2), "tag")
    assert again["properties"]["delivery_info"]["redelivered"]


def test_a_message_of_others_has_a_body_only() -> None:
    """It was put by another client."""
    raw = from_received(received(NewMessage(b"hello"), dequeue_count=1), "tag")
    assert (raw["body"], raw["headers"]) == (b"hello", {})


@pytest.mark.parametrize("name", ["celery", "a", "Films-2"])
def test_names_that_can_be_are_kept(name: str) -> None:
    """Operators find them where they look."""
    assert queue_name(name) == name
    assert queue_name(name, "shop-") == f"shop-{name}"


@pytest.mark.parametrize(
    "name", ["celery@host.celery.pidbox", "ünï", "-a", ".", "a" * 300, "a b", "celeryev.1-2"]
)
def test_other_names_become_valid_ones(name: str) -> None:
    """Each another one."""
    made = queue_name(name)
    check_queue_name(made)
    assert made != queue_name(f"{name}.")


def test_what_a_queue_is_to_kombu_is_in_its_metadata() -> None:
    """What others have written there stays."""
    said = Declared("q@1", frozenset({("ex", "key"), ("", "ü")}), "session", 300)
    written = said.write({"owner": "team", "kombu_session": "old"})
    assert Declared.read(written) == said
    assert written["owner"] == "team"
    assert all(value.isascii() for value in written.values())
    assert Declared.read({"owner": "team"}) is None
    plain = Declared("q")
    assert Declared.read(plain.write(written)) == plain


def test_bindings_of_an_exchange() -> None:
    """Those of all queues."""
    queues = [
        Declared("a", frozenset({("x", "1"), ("y", "2")})),
        Declared("b"),
        Declared("c", frozenset({("x", "3")})),
    ]
    assert [(key, queue.name) for key, queue in bound_to("x", queues)] == [("1", "a"), ("3", "c")]
