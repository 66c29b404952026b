"""Contract: a session holds a group alone, with what is saved for it, until either ends."""

from __future__ import annotations

from typing import Any

import pytest

from leasehold.domain import admin as o
from leasehold.domain import commands as c
from leasehold.domain import sessions as s
from leasehold.domain.command import AnyCommand
from leasehold.domain.errors import (
    GroupNotHeld,
    NoGroups,
    QueueNotFound,
    SessionNotFound,
    SessionOver,
)
from leasehold.domain.events import EventType
from leasehold.domain.groups import HaltGroup, HoldGroup, ReleaseGroup, SaveGroupState
from leasehold.domain.model import GroupHold, Outcome
from leasehold.domain.queue_settings import GroupOrder, GroupSettings

from .conftest import ACCOUNT, QUEUE, Asker
from .test_groups_shared import ORDERS, fill, groups_of, serve


@pytest.fixture
def ordered(asker: Asker) -> Asker:
    """A queue in order."""
    asker.govern(groups=GroupSettings(order=GroupOrder.FIFO))
    return asker


def hold(asker: Asker, session: s.Session, group: str | None = None) -> Any:
    return asker.ask(HoldGroup(ACCOUNT, QUEUE, session.session_id, group))


def held(asker: Asker, session: s.Session, group: str | None = None) -> GroupHold:
    found = hold(asker, session, group)
    assert isinstance(found, GroupHold)
    return found


def receive(asker: Asker, session: s.Session, group: str, limit: int = 32) -> Any:
    name = session.session_id
    return asker.ask(c.Receive(ACCOUNT, QUEUE, limit, 3_600, None, name, group))


def bodies(asker: Asker, session: s.Session, group: str, limit: int = 32) -> list[bytes]:
    return [lease.message.body for lease in receive(asker, session, group, limit)]


def save(asker: Asker, of: GroupHold, state: bytes, **more: Any) -> Any:
    fields: dict[str, Any] = {"session": of.session, "fence": of.fence} | more
    return asker.ask(SaveGroupState(ACCOUNT, QUEUE, of.group_id, state=state, **fields))


def release(asker: Asker, group: str, session: s.Session | None = None) -> Any:
    name = None if session is None else session.session_id
    return asker.ask(ReleaseGroup(ACCOUNT, QUEUE, group, name))


@ORDERS
def test_only_its_holder_gets_messages_of_a_group(asker: Asker, order: GroupOrder) -> None:
    """Others get those of other groups, by receives and claims, until it is released."""
    asker.govern(groups=GroupSettings(order=order))
    worker, other = asker.open_session("w1"), asker.open_session("w2")
    assert hold(asker, worker, "a") == GroupHold("a", worker.session_id, 1, asker.clock.now_ms())
    fill(asker, a=4, b=2, none=1)
    assert sorted(groups_of(asker.receive(32))) == ["b", "b", "none"]
    asker.attach()
    assert asker.open().claim is None
    assert bodies(asker, worker, "a", 2) == [b"a0", b"a1"]
    assert groups_of(asker.receive_in(worker)) == []
    assert isinstance(receive(asker, other, "a"), GroupNotHeld)
    assert hold(asker, other, "a") is None
    assert release(asker, "a", worker) is True
    assert isinstance(receive(asker, worker, "a"), GroupNotHeld)
    assert asker.received() == ([] if order is GroupOrder.FIFO else [b"a2", b"a3"])


def test_a_holder_gets_its_group_in_order(ordered: Asker) -> None:
    """One run after the other, as everyone does; a retry holds its place."""
    worker = ordered.open_session()
    fill(ordered, a=5)
    held(ordered, worker, "a")
    first, second = receive(ordered, worker, "a", 2)
    assert receive(ordered, worker, "a") == ()
    ordered.complete(first)
    ordered.release(second, Outcome.FAILED)
    third = receive(ordered, worker, "a", 1)
    assert [lease.message.body for lease in third] == [b"a1"]
    ordered.complete(third[0])
    assert bodies(ordered, worker, "a") == [b"a2", b"a3", b"a4"]


@ORDERS
@pytest.mark.parametrize("fair", [False, True])
def test_the_next_group(asker: Asker, order: GroupOrder, fair: bool) -> None:
    """Whichever has its turn and something to give; messages without a group are of none."""
    asker.govern(groups=GroupSettings(order=order, fair=fair))
    sessions = [asker.open_session(f"w{n}") for n in range(4)]
    assert hold(asker, sessions[0]) is None
    fill(asker, none=2, a=2, b=1, c=1)
    names = [held(asker, session).group_id for session in sessions[:3]]
    assert sorted(names) == ["a", "b", "c"]
    assert hold(asker, sessions[3]) is None
    assert sorted(groups_of(asker.receive(32))) == ["none", "none"]
    assert release(asker, "b", sessions[names.index("b")])
    assert held(asker, sessions[3]).group_id == "b"


