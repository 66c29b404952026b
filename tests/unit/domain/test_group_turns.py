"""Which group is next: what is remembered of groups that are not ready."""

from __future__ import annotations

from weakref import WeakSet

import pytest

from leasehold.domain.groups import NOW, Turns
from leasehold.domain.queue_settings import GroupSettings


@pytest.mark.parametrize("fair", [False, True])
def test_a_group_is_looked_at_however_often_its_moment_moved(fair: bool) -> None:
    """Also by the call at which moments that are out of date are forgotten."""
    for moves in (1, 1_001, 1_002, 1_003, 1_004, 2_500):
        turns = Turns(GroupSettings(fair=fair))
        for move in range(moves):
            turns.call("a", 10_000 - move)
        turns.call_due(10_000)
        found = turns.next()
        assert found is not None, moves
        assert found[0] == "a"


class Name(str):
    """A name that counts how often it was looked up, with all others."""

    __slots__ = ("__weakref__",)
    looked_up = 0

    def __hash__(self) -> int:
        Name.looked_up += 1
        return super().__hash__()


def serve(turns: Turns) -> str | None:
    """Give one message of the group whose turn it is; return its name."""
    turns.call_due(1)
    found = turns.next()
    assert found is not None
    turns.served(*found)
    return found[0]


@pytest.mark.parametrize("undone", [1, 2, 3])
def test_groups_of_an_undone_batch_keep_their_places(undone: int) -> None:
    """Of groups with equal turns the one that came first is still the first."""
    turns = Turns(GroupSettings(fair=True))
    for group in ("c", "a", "b"):
        turns.call(group, NOW)
    turns.begin()
    for _ in range(undone):
        serve(turns)
    turns.undo()
    assert [serve(turns) for _ in range(3)] == ["c", "a", "b"]


def test_groups_of_one_message_are_forgotten_at_little_cost() -> None:
    """Where each message is a group of its own, an order for one, and some always wait."""
    turns = Turns(GroupSettings(fair=True))
    known: WeakSet[Name] = WeakSet()
    for number in range(20_000):
        name = Name(number)
        known.add(name)
        turns.call(name, NOW)
        if number > 10:
            serve(turns)
    Name.looked_up = 0
    for number in range(20_000, 30_000):
        turns.call(Name(number), NOW)
        serve(turns)
    assert Name.looked_up < 10_000 * 30
    assert len(known) < 5_000


@pytest.mark.parametrize("weight", [1, 4])
def test_groups_that_come_anew_hold_nobody_up_for_ever(weight: int) -> None:
    """Not even if one comes for each message that is given."""
    turns = Turns(GroupSettings(fair=True, weights={"heavy": weight}))
    waiting = [f"group {number}" for number in range(10)]
    for name in waiting:
        turns.call(name, NOW)
    served = [serve(turns) for _ in waiting]
    assert served == waiting
    for name in waiting:  # each has a second one
        turns.call(name, NOW)
    later = []
    for number in range(3_000):
        turns.call(f"new {number}", NOW)
        later.append(serve(turns))
    assert set(waiting) <= set(later)
    assert later.index("new 0") < later.index("group 0")
