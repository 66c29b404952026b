"""Both clients of the native API against a server, in a queue of their own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest

from tests.e2e.server import Endpoint
from tests.unit.client.support import Driver


@pytest.fixture(autouse=True)
def _only_on_leasehold(on_azurite: bool) -> None:
    """Azurite has no native API."""
    if on_azurite:
        pytest.skip("Azurite has no native API")


@pytest.fixture(params=["sync", "async"])
def driver(request: pytest.FixtureRequest) -> Iterator[Driver]:
    """One of the two clients; what it opens is closed in the end."""
    made = Driver(is_async=request.param == "async")
    yield made
    made.close()


@pytest.fixture
def client(driver: Driver, endpoint: Endpoint) -> Any:
    """A client of the server's account."""
    return driver.real(endpoint.url, endpoint.account, key=endpoint.key)


@pytest.fixture
def queue(driver: Driver, client: Any) -> Iterator[Any]:
    """A handle on a new queue."""
    made = client.queue(f"q-{uuid4().hex}")
    driver.do(made.create())
    yield made
    driver.do(made.delete())
