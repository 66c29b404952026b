"""How the native client is used: what goes out, and what its errors mean."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from leasehold.client import Client
from leasehold.testing.memory_queue import MemoryQueue
from leasehold.worker.adapters.envelope import EnvelopeForm, StagePrefixForm
from leasehold.worker.adapters.native import NativeQueue
from leasehold.worker.adapters.protocol import (
    BodyTooLarge,
    Delivery,
    Denied,
    Fault,
    Lease,
    LeaseGone,
    Outgoing,
    QueueError,
    Release,
    Renewed,
    Saved,
    Unreachable,
)

Play = Callable[[str, Any], httpx.Response]


class Server(httpx.BaseTransport):
    """Notes what comes, and plays answers."""

    def __init__(self, play: Play) -> None:
        self.seen: list[tuple[str, Any]] = []
        self.timeouts: list[dict[str, float]] = []
        self._play = play

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Answer."""
        verb = request.url.path.rpartition("/")[2]
        content = json.loads(request.read() or b"null")
        self.seen.append((verb, content))
        self.timeouts.append(dict(request.extensions.get("timeout", {})))
        return self._play(verb, content)


def reply(members: Any, status: int = 200) -> httpx.Response:
    kind = "application/json" if status < 400 else "application/problem+json"
    return httpx.Response(status, json=members, headers={"content-type": kind})


def results(*items: dict[str, Any]) -> httpx.Response:
    return reply({"results": list(items)})


def made(play: Play, **options: Any) -> tuple[NativeQueue, Server]:
    server = Server(play)
    client = Client(transport=server)
    return NativeQueue(client.queue("orders"), **options), server


def leases(count: int) -> list[Lease]:
    return [Lease(f"m{number}", f"r{number}") for number in range(count)]


def test_a_renewal_is_sent_once() -> None:
    """A repeat after a lost answer would find the receipt replaced, and look like a lost lease."""

    def broken(_: str, __: Any) -> httpx.Response:
        raise httpx.ReadError("broken")

    queue, server = made(broken)
    with pytest.raises(Unreachable) as caught:
        queue.renew(leases(1), 30)
    assert caught.value.outcome_unknown
    assert len(server.seen) == 1


def test_a_renewal_has_the_time_that_it_is_given() -> None:
    """Its own limit counts in place of the client's."""
    queue, server = made(lambda *_: results({"id": "m0", "receipt": "n", "visible_at_ms": 1}))
    queue.renew(leases(1), 30, timeout_s=1.5)
    queue.renew(leases(1), 30)
    assert [each["read"] for each in server.timeouts] == [1.5, 30.0]


def test_many_renewals_go_in_one_request() -> None:
    """Results come in their order, a refusal among them."""
    problem = {"code": "lease-lost", "reason": "superseded"}
    queue, server = made(
        lambda *_: results(
            {"id": "m0", "receipt": "n0", "visible_at_ms": 1},
            {"id": "m1", "error": problem},
            {
                "id": "m2",
                "receipt": "n2",
                "visible_at_ms": 1,
                "cancel": {"at_ms": 1, "reason": None},
            },
        )
    )
    first, second, third = queue.renew(leases(3), 30)
    assert first == Renewed("n0")
    assert isinstance(second, LeaseGone)
    assert isinstance(third, Renewed)
    assert third.cancel == "requested by an operator"
    assert len(server.seen) == 1


def test_a_part_that_fails_does_not_hide_the_others() -> None:
    """Of a call that is cut into several requests, what was answered counts."""
    calls = 0

    def play(_: str, content: Any) -> httpx.Response:
        nonlocal calls
        calls += 1
        if calls == 2:
            return reply({"code": "store-failed"}, 503)
        found = [
            {"id": each["id"], "receipt": "n", "visible_at_ms": 1} for each in content["items"]
        ]
        return results(*found)

    queue, _ = made(play)
    found = queue.renew(leases(10_001), 30)
    assert len(found) == 10_001
    assert isinstance(found[0], Renewed)
    assert isinstance(found[10_000], Unreachable)


