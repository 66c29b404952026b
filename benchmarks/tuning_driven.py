"""What daily advice does to queues that give messages up: workers on a store, a log, and advice.

``python -m benchmarks.tuning_driven [--days 14] [--messages 400] [--out FILE]``

Eleven kinds of work that nothing was tuned on, each in a queue of the server's own store in memory,
whose clock the driver moves. Eight workers receive, work, complete late or die. A message has five
deliveries; then it goes to the poison queue, and whoever still works on it completes it in vain.
The timeout begins at 30 s. After each day the log so far makes advice, as ``leasehold analyze
--apply`` does, and the queue takes it. Each timeout is priced on the true distribution, as it is
for a queue that gives each delivery the same timeout, and divided by the least price of any: that
is its regret. A message that was given up is priced at an hour.
"""

from __future__ import annotations

import argparse
import heapq
import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple

import numpy as np
from scipy import stats

from benchmarks.single import Record, print_bars
from benchmarks.tuning_log import summary_of
from benchmarks.tuning_worlds import Work
from leasehold.advisor import Lengths
from leasehold.advisor.advice import price
from leasehold.advisor.attempts import Floats
from leasehold.advisor.recommendation import Asked, Recommendation, Today, recommend
from leasehold.domain import commands as c
from leasehold.domain.command import AnyCommand
from leasehold.domain.events import EventPage, EventType, ReadEvents
from leasehold.domain.model import Lease
from leasehold.domain.queue_settings import FailurePolicy, QueueSettings
from leasehold.stores.memory import MemoryStore

OUT: Final = Path(__file__).parent / "results" / "tuning_driven.json"
ACCOUNT: Final = "acme"
QUEUE: Final = "work"
DAY_MS: Final = 86_400_000
BEGIN_MS: Final = 1_763_712_000_000
START_S: Final = 30
DELIVERIES: Final = 5
WORKERS: Final = 8
LOAD: Final = 0.1
"""Share of the workers that first deliveries keep busy. Long work is delivered five times; if more
of them were busy, lapsed leases would not be retaken, and receipts work until they are."""
RESTART_S: Final = 10.0
GRID: Final[Floats] = np.geomspace(1.0, 43_200.0, 600)
_ALL: Final = 10**9


class World(NamedTuple):
    """A kind of work, and how often workers die at it."""

    work: Work
    crash_rate: float
    """Deaths per second of work; 0: nobody dies."""


def _of(name: str, *parts: tuple[float, Any]) -> Work:
    return Work(name, tuple(parts))


QUICK_AND_LONG: Final = World(
    _of(
        "90 % 5 s, 10 % 300 s",
        (0.9, stats.lognorm(0.05, scale=5)),
        (0.1, stats.lognorm(0.05, scale=300)),
    ),
    0.0,
)
WORLDS: Final = (
    QUICK_AND_LONG,
    World(
        _of(
            "95 % 2 s, 5 % 600 s",
            (0.95, stats.lognorm(0.3, scale=2)),
            (0.05, stats.lognorm(0.3, scale=600)),
        ),
        0.0,
    ),
    World(
        _of(
            "70 % 3 s, 30 % 90 s",
            (0.7, stats.lognorm(0.3, scale=3)),
            (0.3, stats.lognorm(0.3, scale=90)),
        ),
        1e-4,
    ),
    World(_of("log-normal 10 s, sigma 1", (1.0, stats.lognorm(1.0, scale=10))), 1e-4),
    World(_of("log-normal 30 s, sigma 1.2", (1.0, stats.lognorm(1.2, scale=30))), 1e-4),
    World(_of("log-normal 120 s, sigma 0.5", (1.0, stats.lognorm(0.5, scale=120))), 1e-4),
    World(_of("Weibull 0.7, 40 s", (1.0, stats.weibull_min(0.7, scale=40))), 5e-4),
    World(_of("gamma 3, mean 60 s", (1.0, stats.gamma(3.0, scale=20))), 1e-3),
    World(_of("uniform 10 to 120 s", (1.0, stats.uniform(10, 110))), 1e-4),
    World(_of("Pareto 2 from 5 s", (1.0, stats.pareto(2.0, scale=5))), 1e-4),
    World(_of("exponential 20 s", (1.0, stats.expon(scale=20))), 1e-3),
)


