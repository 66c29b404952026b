"""Made-up work with known truth, for judging advice: how long it takes, and who sees what of it."""

from __future__ import annotations

import math
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


# --- worlds ------------------------------------------------------------------------------------
#
# Work as it comes to a queue in a day: of several types, of other lengths at other hours.


class Hour(NamedTuple):
    """A part of the day."""

    work: Work
    load: float = 1.0
    """How many messages come, beside other parts."""


class Kind(NamedTuple):
    """The messages of one type."""

    hours: tuple[Hour, ...]
    share: float = 1.0
    """Of all messages."""
    is_last: bool = False
    """Whether what comes next is like the last part of the day, and not like the whole."""

    def priced(self) -> DurationModel:
        """Return how long the work of messages takes that come next."""
        hours = self.hours[-1:] if self.is_last else self.hours
        load = sum(each.load for each in hours)
        models = [(each.load / load, each.work.truth()) for each in hours]
        return from_chances(
            np.concatenate([model.seconds for _, model in models]),
            np.concatenate([share * model.chance for share, model in models]),
        )


class World(NamedTuple):
    """The messages of a queue, and how often workers die at them."""

    name: str
    kinds: tuple[Kind, ...]
    crash_rates: tuple[float, ...] = CRASH_RATES


def _steady(work: Work, crash_rates: tuple[float, ...] = CRASH_RATES) -> World:
    return World(work.name, (Kind((Hour(work),)),), crash_rates)


def _log_normal(scale_s: float, sigma: float) -> Work:
    name = f"log-normal {scale_s:g} s, sigma {sigma:g}"
    return Work(name, ((1.0, stats.lognorm(sigma, scale=scale_s)),))


_BY_DAY, _BY_NIGHT = Hour(_log_normal(10, 0.6), 1.4), Hour(_log_normal(60, 0.4), 0.5)

WORLDS: Final = (
    *map(_steady, WORKS),
    _steady(Work("Pareto 1.2 from 1 s", ((1.0, stats.pareto(1.2)),))),
    _steady(
        Work(
            "bimodal: 60 % 5 s, 40 % 240 s",
            ((0.6, stats.lognorm(0.2, scale=5)), (0.4, stats.lognorm(0.2, scale=240))),
        )
    ),
    _steady(
        Work(
            "zero-inflated: 70 % 0.02 s, 30 % 40 s",
            ((0.7, stats.lognorm(0.5, scale=0.02)), (0.3, stats.lognorm(0.7, scale=40))),
        )
    ),
    _steady(Work("Weibull 25 s, shape 0.6", ((1.0, stats.weibull_min(0.6, scale=25)),))),
    _steady(Work("gamma 10 s, shape 4", ((1.0, stats.gamma(4, scale=2.5)),))),
    World(
        "drift inside a day: 10 s to 25 s",
        (Kind(tuple(Hour(_log_normal(s, 0.5)) for s in (10, 12.5, 16, 20, 25)), is_last=True),),
    ),
    World(
        "diurnal: 10 s by day, 60 s by night", (Kind((*[_BY_DAY] * 2, _BY_NIGHT, *[_BY_DAY] * 2)),)
    ),
    World(
        "three types: 2 s, 30 s, 300 s",
        tuple(
            Kind((Hour(_log_normal(scale_s, 0.6)),), share)
            for scale_s, share in ((2, 0.6), (30, 0.3), (300, 0.1))
        ),
    ),
    _steady(
        _log_normal(45, 0.8)._replace(name="killed every 100 s: log-normal 45 s, sigma 0.8"),
        (1e-2,),
    ),
    _steady(Work("killed every 100 s: exponential 30 s", ((1.0, stats.expon(scale=30)),)), (1e-2,)),
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
    attempts: float = math.inf,
    messages: float = math.inf,
    own_length: bool = True,
) -> Iterator[Lease]:
    """Yield what a log shows of so many attempts, or of so many messages if they need less.

    Args:
        work: How long it takes.
        handling: How it is leased.
        crash_rate: Crashes per second of work.
        sight: What of it the log shows.
        random: Where chance comes from.
        attempts: How many leases there are in all.
        messages: How many messages; not all of them come to an end.
        own_length: Whether a message takes as long each time, or each attempt is drawn anew.
    """
    left = attempts
    drawn = min(attempts, messages * _TRIES)
    lengths = iter(work.draw(random, int(drawn) * (1 if own_length else 2)))
    while left > 0 and messages > 0:
        length, message = next(lengths), object()
        messages -= 1
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
