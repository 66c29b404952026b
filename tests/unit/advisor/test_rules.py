"""Small rules: renewal, promises, the start, drift, bounds, batches, suspicion."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
from benchmarks.tuning_worlds import WORKS, Work

from leasehold.advisor import Basis, advise
from leasehold.advisor.advice import Bounds, settle
from leasehold.advisor.attempts import Attempt, Sample
from leasehold.advisor.costs import (
    Prices,
    RenewalPlan,
    cost_renewed,
    guard,
    heartbeat_period,
    largest_batch,
    largest_batch_drawn,
    plan_renewal,
    renewal_period,
)
from leasehold.advisor.rules import attempts_needed, promise, start_timeout
from leasehold.advisor.statistics import STUCK, caught_up, find_drift, kaplan_meier, log_rank, phi
from tests.unit.advisor.draws import censored

PRICES = Prices(duplicate=60.0)


def planned(work: Work, **members: float) -> RenewalPlan:
    """Return the cheapest renewal for one crash in 1,000 s."""
    plan = plan_renewal(work.truth(), 1e-3, PRICES, **{"guard_s": 5.0, **members})
    assert plan is not None
    return plan


def finished(lengths: np.ndarray) -> list[Attempt]:
    """Return attempts all of which were seen to end."""
    return [Attempt(float(each), finished=True) for each in lengths]


def test_renewal_period_halves_when_crashes_come_four_times_as_often() -> None:
    """Young's law is a square root."""
    assert renewal_period(4e-4, PRICES, 1.0) == pytest.approx(renewal_period(1e-4, PRICES, 1.0) / 2)
    assert renewal_period(1e-4, PRICES, 1.0) == pytest.approx(math.sqrt(2 * 0.056 / 1e-4))


def test_renewals_that_may_be_missed_come_more_often() -> None:
    """Two in a row: the square root of a third of the period's square."""
    once, twice = (renewal_period(1e-4, PRICES, 1.0, missed=each) for each in (1, 2))
    assert twice == pytest.approx(once / math.sqrt(3))


def test_heartbeat_of_many_leases_comes_more_often() -> None:
    """For one lease it is a renewal; for a hundred the one heartbeat is worth more."""
    assert heartbeat_period(1e-4, PRICES, 1.0, 1) == pytest.approx(
        renewal_period(1e-4, PRICES, 1.0)
    )
    assert heartbeat_period(1e-4, PRICES, 1.0, 100) < heartbeat_period(1e-4, PRICES, 1.0, 10)


@pytest.mark.parametrize("work", WORKS, ids=lambda work: work.name)
def test_youngs_period_is_nearly_the_best(work: Work) -> None:
    """No other period is better by more than 12 %, first lease and all."""
    plan = planned(work)
    others = [planned(work, every_s=plan.every_s * each).cost for each in (0.5, 0.7, 1.4, 2.0)]
    assert plan.cost <= 1.12 * min(others)


def test_lazy_renewal_is_cheaper_than_eager() -> None:
    """A lease of 30 s renewed every 10 costs at least 1.3 times as much, for any of the works."""
    for work in WORKS:
        truth = work.truth()
        plan = planned(work)
        eager = cost_renewed(
            truth, np.array([30.0]), 1e-3, PRICES, every_s=10.0, guard_s=20.0, lease_s=30.0
        )
        assert eager[0] >= 1.25 * plan.cost


def test_plan_stays_within_its_bounds() -> None:
    """Also where the best would be outside."""
    plan = planned(WORKS[5], guard_s=2.0, floor_s=10.0, cap_s=12.0)
    assert 10 <= plan.first_s <= 12
    assert plan.lease_s <= 12
    assert plan.first_renewal_s == plan.first_s - 2


def test_guard_is_the_slowest_round_trip_and_the_longest_stall() -> None:
    """Both as quantiles of what was measured."""
    assert guard([0.1] * 999 + [0.4], [], 1e-4) == pytest.approx(0.4)
    assert guard([0.1], [0.0, 2.0], 0.01) == pytest.approx(2.1)
    with pytest.raises(ValueError, match="no round trip"):
        guard([], [1.0], 0.01)


