"""Lengths of leases that are learned, and what keeps them from collapsing."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from leasehold.worker.adapters.protocol import Unreachable
from leasehold.worker.leases import HeldState, LeaseLearner, LeaseSettings
from leasehold.worker.leases.learning import MAX_TYPES
from tests.unit.worker.leases.support import Bench


def taught(seconds: float, count: int = 128, renewal_s: float = 0.0) -> LeaseLearner:
    """Return a learner that has seen messages which all took the same time."""
    learner = LeaseLearner()
    for _ in range(count):
        learner.handled(None, seconds)
        learner.renewal_took(renewal_s)
    return learner


def test_it_starts_where_it_is_told() -> None:
    """Before enough is known, the lease is what it starts with, and it says so."""
    learner = LeaseLearner(start_s=45)
    assert learner.lease_s() == 45
    assert learner.explain() == (
        "lease 45 s because there were 0 messages so far, too few for an estimate"
    )


def test_work_renewals_and_clocks_add_up() -> None:
    """It is as long as the work takes, with time for a renewal and for the clocks."""
    learner = taught(88.2, renewal_s=4.1)
    assert learner.lease_s() == 94
    assert learner.explain() == (
        "lease 94 s because 99% of the last 128 messages took up to 88.2 s,"
        " renewals take up to 4.1 s, the clock margin is 1 s"
    )


def test_long_work_counts_at_once() -> None:
    """What takes longer than the start is believed after the first message."""
    learner = LeaseLearner(start_s=30)
    learner.handled(None, 200)
    assert learner.lease_s() == 201


def test_floor_and_cap() -> None:
    """It stays between them, and says so."""
    assert taught(0.1).lease_s() == 10
    assert taught(0.1).explain().endswith("and no less than 10 s is allowed")
    assert taught(5000).lease_s() == 600
    assert taught(5000).explain().endswith("and no more than 600 s is allowed")


@pytest.mark.parametrize(("floor_s", "cap_s", "quantile"), [(0, 9, 0.5), (9, 8, 0.5), (1, 9, 0)])
def test_what_makes_no_sense(floor_s: int, cap_s: int, quantile: float) -> None:
    """Bounds that exclude each other are refused."""
    with pytest.raises(ValueError, match="it must be"):
        LeaseLearner(floor_s=floor_s, cap_s=cap_s, quantile=quantile)


def test_slow_renewals_beat_the_cap() -> None:
    """A lease that could not be kept is too short, whatever is allowed."""
    learner = taught(1.2, renewal_s=0.05)
    assert learner.lease_s() == 10
    learner.renewal_took(300)
    assert learner.lease_s() == 900
    assert learner.explain().endswith("and a lease has to last for 3 such renewals")


def test_one_slow_renewal_is_enough() -> None:
    """It grows with the first, and shrinks only when there have been none for long."""
    learner = taught(1.2, renewal_s=0.05)
    learner.renewal_took(60)
    assert learner.lease_s() == 180
    for _ in range(63):
        learner.renewal_took(0.05)
    assert learner.lease_s() == 180
    learner.renewal_took(0.05)
    assert learner.lease_s() == 10


def test_a_step_of_the_work_settles_both_ways() -> None:
    """From a second to five minutes within a few messages, and back within a window."""
    learner = taught(1)
    leases = []
    for _ in range(4):
        learner.handled(None, 300)
        leases.append(learner.lease_s())
    assert leases[-1] == 301
    for _ in range(128 + 8):
        learner.handled(None, 1)
    assert learner.lease_s() == 10


def test_a_single_outlier_among_many_does_not_count() -> None:
    """One message in a hundred may take longer than the lease: it is renewed."""
    learner = taught(20)
    learner.handled(None, 500)
    assert learner.lease_s() == 21


def test_types_are_told_apart() -> None:
    """Each type has its own length, and a type's name shows in the reasons."""
    learner = LeaseLearner()
    for _ in range(20):
        learner.handled("thumbnail", 2)
        learner.handled("video", 250)
    assert learner.lease_s("thumbnail") == 10
    assert learner.lease_s("video") == 251
    assert "messages of type video took up to 250 s" in learner.explain("video")
    assert learner.lease_s("unheard of") == 30


