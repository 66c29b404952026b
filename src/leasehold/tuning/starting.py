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

    ``SRTT + 4*RTTVAR``, both smoothed over the finished attempts. A lapse doubles the timeout that
    has lapsed, until another attempt is finished; many lapses of the same timeout say no more than
    one. It needs one attempt, but is poor later on: with enough data a model is better by more than
    half.

    Args:
        attempts: The oldest first. One with a weight counts as so many that are alike.
        default_s: The answer without any.
        cap_s: No answer is longer.

    Source: RFC 6298, section 2 and 5.5. Its rule to leave out repeated transmissions is not
    needed: receipts tell attempts apart.
    """
    smoothed: float | None = None
    deviation, timeout = 0.0, default_s
    for attempt in attempts:
        if not attempt.finished:
            # What lapsed is what has to be doubled, and not what came of doubling it before.
            timeout = min(max(timeout, min(2 * timeout, 2 * attempt.seconds)), cap_s)
            continue
        length = attempt.seconds
        if smoothed is None:
            smoothed, deviation = length, length / 2
        else:
            # So many steps at once; the deviation is taken from where the first one finds it.
            kept, kept_mean = (1 - _DEVIATION_GAIN) ** attempt.weight, (1 - _GAIN) ** attempt.weight
            deviation = abs(smoothed - length) * (1 - kept) + deviation * kept
            smoothed = length + (smoothed - length) * kept_mean
        timeout = min(smoothed + _DEVIATIONS * deviation, cap_s)
    return timeout