def test_fair_holds_go_round(asker: Asker) -> None:
    """Who was held has had a turn, however much is left of it."""
    asker.govern(groups=GroupSettings(order=GroupOrder.FIFO, fair=True))
    worker = asker.open_session()
    fill(asker, a=100, b=2)
    order = []
    for _ in range(4):
        assert asker.counts().held_groups == 0
        group = held(asker, worker).group_id
        assert asker.counts().held_groups == 1
        order.append(group)
        for lease in receive(asker, worker, group, 1):
            asker.complete(lease)
        release(asker, group, worker)
    assert sorted(order[:2]) == ["a", "b"]
    assert sorted(order[2:]) == ["a", "b"]


def test_a_hold_is_found_again(ordered: Asker) -> None:
    """The same session has the same hold; the next one has a higher fence, whatever the group."""
    worker, other = ordered.open_session("w1"), ordered.open_session("w2")
    first = held(ordered, worker, "a")
    ordered.clock.advance(s=1)
    assert hold(ordered, worker, "a") == first
    release(ordered, "a", worker)
    second = held(ordered, other, "a")
    assert second.fence > first.fence
    assert held(ordered, other, "b").fence > second.fence


def test_state_outlives_the_hold(ordered: Asker) -> None:
    """It is whoever holds the group next that reads it; an earlier fence changes nothing."""
    worker, other = ordered.open_session("w1"), ordered.open_session("w2")
    first = held(ordered, worker, "a")
    assert first.state == b""
    assert save(ordered, first, b"\0seven") is c.DONE
    assert held(ordered, worker, "a").state == b"\0seven"
    release(ordered, "a", worker)
    assert isinstance(save(ordered, first, b"late"), GroupNotHeld)
    second = held(ordered, other, "a")
    assert second.state == b"\0seven"
    assert isinstance(save(ordered, first, b"late"), GroupNotHeld)
    assert isinstance(save(ordered, second, b"late", fence=first.fence), GroupNotHeld)
    assert isinstance(save(ordered, second, b"late", session="x"), GroupNotHeld)
    assert save(ordered, second, b"x" * 65_536) is c.DONE
    assert held(ordered, other, "a").state == b"x" * 65_536
    assert held(ordered, other, "b").state == b""
    assert save(ordered, second, b"") is c.DONE
    release(ordered, "a", other)
    assert held(ordered, worker, "a").state == b""


@pytest.mark.parametrize("how", ["lost", "ended"])
def test_a_hold_ends_with_its_session(ordered: Asker, how: str) -> None:
    """And so do its leases: another one takes over, in order."""
    worker, other = ordered.open_session("w1", timeout_s=5), ordered.open_session("w2")
    fill(ordered, a=3, b=1)
    save(ordered, held(ordered, worker, "a"), b"half")
    held(ordered, worker, "c")
    assert bodies(ordered, worker, "a", 2) == [b"a0", b"a1"]
    assert hold(ordered, other, "a") is None
    if how == "lost":
        ordered.clock.advance(s=5.001)
        assert hold(ordered, other, "a") is None, "it is not known yet"
        ordered.lose()
    else:
        ordered.ask(s.EndSession(ACCOUNT, worker.session_id))
    assert isinstance(receive(ordered, worker, "a"), SessionOver)
    assert isinstance(hold(ordered, worker, "a"), SessionOver)
    taken = held(ordered, other, "a")
    assert taken.state == b"half"
    assert bodies(ordered, other, "a") == [b"a0", b"a1", b"a2"]
    assert held(ordered, other, "c").state == b""


def test_the_holder_hears_of_new_messages(ordered: Asker) -> None:
    """Also after it was told that there are none."""
    worker = ordered.open_session()
    held(ordered, worker, "a")
    assert receive(ordered, worker, "a") == ()
    fill(ordered, a=1)
    assert ordered.receive() == ()
    assert bodies(ordered, worker, "a") == [b"a0"]