@pytest.mark.parametrize(("share", "needed"), [(0.01, 299), (0.001, 2_995)])
def test_promise_needs_enough_attempts(share: float, needed: int) -> None:
    """One less is not enough data yet; with just enough the longest is the promise."""
    assert attempts_needed(share, 0.95) == needed
    for many, kept in ((needed - 1, None), (needed, float(needed))):
        curve = kaplan_meier(Sample.of(finished(np.arange(1.0, many + 1))))
        found = promise(curve, share)
        assert found.timeout_s == kept
        assert ("not enough data yet" in found.told()) == (kept is None)


def test_promises_are_kept() -> None:
    """Of 400 made with a confidence of 95 %, no more are broken than chance allows (3 sigma)."""
    random = np.random.default_rng(11)
    broken = 0
    for _ in range(400):
        lengths, cuts = random.exponential(10, 400), random.exponential(120, 400)
        sample = Sample.of_arrays(np.minimum(lengths, cuts), lengths <= cuts, np.ones(400))
        timeout = promise(kaplan_meier(sample), 0.05).timeout_s
        assert timeout is not None
        broken += math.exp(-timeout / 10) > 0.05
    assert broken <= 400 * 0.05 + 3 * math.sqrt(400 * 0.05 * 0.95)


def test_promise_says_so_when_too_much_is_cut_off() -> None:
    """There may be many attempts, and still no end to be seen."""
    attempts = [Attempt(min(each, 50.0), bool(each <= 50)) for each in np.arange(1.0, 1_001.0)]
    found = promise(kaplan_meier(Sample.of(attempts)), 0.01)
    assert found.timeout_s is None
    assert "not enough data yet" in found.told()


def test_start_follows_the_rules_of_tcp() -> None:
    """One attempt of 8 s: 8 + 4*4; a second one moves both averages; a lapse doubles."""
    first, lapse = Attempt(8.0, finished=True), Attempt(24.0, finished=False)
    assert start_timeout([], default_s=30) == 30
    assert start_timeout([first], default_s=30) == 24
    assert start_timeout([first, first], default_s=30) == 8 + 4 * 3
    assert start_timeout([first, lapse], default_s=30) == 48
    assert start_timeout([first, lapse], default_s=30, cap_s=40) == 40
    assert start_timeout([first, lapse, Attempt(48.0, finished=False)], default_s=30) == 96


def test_many_lapses_of_one_timeout_say_no_more_than_one() -> None:
    """Thirty leases of 30 s that all ended ask for 60 s, and not for the longest there is."""
    lapses = [Attempt(30.0, finished=False)] * 30
    assert start_timeout(lapses, default_s=30) == 60
    found = advise(lapses)
    assert (found.timeout_s, found.basis) == (60, Basis.DEFAULT)
    assert "30 leases ended before their work did" in found.because


def test_start_counts_weights() -> None:
    """One row that stands for three is the same as three."""
    rows = [Attempt(8.0, finished=True), Attempt(4.0, finished=True, weight=3.0)]
    alone = [rows[0], *[Attempt(4.0, finished=True)] * 3]
    weighted, single = (start_timeout(each, default_s=30) for each in (rows, alone))
    assert weighted == pytest.approx(single, rel=0.25)
    assert weighted < start_timeout(rows[:1], default_s=30)


