"""Advice that is applied every day, on a store whose queue gives messages up."""

from __future__ import annotations

import pytest
from benchmarks.tuning_driven import QUICK_AND_LONG, Driven, Pricing, run


def test_long_work_is_not_taken_for_dead_workers() -> None:
    """Nobody dies, a tenth of the work outlasts all five leases: the timeout never falls."""
    days = run(QUICK_AND_LONG, days=14, messages=120, seed=3)
    assert days[0]["timeout_s"] == 30
    timeouts = [day["timeout_s"] for day in days]
    assert timeouts[:3] == sorted(timeouts[:3])
    assert min(timeouts) == 30
    assert min(timeouts[6:]) >= 300
    assert days[-1]["regret"] <= 1.05
    assert min(day["crash_every_s"] for day in days) > 10_000


@pytest.mark.parametrize("deliveries", [2, 5])
def test_it_never_falls_where_late_completions_are_not_in_the_log(deliveries: int) -> None:
    """As in logs of before: while messages are given up, it is kept or lengthened."""
    driven = Driven(QUICK_AND_LONG, 5, deliveries=deliveries, log_late=False)
    timeouts = [driven.timeout_s]
    for _ in range(6):
        driven.play_day(100)
        driven.set_timeout(driven.advice().timeout_s)
        timeouts.append(driven.timeout_s)
    assert timeouts == sorted(timeouts)
    assert Pricing(QUICK_AND_LONG).regret(timeouts[-1])[0] < Pricing(QUICK_AND_LONG).regret(30)[0]
