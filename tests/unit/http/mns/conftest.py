"""Fixtures for the tests of the dialect."""

from __future__ import annotations

import pytest

from tests.unit.http.mns.support import Whole


@pytest.fixture
def mns() -> Whole:
    """Give a fresh dialect."""
    return Whole()
