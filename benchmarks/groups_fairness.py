"""How evenly groups share a queue, on the real store under a virtual clock.

``python -m benchmarks.groups_fairness --out benchmarks/results/groups_fairness.json`` measures:

- ``newcomer``: turns until a group with one message is served that comes behind one with a million;
- ``shares``: Jain's index of what a thousand tenants with loads after Zipf were given while all of
  them had messages waiting: 1 is the same for each;
- ``neighbours``: twenty workers and fifty quiet tenants, beside a noisy one with a backlog without
  an end: how long messages of the quiet ones take, from the put until they are received (dwell) and
  until they are done, over what that is without the noisy one. Once the noisy one's messages take
  as long as all others, and once fifty times as long; with ``fair`` alone, with ``limit_noisy``,
  and with a limit made by hand. Also where the quiet ones use nine tenths of the workers.

Nothing depends on how fast the machine is.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import statistics
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Final

from benchmarks.single import Record, print_bars
from leasehold.domain import commands as c
from leasehold.domain.errors import LeaseholdError
from leasehold.domain.model import ENTROPY_BYTES, Detail, Lease
from leasehold.domain.queue_settings import GroupSettings, QueueSettings
from leasehold.stores.base import Store
from leasehold.stores.sqlite import SqliteStore

ACCOUNT: Final = "bench"
QUEUE: Final = "bench"
NOISY: Final = "noisy"
BODY: Final = b"x" * 100
_START_MS: Final = 1_800_000_000_000
_BATCH: Final = 10_000
_LEASE_S: Final = 3_600
BARS: Final = {
    "newcomer_turns": ("<=", 2.0),
    "jain": (">=", 0.99),
    "done_ratio_as_long": ("<=", 1.2),
    "done_ratio_50_times_as_long": ("<=", 1.2),
    "done_ratio_as_long_limit_noisy": ("<=", 1.2),
    "done_ratio_50_times_as_long_limit_noisy": ("<=", 1.2),
    "most_done_ratio_as_long_limit_noisy": ("<=", 1.2),
    "most_done_ratio_50_times_as_long_limit_noisy": ("<=", 1.2),
}


class Shared:
    """A queue that groups share, and the time.

    Args:
        store: Empty.
        settings: Of the groups.
    """

    def __init__(self, store: Store, settings: GroupSettings) -> None:
        self._store = store
        self._numbers = itertools.count()
        self.now_ms = _START_MS
        self._ask(
            c.CreateQueue(ACCOUNT, QUEUE, {}),
            c.SetQueueSettings(ACCOUNT, QUEUE, QueueSettings(groups=settings, event_log=False)),
        )

    def put(self, groups: Sequence[str]) -> None:
        """Put a message of each of these groups."""
        for at in range(0, len(groups), _BATCH):
            self._ask(*(self._put(group) for group in groups[at : at + _BATCH]))

    def receive(self) -> Lease | None:
        """Receive one message, if there is one."""
        (leases,) = self._ask(c.Receive(ACCOUNT, QUEUE, 1, _LEASE_S))
        return leases[0] if leases else None

    def complete(self, lease: Lease) -> None:
        """Complete a message."""
        self._ask(c.Complete(ACCOUNT, QUEUE, lease.message.message_id, lease.receipt))

    def serve(self, times: int) -> list[str]:
        """Receive and complete so many messages; return the groups of these."""
        served: list[str] = []
        for _ in range(times):
            lease = self.receive()
            assert lease is not None
            served.append(group_of(lease))
            self.complete(lease)
        return served

    def _put(self, group: str) -> c.Put:
        entropy = next(self._numbers).to_bytes(ENTROPY_BYTES, "big")
        return c.Put(ACCOUNT, QUEUE, BODY, 0, None, entropy, Detail(group_id=group))

    def _ask(self, *commands: Any) -> list[Any]:
        results = self._store.execute(commands, now_ms=self.now_ms)
        self._store.commit()
        for each in results:
            if isinstance(each, LeaseholdError):
                raise each
        return list(results)


def group_of(lease: Lease) -> str:
    """Return the group of a message."""
    return str(lease.message.detail.group_id)


@contextmanager
def stored(settings: GroupSettings) -> Iterator[Shared]:
    """Have a queue on SQLite, in memory: how long syncs take makes no difference here."""
    place = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=place if place.is_dir() else None) as folder:
        store = SqliteStore(Path(folder))
        try:
            yield Shared(store, settings)
        finally:
            store.close()


# --- newcomer and shares -----------------------------------------------------------------------


def newcomer_turns(shared: Shared, backlog: int) -> int:
    """Return how many turns a newcomer takes to be served, its own included."""
    shared.put(["large"] * backlog)
    shared.serve(100)
    shared.put(["new"])
    for turn in itertools.count(1):
        if shared.serve(1) == ["new"]:
            return turn
    raise AssertionError


def zipf(tenants: int, messages: int) -> list[int]:
    """Return how many messages each tenant has: the n-th a share in proportion to 1/n."""
    whole = sum(1 / rank for rank in range(1, tenants + 1))
    return [round(messages / rank / whole) for rank in range(1, tenants + 1)]


def jain(shares: Sequence[float]) -> float:
    """Return Jain's index of fairness: 1 for equal shares, 1/n if one has all."""
    squares = sum(share * share for share in shares)
    return sum(shares) ** 2 / (len(shares) * squares) if squares else 1.0


