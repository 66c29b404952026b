"""Fair turns by weight."""

from __future__ import annotations

from collections import Counter

import pytest

from leasehold.worker.buffer import Turns, shares_of


def serve(turns: Turns, waiting: list[int], count: int) -> Counter[int]:
    served: Counter[int] = Counter()
    for _ in range(count):
        first = turns.first(waiting)
        assert first is not None
        turns.took(first)
        served[first] += 1
    return served


def test_turns_go_by_weight() -> None:
    """Those that always wait are served in proportion to their weights."""
    assert serve(Turns([5, 3, 2]), [0, 1, 2], 1000) == {0: 500, 1: 300, 2: 200}


def test_no_one_starves() -> None:
    """The least weight has its turn among each full round."""
    turns = Turns([99, 1])
    for _ in range(5):
        assert serve(turns, [0, 1], 100)[1] == 1


def test_absence_gives_no_credit() -> None:
    """Who comes after a while is served at once, and then shares as if it had been there."""
    turns = Turns([1, 1])
    serve(turns, [0], 1000)
    assert turns.first([0, 1]) == 1
    assert serve(turns, [0, 1], 100) == {0: 50, 1: 50}


def test_what_is_taken_at_once_counts() -> None:
    """A taker of many has to wait for as many of the others."""
    turns = Turns([1, 1])
    turns.took(0, 10)
    assert serve(turns, [0, 1], 10) == {1: 10}


def test_nobody_waits() -> None:
    """Without anybody who waits there is nobody to serve."""
    assert Turns([1]).first([]) is None


def test_weights_are_above_zero() -> None:
    """A weight of 0 would never be served, and is refused."""
    with pytest.raises(ValueError, match="above 0"):
        Turns([1, 0])


@pytest.mark.parametrize(
    ("total", "weights", "shares"),
    [
        (10, [1, 1], [5, 5]),
        (12, [3, 1], [8, 3]),
        (2, [100, 1], [1, 1]),
        (1, [1, 1], [0, 0]),
        (7, [2], [7]),
    ],
)
def test_shares(total: int, weights: list[float], shares: list[int]) -> None:
    """Shares go by weight, everybody has at least one, and together they are not too many."""
    assert shares_of(total, weights) == shares
    assert sum(shares) <= total
