"""A clock that stands still until a test moves it."""

from __future__ import annotations

from datetime import UTC, datetime

START_MS = int(datetime(2026, 1, 1, tzinfo=UTC).timestamp() * 1000)


class ManualClock:
    """See :class:`leasehold.clock.Clock`; starts at midnight of 2026-01-01 unless told other."""

    def __init__(self, start_ms: int = START_MS) -> None:
        self._now_ms = start_ms
        self._start_ms = start_ms

    def now_ms(self) -> int:
        """Return the time the test has set."""
        return self._now_ms

    def monotonic_s(self) -> float:
        """Return the seconds the test has let pass."""
        return (self._now_ms - self._start_ms) / 1000

    def wall_drift_s(self) -> float:
        """Return 0: nobody moves the wall clock of a test behind its back."""
        return 0.0

    def advance(self, *, s: float = 0, ms: int = 0) -> None:
        """Let time pass."""
        self._now_ms += round(s * 1000) + ms