def test_releases_go_together() -> None:
    """Each has its own reason in one request, and results come in the order given."""
    refusal = {"error": {"code": "lease-lost", "reason": "superseded"}}
    queue, server = made(
        lambda *_: results(
            {"id": "m0", "visible_at_ms": 1}, refusal, {"id": "m2", "visible_at_ms": 1}
        )
    )
    fault = Fault(text="bad", type="ValueError", fingerprint="f")
    one, two, three = leases(3)
    found = queue.release(
        [
            Release(lease=one, outcome="returned"),
            Release(lease=two, outcome="failed", delay_s=3, fault=fault),
            Release(lease=three, outcome="failed", fault=Fault(text="worse")),
        ]
    )
    assert found[0] is None
    assert isinstance(found[1], LeaseGone)
    assert found[2] is None
    ((_, content),) = server.seen
    returned, failed, worse = content["items"]
    assert "error" not in returned
    assert (failed["outcome"], failed["delay_s"]) == ("failed", 3)
    assert failed["error"] == {"text": "bad", "type": "ValueError", "fingerprint": "f"}
    assert "delay_s" not in worse
    assert worse["error"] == {"text": "worse"}


def test_releases_that_get_no_answer_fail_as_one() -> None:
    """As any call that settles does."""
    queue, _ = made(lambda *_: reply({"code": "store-failed"}, 500))
    one, two = leases(2)
    with pytest.raises(Unreachable):
        queue.release(
            [
                Release(lease=one, outcome="returned"),
                Release(lease=two, outcome="failed", fault=Fault(text="bad")),
            ]
        )


def test_a_reason_that_is_no_utf_8_is_told_all_the_same() -> None:
    """Half of a character in what an exception says keeps nobody's message from being settled."""
    queue, server = made(lambda *_: results({"id": "m0", "visible_at_ms": 1}))
    (one,) = leases(1)
    fault = Fault(text="no file \udcff.mp4")
    assert queue.release([Release(lease=one, outcome="failed", fault=fault)]) == [None]
    queue.bury(DELIVERY, "r0", fault)
    told = [content["items"][0]["error"]["text"] for _, content in server.seen]
    assert told == ["no file \\udcff.mp4"] * 2


def past_expiry(_: str, content: Any) -> httpx.Response:
    """Play a server on which messages with an odd number expire in five seconds."""
    refusal = {"error": {"code": "visibility-past-expiry", "status": 400, "value": 60}}
    found = []
    for each in content["items"]:
        is_late = int(each["id"][1:]) % 2 and each.get("delay_s", 0) > 5
        found.append(refusal if is_late else {"id": each["id"], "visible_at_ms": 1})
    return results(*found)


def test_a_delay_past_the_expiry_does_not_cost_the_last_chance() -> None:
    """What would expire before its delay is over is given back once more, without one."""
    queue, server = made(past_expiry)
    fault = Fault(text="bad")
    releases = [
        Release(lease=each, outcome="failed", delay_s=60, fault=fault) for each in leases(4)
    ]
    assert queue.release(releases) == [None] * 4
    first, second = (content["items"] for _, content in server.seen)
    assert len(first) == 4
    assert [(each["id"], each["delay_s"]) for each in second] == [("m1", 0), ("m3", 0)]
    assert second[0]["error"] == {"text": "bad"}
    assert second[0]["outcome"] == "failed"


def test_what_cannot_be_given_back_at_once_either_is_told() -> None:
    """The others are given back all the same."""

    def play(verb: str, content: Any) -> httpx.Response:
        if content["items"][0].get("delay_s") == 0:
            return reply({"code": "store-failed"}, 500)
        return past_expiry(verb, content)

    queue, _ = made(play)
    found = queue.release(
        [Release(lease=each, outcome="returned", delay_s=60) for each in leases(2)]
    )
    assert found[0] is None
    assert isinstance(found[1], Unreachable)


RENEWED = {"id": "m0", "receipt": "n", "visible_at_ms": 1}
DELIVERY = Delivery(queue="orders", message_id="m0", receipt="r0", body=b"work")


def test_progress_is_kept_beside_the_body() -> None:
    """The body is not sent; the fraction and the stage are told to people as well."""
    queue, server = made(lambda *_: results(RENEWED))
    assert queue.capabilities.saves == "beside"
    saved = Saved(stage="encode", state=[1], fraction=0.4)
    assert queue.save(DELIVERY, "r0", saved, 30) == Renewed("n")
    (item,) = server.seen[0][1]["items"]
    assert item["progress"] == {"fraction": 0.4, "note": "encode"}
    assert item["saved"] == {
        "leasehold.saved": 1,
        "stage": "encode",
        "state": [1],
        "fraction": 0.4,
    }
    assert "body" not in item
    queue.save(DELIVERY, "r0", Saved(), 30)
    assert server.seen[1][1]["items"][0]["saved"] == {"leasehold.saved": 1}


