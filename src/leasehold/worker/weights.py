"""Whose turn it is among several queues, by their weights. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


class Turns:
    """Start-time fair queuing: whoever waits is served in proportion to its weight.

    Each taker has a tag, which grows by 1/weight with each thing that it takes; the lowest tag is
    next. Who did not want anything for a while gets no credit for it: its tag is brought up to that
    of the last turn, so that it is served at once, and then in proportion.

    Source: Goyal, Vin, Cheng: Start-time Fair Queuing, SIGCOMM 1996.

    Args:
        weights: One for each taker, all above 0.
    """

    def __init__(self, weights: Sequence[float]) -> None:
        if not all(weight > 0 for weight in weights):
            raise ValueError("weights must be above 0")
        self._costs = [1 / weight for weight in weights]
        self._tags = [0.0] * len(weights)
        self._now = 0.0

    def first(self, waiting: Iterable[int]) -> int | None:
        """Return who is next of those that wait, or None if nobody does."""
        tags, now = self._tags, self._now
        return min(waiting, key=lambda each: (max(now, tags[each]), each), default=None)

    def took(self, taker: int, count: int = 1) -> None:
        """Note that a taker had its turn, and how much it took."""
        self._now = max(self._now, self._tags[taker])
        self._tags[taker] = self._now + count * self._costs[taker]


def shares_of(total: int, weights: Sequence[float]) -> list[int]:
    """Divide *total* by weight in whole parts, each at least 1 if there are enough.

    With fewer than there are takers nobody has a part of its own.
    """
    if total < len(weights):
        return [0] * len(weights)
    spare = total - len(weights)
    return [1 + int(spare * weight / sum(weights)) for weight in weights]
