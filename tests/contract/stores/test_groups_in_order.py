"""Contract: in a queue in order, a group is handed out in the order of its puts."""

from __future__ import annotations

from typing import Any

import pytest

from leasehold.domain import admin as o
from leasehold.domain.admin import JobKind
from leasehold.domain.claims import Exemption, GiveBackClaim
from leasehold.domain.errors import QueueNotFound
from leasehold.domain.model import Detail, Outcome
from leasehold.domain.queue_settings import FailurePolicy, GroupOrder, GroupSettings

from .conftest import ACCOUNT, QUEUE, STREAM, Asker


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


# --- the order of a claim ----------------------------------------------------------------------


def of_group(bodies: list[bytes], group: bytes) -> list[bytes]:
    return [body for body in bodies if body.startswith(group)]


def put_mixed(ordered: Asker) -> list[bytes]:
    """Put messages of groups and none, of many priorities; return the order of their claim."""
    bodies = [f"{group}{n}" for n in range(6) for group in "ab-"]
    for n, body in enumerate(bodies):
        put(ordered, body, priority=16 - 5 * n % 16)
        ordered.clock.advance(ms=1)
    alone = [(16 - 5 * n % 16, body) for n, body in enumerate(bodies) if body[0] == "-"]
    grouped = [body for body in bodies if body[0] != "-"]
    return [body.encode() for body in [*(body for _, body in sorted(alone)), *grouped]]


def test_a_claim_is_in_order_whatever_the_priorities(ordered: Asker) -> None:
    """The members of groups are read by their places, those of none before them by priority."""
    wanted = put_mixed(ordered)
    ordered.attach()
    ordered.claim()
    assert ordered.claimed() == wanted
    for parts in (1, 2, 3, 7, 20):
        for limit in (1, 2, 100):
            read = [ordered.claimed(1, part, parts, limit=limit) for part in range(parts)]
            assert [body for part in read for body in part] == wanted


def test_a_claim_has_what_was_given_back_before_later_ones(ordered: Asker) -> None:
    """A message that came again became visible last, and is still the first of its group."""
    put(ordered, "a1", "b1")
    leases = ordered.receive(2)
    put(ordered, "a2", "b2", "-1")
    for lease in leases:
        ordered.release(lease, delay_s=5)
    ordered.clock.advance(s=6)
    put(ordered, "a3")
    ordered.attach()
    ordered.claim()
    assert ordered.claimed() == [b"-1", b"a1", b"b1", b"a2", b"b2", b"a3"]
    ordered.extend()
    assert ordered.claimed() == [b"-1", b"a1", b"b1", b"a2", b"b2", b"a3"]
    assert [m.visible_since_ms for m in ordered.read_claim()[:2]] != [0, 0]


def test_a_claim_is_in_order_after_one_that_was_given_back_or_lapsed(ordered: Asker) -> None:
    """Its members were visible last of all then."""
    put(ordered, "a1", priority=9)
    put(ordered, "a2", priority=3)
    ordered.attach()
    ordered.claim()
    put(ordered, "a3", priority=1)
    ordered.clock.advance(s=5)
    token = ordered.stream().token
    ordered.ask(GiveBackClaim(ACCOUNT, QUEUE, STREAM, token, 1))
    ordered.claim()
    assert ordered.claimed() == [b"a1", b"a2", b"a3"]
    put(ordered, "a4", priority=1)
    ordered.clock.advance(s=61)
    ordered.attach("other")
    ordered.claim(stream="other")
    assert ordered.claimed(stream="other") == [b"a1", b"a2", b"a3", b"a4"]


def test_a_redriven_message_is_first_in_a_claim(ordered: Asker) -> None:
    """It was never received under its new name, and has its old place."""
    in_order = GroupSettings(order=GroupOrder.FIFO)
    ordered.govern(groups=in_order, failure_policy=FailurePolicy(max_failures=1))
    put(ordered, "a1", priority=9)
    ordered.release(ordered.receive_one(), outcome=Outcome.FAILED)
    ordered.clock.advance(s=5)
    put(ordered, "a2", "a3")
    ordered.run_job(JobKind.REDRIVE)
    ordered.attach()
    ordered.claim()
    assert ordered.claimed() == [b"a1", b"a2", b"a3"]


def test_a_redriven_message_is_first_for_receives(ordered: Asker) -> None:
    """However many of its group wait that were put later."""
    ordered.govern(groups=GroupSettings(order=GroupOrder.FIFO))
    put(ordered, "a1")
    ordered.release(ordered.receive_one(), outcome=Outcome.BURIED)
    ordered.clock.advance(s=5)
    put(ordered, *(f"a{number}" for number in range(2, 6)))
    ordered.clock.advance(s=5)
    ordered.run_job(JobKind.REDRIVE)
    assert ordered.received(1) == [b"a1"]


def test_a_lapsed_claim_in_order_gives_in_order(ordered: Asker) -> None:
    """Receives get what a claim had in the order of the group."""
    wanted = put_mixed(ordered)
    ordered.attach()
    ordered.claim()
    ordered.clock.advance(s=61)
    got = [body for _ in range(20) for body in ordered.received(1)]
    assert of_group(got, b"a") == [b"a0"]
    assert of_group(got, b"b") == [b"b0"]
    assert sorted(of_group(got, b"-")) == sorted(of_group(wanted, b"-"))


def test_the_order_of_a_claim_stays_when_that_of_the_queue_is_changed(asker: Asker) -> None:
    """A claim is read in the order in which it was when it was opened."""
    asker.govern(groups=GroupSettings(order=GroupOrder.FIFO))
    put(asker, "a1", priority=9)
    put(asker, "a2", priority=1)
    asker.attach()
    asker.claim()
    asker.govern(groups=GroupSettings())
    put(asker, "a3", priority=9)
    put(asker, "a4", priority=1)
    asker.claim(2)
    asker.govern(groups=GroupSettings(order=GroupOrder.FIFO))
    assert asker.claimed() == [b"a1", b"a2"]
    assert asker.claimed(2) == [b"a4", b"a3"]
    assert asker.settle(2).completed == 4


def test_members_in_order_are_settled_and_set_aside(ordered: Asker) -> None:
    """What is exempted is back in its group, in front."""
    put(ordered, "a1", priority=9)
    put(ordered, "a2", priority=1)
    ordered.attach()
    ordered.claim()
    first = ordered.read_claim()[0]
    assert ordered.settle(1, exemptions=(Exemption(1, first.message_id, Outcome.RETURNED),))
    put(ordered, "a3", priority=1)
    assert ordered.received() == [b"a1", b"a3"]


@pytest.mark.parametrize("limit", [1, 3, 100])
def test_each_part_has_whole_groups(ordered: Asker, limit: int) -> None:
    """All of a group in one part, in order; and each member in one."""
    wanted = put_mixed(ordered)
    ordered.attach()
    ordered.claim()
    for parts in (1, 2, 3, 7):
        read = [
            ordered.claimed(1, part, parts, limit=limit, whole_groups=True) for part in range(parts)
        ]
        assert sorted(body for part in read for body in part) == sorted(wanted)
        for group in (b"a", b"b"):
            (own,) = [found for part in read if (found := of_group(part, group))]
            assert own == of_group(wanted, group)
