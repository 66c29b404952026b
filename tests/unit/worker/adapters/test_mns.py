"""How the official MNS SDK is used, against recorded answers."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from mns.account import Account
from mns.mns_exception import (
    MNSClientNetworkException,
    MNSClientParameterException,
    MNSExceptionBase,
    MNSServerException,
)
from mns.queue import Message
from opentelemetry import trace

from leasehold.spans import context_of
from leasehold.testing.memory_queue import MemoryQueue
from leasehold.worker.adapters.mns import Clients, MnsQueue, _of_length, queue_error
from leasehold.worker.adapters.protocol import (
    Denied,
    Fault,
    Lease,
    LeaseGone,
    NotSupported,
    Outgoing,
    QueueError,
    QueueMissing,
    Release,
    Renewed,
    Unauthenticated,
    Unreachable,
)
from tests.contract.queues.mns_player import MnsPlayer
from tests.patience import PATIENCE_S
from tests.traces import recorded


@pytest.fixture
def player() -> Iterator[MnsPlayer]:
    """The answers of MNS."""
    with MnsPlayer() as started:
        yield started


@pytest.fixture
def queue(player: MnsPlayer) -> Iterator[MnsQueue]:
    """A queue with the SDK's usual base64."""
    made = adapter(player)
    made.create()
    player.requests.clear()
    yield made
    made.close()


def adapter(player: MnsPlayer, *, encoding: bool = True, **options: Any) -> MnsQueue:
    sdk = Account(player.url, player.access_id, player.access_key).get_queue("orders")
    sdk.set_encoding(encoding)
    return MnsQueue(sdk, time=player.time, **options)


def targets(player: MnsPlayer, method: str) -> list[str]:
    return [target for each, target in player.requests if each == method]


def put(queue: MnsQueue, *bodies: str | bytes) -> None:
    assert queue.put([Outgoing(body=body) for body in bodies]) == [None] * len(bodies)


def test_a_lease_that_the_queue_has_costs_nothing(queue: MnsQueue, player: MnsPlayer) -> None:
    """Where the queue's own timeout is the worker's a receive is one request."""
    put(queue, "a", "b")
    assert len(queue.receive(2, visibility_timeout_s=30)) == 2
    assert targets(player, "PUT") == []


def test_another_lease_than_the_queues(queue: MnsQueue, player: MnsPlayer) -> None:
    """Each message is renewed to the length that was asked for, and has the newest handle."""
    player.own_lease_s = 6 * 3600
    put(queue, "a", "b")
    found = queue.receive(2, visibility_timeout_s=20)
    assert len(targets(player, "PUT")) == 2
    assert queue.complete([found[0].lease]) == [None]
    player.time.advance(20)
    (again,) = queue.receive(2, visibility_timeout_s=20)
    assert again.dequeue_count == 2


def test_a_message_that_could_not_get_its_lease_is_not_delivered(
    queue: MnsQueue, player: MnsPlayer
) -> None:
    """It comes back by itself; the others of the receive are delivered."""
    assert queue.receive(1, visibility_timeout_s=30) == []
    put(queue, "a", "b")
    original = player.answer
    refused = [0]

    def answer(method: str, target: str, content: bytes) -> tuple[int, str]:
        if method == "PUT" and not refused[0]:
            refused[0] += 1
            player.refuse.append("MessageNotExist")
        return original(method, target, content)

    player.answer = answer  # type: ignore[method-assign]
    assert [each.body for each in queue.receive(2, visibility_timeout_s=20)] == [b"b"]


def test_a_single_message_that_could_not_get_its_lease(queue: MnsQueue, player: MnsPlayer) -> None:
    """A receive whose only message is lost again gives nothing, and raises nothing."""
    assert queue.receive(1, visibility_timeout_s=30) == []
    put(queue, "a")
    original = player.answer

    def answer(method: str, target: str, content: bytes) -> tuple[int, str]:
        if method == "PUT":
            player.refuse.append("InternalError")
        return original(method, target, content)

    player.answer = answer  # type: ignore[method-assign]
    assert queue.receive(1, visibility_timeout_s=20) == []


