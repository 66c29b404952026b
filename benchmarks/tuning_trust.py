"""How far advice on visibility timeouts can be trusted: regret in many worlds, with little data.

``python -m benchmarks.tuning_trust [--seeds 20] [--out FILE]``

Sixteen worlds: steady work of many distributions, drift inside a day, other work by night, several
types, workers that are killed all the time. Advice is asked five times in a day, with all that was
seen so far, each time after a fifth of the attempts, of each type by itself. Its timeouts at the
end, which are the same at each delivery, are priced on the true distribution of what comes next,
beside the least price of any: that is its regret. Prices are those of ``tuning_regret``.

What advice says its timeouts cost is compared with what they truly do, which is what an endless
replay would come to: ``predicted`` over all types of a case, and how many of the runs are within a
tenth. Each prediction has an error bar of 90 %: ``covered`` counts the runs whose true cost is in
it, ``sure`` those whose bar is at most a tenth to either side, and ``sure_within_a_tenth`` those of
them that are. ``tuning_replay`` plays the same on the server.

Beside it stands *who sees all*: the least price on as many lengths of work, none of them cut short,
with the true rate of deaths. What that loses no one can gain from so few data without knowing more
about the work, such as its family of distributions.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple

import numpy as np

from benchmarks.single import Record, print_bars
from benchmarks.tuning_regret import (
    GRID,
    PRICES,
    START_S,
    Choose,
    geometric,
    share_of_completed,
)
from benchmarks.tuning_worlds import WORLDS, Handling, Kind, Sight, World, leases
from leasehold.advisor import statistics
from leasehold.advisor.advice import Question, advise, price, price_of_worlds
from leasehold.advisor.attempts import Floats, Lease, observe
from leasehold.advisor.costs import FIXED
from leasehold.advisor.statistics import BAR, DurationModel, from_chances

ROUNDS: Final = 5
ATTEMPTS: Final = (200, 1_000, 5_000)
"""In a day, of all types together."""
OUT: Final = Path(__file__).parent / "results" / "tuning_trust.json"
BARS: Final = {
    "advice_1000_geometric_mean": ("<=", 1.05),
    "advice_1000_worst": ("<=", 1.10),
    "advice_5000_geometric_mean": ("<=", 1.05),
    "advice_5000_worst": ("<=", 1.10),
    "advice_covered": (">=", 0.85),
    "advice_sure_within_a_tenth": (">=", 0.90),
}
_TENTH: Final = 0.1
QUESTION: Final = Question(prices=PRICES, growth=FIXED)


class Case(NamedTuple):
    """A world with one rate of deaths, and the truth about each of its types."""

    world: World
    crash_rate: float
    truths: tuple[DurationModel, ...]

    def costs(self, timeouts_s: Sequence[float]) -> tuple[float, float]:
        """Return what timeouts cost, one for each type, and the least that any do."""
        cost, least = 0.0, 0.0
        for kind, truth, timeout_s in zip(self.world.kinds, self.truths, timeouts_s, strict=True):
            of_kind = price(truth, np.array([timeout_s]), self.crash_rate, QUESTION)[0]
            cost += kind.share * float(of_kind)
            least += kind.share * float(price(truth, GRID, self.crash_rate, QUESTION).min())
        return cost, least


def cases() -> Iterator[Case]:
    """Yield all of them."""
    for world in WORLDS:
        truths = tuple(kind.priced() for kind in world.kinds)
        for rate in world.crash_rates:
            yield Case(world, rate, truths)


class Told(NamedTuple):
    """What a policy says."""

    timeout_s: float
    cost: float = math.nan
    """Of it, as predicted; not a number if it says nothing of that."""
    worlds: Floats | None = None
    """The same in each world that the data may have come from; None without an error bar."""


Policy = Callable[[Case, Kind, int, np.random.Generator], Told]
"""Of a case, one of its types, how many attempts there are in a day, and chance."""


def plain(choose: Choose) -> Callable[[Sequence[Lease], float], Told]:
    """Return a rule that says no more than a timeout."""
    return lambda seen, today_s: Told(choose(seen, today_s))


def advised(sight: Sight) -> Callable[[Sequence[Lease], float], Told]:
    """Return the rule that is judged here: ``leasehold analyze``."""

    def ask(seen: Sequence[Lease], _today_s: float) -> Told:
        known = observe(seen, late_seen=sight.sees_late)
        found = advise(
            known.attempts,
            crashes=known.crashes,
            silent=known.silent,
            work_s=known.work_s,
            question=QUESTION,
        )
        at = np.array([float(found.timeout_s)])
        if found.model is None or found.evidence is None:
            return Told(found.timeout_s)
        cost = float(price(found.model, at, found.crash_rate, QUESTION)[0])
        worlds = price_of_worlds(found.model, at, found.evidence, QUESTION)[:, 0]
        return Told(found.timeout_s, cost, worlds)

    return ask


def asking(ask: Callable[[Sequence[Lease], float], Told], sight: Sight) -> Policy:
    """Return the policy that asks five times a day."""

    def play(case: Case, kind: Kind, attempts: int, random: np.random.Generator) -> Told:
        told, seen = Told(START_S), list[Lease]()
        hours = kind.hours * (ROUNDS if len(kind.hours) == 1 else 1)
        load = sum(each.load for each in hours)
        for hour in hours:
            count = max(1, round(attempts * kind.share * hour.load / load))
            handling = Handling(told.timeout_s, 1.0)
            # Hours differ in how many messages come, however often each of them is tried.
            most = (math.inf, count) if len(kind.hours) > 1 else (count, math.inf)
            seen += leases(
                *(hour.work, handling, case.crash_rate, sight, random),
                attempts=most[0],
                messages=most[1],
            )
            told = ask(seen, told.timeout_s)
        return told

    return play


def who_sees_all(case: Case, kind: Kind, attempts: int, random: np.random.Generator) -> Told:
    """Choose by as many lengths, none of them cut short, and the true rate of deaths."""
    hours = kind.hours[-1:] if kind.is_last else kind.hours
    load = sum(each.load for each in hours)
    lengths: Floats = np.concatenate(
        [
            each.work.draw(random, max(1, round(attempts * kind.share * each.load / load)))
            for each in hours
        ]
    )
    known = from_chances(lengths, np.full(len(lengths), 1 / len(lengths)))
    costs = price(known, GRID, case.crash_rate, QUESTION)
    return Told(float(GRID[int(costs.argmin())]), float(costs.min()))


def policies() -> dict[str, Policy]:
    """Return all that are compared, by name."""
    full, blind = Sight.LATE_AND_SESSIONS, Sight.NEITHER
    return {
        "who sees all": who_sees_all,
        "advice": asking(advised(full), full),
        "advice, late completions and sessions unseen": asking(advised(blind), blind),
        "fixed 30 s": asking(plain(share_of_completed(0.0, START_S, START_S)), full),
        "2 x p99 of completed": asking(plain(share_of_completed(2.0, 1, 604_800)), full),
    }


class Said(NamedTuple):
    """What was said of a case, beside the truth. Shares of the true cost."""

    cost: float
    low: float
    high: float

    @property
    def within(self) -> bool:
        """Whether it is within a tenth of the truth."""
        return abs(self.cost - 1) <= _TENTH

    @property
    def covered(self) -> bool:
        """Whether the truth is within its error bar."""
        return self.low <= 1 <= self.high

    @property
    def sure(self) -> bool:
        """Whether the bar reaches to a tenth of what is said at most, to either side."""
        return self.high - self.low <= 2 * _TENTH * self.cost


def said_of(kinds: Sequence[Kind], told: Sequence[Told], truth: float) -> Said:
    """Return what was said of all types of a case together."""
    cost = sum(kind.share * each.cost for kind, each in zip(kinds, told, strict=True))
    worlds = np.zeros(statistics.WORLDS)
    for at, (kind, each) in enumerate(zip(kinds, told, strict=True)):
        if each.worlds is None:
            return Said(cost / truth, math.nan, math.nan)
        # One type has nothing to do with another one.
        worlds += kind.share * np.random.default_rng(at).permutation(each.worlds)
    low, high = np.quantile(worlds, BAR)
    return Said(cost / truth, float(low) / truth, float(high) / truth)


def row(
    name: str, policy: Policy, every: Sequence[Case], attempts: int, seeds: int
) -> dict[str, Any]:
    """Return the figures of one policy with so many attempts."""
    found: list[list[float]] = []
    predicted: list[list[Said]] = []
    for place, case in enumerate(every):
        regrets, ratios = [], []
        for seed in range(seeds):
            told = [
                policy(case, kind, attempts, np.random.default_rng((seed, place, at)))
                for at, kind in enumerate(case.world.kinds)
            ]
            cost, least = case.costs([each.timeout_s for each in told])
            regrets.append(cost / least)
            ratios.append(said_of(case.world.kinds, told, cost))
        found.append(regrets)
        predicted.append(ratios)
    means = [geometric(regrets) for regrets in found]
    every_said = [each for ratios in predicted for each in ratios]
    return {
        "policy": name,
        "attempts": attempts,
        "geometric_mean": geometric([each for regrets in found for each in regrets]),
        "worst": max(means),
        "worst_run": max(max(regrets) for regrets in found),
        "runs_above_1.10": sum(each > 1.10 for regrets in found for each in regrets),
        "runs": len(every) * seeds,
        "predicted_within_a_tenth": sum(each.within for each in every_said),
        "with_error_bar": sum(not math.isnan(each.low) for each in every_said),
        "covered": sum(each.covered for each in every_said),
        "sure": sum(each.sure for each in every_said),
        "sure_within_a_tenth": sum(each.sure and each.within for each in every_said),
        "cases": [
            {
                "world": case.world.name,
                "crash_rate": case.crash_rate,
                "regret": mean,
                "median": median(regrets),
                "worst_run": max(regrets),
                "predicted": median(each.cost for each in ratios),
                "error_bar": [median(each.low for each in ratios), median(e.high for e in ratios)],
                "covered": sum(each.covered for each in ratios),
                "sure": sum(each.sure for each in ratios),
            }
            for case, mean, regrets, ratios in zip(every, means, found, predicted, strict=True)
        ],
    }


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--attempts", type=int, nargs="+", default=ATTEMPTS)
    parser.add_argument("--policies", nargs="+", choices=list(policies()))
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args()
    record = Record("tuning_trust")
    every, rows = list(cases()), []
    for attempts in chosen.attempts:
        for name, policy in policies().items():
            if chosen.policies and name not in chosen.policies:
                continue
            rows.append(each := row(name, policy, every, attempts, chosen.seeds))
            print(
                f"{attempts:6} {name:46} mean {each['geometric_mean']:.3f}  worst "
                f"{each['worst']:.3f} (run {each['worst_run']:.2f})  above 1.10: "
                f"{each['runs_above_1.10']} of {each['runs']}, predicted within a tenth: "
                f"{each['predicted_within_a_tenth']}, in the error bar: {each['covered']} of "
                f"{each['with_error_bar']}, sure: {each['sure']}, of these within a tenth: "
                f"{each['sure_within_a_tenth']}",
                flush=True,
            )
            for case in sorted(each["cases"], key=lambda case: -case["regret"])[:6]:
                print(
                    f"         {case['world']:48} {case['crash_rate']:.0e} {case['regret']:.3f} "
                    f"median {case['median']:.3f} worst {case['worst_run']:.2f}",
                    file=sys.stderr,
                )
    summary = {
        f"{each['policy'].replace(' ', '_')}_{each['attempts']}_{figure}": each[figure]
        for each in rows
        for figure in ("geometric_mean", "worst", "worst_run")
    }
    own = [each for each in rows if each["policy"] == "advice"]

    def all_of(figure: str) -> int:
        return sum(each[figure] for each in own)

    summary["advice_covered"] = all_of("covered") / max(1, all_of("with_error_bar"))
    summary["advice_sure"] = all_of("sure") / max(1, all_of("runs"))
    summary["advice_sure_within_a_tenth"] = all_of("sure_within_a_tenth") / max(1, all_of("sure"))
    print_bars(summary, {name: bar for name, bar in BARS.items() if name in summary}, digits=3)
    if chosen.out:
        record.write(chosen.out, {"seeds": chosen.seeds, "summary": summary, "rows": rows})


if __name__ == "__main__":
    main()
