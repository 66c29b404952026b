"""Fixtures for pytest, which finds them by itself where this package is installed.

It is imported at each start of pytest, so it imports nothing of the server before a test asks.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from leasehold.testing.server import InProcessServer, ServerClock

MARKER: Final = "leasehold"


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    config.addinivalue_line(
        "markers",
        f"{MARKER}(**arguments): what to make the server of a test with; "
        "see leasehold.testing.InProcessServer",
    )


@pytest.fixture
def leasehold_server(request: pytest.FixtureRequest) -> Iterator[InProcessServer]:
    """Give each test an empty server of its own, whose clock stands still.

    ``@pytest.mark.leasehold(store="sqlite")`` hands arguments to
    :class:`leasehold.testing.InProcessServer`.
    """
    from leasehold.testing.server import InProcessServer  # noqa: PLC0415 - see above

    marker = request.node.get_closest_marker(MARKER)
    with InProcessServer(**(marker.kwargs if marker else {})) as server:
        yield server


@pytest.fixture
def leasehold_clock(leasehold_server: InProcessServer) -> ServerClock:
    """Give the clock of that server."""
    return leasehold_server.clock
