"""Which groups have so much of the consumers that it is at the cost of others, and what follows.

A store counts now and then what each group has in flight (:meth:`Work.note`). The mean of that over
the last minute is the group's part of the time that consumers work, however long its messages take
(Little's law). A group with too large a part is noisy: its turns cost more, and where the queue's
settings say so it leaves as many consumers free as the others need.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import exp, sqrt
from typing import Final, NamedTuple, TypeAlias

from leasehold.domain.model import GroupFigures
from leasehold.domain.queue_settings import GroupSettings

Group: TypeAlias = str | None
"""Of a message; None for those without a group, which take turns together, in no order and without
a limit."""
NOISY_SHARE: Final = 0.1
NOISY_IN_FLIGHT: Final = 30
LATELY_MS: Final = 60_000
"""Time constant of the mean of what is in flight. A group that holds all consumers is noisy after
an eighth of it, and one that kept to its limit is no longer after this time without."""
PEAK_MS: Final = 120_000
"""How many consumers there are is taken from the last one to two of these."""
HEADROOM: Final = 2.0
"""Consumers that are left free beside the mean that is in use, over the square root of that mean:
the rule of square-root staffing (Halfin and Whitt, 1981). With 2, some 3 in 100 messages of a
steady load find no consumer free."""
MAX_COUNTED: Final = 10_000
"""Messages that are not visible which are looked at to count what is in flight, of each priority;
those that are first to become visible again."""
_BETWEEN_MS: Final = 1_000
_CLEARLY: Final = 1.5
"""Of its equal part, what is more than chance."""
_NOTHING: Final = 0.01
"""Mean of what a group has in flight that counts as none."""


def noisy(
    in_flight_of_group: int, in_flight_of_queue: int, part: float, time_share: float = 0.0
) -> bool:
    """Tell whether a group has so much of the consumers that it is at the cost of others.

    It has at least 30 messages in flight, and these are more than a tenth of all in flight; or it
    had more than a tenth of the time that consumers have worked lately. These are the thresholds of
    SQS (AWS, "How Amazon SQS fair queues work", 2025). Besides, it must have more than its equal
    part, and of the time half as much again, so that of a few groups that share evenly none is
    noisy, nor one that is alone.

    Args:
        in_flight_of_group: Messages of the group on leases, members of claims included.
        in_flight_of_queue: The same of all groups.
        part: Its weight over that of all groups that have messages waiting or in flight, 0 to 1.
        time_share: Of the time worked lately, 0 to 1.
    """
    busy = in_flight_of_group > max(NOISY_SHARE, part) * in_flight_of_queue
    works = time_share > max(NOISY_SHARE, _CLEARLY * part)
    return (busy and in_flight_of_group >= NOISY_IN_FLIGHT) or works


def noisy_among(
    figures: Mapping[str, GroupFigures],
    shares: Mapping[str, float] | None = None,
    weights: Mapping[str, int] | None = None,
) -> set[str]:
    """Return which of all groups of a queue are noisy.

    Args:
        figures: Of each group.
        shares: Of the time worked lately, 0 to 1, by group; 0 for those that are not named.
        weights: By group; 1 for those that are not named.
    """
    shares, weights = shares or {}, weights or {}
    in_flight = sum(each.in_flight for each in figures.values())
    active = [name for name, each in figures.items() if each.waiting or each.in_flight]
    whole = _weight(weights, active)
    return {
        name
        for name in active
        if noisy(
            figures[name].in_flight,
            in_flight,
            weights.get(name, 1) / whole,
            shares.get(name, 0.0),
        )
    }


def turn_cost(share: float, part: float) -> float:
    """Return how many turns one of a noisy group counts as: its share of the work over its part."""
    return max(1.0, share / part)


def noisy_limit(consumers: int, others: float, part: float) -> int:
    """Return how many messages of a noisy group may be in flight.

    Args:
        consumers: How many messages consumers have in work at most.
        others: How many of them are of groups that are not noisy, on average.
        part: Of what noisy groups may have, what this one may, 0 to 1; and not less than its part
            of all consumers, nor than one.
    """
    return int((consumers - others - HEADROOM * sqrt(others)) * part)


class GroupWork(NamedTuple):
    """What groups had of the consumers lately, and what is theirs."""

    shares: Mapping[str, float] = {}
    """Of the time worked, 0 to 1, as of the last receive; 0 for those not named."""
    weights: Mapping[str, int] = {}
    """1 for those not named."""


class Work:
    """What the groups of a queue have of its consumers.

    Args:
        settings: Those of the queue.
    """

    __slots__ = (
        "_at_limit_ms",
        "_means",
        "_next_ms",
        "_noted_ms",
        "_peak",
        "_peak_before",
        "_peak_since_ms",
        "_settings",
        "costs",
        "limits",
        "noisy",
    )

    def __init__(self, settings: GroupSettings) -> None:
        self._settings = settings
        self._means: dict[Group, float] = {}
        """Of what is in flight, by group."""
        self._noted_ms = self._next_ms = 0
        self._peak = self._peak_before = 0
        """Consumers there were at most, in this while and the one before."""
        self._peak_since_ms = 0
        self._at_limit_ms: dict[str, int] = {}
        """When groups that are noisy last had as much in flight as they may."""
        self.noisy: frozenset[str] = frozenset()
        self.costs: Mapping[Group, float] = {}
        """How many turns one of a noisy group counts as."""
        self.limits: Mapping[str, int] = {}
        """How many messages of a noisy group may be in flight, where that is limited."""

    @property
    def next_ms(self) -> int:
        """When to count again what is in flight; limits and costs stay the same until then."""
        return self._next_ms

    def is_due(self, now_ms: int) -> bool:
        """Tell whether to count again what is in flight; also if the clock was set back."""
        return now_ms >= self._next_ms or now_ms < self._noted_ms

    def shares(self) -> dict[str, float]:
        """Return which share of the time worked lately groups had; 0 for those not named."""
        whole = sum(self._means.values()) or 1.0
        return {name: mean / whole for name, mean in self._means.items() if name is not None}

    def note(self, now_ms: int, in_flight: Mapping[Group, int], asked: int) -> None:
        """Note what is in flight.

        Args:
            now_ms: The time.
            in_flight: By group, of all that have any.
            asked: Messages that a consumer asks for at this moment.
        """
        everything = sum(in_flight.values())
        self._average(now_ms, in_flight)
        self._note_peak(now_ms, everything + asked)
        self._noted_ms, self._next_ms = now_ms, now_ms + _BETWEEN_MS + everything
        self._at_limit_ms = {
            name: at_ms
            for name, at_ms in self._at_limit_ms.items()
            if now_ms - LATELY_MS < at_ms <= now_ms
        }
        weights = self._settings.weights
        whole = _weight(weights, self._means)
        parts = {group: _weight(weights, [group]) / whole for group in self._means}
        shares = self.shares()
        found = {
            name
            for name, share in shares.items()
            if name in self._at_limit_ms
            or noisy(in_flight.get(name, 0), everything, parts[name], share)
        }
        self.noisy = frozenset(found)
        self.costs = {name: turn_cost(shares[name], parts[name]) for name in found}
        self._limit(now_ms, in_flight, parts)

    def _average(self, now_ms: int, in_flight: Mapping[Group, int]) -> None:
        means = self._means
        kept = exp(-max(0, now_ms - self._noted_ms) / LATELY_MS) if self._noted_ms else 0.0
        for group in [*means, *(group for group in in_flight if group not in means)]:
            count = in_flight.get(group, 0)
            mean = count + (means.get(group, 0.0) - count) * kept
            if count or mean > _NOTHING:
                means[group] = mean
            else:
                means.pop(group, None)

    def _note_peak(self, now_ms: int, consumers: int) -> None:
        if now_ms - self._peak_since_ms >= PEAK_MS or now_ms < self._peak_since_ms:
            self._peak_before = self._peak if now_ms - self._peak_since_ms < 2 * PEAK_MS else 0
            self._peak, self._peak_since_ms = 0, now_ms
        self._peak = max(self._peak, consumers)

    def _limit(
        self, now_ms: int, in_flight: Mapping[Group, int], parts: Mapping[Group, float]
    ) -> None:
        """Have noisy groups leave consumers free, as many as the others need."""
        if not self._settings.limit_noisy:
            return
        consumers = max(self._peak, self._peak_before)
        others = sum(mean for group, mean in self._means.items() if group not in self.noisy)
        loud = sum(parts[name] for name in self.noisy)
        limits = {
            name: max(
                1,
                int(consumers * parts[name]),
                noisy_limit(consumers, others, parts[name] / loud),
            )
            for name in self.noisy
        }
        self.limits = limits
        # Whoever keeps to its limit may have too little for a noisy one just for that.
        for name, limit in limits.items():
            if in_flight.get(name, 0) >= limit:
                self._at_limit_ms[name] = now_ms


def _weight(weights: Mapping[str, int], groups: Iterable[Group]) -> int:
    return sum(1 if group is None else weights.get(group, 1) for group in groups)
