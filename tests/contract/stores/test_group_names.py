"""Contract: a message keeps the group that it was put with, wherever it goes."""

from __future__ import annotations

from typing import Any

import pytest

from leasehold.domain import commands as c
from leasehold.domain import transactions as st
from leasehold.domain.admin import JobKind
from leasehold.domain.model import Detail, Outcome

from .conftest import ACCOUNT, POISON, QUEUE, Asker

GROUPS = ["acme", "", "g" * 128, "Größe/\N{GRINNING FACE}", "null\0here"]


def in_group(name: str | None, **more: Any) -> Detail:
    return Detail(group_id=name, **more)


@pytest.mark.parametrize("group", GROUPS)
def test_received_and_looked_at(asker: Asker, group: str) -> None:
    """Put, peek, receive, renew, inspect and another delivery show the same group."""
    put = asker.put("a", detail=in_group(group))
    assert [message.detail.group_id for message in asker.peek()] == [group]
    lease = asker.receive_one()
    assert lease.message.detail.group_id == group
    assert asker.renew(lease, 0).message.detail.group_id == group
    assert asker.receive_one().message.detail.group_id == group
    assert asker.find(put).message.detail.group_id == group


def test_those_without_have_none(asker: Asker) -> None:
    """A group is of the message that named it, in a batch with others too."""
    names = ["one", None, "two", None, "one"]
    asker.batch(*(asker.put_command(str(n), detail=in_group(g)) for n, g in enumerate(names)))
    received = asker.receive(10)
    assert [lease.message.detail.group_id for lease in received] == names
    for lease in received:
        asker.complete(lease)
    told = [event.group_id for event in asker.events() if event.message_id]
    assert told == names * 3


def test_the_poison_queue_and_back(asker: Asker) -> None:
    """A message that failed, and was brought back, is of its group still."""
    asker.limit_failures(max_failures=1)
    asker.put("a", detail=in_group("acme"))
    asker.release(asker.receive_one(), Outcome.FAILED)
    (seen,) = asker.inspect(states=["poisoned"]).messages
    assert (seen.queue, seen.message.detail.group_id) == (POISON, "acme")
    asker.run_job(JobKind.REDRIVE)
    assert asker.receive_one().message.detail.group_id == "acme"


def test_staged_and_published(asker: Asker) -> None:
    """The events of what is published tell the groups, when some have one and some have not."""
    puts = [asker.put_command(str(n), detail=in_group(g)) for n, g in enumerate(["a", None, "b"])]
    asker.ask(st.Stage(ACCOUNT, "tx", "", 0, tuple(puts), 3_600))
    after = asker.last_seq()
    asker.publish()
    assert [event.group_id for event in asker.events(after) if event.message_id] == ["a", None, "b"]
    assert [lease.message.detail.group_id for lease in asker.receive(10)] == ["a", None, "b"]


def test_members_of_a_claim(asker: Asker) -> None:
    """Whoever reads a claim is shown the groups; what is given back keeps its own."""
    asker.attach()
    for name in ("acme", "blue", "acme"):
        asker.put(name, detail=in_group(name))
    asker.claim()
    members = asker.read_claim()
    assert [message.detail.group_id for message in members] == ["acme", "blue", "acme"]
    asker.settle(exemptions=(asker.exemption(b"blue"),))
    assert asker.receive_one().message.detail.group_id == "blue"
    settled = [event for event in asker.events() if event.type.name == "SETTLED"]
    assert [event.group_id for event in settled] == ["acme", "acme"]


def test_amending_leaves_the_group(asker: Asker) -> None:
    """An operator's change of the properties is not one of the group."""
    put = asker.put("a", detail=in_group("acme", properties={"k": "v"}))
    asker.amend(put, properties={"k": "w"})
    assert asker.receive_one().message.detail.group_id == "acme"


def test_groups_and_others_side_by_side(asker: Asker) -> None:
    """Who is in a group makes no difference to what is received first, nor to the counts."""
    for n, (group, priority) in enumerate(
        [("a", 8), (None, 8), ("b", 1), (None, 1), ("a", 8), (None, 16), ("b", 16), (None, 8)]
    ):
        asker.put(str(n), detail=in_group(group), priority=priority)
        asker.clock.advance(s=1)
    expected = [b"2", b"3", b"0", b"1", b"4", b"7", b"5", b"6"]
    for limit in (1, 2, 3, 5, 8):
        assert asker.bodies(limit) == expected[:limit]
    assert asker.split() == (8, 0, 0, 0, 0)
    assert asker.received(3) == expected[:3]
    assert asker.received(1) == expected[3:4]
    assert asker.split() == (4, 4, 0, 0, 0)
    assert asker.received() == expected[4:]
    assert asker.receive() == ()


def test_ageing_goes_over_groups_and_others(asker: Asker) -> None:
    """So many seconds of waiting are a step of priority, in a group or not."""
    asker.govern(priority_ageing_s=10)
    asker.put("patient", detail=in_group("a"), priority=9)
    asker.clock.advance(s=11)
    for n in range(3):
        asker.put(f"urgent{n}")
    assert asker.received() == [b"patient", b"urgent0", b"urgent1", b"urgent2"]


def test_a_queue_with_groups_is_cleared(asker: Asker) -> None:
    """All are out of reach at once, and their rows are freed."""
    for n in range(5):
        asker.put(str(n), detail=in_group("a" if n % 2 else None))
    asker.receive_one()
    asker.ask(c.Clear(ACCOUNT, QUEUE))
    assert (asker.received(), asker.count()) == ([], 0)
    assert asker.ask(c.ReapDropped(10)).count == 5
    asker.put("new", detail=in_group("a"))
    assert asker.received() == [b"new"]


def test_members_in_groups_come_behind_the_others(asker: Asker) -> None:
    """The order of a claim is by priority, and of one priority those without a group come first."""
    asker.attach()
    for n, (group, priority) in enumerate([("a", 8), (None, 8), ("b", 1), ("a", 8), (None, 8)]):
        asker.put(str(n), detail=in_group(group), priority=priority)
        asker.clock.advance(s=1)
    asker.claim()
    expected = [b"2", b"1", b"4", b"0", b"3"]
    assert asker.claimed() == expected
    assert [each for part in range(3) for each in asker.claimed(part=part, parts=3)] == expected
    asker.give_claim_back()
    assert sorted(asker.received()) == [b"0", b"1", b"2", b"3", b"4"]
