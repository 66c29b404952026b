"""Into which parts a read is cut."""

from __future__ import annotations

import pytest

from leasehold.spark.schemas import first_where, groups, part_count, ranges


@pytest.mark.parametrize(
    ("wanted", "limit", "size", "expected"),
    [
        (None, None, 10, 1),
        (None, None, 0, 1),
        (7, None, 1_000, 7),
        (7, None, 3, 3),
        (7, 5, 1_000, 1),
    ],
)
def test_part_count(wanted: int | None, limit: int | None, size: int, expected: int) -> None:
    """Little is read in one part, and so is what has a limit; else the user's word counts."""
    assert part_count(wanted, limit, size, 100) == expected


def test_much_is_read_in_several_parts() -> None:
    """Without a word of the user there are 2 to 16 parts of what is worth it."""
    assert 2 <= part_count(None, None, 1_000_000, 100) <= 16


@pytest.mark.parametrize(("first", "end", "count"), [(5, 6, 1), (1, 11, 3), (7, 1_007, 16)])
def test_ranges_cover_all_once(first: int, end: int, count: int) -> None:
    """Ranges follow each other from the first to the end."""
    found = list(ranges(first, end, count))
    assert len(found) == count
    assert [number for low, high in found for number in range(low, high)] == list(range(first, end))


def test_groups_are_of_like_size_and_in_order() -> None:
    """Files are grouped by their size; none is lost and no group is empty."""
    items = [(number, 10) for number in range(9)] + [(9, 90)]
    found = groups(items, 2)
    assert [item for group in found for item in group] == list(range(10))
    assert [len(group) for group in found] == [9, 1]
    assert groups([(1, 0)], 5) == [[1]]


@pytest.mark.parametrize("answer", range(3, 12))
def test_first_where(answer: int) -> None:
    """The first number that a condition holds for is found; the last one where it never does."""
    asked = []

    def holds(number: int) -> bool:
        asked.append(number)
        return number >= answer

    assert first_where(holds, 3, 10) == min(answer, 10)
    assert len(asked) <= 4
