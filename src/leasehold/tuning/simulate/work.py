"""Where messages and the length of their work come from: a distribution, or a log."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np

from leasehold.tuning.attempts import Attempt, Floats, Sample
from leasehold.tuning.model import DurationModel, fit

SHAPES: Final = ("constant", "exponential", "lognormal", "pareto", "uniform")
_LEAST_TAIL: Final = 1e-12


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Messages: when each is put, and how long each takes."""

    arrivals_s: Floats
    """Rising, seconds from the start."""
    lengths_s: Floats
    """As many."""
    redrawn: Floats | None = None
    """Lengths of later attempts, taken one after the other; None: a message takes as long each
    time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A distribution of lengths; several with shares make a mixture."""

    name: str
    """One of SHAPES."""
    first: float
    """constant: seconds. exponential: mean. lognormal: median. pareto: least. uniform: least."""
    second: float = 0.0
    """lognormal: sigma. pareto: exponent. uniform: most."""
    share: float = 1.0

    def __post_init__(self) -> None:
        needs_second = self.name in {"lognormal", "pareto", "uniform"}
        if self.name not in SHAPES:
            raise ValueError(f"{self.name} is none of {', '.join(SHAPES)}")
        if not (self.first > 0 and self.share > 0):
            raise ValueError(f"{self.name}: numbers and shares must be above 0")
        if needs_second and not self.second > 0:
            raise ValueError(f"{self.name} needs a second number above 0")

    def draw(self, random: np.random.Generator, size: int) -> Floats:
        """Return lengths in seconds."""
        if self.name == "constant":
            return np.full(size, self.first)
        if self.name == "exponential":
            return random.exponential(self.first, size)
        if self.name == "lognormal":
            return self.first * np.exp(self.second * random.standard_normal(size))
        if self.name == "pareto":
            tails = np.maximum(1.0 - random.random(size), _LEAST_TAIL)
            return np.asarray(self.first * tails ** (-1.0 / self.second), dtype=np.float64)
        return random.uniform(self.first, self.second, size)


def draw_lengths(shapes: Iterable[Shape], random: np.random.Generator, size: int) -> Floats:
    """Return lengths from a mixture of shapes, seconds."""
    parts = list(shapes)
    shares = np.cumsum([each.share for each in parts])
    which = np.searchsorted(shares / shares[-1], random.random(size), side="right")
    drawn = [each.draw(random, size) for each in parts]
    lengths: Floats = np.choose(np.minimum(which, len(parts) - 1), drawn)
    return lengths


def draw_from_model(model: DurationModel, random: np.random.Generator, size: int) -> Floats:
    """Return lengths from a model, seconds."""
    edges = np.cumsum(model.chance)
    places = np.searchsorted(edges, random.random(size) * edges[-1], side="right")
    lengths: Floats = model.seconds[np.minimum(places, len(edges) - 1)]
    return lengths


def arrivals(random: np.random.Generator, per_s: float, lasts_s: float) -> Floats:
    """Return when messages are put: at random, *per_s* a second on average (a Poisson process)."""
    if not (per_s > 0 and lasts_s > 0):
        raise ValueError("a rate and a length are above 0")
    return np.sort(random.uniform(0.0, lasts_s, int(random.poisson(per_s * lasts_s))))


def lives(seed: int, delivery: int, many: int) -> Floats:
    """Return the luck of a delivery of each of many messages: how long its worker lives.

    In lifetimes: divided by the crashes per second of work these are seconds. The delivery of a
    message has the same luck whatever the settings, so that two of them can be compared, and
    whoever plays the same messages elsewhere can have the same deaths.

    Args:
        seed: Of the run.
        delivery: 1 for the first.
        many: Messages, from the first to arrive.
    """
    return np.random.default_rng((seed, delivery)).standard_exponential(many)


def replayed(
    attempts: Iterable[Attempt], random: np.random.Generator, size: int | None = None
) -> Floats:
    """Return lengths as a log has them.

    What was finished is taken as it is. What was cut off took longer than was seen: it goes on as
    the model of all of them says, given that it lasted so long.

    Args:
        attempts: In the order of the log.
        random: For those that were cut off, and for the choice if *size* is given.
        size: How many to draw from the log, with repetition, by weight; None: each once, in order,
            whatever its weight.
    """
    rows = list(attempts)
    model = fit(Sample.of(rows))
    edges = np.cumsum(model.chance)
    lengths = np.array([each.seconds for each in rows], dtype=np.float64)
    cut = np.array([not each.finished for each in rows])
    below = np.concatenate([[0.0], edges])[
        np.searchsorted(model.seconds, lengths[cut], side="right")
    ]
    places = np.searchsorted(edges, below + random.random(len(below)) * (edges[-1] - below))
    longer = model.seconds[np.minimum(places, len(edges) - 1)]
    lengths[cut] = np.maximum(longer, lengths[cut])
    if size is None:
        return lengths
    weight = np.array([each.weight for each in rows])
    return random.choice(lengths, size=size, p=weight / weight.sum())
