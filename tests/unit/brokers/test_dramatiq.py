"""The broker for Dramatiq, with its own worker."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import dramatiq
import pytest
from dramatiq.errors import BrokerConnectionError, QueueJoinTimeout, QueueNotFound
from dramatiq.middleware import Retries

from leasehold.brokers.dramatiq import LeaseholdBroker
from leasehold.client import Client
from leasehold.testing import InProcessServer
from tests.patience import PATIENCE_S

_TIMEOUT_MS = PATIENCE_S * 1000
_LEASE_S = 4
"""A machine that is busy gets to a renewal within half of it."""


@pytest.fixture
def broker(server: InProcessServer) -> Iterator[LeaseholdBroker]:
    """Give a broker whose leases are shorter than the work."""
    made = LeaseholdBroker(
        server.connection_string,
        middleware=[Retries(max_retries=1, min_backoff=1)],
        visibility_timeout_s=_LEASE_S,
        session_timeout_s=2 * _LEASE_S,
        wait_s=1,
    )
    yield made
    made.close()


@pytest.fixture
def worker(broker: LeaseholdBroker) -> Iterator[dramatiq.Worker]:
    """Give a worker; to be started by the test once it has declared its actors."""
    made = dramatiq.Worker(broker, worker_timeout=100, worker_threads=2)
    yield made
    made.stop()


@pytest.mark.long
def test_messages_are_worked_on_once(
    broker: LeaseholdBroker, worker: dramatiq.Worker, client: Client
) -> None:
    """Also those that take longer than a lease."""
    done: list[int] = []
    longer_than_a_lease = threading.Event()

    @dramatiq.actor(broker=broker)  # type: ignore[untyped-decorator]
    def work(number: int, length_s: float) -> None:
        longer_than_a_lease.wait(length_s)
        done.append(number)

    for number in range(4):
        work.send(number, 2.5 * _LEASE_S if number == 0 else 0)
    assert client.queue("default").counts().visible == 4
    worker.start()
    broker.join("default", timeout=_TIMEOUT_MS)
    assert sorted(done) == [0, 1, 2, 3]


def test_a_delay_is_held_by_the_server(broker: LeaseholdBroker, client: Client) -> None:
    """Priority, group and type are those of the message."""

    @dramatiq.actor(broker=broker)  # type: ignore[untyped-decorator]
    def work() -> None: ...

    work.send_with_options(delay=3_600_000)
    work.send_with_options(priority=1, group_id="tenant")
    assert client.queue("default").counts().delayed == 1
    (found,) = client.queue("default").inspect(states=["visible"])
    assert (found.priority, found.group_id, found.type) == (1, "tenant", "work")
    with pytest.raises(QueueJoinTimeout):
        broker.join("default", timeout=0)
    broker.flush_all()
    broker.join("default", timeout=0)


def test_what_fails_for_good_is_set_aside(
    broker: LeaseholdBroker, worker: dramatiq.Worker, client: Client
) -> None:
    """After its retries."""
    tries: list[int] = []

    @dramatiq.actor(broker=broker)  # type: ignore[untyped-decorator]
    def fail() -> None:
        tries.append(1)
        raise ValueError("never")

    fail.send()
    worker.start()
    broker.join("default", timeout=_TIMEOUT_MS)
    assert len(tries) == 2
    assert client.queue("default-poison").counts().visible == 1


def test_what_a_worker_has_not_begun_goes_back(broker: LeaseholdBroker, client: Client) -> None:
    """When its consumer is closed."""
    broker.declare_queue("q")
    broker.enqueue(dramatiq.Message("q", "work", (), {}, {}))
    consumer = broker.consume("q", prefetch=1, timeout=10_000)
    message = next(consumer)
    assert message is not None
    assert client.queue("q").counts().leased == 1
    consumer.requeue([message])
    consumer.close()
    assert client.queue("q").counts().visible == 1


def test_errors_are_those_of_dramatiq(broker: LeaseholdBroker) -> None:
    """Its worker tries again after one of them."""
    with pytest.raises(QueueNotFound):
        broker.enqueue(dramatiq.Message("unknown", "work", (), {}, {}))
    away = LeaseholdBroker("AccountName=a;AccountKey=a2V5;QueueEndpoint=http://127.0.0.1:9;")
    with pytest.raises(BrokerConnectionError):
        away.consume("q")
    away.close()
