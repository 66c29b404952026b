"""What becomes of calls that are not answered, or answered with a refusal."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator

import pytest

from leasehold.client import Client, RetryPolicy
from leasehold.testing import InProcessServer
from leasehold.testing.memory_queue import MemoryQueue
from leasehold.worker.adapters.azure import AzureQueue
from leasehold.worker.adapters.mns import MnsQueue
from leasehold.worker.adapters.native import NativeQueue
from leasehold.worker.adapters.protocol import (
    Delivery,
    LeaseGone,
    Outgoing,
    QueueClient,
    QueueError,
    Saved,
    Unauthenticated,
    Unreachable,
)
from leasehold.worker.adapters.specs import QueueSpec
from tests.contract.queues.conftest import Bench, make_bench
from tests.contract.queues.mns_player import MnsPlayer

KEY = "c2VjcmV0LXNlY3JldC1zZWNyZXQtc2VjcmV0LXNlY3I="
Break = Callable[[Bench], None]


@pytest.fixture(params=["memory", "native", "azure", "mns"])
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    """A queue of each service that can be made to fail."""
    made = make_bench(request.param, request)
    made.client.create()
    yield made
    made.client.close()


@pytest.fixture
def lose_answer(server: InProcessServer, player: MnsPlayer) -> Break:
    """Loses the answer to the next call, which is carried out."""

    def lose(bench: Bench) -> None:
        if isinstance(bench.client, MemoryQueue):
            bench.client.faults.fail(carried_out=True)
        elif bench.kind == "mns":
            player.drop = 1
        else:
            server.faults.drop_answers(1)

    return lose


@pytest.fixture
def refuse_for_now(server: InProcessServer, player: MnsPlayer) -> Break:
    """Has the next call that changes something be refused for now."""

    def refuse(bench: Bench) -> None:
        if isinstance(bench.client, MemoryQueue):
            error = Unreachable("busy", outcome_unknown=False)
            bench.client.faults.fail(error=error)
        elif bench.kind == "mns":
            player.refuse.append("QpsLimitExceeded")
        else:
            server.faults.fail_commits(1)

    return refuse


def failure_of(call: Callable[[], object]) -> QueueError:
    """Return what a call of one item raises, or has as its only result."""
    try:
        result = call()
    except QueueError as error:
        return error
    assert isinstance(result, list)
    (failed,) = result
    assert isinstance(failed, QueueError)
    return failed


def test_a_lost_answer_to_a_completion(bench: Bench, lose_answer: Break) -> None:
    """It is not known what became of it: it was carried out, and a second try finds nothing."""
    delivery = bench.put_one()
    lose_answer(bench)
    failure = failure_of(lambda: bench.complete(delivery.lease))
    assert isinstance(failure, Unreachable)
    assert failure.outcome_unknown
    assert isinstance(failure_of(lambda: bench.complete(delivery.lease)), LeaseGone)


def test_a_lost_answer_to_a_renewal(bench: Bench, lose_answer: Break) -> None:
    """Nothing repeats the renewal behind our back, which would look like a lost lease on services
    that kill a receipt with its renewal; Leasehold tells the new one to who asks again."""
    delivery = bench.put_one()
    lose_answer(bench)
    failure = failure_of(lambda: bench.renew(delivery.lease))
    assert isinstance(failure, Unreachable)
    assert failure.outcome_unknown
    if bench.repeats:
        assert bench.complete(bench.renewed(delivery)) == [None]
    else:
        assert isinstance(failure_of(lambda: bench.renew(delivery.lease)), LeaseGone)


def test_a_lost_answer_to_a_receive(bench: Bench, lose_answer: Break) -> None:
    """The receive is not repeated: what it leased comes back with its lease."""
    assert bench.receive() == []  # MNS asks for the queue's own lease at first
    bench.put("work")
    lose_answer(bench)
    with pytest.raises(Unreachable) as caught:
        bench.receive()
    assert caught.value.outcome_unknown
    assert bench.receive() == []
    assert bench.later(30).dequeue_count == 2


def test_a_lost_answer_to_a_save(bench: Bench, lose_answer: Break) -> None:
    """The save may have been done; the handler is told that nobody knows."""
    if bench.able.saves == "no":
        pytest.skip("the service keeps no progress")
    delivery = bench.put_one()
    lose_answer(bench)
    with pytest.raises(Unreachable) as caught:
        bench.client.save(delivery, delivery.receipt, Saved(stage="two"), 30)
    assert caught.value.outcome_unknown
    if bench.repeats:
        assert bench.complete(bench.renewed(delivery)) == [None]


def test_not_now(bench: Bench, refuse_for_now: Break) -> None:
    """A service that is busy refuses before it does anything, and the next try succeeds."""
    delivery = bench.put_one()
    refuse_for_now(bench)
    failure = failure_of(lambda: bench.complete(delivery.lease))
    assert isinstance(failure, Unreachable)
    assert not failure.outcome_unknown
    assert bench.complete(delivery.lease) == [None]


def test_the_rest_is_left_alone_when_nobody_answers(bench: Bench, lose_answer: Break) -> None:
    """After a call without an answer no other lease of the same call is tried, nor lost."""
    if bench.able.max_settle > 1:
        pytest.skip("all of them go in one request")
    bench.put("a", "b", "c")
    deliveries = bench.receive(3)
    lose_answer(bench)
    results = bench.renew(*(each.lease for each in deliveries))
    assert [isinstance(each, Unreachable) and each.outcome_unknown for each in results] == [
        True,
        False,
        False,
    ]
    assert all(isinstance(each, Unreachable) for each in results)
    assert None not in bench.complete(deliveries[0].lease)
    assert bench.complete(*(each.lease for each in deliveries[1:])) == [None, None]


def calls_of(client: QueueClient) -> dict[str, Callable[[], object]]:
    """Return all calls that need the service."""
    delivery = Delivery(queue=client.name, message_id="0123", receipt="secret-receipt")
    return {
        "receive": lambda: client.receive(1, visibility_timeout_s=30),
        "renew": lambda: client.renew([delivery.lease], 30, timeout_s=5.0),
        "complete": lambda: client.complete([delivery.lease]),
        "put": lambda: client.put([Outgoing(body="work")]),
        "depth": client.depth,
        "create": client.create,
    }


@pytest.fixture(params=["native", "azure", "mns"])
def unreachable(request: pytest.FixtureRequest) -> Iterator[QueueClient]:
    """A client of a service that is not there."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    text = f"AccountName=a;AccountKey={KEY};QueueEndpoint=http://127.0.0.1:{port}/a;"
    client: QueueClient
    if request.param == "native":
        once = RetryPolicy(attempts=1)
        client = NativeQueue(Client.from_connection_string(text, retries=once).queue("orders"))
    elif request.param == "azure":
        client = AzureQueue.from_connection_string(text, "orders")
    else:
        text = f"Endpoint=http://127.0.0.1:{port};AccessKeyId=i;AccessKeySecret={KEY}"
        client = MnsQueue.from_connection_string(text, "orders")
    yield client
    client.close()


