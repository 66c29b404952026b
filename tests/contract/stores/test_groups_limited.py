"""Contract: groups are handed out at their rate, and stand still where that is asked."""

from __future__ import annotations

from typing import Any

import pytest

from leasehold.domain import admin as o
from leasehold.domain import commands as c
from leasehold.domain.errors import NoGroups
from leasehold.domain.events import EventType
from leasehold.domain.groups import HaltGroup, ResumeGroup
from leasehold.domain.model import Detail, GroupHalt, Outcome
from leasehold.domain.queue_settings import (
    FailurePolicy,
    GroupOrder,
    GroupPoison,
    GroupSettings,
)

from .conftest import ACCOUNT, QUEUE, Asker
from .test_groups_shared import ORDERS, fill, groups_of, serve

HALTING = GroupSettings(order=GroupOrder.FIFO, on_poison=GroupPoison.HALT)


def look(asker: Asker, group: str = "a") -> o.GroupStanding:
    standing = asker.ask(o.LookAtGroup(ACCOUNT, QUEUE, group))
    assert isinstance(standing, o.GroupStanding)
    return standing


# --- rates -------------------------------------------------------------------------------------


def test_who_only_looks_changes_no_rate(asker: Asker) -> None:
    """With the clock set back, the time to wait begins anew for as long as nobody receives."""
    asker.govern(groups=GroupSettings(rate_per_s=1))
    fill(asker, a=2)
    assert serve(asker, 9) == ["a"]
    asker.clock.advance(s=-100)
    asker.ask(o.NextDue(ACCOUNT, QUEUE))
    asker.clock.advance(s=0.5)
    assert look(asker).again_ms == asker.clock.now_ms() + 1_000


@ORDERS
def test_no_faster_than_its_rate(asker: Asker, order: GroupOrder) -> None:
    """After the burst one at a time, as the rate allows; other groups have rates of their own."""
    asker.govern(groups=GroupSettings(order=order, rate_per_s=2, burst=3))
    fill(asker, a=9, b=4, none=5)
    assert sorted(serve(asker, 20)) == ["a"] * 3 + ["b"] * 3 + ["none"] * 5
    for wait_ms, more in ((499, []), (1, ["a", "b"]), (500, ["a"]), (1_000, ["a", "a"])):
        asker.clock.advance(s=wait_ms / 1000)
        assert sorted(serve(asker, 9)) == more
    asker.clock.advance(s=60)
    assert serve(asker, 9) == ["a"] * 2
    fill(asker, a=9)
    assert serve(asker, 9) == ["a"]


def test_rates_of_single_groups(asker: Asker) -> None:
    """In place of the default, and a large receive gets no more than a small one."""
    settings = GroupSettings(rate_per_s_of={"slow": 0.5}, burst_of={"slow": 2}, fair=True)
    asker.govern(groups=settings)
    fill(asker, slow=6, quick=6)
    leases = asker.receive(32)
    assert sorted(groups_of(leases)) == ["quick"] * 6 + ["slow"] * 2
    asker.clock.advance(s=1.9)
    assert asker.receive(32) == ()
    asker.clock.advance(s=0.1)
    assert groups_of(asker.receive(32)) == ["slow"]


def test_a_rate_counts_what_is_received_again(asker: Asker) -> None:
    """A message that comes back is handed out once more."""
    asker.govern(groups=GroupSettings(order=GroupOrder.FIFO, rate_per_s=1, burst=2))
    fill(asker, a=3)
    (lease,) = asker.receive()
    asker.release(lease)
    (lease,) = asker.receive()
    asker.release(lease)
    assert asker.receive() == ()
    asker.clock.advance(s=1)
    assert [lease.message.body for lease in asker.receive()] == [b"a0"]


def test_a_claim_takes_no_more_than_the_rate(asker: Asker) -> None:
    """Its members are handed out too."""
    asker.govern(groups=GroupSettings(rate_per_s=1, burst=2))
    fill(asker, a=9, b=1)
    asker.attach()
    assert asker.claim(limit=32).remaining == 3
    assert asker.receive(9) == ()


def test_who_waits_hears_when_the_rate_allows_more(asker: Asker) -> None:
    """Also after a restart of what is remembered: it stands in the rows."""
    asker.govern(groups=GroupSettings(rate_per_s=4))
    fill(asker, a=3)
    assert len(asker.receive()) == 1
    assert asker.due_ms() == 250
    assert look(asker).again_ms == asker.clock.now_ms() + 250
    asker.clock.advance(s=0.25)
    assert look(asker).again_ms is None
    assert len(asker.receive()) == 1


def test_the_clock_is_set_back(asker: Asker) -> None:
    """The group has used up its burst then, no more and no less."""
    asker.govern(groups=GroupSettings(rate_per_s=1, burst=3))
    fill(asker, a=9)
    asker.clock.advance(s=7_200)
    assert len(asker.receive(9)) == 3
    asker.clock.advance(s=-3_600)
    assert asker.receive(9) == ()
    asker.clock.advance(s=1)
    assert len(asker.receive(9)) == 1


# --- standing still ----------------------------------------------------------------------------


def halt_by_poison(asker: Asker) -> Any:
    """Have the first message of a group poisoned; return it."""
    policy = FailurePolicy(max_failures=1)
    asker.govern(groups=HALTING, failure_policy=policy)
    fill(asker, a=3, b=1)
    first, other = asker.receive(1) + asker.receive(1)
    asker.complete(other)
    asker.release(first, outcome=Outcome.FAILED)
    return first.message