def test_a_save_is_sent_once() -> None:
    """As a renewal is, which it is."""

    def broken(_: str, __: Any) -> httpx.Response:
        raise httpx.ReadError("broken")

    queue, server = made(broken)
    with pytest.raises(Unreachable):
        queue.save(DELIVERY, "r0", Saved(), 30)
    assert len(server.seen) == 1


@pytest.mark.parametrize(
    ("problem", "meaning"),
    [
        ({"code": "out-of-range", "field": "$.items[0].saved", "value": 70_000}, BodyTooLarge),
        ({"code": "out-of-range", "field": "$.items[0].visibility_timeout_s"}, Denied),
        ({"code": "lease-lost", "reason": "superseded"}, LeaseGone),
    ],
)
def test_a_refused_save(problem: dict[str, Any], meaning: type[QueueError]) -> None:
    """Too much of it is what too large a body is."""
    queue, _ = made(lambda *_: results({"error": problem}))
    with pytest.raises(meaning):
        queue.save(DELIVERY, "r0", Saved(), 30)


@pytest.mark.parametrize(
    ("saved", "error"),
    [
        (Saved(state=object()), TypeError),
        (Saved(state=float("nan")), TypeError),
        (Saved(state="\ud800"), TypeError),
        (Saved(fraction=2), ValueError),
    ],
)
def test_what_json_cannot_say_is_not_sent(saved: Saved, error: type[Exception]) -> None:
    """Nor is half of a character, which has no UTF-8."""
    queue, server = made(lambda *_: results(RENEWED))
    with pytest.raises(error):
        queue.save(DELIVERY, "r0", saved, 30)
    assert server.seen == []


def received(**members: Any) -> Delivery:
    """Return a delivery of a message of which the server tells this."""
    message = {"id": "m", "receipt": "r", "body": "work", "dequeue_count": 1}
    message |= {"inserted_at_ms": 1, "visible_at_ms": 2, **members}
    queue, _ = made(lambda *_: reply({"messages": [message]}))
    (delivery,) = queue.receive(1, visibility_timeout_s=30)
    return delivery


ENVELOPE = '{"leasehold.envelope":1,"saved":{"stage":"scan"},"body":"clip"}'


@pytest.mark.parametrize(
    ("members", "body", "saved"),
    [
        ({}, b"work", None),
        ({"saved": {"leasehold.saved": 1}}, b"work", Saved()),
        (
            {"saved": {"leasehold.saved": 1, "stage": "s", "state": 0, "fraction": 0.5}},
            b"work",
            Saved(stage="s", state=0, fraction=0.5),
        ),
        ({"saved": {"page": 3}}, b"work", Saved(state={"page": 3})),
        ({"saved": {"leasehold.saved": True}}, b"work", Saved(state={"leasehold.saved": True})),
        ({"saved": [3]}, b"work", Saved(state=[3])),
        *(
            ({"saved": other}, b"work", Saved(state=other))
            for other in (
                {"leasehold.saved": 1, "stage": 1},
                {"leasehold.saved": 1, "fraction": True},
                {"leasehold.saved": 1, "fraction": 1.5},
                {"leasehold.saved": 1, "page": 3},
            )
        ),
        ({"body": ENVELOPE}, b"clip", Saved(stage="scan")),
        ({"body": ENVELOPE, "saved": {"leasehold.saved": 1}}, b"clip", Saved()),
    ],
)
def test_what_was_saved_comes_with_the_delivery(
    members: dict[str, Any], body: bytes, saved: Saved | None
) -> None:
    """What other clients saved is all state; earlier versions kept it in an envelope."""
    delivery = received(**members)
    assert (delivery.body, delivery.saved, delivery.body_problem) == (body, saved, None)


def test_progress_of_a_newer_version_is_a_problem() -> None:
    """Whoever cannot read it must not begin anew."""
    delivery = received(saved={"leasehold.saved": 2})
    assert delivery.saved is None
    assert delivery.body_problem is not None
    assert "version 2" in delivery.body_problem