@pytest.mark.parametrize("name", ["receive", "renew", "put"])
def test_nobody_is_there(unreachable: QueueClient, name: str) -> None:
    """A request that never left was not carried out, and its error shows no secret."""
    failure = failure_of(calls_of(unreachable)[name])
    assert isinstance(failure, Unreachable)
    assert not failure.outcome_unknown
    shown = f"{failure!r} {failure} {failure.__cause__} "
    assert KEY not in shown
    assert "secret-receipt" not in shown


def _stranger(kind: str, server: InProcessServer, player: MnsPlayer) -> QueueClient:
    account = server.account
    text = f"AccountName={account};AccountKey={KEY};QueueEndpoint={server.url}/{account};"
    if kind == "native":
        return NativeQueue.from_connection_string(text, "orders")
    if kind == "azure":
        return AzureQueue.from_connection_string(text, "orders")
    player.refuse.append("SignatureDoesNotMatch")
    return MnsQueue.from_connection_string(player.connection_string, "orders")


@pytest.mark.parametrize("kind", ["native", "azure", "mns"])
@pytest.mark.parametrize("name", ["receive", "renew", "complete", "put", "depth", "create"])
def test_the_key_is_wrong(kind: str, name: str, server: InProcessServer, player: MnsPlayer) -> None:
    """Whatever is asked for is denied, and the error shows neither key nor signature."""
    client = _stranger(kind, server, player)
    failure = failure_of(calls_of(client)[name])
    client.close()
    assert isinstance(failure, Unauthenticated)
    shown = f"{failure!r} {failure} {failure.__cause__}"
    assert KEY not in shown
    assert "secret-receipt" not in shown


@pytest.mark.parametrize("service", ["leasehold", "azure", "mns"])
def test_a_spec_opens_the_same_queue(
    service: str, server: InProcessServer, player: MnsPlayer
) -> None:
    """What a client says about itself opens its queue again, as another process would."""
    if service == "mns":
        spec = QueueSpec("mns", "spec-queue", player.connection_string, {"encoding": "none"})
    elif service == "azure":
        spec = QueueSpec("azure", "spec-queue", server.connection_string, {"encoding": "base64"})
    else:
        spec = QueueSpec("leasehold", "spec-queue", server.connection_string)
    first = spec.open()
    first.create()
    assert first.put([Outgoing(body="work")]) == [None]
    again: QueueSpec = first.spec  # type: ignore[attr-defined]  # not part of the protocol
    second = again.open()
    (delivery,) = second.receive(1, visibility_timeout_s=30)
    assert delivery.body == b"work"
    assert second.complete([delivery.lease]) == [None]
    first.close()
    second.close()