def test_a_group_stands_still_when_one_is_poisoned(asker: Asker) -> None:
    """It gives nothing until it is resumed, and others go on."""
    first = halt_by_poison(asker)
    fill(asker, b=1)
    assert serve(asker, 9) == ["b"]
    halt = look(asker).halt
    assert asker.counts().halted_groups == 1
    assert halt == GroupHalt(asker.clock.now_ms(), first.message_id, "max_failures")
    assert asker.due_ms() != 0
    assert asker.ask(ResumeGroup(ACCOUNT, QUEUE, "a")) is True
    assert asker.ask(ResumeGroup(ACCOUNT, QUEUE, "a")) is False
    assert look(asker).halt is None
    assert asker.counts().halted_groups == 0
    assert serve(asker, 9) == ["a", "a"]


def test_a_group_goes_on_where_nothing_else_is_said(asker: Asker) -> None:
    """Also one that has no order, which has nothing to stand still for."""
    for settings in (
        GroupSettings(order=GroupOrder.FIFO),
        GroupSettings(on_poison=GroupPoison.HALT),
    ):
        asker.govern(groups=settings, failure_policy=FailurePolicy(max_failures=1))
        fill(asker, a=2)
        (first,) = asker.receive()
        asker.release(first, outcome=Outcome.FAILED)
        assert serve(asker, 9) == ["a"]


def test_a_group_stands_still_in_the_middle_of_a_receive(asker: Asker) -> None:
    """What lapsed too often is poisoned when it would be received; nothing behind it comes."""
    asker.govern(groups=HALTING, failure_policy=FailurePolicy(max_deliveries=1))
    fill(asker, a=3)
    assert len(asker.receive(1, lease_s=1)) == 1
    asker.clock.advance(s=2)
    assert asker.receive(9) == ()
    assert look(asker).halt is not None
    assert asker.ask(ResumeGroup(ACCOUNT, QUEUE, "a")) is True
    assert serve(asker, 1, 9) == ["a", "a"]


def test_what_would_halt_its_group_waits_for_those_before_it(asker: Asker) -> None:
    """A receive of several gets what comes before it, and the log tells one after the other."""
    asker.govern(groups=HALTING, failure_policy=FailurePolicy(max_lapses=1))
    fill(asker, a=3, b=1)
    first, *_ = asker.receive(9, lease_s=1)
    asker.release(first)
    asker.clock.advance(s=2)
    got = asker.receive(9)
    assert [lease.message.detail.group_id for lease in got] == ["a"]
    assert look(asker).halt is None
    asker.complete(got[0])
    assert asker.receive(9) == ()
    assert look(asker).halt is not None


def test_a_claim_leaves_what_would_halt_its_group(asker: Asker) -> None:
    """It has what comes before that."""
    asker.govern(groups=HALTING, failure_policy=FailurePolicy(max_lapses=1))
    fill(asker, a=3)
    first, *_ = asker.receive(9, lease_s=1)
    asker.release(first)
    asker.clock.advance(s=2)
    asker.attach()
    asker.claim()
    assert [message.detail.lapses for message in asker.read_claim()] == [0]
    assert look(asker).halt is None


def test_what_is_on_leases_is_worked_on(asker: Asker) -> None:
    """A group that stands still takes answers, and puts."""
    asker.govern(groups=HALTING)
    fill(asker, a=3)
    one, two = asker.receive(2)
    halt = asker.ask(HaltGroup(ACCOUNT, QUEUE, "a", "the customer asked"))
    assert halt == GroupHalt(asker.clock.now_ms(), None, "the customer asked")
    again = asker.ask(HaltGroup(ACCOUNT, QUEUE, "a", "another"))
    assert again == halt
    asker.complete(one)
    asker.release(two)
    fill(asker, a=1)
    assert asker.receive(9) == ()
    asker.ask(ResumeGroup(ACCOUNT, QUEUE, "a"))
    assert len(asker.receive(9)) == 3


def test_halts_need_groups(asker: Asker) -> None:
    """Where groups make no difference, none can stand still."""
    for command in (HaltGroup, ResumeGroup):
        result = asker.ask(command(ACCOUNT, QUEUE, "a"))
        assert isinstance(result, NoGroups)


def test_a_queue_that_is_cleared_forgets_who_stands_still(asker: Asker) -> None:
    """And what it used of its rate it has used."""
    halt_by_poison(asker)
    asker.ask(c.Clear(ACCOUNT, QUEUE))
    fill(asker, a=1)
    assert serve(asker, 9) == ["a"]


def test_events_of_groups_that_stand_still(asker: Asker) -> None:
    """With the message that did it, and when they go on."""
    first = halt_by_poison(asker)
    asker.ask(ResumeGroup(ACCOUNT, QUEUE, "a"))
    asker.ask(HaltGroup(ACCOUNT, QUEUE, "b", "by hand"))
    told = [
        (event.type, event.target, event.reason, event.group_id)
        for event in asker.events()
        if event.type in {EventType.GROUP_HALTED, EventType.GROUP_RESUMED}
    ]
    assert told == [
        (EventType.GROUP_HALTED, first.message_id, "max_failures", "a"),
        (EventType.GROUP_RESUMED, None, None, "a"),
        (EventType.GROUP_HALTED, None, "by hand", "b"),
    ]


@pytest.mark.parametrize("group", ["a", "b"])
def test_details_of_groups_are_kept(asker: Asker, group: str) -> None:
    """Names with what JSON writes otherwise."""
    names = [f"{group}{each}" for each in ('"', "\\", "\\\\", "é", "\x00", "\U0001f600", '","x":"')]
    asker.govern(groups=GroupSettings(fair=True))
    for name in names:
        asker.put(name, detail=Detail(group_id=name))
    assert sorted(groups_of(asker.receive(32))) == sorted(names)
