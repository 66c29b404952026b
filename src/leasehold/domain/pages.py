"""How many messages an answer has, where their bodies bound it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate


def fitting(sizes: Sequence[int], room: int, *, at_least: bool) -> int:
    """Return how many bodies have room, from the first on.

    Args:
        sizes: Of all of them, in bytes.
        room: Bytes.
        at_least: Whether the first one is let in whatever its size.
    """
    if sum(sizes) <= room:
        return len(sizes)
    count = bisect_right([*accumulate(sizes)], room)
    return count or int(at_least)
