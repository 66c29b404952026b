"""Fixtures of the tests of the command line."""

from __future__ import annotations

import pytest

from tests.unit.cli.support import Shell


@pytest.fixture
def shell() -> Shell:
    """The command line, with a server that has no answers yet."""
    return Shell()
