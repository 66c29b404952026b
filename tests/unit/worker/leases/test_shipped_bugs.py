"""Mistakes that libraries for leases have shipped with, one test for each."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from leasehold.worker.adapters.protocol import Delivery, Lease, QueueError, Renewed, Saved
from leasehold.worker.leases import (
    AlreadySettled,
    HeldState,
    LeaseLearner,
    LeaseLost,
    LeaseSettings,
)
from tests.unit.worker.leases.support import ONE_BY_ONE, START_S, THIRTY, Aside, Bench, Queue


def test_renewed_only_once(bench: Bench) -> None:
    """The receipt of each renewal is used for the next one, and for the completion."""
    held = bench.keep_one()
    bench.time.advance(119)
    receipts = [sent.leases[0].receipt for sent in bench.queue.sent]
    assert len(receipts) == len(set(receipts)) == 7
    assert bench.complete(held)


@pytest.mark.parametrize("lease_s", [1, 2, 3, 5, 6])
def test_leases_as_short_as_the_margin(make_bench: Callable[..., Bench], lease_s: int) -> None:
    """A lease of five seconds or less is kept like any other."""
    bench = make_bench(LeaseSettings.of(lease_s))
    helds = bench.keep(5)
    bench.time.advance(20 * lease_s)
    assert all(held.state is HeldState.HELD for held in helds)
    assert 20 <= len(bench.queue.sent) <= 5 * 50
    assert all(bench.complete(held) for held in helds)


def test_renewals_shorten_what_the_handler_asked_for(bench: Bench) -> None:
    """A lease that the handler made longer is left alone until that is nearly over."""
    held = bench.keep_one()
    bench.time.advance(1)
    held.extend(100)
    bench.time.advance(80)
    assert held.deadline_s == START_S + 101
    assert len(bench.queue.sent) == 1
    bench.time.advance(10)
    assert bench.queue.moments_s == [1, 90]


def test_a_save_shortens_what_the_handler_asked_for(bench: Bench) -> None:
    """Saving progress renews a lease at least to where it was."""
    held = bench.keep_one()
    held.extend(100)
    bench.time.advance(10.5)
    held.save(Saved(fraction=0.1))
    assert held.deadline_s >= START_S + 100


def test_an_extension_shortens_the_lease(bench: Bench) -> None:
    """Who asks for less than there is left asks for nothing."""
    held = bench.keep_one()
    held.extend(10)
    assert (held.deadline_s, bench.queue.sent) == (START_S + 30, [])


class Traced:
    """A client as tracing wraps it: every call goes through, and every object is another one."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)

    def renew(
        self, leases: Sequence[Lease], visibility_timeout_s: int, *, timeout_s: float | None = None
    ) -> list[Renewed | QueueError]:
        """Copy all that goes in and comes out."""
        copies = [replace(lease) for lease in leases]
        found = self._queue.renew(copies, visibility_timeout_s, timeout_s=timeout_s)
        return [replace(each) if isinstance(each, Renewed) else each for each in found]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Traced)

    __hash__ = None  # type: ignore[assignment]


def test_tracing_changes_the_identity_of_objects(bench: Bench) -> None:
    """Copies of messages and clients in a wrapper are renewed all the same, as one batch."""
    client: Any = Traced(bench.queue)
    copies = [replace(delivery, properties={"trace": "1"}) for delivery in bench.receive(10)]
    helds = [bench.manager.keep(client, copy, asked_at_s=START_S) for copy in copies]
    bench.time.advance(60)
    assert [held.renewals for held in helds] == [4] * 10
    assert [len(sent.leases) for sent in bench.queue.sent] == [10] * 4


def test_two_deliveries_of_one_message(bench: Bench) -> None:
    """A message that was delivered again is another one: its old lease stays lost."""
    old = bench.keep_one()
    bench.time.jump(31)
    (again,) = bench.queue.receive(1, visibility_timeout_s=30)
    new = bench.manager.keep(bench.queue, again, asked_at_s=bench.time.monotonic_s())
    assert old.delivery.message_id == new.delivery.message_id
    bench.time.advance(20)
    assert (old.state, new.state, new.renewals) == (HeldState.LOST, HeldState.HELD, 1)
    assert bench.complete(new)


def test_a_late_renewal_takes_the_lease_back(bench: Bench) -> None:
    """A request that was held up until somebody else had the message does nothing to it."""
    held = bench.keep_one()
    gate = bench.queue.faults.hold(method="renew")
    bench.time.advance(31)
    assert held.state is HeldState.LOST
    (other,) = bench.queue.receive(1, visibility_timeout_s=30)
    gate.open()
    bench.time.settle()
    assert held.state is HeldState.LOST
    assert bench.queue.complete([other.lease]) == [None]


def test_a_late_answer_takes_the_lease_back(bench: Bench) -> None:
    """Who was told that a lease is lost is not told anything else by an answer that comes late."""
    held = bench.keep_one()
    receipt = held.receipt
    gate = bench.queue.faults.hold(method="renew", after=True)
    bench.time.advance(31)
    assert [loss.kind for loss in bench.losses] == ["lapsed"]
    gate.open()
    bench.time.advance(20)
    assert (held.state, held.receipt, held.renewals) == (HeldState.LOST, receipt, 0)
    assert len(bench.queue.sent) == 1
    with pytest.raises(LeaseLost):
        held.check()


