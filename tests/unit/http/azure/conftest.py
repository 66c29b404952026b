"""Fixtures for the tests of the dialect."""

from __future__ import annotations

import pytest

from tests.unit.http.azure.support import Harness


@pytest.fixture
def azure() -> Harness:
    """Give a fresh dialect with fakes on both sides."""
    return Harness()
