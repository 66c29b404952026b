"""How evenly groups share a queue, by what the benchmark of it counts, on the store in memory."""

from __future__ import annotations

import pytest
from benchmarks.groups_fairness import NOISY, Shared, World, jain, newcomer_turns, play, shares

from leasehold.domain.queue_settings import GroupSettings
from leasehold.stores.memory.store import MemoryStore


def shared(**settings: object) -> Shared:
    """Return an empty queue."""
    return Shared(MemoryStore(), GroupSettings(**settings))  # type: ignore[arg-type]


def test_a_newcomer_is_next_but_one() -> None:
    """Behind a group with many messages; at the end of the line without fairness."""
    assert newcomer_turns(shared(fair=True), 1_000) <= 2
    assert newcomer_turns(shared(), 200) == 101


def test_tenants_with_unequal_loads_are_given_the_same() -> None:
    """Forty tenants whose loads follow Zipf; the index of Jain tells when they are not."""
    assert jain(shares(shared(fair=True), 40, 2_000)) >= 0.99
    assert jain(shares(shared(), 40, 2_000)) < 0.9


def test_a_noisy_neighbour_hardly_slows_the_quiet_down() -> None:
    """Its messages take as long as theirs; without fairness they wait for its whole backlog."""
    quiet = {"backlog": 300, "lasts_s": 22.0, "settle_s": 2.0}
    alone = play(shared(fair=True), World(**quiet)).summary()  # type: ignore[arg-type]
    noisy = World(noisy_service_s=1.0, **quiet)  # type: ignore[arg-type]
    beside = play(shared(fair=True), noisy).summary()
    assert beside["done_median_s"] <= 1.2 * alone["done_median_s"]
    assert play(shared(), noisy).summary()["done_median_s"] > 5 * alone["done_median_s"]


def test_a_limit_keeps_long_work_of_a_neighbour_at_bay() -> None:
    """Its messages take fifty times as long; it may hold five of the twenty workers."""
    quiet = {"backlog": 500, "lasts_s": 60.0, "settle_s": 10.0}
    alone = play(shared(fair=True), World(**quiet)).summary()  # type: ignore[arg-type]
    noisy = World(noisy_service_s=50.0, **quiet)  # type: ignore[arg-type]
    limited = play(shared(fair=True, max_in_flight_of={NOISY: 5}), noisy).summary()
    assert limited["done_median_s"] <= 1.2 * alone["done_median_s"]


def test_the_index_of_jain() -> None:
    """One for equal shares, one in n if one has all."""
    assert jain([3, 3, 3]) == pytest.approx(1.0)
    assert jain([1, 0, 0, 0]) == pytest.approx(0.25)
