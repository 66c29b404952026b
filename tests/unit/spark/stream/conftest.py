"""A server, and readers driven by hand in the order in which Spark calls them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from leasehold.client import Client, QueueHandle
from leasehold.spark.stream import reader
from leasehold.spark.stream import reader as clients
from leasehold.testing import InProcessServer
from tests.unit.spark.stream.driving import Driving


@pytest.fixture
def queue(client: Client) -> QueueHandle:
    """An empty queue."""
    handle = client.queue("orders")
    handle.create()
    return handle


@pytest.fixture
def driving(
    server: InProcessServer, queue: QueueHandle, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Driving]:
    """Makes queries that read the queue; stops them all at the end."""
    monkeypatch.setattr(reader, "end_on_sigterm", lambda: None)
    made = Driving(server.connection_string)
    yield made
    made.close()
    clients.close_shared()