def test_the_queues_lease_is_asked_for_now_and_then(queue: MnsQueue, player: MnsPlayer) -> None:
    """Once a minute is enough to notice that somebody has changed it."""

    def asked() -> int:
        return targets(player, "GET").count("/queues/orders")

    for _ in range(3):
        queue.receive(1, visibility_timeout_s=30)
    assert asked() == 1
    player.time.advance(60)
    queue.receive(1, visibility_timeout_s=30)
    assert asked() == 2


def test_a_receive_says_how_long_it_waits(queue: MnsQueue, player: MnsPlayer) -> None:
    """Also if it does not: otherwise the queue's own waiting time counts."""
    queue.receive(100, visibility_timeout_s=30)
    assert targets(player, "GET")[-1].endswith("?numOfMessages=16&waitseconds=0")


def test_deletions_go_by_sixteen(queue: MnsQueue, player: MnsPlayer) -> None:
    """Twenty messages are deleted in two requests; handles that are gone spoil no other."""
    put(queue, *(str(number) for number in range(20)))
    found = [
        *queue.receive(16, visibility_timeout_s=30),
        *queue.receive(16, visibility_timeout_s=30),
    ]
    leases = [each.lease for each in found]
    assert queue.complete([leases[3]]) == [None]
    player.requests.clear()
    results = queue.complete([*leases, Lease("x", "no-handle")])
    assert len(targets(player, "DELETE")) == 2
    assert [at for at, each in enumerate(results) if each is not None] == [3, 20]
    assert isinstance(results[3], LeaseGone)
    assert isinstance(results[20], LeaseGone)


def test_a_batch_that_fails_as_a_whole(queue: MnsQueue, player: MnsPlayer) -> None:
    """Nobody knows of any of its messages."""
    put(queue, "a", "b")
    leases = [each.lease for each in queue.receive(2, visibility_timeout_s=30)]
    player.refuse.append("InternalError")
    with pytest.raises(Unreachable) as caught:
        queue.complete(leases)
    assert caught.value.outcome_unknown
    assert queue.complete(leases) == [None, None]


def test_what_is_given_back_takes_a_second_at_least(queue: MnsQueue, player: MnsPlayer) -> None:
    """Zero is no visibility timeout of MNS, and twelve hours are the most."""
    put(queue, "a", "b")
    first, second = queue.receive(2, visibility_timeout_s=30)
    queue.release(
        [
            Release(lease=first.lease, outcome="returned"),
            Release(lease=second.lease, outcome="failed", delay_s=100_000),
        ]
    )
    ends = [target.rpartition("=")[2] for target in targets(player, "PUT")]
    assert ends == ["1", "43200"]


def test_handles_are_sent_as_they_are(queue: MnsQueue, player: MnsPlayer) -> None:
    """The characters of base64 in a handle arrive unchanged."""
    put(queue, *(str(number) for number in range(5)))
    for delivery in queue.receive(5, visibility_timeout_s=30):
        (renewed,) = queue.renew([delivery.lease], 30)
        assert isinstance(renewed, Renewed)
        assert queue.complete([Lease(delivery.message_id, renewed.receipt)]) == [None]
    assert any("+" in handle or "/" in handle for handle in player.handles)


def test_properties_and_traces_travel(queue: MnsQueue) -> None:
    """They have places of their own, also in the copy of a buried message."""
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    queue.put([Outgoing(body="work", properties={"colour": "<grün>"}, traceparent=trace)])
    (delivery,) = queue.receive(1, visibility_timeout_s=30)
    assert delivery.properties == {"colour": "<grün>"}
    assert delivery.traceparent == trace
    queue.bury(delivery, delivery.receipt, Fault(text="bad"))


