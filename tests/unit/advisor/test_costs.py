"""The cost formulas against attempts that are played one by one, and against closed forms."""

from __future__ import annotations

import math

import numpy as np
import pytest
from benchmarks.tuning_worlds import CRASH_RATES, WORKS, Work

from leasehold.advisor.attempts import Floats
from leasehold.advisor.costs import (
    Growth,
    Prices,
    cost_per_message,
    cost_redrawn,
    cost_renewed,
    duplicates_per_message,
)
from leasehold.advisor.statistics import DurationModel, crash_rate, from_chances
from tests.unit.advisor.draws import Estimate, play_messages, play_redrawn, play_renewed

PRICES = Prices(duplicate=60.0)
GRID = np.geomspace(1.0, 5_000.0, 4_000)


@pytest.fixture(scope="module")
def exponential() -> DurationModel:
    """Work that takes 45 s on average."""
    return WORKS[4].truth()


def deviations(work: Work, draws: int) -> list[float]:
    """Return by how many standard errors formulas and played attempts differ.

    All three formulas at three timeouts and two rates of crashes.
    """
    truth, random = work.truth(), np.random.default_rng((20, WORKS.index(work)))
    lengths, found = work.draw(random, draws), list[float]()

    def note(formula: Floats, played: Estimate) -> None:
        found.append(abs(float(formula[0]) - played.mean) / played.error)

    for share in (0.6, 0.9, 0.99):
        # Not at a place where a step of the discrete truth lies.
        timeout = truth.quantile(share) * 1.0001
        at = np.array([timeout])
        for rate in CRASH_RATES:
            redrawn = play_redrawn(work, draws // 4, timeout, rate, random)
            note(cost_redrawn(truth, at, rate, PRICES), redrawn)
            own = play_messages(lengths, timeout, rate, 60.0, 3_600.0, random)
            note(cost_per_message(truth, at, rate, PRICES), own)
            sending = PRICES.renewal_of(truth.mean_s)
            renewed = play_renewed(lengths, timeout + 2, 20.0, 2.0, rate, sending, random)
            formula = cost_renewed(truth, at + 2, rate, PRICES, every_s=20.0, guard_s=2.0)
            note(formula, renewed)
    return found


def compare(work: Work, draws: int) -> None:
    """Of 18 comparisons one in twenty runs has one beyond three standard errors: one is allowed."""
    found = deviations(work, draws)
    assert sorted(found)[-2] <= 3, found
    assert max(found) <= 4, found


@pytest.mark.parametrize("work", WORKS, ids=lambda work: work.name)
def test_costs_agree_with_attempts_played_one_by_one(work: Work) -> None:
    """Within three standard errors of 20,000 draws, but for one in 18 at most."""
    compare(work, 20_000)


@pytest.mark.slow
@pytest.mark.parametrize("work", WORKS, ids=lambda work: work.name)
def test_costs_agree_with_many_attempts_played_one_by_one(work: Work) -> None:
    """The same with 400,000 draws."""
    compare(work, 400_000)


@pytest.mark.parametrize("rate", CRASH_RATES)
def test_best_timeout_of_exponential_work_has_a_closed_form(
    exponential: DurationModel, rate: float
) -> None:
    """``mean * ln(c_d/(c_w*q*mean))`` is within 5 % of the best."""
    best = float(GRID[np.argmin(cost_redrawn(exponential, GRID, rate, PRICES))])
    assert 45 * math.log(60 / (rate * 45 * 45)) == pytest.approx(best, rel=0.05)


def test_best_timeout_of_pareto_work_has_a_closed_form() -> None:
    """``(a*x_m^a*c_d/(c_w*q))**(1/(a+1))`` where duplicates are dear; within 5 %."""
    truth, prices = WORKS[3].truth(), Prices(duplicate=6e4)
    best = float(GRID[np.argmin(cost_redrawn(truth, GRID, 1e-4, prices))])
    assert (1.5 * 6e4 / (1e-4 * truth.mean_s)) ** (1 / 2.5) == pytest.approx(best, rel=0.05)


def best_timeout(model: DurationModel, rate: float, prices: Prices) -> float:
    """Return the best timeout where messages have lengths of their own."""
    return float(GRID[np.argmin(cost_per_message(model, GRID, rate, prices))])


def test_dear_duplicates_lengthen_and_crashes_and_delay_shorten(exponential: DurationModel) -> None:
    """The best timeout moves as the prices say."""
    base = best_timeout(exponential, 1e-4, PRICES)
    assert best_timeout(exponential, 1e-4, Prices(duplicate=600.0)) > base
    assert best_timeout(exponential, 1e-3, PRICES) < base
    assert best_timeout(exponential, 1e-4, Prices(duplicate=60.0, delay=10.0)) < base


def test_fixed_timeout_never_gets_long_messages_done() -> None:
    """What a fixed timeout cuts off is done twice each time, and given up in the end."""
    model = from_chances(np.array([10.0]), np.array([1.0]))
    cost = cost_per_message(model, np.array([9.0, 10.0]), 0.0, PRICES, Growth(factor=1.0))
    assert cost.tolist() == [5 * (9 + 60) + 3_600, 10.0]
    assert cost_redrawn(model, np.array([9.0]), 1e-4, PRICES)[0] == math.inf


def test_growth_stops_at_its_cap() -> None:
    """From there on each delivery has the same timeout."""
    model = from_chances(np.array([100.0]), np.array([1.0]))
    growth = Growth(factor=2.0, tries=4, cap_s=30.0)
    cost = cost_per_message(model, np.array([10.0]), 0.0, PRICES, growth)
    assert cost[0] == (10 + 20 + 30 + 30) + 4 * 60 + 3_600


def test_duplicates_are_counted_without_prices() -> None:
    """A message three times as long as its first timeout is done twice too often."""
    model = from_chances(np.array([1.0, 30.0]), np.array([0.5, 0.5]))
    assert duplicates_per_message(model, np.array([10.0]), 0.0)[0] == pytest.approx(0.5 * 2)


def test_duplicate_costs_what_was_said_or_five_times_the_work() -> None:
    """But no less than a minute."""
    assert Prices().duplicate_of(2.0) == 60.0
    assert Prices().duplicate_of(100.0) == 500.0
    assert Prices(duplicate=7.0).duplicate_of(100.0) == 7.0


def test_first_lease_must_be_longer_than_the_guard(exponential: DurationModel) -> None:
    """Otherwise it would be renewed before it began."""
    with pytest.raises(ValueError, match="longer than the guard"):
        cost_renewed(exponential, np.array([5.0]), 1e-4, PRICES, every_s=10, guard_s=5)


def test_crash_rate_begins_with_half_a_crash() -> None:
    """And follows the data once there are many."""
    assert crash_rate(0, 0) == pytest.approx(1e-4)
    assert crash_rate(1_000, 1e6) == pytest.approx(1e-3, rel=0.01)
    with pytest.raises(ValueError, match="0 or more"):
        crash_rate(-1, 0)
