"""Contract: groups share a queue fairly, and within their limits."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from leasehold.domain import admin as o
from leasehold.domain import commands as c
from leasehold.domain.errors import LeaseLost, NotDone
from leasehold.domain.model import Detail, Lease, Outcome
from leasehold.domain.queue_settings import (
    FailurePolicy,
    GroupOrder,
    GroupSettings,
    LapsedReceipts,
)

from .conftest import ACCOUNT, QUEUE, Asker

ORDERS = pytest.mark.parametrize("order", GroupOrder)


def fill(asker: Asker, **groups: int) -> None:
    """Put so many messages of each group, one group after the other; ``none`` is no group."""
    for name, count in groups.items():
        detail = Detail(group_id=None if name == "none" else name)
        asker.batch(*(asker.put_command(f"{name}{n}", detail=detail) for n in range(count)))


def groups_of(leases: Any) -> list[str]:
    return [lease.message.detail.group_id or "none" for lease in leases]


def serve(asker: Asker, times: int, limit: int = 1) -> list[str]:
    """Receive and complete so often, and return whose messages these were."""
    served: list[str] = []
    for _ in range(times):
        leases = asker.receive(limit)
        served += groups_of(leases)
        for lease in leases:
            asker.complete(lease)
    return served


# --- in turn -----------------------------------------------------------------------------------


@ORDERS
def test_groups_take_turns(asker: Asker, order: GroupOrder) -> None:
    """Whatever their backlogs, and also those without a group, who are one party together."""
    asker.govern(groups=GroupSettings(order=order, fair=True))
    fill(asker, big=20, none=3, small=2, mid=4)
    served = serve(asker, 12)
    assert Counter(served[:8]) == {"big": 2, "none": 2, "small": 2, "mid": 2}
    assert Counter(served[8:11]) == {"big": 1, "none": 1, "mid": 1}
    assert Counter(served[11:] + serve(asker, 1)) == {"big": 1, "mid": 1}
    assert serve(asker, 20) == ["big"] * 16


@ORDERS
def test_of_groups_that_begin_together_the_oldest_message_is_first(
    asker: Asker, order: GroupOrder
) -> None:
    """Also where the settings came later, and whatever the groups are called."""
    fill(asker, c=2, a=2, b=2)
    asker.govern(groups=GroupSettings(order=order, fair=True))
    assert serve(asker, 3) == ["c", "a", "b"]


@ORDERS
@pytest.mark.parametrize("limit", [1, 3])
def test_without_turns_the_oldest_message_is_first(
    asker: Asker, order: GroupOrder, limit: int
) -> None:
    """Whatever was read of its group, and whatever was put meanwhile."""
    asker.govern(groups=GroupSettings(order=order))
    for name in ("a", "b", "c", "b", "c", "a"):
        fill(asker, **{name: 1})
        asker.clock.advance(s=1)
    fill(asker, b=1)
    assert serve(asker, 3 if limit == 1 else 1, limit) == ["a", "b", "c"]
    fill(asker, c=1)
    assert serve(asker, 3 if limit == 1 else 1, limit) == ["b", "c", "a"]
    assert serve(asker, 3) == ["b", "c"]


def test_a_group_is_looked_at_again_when_a_lease_has_ended(asker: Asker) -> None:
    """Also if another message of it was given since, and it had nothing more then."""
    asker.govern(groups=GroupSettings(fair=True))
    fill(asker, a=1)
    asker.receive(lease_s=10)
    asker.clock.advance(s=1)
    fill(asker, a=1)
    (later,) = asker.receive(lease_s=100)
    assert asker.receive() == ()
    asker.clock.advance(s=9)
    (again,) = asker.receive()
    assert again.message.dequeue_count == 2
    assert again.message.message_id != later.message.message_id


@ORDERS
def test_expired_messages_do_not_hide_those_behind_them(asker: Asker, order: GroupOrder) -> None:
    """Before they are retired as well, wherever they stand."""
    asker.govern(groups=GroupSettings(order=order, fair=True))
    detail = Detail(group_id="a")
    for body, time_to_live_s in (("x", 5), ("y", 100), ("z", 5), ("w", 100)):
        asker.batch(asker.put_command(body, time_to_live_s=time_to_live_s, detail=detail))
    asker.clock.advance(s=6)
    assert [lease.message.body for lease in asker.receive(4)] == [b"y", b"w"]


@ORDERS
def test_a_newcomer_is_served_within_two_turns(asker: Asker, order: GroupOrder) -> None:
    """Behind a group with a large backlog that is being served."""
    asker.govern(groups=GroupSettings(order=order, fair=True))
    fill(asker, big=50)
    serve(asker, 10)
    fill(asker, new=1)
    assert "new" in serve(asker, 2)
    asker.clock.advance(s=100)
    serve(asker, 5)
    fill(asker, new=1, other=1)
    assert {"new", "other"} <= set(serve(asker, 3))


@ORDERS
@pytest.mark.parametrize("limit", [1, 4])
def test_weights(asker: Asker, order: GroupOrder, limit: int) -> None:
    """A group of weight 3 is given three messages for one of the others."""
    weights = {"heavy": 3}
    asker.govern(groups=GroupSettings(order=order, fair=True, weights=weights))
    fill(asker, light=40, heavy=40, other=40)
    shares = Counter(serve(asker, 40 // limit, limit))
    assert shares == {"heavy": 24, "light": 8, "other": 8}


def test_idle_groups_save_nothing_up(asker: Asker) -> None:
    """Who comes back after a while has its turn like the others, and no credit."""
    asker.govern(groups=GroupSettings(fair=True))
    fill(asker, a=1, b=40)
    serve(asker, 21)
    fill(asker, a=20)
    assert Counter(serve(asker, 10)) == {"a": 5, "b": 5}


def test_priorities_count_within_a_group(asker: Asker) -> None:
    """In a fair queue no group can push others aside by what it calls urgent."""
    asker.govern(groups=GroupSettings(fair=True))
    for n in range(4):
        asker.put(f"a{n}", detail=Detail(group_id="a"), priority=16 - n)
        asker.put(f"b{n}", detail=Detail(group_id="b"), priority=1)
    received = asker.received()
    assert [body for body in received if body[:1] == b"a"] == [b"a3", b"a2", b"a1", b"a0"]
    assert [{body[:1] for body in received[n : n + 2]} for n in (0, 2, 4)] == [{b"a", b"b"}] * 3


# --- work --------------------------------------------------------------------------------------


def while_it_works(asker: Asker, seconds: int, *quiet: str) -> None:
    """Have messages of quiet groups come and go, one after the other, while others are at work."""
    before: Any = None
    for second in range(seconds):
        asker.put("q", detail=Detail(group_id=quiet[second % len(quiet)]))
        (lease,) = asker.receive(1)
        assert lease.message.detail.group_id in quiet
        if before is not None:
            asker.complete(before)
        before = lease
        asker.clock.advance(s=1)
    asker.complete(before)


def hold_many(asker: Asker, count: int) -> Any:
    """Have some messages of a group in work for long, beside quiet groups, and as many waiting."""
    fill(asker, long=count)
    held = asker.receive(count, lease_s=36_000)
    while_it_works(asker, 60, "a", "b")
    fill(asker, long=6 * count)
    return held


def test_turns_cost_what_a_group_has_in_work(asker: Asker) -> None:
    """Who holds most of the consumers has few turns beside others that wait."""
    asker.govern(groups=GroupSettings(fair=True))
    hold_many(asker, 9)
    work = asker.ask(o.CountGroups(ACCOUNT, QUEUE)).work
    assert work.shares["long"] > 0.8
    assert sum(work.shares.values()) == pytest.approx(1.0)
    fill(asker, a=20, b=20)
    shares = Counter(serve(asker, 20))
    assert shares["long"] < 6
    assert shares["a"] + shares["b"] > 14


@ORDERS
@pytest.mark.parametrize("is_limited", [False, True])
def test_a_noisy_group_leaves_consumers_free(
    asker: Asker, order: GroupOrder, is_limited: bool
) -> None:
    """As many as the others need, until it is alone for a while; one at least is its own."""
    asker.govern(groups=GroupSettings(order=order, fair=True, limit_noisy=is_limited))
    held = hold_many(asker, 9)
    standing = asker.ask(o.LookAtGroup(ACCOUNT, QUEUE, "long"))
    assert (standing.noisy_limit is not None) is is_limited
    if order is GroupOrder.FIFO:
        return  # it gives nothing while one is held anyway
    assert (standing.noisy_limit or 0) < 9
    given = groups_of(asker.receive(9, lease_s=36_000))
    assert given == ([] if is_limited else ["long"] * 9)
    fill(asker, c=1)
    (quiet, *others) = asker.receive(9, lease_s=36_000)
    assert groups_of([quiet, *others]) == ["c"] + ["long"] * (0 if is_limited else 8)
    for lease in (quiet, *held):
        asker.complete(lease)
    now_given = groups_of(asker.receive(9, lease_s=36_000))
    if is_limited:
        assert now_given == ["long"] * (standing.noisy_limit or 0)
    asker.clock.advance(s=600)
    assert groups_of(asker.receive(9)) == ["long"] * 9
    asker.clock.advance(s=600)
    asker.receive(1)
    assert asker.ask(o.LookAtGroup(ACCOUNT, QUEUE, "long")).noisy_limit is None


# --- limits ------------------------------------------------------------------------------------


@ORDERS
def test_so_many_of_a_group_on_leases(asker: Asker, order: GroupOrder) -> None:
    """And no more, whoever asks, until one is settled, given back or lapses."""
    limits = {"wide": 3}
    asker.govern(groups=GroupSettings(order=order, max_in_flight=2, max_in_flight_of=limits))
    fill(asker, a=5, wide=5, none=5)
    leases = asker.receive(32, lease_s=60)
    assert Counter(groups_of(leases)) == {"a": 2, "wide": 3, "none": 5}
    assert asker.receive() == ()
    (first, second) = [each for each in leases if each.message.detail.group_id == "a"]
    asker.complete(first)
    if order is GroupOrder.NONE:
        assert groups_of(asker.receive(32)) == ["a"]
    else:
        assert asker.receive() == ()
    asker.release(second, Outcome.FAILED)
    assert groups_of(asker.receive(32, lease_s=600))[0] == "a"
    asker.clock.advance(s=60)
    assert Counter(groups_of(asker.receive(32)))["wide"] == 3


def test_limits_of_a_receive_of_few(asker: Asker) -> None:
    """One at a time, groups that are full are passed over."""
    asker.govern(groups=GroupSettings(fair=True, max_in_flight=1))
    fill(asker, a=3, b=3, c=3)
    assert sorted(groups_of([asker.receive_one() for _ in range(3)])) == ["a", "b", "c"]
    assert asker.receive() == ()


@pytest.mark.parametrize("atomic", [False, True])
def test_a_late_renewal_does_not_exceed_a_limit(asker: Asker, *, atomic: bool) -> None:
    """An ended lease has made room for another message of its group; it cannot be begun again."""
    asker.govern(
        groups=GroupSettings(max_in_flight=1), lapsed_receipts=LapsedReceipts.UNTIL_RETAKEN
    )
    fill(asker, a=2, none=1)
    late, other = asker.receive(2, lease_s=10)
    asker.clock.advance(s=10)
    renewals = [asker.renew_command(lease, 60) for lease in (late, other)]
    if atomic:
        refused, not_done = asker.ask(c.Batch(tuple(renewals), atomic=True))
        assert isinstance(refused, LeaseLost)
        assert isinstance(not_done, NotDone)
    else:
        refused, renewed = asker.ask(c.Batch(tuple(renewals)))
        assert isinstance(refused, LeaseLost)
        assert refused.reason == "lapsed"
        assert isinstance(renewed, Lease)
    asker.complete(late)


def test_deferred_messages_are_not_in_flight(asker: Asker) -> None:
    """Who waits for a next try makes room for others of its group, unless the order matters."""
    asker.govern(groups=GroupSettings(max_in_flight=1))
    fill(asker, a=2)
    asker.release(asker.receive_one(), Outcome.FAILED, delay_s=60)
    assert asker.received() == [b"a1"]


def test_a_limit_that_is_lowered(asker: Asker) -> None:
    """Those on leases stay; nothing more is given until there is room."""
    asker.govern(groups=GroupSettings(max_in_flight=3))
    fill(asker, a=5)
    leases = asker.receive(3)
    asker.govern(groups=GroupSettings(max_in_flight=1))
    for lease in leases[:2]:
        asker.complete(lease)
        assert asker.receive() == ()
    asker.complete(leases[2])
    assert asker.received() == [b"a3"]


# --- when there is something -------------------------------------------------------------------


def test_when_something_is_due(asker: Asker) -> None:
    """Not while all is held up; then when the first lease, delay or wait ends."""
    asker.govern(groups=GroupSettings(order=GroupOrder.FIFO))
    assert asker.due_ms() is None
    fill(asker, a=2)
    assert asker.due_ms() == 0
    lease = asker.receive_one(lease_s=30)
    assert asker.due_ms() == 30_000
    asker.put("b", detail=Detail(group_id="b"), delay_s=10)
    assert asker.due_ms() == 10_000
    asker.complete(lease)
    assert asker.due_ms() == 0


def test_poison_does_not_hide_what_is_behind(asker: Asker) -> None:
    """However many messages have used up their tries, the others are handed out."""
    fill(asker, a=3, b=3)
    for _ in range(2):
        asker.receive(4, lease_s=1)
        asker.clock.advance(s=1)
    asker.govern(
        groups=GroupSettings(order=GroupOrder.FIFO, fair=True),
        failure_policy=FailurePolicy(max_deliveries=1),
    )
    found: list[bytes] = []
    for _ in range(4):
        found += asker.received()
    assert asker.counts().poisoned + len(found) == 6


def test_turns_are_found_again_beside_a_group_that_has_expired(asker: Asker) -> None:
    """All messages of one group are out of reach, and not removed yet: others are received."""
    asker.govern(groups=GroupSettings(fair=True))
    asker.put("old", detail=Detail(group_id="gone"), time_to_live_s=1)
    asker.put("new", detail=Detail(group_id="there"))
    asker.clock.advance(s=2)
    assert asker.ask(c.RetireExpired(10)) == c.Swept(1)
    asker.govern(groups=GroupSettings(fair=True, max_in_flight=1))
    assert asker.received() == [b"new"]
