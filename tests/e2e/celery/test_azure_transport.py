"""Kombu's transport for Azure Queue Storage, unchanged, against Leasehold."""

from __future__ import annotations

import socket
from uuid import uuid4

import kombu
import pytest

from leasehold.client import Client
from tests.e2e.celery.conftest import Broker
from tests.e2e.server import DEV_ACCOUNT, DEV_KEY
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.sdk


@pytest.fixture
def azure(broker: Broker) -> kombu.Connection:
    """Give a connection as for Azurite."""
    url = f"azurestoragequeues://{DEV_KEY}@{broker.origin}/{DEV_ACCOUNT}"
    return kombu.Connection(url, transport_options={"polling_interval": 0.1})


def test_messages_are_received_in_order(azure: kombu.Connection) -> None:
    """Put, receive, acknowledge, and find nothing."""
    with azure, azure.SimpleQueue(f"azure-{uuid4().hex[:8]}") as queue:
        for number in range(3):
            queue.put({"number": number})
        received = [queue.get(timeout=PATIENCE_S) for _ in range(3)]
        for message in received:
            message.ack()
        assert [message.payload["number"] for message in received] == [0, 1, 2]
        with pytest.raises(queue.Empty):
            queue.get(timeout=0.5)


def test_a_purge_and_a_deletion(azure: kombu.Connection, client: Client) -> None:
    """The queue is counted, emptied and deleted."""
    name = f"azure-{uuid4().hex[:8]}"
    with azure, azure.SimpleQueue(name) as queue:
        for number in range(3):
            queue.put(number)
        assert len(queue) == 3
        assert client.queue(name).counts().visible == 3
        queue.clear()
        assert len(queue) == 0
        queue.queue.delete()


def test_two_consumers_share_a_queue(azure: kombu.Connection) -> None:
    """Each message goes to one of them."""
    name = f"azure-{uuid4().hex[:8]}"
    got: list[int] = []

    def take(body: int, message: kombu.Message) -> None:
        got.append(body)
        message.ack()

    with azure:
        target = kombu.Queue(name, routing_key=name)
        with azure.Producer() as producer:
            for number in range(6):
                producer.publish(number, routing_key=name, declare=[target])
        with (
            azure.Consumer(target, callbacks=[take]),
            azure.clone() as second,
            second.Consumer(target, callbacks=[take]),
        ):
            while len(got) < 6:
                for connection in (azure, second):
                    try:
                        connection.drain_events(timeout=1)
                    except socket.timeout:  # noqa: UP041 - kombu's name for it
                        continue
    assert sorted(got) == list(range(6))