def test_the_sdks_encoding_is_kept_to(player: MnsPlayer) -> None:
    """An object of the SDK that sends text as it is makes an adapter that does."""
    plain = adapter(player, encoding=False)
    plain.create()
    put(plain, "a text")
    assert [each.body for each in player.queues["orders"].left()] == [b"a text"]
    (delivery,) = plain.receive(1, visibility_timeout_s=30)
    assert delivery.body == b"a text"
    assert adapter(player, encoding=True)._texts.open("a text").body_problem is not None
    plain.close()


def test_a_bad_encoding_does_not_spoil_the_others(queue: MnsQueue, player: MnsPlayer) -> None:
    """The SDK would fail with the whole batch; here one message has a problem."""
    player.queues["orders"].put([Outgoing(body="no base64!"), Outgoing(body="d29yaw==")])
    bad, good = queue.receive(2, visibility_timeout_s=30)
    assert bad.body_problem is not None
    assert good.body == b"work"
    queue.bury(bad, bad.receipt, Fault(text=bad.body_problem))


def test_a_message_of_the_sdk_is_read(queue: MnsQueue, player: MnsPlayer) -> None:
    """What the plain SDK sends comes with its body, and what we send the SDK reads."""
    sdk = Account(player.url, player.access_id, player.access_key).get_queue("orders")
    sdk.send_message(Message("from the sdk"))
    (delivery,) = queue.receive(1, visibility_timeout_s=30)
    assert delivery.body == b"from the sdk"
    put(queue, "from us")
    assert sdk.receive_message_with_str_body(0).message_body == "from us"
    sdk.mns_client.close_connection()


def test_what_has_no_place_is_refused(queue: MnsQueue) -> None:
    """A life of its own, a session and a delay of weeks are."""
    results = queue.put([Outgoing(body="a", time_to_live_s=60), Outgoing(body="b", type="t")])
    assert [type(each) for each in results] == [NotSupported, NotSupported]
    results = queue.put([Outgoing(body="a", delay_s=1_000_000), Outgoing(body="b")])
    assert [type(each) for each in results] == [Denied, type(None)]
    session = MemoryQueue().open_session("worker", 15)
    with pytest.raises(NotSupported):
        queue.receive(1, visibility_timeout_s=30, session=session)


# --- connections ---------------------------------------------------------------------------------


def test_a_connection_is_used_again(queue: MnsQueue, player: MnsPlayer) -> None:
    """One call after the other needs one connection, and leaves the SDK's own alone."""
    before = player.connections
    put(queue, "a", "b", "c")
    assert player.connections == before


def test_two_calls_at_once_do_not_share_one(queue: MnsQueue, player: MnsPlayer) -> None:
    """A renewal does not stand behind a receive that waits."""
    put(queue, "a")
    (delivery,) = queue.receive(1, visibility_timeout_s=30)
    thread = threading.Thread(
        target=lambda: queue.receive(1, visibility_timeout_s=30, wait_s=20),
        name="leasehold-test-mns",
    )
    thread.start()
    player.time.settle(waiting=1)
    (renewed,) = queue.renew([delivery.lease], 30)
    assert isinstance(renewed, Renewed)
    player.queues["orders"].close()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()


def test_a_connection_that_was_closed_while_idle_is_made_anew(
    queue: MnsQueue, player: MnsPlayer
) -> None:
    """What a keep-alive that ran out looks like costs no error."""
    put(queue, "a")
    player.close_connections()
    put(queue, "b")
    assert player.queues["orders"].depth().total == 2


def test_a_request_is_sent_once(queue: MnsQueue, player: MnsPlayer) -> None:
    """The SDK would repeat a renewal whose answer got lost, and find its handle replaced."""
    put(queue, "a")
    (delivery,) = queue.receive(1, visibility_timeout_s=30)
    player.requests.clear()
    player.drop = 1
    with pytest.raises(Unreachable):
        queue.renew([delivery.lease], 30)
    assert len(player.requests) == 1


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_every_call_has_a_time_limit(scheme: str) -> None:
    """Over https as well, where the SDK itself would wait for ever."""
    account = Account(f"{scheme}://127.0.0.1:1", "id", "key")
    clients = Clients(account.mns_client)
    with clients.queue("orders", 1.5) as queue:
        assert queue.mns_client.http.conn.timeout == 1.5
    with clients.queue("orders", 7) as queue:
        assert queue.mns_client.http.conn.timeout == 7
    clients.close()


