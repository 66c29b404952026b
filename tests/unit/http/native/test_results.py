"""What a holder says came of its work, with a complete and with a commit."""

from __future__ import annotations

from typing import Any

import pytest

from leasehold.client import Client
from leasehold.client.models import Completion
from leasehold.domain.limits import MAX_RESULT_BYTES
from leasehold.testing import InProcessServer
from tests.unit.http.native.support import BASE, MESSAGES, Native

EVENTS = f"{BASE}/events"


def _complete(native: Native, message: dict[str, Any], **members: Any) -> dict[str, Any]:
    item = {"id": message["id"], "receipt": message["receipt"]}
    answer: dict[str, Any] = native.post(f"{MESSAGES}/complete", {"items": [item | members]})
    return answer


def _results(native: Native) -> list[str | None]:
    events = native.get(EVENTS)["events"]
    return [each.get("result") for each in events if each["type"] == "completed"]


@pytest.mark.parametrize(
    ("given", "kept"), [({"result": {"a": [1, None]}}, '{"a":[1,null]}'), ({"result": None}, None)]
)
def test_any_json_is_kept(native: Native, given: dict[str, Any], kept: str | None) -> None:
    """The event has it as text without blanks; null is none."""
    native.put_bodies("x", "y")
    _complete(native, native.receive_one(), **given)
    _complete(native, native.receive_one())
    assert _results(native) == [kept, None]


def test_the_limit_is_on_json_without_blanks(native: Native) -> None:
    """One byte more is refused with both figures, and the message stays."""
    native.put_bodies("x")
    message = native.receive_one()
    longest = "x" * (MAX_RESULT_BYTES - 4)
    [refused] = [
        each["error"] for each in _complete(native, message, result=[longest + "y"])["results"]
    ]
    assert (refused["code"], refused["field"]) == ("out-of-range", "$.items[0].result")
    assert (refused["value"], refused["maximum"]) == (MAX_RESULT_BYTES + 1, MAX_RESULT_BYTES)
    _complete(native, message, result=[longest])
    assert _results(native) == [f'["{longest}"]']


def test_a_client_gives_results() -> None:
    """With one message, with many and with a commit; what is too large is refused before."""
    with (
        InProcessServer() as server,
        Client.from_connection_string(server.connection_string) as client,
    ):
        queue = client.queue("orders")
        queue.create()
        queue.put_many(["x"] * 5)
        one, two, three, four, five = queue.receive(5)
        queue.complete(one, result={"n": 1})
        queue.complete_many([Completion(two, [2]), three])
        client.commit(complete=[Completion(four, 4)])
        with pytest.raises(ValueError, match="16,384 are kept"):
            queue.complete(five, result="x" * MAX_RESULT_BYTES)
        found = {
            each.message_id: each.result for each in client.events() if each.type == "completed"
        }
    assert found == {one.id: '{"n":1}', two.id: "[2]", three.id: None, four.id: "4"}
