"""When a clock may be believed enough to expire messages for good.

A message hidden because it has expired comes back when a wrong clock is put right; one retired or
removed does not. So after a start with the clock suspiciously far ahead of the time last noted,
expiry hides but nothing is retired until the clock has proved itself.
"""

from __future__ import annotations

from typing import Final

SUSPICIOUS_GAP_MS: Final = 3_600_000
"""A start this long after the time last noted is suspicious: a long stop or a wrong clock."""

CONFIRMED_AFTER_S: Final = 3_600.0
"""A suspicious clock is believed once the server has run this long with it."""

TOLERATED_DRIFT_S: Final = 5.0
"""Nobody may have moved the wall clock by more than this meanwhile."""


def may_retire(
    *, last_seen_ms: int, started_at_ms: int, running_s: float, wall_drift_s: float
) -> bool:
    """Tell whether expired messages may be retired and removed now.

    Args:
        last_seen_ms: Time noted by the previous run; 0 when there was none.
        started_at_ms: Time at which this run began.
        running_s: Seconds this run has lasted.
        wall_drift_s: How far the wall clock has moved against the time of this run.
    """
    if abs(wall_drift_s) > TOLERATED_DRIFT_S:
        return False
    suspicious = last_seen_ms != 0 and started_at_ms - last_seen_ms > SUSPICIOUS_GAP_MS
    return not suspicious or running_s >= CONFIRMED_AFTER_S