def test_a_connection_that_comes_back_late_is_closed(player: MnsPlayer) -> None:
    """After the adapter was closed nothing stays open."""
    account = Account(player.url, "id", "key")
    player.queues["orders"] = MemoryQueue("orders", time=player.time)
    clients = Clients(account.mns_client)
    with clients.queue("orders", 5) as queue:
        queue.send_message(Message("x"))
        conn = queue.mns_client.http.conn
        clients.close()
        assert conn.sock is not None
    assert conn.sock is None


# --- what errors mean ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "meaning"),
    [
        ("MessageNotExist", LeaseGone),
        ("ReceiptHandleError", LeaseGone),
        ("QueueNotExist", QueueMissing),
        ("QueueDeletedRecently", QueueMissing),
        ("TooManyRequests", Unreachable),
        ("QpsLimitExceeded", Unreachable),
        ("TimeExpired", Unreachable),
        ("InternalError", Unreachable),
        ("InternalServerError", Unreachable),
        ("AccessDenied", Denied),
        ("InvalidAccessKeyId", Unauthenticated),
        ("SignatureDoesNotMatch", Unauthenticated),
        ("InvalidArgument", Denied),
    ],
)
def test_every_code_has_a_meaning(code: str, meaning: type[QueueError]) -> None:
    """The code decides; the text of the service is not passed on."""
    failure = queue_error(MNSServerException(code, "secret text", "1", "h"))
    assert type(failure) is meaning
    assert "secret" not in str(failure)
    if isinstance(failure, Unreachable):
        assert failure.outcome_unknown is code.startswith("Internal")


@pytest.mark.parametrize(
    ("error", "meaning"),
    [
        (MNSClientNetworkException("RespDataDamaged", "secret text"), Unreachable),
        (MNSClientParameterException("MessageBodyInvalid", "secret text"), Denied),
        (MNSExceptionBase("Odd", "secret text"), Unreachable),
    ],
)
def test_every_error_of_the_sdk_has_a_meaning(
    error: MNSExceptionBase, meaning: type[QueueError]
) -> None:
    """The SDK's texts hold whole answers, and are not passed on."""
    failure = queue_error(error)
    assert type(failure) is meaning
    assert "secret" not in str(failure)


def test_a_queue_with_other_attributes_is_there(queue: MnsQueue, player: MnsPlayer) -> None:
    """A creation of a queue that exists in another form changes nothing."""
    player.refuse.append("QueueAlreadyExist")
    queue.create()
    player.refuse.append("AccessDenied")
    with pytest.raises(Denied):
        queue.create()


def test_a_send_has_the_context_at_hand(queue: MnsQueue) -> None:
    """What a handler sends belongs to its trace, though the SDK knows of none."""
    with recorded(), trace.get_tracer("test").start_as_current_span("handling") as span:
        queue.put([Outgoing(body="next")])
    (delivery,) = queue.receive(1, visibility_timeout_s=30)
    found = context_of(delivery.traceparent)
    assert found is not None
    assert found.span_id == span.get_span_context().span_id


def test_leases_of_another_length_than_the_queue_has_are_told_apart() -> None:
    """A server may have timeouts by type; what cannot be told is renewed, to be sure of it.

    The moment of the receive is that of a first delivery, by the clock of the service.
    """

    def received(name: str, count: int, seconds: float) -> Any:
        return SimpleNamespace(
            message_id=name,
            dequeue_count=count,
            first_dequeue_time=1_000 if count == 1 else 500,
            next_visible_time=1_000 + int(seconds * 1000),
        )

    first, again = received("first", 1, 30), received("again", 2, 30)
    short, long = received("short", 1, 5), received("long", 2, 600)
    assert _of_length([first, again, short, long], 30) == {"first", "again"}
    assert _of_length([again, long], 30) == set()
    assert _of_length([], 30) == set()
