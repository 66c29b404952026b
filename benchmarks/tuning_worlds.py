"""Made-up work with known truth, for judging advice: six distributions, and who sees what of it."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import Final, NamedTuple, Protocol

import numpy as np
from scipy import stats

from leasehold.advisor.attempts import Ending, Floats, Lease
from leasehold.advisor.statistics import DurationModel, from_chances

CRASH_RATES: Final = (1e-4, 1e-3)
"""Per second of work."""
_BODY: Final = 4_000
_TAIL: Final = 1_200
_TAIL_FROM: Final = 0.05
_TRIES: Final = 5


class _Frozen(Protocol):
    def isf(self, q: Floats) -> Floats:
        """Return the length that a share outlasts."""
        ...


class Work(NamedTuple):
    """How long work takes: distributions, each with its share."""

    name: str
    parts: tuple[tuple[float, _Frozen], ...]

    def draw(self, random: np.random.Generator, size: int) -> Floats:
        """Return lengths in seconds."""
        shares = np.cumsum([share for share, _ in self.parts])
        which = np.searchsorted(shares, random.random(size), side="right")
        tails = 1.0 - random.random(size)
        lengths = [part.isf(tails) for _, part in self.parts]
        return np.choose(np.minimum(which, len(lengths) - 1), lengths)

    def truth(self) -> DurationModel:
        """Return the distribution itself, in 5,200 steps that get finer towards the tail."""
        body = np.linspace(1.0, _TAIL_FROM, _BODY)
        edges = np.concatenate([body, np.geomspace(_TAIL_FROM, 1e-10, _TAIL)[1:]])
        middles, chance = (edges[1:] + edges[:-1]) / 2, -np.diff(edges)
        return from_chances(
            np.concatenate([part.isf(middles) for _, part in self.parts]),
            np.concatenate([share * chance for share, _ in self.parts]),
        )


WORKS: Final = (
    Work("steady 20 s", ((1.0, stats.lognorm(0.05, scale=20)),)),
    Work("log-normal 2 s, sigma 1", ((1.0, stats.lognorm(1.0, scale=2)),)),
    Work(
        "90 % 1 s, 10 % 60 s",
        ((0.9, stats.lognorm(0.05, scale=1)), (0.1, stats.lognorm(0.05, scale=60))),
    ),
    Work("Pareto 1.5 from 1 s", ((1.0, stats.pareto(1.5)),)),
    Work("exponential 45 s", ((1.0, stats.expon(scale=45)),)),
    Work("log-normal 90 s, sigma 0.8", ((1.0, stats.lognorm(0.8, scale=90)),)),
)


class Sight(StrEnum):
    """What the log shows."""

    LATE_AND_SESSIONS = "late completions and sessions"
    LATE = "late completions"
    SESSIONS = "sessions"
    NEITHER = "neither"

    @property
    def sees_late(self) -> bool:
        """Whether late completions are in the log."""
        return self in {Sight.LATE_AND_SESSIONS, Sight.LATE}

    @property
    def sees_deaths(self) -> bool:
        """Whether the log tells when a worker died."""
        return self in {Sight.LATE_AND_SESSIONS, Sight.SESSIONS}


class Handling(NamedTuple):
    """How a policy leases."""

    timeout_s: float
    factor: float
    """By which the timeout grows with each delivery."""


def leases(  # noqa: PLR0913 - what a log depends on
    work: Work,
    handling: Handling,
    crash_rate: float,
    sight: Sight,
    random: np.random.Generator,
    *,
    attempts: int,
    own_length: bool = True,
) -> Iterator[Lease]:
    """Yield what a log shows of so many attempts.

    Args:
        work: How long it takes.
        handling: How it is leased.
        crash_rate: Crashes per second of work.
        sight: What of it the log shows.
        random: Where chance comes from.
        attempts: How many leases there are in all.
        own_length: Whether a message takes as long each time, or each attempt is drawn anew.
    """
    left = attempts
    lengths = iter(work.draw(random, attempts * (1 if own_length else 2)))
    while left > 0:
        length, message = next(lengths), object()
        for delivery in range(1, _TRIES + 1):
            lease = handling.timeout_s * handling.factor ** (delivery - 1)
            dies_at = random.exponential(1 / crash_rate)
            yield _ended(message, float(length), lease, dies_at, delivery, sight)
            left -= 1
            if left <= 0 or length <= min(lease, dies_at):
                break
            if not own_length:
                length = next(lengths)


def _ended(  # noqa: PLR0913, PLR0917 - what decides on the end of one lease
    message: object, length: float, lease: float, dies_at: float, delivery: int, sight: Sight
) -> Lease:
    if length <= min(lease, dies_at):
        return Lease(message, length, Ending.COMPLETED, delivery)
    if length <= dies_at and sight.sees_late:
        return Lease(message, length, Ending.LATE, delivery)
    if sight.sees_deaths and dies_at < (length if sight.sees_late else min(length, lease)):
        return Lease(message, dies_at, Ending.DIED, delivery)
    return Lease(message, lease, Ending.LAPSED, delivery)
