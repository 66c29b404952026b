"""Survival curves, against an independent library."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

from leasehold.advisor.attempts import Attempt, Sample
from leasehold.advisor.statistics import kaplan_meier
from tests.unit.advisor.draws import censored


@pytest.fixture(scope="module")
def lifelines() -> Any:
    """The other library; what it warns of on import is its own affair."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip("lifelines")


def compare(lifelines: Any, seed: int) -> None:
    """Compare one random sample, with its band."""
    random = np.random.default_rng(seed)
    attempts = censored(random, int(random.integers(5, 120)), weighted=seed % 2 == 0)
    if not any(each.finished for each in attempts):
        return
    ours = kaplan_meier(Sample.of(attempts))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fitter = lifelines.KaplanMeierFitter(alpha=0.1)
        fitter.fit(
            [each.seconds for each in attempts],
            [each.finished for each in attempts],
            weights=[each.weight for each in attempts],
        )
    theirs = fitter.survival_function_at_times(ours.times).to_numpy()
    assert np.abs(ours.survival - theirs).max() < 1e-9
    lower, upper = ours.band(0.9)
    band = fitter.confidence_interval_.loc[ours.times].to_numpy()
    inside = (ours.survival > 0) & (ours.survival < 1)
    assert np.abs(np.stack([lower, upper], axis=1) - band)[inside].max(initial=0.0) < 1e-9


def test_curve_and_band_equal_those_of_another_library(lifelines: Any) -> None:
    """With ties, censoring and weights, to nine digits."""
    for seed in range(60):
        compare(lifelines, seed)


@pytest.mark.slow
def test_curve_and_band_equal_those_of_another_library_on_many_samples(lifelines: Any) -> None:
    """The same for a thousand samples."""
    for seed in range(1_000):
        compare(lifelines, seed)


def test_what_is_finished_comes_before_what_is_cut_off_at_the_same_time() -> None:
    """The one cut off was still at risk when the other was finished."""
    curve = kaplan_meier(Sample.of([Attempt(5, finished=False), Attempt(5, finished=True)]))
    assert curve.survival.tolist() == [0.5]


def test_survival_between_the_times() -> None:
    """It is 1 before the first, and falls at the times themselves."""
    curve = kaplan_meier(Sample.of([Attempt(each, finished=True) for each in (2.0, 4.0)]))
    assert [curve.survival_at(each) for each in (1.9, 2.0, 3.9, 4.0)] == [1.0, 0.5, 0.5, 0.0]


def test_old_attempts_count_for_less() -> None:
    """One half-life later an attempt counts for half."""
    attempts = [Attempt(1, finished=True), Attempt(9, finished=True)]
    curve = kaplan_meier(Sample.of(attempts, half_life=1))
    assert curve.survival_at(1) == pytest.approx(2 / 3)


def test_no_attempts_make_an_empty_curve() -> None:
    """Then everything survives."""
    assert kaplan_meier(Sample.of([])).survival_at(10) == 1.0


@pytest.mark.parametrize(
    "bad", [Attempt(-1, finished=True), Attempt(float("nan"), finished=True), Attempt(1, True, 0)]
)
def test_impossible_attempts_are_refused(bad: Attempt) -> None:
    """Rather than being counted."""
    with pytest.raises(ValueError, match="an attempt"):
        Sample.of([bad])
