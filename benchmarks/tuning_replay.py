"""What the advice predicts beside replays, by the simulator and by the real server.

``python -m benchmarks.tuning_replay [--seeds 2] [--attempts 5000] [--messages 6000]
[--served 300] [--out FILE]``

The 30 cases of ``tuning_trust``, whose workers are free at any time, and five queues whose workers
are not: few workers, a backlog, receipts that die with the lease. Advice is asked five times in a
day, and says what its timeouts will cost. Then other messages of the same work are played with
them. What is predicted is an expectation, so a replay has to be long: with so few messages that one
more that is given up makes a difference, it is luck that is measured. ``noise`` is the standard
error of a replay as a share of what it came to; ``truth_within_a_tenth`` counts the replays that
are within a tenth of the formula with the true distribution and rate of deaths: nobody can predict
more of them.

The first messages of each replay are played by the server as well, which runs in this process on a
virtual clock; simulator and server have to come to the same.

In the queues that are busy the cost is simulated, with the distribution and the rate of deaths that
the advice learned; the regret there is beside the least cost of 15 timeouts with the true ones.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from scipy import stats

from benchmarks.simulator_replay import Replay, differences
from benchmarks.single import Record, print_bars
from benchmarks.tuning_regret import PRICES, START_S, geometric
from benchmarks.tuning_trust import (
    QUESTION,
    ROUNDS,
    Case,
    Told,
    advised,
    asking,
    cases,
    said_of,
)
from benchmarks.tuning_worlds import Handling as Leasing
from benchmarks.tuning_worlds import Sight, Work, leases
from leasehold.advisor.advice import advise
from leasehold.advisor.attempts import Floats, Lease, observe
from leasehold.advisor.simulate import (
    Crew,
    Handling,
    Load,
    Outcome,
    arrivals,
    draw_from_model,
    simulate,
)
from leasehold.domain.queue_settings import LapsedReceipts
from leasehold.testing import InProcessServer

OUT: Final = Path(__file__).parent / "results" / "tuning_replay.json"
BARS: Final = {
    "sure_within_a_tenth": (">=", 0.90),
    "covered": (">=", 0.85),
    "busy_regret_geometric_mean": ("<=", 1.05),
    "busy_regret_worst": ("<=", 1.10),
    "server_worst_difference": ("<=", 0.10),
}
DELIVERIES: Final = 5
FREE_WORKERS: Final = 64
FREE_LOAD: Final = 0.05
SIGHT: Final = Sight.LATE_AND_SESSIONS
TIMEOUTS: Final = 15
NINE_OF_TEN: Final = 1.645
_TENTH: Final = 0.1


class Busy(NamedTuple):
    """A queue whose workers have much to do."""

    name: str
    work: Work
    crash_rate: float
    workers: int
    load: float
    """Share of the workers that first deliveries keep busy."""
    rule: LapsedReceipts = LapsedReceipts.UNTIL_RETAKEN
    backlog: int = 0
    """Messages that wait at the start."""


_LOG_NORMAL: Final = Work("log-normal 20 s, sigma 0.8", ((1.0, stats.lognorm(0.8, scale=20)),))
BUSY: Final = (
    Busy("four workers, 90 % busy", _LOG_NORMAL, 1e-3, 4, 0.9),
    Busy(
        "four workers, 90 % busy, strict receipts", _LOG_NORMAL, 1e-3, 4, 0.9, LapsedReceipts.STRICT
    ),
    Busy("a backlog of 600", _LOG_NORMAL, 1e-3, 8, 0.8, backlog=600),
    Busy(
        "a backlog of 600, strict receipts",
        Work("exponential 35 s", ((1.0, stats.expon(scale=35)),)),
        1e-4,
        8,
        0.8,
        LapsedReceipts.STRICT,
        600,
    ),
    Busy(
        "more than eight workers can do",
        Work(
            "85 % 8 s, 15 % 60 s",
            ((0.85, stats.lognorm(0.5, scale=8)), (0.15, stats.lognorm(0.5, scale=60))),
        ),
        1e-3,
        8,
        1.1,
    ),
)


class Played(NamedTuple):
    """A replay."""

    cost: float
    """Per message, in seconds of waiting, as the advice prices it."""
    noise: float
    """Its standard error, as a share."""


def priced(outcome: Outcome, timeout_s: float) -> Played:
    """Price what messages met: waits, completions that came to nothing, messages given up."""
    ended = max(1, outcome.done + outcome.set_aside)
    given_up = DELIVERIES * timeout_s + PRICES.dead
    duplicate = PRICES.duplicate_of(1.0)
    waited = outcome.done * outcome.wait_mean_s
    cost = (waited + outcome.set_aside * given_up + duplicate * outcome.wasted) / ended
    # What is rare and dear is what is uncertain: counts vary by their square root.
    spread = outcome.set_aside * given_up**2 + outcome.wasted * duplicate**2
    spread += outcome.done * outcome.wait_mean_s**2
    return Played(cost, math.sqrt(spread) / ended / cost)


def load_of(lengths: Floats, per_s: float, backlog: int, random: np.random.Generator) -> Load:
    """Return messages in whole milliseconds: so many at once, then the others at some rate."""
    coming = max(1, len(lengths) - backlog)
    came = arrivals(random, per_s, coming / per_s)
    at_s = np.concatenate([np.zeros(backlog), came])[: len(lengths)]
    return Load(
        arrivals_s=np.round(at_s, 3), lengths_s=np.maximum(np.round(lengths[: len(at_s)], 3), 0.001)
    )


def lasts(load: Load, timeout_s: float, crew: Crew) -> float:
    """Return how long to play so that all messages end: done, or given up."""
    work_s = float(load.lengths_s.sum()) * (DELIVERIES + 1) / crew.workers
    return float(load.arrivals_s[-1]) + DELIVERIES * timeout_s + work_s + 60.0


def handling_of(timeout_s: float, rule: LapsedReceipts = LapsedReceipts.UNTIL_RETAKEN) -> Handling:
    """Return how messages are leased."""
    return Handling(timeout_s=timeout_s, lapsed_receipts=rule, max_deliveries=DELIVERIES)


def served(load: Load, handling: Handling, crew: Crew, many: int, seed: int) -> float:
    """Play the first messages by simulator and server; return how far they are apart at most."""
    first = Load(arrivals_s=load.arrivals_s[:many], lengths_s=load.lengths_s[:many])
    lasts_s = lasts(first, handling.timeout_s, crew)
    told = simulate(first, handling, crew, lasts_s=lasts_s, seed=seed)
    with InProcessServer() as server, server.client() as client:
        queue = client.queue("replayed")
        queue.create(
            settings={
                "visibility_timeout_s": int(handling.timeout_s),
                "lapsed_receipts": handling.lapsed_receipts.value,
                "failure_policy": {"max_deliveries": DELIVERIES},
                "event_log": False,
            }
        )
        found = Replay(server, queue, first, handling, crew, lasts_s, seed).run()
    return max(differences(told, found.figures()).values())


def free_rows(case: Case, place: int, seed: int, chosen: argparse.Namespace) -> dict[str, Any]:
    """Return the figures of one of the cases whose workers are free."""
    ask = asking(advised(SIGHT), SIGHT)
    told: list[Told] = []
    cost = noise = apart = 0.0
    for at, kind in enumerate(case.world.kinds):
        random = np.random.default_rng((seed, place, at))
        told.append(ask(case, kind, chosen.attempts, random))
        hours = kind.hours[-1:] if kind.is_last else kind.hours
        loads = np.array([each.load for each in hours])
        many = random.multinomial(chosen.messages, loads / loads.sum())
        drawn = [each.work.draw(random, n) for each, n in zip(hours, many, strict=True) if n]
        lengths = random.permutation(np.concatenate(drawn))
        # The longest ones are never done anyway, and would keep all workers busy.
        lengths = np.minimum(lengths, 20 * told[-1].timeout_s)
        crew = Crew(workers=FREE_WORKERS, crash_rate=case.crash_rate)
        per_s = FREE_WORKERS * FREE_LOAD / float(lengths.mean())
        load, handling = load_of(lengths, per_s, 0, random), handling_of(told[-1].timeout_s)
        lasts_s = lasts(load, handling.timeout_s, crew)
        played = priced(
            simulate(load, handling, crew, lasts_s=lasts_s, seed=seed), handling.timeout_s
        )
        cost += kind.share * played.cost
        noise += (kind.share * played.cost * played.noise) ** 2
        if not seed and chosen.served:
            part = max(20, round(chosen.served * kind.share))
            apart = max(apart, served(load, handling, crew, part, seed))
    truth = case.costs([each.timeout_s for each in told])[0]
    said, own = said_of(case.world.kinds, told, cost), NINE_OF_TEN * math.sqrt(noise) / cost
    return {
        "world": case.world.name,
        "crash_rate": case.crash_rate,
        "seed": seed,
        "timeouts_s": [each.timeout_s for each in told],
        "replayed": cost,
        "noise": math.sqrt(noise) / cost,
        "predicted": said.cost,
        "error_bar": [said.low, said.high],
        # The bar is that of the expectation, and a replay has its own chance beside it.
        "covered": said.low - own <= 1 <= said.high + own,
        "sure": said.sure,
        "within": said.within,
        "truth_within": abs(truth / cost - 1) <= _TENTH,
        "server_difference": apart,
    }


def busy_rows(busy: Busy, place: int, seed: int, chosen: argparse.Namespace) -> dict[str, Any]:
    """Return the figures of one of the queues whose workers are busy."""
    random = np.random.default_rng((seed, place, 99))
    seen, timeout_s = list[Lease](), float(START_S)
    for _ in range(ROUNDS):
        seen += leases(
            busy.work,
            Leasing(timeout_s, 1.0),
            busy.crash_rate,
            SIGHT,
            random,
            attempts=chosen.attempts // ROUNDS,
        )
        known = observe(seen, late_seen=True)
        found = advise(
            known.attempts,
            crashes=known.crashes,
            silent=known.silent,
            work_s=known.work_s,
            question=QUESTION,
        )
        timeout_s = float(found.timeout_s)
    assert found.model is not None
    many = chosen.messages // 4
    lengths = busy.work.draw(random, many)
    per_s = busy.workers * busy.load / float(lengths.mean())
    load = load_of(lengths, per_s, busy.backlog, random)
    crew = Crew(workers=busy.workers, crash_rate=busy.crash_rate)

    def cost(load: Load, crew: Crew, timeout_s: float, seed: int) -> float:
        handling = handling_of(timeout_s, busy.rule)
        lasts_s = lasts(load, timeout_s, crew)
        return priced(simulate(load, handling, crew, lasts_s=lasts_s, seed=seed), timeout_s).cost

    true = cost(load, crew, timeout_s, seed)
    grid = np.rint(np.geomspace(timeout_s / 6, timeout_s * 6, TIMEOUTS))
    least = min(true, *(cost(load, crew, float(each), seed) for each in grid))
    learned = Load(
        arrivals_s=load.arrivals_s,
        lengths_s=draw_from_model(found.model, random, len(load.arrivals_s)),
    )
    as_learned = Crew(workers=busy.workers, crash_rate=found.crash_rate)
    said = cost(learned, as_learned, timeout_s, seed + 1)
    # The same with the true distribution and other luck: how far apart two replays are.
    again = Load(arrivals_s=load.arrivals_s, lengths_s=busy.work.draw(random, len(load.arrivals_s)))
    other = cost(again, crew, timeout_s, seed + 1)
    apart = 0.0
    if not seed and chosen.served:
        apart = served(load, handling_of(timeout_s, busy.rule), crew, chosen.served, seed)
    return {
        "world": busy.name,
        "seed": seed,
        "timeout_s": timeout_s,
        "regret": true / least,
        "predicted": said / true,
        "another_replay": other / true,
        "server_difference": apart,
    }


def summary_of(free: list[dict[str, Any]], busy: list[dict[str, Any]]) -> dict[str, float]:
    """Return the figures over all."""
    sure = [each for each in free if each["sure"]]
    regrets = [each["regret"] for each in busy]
    return {
        "runs": len(free),
        "predicted_within_a_tenth": sum(each["within"] for each in free) / len(free),
        "truth_within_a_tenth": sum(each["truth_within"] for each in free) / len(free),
        "covered": sum(each["covered"] for each in free) / len(free),
        "sure": len(sure) / len(free),
        "sure_within_a_tenth": sum(each["within"] for each in sure) / max(1, len(sure)),
        "median_noise": float(np.median([each["noise"] for each in free])),
        "busy_regret_geometric_mean": geometric(regrets),
        "busy_regret_worst": max(
            geometric([each["regret"] for each in busy if each["world"] == world.name])
            for world in BUSY
        ),
        "busy_predicted_within_a_tenth": sum(abs(each["predicted"] - 1) <= _TENTH for each in busy)
        / len(busy),
        "busy_replays_within_a_tenth": sum(
            abs(each["another_replay"] - 1) <= _TENTH for each in busy
        )
        / len(busy),
        "served": sum(not each["seed"] for each in (*free, *busy)),
        "server_worst_difference": max(each["server_difference"] for each in (*free, *busy)),
    }


def played(rows: Iterator[dict[str, Any]]) -> list[dict[str, Any]]:
    """Play, and print each as it comes."""
    found = []
    for each in rows:
        found.append(each)
        print(
            f"{each['world']:44} {each.get('crash_rate', 0):.0e} predicted {each['predicted']:.3f} "
            f"{each.get('error_bar', each.get('regret'))} server {each['server_difference']:.4f}",
            flush=True,
        )
    return found


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--attempts", type=int, default=5_000)
    parser.add_argument("--messages", type=int, default=6_000)
    parser.add_argument("--served", type=int, default=300)
    parser.add_argument("--out", type=Path, default=OUT)
    chosen = parser.parse_args()
    record = Record("tuning_replay")
    seeds, every = range(chosen.seeds), list(enumerate(cases()))
    busy = played(busy_rows(each, n, s, chosen) for s in seeds for n, each in enumerate(BUSY))
    free = played(free_rows(each, n, s, chosen) for s in seeds for n, each in every)
    summary = summary_of(free, busy)
    print_bars(summary, BARS, digits=3)
    members = {name: getattr(chosen, name) for name in ("seeds", "attempts", "messages", "served")}
    record.write(chosen.out, {**members, "summary": summary, "free": free, "busy": busy})


if __name__ == "__main__":
    main()
