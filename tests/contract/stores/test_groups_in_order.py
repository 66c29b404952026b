"""Contract: in a queue in order, a group is handed out in the order of its puts."""

from __future__ import annotations

from typing import Any

import pytest

from leasehold.domain import admin as o
from leasehold.domain.admin import JobKind
from leasehold.domain.errors import QueueNotFound
from leasehold.domain.model import Detail, Outcome
from leasehold.domain.queue_settings import FailurePolicy, GroupOrder, GroupSettings

from .conftest import ACCOUNT, QUEUE, Asker


@pytest.fixture
def ordered(asker: Asker) -> Asker:
    """A queue in order."""
    asker.govern(groups=GroupSettings(order=GroupOrder.FIFO))
    return asker


def put(asker: Asker, *bodies: str, **fields: Any) -> list[Any]:
    """Put messages of the group that the first letter names; none for a dash."""
    return [
        asker.put(body, detail=Detail(group_id=None if body[0] == "-" else body[0]), **fields)
        for body in bodies
    ]


def test_a_group_waits_for_its_first(ordered: Asker) -> None:
    """While one message is leased, later ones of its group wait, and other groups do not."""
    put(ordered, "a1", "a2", "b1", "a3", "b2", "-1", "-2")
    first = ordered.receive_one()
    assert first.message.body == b"a1"
    assert ordered.received(1) == [b"b1"]
    assert ordered.received(5) == [b"-1", b"-2"]
    assert ordered.receive() == ()
    ordered.complete(first)
    second = ordered.receive_one()
    assert second.message.body == b"a2"
    assert ordered.receive() == ()
    ordered.complete(second)
    assert ordered.received() == [b"a3"]


def test_a_receive_of_several_takes_runs(ordered: Asker) -> None:
    """One holder may have several of one group, in order; then all must be settled."""
    put(ordered, "a1", "b1", "a2", "b2", "a3", "a4")
    leases = ordered.receive(4)
    assert [lease.message.body for lease in leases] == [b"a1", b"b1", b"a2", b"b2"]
    assert ordered.receive() == ()
    ordered.complete(leases[0])
    assert ordered.receive() == ()
    ordered.complete(leases[2])
    assert ordered.received() == [b"a3", b"a4"]


def test_a_group_that_is_passed_over_gives_each_message_once(ordered: Asker) -> None:
    """A group keeps its turn after looks in vain, and then it is looked at once, not twice."""
    put(ordered, "a1", "b1", "b2", "a2", "a3")
    ordered.complete(ordered.receive_one())  # a1; its next is behind those of b
    ordered.complete(ordered.receive_one())  # b1
    assert ordered.received() == [b"b2", b"a2", b"a3"]


@pytest.mark.parametrize("delay_s", [0, 30])
def test_what_is_given_back_comes_before_later_ones(ordered: Asker, delay_s: int) -> None:
    """A retry holds its place; a delay of it holds up the group."""
    put(ordered, "a1", "a2", "a3")
    first, second = ordered.receive(2)
    ordered.release(second, Outcome.FAILED)
    assert ordered.receive() == ()
    ordered.release(first, Outcome.FAILED, delay_s=delay_s)
    if delay_s:
        assert ordered.receive() == ()
        ordered.clock.advance(s=delay_s)
    assert ordered.received() == [b"a1", b"a2", b"a3"]


def test_a_lapsed_lease(ordered: Asker) -> None:
    """When it runs out the same message comes again, and its old holder can do no harm."""
    put(ordered, "a1", "a2")
    old = ordered.receive_one(lease_s=10)
    ordered.clock.advance(s=10)
    again = ordered.receive_one()
    assert again.message.body == b"a1"
    ordered.complete(old)
    assert ordered.receive() == ()
    ordered.complete(again)
    assert ordered.received() == [b"a2"]


def test_a_delayed_put_takes_its_place_when_it_is_due(ordered: Asker) -> None:
    """It holds up nothing until then, and is not overtaken by what is put later than that."""
    put(ordered, "a1", delay_s=10)
    put(ordered, "a2")
    assert ordered.received(1) == [b"a2"]
    ordered.clock.advance(s=10)
    put(ordered, "a3")
    assert ordered.receive() == ()
    ordered.clock.advance(s=20)  # the lease of a2 runs out
    assert ordered.received() == [b"a2", b"a1", b"a3"]


def test_expiry_frees_the_group(ordered: Asker) -> None:
    """Leased or waiting, what has expired stands in nobody's way."""
    put(ordered, "a1", "b1", time_to_live_s=10)
    put(ordered, "a2", "b2")
    assert ordered.received(1) == [b"a1"]
    ordered.clock.advance(s=10)
    assert ordered.received() == [b"a2", b"b2"]