def test_log_rank_equals_that_of_another_library() -> None:
    """The statistic is the square of ours."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        statistics = pytest.importorskip("lifelines.statistics")
    for seed in range(5):
        random = np.random.default_rng(seed)
        both = [
            (
                np.array([each.seconds for each in part]),
                np.array([each.finished for each in part]),
            )
            for part in (censored(random, 80), censored(random, 150))
        ]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            theirs = statistics.logrank_test(both[0][0], both[1][0], both[0][1], both[1][1])
        assert log_rank(both[0], both[1]) ** 2 == pytest.approx(theirs.test_statistic)


def test_drift_is_found_where_it_was() -> None:
    """And nothing is found in 20 samples without one."""
    random = np.random.default_rng(12)
    lengths = np.concatenate([random.exponential(45, 2_000), random.exponential(90, 600)])
    found = find_drift(lengths, np.ones(2_600, dtype=bool))
    assert found is not None
    assert found.z < -4
    assert found.attempts_ago == 600
    for _ in range(20):
        assert find_drift(random.exponential(45, 2_000), np.ones(2_000, dtype=bool)) is None


def test_work_like_that_before_the_change_is_no_change() -> None:
    """Longer work in between has been before, and may come again."""
    random = np.random.default_rng(13)
    lengths = np.concatenate([random.exponential(mean, 800) for mean in (10, 60, 10)])
    found = find_drift(lengths, np.ones(len(lengths), dtype=bool))
    assert found is not None
    assert found.returned
    since = find_drift(lengths[:1_600], np.ones(1_600, dtype=bool))
    assert since is not None
    assert not since.returned


def test_older_lengths_catch_up_with_newer_ones() -> None:
    """Each block of them by as much as it is apart; those cut off with the others."""
    lengths = np.concatenate([np.full(200, 5.0), np.full(200, 10.0), np.full(200, 20.0)])
    finished = np.ones(600, dtype=bool)
    assert caught_up(lengths, finished, 200) == pytest.approx(np.full(600, 20.0))
    finished[:200] = np.arange(200) % 2 == 0
    assert caught_up(lengths, finished, 200)[400:] == pytest.approx(np.full(200, 20.0))


def test_user_has_the_last_word() -> None:
    """Even outside of the bounds, and against all gain."""
    found = settle(900.0, 30, Bounds(floor_s=10, cap_s=100, user_s=7), gain=0.9)
    assert found.timeout_s == 7


@pytest.mark.parametrize(
    ("wanted", "today", "gain", "chosen"),
    [
        (70.2, None, None, 71),
        (70.2, 60, 0.02, 60),
        (70.2, 60, 0.04, 71),
        (900.0, 60, 0.5, 120),
        (5.0, 60, 0.5, 30),
        (4.0, None, None, 5),
        (4_000.0, None, None, 600),
    ],
)
def test_steps_are_small_and_stay_within_the_bounds(
    wanted: float, today: int | None, gain: float | None, chosen: int
) -> None:
    """At most twice or half; nothing for a gain of less than 3 %; floor and cap."""
    assert settle(wanted, today, Bounds(floor_s=5, cap_s=600), gain).timeout_s == chosen


def test_bounds_must_make_sense() -> None:
    """A floor above the cap is a mistake."""
    with pytest.raises(ValueError, match="floor"):
        Bounds(floor_s=10, cap_s=5)
    with pytest.raises(ValueError, match="user_s"):
        Bounds(user_s=0)


def test_batch_of_exponential_work() -> None:
    """Of 1 s each, 19 fit into 30 s but for 1 %; drawing says nearly the same."""
    assert largest_batch(1.0, 1.0, 30.0) == 19
    assert largest_batch_drawn(WORKS[4].truth(), 30.0 * 45) in range(17, 21)


def test_batch_of_heavy_work_is_smaller_than_the_normal_law_says() -> None:
    """And never less than one."""
    pareto = WORKS[3].truth()
    # Its variance has no end; what a sample of it would show is about 6 s.
    assert largest_batch_drawn(pareto, 60.0) < largest_batch(pareto.mean_s, 6.0, 60.0)
    assert largest_batch_drawn(pareto, 0.5) == 1
    assert largest_batch(10.0, 1.0, 5.0) == 1


def test_silence_gets_more_suspicious_as_it_lasts() -> None:
    """At the mean gap one in two is longer; far beyond it a worker is called stuck."""
    gaps = [9.0, 10.0, 11.0]
    assert phi(10.0, gaps) == pytest.approx(math.log10(2))
    assert phi(12.0, gaps) < STUCK < phi(20.0, gaps)
    with pytest.raises(ValueError, match="no gap"):
        phi(1.0, [])
