"""A server that Spark's processes reach, and an empty queue."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from leasehold.client import Client
from leasehold.testing import InProcessServer


@pytest.fixture
def server() -> Iterator[InProcessServer]:
    """Return a server of the test's own."""
    with InProcessServer() as started:
        yield started


@pytest.fixture
def client(server: InProcessServer) -> Iterator[Client]:
    """Return a client of it; the queue ``out`` is there."""
    with server.client() as made:
        made.queue("out").create()
        yield made


@pytest.fixture
def out(server: InProcessServer, client: Client) -> dict[str, str]:
    """Return the options of a write to the queue."""
    return {"connectionString": server.connection_string, "queueName": "out"}
