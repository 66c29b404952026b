"""How a backlog will go on: when messages start to expire, and how many workers would drain it.

Days like those in the log are put together at random, and a queue that is served in order is
followed through them. No growth or season is assumed that the log does not show.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from leasehold.advisor.attempts import Floats
from leasehold.advisor.simulate import Crew, Handling, Load, draw_from_model, simulate
from leasehold.advisor.statistics import DurationModel, Evidence
from leasehold.advisor.summaries import Hour, QueueSummary, count_of, together
from leasehold.domain.wording import time_of

HORIZON_H: Final = 48
"""Hours that are looked ahead."""
LEAST_HOURS: Final = 6
"""Hours of log without which nothing is forecast."""
PATHS: Final = 400
BAND: Final = (0.1, 0.9)
"""Quantiles of the paths: a band of 80 %."""
DRAIN_H: Final = (1, 8, 24)

_DAY_H: Final = 24
_SEED: Final = 20_061
_HOUR_S: Final = 3_600.0
_HOUR_MS: Final = 3_600_000
_BLOCK_H: Final = 6
_BUSY: Final = 0.1
"""An hour that begins and ends with a tenth of the best hour's completions waiting was limited by
its workers."""

_Integers = npt.NDArray[np.intp]


class ForecastPoint(NamedTuple):
    """The backlog at the end of an hour to come."""

    at_ms: int
    low: float
    median: float
    high: float


class Drain(NamedTuple):
    """How many workers would empty a queue."""

    hours: float
    workers: int
    """Working on one message at a time each, while new messages go on coming."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """What is to be expected of a queue. Rates are per hour."""

    queue: str
    is_enough: bool
    because: str
    backlog: int
    put_per_h: float
    """Over the last day."""
    completed_per_h: float
    capacity_per_h: float
    """What the workers get done in an hour in which they have enough to do; at least so much."""
    points: tuple[ForecastPoint, ...] = ()
    time_to_live_s: float | None = None
    expiry_chance: float = 0.0
    """That messages expire within the horizon, 0 to 1."""
    expires_from_ms: int | None = None
    """When they start to, in half of the cases in which they do."""
    mean_work_s: float | None = None
    busy_workers: float | None = None
    """Workers that are busy on average today."""
    keep_up_workers: int | None = None
    """So many are needed for the backlog not to grow."""
    drains: tuple[Drain, ...] = ()
    oldest_put_ms: int | None = None
    """When the oldest message in the queue was put."""
    next_expiry_ms: int | None = None
    """When the first of them expires unless it is completed; None if none does."""


def forecast(queue: QueueSummary, until_ms: int) -> Forecast:
    """Forecast the backlog of a queue for two days.

    Args:
        queue: With its hours.
        until_ms: The end of the log. Hours without an event up to there are hours in which nothing
            happened; those before the first event are not, for the log may begin there.
    """
    # What is left of an hour says little about an hour.
    whole = [each for each in quiet_too(queue.hours, until_ms) if each.start_ms < _last(until_ms)]
    last = whole[-_DAY_H:]
    put = sum(each.put for each in last) / max(1, len(last))
    done = sum(each.completed for each in last) / max(1, len(last))
    mean_s = _mean_work_s(queue)
    capacity = capacity_of(whole, mean_s or 0.0)
    known = Forecast(
        queue=queue.queue,
        is_enough=False,
        because=f"not enough data yet: {len(whole)} whole hours; it takes {LEAST_HOURS}",
        backlog=queue.open_messages,
        put_per_h=put,
        completed_per_h=done,
        capacity_per_h=float(np.mean(capacity)) if len(capacity) else 0.0,
        time_to_live_s=queue.time_to_live_s,
        mean_work_s=mean_s,
        oldest_put_ms=queue.oldest_open_ms,
        next_expiry_ms=queue.next_expiry_ms,
    )
    if len(whole) < LEAST_HOURS:
        return known
    arrivals, service = _drawn(whole, capacity)
    waiting, older = _waiting(whole, queue.open_messages)
    oldest_h = float(len(whole))
    if queue.oldest_open_ms is not None:
        oldest_h = max(oldest_h, (until_ms - queue.oldest_open_ms) / _HOUR_MS)
    backlog, ages = _follow(arrivals, service, waiting, older, oldest_h)
    low, median, high = np.quantile(backlog, (BAND[0], 0.5, BAND[1]), axis=0)
    points = tuple(
        ForecastPoint(
            until_ms + (place + 1) * _HOUR_MS, float(low[place]), float(mid), float(high[place])
        )
        for place, mid in enumerate(median)
    )
    chance, first_h = _expiry(ages, queue.time_to_live_s)
    from_ms = None if first_h is None else until_ms + int((first_h + 1) * _HOUR_MS)
    return _with_workers(known, points, chance, from_ms)


def _last(until_ms: int) -> int:
    """Return where the last whole hour before a moment ends."""
    return until_ms // _HOUR_MS * _HOUR_MS


def quiet_too(hours: Sequence[Hour], until_ms: int) -> list[Hour]:
    """Return the hours with those after the last event, up to the end of the log.

    Args:
        hours: Rising, without gaps.
        until_ms: The end of the log.
    """
    if not hours:
        return []
    last = hours[-1]
    quiet = range(last.start_ms + _HOUR_MS, _last(until_ms), _HOUR_MS)
    return [*hours, *(Hour(start_ms=each, backlog_end=last.backlog_end) for each in quiet)]


def capacity_of(hours: Sequence[Hour], mean_work_s: float = 0.0) -> list[float]:
    """Return what was completed in hours in which there was more to do than was done.

    Without such hours it is the best hour of all: the workers can do at least so much.

    Args:
        hours: Rising.
        mean_work_s: Seconds that a message takes. What is being worked on is in the queue as well,
            but does not wait: on average the completions of a second, times this (Little's law).
    """
    best = float(max((each.completed for each in hours), default=0))
    return busy_hours(hours, mean_work_s)[-_DAY_H:] or [best]


def busy_hours(hours: Sequence[Hour], mean_work_s: float) -> list[float]:
    """Return what was completed in each hour in which there was more to do than was done.

    The arguments are those of :func:`capacity_of`.
    """
    best = float(max((each.completed for each in hours), default=0))
    usual = sum(each.completed for each in hours) / max(1, len(hours))
    busy, waited = [], True
    for each in hours:
        at_work = max(usual, each.completed) * mean_work_s / _HOUR_S
        # By chance it is more at the end of an hour: two standard deviations of a Poisson number.
        at_work += 2 * math.sqrt(at_work)
        waits = each.backlog_end - at_work >= max(1.0, _BUSY * best)
        # Hours in which no worker runs are among them: who works by night only gets less done.
        if waits and waited:
            busy.append(float(each.completed))
        waited = waits
    return busy


def _drawn(hours: list[Hour], capacity: list[float]) -> tuple[Floats, Floats]:
    """Draw arrivals and capacities for each path and hour, in blocks, so that runs stay runs."""
    draw = np.random.default_rng(_SEED)
    put = np.array([each.put for each in hours], dtype=np.float64)
    many = len(put)
    days = many // _DAY_H
    places: _Integers
    if days >= 2:  # noqa: PLR2004 - with one day there is nothing to draw from
        # The same hour of some day before, by whole days.
        which = draw.integers(1, days + 1, size=(PATHS, HORIZON_H // _DAY_H))
        back = np.repeat(which, _DAY_H, axis=1) * _DAY_H
        places = many - back + np.arange(HORIZON_H) % _DAY_H
    else:
        block = min(_BLOCK_H, many)
        starts = draw.integers(0, many - block + 1, size=(PATHS, math.ceil(HORIZON_H / block)))
        places = (starts[:, :, None] + np.arange(block)).reshape(PATHS, -1)[:, :HORIZON_H]
    service = draw.choice(np.array(capacity), size=(PATHS, HORIZON_H))
    return put[places], service


def _waiting(hours: list[Hour], backlog: int) -> tuple[Floats, float]:
    """Return how many of the backlog came in each hour, and how many before all of them.

    They are the newest that came, for the oldest go first.
    """
    left, found = float(backlog), []
    for each in reversed(hours):
        part = min(left, float(each.put))
        found.append(part)
        left -= part
    return np.array(found[::-1], dtype=np.float64), left


def _follow(
    arrivals: Floats, service: Floats, waiting: Floats, older: float, oldest_h: float
) -> tuple[Floats, Floats]:
    """Return the backlog, and the age in hours of its oldest message, per path and hour.

    Args:
        arrivals: Per path and hour to come.
        service: How many can be done, likewise.
        waiting: How many of the backlog came in each hour of the past.
        older: How many came before.
        oldest_h: How many hours ago, at most.
    """
    past = len(waiting)
    known = np.concatenate([[older], waiting])
    came = np.concatenate([np.broadcast_to(known, (PATHS, past + 1)), arrivals], axis=1)
    # In hours from now; whatever has not come yet has no age.
    born = np.concatenate([[-oldest_h], np.arange(-past, arrivals.shape[1] + 1)])
    total = np.cumsum(came, axis=1)
    served = np.zeros(PATHS)
    backlog, ages = np.empty_like(arrivals), np.zeros_like(arrivals)
    for place in range(arrivals.shape[1]):
        there = total[:, past + 1 + place]
        served = np.minimum(there, served + service[:, place])
        backlog[:, place] = there - served
        front = (total <= served[:, None] + 1e-9).sum(axis=1)
        ages[:, place] = np.maximum(0.0, place + 1 - born[front])
    return backlog, ages


def _expiry(ages: Floats, time_to_live_s: float | None) -> tuple[float, float | None]:
    """Return the chance that messages expire, and after how many hours if they do."""
    if time_to_live_s is None:
        return 0.0, None
    over = ages * _HOUR_S > time_to_live_s
    hit = over.any(axis=1)
    if not hit.any():
        return 0.0, None
    return float(hit.mean()), float(np.median(over.argmax(axis=1)[hit]))


def _mean_work_s(queue: QueueSummary) -> float | None:
    """Return the seconds of work for each message that was done; None if none was.

    With the time spent on what was not finished: workers are needed for that as well.
    """
    whole = together(queue.works)
    messages = count_of(whole.bins, finished=True)
    if not messages:
        return None
    return sum(each.seconds * each.count for each in whole.bins) / messages


def _with_workers(
    known: Forecast, points: tuple[ForecastPoint, ...], chance: float, from_ms: int | None
) -> Forecast:
    mean_s = known.mean_work_s
    drains: tuple[Drain, ...] = ()
    if mean_s is not None:
        drains = tuple(
            Drain(float(within), _workers(known.backlog / within + known.put_per_h, mean_s))
            for within in DRAIN_H
        )
    return Forecast(
        queue=known.queue,
        is_enough=True,
        because=_because(known, points[-1], chance),
        backlog=known.backlog,
        put_per_h=known.put_per_h,
        completed_per_h=known.completed_per_h,
        capacity_per_h=known.capacity_per_h,
        points=points,
        time_to_live_s=known.time_to_live_s,
        expiry_chance=chance,
        expires_from_ms=from_ms,
        mean_work_s=mean_s,
        busy_workers=None if mean_s is None else known.completed_per_h * mean_s / _HOUR_S,
        keep_up_workers=None if mean_s is None else _workers(known.put_per_h, mean_s),
        drains=drains,
        oldest_put_ms=known.oldest_put_ms,
        next_expiry_ms=known.next_expiry_ms,
    )


def _workers(per_h: float, mean_s: float) -> int:
    return math.ceil(per_h * mean_s / _HOUR_S - 1e-9)


def _because(known: Forecast, last: ForecastPoint, chance: float) -> str:
    told = (
        f"messages per hour of the last day: {known.put_per_h:,.0f} came, "
        f"{known.completed_per_h:,.0f} were completed, {known.capacity_per_h:,.0f} can be; in "
        f"{HORIZON_H} hours {last.median:,.0f} wait ({last.low:,.0f} to {last.high:,.0f})"
    )
    if known.time_to_live_s is not None:
        told += f"; messages expire by then with a chance of {chance:.0%}"
    if known.backlog and known.next_expiry_ms is not None:
        told += f"; the first expires at {time_of(known.next_expiry_ms)} unless it is done"
    return told


# --- replay ------------------------------------------------------------------------------------
#
# What the messages of the last hours would have met with some timeout: they come as they came, to
# as many workers, onto the backlog that there was.


PLAYS: Final = 5
MOST_PLAYED: Final = 600
"""Messages of one play: those of the last hours, or of the last part of an hour."""
_T_90: Final = 2.132
"""Student's t of PLAYS - 1 degrees of freedom, for a bar of 90 %."""


class Replay(NamedTuple):
    """What plays of a log came to."""

    workers: int
    per_message: float
    """Redeliveries, on average."""
    low: float
    """Between this and ``high`` nine of ten such stretches would come."""
    high: float


def workers_of(queue: QueueSummary, mean_work_s: float) -> int | None:
    """Return how many workers a queue had, each with one message at a time; None if not known.

    Those that gave a name, or as many as were at work in hours in which messages waited.
    """
    if not queue.workers and not busy_hours(queue.hours, mean_work_s):
        return None
    per_h = float(np.mean(capacity_of(queue.hours, mean_work_s)))
    return max(1, len(queue.workers), _workers(per_h, mean_work_s))


def replay(
    queue: QueueSummary,
    model: DurationModel,
    evidence: Evidence,
    handling: Handling,
) -> Replay | None:
    """Play the last messages of a log as they came; None if its workers or hours are not known.

    Each play has a distribution and a rate of deaths of its own that the log may have come from,
    so that they are apart by as much as is uncertain, and by chance as a log is.

    Args:
        queue: With its hours and workers.
        model: How long the work takes.
        evidence: What it rests on.
        handling: The timeout, and the rules for lapsed receipts and for giving messages up.
    """
    workers = workers_of(queue, model.mean_s)
    hours = [each for each in queue.hours if each.put]
    if workers is None or not hours:
        return None
    taken = len(queue.hours) - 1
    while taken and sum(each.put for each in queue.hours[taken - 1 :]) <= MOST_PLAYED:
        taken -= 1
    stretch = queue.hours[taken:]
    put = np.array([each.put for each in stretch])
    before = stretch[0].backlog_end + stretch[0].completed - stretch[0].put
    share = min(1.0, MOST_PLAYED / max(1, put.sum()))
    lasts_s = _HOUR_S * len(stretch) * share
    found = []
    for seed, (drawn, rate) in enumerate(islice(evidence.worlds(model), PLAYS)):
        random = np.random.default_rng((_SEED, seed))
        came = [
            random.uniform(_HOUR_S * at, _HOUR_S * (at + 1), many) for at, many in enumerate(put)
        ]
        at_s = np.sort(np.concatenate([np.zeros(min(max(0, before), MOST_PLAYED)), *came]))
        at_s = at_s[at_s < lasts_s]
        load = Load(arrivals_s=at_s, lengths_s=draw_from_model(drawn, random, len(at_s)))
        crew = Crew(workers=workers, crash_rate=rate)
        outcome = simulate(load, handling, crew, lasts_s=lasts_s, seed=seed)
        found.append(outcome.redeliveries / max(1, outcome.arrived))
    middle, bar = float(np.mean(found)), _T_90 * float(np.std(found, ddof=1))
    return Replay(workers, middle, max(0.0, middle - bar), middle + bar)
