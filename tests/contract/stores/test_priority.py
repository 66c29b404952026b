"""Contract: urgent messages first, and what keeps the others from waiting for ever."""

from __future__ import annotations

import pytest

from leasehold.domain.model import DEFAULT_PRIORITY

from .conftest import POISON, Asker


def test_the_most_urgent_come_first(asker: Asker) -> None:
    """By priority, 1 before 16, and within one priority by next-visible time."""
    for priority in (16, 8, 1, 8, 1):
        asker.put(f"p{priority}", priority=priority)
        asker.clock.advance(s=1)
    expected = [b"p1", b"p1", b"p8", b"p8", b"p16"]
    assert asker.bodies() == expected
    assert asker.bodies(limit=3) == expected[:3]
    assert asker.received(3) == expected[:3]
    assert asker.received() == expected[3:]


def test_a_message_has_the_middle_priority_unless_told_other(asker: Asker) -> None:
    """The priority is with the message wherever it is shown."""
    asker.put("plain")
    asker.put("urgent", priority=2)
    assert [message.priority for message in asker.peek()] == [2, DEFAULT_PRIORITY]
    leases = asker.receive(2)
    assert [lease.message.priority for lease in leases] == [2, DEFAULT_PRIORITY]
    assert asker.renew(leases[0], 30).message.priority == 2


def test_within_a_priority_the_order_is_by_next_visible_time(asker: Asker) -> None:
    """A message that was leased stands where it became visible again."""
    for name in ("a", "b", "c"):
        asker.put(name, priority=3)
    asker.receive_one(lease_s=5)
    asker.clock.advance(s=10)
    asker.put("d", priority=3)
    asker.put("e", priority=4)
    assert asker.bodies() == [b"b", b"c", b"a", b"d", b"e"]


def test_an_urgent_message_that_is_leased_leaves_the_way_free(asker: Asker) -> None:
    """Only what can be received now has a place in the order."""
    asker.put("urgent", priority=1)
    asker.put("delayed", priority=1, delay_s=60)
    asker.put("plain")
    assert asker.received(1) == [b"urgent"]
    assert asker.received(1) == [b"plain"]
    asker.clock.advance(s=30)
    asker.put("later")
    assert asker.received(1) == [b"urgent"]


def test_strict_priority_never_yields(asker: Asker) -> None:
    """Without ageing, a stream of urgent messages holds up all others, as it was asked for."""
    asker.put("patient", priority=9)
    for _ in range(5):
        asker.clock.advance(s=86_400)
        asker.put("urgent", priority=8)
        assert asker.received(1) == [b"urgent"]


def test_ageing_bounds_the_wait(asker: Asker) -> None:
    """So many seconds of waiting count as one step, to the millisecond."""
    asker.govern(priority_ageing_s=10)
    asker.put("patient", priority=5)
    asker.clock.advance(ms=29_999)
    asker.put("nearly", priority=2)
    assert asker.bodies() == [b"nearly", b"patient"]
    asker.clock.advance(ms=1)
    # At the same rank the older one goes first.
    asker.put("urgent", priority=2)
    assert asker.bodies() == [b"nearly", b"patient", b"urgent"]
    assert asker.received(1) == [b"nearly"]
    assert asker.received(1) == [b"patient"]


def test_ageing_looks_at_all_priorities_at_once(asker: Asker) -> None:
    """A receive of several takes the right ones from many priorities, in the right order."""
    asker.govern(priority_ageing_s=1)
    for index in range(16):
        # Message i waits 2 s for each step of priority that it has less than the one before.
        asker.put(f"{index:02}", priority=16 - index)
        asker.clock.advance(ms=900)
    # Rank: time of put + priority, so the last, most urgent one wins by 100 ms a step.
    expected = [f"{index:02}".encode() for index in reversed(range(16))]
    assert asker.bodies() == expected
    assert asker.received(5) == expected[:5]
    assert asker.received(5) == expected[5:10]


def test_ageing_counts_from_when_it_became_visible(asker: Asker) -> None:
    """Neither a delay nor a lease is waiting."""
    asker.govern(priority_ageing_s=10)
    asker.put("delayed", priority=3, delay_s=60)
    asker.clock.advance(s=60)
    asker.put("now", priority=2)
    assert asker.bodies() == [b"now", b"delayed"]


def test_ageing_can_be_switched_on_and_off(asker: Asker) -> None:
    """The order is by the settings of the moment."""
    asker.put("old", priority=16)
    asker.clock.advance(s=100)
    asker.put("urgent", priority=1)
    assert asker.bodies() == [b"urgent", b"old"]
    asker.govern(priority_ageing_s=5)
    assert asker.bodies() == [b"old", b"urgent"]
    asker.govern()
    assert asker.bodies() == [b"urgent", b"old"]


@pytest.mark.parametrize(("old", "new"), [(8, 1), (8, 16), (3, 8), (3, 4)])
def test_a_priority_can_be_amended(asker: Asker, old: int, new: int) -> None:
    """The message takes its new place at once, and counts once."""
    put = asker.put("changed", priority=old)
    asker.put("before", priority=new)
    between = asker.put("between", priority=(old + new) // 2) if abs(old - new) > 1 else None
    amended = asker.amend(put, priority=new)
    assert amended.message.priority == new
    names = [b"before", b"changed"] if between is None else [b"before", b"changed", b"between"]
    if new > old:
        names = names[:2] if between is None else [b"between", b"before", b"changed"]
        # At the same priority the one that has been visible for as long and is older goes first.
        names[-2:] = [b"changed", b"before"]
    else:
        names[:2] = [b"changed", b"before"]
    assert asker.bodies() == names
    assert asker.count() == len(names)
    assert sorted(asker.received()) == sorted(names)


def test_a_priority_survives_poison_and_return(asker: Asker) -> None:
    """An urgent message is urgent in the poison queue, too."""
    asker.bury("urgent", priority=1)
    asker.bury("plain")
    assert [message.priority for message in asker.peek(queue=POISON)] == [1, 8]


def test_priorities_do_not_change_the_counts(asker: Asker) -> None:
    """Messages count in their queue whatever their priority."""
    for priority in range(1, 17):
        asker.put(priority=priority, time_to_live_s=1000)
        asker.put(priority=priority, delay_s=60)
    asker.receive(10)
    assert asker.split() == (6, 10, 16, 0, 0)
    asker.clock.advance(s=60)
    assert asker.split() == (32, 0, 0, 0, 0)
