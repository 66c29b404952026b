"""Which groups are noisy."""

from __future__ import annotations

import pytest

from leasehold.domain.groups import noisy, noisy_among
from leasehold.domain.model import GroupFigures


@pytest.mark.parametrize(
    ("own", "all_in_flight", "groups", "is_noisy"),
    [
        (30, 299, 20, True),
        (30, 300, 20, False),
        (29, 40, 20, False),
        (100, 100, 2, True),
        (100, 100, 1, False),
        (50, 100, 2, False),
        (51, 100, 2, True),
        (100, 400, 4, False),
        (101, 400, 4, True),
        (0, 0, 0, False),
    ],
)
def test_share_of_what_is_in_flight(
    own: int, all_in_flight: int, groups: int, is_noisy: bool
) -> None:
    """More than a tenth of all, at least 30, and more than an equal part."""
    assert noisy(own, all_in_flight, groups) is is_noisy


def test_share_of_the_time_worked() -> None:
    """A group with few but slow messages is noisy as well, unless it is alone."""
    assert noisy(1, 100, 20, 0.11)
    assert not noisy(1, 100, 20, 0.1)
    assert not noisy(1, 1, 1, 1.0)


def test_groups_with_nothing_but_delayed_messages_do_not_count() -> None:
    """They want nothing of the consumers."""
    busy, other = GroupFigures(in_flight=40), GroupFigures(delayed=5)
    assert noisy_among({"a": busy, "b": other}) == set()
    assert noisy_among({"a": busy, "b": GroupFigures(waiting=1)}) == {"a"}
