"""One server for all tests that need no limits of their own, and the log as it was."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
import structlog

from tests.unit.server.support import Harness


@pytest.fixture(scope="module")
def server() -> Iterator[Harness]:
    """A server with the default limits, shared by the tests of a module."""
    with Harness() as harness:
        yield harness


@pytest.fixture
def log_put_back() -> Iterator[None]:
    """Let a test configure the log of this process."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    before = structlog.get_config()
    yield
    structlog.configure(**before)
    root.handlers[:] = handlers
    root.setLevel(level)
