"""How a batch read is cut into parts that are read side by side."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Final, TypeVar

_T = TypeVar("_T")
_FEWEST: Final = 2
_MOST: Final = 16


def part_count(wanted: int | None, limit: int | None, size: int, worthwhile: int) -> int:
    """Return in how many parts to read.

    Args:
        wanted: What the user says, if anything.
        limit: With one, a single part: only whoever reads it all can stop in time.
        size: How much there is, in any unit.
        worthwhile: So much should be in a part at least, unless the user says how many.
    """
    if limit is not None or size <= 1:
        return 1
    if wanted is not None:
        return min(wanted, size)
    processors = min(max(os.cpu_count() or _FEWEST, _FEWEST), _MOST)
    return max(1, min(processors, size // worthwhile))


def ranges(first: int, end: int, count: int) -> Iterator[tuple[int, int]]:
    """Yield *count* ranges of numbers of equal length, the end not included."""
    length = end - first
    yield from pairwise(first + length * number // count for number in range(count + 1))


def groups(items: Sequence[tuple[_T, int]], count: int) -> list[list[_T]]:
    """Return items with sizes in groups of about the same size, in their order; none is empty."""
    whole = sum(size for _, size in items) or 1
    found: list[list[_T]] = [[] for _ in range(count)]
    before = 0
    for item, size in items:
        found[min(before * count // whole, count - 1)].append(item)
        before += size
    return [group for group in found if group]


def first_where(holds: Callable[[int], bool], low: int, high: int) -> int:
    """Return the first number of ``low..high`` for which *holds*, or *high*.

    Args:
        holds: False up to some number and true from there on.
        low: The first number.
        high: The last one; it is not asked for.
    """
    while low < high:
        middle = (low + high) // 2
        if holds(middle):
            high = middle
        else:
            low = middle + 1
    return low
