"""A timeout for the time in which there is next to nothing to go by."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from leasehold.tuning.attempts import Attempt

ENOUGH_FINISHED: Final = 30
"""Attempts to finish before the model takes over."""
_GAIN: Final = 1 / 8
_DEVIATION_GAIN: Final = 1 / 4
_DEVIATIONS: Final = 4.0


def start_timeout(
    attempts: Iterable[Attempt], *, default_s: float, cap_s: float = 604_800.0
) -> float:
    """Return a timeout from few attempts, seconds.

    ``SRTT + 4*RTTVAR``, both smoothed over the finished attempts; doubled by each lapse until
    another one is finished. It needs one attempt, but is poor later on: with enough data a model is
    better by more than half.

    Args:
        attempts: The oldest first.
        default_s: The answer without any.
        cap_s: No answer is longer.

    Source: RFC 6298, section 2 and 5.5. Its rule to leave out repeated transmissions is not
    needed: receipts tell attempts apart.
    """
    smoothed: float | None = None
    deviation, timeout = 0.0, default_s
    for attempt in attempts:
        if not attempt.finished:
            timeout = min(2 * timeout, cap_s)
            continue
        length = attempt.seconds
        if smoothed is None:
            smoothed, deviation = length, length / 2
        else:
            deviation += _DEVIATION_GAIN * (abs(smoothed - length) - deviation)
            smoothed += _GAIN * (length - smoothed)
        timeout = min(smoothed + _DEVIATIONS * deviation, cap_s)
    return timeout
