"""Fixtures of the tests of brokers: a server, and a client that looks at it from beside."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from leasehold.client import Client
from leasehold.testing import InProcessServer


@pytest.fixture
def server() -> Iterator[InProcessServer]:
    """Give a server."""
    with InProcessServer(clock="system") as made:
        yield made


@pytest.fixture
def client(server: InProcessServer) -> Iterator[Client]:
    """Give a client of it."""
    with Client.from_connection_string(server.connection_string) as made:
        yield made
