"""A server that Spark's processes reach, whose clock goes by itself."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from leasehold.client import Client
from leasehold.testing import InProcessServer


@pytest.fixture
def server() -> Iterator[InProcessServer]:
    """Return a server of the test's own."""
    with InProcessServer(clock="system") as started:
        yield started


@pytest.fixture
def client(server: InProcessServer) -> Iterator[Client]:
    """Return a client of it; the queue ``films`` is there."""
    with server.client() as made:
        made.queue("films").create()
        yield made