def test_too_many_types_count_as_one() -> None:
    """However many types senders invent, they cost no memory."""
    learner = LeaseLearner()
    for number in range(3 * MAX_TYPES):
        learner.handled(f"type-{number}", 40)
    assert len(learner._kinds) == MAX_TYPES + 1
    assert learner.lease_s("one more") == 41


def test_errors_freeze_it() -> None:
    """While renewals fail nothing gets shorter: quick failures look like quick work."""
    learner = taught(300)
    assert learner.lease_s() == 301
    for _ in range(10):
        learner.renewal_took(0.001, failed=True)
    assert learner.is_frozen
    for _ in range(200):
        learner.handled(None, 0.01)
    assert learner.lease_s() == 301
    assert "10 of the last 20 renewals failed" in learner.explain()
    learner.handled(None, 590)
    learner.handled(None, 590)
    assert learner.lease_s() == 592
    for _ in range(20):
        learner.renewal_took(0.05)
    assert not learner.is_frozen
    for _ in range(130):
        learner.handled(None, 0.01)
    assert learner.lease_s() == 10


def test_a_few_errors_do_not_freeze_it() -> None:
    """Two failures among many are nothing unusual."""
    learner = taught(30)
    learner.renewal_took(0.1, failed=True)
    learner.renewal_took(0.1, failed=True)
    assert not learner.is_frozen


def test_quick_failures_do_not_hide_slow_renewals() -> None:
    """A refused connection says nothing about how long renewals take; a time-out does."""
    learner = taught(1, renewal_s=20)
    for _ in range(500):
        learner.renewal_took(0.001, failed=True)
    assert learner.renewal_s == 20
    learner.renewal_took(15, failed=True)
    assert learner.renewal_s == 30


def test_a_manager_learns(make_bench: Callable[..., Bench]) -> None:
    """It tells the learner what took how long, and keeps new messages and old ones by it."""
    learner = LeaseLearner(floor_s=10, cap_s=600, start_s=30)
    bench = make_bench(LeaseSettings.of(30), learner=learner)
    old = bench.keep_one()
    for held in bench.keep(20):
        bench.time.advance(2)
        assert bench.complete(held)
    assert learner.lease_s() == 41
    assert bench.manager.lease_s() == 41
    new = bench.keep_one()
    assert new.settings.visibility_timeout_s == 41
    bench.time.advance(100)
    assert {sent.visibility_timeout_s for sent in bench.queue.sent[-3:]} == {41}
    assert (old.state, new.state) == (HeldState.HELD, HeldState.HELD)


def test_only_completed_work_is_learned(make_bench: Callable[..., Bench]) -> None:
    """What was given back after a moment says nothing about how long the work takes."""
    learner = LeaseLearner()
    bench = make_bench(LeaseSettings.of(30), learner=learner)
    for held in bench.keep(30):
        held.begin_settling()
        held.settled(None)
    assert "there were 0 messages" in learner.explain()


def test_a_manager_tells_of_failures(make_bench: Callable[..., Bench]) -> None:
    """Renewals that fail freeze what was learned."""
    learner = taught(100)
    bench = make_bench(LeaseSettings.of(30), learner=learner)
    bench.keep_one()
    bench.queue.faults.fail(100, method="renew", error=Unreachable("503"))
    bench.time.advance(100)
    assert learner.is_frozen


def test_settings_are_kept_ready_but_not_without_bound(make_bench: Callable[..., Bench]) -> None:
    """Lengths that came and went are forgotten."""
    learner = LeaseLearner(cap_s=100_000)
    bench = make_bench(LeaseSettings.of(30), learner=learner)
    for seconds in range(30, 2030):
        learner.handled(None, seconds)
        assert bench.manager.lease_s() <= seconds + 1
    assert len(bench.manager._learned) <= 1000