def test_a_check_at_the_deadline_is_final(bench: Bench) -> None:
    """The work has been told that its lease is over before the timer came to see it."""
    held = bench.keep_one()
    gate = bench.queue.faults.hold(method="renew", after=True)
    bench.time.advance(29)
    bench.time.jump(1)
    with pytest.raises(LeaseLost):
        held.check()
    gate.open()
    bench.time.settle()
    assert held.state is HeldState.LOST


def test_a_learned_lease_collapses_while_renewals_are_slow(
    make_bench: Callable[..., Bench],
) -> None:
    """Work of a second and renewals of a minute: the lease grows, and no message is lost."""
    learner = LeaseLearner(floor_s=150, cap_s=600)
    slow = LeaseSettings(
        visibility_timeout_s=150,
        timer_interval_s=1,
        message_minimal_life_s=74,
        message_timeout_s=3600,
        call_timeout_s=70,
    )
    bench = make_bench(slow, learner=learner)
    for _ in range(200):
        learner.handled(None, 1.2)
        learner.renewal_took(0.05)
    assert bench.manager.lease_s() == 150
    helds = bench.keep(20)
    bench.queue.faults.slow(60, calls=1000, method="renew")
    bench.time.advance(150)
    assert bench.manager.lease_s() >= 180
    bench.time.advance(1500)
    assert bench.losses == []
    assert all(held.state is HeldState.HELD for held in helds)
    assert {sent.visibility_timeout_s for sent in bench.queue.sent[2:]} == {180}
    assert "a lease has to last for 3 such renewals" in learner.explain()
    bench.queue.faults.clear()
    bench.time.advance(60)


def test_only_running_messages_are_renewed(bench: Bench) -> None:
    """Of sixteen messages worked on one after the other, each still has its lease at its turn."""
    helds = bench.keep(16)
    for held in helds:
        held.check()
        bench.time.advance(7)
        assert bench.complete(held)
    assert bench.losses == []


def test_completed_and_failed_in_the_same_instant(bench: Bench) -> None:
    """Of all who would settle a message, one can."""
    for held in bench.keep(50):
        barrier = threading.Barrier(4)

        def settle(held: Any = held, barrier: threading.Barrier = barrier) -> bool:
            barrier.wait()
            try:
                held.begin_settling()
            except AlreadySettled:
                return False
            return True

        settlers = [Aside(settle) for _ in range(4)]
        assert sum(settler.result() for settler in settlers) == 1


def test_lost_and_completed_in_the_same_instant(bench: Bench) -> None:
    """A loss that comes while a message is settled changes nothing about that."""
    held = bench.keep_one()
    lease = held.begin_settling()
    held.lose("the session is over")
    held.cancel("too late")
    assert (bench.losses, held.state) == ([], HeldState.SETTLING)
    assert bench.queue.complete([lease]) == [None]
    assert held.settled(None)


def test_a_timer_for_each_message(bench: Bench) -> None:
    """A thousand messages take one timer, and one request a round."""
    bench.keep(1000)
    bench.time.advance(60)
    assert len(bench.queue.sent) == 4
    assert len(bench.threads) == 2


def test_fractions_of_seconds_are_sent(make_bench: Callable[..., Bench]) -> None:
    """Whatever is learned or set, a lease is asked for in whole seconds."""
    learner = LeaseLearner()
    bench = make_bench(LeaseSettings.of(30), learner=learner)
    bench.keep_one()
    for _ in range(30):
        learner.handled(None, 40.123)
    bench.time.advance(100)
    assert {sent.visibility_timeout_s for sent in bench.queue.sent} == {42}
    assert all(type(sent.visibility_timeout_s) is int for sent in bench.queue.sent)


def test_every_message_is_renewed_at_every_tick(bench: Bench) -> None:
    """Renewals cost no more than they have to: one for each half of a lease."""
    queue = Queue(bench.time, capabilities=ONE_BY_ONE)
    bench.keep(10, queue)
    bench.time.advance(THIRTY.message_timeout_s - 1)
    assert len(queue.sent) == 10 * 7


def test_renewals_hit_during_or_after_the_delete(bench: Bench) -> None:
    """A renewal that waits for a thread when its message is settled is called off."""
    queue = Queue(bench.time, capabilities=ONE_BY_ONE)
    helds = bench.keep(40, queue)
    gate = queue.faults.hold(16, method="renew")
    bench.time.advance(15)
    assert len(queue.sent) == 16
    sent = {lease.message_id for sent in queue.sent for lease in sent.leases}
    waiting = [held for held in helds if held.delivery.message_id not in sent]
    for held in waiting:
        assert queue.complete([held.begin_settling()]) == [None]
        assert held.settled(None)
    gate.open()
    bench.time.settle()
    assert len(queue.sent) == 16
    assert bench.losses == []


def test_the_queue_of_another_message(bench: Bench) -> None:
    """Each message is renewed where it came from, by the settings it is kept with."""
    other = Queue(bench.time, "other")
    bench.keep(2, other)
    bench.keep(3)
    bench.time.advance(15)
    assert {lease.message_id[:4] for lease in bench.queue.sent[0].leases} == {"work"}
    assert {lease.message_id[:5] for lease in other.sent[0].leases} == {"other"}


def test_delivery_stays_as_it_was(bench: Bench) -> None:
    """The body that was received is there after renewals; only the receipt is another."""
    (delivery,) = bench.receive()
    held = bench.manager.keep(bench.queue, delivery, asked_at_s=START_S)
    bench.time.advance(60)
    assert isinstance(held.delivery, Delivery)
    assert held.delivery is delivery
    assert held.receipt != delivery.receipt
