"""One server for all tests that need no limits of their own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.unit.server.support import Harness


@pytest.fixture(scope="module")
def server() -> Iterator[Harness]:
    """A server with the default limits, shared by the tests of a module."""
    with Harness() as harness:
        yield harness
