"""A token bucket as a value: how many messages a queue may hand out now.

The bucket holds one second's worth of messages, and at least one, so that a queue limited to one
message a minute gives that one at once.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

from leasehold.domain.types import NEVER_MS

_MS: Final = 1000
_ROUNDING: Final = 1e-9
"""Many small refills add up to a little less than they should."""


class Bucket(NamedTuple):
    """What was left of the allowance at a moment."""

    tokens: float
    at_ms: int


def allowance(bucket: Bucket | None, rate_per_s: float, now_ms: int) -> tuple[int, Bucket]:
    """Return how many messages may go now, and the bucket refilled up to now.

    A clock that goes back refills nothing; from then on its new time counts.

    Args:
        bucket: What :func:`spend` left, or None for a queue that has given nothing yet: full.
        rate_per_s: Messages per second, above 0.
        now_ms: Unix milliseconds.
    """
    burst = max(1.0, rate_per_s)
    if bucket is None:
        tokens = burst
    else:
        elapsed_ms = max(0, now_ms - bucket.at_ms)
        tokens = min(burst, bucket.tokens + elapsed_ms * rate_per_s / _MS)
    return int(tokens + _ROUNDING), Bucket(tokens, now_ms)


def spend(bucket: Bucket, count: int) -> Bucket:
    """Take *count* messages, no more than were allowed, out of the bucket."""
    return Bucket(max(0.0, bucket.tokens - count), bucket.at_ms)


def next_token_ms(bucket: Bucket | None, rate_per_s: float, now_ms: int) -> int:
    """Return the moment, from now on, at which one message may go."""
    count, refilled = allowance(bucket, rate_per_s, now_ms)
    if count:
        return now_ms
    wait_ms = (1.0 - refilled.tokens - _ROUNDING / 2) / rate_per_s * _MS
    if wait_ms >= NEVER_MS - now_ms:
        return NEVER_MS
    return now_ms + max(1, math.ceil(wait_ms))