def test_the_form_of_two_digits() -> None:
    """With another form bodies are read and written in it; what is not of the form is a problem."""
    form = StagePrefixForm({0: "scan", 1: "encode"})

    def play(verb: str, _: Any) -> httpx.Response:
        if verb == "messages":
            return results({"id": "m0", "receipt": "r", "inserted_at_ms": 1, "visible_at_ms": 1})
        bodies = [{"body": "01clip"}, {"body": "clip"}, {"body_base64": "//8="}]
        common = {"inserted_at_ms": 1, "visible_at_ms": 2, "dequeue_count": 1, "receipt": "r"}
        return reply({"messages": [{"id": "m", **common, **each} for each in bodies]})

    queue, server = made(play, form=form)
    assert queue.capabilities.saves == "in_body"
    assert queue.put([Outgoing(body="clip")]) == [None]
    assert server.seen[0][1]["messages"][0]["body"] == "00clip"
    good, bad, binary = queue.receive(3, visibility_timeout_s=30)
    assert (good.body, good.saved) == (b"clip", Saved(stage="encode"))
    assert bad.body_problem is not None
    assert binary.body_problem == "the body is not text"


def test_a_form_keeps_progress_in_the_body() -> None:
    """For others who read it there."""
    queue, server = made(lambda *_: results(RENEWED), form=EnvelopeForm())
    assert queue.save(DELIVERY, "r0", Saved(state=[1], fraction=0.4), 30) == Renewed("n")
    (item,) = server.seen[0][1]["items"]
    assert "saved" not in item
    envelope = json.loads(item["body"])
    assert (envelope["body"], envelope["saved"]["state"]) == ("work", [1])
    assert item["progress"] == {"fraction": 0.4}


def test_a_newer_envelope_is_a_problem() -> None:
    """What a newer worker has saved is not taken for a body."""
    body = '{"leasehold.envelope":99,"body":"x"}'
    message = {"id": "m", "receipt": "r", "body": body, "dequeue_count": 1}
    message |= {"inserted_at_ms": 1, "visible_at_ms": 2}
    queue, _ = made(lambda *_: reply({"messages": [message]}))
    (delivery,) = queue.receive(1, visibility_timeout_s=30)
    assert delivery.body == b""
    assert delivery.body_problem is not None


def test_a_session_of_another_service_is_a_mistake() -> None:
    """It is refused, and not ignored."""
    queue, _ = made(lambda *_: reply({"messages": []}))
    session = MemoryQueue().open_session("worker", 15)
    with pytest.raises(TypeError, match="another service"):
        queue.receive(1, visibility_timeout_s=30, session=session)


def test_a_session_that_is_over() -> None:
    """It is lost, knows of no wishes, and what it would receive is refused."""

    def play(verb: str, _: Any) -> httpx.Response:
        if verb == "sessions":
            opened = {"session_id": "s1", "holder": "w", "state": "live", "timeout_s": 3600}
            return reply(opened | {"opened_at_ms": 1, "last_heartbeat_ms": 1})
        return reply({"code": "session-over", "state": "lost"}, 409)

    queue, _ = made(play)
    session = queue.open_session("worker", 3599.5)
    assert session.session_id == "s1"
    assert not session.is_lost
    with pytest.raises(LeaseGone):
        queue.receive(1, visibility_timeout_s=30, session=session)
    assert session.is_lost
    assert session.cancelled("m1") is None
    session.progressed("m1")
    session.close()


def test_a_closed_client_was_not_asked() -> None:
    """After the client is closed nothing is sent, and that is said."""
    server = Server(lambda *_: reply({"messages": []}))
    client = Client(transport=server)
    queue = NativeQueue(client.queue("orders"))
    queue.close()
    assert queue.receive(1, visibility_timeout_s=30) == []  # the caller's client stays open
    client.close()
    with pytest.raises(Unreachable) as caught:
        queue.receive(1, visibility_timeout_s=30)
    assert not caught.value.outcome_unknown


@pytest.mark.parametrize(
    ("settings", "order"),
    [({}, "none"), ({"groups": {"fair": True}}, "none"), ({"groups": {"order": "fifo"}}, "fifo")],
)
def test_order_of_groups_is_that_of_the_settings(settings: dict[str, Any], order: str) -> None:
    """One request; without the setting there is no order."""
    members = {"name": "orders", "metadata": {}, "visibility_timeout_s": 30, "created_at_ms": 1}
    queue, server = made(lambda *_: reply({**members, "settings": settings}))
    assert queue.group_order() == order
    assert len(server.seen) == 1


def test_order_of_groups_that_may_not_be_seen() -> None:
    """The key's rights are the worker's business."""
    queue, _ = made(lambda *_: reply({"code": "forbidden"}, 403))
    with pytest.raises(Denied):
        queue.group_order()
