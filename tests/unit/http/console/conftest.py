"""A server with a console and one queue."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.unit.http.console.support import QUEUE, Console


@pytest.fixture
def console() -> Iterator[Console]:
    """Give a server that has the queue ``orders``."""
    with Console() as server:
        assert server.ask("PUT", QUEUE, headers=server.enter()).status == 201
        yield server
