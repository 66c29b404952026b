"""A server, and a client of it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from leasehold.client import Client
from leasehold.testing import InProcessServer


@pytest.fixture
def server() -> Iterator[InProcessServer]:
    """A server whose clock stands still."""
    with InProcessServer() as running:
        yield running


@pytest.fixture
def client(server: InProcessServer) -> Iterator[Client]:
    """A client of it."""
    with server.client() as made:
        yield made
