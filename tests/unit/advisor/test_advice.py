"""Advice as a whole: what it rests on, how it learns, how it follows a change."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from benchmarks import tuning_regret as regret
from benchmarks.tuning_worlds import CRASH_RATES, WORKS, Sight

from leasehold.advisor import Attempt, Basis, Bounds, Lengths, Prices, Question, advise
from leasehold.advisor.advice import price
from leasehold.advisor.costs import FIXED
from leasehold.advisor.rules import naive_timeouts

PRICES = Prices(duplicate=60.0)


def exponential(mean: float, many: int, seed: int = 1) -> list[Attempt]:
    """Return finished attempts."""
    drawn = np.random.default_rng(seed).exponential(mean, many)
    return [Attempt(float(each), finished=True) for each in drawn]


def test_without_attempts_it_is_the_default() -> None:
    """And says so."""
    found = advise([])
    assert (found.timeout_s, found.basis) == (30, Basis.DEFAULT)
    assert "no attempt has finished" in found.because


def test_with_few_attempts_it_is_a_rough_start() -> None:
    """Costs are weighed from 30 finished attempts on."""
    assert advise(exponential(5, 29)).basis is Basis.START
    found = advise(exponential(5, 30))
    assert found.basis is Basis.MODEL
    assert found.renewal is not None


def test_users_value_wins_from_the_start() -> None:
    """Also while nothing is known."""
    asked = Question(bounds=Bounds(user_s=77))
    assert advise([], question=asked).timeout_s == 77
    assert advise(exponential(5, 100), question=asked).timeout_s == 77


def test_advice_is_cheaper_than_what_it_is_shown_beside() -> None:
    """By its own reckoning, today's and the naive choices cost more or as much."""
    found = advise(exponential(45, 2_000), question=Question(prices=PRICES, today_s=200))
    names = {each.name: each for each in found.choices}
    assert {"advice", "today", "default", "longest seen"} <= set(names)
    assert all(names["advice"].cost <= each.cost * 1.003 for each in found.choices)
    assert names["default"].duplicates > names["advice"].duplicates
    assert min(point.cost for point in found.curve) <= names["advice"].cost
    assert found.as_good_s is not None
    assert found.as_good_s[0] <= found.wanted_s <= found.as_good_s[1]


def test_timeout_in_force_is_left_in_small_steps() -> None:
    """At most twice as long, with the reason; and kept if little is to be gained."""
    slow = exponential(45, 1_000)
    step = advise(slow, question=Question(prices=PRICES, today_s=30))
    assert step.timeout_s == 60
    assert "only twice" in step.because
    near = round(step.wanted_s * 1.1)
    kept = advise(slow, question=Question(prices=PRICES, today_s=near))
    assert kept.timeout_s == near
    assert "kept" in kept.because


def test_blind_advice_looks_further() -> None:
    """If a tenth of the work outlasts all that was seen, the timeout gets longer until it shows."""
    attempts = [Attempt(1.0, True)] * 180 + [Attempt(30.0, False)] * 20
    found = advise(attempts, question=Question(prices=PRICES))
    assert found.timeout_s >= 60
    assert "longer than every observed attempt" in found.because


def test_redrawn_attempts_have_a_formula_of_their_own() -> None:
    """A few attempts that hang are cut off early if the next one is a new throw of the dice."""
    attempts = exponential(1, 450) + [Attempt(400.0, True)] * 50
    own = advise(attempts, question=Question(prices=PRICES))
    redrawn = advise(attempts, question=Question(prices=PRICES, lengths=Lengths.OF_ATTEMPT))
    assert redrawn.timeout_s < 30 < own.timeout_s


def test_naive_choices_do_not_see_what_they_cut_off() -> None:
    """Ten of a hundred cut off at 30 s leave their percentile at 5 s."""
    attempts = [Attempt(5.0, True)] * 90 + [Attempt(30.0, False)] * 10
    assert naive_timeouts(attempts, 30.0)["99th percentile, doubled"] == 10