def shares(shared: Shared, tenants: int, messages: int) -> list[int]:
    """Return how many messages each tenant was given while all had some waiting."""
    counts = zipf(tenants, messages)
    waiting = [f"t{n}" for n, count in enumerate(counts) for _ in range(count)]
    Random(1).shuffle(waiting)
    shared.put(waiting)
    # The last tenant has the fewest: until it has none, all have some.
    served = Counter(shared.serve(tenants * (min(counts) - 1) + tenants // 2))
    return [served[f"t{n}"] for n in range(tenants)]


# --- neighbours --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """Workers, and who sends what."""

    workers: int = 20
    tenants: int = 50
    """Quiet ones."""
    put_every_s: float = 5.0
    """A quiet tenant, on average, at random."""
    service_s: float = 1.0
    """How long a message takes, on average: between half and one and a half of it."""
    noisy_service_s: float | None = None
    """The same of the noisy tenant; None if there is none."""
    backlog: int = 20_000
    """Of the noisy tenant."""
    lasts_s: float = 600.0
    settle_s: float = 100.0
    """Messages put before that do not count."""
    seed: int = 1


@dataclass(slots=True)
class Times:
    """Of messages of quiet tenants, in seconds."""

    dwell_s: list[float] = field(default_factory=list)
    """From the put until it was received."""
    done_s: list[float] = field(default_factory=list)
    """From the put until it was completed."""

    def summary(self) -> dict[str, float]:
        """Return medians and the 99th percentiles."""
        return {
            f"{name}_{word}_s": round(figure, 4)
            for name, values in (("dwell", self.dwell_s), ("done", self.done_s))
            for word, figure in (
                ("median", statistics.median(values)),
                ("mean", statistics.fmean(values)),
                ("p99", statistics.quantiles(values, n=100)[98]),
            )
        }


class _Simulation:
    """Workers and tenants, on virtual time in milliseconds since the beginning."""

    def __init__(self, shared: Shared, world: World) -> None:
        self._shared, self._world = shared, world
        self._noise = Random(world.seed)
        self._began_ms = shared.now_ms
        self._busy: list[tuple[int, int, Lease]] = []
        self._numbers = itertools.count()
        self._taken: Counter[str] = Counter()
        self._times = Times()
        rng = Random(world.seed)
        self._arrivals: list[tuple[int, str]] = []
        for tenant in range(world.tenants):
            at_s = 0.0
            while (at_s := at_s + rng.expovariate(1 / world.put_every_s)) < world.lasts_s:
                self._arrivals.append((round(at_s * 1000), f"q{tenant}"))
        self._arrivals.sort()
        # How long a message takes is drawn with its put: so the quiet ones have the same work with
        # noise and without.
        self._works: dict[str, list[float]] = {}
        for _, name in self._arrivals:
            work_s = world.service_s * rng.uniform(0.5, 1.5)
            self._works.setdefault(name, []).append(work_s)

    def run(self) -> Times:
        """Go on until the last put: after that the rest would have the workers for itself."""
        if self._world.noisy_service_s is not None:
            self._shared.put([NOISY] * self._world.backlog)
        for at_ms, name in self._arrivals:
            while self._busy and self._busy[0][0] < at_ms:
                self._finish()
                self._receive()
            self._shared.now_ms = self._began_ms + at_ms
            self._shared.put([name])
            self._receive()
        for at_ms, name in self._arrivals:
            if self._taken[name] > 0:
                self._taken[name] -= 1
            elif self._counts(at_ms):  # never received: it takes as long as this at least
                self._times.dwell_s.append(self._world.lasts_s - at_ms / 1000)
                self._times.done_s.append(self._world.lasts_s - at_ms / 1000)
        return self._times

    def _counts(self, put_ms: int) -> bool:
        return put_ms >= self._world.settle_s * 1000

    def _finish(self) -> None:
        """Have the worker that is next complete its message."""
        at_ms, _, lease = heapq.heappop(self._busy)
        self._shared.now_ms = self._began_ms + at_ms
        self._shared.complete(lease)
        put_ms = lease.message.inserted_at_ms - self._began_ms
        if group_of(lease) != NOISY and self._counts(put_ms):
            self._times.done_s.append((at_ms - put_ms) / 1000)

    def _receive(self) -> None:
        """Have idle workers receive."""
        while len(self._busy) < self._world.workers:
            lease = self._shared.receive()
            if lease is None:
                return
            name, now_ms = group_of(lease), self._shared.now_ms - self._began_ms
            if name == NOISY:
                takes_s = (self._world.noisy_service_s or 0.0) * self._noise.uniform(0.5, 1.5)
            else:
                takes_s = self._works[name][self._taken[name]]
                self._taken[name] += 1
                put_ms = lease.message.inserted_at_ms - self._began_ms
                if self._counts(put_ms):
                    self._times.dwell_s.append((now_ms - put_ms) / 1000)
            ends_ms = now_ms + round(takes_s * 1000)
            heapq.heappush(self._busy, (ends_ms, next(self._numbers), lease))


def play(shared: Shared, world: World) -> Times:
    """Let workers and tenants go on for a while of virtual time."""
    return _Simulation(shared, world).run()


def neighbours() -> dict[str, dict[str, float]]:
    """Return the times of the quiet tenants in different company."""
    fair = GroupSettings(fair=True)
    noisy = GroupSettings(fair=True, limit_noisy=True)
    limited = GroupSettings(fair=True, max_in_flight_of={NOISY: 5})
    # A light load and a heavy one: in the second the quiet ones wait for each other already.
    found: dict[str, dict[str, float]] = {}
    # So near to the most that can be done, it takes long to make up for how it began.
    loads: Sequence[tuple[str, dict[str, Any]]] = (
        ("half", {"put_every_s": 5.0}),
        ("most", {"put_every_s": 2.8, "lasts_s": 2_400.0, "settle_s": 1_000.0}),
    )
    for load, times in loads:
        for name, settings, noisy_s in (
            ("alone", fair, None),
            ("as_long", fair, 1.0),
            ("as_long_limit_noisy", noisy, 1.0),
            ("50_times_as_long", fair, 50.0),
            ("50_times_as_long_limit_noisy", noisy, 50.0),
            ("50_times_as_long_limited", limited, 50.0),
            ("50_times_as_long_not_fair", GroupSettings(), 50.0),
        ):
            with stored(settings) as shared:
                world = World(noisy_service_s=noisy_s, **times)
                found[f"{load}/{name}"] = play(shared, world).summary()
    return found


def ratios(found: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Return medians until messages are done over those without a noisy neighbour.

    Without one hardly anybody waits to be received, so there is no ratio of dwell times.
    """
    told: dict[str, float] = {}
    for key, each in found.items():
        load, name = key.split("/")
        if name != "alone":
            alone = found[f"{load}/alone"]["done_median_s"]
            prefix = "" if load == "half" else f"{load}_"
            told[f"{prefix}done_ratio_{name}"] = each["done_median_s"] / alone
    return told


def main() -> None:
    """Measure, print, and write down."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backlog", type=int, default=1_000_000)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    record = Record("groups-fairness")
    summary: dict[str, float] = {}
    with stored(GroupSettings(fair=True)) as shared:
        summary["newcomer_turns"] = newcomer_turns(shared, options.backlog)
    with stored(GroupSettings(fair=True)) as shared:
        given = shares(shared, 1_000, 200_000)
    summary |= {"jain": jain(given), "fewest_given": min(given), "most_given": max(given)}
    found = neighbours()
    for name, times in found.items():
        print(f"{name:34}", *(f"{key} {figure:.3f}" for key, figure in times.items()))
    summary |= ratios(found)
    print()
    print_bars(summary, BARS, 3)
    if options.out is not None:
        record.write(options.out, {"summary": summary, "neighbours": found})


if __name__ == "__main__":
    main()
