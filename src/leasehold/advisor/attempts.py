"""What is known of attempts at work: how long each lasted, and whether it was seen to end.

An attempt whose end was not seen is *censored*: it took longer than was seen. Leaving such
attempts out would make work look quicker than it is, and most so where the timeout is too short.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
from scipy import special

Floats: TypeAlias = npt.NDArray[np.float64]
Booleans: TypeAlias = npt.NDArray[np.bool_]

HALF_LIFE_ATTEMPTS: Final = 2_000
"""So many attempts later, one counts for half."""
HALF_LIFE_S: Final = 86_400.0
"""The same by age in seconds, for logs in which the moment counts and not the number."""
SHORTEST_S: Final = 1e-6
"""Less than this cannot be told from nothing, and has no logarithm to speak of."""

_MOST_MADE_UP: Final = 2.0
_LEAST_PAIRS: Final = 30
_UNCORRELATED: Final = 0.3
_CONFIDENCE: Final = 0.95


class Attempt(NamedTuple):
    """One lease, or several that are alike.

    Which record an end of a lease makes; :func:`leasehold.advisor.attempts.observe` does it:

    - Completed, in time or late: the seconds from its beginning, and it was finished. A late
      completion is refused, but its receipt tells when the lease began.
    - Its worker died: the seconds to its last sign of life, not finished; and one crash.
    - Lapsed a short while ago, and nothing more was heard so far: the timeout, not finished. It
      may still be completed late.
    - Silent: lapsed long ago, and nothing more was heard. Where late completions are seen its
      worker must have died, it is unknown when: no record, but one crash, and one that is *silent*;
      see :meth:`Sample.with_silent`. Where they are not: the timeout, not finished.
    - Given back on purpose, buried, or at the sixth delivery or later of a message that was not
      done: no record, for such attempts end for reasons of their own.
    - Of a message that was given up when each of its leases had lapsed: the longest of them, not
      finished, and no crash.
    """

    seconds: float
    """How long it was seen to last, 0 or more."""
    finished: bool
    """Whether it was done then; else it lasted longer."""
    weight: float = 1.0
    """How much it counts, above 0; more than 1 for several attempts that are alike."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """Attempts as arrays, in the order of their lengths; finished ones before censored ones."""

    seconds: Floats
    finished: Booleans
    weight: Floats
    """With age counted in."""
    count: Floats
    """Without age."""

    @classmethod
    def of(cls, attempts: Iterable[Attempt], half_life: float | None = None) -> Sample:
        """Sort attempts, and let old ones count for less.

        Args:
            attempts: The oldest first.
            half_life: After so many attempts one counts for half: weight ``0.5**(later/half_life)``
                (exponential smoothing). None: all count alike.

        Raises:
            ValueError: A length is negative or not a number, or a weight is not above 0.
        """
        rows = list(attempts)
        return cls.of_arrays(
            np.array([each.seconds for each in rows], dtype=np.float64),
            np.array([each.finished for each in rows], dtype=np.bool_),
            np.array([each.weight for each in rows], dtype=np.float64),
            half_life,
        )

    @classmethod
    def of_arrays(
        cls, seconds: Floats, finished: Booleans, count: Floats, half_life: float | None = None
    ) -> Sample:
        """Do the same for attempts that are arrays already; see :meth:`of`."""
        if not (np.all(np.isfinite(seconds)) and np.all(seconds >= 0)):
            raise ValueError("an attempt lasts for 0 seconds or more")
        if not (np.all(np.isfinite(count)) and np.all(count > 0)):
            raise ValueError("an attempt has a weight above 0")
        if half_life is not None and not half_life > 0:
            raise ValueError(f"half_life is {half_life}; it must be above 0")
        seconds = np.maximum(seconds, SHORTEST_S)
        weight = count
        if half_life is not None:
            later = count.sum() - np.cumsum(count)
            weight = count * np.exp2(-later / half_life)
        order = np.lexsort((~finished, seconds))
        return cls(
            seconds=seconds[order],
            finished=finished[order],
            weight=weight[order],
            count=count[order],
        )

    def with_silent(self, rate: float) -> Sample:
        """Make up for attempts that are missing since their workers died without a sign.

        Work that takes long is missing more often: of what takes t a share of ``exp(-rate*t)`` is
        left. So what was finished at t counts for ``exp(rate*t)``. To record the timeout as not
        finished instead would take the crash for long work: with one crash in 1,000 s it made the
        advice for work of 20 s 168 s instead of 25 s.

        Args:
            rate: Crashes without a sign, per second of work, 0 or more.

        Source: D. G. Horvitz and D. J. Thompson, JASA 47 (1952): weights of one over the chance to
        be seen.
        """
        # So that one very long attempt does not drown all others.
        factor = np.exp(np.minimum(rate * self.seconds, _MOST_MADE_UP))
        weight = np.where(self.finished, self.weight * factor, self.weight)
        return replace(self, weight=weight)

    @property
    def finishes(self) -> float:
        """How many were seen to end, whatever their age."""
        return float(self.count[self.finished].sum())

    @property
    def censored(self) -> float:
        """How many were not, whatever their age."""
        return float(self.count[~self.finished].sum())


def weight_by_age(age_s: float, half_life_s: float = HALF_LIFE_S) -> float:
    """Return what an attempt of this age counts for: ``0.5**(age/half_life)``.

    Args:
        age_s: Seconds since its end; less than 0 counts as 0.
        half_life_s: Seconds, above 0.
    """
    return math.exp2(-max(0.0, age_s) / half_life_s)


def repeats_are_alike(pairs: Sequence[tuple[float, float]]) -> bool:
    """Tell whether one attempt at a message says how long the next one will take.

    Unless there is good evidence to the contrary, it is assumed to: the cost formula for messages
    whose length is their own errs on the safe side. The evidence is at least 30 messages that were
    finished twice, and a rank correlation (Spearman 1904) whose upper 95 % bound, by Fisher's
    transform, is below 0.3.

    Args:
        pairs: Seconds of two finished attempts at the same message, for several messages.
    """
    if len(pairs) < _LEAST_PAIRS:
        return True
    first, second = (np.argsort(np.argsort(column)) for column in zip(*pairs, strict=True))
    correlation = float(np.corrcoef(first, second)[0, 1])
    spread = float(special.ndtri(_CONFIDENCE)) / math.sqrt(len(pairs) - 3)
    upper = math.tanh(math.atanh(min(correlation, 1 - 1e-12)) + spread)
    return upper >= _UNCORRELATED


# --- observing ---------------------------------------------------------------------------------
#
# From what became of leases to what can be learned from them.


LAST_DELIVERY: Final = 5
"""Of messages that were not done, later ones are left out: a message that kills its workers comes
again and again, and says little of work. As many deliveries are priced, see
:class:`~leasehold.advisor.costs.Growth`."""
SILENT_AFTER_TIMEOUTS: Final = 4
SILENT_AFTER_S: Final = 3_600.0


class Ending(StrEnum):
    """What became of a lease."""

    COMPLETED = "completed"
    """The work was done in time."""
    LATE = "late"
    """It was done, but the lease was over: the completion was refused, or just accepted."""
    DIED = "died"
    """Its worker died, as its session shows; the length is that to its last sign of life."""
    LAPSED = "lapsed"
    """It ran out, and no more was heard."""
    OPEN = "open"
    """It goes on."""
    LEFT = "left"
    """It was given back or buried on purpose."""


class Lease(NamedTuple):
    """One delivery of a message."""

    message: Hashable
    seconds: float
    """To its end; for LATE, to the completion; for OPEN, so far."""
    ending: Ending
    delivery: int = 1
    """1 for the first."""
    since_s: float = float("inf")
    """Seconds since its end."""
    given_up: bool = False
    """Whether it lapsed and its message was given up for that: it had used up its budget of
    deliveries or of lapses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """What there is to learn from; the arguments of :func:`leasehold.advisor.advise`."""

    attempts: tuple[Attempt, ...]
    crashes: int
    silent: int
    work_s: float
    left_out: int
    given_up: int
    """Messages that were given up although no worker was seen to die at them, and none was
    completed."""