class Driven:
    """A queue with its workers.

    Args:
        world: What they do.
        seed: Where chance comes from.
        deliveries: After which a message is given up.
        log_late: Whether completions that came too late are read from the log; not for one of
            before they were in it.
    """

    def __init__(
        self, world: World, seed: int, *, deliveries: int = DELIVERIES, log_late: bool = True
    ) -> None:
        self._deliveries, self._log_late = deliveries, log_late
        self._world = world
        self._random = np.random.default_rng((seed, 44))
        self._store = MemoryStore()
        self._now_ms = BEGIN_MS
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._numbers = count()
        self._idle = WORKERS
        self._lengths: dict[str, float] = {}
        self.timeout_s = START_S
        self._do(c.CreateQueue(ACCOUNT, QUEUE, {}, self._settings()))

    def _settings(self) -> QueueSettings:
        return QueueSettings(
            visibility_timeout_s=self.timeout_s,
            failure_policy=FailurePolicy(max_deliveries=self._deliveries),
        )

    def set_timeout(self, timeout_s: int) -> None:
        """Set the timeout of the queue."""
        self.timeout_s = timeout_s
        self._do(c.SetQueueSettings(ACCOUNT, QUEUE, self._settings()))

    def play_day(self, messages: int) -> None:
        """Put messages, work until all are done or given up, and wait for the next day."""
        began_ms = self._now_ms
        lengths = self._world.work.draw(self._random, messages)
        gap_s = float(lengths.mean()) / (WORKERS * LOAD)
        at_ms = began_ms
        for length in lengths.tolist():
            at_ms += int(1000 * self._random.exponential(gap_s)) + 1
            self._at(at_ms, partial(self._put, length))
        while self._events:
            at_ms, _, act = heapq.heappop(self._events)
            self._now_ms = max(self._now_ms, at_ms)
            act()
        days = max(1, math.ceil((self._now_ms - began_ms) / DAY_MS))
        self._now_ms = began_ms + days * DAY_MS

    def advice(self) -> Recommendation:
        """Return what the log so far makes of it."""
        page = self._do(ReadEvents(0, _ALL))
        assert isinstance(page, EventPage)
        told = [
            each for each in page.events if self._log_late or each.type is not EventType.REFUSED
        ]
        summary = summary_of(told, QUEUE, self._now_ms)
        today = Today(visibility_timeout_s=self.timeout_s, lease_s=self.timeout_s)
        return recommend(summary.queues[0], Asked(today={QUEUE: today}))

    def _do(self, command: AnyCommand) -> Any:
        result = self._store.execute([command], now_ms=self._now_ms)[0]
        self._store.commit()
        return result

    def _at(self, at_ms: int, act: Callable[[], None]) -> None:
        heapq.heappush(self._events, (at_ms, next(self._numbers), act))

    def _put(self, length_s: float) -> None:
        entropy = len(self._lengths).to_bytes(10, "big")
        put = self._do(c.Put(ACCOUNT, QUEUE, b"", delay_s=0, time_to_live_s=None, entropy=entropy))
        self._lengths[put.message.message_id] = length_s
        self._poll()

    def _poll(self) -> None:
        if self._idle:
            for lease in self._do(c.Receive(ACCOUNT, QUEUE, min(self._idle, 32), None)):
                self._idle -= 1
                self._begin(lease)

    def _begin(self, lease: Lease) -> None:
        length_s = self._lengths[lease.message.message_id]
        # Whoever is idle asks again when the lease is over.
        self._at(lease.message.visible_at_ms, self._poll)
        rate = self._world.crash_rate
        dies_s = float(self._random.exponential(1 / rate)) if rate else math.inf
        if dies_s < length_s:
            self._at(self._now_ms + int(1000 * (dies_s + RESTART_S)), self._free)
        else:
            self._at(self._now_ms + int(1000 * length_s), partial(self._finish, lease))

    def _finish(self, lease: Lease) -> None:
        self._do(c.Complete(ACCOUNT, QUEUE, lease.message.message_id, lease.receipt))
        self._free()

    def _free(self) -> None:
        self._idle += 1
        self._poll()


