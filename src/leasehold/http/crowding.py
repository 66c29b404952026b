"""Who has to go when unfinished requests take too much memory. Pure decisions.

The slowest go first: a client that sends what it has announced is done before it matters, and one
that sends little over a long time is what fills the memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Generic, NamedTuple, TypeVar

_T = TypeVar("_T")


class Unfinished(NamedTuple, Generic[_T]):
    """A request that has not come whole."""

    holder: _T
    """What is told to go."""
    address: str
    """Where it comes from."""
    held_bytes: int
    """What it holds, 0 or more."""
    waited_s: float
    """Since it began, in seconds; 0 if it began only now."""


def slowest_first(unfinished: Iterable[Unfinished[_T]]) -> list[Unfinished[_T]]:
    """Return requests by their bytes per second; of equal ones the oldest first."""
    return sorted(
        unfinished,
        key=lambda each: (each.held_bytes / max(each.waited_s, 1.0), -each.waited_s),
    )


def strangers_to_go(
    unfinished: Iterable[Unfinished[_T]], limit_bytes: int, address_limit_bytes: int
) -> list[Unfinished[_T]]:
    """Choose among requests without credentials until what is left is within both limits.

    Where a limit is passed room is made for a quarter of it, so that the next few bytes do not make
    everybody look again.

    Args:
        unfinished: Those that hold something.
        limit_bytes: What all may hold together.
        address_limit_bytes: What those from one address may hold together.
    """
    waiting = slowest_first(each for each in unfinished if each.held_bytes)
    by_address: Counter[str] = Counter()
    for each in waiting:
        by_address[each.address] += each.held_bytes
    total = by_address.total()
    wanted = {
        address: address_limit_bytes * 3 // 4
        for address, held in by_address.items()
        if held > address_limit_bytes
    }
    going: list[Unfinished[_T]] = []
    staying: list[Unfinished[_T]] = []
    for each in waiting:
        if each.address in wanted and by_address[each.address] > wanted[each.address]:
            by_address[each.address] -= each.held_bytes
            total -= each.held_bytes
            going.append(each)
        else:
            staying.append(each)
    if total > limit_bytes:
        going += _until_freed(staying, total - limit_bytes * 3 // 4)
    return going


def slow_to_go(unfinished: Iterable[Unfinished[_T]], excess_bytes: int) -> list[Unfinished[_T]]:
    """Choose among requests, with credentials or without, until *excess_bytes* are free.

    One that began only now is left alone: how slow it is cannot be told. Nobody is chosen if all
    together would not make enough room.
    """
    waiting = slowest_first(each for each in unfinished if each.held_bytes and each.waited_s > 0)
    if sum(each.held_bytes for each in waiting) < excess_bytes:
        return []
    return _until_freed(waiting, excess_bytes)


def _until_freed(waiting: Iterable[Unfinished[_T]], wanted_bytes: int) -> list[Unfinished[_T]]:
    going = []
    for each in waiting:
        if wanted_bytes <= 0:
            break
        going.append(each)
        wanted_bytes -= each.held_bytes
    return going
