"""Try settings of a queue before they are made: event simulation of messages, leases, workers."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Final, NamedTuple

import numpy as np

from leasehold.advisor.attempts import Attempt, Ending, Floats, Lease, Sample
from leasehold.advisor.statistics import DurationModel, fit
from leasehold.domain.queue_settings import LapsedReceipts

__all__ = [
    "Crew",
    "Handling",
    "Load",
    "Outage",
    "Outcome",
    "PopOrder",
    "Renewal",
    "Shape",
    "arrivals",
    "draw_from_model",
    "draw_lengths",
    "lives",
    "replayed",
    "simulate",
]


# --- settings ----------------------------------------------------------------------------------
#
# What a simulation plays: the queue, its workers, the work.


NEVER_S = float("inf")


class PopOrder(StrEnum):
    """Which visible message is received next."""

    BY_VISIBLE = "visible"
    """The one that has been visible for longest, as Leasehold does."""
    BY_ID = "id"
    """The one that was put first."""


class Outage(NamedTuple):
    """A time in which no worker receives, seconds from the start."""

    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Renewal:
    """How workers renew; see :class:`leasehold.advisor.costs.RenewalPlan`."""

    every_s: float
    """From one renewal to the next, above 0."""
    guard_s: float
    """How long before its end the first lease is renewed; each renewal asks for both together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Handling:
    """How messages are leased: what is to be tried."""

    timeout_s: float
    """The visibility timeout, or the first lease if leases are renewed; above 0."""
    growth: float = 1.0
    """Delivery k has ``timeout_s * growth**(k-1)``, 1 or more."""
    timeout_cap_s: float = 604_800.0
    batch: int = 1
    """Messages to receive at once, 1 to 1,000."""
    renewal: Renewal | None = None
    detect_s: float | None = None
    """With sessions: seconds until a dead worker's leases end; None: when they run out."""
    skip_late: bool = False
    """Whether a worker passes over messages that would likely be late."""
    order: PopOrder = PopOrder.BY_VISIBLE
    lapsed_receipts: LapsedReceipts = LapsedReceipts.UNTIL_RETAKEN
    max_deliveries: int | None = None
    """After so many a message is set aside; None for never."""

    def __post_init__(self) -> None:
        if not self.timeout_s > 0:
            raise ValueError(f"timeout_s is {self.timeout_s}; it must be above 0")
        if not 1 <= self.batch <= 1_000:  # noqa: PLR2004 - as the field says
            raise ValueError(f"batch is {self.batch}; it must be 1 to 1000")
        if self.growth < 1:
            raise ValueError(f"growth is {self.growth}; it must be 1 or more")

    def lease_s(self, delivery: int) -> float:
        """Return the length of the first lease of a delivery, 1 for the first."""
        if self.growth == 1:
            return self.timeout_s
        return min(self.timeout_cap_s, self.timeout_s * self.growth ** (delivery - 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class Crew:
    """Who works."""

    workers: int = 8
    """Each works on one message at a time."""
    crash_rate: float = 0.0
    """Crashes per second of work of one worker."""
    restart_s: float = 0.0
    """Seconds until one that crashed is back."""
    outages: tuple[Outage, ...] = ()


# --- work --------------------------------------------------------------------------------------
#
# Where messages and the length of their work come from: a distribution, or a log.


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
            raise ValueError(f"{self.name} must be one of {', '.join(SHAPES)}")
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


# --- queue -------------------------------------------------------------------------------------
#
# A queue and its workers, event by event.
#
# The rules are those of the server, in the few lines that matter here: a message is visible, or on
# a lease that ends at a moment; a receive takes what has been visible for longest; a completion
# counts while its receipt does. Workers work through what they received, one after the other.
# Nothing is approximated, so that what comes out can be compared with a real server's log.


_ARRIVE: Final = 0
_LAPSE: Final = 1
_POP: Final = 2
_NEXT: Final = 3
_DONE: Final = 4
_DIE: Final = 5

_SAMPLES: Final = 120
_LAST_SHARE: Final = 6
_SKIP_MARGIN: Final = 2.0
"""A message is passed over if less than twice the mean work is left of its lease."""
_EPSILON_S: Final = 1e-9


class _Held(NamedTuple):
    """A message that a worker received."""

    message: int
    receipt: int
    """The delivery, which receipts are told apart by."""
    ends_s: float
    began_s: float


class Simulation:
    """One run. Make it, call :meth:`run` once.

    Args:
        load: The messages.
        handling: How they are leased.
        crew: Who works on them.
        lasts_s: When to stop, seconds; above 0.
        seed: Crashes depend on it; the same for two settings gives each delivery the same luck.
        keep_leases: Whether to return what a log would show.
    """

    def __init__(  # noqa: PLR0913 - what a run depends on
        self,
        load: Load,
        handling: Handling,
        crew: Crew,
        *,
        lasts_s: float,
        seed: int = 1,
        keep_leases: bool = False,
    ) -> None:
        self._handling, self._crew, self._lasts_s = handling, crew, lasts_s
        self._strict = handling.lapsed_receipts is not LapsedReceipts.UNTIL_RETAKEN
        self._by_id = handling.order is PopOrder.BY_ID
        self._arrivals = load.arrivals_s.tolist()
        self._lengths: list[float] = load.lengths_s.tolist()
        self._redrawn = None if load.redrawn is None else iter(load.redrawn.tolist())
        self._margin_s = _SKIP_MARGIN * float(load.lengths_s.mean()) if self._lengths else 0.0
        self._seed = seed
        self._lives: dict[int, list[float]] = {}
        """By delivery; see :func:`~leasehold.advisor.simulate.lives`."""
        self._events: list[tuple[float, int, int, object]] = []
        self._number = 0
        self._visible: list[tuple[float, int]] = []
        many = len(self._arrivals)
        self._deliveries = [0] * many
        self._ends = [0.0] * many
        self._live = bytearray(many)
        self._arrived = 0
        self._idle: list[int] = []
        self._dead: set[int] = set()
        """Workers that are away after a crash."""
        self._leases: list[Lease] | None = [] if keep_leases else None
        self._done_at: list[float] = []
        self._waits: list[float] = []
        self._recoveries: list[float] = []
        self._counts = dict.fromkeys(
            ("wasted", "redeliveries", "set_aside", "crashes", "renewals", "skipped"), 0
        )
        self._work_s = self._wasted_s = 0.0

    def run(self) -> Outcome:
        """Play it to the end."""
        if self._arrivals:
            self._push(self._arrivals[0], _ARRIVE, 0)
        for worker in range(self._crew.workers):
            self._push(0.0, _POP, worker)
        act = (self._arrive, self._lapse, self._pop, self._next, self._finish, self._die)
        events = self._events
        while events:
            now, _, kind, what = heapq.heappop(events)
            if now >= self._lasts_s:
                break
            act[kind](now, what)  # type: ignore[arg-type]  # each kind has its own argument
        return self._outcome()

    def _push(self, at_s: float, kind: int, what: object) -> None:
        self._number += 1
        heapq.heappush(self._events, (at_s, self._number, kind, what))

    def _show(self, now: float, message: int) -> None:
        """Make a message visible, and wake a worker for it."""
        heapq.heappush(self._visible, (message if self._by_id else now, message))
        if self._idle:
            self._push(now, _POP, self._idle.pop())

    def _arrive(self, now: float, message: int) -> None:
        self._live[message] = 1
        self._ends[message] = now
        self._arrived += 1
        if message + 1 < len(self._arrivals):
            self._push(self._arrivals[message + 1], _ARRIVE, message + 1)
        self._show(now, message)

    def _lapse(self, now: float, what: tuple[int, int]) -> None:
        message, receipt = what
        if not self._live[message] or self._deliveries[message] != receipt:
            return
        if self._ends[message] > now + _EPSILON_S:
            return  # it was renewed meanwhile
        most = self._handling.max_deliveries
        if most is not None and receipt >= most:
            self._live[message] = 0
            self._counts["set_aside"] += 1
            return
        self._show(now, message)

    def _away_until(self, now: float) -> float | None:
        for outage in self._crew.outages:
            if outage.start_s <= now < outage.end_s:
                return outage.end_s
        return None

    def _pop(self, now: float, worker: int) -> None:
        away = self._away_until(now)
        if away is not None:
            self._push(away, _POP, worker)
            return
        held: list[_Held] = []
        visible = self._visible
        while visible and len(held) < self._handling.batch:
            _, message = heapq.heappop(visible)
            if not self._live[message] or self._ends[message] > now + _EPSILON_S:
                continue
            self._deliveries[message] += 1
            delivery = self._deliveries[message]
            ends = now + self._handling.lease_s(delivery)
            self._ends[message] = ends
            self._counts["redeliveries"] += delivery > 1
            held.append(_Held(message, delivery, ends, now))
            self._push(ends, _LAPSE, (message, delivery))
        if held:
            held.reverse()
            self._next(now, (worker, held))
        else:
            self._idle.append(worker)

    def _next(self, now: float, what: tuple[int, list[_Held]]) -> None:
        """Begin with the next of what a worker holds."""
        worker, held = what
        while held:
            lease = held[-1]
            if not self._handling.skip_late or now < lease.ends_s - self._margin_s:
                break
            held.pop()
            self._counts["skipped"] += 1
            self._log(lease, lease.ends_s - lease.began_s, Ending.LEFT)
        if not held:
            self._push(now, _POP, worker)
            return
        length = self._length(held[-1])
        life = self._life(held[-1])
        renewal = self._handling.renewal
        if renewal is not None:
            self._renew(now, held, min(length, life))
        if life < length:
            self._push(now + life, _DIE, (worker, held, life))
        else:
            self._push(now + length, _DONE, (worker, held, length))

    def _length(self, lease: _Held) -> float:
        if lease.receipt > 1 and self._redrawn is not None:
            return next(self._redrawn, self._lengths[lease.message])
        return self._lengths[lease.message]

    def _life(self, lease: _Held) -> float:
        rate = self._crew.crash_rate
        if rate <= 0:
            return NEVER_S
        drawn = self._lives.get(lease.receipt)
        if drawn is None:
            drawn = lives(self._seed, lease.receipt, len(self._lengths)).tolist()
            self._lives[lease.receipt] = drawn
        return drawn[lease.message] / rate

    def _renew(self, now: float, held: list[_Held], busy_s: float) -> None:
        """Renew all that a worker holds while it is busy with the first of them."""
        renewal = self._handling.renewal
        assert renewal is not None
        until = now + busy_s
        for place, lease in enumerate(held):
            ends = lease.ends_s
            due = max(ends - renewal.guard_s, now)
            many = 0
            while due < until and ends > due:
                many += 1
                ends = due + renewal.every_s + renewal.guard_s
                due += renewal.every_s
            if many:
                self._counts["renewals"] += many
                held[place] = lease._replace(ends_s=ends)
                self._ends[lease.message] = ends
                self._push(ends, _LAPSE, (lease.message, lease.receipt))

    def _finish(self, now: float, what: tuple[int, list[_Held], float]) -> None:
        worker, held, length = what
        lease = held.pop()
        message = lease.message
        self._work_s += length
        late = now >= lease.ends_s
        newest = self._live[message] and self._deliveries[message] == lease.receipt
        if newest and not (self._strict and late):
            self._live[message] = 0
            self._done_at.append(now)
            self._waits.append(now - self._arrivals[message])
        else:
            self._counts["wasted"] += 1
            self._wasted_s += length
        self._log(lease, now - lease.began_s, Ending.LATE if late else Ending.COMPLETED)
        self._next(now, (worker, held))

    def _die(self, now: float, what: tuple[int, list[_Held], float]) -> None:
        worker, held, life = what
        self._counts["crashes"] += 1
        self._work_s += life
        self._wasted_s += life
        detect = self._handling.detect_s
        for lease in held:
            message = lease.message
            newest = self._live[message] and self._deliveries[message] == lease.receipt
            if not newest:
                continue
            ends = lease.ends_s
            if detect is not None and now + detect < ends:
                ends = now + detect
                self._ends[message] = ends
                self._push(ends, _LAPSE, (message, lease.receipt))
            if ends > now:
                self._recoveries.append(ends - now)
        if detect is not None:
            # The last is the one that was worked on; the others tell nothing of work.
            for lease in held:
                at_work = lease is held[-1]
                self._log(lease, now - lease.began_s, Ending.DIED if at_work else Ending.LEFT)
        else:
            for lease in held:
                self._log(lease, lease.ends_s - lease.began_s, Ending.LAPSED)
        self._push(now + self._crew.restart_s, _POP, worker)

    def _log(self, lease: _Held, seconds: float, ending: Ending) -> None:
        if self._leases is not None:
            self._leases.append(Lease(lease.message, seconds, ending, lease.receipt))

    def _outcome(self) -> Outcome:
        wait_mean, wait_top = mean_and_top(self._waits, 0.99)
        recovery_mean, recovery_worst = mean_and_top(self._recoveries, 1.0)
        last = self._lasts_s / _LAST_SHARE
        late_ones = sum(at >= self._lasts_s - last for at in self._done_at)
        return Outcome(
            arrived=self._arrived,
            done=len(self._done_at),
            deliveries=sum(self._deliveries),
            backlog=sum(self._live),
            per_s_at_end=late_ones / last,
            work_s=self._work_s,
            wasted_work_s=self._wasted_s,
            wait_mean_s=wait_mean,
            wait_p99_s=wait_top,
            recovery_mean_s=recovery_mean,
            recovery_worst_s=recovery_worst,
            backlog_over_time=self._backlog_over_time(),
            leases=tuple(self._leases or ()),
            **self._counts,
        )

    def _backlog_over_time(self) -> tuple[tuple[float, int], ...]:
        """Set-aside messages count as not done here; there is no moment kept for them."""
        moments = np.linspace(0.0, self._lasts_s, _SAMPLES + 1)
        came = np.searchsorted(np.asarray(self._arrivals), moments, side="right")
        done = np.searchsorted(np.asarray(self._done_at), moments, side="right")
        return tuple((float(at), int(many)) for at, many in zip(moments, came - done, strict=True))


def simulate(  # noqa: PLR0913 - as Simulation
    load: Load,
    handling: Handling,
    crew: Crew,
    *,
    lasts_s: float,
    seed: int = 1,
    keep_leases: bool = False,
) -> Outcome:
    """Play one run; see :class:`Simulation`.

    Raises:
        ValueError: *lasts_s* is not above 0 and finite.
    """
    if not (lasts_s > 0 and math.isfinite(lasts_s)):
        raise ValueError(f"lasts_s is {lasts_s}; it must be above 0")
    found = Simulation(load, handling, crew, lasts_s=lasts_s, seed=seed, keep_leases=keep_leases)
    return found.run()


# --- outcome -----------------------------------------------------------------------------------
#
# What came of a simulation.


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Counts are of messages unless said otherwise; lengths are in seconds."""

    arrived: int
    done: int
    """Completed, with a completion that counted."""
    wasted: int
    """Completions that came to nothing."""
    deliveries: int
    redeliveries: int
    """Deliveries that were not a message's first."""
    set_aside: int
    crashes: int
    renewals: int
    skipped: int
    """Deliveries that were passed over, since they would have been late."""
    backlog: int
    """Not done when the simulation ended."""
    per_s_at_end: float
    """Messages done per second in the last sixth."""
    work_s: float
    wasted_work_s: float
    """Spent on completions that came to nothing, and lost in crashes."""
    wait_mean_s: float
    """From put to done."""
    wait_p99_s: float
    recovery_mean_s: float
    """From a worker's death until its message was visible again."""
    recovery_worst_s: float
    backlog_over_time: tuple[tuple[float, int], ...]
    """Moments, and how many were not done by then."""
    leases: tuple[Lease, ...] = ()
    """What a log would have shown, for feeding it back into advice; only if asked for."""

    @property
    def wasted_share(self) -> float:
        """Completions that came to nothing, of all; the alarm of a collapse."""
        return self.wasted / max(1, self.done + self.wasted)

    def to_json(self) -> dict[str, Any]:
        """Return it for scripts, without the leases."""
        members = asdict(self)
        del members["leases"]
        return {"wasted_share": self.wasted_share, **members}


def mean_and_top(values: list[float], share: float) -> tuple[float, float]:
    """Return the mean and a quantile; 0 for no values."""
    if not values:
        return 0.0, 0.0
    found = np.asarray(values)
    return float(found.mean()), float(np.quantile(found, share))
