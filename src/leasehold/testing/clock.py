"""A clock that stands still until a test moves it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from leasehold.clock import VirtualClock

START_MS: Final = int(datetime(2026, 1, 1, tzinfo=UTC).timestamp() * 1000)


class ManualClock(VirtualClock):
    """The clock of a test: midnight of 2026-01-01, UTC, unless told other.

    See :class:`leasehold.clock.VirtualClock`, which ``leasehold serve --clock virtual`` uses.
    """

    def __init__(self, start_ms: int = START_MS) -> None:
        super().__init__(start_ms)