@pytest.mark.parametrize("seed", [1, 2])
def test_advice_follows_a_change(seed: int) -> None:
    """Work takes twice as long: after 400 attempts the cost is within 10 % of the best there is."""
    before, after = exponential(45, 3_000, seed), exponential(90, 400, seed + 10)
    asked = Question(prices=PRICES)
    found = advise(before + after, crashes=10, work_s=1e5, question=asked)
    assert found.drift is not None
    assert found.drift.attempts_ago in {200, 400, 600}
    truth = advise(exponential(90, 20_000, 99), question=asked).model
    assert truth is not None
    rate = found.crash_rate
    best = price(truth, regret.GRID, rate, asked).min()
    cost = price(truth, np.array([float(found.timeout_s)]), rate, asked)[0]
    assert cost <= 1.10 * best


def test_no_drift_is_looked_for_in_attempts_without_order() -> None:
    """Then weights are all that counts."""
    changed = exponential(5, 500) + exponential(50, 500)
    assert advise(changed).drift is not None
    assert advise(changed, question=Question(half_life=None)).drift is None


def learn(seeds: int, sight: Sight) -> tuple[float, float, int, int]:
    """Return mean and worst regret, and the cells in which 30 s and 2 x p99 are beaten."""
    cells = [regret.Cell(work, rate, work.truth()) for work in WORKS for rate in CRASH_RATES]
    known = {each.name: each for each in regret.policies()}
    names = (f"ours, {sight}", "fixed 30 s", "2 x p99 of completed")
    rows = {name: regret.row(known[name], cells, seeds) for name in names}
    ours = rows[names[0]]
    beaten = [regret.beaten(rows, names[0], other) for other in names[1:]]
    return ours["geometric_mean"]["median"], ours["worst"]["median"], beaten[0], beaten[1]


def test_advice_is_nearly_the_best_after_1000_attempts() -> None:
    """With late completions seen, over six kinds of work and two rates of crashes."""
    mean, worst, over_fixed, over_percentile = learn(1, Sight.LATE)
    assert mean <= 1.05
    assert worst <= 1.10
    assert over_fixed >= 11
    assert over_percentile >= 11


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sight", "mean_at_most", "worst_at_most"),
    [
        (Sight.LATE_AND_SESSIONS, 1.05, 1.10),
        (Sight.LATE, 1.05, 1.10),
        (Sight.SESSIONS, 1.25, 3.0),
        (Sight.NEITHER, 1.25, 3.0),
    ],
)
def test_advice_is_nearly_the_best_whatever_is_seen(
    sight: Sight, mean_at_most: float, worst_at_most: float
) -> None:
    """Medians over five seeds; without late completions the bounds are wider."""
    mean, worst, over_fixed, over_percentile = learn(5, sight)
    assert mean <= mean_at_most
    assert worst <= worst_at_most
    assert min(over_fixed, over_percentile) >= 11


def test_work_that_fits_into_no_lease_gets_the_longest() -> None:
    """Half of it takes 20 h, with 12 h at most: a second would have it come to all workers."""
    attempts = [Attempt(1.0, True)] * 100 + [Attempt(72_000.0, True)] * 100
    bounds = Bounds(cap_s=43_200)
    found = advise(attempts, question=Question(bounds=bounds, growth=FIXED))
    assert found.timeout_s == 43_200
    assert "only renewed leases" in found.because
    never = [Attempt(72_000.0 + each, True) for each in range(100)]
    asked = Question(bounds=bounds, lengths=Lengths.OF_ATTEMPT)
    assert advise(never, question=asked).timeout_s == 43_200


def test_what_is_as_good_has_no_gap() -> None:
    """A curve with two hollows: timeouts between them cost more, and are not called as good."""
    attempts = [Attempt(1.0, True)] * 900 + [Attempt(300.0, True)] * 100
    found = advise(attempts, crashes=100, question=Question(prices=PRICES))
    assert found.as_good_s is not None
    low, high = found.as_good_s
    inside = [each.cost for each in found.curve if low <= each.timeout_s <= high]
    assert max(inside) <= 1.05 * 1.003 * min(each.cost for each in found.curve)


