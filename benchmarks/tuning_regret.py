"""What advice on visibility timeouts is worth, against the best there could be.

``python -m benchmarks.tuning_regret [--seeds 20] [--out FILE]``

Six kinds of work, two rates of crashes. Each policy begins at 30 s and is asked five times, after
200 attempts each, with all it has seen so far. Then its timeout is priced on the true distribution
and divided by the least price of any: that is its regret. Prices: a second of delay 1, a duplicate
60, a message given up 3,600.

What ``leasehold analyze`` advises is for queues whose timeout is the same at each delivery, and is
priced so, beside the best of such timeouts: policies called "as analyze advises". Policies with
timeouts that double are priced as such, beside the best of those. No timeout changes the work
itself, so regret is told beyond the work as well: what is above the mean work, over the least that
can be above it.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple

import numpy as np

from benchmarks.single import Record, print_bars
from benchmarks.tuning_worlds import CRASH_RATES, WORKS, Handling, Sight, Work, leases
from leasehold.advisor.advice import AS_GOOD, Lengths, Question, advise, price
from leasehold.advisor.attempts import Attempt, Ending, Floats, Lease, observe
from leasehold.advisor.costs import DOUBLING, FIXED, Growth, Prices
from leasehold.advisor.rules import start_timeout
from leasehold.advisor.statistics import DurationModel

ROUNDS: Final = 5
ATTEMPTS: Final = 200
START_S: Final = 30
PRICES: Final = Prices(duplicate=60.0)
GRID: Final[Floats] = np.geomspace(1.0, 604_800.0, 1_340)
"""1 s to 7 days, for the least price of any."""
OUT: Final = Path(__file__).parent / "results" / "tuning_regret.json"
BARS: Final = {
    "late_geometric_mean": ("<=", 1.05),
    "late_worst": ("<=", 1.10),
    "blind_geometric_mean": ("<=", 1.25),
    "blind_worst": ("<=", 3.0),
    "analyze_geometric_mean": ("<=", 1.05),
    "analyze_worst": ("<=", 1.25),
    "beats_fixed_30_s": (">=", 11),
    "beats_twice_p99": (">=", 11),
    "advice_on_10000_attempts_s": ("<=", 1.0),
}

ANALYZE: Final = "as analyze advises"
Choose = Callable[[Sequence[Lease], float], float]


class Policy(NamedTuple):
    """How a timeout is chosen, and from what."""

    name: str
    choose: Choose
    factor: float
    sight: Sight
    lengths: Lengths = Lengths.OF_MESSAGE
    beside_fixed: bool = False
    """Whether the best of timeouts that do not grow is what it is compared with."""

    @property
    def growth(self) -> Growth:
        """How it is priced."""
        return DOUBLING if self.factor > 1 else FIXED

    @property
    def question(self) -> Question:
        """What its price depends on."""
        return Question(prices=PRICES, lengths=self.lengths, growth=self.growth)


class Cell(NamedTuple):
    """One kind of work with one rate of crashes."""

    work: Work
    crash_rate: float
    truth: DurationModel


def completed(seen: Sequence[Lease]) -> list[float]:
    """Return the lengths of what was completed in time."""
    return [each.seconds for each in seen if each.ending is Ending.COMPLETED]


def share_of_completed(factor: float, low_s: float, high_s: float) -> Choose:
    """Return a policy: a multiple of the 99th percentile of what was completed in time."""

    def choose(seen: Sequence[Lease], today_s: float) -> float:
        done = completed(seen)
        return min(max(factor * float(np.quantile(done, 0.99)), low_s), high_s) if done else today_s

    return choose


def smoothed(seen: Sequence[Lease], today_s: float) -> float:
    """Choose as TCP does."""
    del today_s
    each = observe(seen, late_seen=False, own_length=False).attempts
    return start_timeout(each, default_s=START_S, cap_s=604_800)


def ours(
    sight: Sight,
    *,
    steps: bool,
    lengths: Lengths = Lengths.OF_MESSAGE,
    growth: Growth = DOUBLING,
) -> Choose:
    """Return the policy that is judged here."""

    def choose(seen: Sequence[Lease], today_s: float) -> float:
        own = lengths is Lengths.OF_MESSAGE
        known = observe(seen, late_seen=sight.sees_late, own_length=own)
        today = math.ceil(today_s) if steps else None
        question = Question(prices=PRICES, lengths=lengths, today_s=today, growth=growth)
        found = advise(
            known.attempts,
            crashes=known.crashes,
            silent=known.silent,
            work_s=known.work_s,
            question=question,
        )
        return found.timeout_s

    return choose


def policies() -> Iterator[Policy]:
    """Yield all that are compared."""
    full = Sight.LATE_AND_SESSIONS
    fixed = share_of_completed(0.0, START_S, START_S)
    for factor in (1.0, 2.0):
        growing = ", growing" if factor > 1 else ""
        yield Policy(f"fixed 30 s{growing}", fixed, factor, full)
        yield Policy(
            f"p99 of completed, 10 to 600 s{growing}",
            share_of_completed(1.0, 10, 600),
            factor,
            full,
        )
        twice = share_of_completed(2.0, 1, 604_800)
        yield Policy(f"2 x p99 of completed{growing}", twice, factor, full)
        yield Policy(f"RFC 6298{growing}", smoothed, factor, full)
    for sight in Sight:
        yield Policy(f"ours, {sight}", ours(sight, steps=False), 2.0, sight)
    yield Policy("ours, in small steps", ours(full, steps=True), 2.0, full)
    for sight in Sight:
        plain = ours(sight, steps=False, growth=FIXED)
        yield Policy(f"{ANALYZE}, {sight}", plain, 1.0, sight, beside_fixed=True)
    attempt = Lengths.OF_ATTEMPT
    yield Policy("redrawn: fixed 30 s", fixed, 1.0, full, attempt)
    yield Policy(
        "redrawn: 2 x p99 of completed",
        share_of_completed(2.0, 1, 604_800),
        1.0,
        full,
        attempt,
    )
    yield Policy("redrawn: ours", ours(full, steps=False, lengths=attempt), 1.0, full, attempt)


class Regret(NamedTuple):
    """Of a policy, in one run."""

    timeout_s: float
    """That it ends with."""
    whole: float
    """Its cost over the least cost, the work included."""
    beyond: float
    """The same without the mean work, which no timeout changes."""
    beyond_s: float
    """By how many seconds of waiting per message it costs more than the least."""


def regret(policy: Policy, cell: Cell, seed: int) -> Regret:
    """Play one run."""
    place = (WORKS.index(cell.work), CRASH_RATES.index(cell.crash_rate))
    random = np.random.default_rng((seed, *place))
    timeout, seen = float(START_S), list[Lease]()
    own = policy.lengths is Lengths.OF_MESSAGE
    for _ in range(ROUNDS):
        handling = Handling(timeout, policy.factor)
        seen += leases(
            cell.work,
            handling,
            cell.crash_rate,
            policy.sight,
            random,
            attempts=ATTEMPTS,
            own_length=own,
        )
        timeout = policy.choose(seen, timeout)
    cost = price(cell.truth, np.array([timeout]), cell.crash_rate, policy.question)[0]
    best = replace_growth(policy)
    least = price(cell.truth, GRID, cell.crash_rate, best).min()
    mean_s = cell.truth.mean_s
    beyond = (cost - mean_s) / max(least - mean_s, 1e-9)
    return Regret(timeout, float(cost / least), float(beyond), float(cost - least))


def replace_growth(policy: Policy) -> Question:
    """Return the question whose best answer a policy is compared with.

    Timeouts may grow in it, but for what is advised where they cannot.
    """
    may_grow = policy.lengths is Lengths.OF_MESSAGE and not policy.beside_fixed
    growth = DOUBLING if may_grow else FIXED
    return Question(prices=PRICES, lengths=policy.lengths, growth=growth)


def geometric(values: Sequence[float]) -> float:
    """Return the geometric mean."""
    return math.exp(sum(map(math.log, values)) / len(values))


def row(policy: Policy, cells: Sequence[Cell], seeds: int) -> dict[str, Any]:
    """Return the figures of one policy: medians over the seeds, and the worst of them."""
    runs = [[regret(policy, cell, seed) for cell in cells] for seed in range(seeds)]
    means = [geometric([each.whole for each in run]) for run in runs]
    beyond = [geometric([max(each.beyond, 1.0) for each in run]) for run in runs]
    worst = [max(each.whole for each in run) for run in runs]
    per_cell = [median(run[place].whole for run in runs) for place in range(len(cells))]
    return {
        "policy": policy.name,
        "geometric_mean": {"median": median(means), "worst_seed": max(means)},
        "beyond_the_work": {
            "geometric_mean": median(beyond),
            "worst_cell": max(median(run[at].beyond for run in runs) for at in range(len(cells))),
            "worst_run": max(each.beyond for run in runs for each in run),
            "most_s": max(each.beyond_s for run in runs for each in run),
        },
        "worst": {
            "typical": max(per_cell),
            "median": median(worst),
            "worst_seed": max(worst),
        },
        "cells": [
            {
                "work": cell.work.name,
                "crash_rate": cell.crash_rate,
                "regret": per_cell[place],
                "highest": max(run[place].whole for run in runs),
                "beyond_the_work": median(run[place].beyond for run in runs),
                "beyond_s": median(run[place].beyond_s for run in runs),
                "timeout_s": median(run[place].timeout_s for run in runs),
            }
            for place, cell in enumerate(cells)
        ],
    }


def as_good_held(cells: Sequence[Cell], seeds: int) -> tuple[int, int]:
    """Count the runs in which both ends of what is "as good, as estimated" truly cost at most 5 %
    more than the least, and all of them.
    """
    question = Question(prices=PRICES, growth=FIXED)
    sight, held, of = Sight.LATE_AND_SESSIONS, 0, 0
    for cell in cells:
        least = price(cell.truth, GRID, cell.crash_rate, question).min()
        for seed in range(seeds):
            random = np.random.default_rng((seed, 5))
            handling = Handling(4 * cell.truth.mean_s, 1.0)
            many = ROUNDS * ATTEMPTS
            seen = leases(cell.work, handling, cell.crash_rate, sight, random, attempts=many)
            known = observe(seen, late_seen=True)
            found = advise(
                known.attempts,
                crashes=known.crashes,
                silent=known.silent,
                work_s=known.work_s,
                question=question,
            )
            assert found.as_good_s is not None
            ends = price(cell.truth, np.array(found.as_good_s), cell.crash_rate, question)
            held += bool((ends <= AS_GOOD * least).all())
            of += 1
    return held, of


def beaten(rows: dict[str, dict[str, Any]], ours_name: str, other: str) -> int:
    """Count the cells in which one costs less than the other."""
    pairs = zip(rows[ours_name]["cells"], rows[other]["cells"], strict=True)
    return sum(mine["regret"] < theirs["regret"] for mine, theirs in pairs)


def speed() -> float:
    """Return the CPU seconds of one piece of advice on 10,000 attempts; the best of three."""
    random = np.random.default_rng(1)
    lengths = random.lognormal(2.0, 1.2, 10_000)
    attempts = [Attempt(float(min(each, 60.0)), bool(each <= 60.0)) for each in lengths]
    took = []
    for _ in range(3):
        began = time.process_time()
        advise(attempts, crashes=10)
        took.append(time.process_time() - began)
    return min(took)


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--out", type=Path, default=OUT)
    chosen = parser.parse_args()
    record = Record("tuning_regret")
    cells = [Cell(work, rate, work.truth()) for work in WORKS for rate in CRASH_RATES]
    rows = {}
    for policy in policies():
        rows[policy.name] = each = row(policy, cells, chosen.seeds)
        mean, worst = each["geometric_mean"], each["worst"]
        print(
            f"{policy.name:44} mean {mean['median']:.3f} (worst seed {mean['worst_seed']:.3f})  "
            f"worst cell {worst['typical']:.3f}, median {worst['median']:.3f} "
            f"(worst seed {worst['worst_seed']:.3f})  "
            f"beyond the work {each['beyond_the_work']['geometric_mean']:.2f}",
            flush=True,
        )
    analyzed = f"{ANALYZE}, {Sight.LATE_AND_SESSIONS}"
    held, of = as_good_held(cells, chosen.seeds)
    late, blind = f"ours, {Sight.LATE_AND_SESSIONS}", f"ours, {Sight.SESSIONS}"
    summary = {
        "late_geometric_mean": rows[late]["geometric_mean"]["median"],
        "late_worst": rows[late]["worst"]["median"],
        "blind_geometric_mean": rows[blind]["geometric_mean"]["median"],
        "blind_worst": rows[blind]["worst"]["median"],
        "analyze_geometric_mean": rows[analyzed]["geometric_mean"]["median"],
        "analyze_worst": rows[analyzed]["worst"]["median"],
        "analyze_worst_seed": rows[analyzed]["worst"]["worst_seed"],
        "analyze_beyond_the_work": rows[analyzed]["beyond_the_work"]["geometric_mean"],
        "analyze_as_good_held": held,
        "analyze_as_good_of": of,
        "beats_fixed_30_s": beaten(rows, late, "fixed 30 s"),
        "beats_fixed_30_s_growing": beaten(rows, late, "fixed 30 s, growing"),
        "beats_twice_p99": beaten(rows, late, "2 x p99 of completed"),
        "beats_twice_p99_growing": beaten(rows, late, "2 x p99 of completed, growing"),
    }
    summary["advice_on_10000_attempts_s"] = speed()
    print_bars(summary, BARS, digits=3)
    record.write(
        chosen.out, {"seeds": chosen.seeds, "summary": summary, "rows": list(rows.values())}
    )


if __name__ == "__main__":
    main()
