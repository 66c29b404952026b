"""The fixtures under test, whether or not the installed package has announced them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from leasehold.testing.pytest_plugin import leasehold_clock, leasehold_server

__all__ = ["leasehold_clock", "leasehold_server"]


@pytest.fixture(scope="session", autouse=True)
def _no_proxy() -> Iterator[None]:
    """Keep a proxy of the environment out of the way."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NO_PROXY", "*")
        yield