@pytest.mark.parametrize("cap_s", [1, 4, 5])
def test_no_renewal_where_no_lease_is_longer_than_the_guard(cap_s: int) -> None:
    """And advice all the same."""
    attempts = [Attempt(0.1 + each % 3, True) for each in range(200)]
    found = advise(attempts, question=Question(bounds=Bounds(cap_s=cap_s)))
    assert found.timeout_s <= cap_s
    assert found.renewal is None


def test_today_is_shown_as_it_is() -> None:
    """Also where the bounds would not allow it."""
    asked = Question(bounds=Bounds(floor_s=10, cap_s=60), today_s=5)
    found = advise([Attempt(3.0, True)] * 100, question=asked)
    assert found.timeout_s == 10
    today = next(each for each in found.choices if each.name == "today")
    assert today.timeout_s == 5


def test_work_that_is_all_alike_gets_more_than_what_was_seen() -> None:
    """Nothing takes exactly as long each time, so some of it is taken to be longer."""
    found = advise([Attempt(1_000.0, True)] * 500)
    assert found.timeout_s >= 1_020
    assert found.model is not None
    assert 0 < found.model.tail(1_000.0) < 0.01


def test_a_death_that_nobody_saw_is_called_an_assumption() -> None:
    """Without a crash the rate is made up, and the advice says so."""
    attempts = exponential(5, 100)
    assert "is assumed" in advise(attempts).because
    assert "is assumed" not in advise(attempts, crashes=1).because


def test_weights_are_attempts_also_after_a_change() -> None:
    """Each row stands for a hundred: the rows since the change all count, not the last one."""
    rows = [Attempt(1.0 + each % 4, True, 100) for each in range(400)]
    rows += [Attempt(10.0 + each % 4, True, 100) for each in range(400)]
    found = advise(rows)
    assert found.drift is not None
    assert found.drift.attempts_ago == 40_000
    assert found.model is not None
    assert found.model.tail(10.5) > 0.5
    assert found.model.tail(12.5) > 0.2


def test_naive_choices_count_weights() -> None:
    """A row of 990 is 990 attempts; timeouts are such as can be set."""
    rows = [Attempt(0.1, True, 990), Attempt(50.0, True, 10), Attempt(500.0, False, 5)]
    found = naive_timeouts(rows, 30.0)
    assert found["99th percentile, doubled"] == 1.0
    assert found["mean of completed, doubled"] == pytest.approx(2 * 0.599)
    assert found["longest seen"] == 50
    assert naive_timeouts(rows[2:], 30.0) == {"default": 30.0}


def test_it_is_not_shortened_while_messages_are_given_up() -> None:
    """Where nobody can tell slow work from dead workers, a shorter timeout would give up more."""
    quick = [Attempt(5.0, finished=True)] * 900 + [Attempt(30.0, finished=False)]
    few = quick[:10]
    asked = Question(today_s=30, in_force_s=30.0, growth=FIXED)
    for rows in (quick, few):
        assert advise(rows, crashes=50, question=asked).timeout_s < 30
        for question in (asked, replace(asked, today_s=None)):
            kept = advise(rows, crashes=50, given_up=3, question=question)
            assert (kept.timeout_s, kept.wanted_s) == (30, 30.0)
            assert "3 messages were given up" in kept.because
    longer = [Attempt(50.0, finished=True)] * 900
    assert advise(longer, given_up=3, question=asked).timeout_s > 30


def test_it_goes_no_further_than_four_times_the_longest_attempt_seen() -> None:
    """Beyond that the tail is fitted, and nobody has seen any of it; the answer says so."""
    lengths = 2 * (1 - np.random.default_rng(7).random(400)) ** (-1 / 0.7)
    rows = [Attempt(float(each), finished=True) for each in lengths]
    dear = Question(growth=FIXED, half_life=None, prices=Prices(dead=1e6))
    found = advise(rows, work_s=1e9, question=dear)
    longest_s = float(lengths.max())
    assert found.longest_s == pytest.approx(longest_s)
    assert longest_s < found.wanted_s <= 4 * longest_s
    assert found.as_good_s is not None
    assert found.as_good_s[1] <= 4 * longest_s
    assert "at most 4 times the longest observed attempt" in found.because
