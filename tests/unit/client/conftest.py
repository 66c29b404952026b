"""Every test that asks for ``driver`` runs once with each client."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.unit.client.support import Driver


@pytest.fixture(params=["sync", "async"])
def driver(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Driver]:
    """One of the two clients; what it opens is closed in the end."""
    monkeypatch.delenv("AZURE_STORAGE_CONNECTION_STRING", raising=False)
    made = Driver(is_async=request.param == "async")
    yield made
    made.close()
