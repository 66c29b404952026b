"""Recommendations from bins, and what other timeouts would have meant."""

from __future__ import annotations

import math

import numpy as np
import pytest

from leasehold.advisor import Attempt, Basis, Growth, Question, advise
from leasehold.advisor.advice import price
from leasehold.advisor.costs import DOUBLING, FIXED, RenewalPlan
from leasehold.advisor.recommendation import (
    Asked,
    Today,
    deliveries_needed,
    recommend,
    with_renewal,
    without_renewal,
)
from leasehold.advisor.simulate import Crew, Handling, Load, simulate
from leasehold.advisor.statistics import from_chances
from leasehold.advisor.summaries import Bin, QueueSummary, aged, day_of, drift_of, naive_choices
from tests.unit.advisor.support import binned, full_queue, log_normal, work


def queue_of(*works: object) -> QueueSummary:
    """Return a queue with this work."""
    return QueueSummary(queue="orders", works=works)  # type: ignore[arg-type]  # of Work


def test_bins_give_the_advice_that_attempts_give() -> None:
    """What is lost by putting lengths into bins of 2 % does not show."""
    attempts = log_normal(20, 0.8, 3_000)
    question = Question(half_life=None)
    told = advise(attempts, crashes=5, question=question)
    today = {"orders": Today(visibility_timeout_s=30, lease_s=30)}
    asked = Asked(today=today, at_once=True, growth=DOUBLING)
    found = recommend(queue_of(work(attempts, crashes=5)), asked)
    assert found.basis is Basis.MODEL
    assert told.model is not None
    both = np.array([told.wanted_s, found.wanted_s])
    own, other = price(told.model, both, told.crash_rate, question)
    assert other == pytest.approx(own, rel=0.01)
    assert found.renewal is not None
    assert told.renewal is not None
    assert found.renewal.first_s == pytest.approx(told.renewal.first_s, rel=0.06)
    assert found.median_s == pytest.approx(20, rel=0.1)


def test_today_is_left_in_small_steps() -> None:
    """What is set now is at most twice of today's; what is best is told beside it."""
    found = recommend(queue_of(work(log_normal(100, 0.5, 500))), Asked())
    assert found.today_s == 30
    assert found.timeout_s == 60
    assert found.wanted_s > 200
    names = [each.name for each in found.choices]
    assert names[:4] == ["advice", "renewal", "best, if set at once", "today"]


def test_few_data_are_said() -> None:
    """With nine finished attempts there is a start, no curve, and it says so."""
    found = recommend(queue_of(work(log_normal(3, 0.3, 9))), Asked())
    assert not found.is_enough
    assert found.promise.startswith("not enough data yet")
    assert (found.curve, found.survival, found.choices) == ((), (), ())
    assert recommend(queue_of(), Asked()).basis is Basis.DEFAULT


def test_a_type_dies_as_often_as_its_queue() -> None:
    """Workers are shared, so how often they die is known from all types together."""
    queue = full_queue()
    rates = {recommend(queue, Asked(), each).crash_every_s for each in queue.works}
    assert rates == {recommend(queue, Asked()).crash_every_s}


def test_survival_is_drawn_with_band_and_tail() -> None:
    """It falls; up to the glue point it has a band, beyond it none."""
    found = recommend(full_queue(), Asked())
    shares = [each.share for each in found.survival]
    assert shares == sorted(shares, reverse=True)
    assert found.glue_s is not None
    for each in found.survival:
        assert each.low <= each.share <= each.high
        if each.seconds > found.glue_s:
            assert each.low == each.high


def test_older_days_count_for_less() -> None:
    """Of a busy queue yesterday counts for half; of a quiet one nothing is forgotten."""
    busy = [Bin(seconds=1, finished=True, count=50_000, day=day) for day in range(3)]
    assert [each.weight for each in aged(busy)] == [50_000, 25_000, 12_500]
    quiet = [Bin(seconds=1, finished=True, count=10, day=day) for day in range(3)]
    assert all(each.weight > 9.9 for each in aged(quiet))


def test_drift_between_days_is_found_and_followed() -> None:
    """Work takes three times as long since yesterday: what is older is taken to do so as well."""
    before = [Attempt(each.seconds, each.finished) for each in log_normal(5, 0.4, 2_000)]
    since = log_normal(15, 0.4, 500, seed=2)
    bins = (*binned(before, day=1), *binned(since))
    change = drift_of(bins)
    assert change is not None
    assert (change.z < -4, change.days) == (True, 1)
    found = recommend(queue_of(work(since, bins=bins)), Asked(at_once=True))
    assert found.change == change
    assert "the work of the last day was slower than before" in found.because
    assert found.median_s == pytest.approx(15, rel=0.05)
    assert found.p99_s == pytest.approx(15 * math.exp(0.4 * 2.33), rel=0.1)
    assert drift_of((*binned(before, day=1), *binned(before[:500]))) is None