def test_the_poison_queue_takes_it_out_of_the_way(ordered: Asker) -> None:
    """The group goes on; what is brought back has its old place."""
    in_order = GroupSettings(order=GroupOrder.FIFO)
    ordered.govern(groups=in_order, failure_policy=FailurePolicy(max_failures=1))
    put(ordered, "a1", "a2", "a3")
    ordered.release(ordered.receive_one(), Outcome.FAILED)
    second = ordered.receive_one()
    assert second.message.body == b"a2"
    ordered.run_job(JobKind.REDRIVE)
    assert ordered.receive() == ()
    ordered.complete(second)
    assert ordered.received() == [b"a1", b"a3"]


def test_an_operator_frees_the_group(ordered: Asker) -> None:
    """By ending the lease, or by removing the message."""
    put(ordered, "a1", "a2")
    first = ordered.receive_one()
    ordered.end_lease(first)
    assert ordered.received(1) == [b"a1"]
    ordered.remove(first, force=True)
    assert ordered.received(1) == [b"a2"]


def test_a_session_that_is_lost(ordered: Asker) -> None:
    """Its group begins again where it was."""
    session = ordered.open_session(timeout_s=10)
    put(ordered, "a1", "a2", "a3")
    assert len(ordered.receive_in(session, 2)) == 2
    ordered.clock.advance(s=11)
    ordered.lose()
    assert ordered.received() == [b"a1", b"a2", b"a3"]


def test_published_messages_are_in_order(ordered: Asker) -> None:
    """Those of a transaction are put when it is published."""
    put(ordered, "a1")
    first = ordered.receive_one()
    ordered.stage("a2", "a3", detail=Detail(group_id="a"))
    ordered.publish()
    assert ordered.receive() == ()
    ordered.complete(first)
    assert ordered.received() == [b"a2", b"a3"]


def test_a_claim_takes_whole_runs(ordered: Asker) -> None:
    """While a claim has members of a group, the group gives nothing; then it goes on."""
    ordered.attach()
    put(ordered, "a1", "b1", "a2", "a3")
    ordered.claim(limit=3)
    assert ordered.claimed() == [b"a1", b"b1", b"a2"]
    put(ordered, "b2", "c1")
    assert ordered.received() == [b"c1"]
    ordered.settle()
    assert ordered.received() == [b"a3", b"b2"]


def test_a_claim_that_lapses_or_is_given_back(ordered: Asker) -> None:
    """Its members come again, in order, before later ones."""
    ordered.attach()
    put(ordered, "a1", "a2", "a3")
    ordered.claim(limit=2, lease_s=60)
    ordered.clock.advance(s=60)
    assert ordered.received() == [b"a1", b"a2", b"a3"]


def test_order_is_chosen_for_messages_that_are_there(asker: Asker) -> None:
    """It counts from the moment it is set, and not when it is taken back."""
    put(asker, "a1", "a2", "a3", "a4")
    leases = asker.receive(2)
    asker.govern(groups=GroupSettings(order=GroupOrder.FIFO))
    assert asker.receive() == ()
    asker.complete(leases[0])
    assert asker.receive() == ()
    asker.complete(leases[1])
    assert asker.received(1) == [b"a3"]
    asker.govern()
    assert asker.received() == [b"a4"]


def test_what_holds_a_group_up(ordered: Asker) -> None:
    """Leased, put off, and in claims: those are shown, the first to end first."""
    ordered.attach()
    put(ordered, "a1", "a2", "a3", "b1")
    assert ordered.ask(o.LookAtGroup(ACCOUNT, QUEUE, "a")) == o.GroupStanding(0, ())
    first, second = ordered.receive(2, holder="w1", lease_s=60)
    ordered.release(second, Outcome.FAILED, delay_s=10)
    standing = ordered.ask(o.LookAtGroup(ACCOUNT, QUEUE, "a"))
    ids = [second.message.message_id, first.message.message_id]
    assert [seen.message.message_id for seen in standing.held] == ids
    assert [str(seen.state) for seen in standing.held] == ["deferred", "leased"]
    assert (standing.in_flight, standing.held[1].message.holder) == (1, "w1")
    assert len(ordered.ask(o.LookAtGroup(ACCOUNT, QUEUE, "a", 1)).held) == 1
    ordered.claim()
    in_claim = ordered.ask(o.LookAtGroup(ACCOUNT, QUEUE, "b"))
    assert (in_claim.in_flight, [str(seen.state) for seen in in_claim.held]) == (1, ["leased"])
    assert isinstance(ordered.ask(o.LookAtGroup(ACCOUNT, "none", "a")), QueueNotFound)


def test_a_claim_that_was_extended_lapses(ordered: Asker) -> None:
    """Its members come again when it really ends, those without a group too."""
    ordered.attach()
    put(ordered, "a1", "-1", "a2")
    ordered.claim(limit=2, lease_s=10)
    ordered.extend(lease_s=30)
    for _ in range(2):
        ordered.clock.advance(s=10)
        assert ordered.receive() == ()
    ordered.clock.advance(s=10)
    assert ordered.received() == [b"a1", b"a2", b"-1"]
