"""Simulated queues: the table of how they collapse, crashes, renewal, replays."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from leasehold.advisor import Attempt, Prices, Question, advise, observe
from leasehold.advisor.attempts import Sample
from leasehold.advisor.costs import DOUBLING, duplicates_per_message
from leasehold.advisor.simulate import (
    Crew,
    Handling,
    Load,
    Outage,
    Outcome,
    PopOrder,
    Renewal,
    Shape,
    arrivals,
    draw_from_model,
    draw_lengths,
    lives,
    replayed,
    simulate,
)
from leasehold.advisor.statistics import fit
from leasehold.domain.queue_settings import LapsedReceipts

MANY_S = 6_000.0
LENIENT, STRICT = LapsedReceipts.UNTIL_RETAKEN, LapsedReceipts.STRICT
VISIBLE, ID = PopOrder.BY_VISIBLE, PopOrder.BY_ID

# Load, order, receipts; waste in per cent with batches of 32 (it collapses or not).
COLLAPSES = [
    (0.75, VISIBLE, LENIENT, 0.6),
    (0.75, ID, LENIENT, 24.0),
    (0.75, ID, STRICT, 35.0),
    (0.75, VISIBLE, STRICT, 35.0),
    (0.90, VISIBLE, LENIENT, 7.0),
    (0.90, ID, LENIENT, 24.0),
    (0.90, ID, STRICT, 34.0),
    (0.90, VISIBLE, STRICT, 34.0),
]


def collapse(load: float, seed: int, **handling: object) -> Outcome:
    """Play eight workers with work of 1 s, all away for two minutes."""
    random = np.random.default_rng(seed)
    came = arrivals(random, 8 * load, MANY_S)
    lengths = random.exponential(1.0, (4, len(came)))
    work = Load(arrivals_s=came, lengths_s=lengths[0], redrawn=lengths[1:].ravel())
    crew = Crew(workers=8, outages=(Outage(600, 720),))
    tried = Handling(timeout_s=20.0, **handling)  # type: ignore[arg-type]  # by name
    return simulate(work, tried, crew, lasts_s=MANY_S, seed=seed)


def check_waste(load: float, order: PopOrder, receipts: LapsedReceipts, percent: float) -> None:
    """Compare the median waste of three runs: within 20 %, or a point where there is hardly any."""
    runs = [
        collapse(load, seed, batch=32, order=order, lapsed_receipts=receipts) for seed in (1, 2, 3)
    ]
    waste = sorted(100 * each.wasted_share for each in runs)[1]
    assert waste == pytest.approx(percent, rel=0.2, abs=1.0 if percent < 2 else 0.0)


@pytest.mark.parametrize(("load", "order", "receipts", "percent"), COLLAPSES[2:5:2])
def test_large_batches_collapse_after_an_outage(
    load: float, order: PopOrder, receipts: LapsedReceipts, percent: float
) -> None:
    """Two cells of the table: the worst, and one that recovers slowly."""
    check_waste(load, order, receipts, percent)


@pytest.mark.slow
@pytest.mark.parametrize(("load", "order", "receipts", "percent"), COLLAPSES)
def test_table_of_collapses(
    load: float, order: PopOrder, receipts: LapsedReceipts, percent: float
) -> None:
    """All of it; and smaller batches, or passing over what would be late, prevent it."""
    check_waste(load, order, receipts, percent)
    for cure in ({"batch": 10}, {"batch": 32, "skip_late": True}):
        cured = collapse(load, 1, order=order, lapsed_receipts=receipts, **cure)
        assert cured.wasted_share < 0.004
        assert cured.backlog < 40


def test_small_batches_or_skipping_prevent_the_collapse() -> None:
    """In the worst cell of the table."""
    for cure in ({"batch": 10}, {"batch": 32, "skip_late": True}):
        cured = collapse(0.9, 1, order=ID, lapsed_receipts=STRICT, **cure)
        assert cured.wasted_share < 0.004
        assert cured.backlog < 40


def quiet(lengths: list[float], handling: Handling, crew: Crew | None = None) -> Outcome:
    """Play messages that come a long time after each other."""
    came = np.arange(len(lengths), dtype=np.float64) * 10_000
    load = Load(arrivals_s=came, lengths_s=np.array(lengths))
    lasts = 10_000.0 * len(lengths)
    return simulate(load, handling, crew or Crew(workers=3), lasts_s=lasts, keep_leases=True)


def test_slow_work_is_done_twice() -> None:
    """Its second delivery overlaps with the first, whose completion then comes to nothing."""
    found = quiet([5.0, 15.0], Handling(timeout_s=10.0), Crew(workers=2))
    # The second is taken again at 10 s. Its first worker is done at 15 s, in vain, takes it once
    # more at 20 s, and so on: each completion comes 5 s after the next delivery.
    assert found.done == 1
    assert found.wasted > 100


def test_growing_timeout_gets_it_done() -> None:
    """With the second delivery."""
    found = quiet([15.0], Handling(timeout_s=10.0, growth=2.0))
    assert (found.done, found.wasted, found.redeliveries) == (1, 1, 1)
    assert found.wait_mean_s == 25.0


def test_late_completion_counts_while_nobody_has_taken_the_message() -> None:
    """A single worker is busy with it itself; by the strict rule it is lost."""
    alone = Crew(workers=1)
    lenient = quiet([15.0], Handling(timeout_s=10.0), alone)
    assert (lenient.done, lenient.wasted) == (1, 0)
    strict = quiet([15.0], Handling(timeout_s=10.0, lapsed_receipts=STRICT), alone)
    assert strict.done == 0
    assert strict.wasted > 1


def test_renewed_leases_do_not_end() -> None:
    """First at 8 s, then every 5 s until the work is done at 21 s."""
    handling = Handling(timeout_s=10.0, renewal=Renewal(every_s=5.0, guard_s=2.0))
    found = quiet([21.0], handling)
    assert (found.done, found.redeliveries, found.renewals) == (1, 0, 3)


def test_messages_are_set_aside_after_so_many_deliveries() -> None:
    """And come no more."""
    handling = Handling(timeout_s=10.0, lapsed_receipts=STRICT, max_deliveries=3)
    found = quiet([15.0], handling)
    assert (found.set_aside, found.deliveries, found.backlog) == (1, 3, 0)


@pytest.mark.parametrize(("detect_s", "worst_s"), [(None, 300.0), (7.0, 7.0)])
def test_crash_hides_a_message_until_its_lease_ends_or_its_session_is_lost(
    detect_s: float | None, worst_s: float
) -> None:
    """With sessions that is soon, however long the lease."""
    handling = Handling(timeout_s=300.0, detect_s=detect_s)
    found = quiet([100.0] * 40, handling, Crew(workers=3, crash_rate=0.005, restart_s=1.0))
    assert found.crashes > 5
    assert found.done == 40
    assert found.recovery_worst_s <= worst_s
    assert found.recovery_worst_s > worst_s / 2


def test_backlog_over_time_adds_up() -> None:
    """It grows during the outage, and ends at what is left."""
    found = collapse(0.75, 1, batch=10)
    moments = dict(found.backlog_over_time)
    assert moments[700.0] > 400
    assert moments[MANY_S] == found.backlog
    assert found.arrived == found.done + found.backlog


def test_simulated_duplicates_agree_with_the_formula() -> None:
    """A queue that is never busy: redeliveries per message within 10 % of what J2 says."""
    lengths = np.random.default_rng(5).lognormal(3, 0.8, 3_000)
    model = fit(Sample.of([Attempt(float(each), True) for each in lengths]))
    found = quiet(lengths.tolist(), Handling(timeout_s=30.0, growth=2.0), Crew(workers=8))
    said = duplicates_per_message(model, np.array([30.0]), 0.0, DOUBLING)[0]
    assert found.redeliveries / 3_000 == pytest.approx(said, rel=0.1)


def test_log_of_a_simulation_teaches_advice() -> None:
    """Redeliveries fall by 90 % from 30 s to what its log advises."""
    random = np.random.default_rng(6)
    came = arrivals(random, 0.05, 40_000)
    load = Load(arrivals_s=came, lengths_s=random.lognormal(3.5, 0.6, len(came)))
    crew = Crew(workers=8, crash_rate=1e-5)
    before = simulate(load, Handling(timeout_s=30.0), crew, lasts_s=40_000, keep_leases=True)
    seen = observe(before.leases, late_seen=True)
    found = advise(
        seen.attempts,
        crashes=seen.crashes,
        silent=seen.silent,
        work_s=seen.work_s,
        question=Question(prices=Prices(duplicate=60.0)),
    )
    after = simulate(
        load, Handling(timeout_s=float(found.timeout_s), growth=2.0), crew, lasts_s=40_000
    )
    assert before.redeliveries > 500
    assert after.redeliveries <= 0.1 * before.redeliveries


def test_replay_goes_on_where_the_log_was_cut_off() -> None:
    """What was finished stays as it is; the rest lasts longer than was seen."""
    lengths = np.random.default_rng(7).lognormal(2, 0.5, 800)
    attempts = [Attempt(float(min(each, 10)), bool(each <= 10)) for each in lengths]
    again = replayed(attempts, np.random.default_rng(8))
    done = np.array([each.finished for each in attempts])
    assert np.array_equal(again[done], lengths[done])
    assert (again[~done] >= 10).all()
    assert np.quantile(again, 0.95) == pytest.approx(np.quantile(lengths, 0.95), rel=0.15)
    assert len(replayed(attempts, np.random.default_rng(8), size=50)) == 50


@pytest.mark.parametrize(
    ("shape", "middle"),
    [
        (Shape(name="constant", first=3.0), 3.0),
        (Shape(name="exponential", first=3.0), 3.0 * np.log(2)),
        (Shape(name="lognormal", first=3.0, second=0.5), 3.0),
        (Shape(name="pareto", first=3.0, second=1.5), 3.0 * 2 ** (1 / 1.5)),
        (Shape(name="uniform", first=2.0, second=6.0), 4.0),
    ],
)
def test_shapes_have_the_median_they_should(shape: Shape, middle: float) -> None:
    """Each as its numbers say."""
    drawn = draw_lengths([shape], np.random.default_rng(9), 20_000)
    assert np.median(drawn) == pytest.approx(middle, rel=0.03)


def test_mixtures_and_models_are_drawn_by_their_shares() -> None:
    """A tenth of the one, nine of the other."""
    random = np.random.default_rng(10)
    parts = [Shape(name="constant", first=1.0, share=9), Shape(name="constant", first=60.0)]
    drawn = draw_lengths(parts, random, 20_000)
    assert (drawn == 60).mean() == pytest.approx(0.1, abs=0.01)
    model = fit(Sample.of([Attempt(float(each), True) for each in drawn[:2_000]]))
    assert (draw_from_model(model, random, 20_000) > 30).mean() == pytest.approx(0.1, abs=0.02)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Shape(name="gamma", first=1.0),
        lambda: Shape(name="pareto", first=1.0),
        lambda: Handling(timeout_s=0.0),
        lambda: Handling(timeout_s=1.0, batch=0),
        lambda: Handling(timeout_s=1.0, growth=0.5),
        lambda: arrivals(np.random.default_rng(1), 0.0, 1.0),
        lambda: quiet([], Handling(timeout_s=1.0)),
    ],
)
def test_impossible_settings_are_refused(make: Callable[[], object]) -> None:
    """With a word on what is wrong."""
    with pytest.raises(ValueError, match=r"above 0|is none of|second number|must be"):
        make()


def test_replay_draws_by_weight() -> None:
    """A row that stands for 99 is drawn as often as 99 rows."""
    attempts = [Attempt(1.0, True, 99.0), Attempt(60.0, True, 1.0)]
    drawn = replayed(attempts, np.random.default_rng(8), size=20_000)
    assert (drawn == 60).mean() == pytest.approx(0.01, abs=0.003)


def test_a_delivery_has_the_same_luck_whatever_the_settings() -> None:
    """Longer leases change when work is done, and not who dies at it."""
    came = np.arange(300.0) * 1_000
    load = Load(arrivals_s=came, lengths_s=np.full(300, 50.0))
    crew = Crew(workers=4, crash_rate=0.004)
    deaths = [
        simulate(load, Handling(timeout_s=each), crew, lasts_s=300_000).crashes
        for each in (60.0, 90.0, 400.0)
    ]
    assert deaths[0] > 30
    assert len(set(deaths)) == 1
    first = (lives(1, 1, 300) / 0.004 < 50).sum()
    assert first < deaths[0]
