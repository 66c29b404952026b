"""Independent ways to the same figures: attempts played one by one, without a formula."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from benchmarks.tuning_worlds import Work

from leasehold.advisor.attempts import Attempt, Floats


class Estimate(NamedTuple):
    """A mean with its standard error."""

    mean: float
    error: float

    @classmethod
    def of(cls, values: Floats) -> Estimate:
        """Estimate the mean of what the values were drawn from."""
        return cls(float(values.mean()), float(values.std(ddof=1) / np.sqrt(len(values))))


def play_redrawn(
    work: Work, many: int, timeout: float, rate: float, random: np.random.Generator
) -> Estimate:
    """Try until done, each time with a new length; return the cost, with 60 for a duplicate."""
    cost, open_ = np.zeros(many), np.arange(many)
    while len(open_):
        drawn = work.draw(random, len(open_))
        dies = random.exponential(1 / rate, len(open_))
        done = (drawn <= timeout) & (drawn < dies)
        twice = (drawn > timeout) & (dies > timeout)
        cost[open_] += np.where(done, drawn, timeout) + 60 * twice
        open_ = open_[~done]
    return Estimate.of(cost)


def play_messages(
    lengths: Floats,
    timeout: float,
    rate: float,
    duplicate: float,
    dead: float,
    random: np.random.Generator,
) -> Estimate:
    """Try each message up to five times with doubling timeouts; return the cost per message."""
    cost, undone = np.zeros(len(lengths)), np.ones(len(lengths), dtype=bool)
    for k in range(5):
        lease = timeout * 2.0**k
        dies = random.exponential(1 / rate, len(lengths))
        done = (lengths <= lease) & (lengths < dies)
        twice = (lengths > lease) & (dies > lease)
        cost += undone * (np.where(done, lengths, lease) + duplicate * twice)
        undone &= ~done
    return Estimate.of(cost + dead * undone)


def play_renewed(
    lengths: Floats,
    first: float,
    every: float,
    guard: float,
    rate: float,
    sending: float,
    random: np.random.Generator,
) -> Estimate:
    """Renew until done or dead; return the overhead per attempt."""
    dies = random.exponential(1 / rate, len(lengths))
    stop = np.minimum(lengths, dies)
    sent, ends = np.zeros(len(lengths)), np.full(len(lengths), first)
    due = first - guard
    while (renewing := stop > due).any():
        sent += renewing
        ends[renewing] = due + every + guard
        due += every
    return Estimate.of(sending * sent + np.where(dies < lengths, ends - dies, 0.0))


def censored(random: np.random.Generator, many: int, *, weighted: bool = False) -> list[Attempt]:
    """Return attempts with ties, about a third of them cut off."""
    lengths = np.ceil(random.exponential(20, many))
    cuts = np.ceil(random.exponential(40, many))
    weights = random.integers(1, 4, many) if weighted else np.ones(many)
    return [
        Attempt(float(min(length, cut)), bool(length <= cut), float(weight))
        for length, cut, weight in zip(lengths, cuts, weights, strict=True)
    ]
