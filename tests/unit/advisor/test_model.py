"""Tails, and the model that they are part of."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from leasehold.advisor.attempts import Attempt, Sample, repeats_are_alike, weight_by_age
from leasehold.advisor.statistics import (
    fit,
    fit_log_normal,
    fit_log_normal_tail,
    fit_pareto,
    from_chances,
    kaplan_meier,
)


def cut(lengths: np.ndarray, at: float) -> list[Attempt]:
    """Return attempts of which nothing is seen beyond a moment."""
    return [Attempt(float(min(each, at)), bool(each <= at)) for each in lengths]


def test_log_normal_fit_equals_that_of_scipy() -> None:
    """The likelihood of censored data has its highest point where scipy finds it."""
    logs = np.log(np.random.default_rng(3).lognormal(2, 1.1, 400))
    found = fit_log_normal(Sample.of(cut(np.exp(logs), 15.0)))
    limit = np.log(15.0)
    data = stats.CensoredData(
        uncensored=logs[logs <= limit], right=np.full((logs > limit).sum(), limit)
    )
    assert (found.mu, found.sd) == pytest.approx(stats.norm.fit(data), abs=2e-4)


def test_weights_count_as_so_many_attempts() -> None:
    """Three alike are one of weight three."""
    many = [
        Attempt(1, True),
        Attempt(4, True),
        Attempt(4, True),
        Attempt(4, True),
        Attempt(9, False),
    ]
    one = [Attempt(1, True), Attempt(4, True, 3.0), Attempt(9, False)]
    assert fit_log_normal(Sample.of(one)) == pytest.approx(
        fit_log_normal(Sample.of(many)), abs=1e-6
    )


def test_pareto_exponent_is_found_through_censoring() -> None:
    """Within 10 %, although a third of the tail is cut off."""
    random = np.random.default_rng(4)
    lengths, cuts = 1 + random.pareto(1.5, 20_000), 1 + random.pareto(0.5, 20_000)
    attempts = [Attempt(float(min(a, b)), bool(a <= b)) for a, b in zip(lengths, cuts, strict=True)]
    assert fit_pareto(Sample.of(attempts)) == pytest.approx(1.5, rel=0.1)


def test_no_pareto_tail_from_few_attempts() -> None:
    """With fewer than twenty there is no telling."""
    assert fit_pareto(Sample.of(cut(np.arange(1.0, 19.0), 1e9))) is None


@pytest.mark.parametrize("quick_s", [0.02, 1.0])
def test_the_tail_is_that_of_the_longest_work(quick_s: float) -> None:
    """Nine of ten messages that take no time say nothing of the tenth, censored ones included."""
    random = np.random.default_rng(5)
    lengths = np.concatenate(
        [random.lognormal(np.log(quick_s), 0.2, 2_700), random.lognormal(np.log(40), 0.4, 300)]
    )
    attempts = [Attempt(float(min(each, 90.0)), bool(each <= 90.0)) for each in lengths]
    sample = Sample.of(attempts)
    whole = fit_log_normal(sample)
    found = fit_log_normal_tail(sample, kaplan_meier(sample))
    at = np.array([60.0, 150.0])
    truth = 0.1 * stats.lognorm(0.4, scale=40).sf(at)
    share, of_whole = (np.exp(each.log_survival(at)) for each in (found, whole))
    ratio = truth[1] / truth[0]
    assert share[1] / share[0] == pytest.approx(ratio, rel=0.5)
    assert of_whole[1] / of_whole[0] > 10 * ratio


def test_all_attempts_count_where_a_log_normal_fits_them() -> None:
    """They say more than the longest of them alone; so do few attempts, whatever they are like."""
    random = np.random.default_rng(6)
    fitting = Sample.of([Attempt(float(each), True) for each in random.lognormal(2, 1, 2_000)])
    few = Sample.of([Attempt(each, True) for each in [0.02] * 90 + [40.0, 60.0] * 5])
    for sample in (fitting, few):
        assert fit_log_normal_tail(sample, kaplan_meier(sample)) == fit_log_normal(sample)


def test_body_is_what_was_seen() -> None:
    """Up to the glue point nothing is smoothed."""
    lengths = np.random.default_rng(5).lognormal(1, 1, 500)
    model = fit(Sample.of(cut(lengths, 1e9)))
    assert model.glue_s == np.sort(lengths)[-3]
    for at in (1.0, 3.0, 10.0):
        assert model.tail(at) == pytest.approx(float((lengths > at).mean()))
    assert model.quantile(0.5) == pytest.approx(float(np.sort(lengths)[249]))


def test_tail_goes_on_where_all_is_cut_off() -> None:
    """A log-normal of which only 70 % are seen is continued to its true 95 % point, within 15 %."""
    lengths = np.random.default_rng(6).lognormal(3, 0.7, 4_000)
    model = fit(Sample.of(cut(lengths, float(np.quantile(lengths, 0.7)))))
    assert model.quantile(0.95) == pytest.approx(float(np.quantile(lengths, 0.95)), rel=0.15)


def test_chances_sum_to_one_and_very_many_times_are_merged() -> None:
    """Merging moves neither the mean nor the quantiles by more than it says."""
    lengths = np.random.default_rng(7).lognormal(1, 1, 9_000)
    model = fit(Sample.of(cut(lengths, 1e9)))
    assert len(model.seconds) < 4_500
    assert model.chance.sum() == pytest.approx(1.0)
    assert model.quantile(0.9) == pytest.approx(float(np.quantile(lengths, 0.9)), rel=0.005)


def test_silent_crashes_are_made_up_for() -> None:
    """Long work that is missing more often gets its share back."""
    random = np.random.default_rng(8)
    lengths = random.lognormal(5, 0.8, 40_000)
    seen = lengths[random.exponential(400, len(lengths)) > lengths]
    sample = Sample.of(cut(seen, 1e9))
    truth = float((lengths > 200).mean())
    assert fit(sample).tail(200) < 0.8 * truth
    assert fit(sample.with_silent(1 / 400)).tail(200) == pytest.approx(truth, rel=0.05)


def test_models_refuse_what_is_no_distribution() -> None:
    """No attempts; negative chances."""
    with pytest.raises(ValueError, match="no attempts"):
        fit(Sample.of([]))
    with pytest.raises(ValueError, match="0 or more"):
        from_chances(np.array([1.0]), np.array([-1.0]))


def test_repeats_are_taken_to_be_alike_unless_shown_otherwise() -> None:
    """It takes many pairs without a correlation."""
    random = np.random.default_rng(9)
    apart = list(zip(random.exponential(1, 400), random.exponential(1, 400), strict=True))
    assert not repeats_are_alike(apart)
    assert repeats_are_alike(apart[:20])
    assert repeats_are_alike([(a, a * 1.1) for a, _ in apart])


def test_weight_by_age() -> None:
    """Half after a half-life; a clock that went back makes nothing heavier."""
    assert weight_by_age(3_600, 3_600) == 0.5
    assert weight_by_age(-5, 3_600) == 1.0