def silent_after_s(timeout_s: float) -> float:
    """Return after how long nobody will complete a lapsed lease any more: 4 timeouts, or 1 h."""
    return max(SILENT_AFTER_TIMEOUTS * timeout_s, SILENT_AFTER_S)


def observe(leases: Iterable[Lease], *, late_seen: bool, own_length: bool = True) -> Observed:
    """Sort leases into attempts, crashes and what is better left out.

    Where the length is the message's own, all its leases together are one observation, and they
    tell slow work from dead workers: a lease that lapsed although the work, as another delivery
    showed, would have fitted, was a crash. Of a message that was given up since each of its leases
    lapsed, it is unknown which of the two it was. It counts as work that takes longer, for that
    errs on the safe side.

    Args:
        leases: In the order of their ends, the oldest first.
        late_seen: Whether late completions are in the log. Then a lease of which nothing was heard
            for long was a crash; else it may have been slow work as well.
        own_length: Whether a message takes as long at each delivery.
    """
    groups: dict[Hashable, list[Lease]] = {}
    for place, lease in enumerate(leases):
        groups.setdefault(lease.message if own_length else place, []).append(lease)
    attempts: list[Attempt] = []
    crashes = silent = left_out = given_up = 0
    work_s = 0.0
    for group in groups.values():
        known = min((each.seconds for each in group if each.ending in _DONE), default=float("inf"))
        lapsed_only = own_length and _lapsed_until_given_up(group)
        # One that was done at last is no killer of workers, and tells what its other leases were.
        # All of them count then: without those that died, deaths would seem rarer than they are.
        told = own_length and (known < float("inf") or lapsed_only)
        used = [
            each
            for each in group
            if each.ending is not Ending.LEFT and (told or each.delivery <= LAST_DELIVERY)
        ]
        left_out += len(group) - len(used)
        if not used:
            continue
        dead = [
            each for each in used if not lapsed_only and _is_crash(each, known, late_seen=late_seen)
        ]
        crashes += len(dead)
        given_up += lapsed_only
        # How long a crashed one had worked is known only from a session.
        seen = [each for each in used if each not in dead or each.ending is Ending.DIED]
        work_s += sum(each.seconds for each in seen)
        if known < float("inf"):
            attempts.append(Attempt(known, finished=True))
        elif seen:
            attempts.append(Attempt(max(each.seconds for each in seen), finished=False))
        else:
            silent += 1
    return Observed(
        attempts=tuple(attempts),
        crashes=crashes,
        silent=silent,
        work_s=work_s,
        left_out=left_out,
        given_up=given_up,
    )


def _lapsed_until_given_up(group: Iterable[Lease]) -> bool:
    """Tell whether a message was given up although no worker died at it, as far as is known."""
    endings = {each.ending for each in group}
    given_up = any(each.given_up for each in group)
    return given_up and endings <= {Ending.LAPSED, Ending.LEFT}


_DONE: Final = frozenset({Ending.COMPLETED, Ending.LATE})


def _is_crash(lease: Lease, known_s: float, *, late_seen: bool) -> bool:
    if lease.ending is Ending.DIED:
        return True
    if lease.ending is not Ending.LAPSED:
        return False
    return known_s <= lease.seconds or (
        late_seen and lease.since_s >= silent_after_s(lease.seconds)
    )