def test_limits_hold_for_holders_too(asker: Asker) -> None:
    """In flight, rate, and groups that stand still."""
    asker.govern(groups=GroupSettings(max_in_flight=3, rate_per_s=1, burst=2))
    worker = asker.open_session()
    fill(asker, a=9)
    held(asker, worker, "a")
    assert bodies(asker, worker, "a") == [b"a0", b"a1"]
    asker.clock.advance(s=2)
    assert bodies(asker, worker, "a") == [b"a2"]
    asker.ask(HaltGroup(ACCOUNT, QUEUE, "b"))
    fill(asker, b=1)
    held(asker, worker, "b")
    assert receive(asker, worker, "b") == ()


def test_an_operator_ends_a_hold(ordered: Asker) -> None:
    """Whoever has it; of a group that no session holds there is nothing to end."""
    worker = ordered.open_session()
    held(ordered, worker, "a")
    fill(ordered, a=1)
    other = ordered.open_session("w2")
    assert isinstance(release(ordered, "a", other), GroupNotHeld)
    assert release(ordered, "a") is True
    assert release(ordered, "a") is False
    assert ordered.received() == [b"a0"]


def test_what_it_looks_like(ordered: Asker) -> None:
    """The hold stands beside what else keeps the group, and both ends of it are events."""
    worker = ordered.open_session("w1")
    taken = held(ordered, worker, "a")
    standing = ordered.ask(o.LookAtGroup(ACCOUNT, QUEUE, "a"))
    assert isinstance(standing, o.GroupStanding)
    assert standing.hold == taken
    ordered.ask(s.EndSession(ACCOUNT, worker.session_id))
    assert ordered.ask(o.LookAtGroup(ACCOUNT, QUEUE, "a")).hold is None
    kinds = EventType.GROUP_HELD, EventType.GROUP_RELEASED
    told = [
        (event.type, event.group_id, event.session, event.holder)
        for event in ordered.events()
        if event.type in kinds
    ]
    assert told == [(kind, "a", worker.session_id, "w1") for kind in kinds]


def test_refusals(asker: Asker) -> None:
    """Each with its reason."""
    worker = asker.open_session()
    name = worker.session_id
    commands: list[AnyCommand] = [
        HoldGroup(ACCOUNT, QUEUE, name, "a"),
        SaveGroupState(ACCOUNT, QUEUE, "a", name, 1, b""),
        ReleaseGroup(ACCOUNT, QUEUE, "a"),
    ]
    for command in commands:
        assert isinstance(asker.ask(command), NoGroups)
    assert isinstance(asker.ask(HoldGroup(ACCOUNT, "no-queue", name)), QueueNotFound)
    asker.govern(groups=GroupSettings())
    assert isinstance(asker.ask(HoldGroup(ACCOUNT, QUEUE, "x", "a")), SessionNotFound)
    assert isinstance(asker.ask(commands[1]), GroupNotHeld)
    assert isinstance(asker.ask(ReleaseGroup(ACCOUNT, QUEUE, "a", name)), GroupNotHeld)
    refused = asker.ask(c.Receive(ACCOUNT, QUEUE, 1, 30, "w1", None, "a"))
    assert isinstance(refused, GroupNotHeld)


def test_a_paused_queue_gives_no_group(ordered: Asker) -> None:
    """As it gives no message; a group that is named can be held."""
    worker = ordered.open_session()
    fill(ordered, a=1)
    ordered.govern(groups=GroupSettings(order=GroupOrder.FIFO), paused_until_ms=2**62)
    assert hold(ordered, worker) is None
    held(ordered, worker, "a")
    assert receive(ordered, worker, "a") == ()


def test_holds_of_a_queue_go_with_it(ordered: Asker) -> None:
    """A new queue of the name knows nothing of them; one that is cleared keeps them."""
    worker = ordered.open_session()
    save(ordered, held(ordered, worker, "a"), b"1")
    ordered.ask(c.Clear(ACCOUNT, QUEUE))
    assert held(ordered, worker, "a").state == b"1"
    ordered.ask(c.DeleteQueue(ACCOUNT, QUEUE))
    ordered.create()
    ordered.govern(groups=GroupSettings())
    assert held(ordered, worker, "a").state == b""


def test_others_are_served_beside_many_holds(asker: Asker) -> None:
    """Groups that are held cost no one their turn."""
    asker.govern(groups=GroupSettings(order=GroupOrder.FIFO, fair=True))
    worker = asker.open_session()
    fill(asker, **{f"g{n}": 1 for n in range(20)})
    for n in range(0, 20, 2):
        held(asker, worker, f"g{n}")
    assert sorted(serve(asker, 3, 8)) == sorted(f"g{n}" for n in range(1, 20, 2))
