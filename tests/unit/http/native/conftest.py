"""A server with one queue."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.unit.http.native.support import QUEUE, Native


@pytest.fixture
def native() -> Iterator[Native]:
    """Give a server that has the queue ``orders``."""
    server = Native()
    with server.runner:
        assert server.send("PUT", QUEUE).status == 201
        yield server