class Pricing:
    """Of timeouts, on the true distribution."""

    def __init__(self, world: World) -> None:
        self._truth, self._rate = world.work.truth(), world.crash_rate
        self._question = Asked().question(None, Lengths.OF_MESSAGE)
        self._least = float(self._of(GRID).min())

    def _of(self, timeouts_s: Floats) -> Floats:
        return price(self._truth, timeouts_s, self._rate, self._question)

    def regret(self, timeout_s: float) -> tuple[float, float]:
        """Return cost over the least cost: as it is, and beyond the work that no timeout changes.

        The second one is the seconds above the least, over the mean work: a share of nearly nothing
        would say little where the best timeout costs nearly nothing.
        """
        cost = float(self._of(np.array([float(timeout_s)]))[0])
        return cost / self._least, (cost - self._least) / self._truth.mean_s


def run(world: World, days: int, messages: int, seed: int) -> list[dict[str, float]]:
    """Play days, and return for each the timeout it began with, what is advised after it, and what
    the best one is called, each with its regret.
    """
    driven, pricing, told = Driven(world, seed), Pricing(world), []
    for _ in range(days):
        began_s = driven.timeout_s
        driven.play_day(messages)
        found = driven.advice()
        told.append(
            {
                "timeout_s": began_s,
                "advised_s": found.timeout_s,
                "regret": pricing.regret(found.timeout_s)[0],
                "wanted_s": round(found.wanted_s, 1),
                "wanted_regret": pricing.regret(found.wanted_s)[0],
                "wanted_beyond_work": pricing.regret(found.wanted_s)[1],
                "crash_every_s": round(found.crash_every_s, 1),
            }
        )
        driven.set_timeout(found.timeout_s)
    return told


def geometric(values: Sequence[float]) -> float:
    """Return the geometric mean."""
    return math.exp(sum(map(math.log, values)) / len(values))


BARS: Final = {"wanted_first_day": ("<=", 1.10), "worst_last_day": ("<=", 1.25)}


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--days", type=int, default=14)
    parser.add_argument("--messages", type=int, default=400)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--out", type=Path, default=OUT)
    chosen = parser.parse_args()
    record = Record("tuning_driven")
    rows: list[dict[str, Any]] = []
    for world in WORLDS:
        runs = [run(world, chosen.days, chosen.messages, seed) for seed in range(chosen.seeds)]
        rows.append({"work": world.work.name, "crash_rate": world.crash_rate, "runs": runs})
        days = " ".join(f"{day['advised_s']:.0f}" for day in runs[0])
        ends = median(each[-1]["regret"] for each in runs)
        print(f"{world.work.name:28} {days}  regret {ends:.3f}", flush=True)
    runs_of = [each for row in rows for each in row["runs"]]
    last = chosen.days - 1
    summary = {
        "wanted_first_day": geometric([each[0]["wanted_regret"] for each in runs_of]),
        "wanted_first_day_worst": max(each[0]["wanted_regret"] for each in runs_of),
        "wanted_second_day": geometric([each[min(1, last)]["wanted_regret"] for each in runs_of]),
        "wanted_second_day_worst": max(each[min(1, last)]["wanted_regret"] for each in runs_of),
        "last_day": geometric([each[-1]["regret"] for each in runs_of]),
        "worst_last_day": max(each[-1]["regret"] for each in runs_of),
        "last_day_beyond_work": sum(each[-1]["wanted_beyond_work"] for each in runs_of)
        / len(runs_of),
    }
    for name, figure in summary.items():
        print(f"{name:32} {figure:.3f}")
    print_bars(summary, BARS, digits=3)
    members = {"days": chosen.days, "messages": chosen.messages, "seeds": chosen.seeds}
    record.write(chosen.out, {**members, "summary": summary, "rows": rows})


if __name__ == "__main__":
    main()