def test_drift_inside_a_day_is_found_and_followed() -> None:
    """Work that gets slower from hour to hour is what it is in the last hours."""
    hours = [log_normal(s, 0.5, 400, seed) for seed, s in enumerate((25, 20, 16, 12.5, 10))]
    bins = tuple(b for n, each in enumerate(hours) for b in binned(each, day=n / 8))
    found = recommend(queue_of(work(hours[0], bins=bins)), Asked(at_once=True))
    assert found.change is not None
    assert found.change.z < 0
    assert found.change.days in {1 / 8, 2 / 8}
    assert "hours was slower than before" in found.because
    assert found.median_s == pytest.approx(25, rel=0.1)


def test_what_comes_and_goes_by_the_hour_is_no_drift() -> None:
    """By night the work is longer, as it was the night before; all of it is weighed."""
    by_day, by_night = log_normal(10, 0.5, 300), log_normal(60, 0.4, 300, seed=2)
    parts = [by_night if n % 8 < 2 else by_day for n in range(16)]
    bins = tuple(b for n, each in enumerate(parts) for b in binned(each, day=n / 8))
    assert drift_of(bins) is None
    assert drift_of(bins[: sum(each.day < 1 for each in bins)]) is not None


def test_parts_of_a_day_are_told_apart_for_two_days() -> None:
    """Three hours each, and whole days after that."""
    hours = [0, 2, 3, 24, 47, 48, 71, 72]
    days = [day_of(each * 3_600_000) for each in hours]
    assert days == [0, 0, 1 / 8, 1, 15 / 8, 2, 2, 3]
    assert day_of(-5) == 0


def test_naive_choices_are_weighted_by_counts() -> None:
    """A bin of a hundred is a hundred attempts; what was cut off is left out, as is usual."""
    bins = [
        Bin(seconds=1, finished=True, count=990),
        Bin(seconds=50, finished=True, count=10),
        Bin(seconds=500, finished=False, count=5),
    ]
    found = naive_choices(bins, 30)
    assert found["longest seen"] == 50
    assert found["99th percentile of completed"] == 10
    assert found["99th percentile, doubled"] == 2
    assert found["mean of completed, doubled"] == pytest.approx(2 * 1.49)
    assert naive_choices(bins[2:], 30) == {"default": 30}


def test_deliveries_that_work_needs() -> None:
    """The first whose lease is long enough, or none."""
    lengths = np.array([5.0, 10.0, 11.0, 100.0, 1_000.0])
    assert deliveries_needed(lengths, 10, DOUBLING).tolist() == [1, 1, 2, 5, np.inf]
    assert deliveries_needed(lengths, 10, FIXED).tolist() == [1, 1, np.inf, np.inf, np.inf]


def test_what_if_is_what_a_simulation_plays() -> None:
    """Redeliveries and work done twice are those of the same messages, played one by one."""
    lengths = np.array([each.seconds for each in log_normal(20, 0.8, 4_000)])
    growth = Growth(factor=2.0, tries=10)
    model = from_chances(lengths, np.ones(len(lengths)))
    told = without_renewal(
        model, name="", timeout_s=30, messages=4_000, crash_rate=1e-9, growth=growth, cost=0
    )
    load = Load(arrivals_s=np.linspace(0.0, 12_000.0, 4_000), lengths_s=lengths)
    handling = Handling(timeout_s=30, growth=2.0)
    played = simulate(load, handling, Crew(workers=200), lasts_s=20_000)
    assert played.backlog == 0
    assert told.redeliveries == pytest.approx(played.redeliveries, rel=0.01)
    assert told.wasted_work_s == pytest.approx(played.wasted_work_s, rel=0.01)


def test_recovery_is_what_is_left_of_the_lease() -> None:
    """Work of 20 s under a lease of 50 s: a death at any moment leaves 40 s on average."""
    model = from_chances(np.array([20.0]), np.array([1.0]))
    told = without_renewal(
        model, name="", timeout_s=50, messages=10, crash_rate=1e-6, growth=FIXED, cost=0
    )
    assert (told.worst_recovery_s, told.mean_recovery_s) == (50, 40)
    plan = RenewalPlan(
        first_s=15, every_s=10, lease_s=15, guard_s=5, cost=0.1, renewals_per_attempt=1
    )
    renewed = with_renewal(model, plan, name="", messages=10, crash_rate=1e-6)
    # 10 s with 15 to 5 s left, and 10 s with 15 to 5 s left again.
    assert (renewed.worst_recovery_s, renewed.mean_recovery_s) == (15, 10)
    assert renewed.renewals == 10
