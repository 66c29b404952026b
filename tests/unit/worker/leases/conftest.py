"""Benches that are closed after each test."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.unit.worker.leases.support import Bench


@pytest.fixture
def make_bench() -> Iterator[Callable[..., Bench]]:
    """Makes managers; none of their threads outlives the test."""
    made: list[Bench] = []

    def make(*settings: object, **options: object) -> Bench:
        made.append(Bench(*settings, **options))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for bench in made:
        bench.close()
        assert not bench.threads


@pytest.fixture
def bench(make_bench: Callable[..., Bench]) -> Bench:
    """A manager with the lengths of the seeds."""
    return make_bench()
