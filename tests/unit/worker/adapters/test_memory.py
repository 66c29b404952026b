"""What a queue in memory has beyond the contract: time, faults and views for tests."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module

import pytest

from leasehold.testing.memory_queue import MEMORY, MemoryQueue
from leasehold.testing.time import ManualTime
from leasehold.worker.adapters.protocol import (
    Delivery,
    Denied,
    Fault,
    Lease,
    LeaseGone,
    NotSupported,
    Outgoing,
    PastExpiry,
    QueueMissing,
    Release,
    Renewed,
    Saved,
    Unreachable,
)
from tests.patience import PATIENCE_S


@pytest.fixture
def time() -> ManualTime:
    """Time that stands still."""
    return ManualTime()


@pytest.fixture
def queue(time: ManualTime) -> MemoryQueue:
    """An empty queue."""
    return MemoryQueue("orders", time=time)


def put(queue: MemoryQueue, *bodies: str) -> None:
    assert queue.put([Outgoing(body=body) for body in bodies]) == [None] * len(bodies)


def one(queue: MemoryQueue, lease_s: int = 30) -> Delivery:
    (delivery,) = queue.receive(2, visibility_timeout_s=lease_s)
    return delivery


def started(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work, name="leasehold-test-memory")
    thread.start()
    return thread


def joined(thread: threading.Thread) -> None:
    thread.join(PATIENCE_S)
    assert not thread.is_alive()


# --- time ----------------------------------------------------------------------------------------


def test_ids_receipts_and_times_are_the_same_in_each_run() -> None:
    """With time moved by hand nothing about a message is left to chance."""
    runs = []
    for _ in range(2):
        queue = MemoryQueue("orders", time=ManualTime())
        put(queue, "a", "b")
        found = queue.receive(2, visibility_timeout_s=30)
        runs.append([(each, each.receipt, each.inserted_at_ms) for each in found])
    assert runs[0] == runs[1]
    assert runs[0][0][2] == 1_767_225_600_000


def test_without_a_time_it_goes_by_the_machine() -> None:
    """A queue for real use needs no arguments."""
    queue = MemoryQueue()
    put(queue, "work")
    delivery = one(queue)
    assert delivery.inserted_at_ms is not None
    assert delivery.inserted_at_ms > 1_767_225_600_000 - 1
    assert queue.complete([delivery.lease]) == [None]


def test_a_wait_ends_when_a_lease_does(queue: MemoryQueue, time: ManualTime) -> None:
    """Who waits gets the message of a holder who died, at the moment at which its lease ends."""
    put(queue, "work")
    one(queue, 30)
    found: list[Delivery] = []
    thread = started(lambda: found.extend(queue.receive(1, visibility_timeout_s=30, wait_s=60)))
    time.settle(waiting=1)
    time.advance(29)
    assert found == []
    time.advance(1)
    joined(thread)
    assert [each.dequeue_count for each in found] == [2]


def test_a_wait_ends_after_its_time(queue: MemoryQueue, time: ManualTime) -> None:
    """A receive that waits for nothing comes back with nothing."""
    results: list[list[Delivery]] = []
    thread = started(lambda: results.append(queue.receive(1, visibility_timeout_s=30, wait_s=5)))
    time.settle(waiting=1)
    time.advance(5)
    joined(thread)
    assert results == [[]]


def test_closing_ends_the_waits(queue: MemoryQueue, time: ManualTime) -> None:
    """Who waits when the client is closed comes back with nothing."""
    results: list[list[Delivery]] = []
    thread = started(lambda: results.append(queue.receive(1, visibility_timeout_s=30, wait_s=5)))
    time.settle(waiting=1)
    queue.close()
    joined(thread)
    assert results == [[]]


def test_a_removed_queue_is_missing_to_who_waits(queue: MemoryQueue, time: ManualTime) -> None:
    """A receive that waits learns at once that the queue was deleted."""
    failures: list[Exception] = []

    def receive() -> None:
        try:
            queue.receive(1, visibility_timeout_s=30, wait_s=5)
        except QueueMissing as error:
            failures.append(error)

    thread = started(receive)
    time.settle(waiting=1)
    queue.delete()
    joined(thread)
    assert len(failures) == 1


def test_expired_messages_are_forgotten(queue: MemoryQueue, time: ManualTime) -> None:
    """They are neither counted nor shown nor received."""
    queue.put([Outgoing(body="work", time_to_live_s=10)])
    time.advance(10)
    assert queue.depth().total == 0
    assert queue.left() == []
    assert queue.receive(1, visibility_timeout_s=30) == []


def test_a_key_is_remembered_for_ten_minutes(queue: MemoryQueue, time: ManualTime) -> None:
    """After that a second message of the key is put."""
    for wait_s in (599, 1, 0):
        queue.put([Outgoing(body="work", dedup_key="k")])
        time.advance(wait_s)
    assert queue.depth().total == 2


# --- faults --------------------------------------------------------------------------------------


def test_a_call_fails_without_being_carried_out(queue: MemoryQueue) -> None:
    """A planned failure is Unreachable, nothing is done, and the next call succeeds."""
    put(queue, "work")
    delivery = one(queue)
    queue.faults.fail()
    with pytest.raises(Unreachable):
        queue.complete([delivery.lease])
    assert queue.complete([delivery.lease]) == [None]


def test_a_call_fails_after_it_was_carried_out(queue: MemoryQueue, time: ManualTime) -> None:
    """The answer gets lost: the lease is renewed, and who asks again is told the receipt."""
    put(queue, "work")
    delivery = one(queue)
    queue.faults.fail(carried_out=True, method="renew")
    with pytest.raises(Unreachable):
        queue.renew([delivery.lease], 600)
    (refused,) = queue.complete([delivery.lease])
    assert isinstance(refused, LeaseGone)
    queue.renew([delivery.lease], 30)
    (renewed,) = queue.renew([delivery.lease], 30)
    assert isinstance(renewed, Renewed)
    time.advance(599)
    assert queue.depth().leased == 1
    assert queue.complete([Lease(delivery.message_id, renewed.receipt)]) == [None]


def test_a_strict_queue_repeats_nothing(time: ManualTime) -> None:
    """There the receipt that a lost answer has told is known to nobody."""
    queue = MemoryQueue("orders", time=time, strict=True)
    put(queue, "work")
    delivery = one(queue)
    queue.renew([delivery.lease], 30)
    (refused,) = queue.renew([delivery.lease], 30)
    assert isinstance(refused, LeaseGone)


def test_failures_are_of_a_method_a_number_and_a_kind(queue: MemoryQueue) -> None:
    """Others are not touched, and after the number it is over."""
    put(queue, "work")
    queue.faults.fail(2, method="receive", error=Denied("no right"))
    assert queue.depth().total == 1
    for _ in range(2):
        with pytest.raises(Denied, match="no right"):
            queue.receive(1, visibility_timeout_s=30)
    assert len(queue.receive(1, visibility_timeout_s=30)) == 1


def test_what_is_planned_can_be_taken_back(queue: MemoryQueue) -> None:
    """After a clear nothing fails."""
    put(queue, "work")
    queue.faults.fail(100)
    queue.faults.refuse("orders-1", Unreachable("no"))
    queue.faults.clear()
    assert queue.complete([one(queue).lease]) == [None]


def test_one_message_of_many_is_refused(queue: MemoryQueue) -> None:
    """The others of the call are done, and the refusal is used up."""
    put(queue, "a", "b")
    leases = [each.lease for each in queue.receive(2, visibility_timeout_s=30)]
    queue.faults.refuse("orders-1", Unreachable("not this one"))
    results = queue.complete(leases)
    assert isinstance(results[0], Unreachable)
    assert results[1] is None
    assert queue.complete(leases[:1]) == [None]


def test_a_slow_call_takes_the_queues_time(queue: MemoryQueue, time: ManualTime) -> None:
    """It is done when that time has passed: what ended meanwhile has ended."""
    put(queue, "work")
    delivery = one(queue, 5)
    queue.faults.slow(10, method="complete")
    results: list[object] = []
    thread = started(lambda: results.extend(queue.complete([delivery.lease])))
    time.settle(waiting=1)
    time.advance(9)
    (taken,) = queue.receive(1, visibility_timeout_s=30)
    assert results == []
    time.advance(1)
    joined(thread)
    assert isinstance(results[0], LeaseGone)
    assert queue.complete([taken.lease]) == [None]


def test_a_call_is_held_before_its_work(queue: MemoryQueue) -> None:
    """Others go on while a call stands at the gate."""
    put(queue, "work")
    delivery = one(queue)
    gate = queue.faults.hold(method="renew")
    results: list[object] = []
    thread = started(lambda: results.extend(queue.renew([delivery.lease], 30)))
    gate.wait_until_entered()
    assert queue.complete([delivery.lease]) == [None]
    gate.open()
    joined(thread)
    assert isinstance(results[0], LeaseGone)


def test_a_call_is_held_after_its_work(queue: MemoryQueue) -> None:
    """The renewal is done, and its answer is late."""
    put(queue, "work")
    delivery = one(queue)
    gate = queue.faults.hold(method="renew", after=True)
    results: list[object] = []
    thread = started(lambda: results.extend(queue.renew([delivery.lease], 30)))
    gate.wait_until_entered()
    (refused,) = queue.complete([delivery.lease])
    assert isinstance(refused, LeaseGone)
    gate.open()
    joined(thread)
    assert isinstance(results[0], Renewed)
    assert queue.complete([Lease(delivery.message_id, results[0].receipt)]) == [None]


# --- views and controls --------------------------------------------------------------------------


def test_calls_are_counted(queue: MemoryQueue) -> None:
    """Each call counts once, however many leases it is for, also one that fails."""
    put(queue, "a", "b")
    leases = [each.lease for each in queue.receive(2, visibility_timeout_s=30)]
    queue.faults.fail(method="renew")
    with pytest.raises(Unreachable):
        queue.renew(leases, 30)
    queue.complete(leases)
    assert queue.calls == {"put": 1, "receive": 1, "renew": 1, "complete": 1}


def test_what_is_left_can_be_looked_at(queue: MemoryQueue) -> None:
    """Hidden or not, with what was saved, and without a delivery."""
    put(queue, "a", "b")
    first, _ = queue.receive(2, visibility_timeout_s=30)
    queue.save(first, first.receipt, Saved(state={"n": 1}), 30)
    left = queue.left()
    assert [each.body for each in left] == [b"a", b"b"]
    assert [each.saved for each in left] == [Saved(state={"n": 1}), None]
    assert [each.dequeue_count for each in left] == [1, 1]


def test_what_was_saved_is_a_value_of_its_own(queue: MemoryQueue, time: ManualTime) -> None:
    """A handler that goes on changing its state changes nothing of what it saved."""
    put(queue, "work")
    delivery = one(queue)
    state = {"done": [1]}
    queue.save(delivery, delivery.receipt, Saved(state=state), 30)
    state["done"].append(2)
    time.advance(30)
    assert one(queue).saved == Saved(state={"done": [1]})


def test_why_something_was_buried_can_be_looked_at(queue: MemoryQueue) -> None:
    """The queue says what it buried, and the poison queue has all that went wrong."""
    put(queue, "work")
    first = one(queue)
    bad, worse = Fault(text="bad"), Fault(text="worse")
    queue.release([Release(lease=first.lease, outcome="failed", fault=bad)])
    second = one(queue)
    queue.bury(second, second.receipt, worse)
    assert queue.buried == [(second.message_id, worse)]
    assert queue.poison.name == "orders-poison"
    assert [each.message_id for each in queue.poison.left()] == [second.message_id]
    assert queue.poison.faults_of(second.message_id) == [bad, worse]


def test_an_operators_wish_comes_with_the_renewal(queue: MemoryQueue) -> None:
    """A renewal, and the session, tell that the work shall stop."""
    put(queue, "work")
    session = queue.open_session("worker", 15)
    (delivery,) = queue.receive(1, visibility_timeout_s=30, session=session)
    queue.cancel(delivery.message_id, "not needed any more")
    (renewed,) = queue.renew([delivery.lease], 30)
    assert isinstance(renewed, Renewed)
    assert renewed.cancel == "not needed any more"
    assert session.cancelled(delivery.message_id) == "not needed any more"
    assert session.cancelled("another") is None


def test_a_lost_session_ends_its_leases(queue: MemoryQueue) -> None:
    """The messages are visible at once, their receipts dead, and nothing more is received."""
    put(queue, "mine", "other")
    session = queue.open_session("worker", 15)
    (mine,) = queue.receive(1, visibility_timeout_s=600, session=session)
    (other,) = queue.receive(1, visibility_timeout_s=600)
    queue.lose_sessions()
    assert session.is_lost
    (refused,) = queue.complete([mine.lease])
    assert isinstance(refused, LeaseGone)
    assert queue.complete([other.lease]) == [None]
    assert one(queue).message_id == mine.message_id
    with pytest.raises(LeaseGone):
        queue.receive(1, visibility_timeout_s=30, session=session)
    assert queue.tried(mine).lapses == 1


def test_the_strict_rule(time: ManualTime) -> None:
    """A receipt dies with its lease, although nobody else has the message."""
    queue = MemoryQueue(time=time, strict=True)
    put(queue, "work")
    delivery = one(queue, 30)
    time.advance(30)
    for results in (queue.renew([delivery.lease], 30), queue.complete([delivery.lease])):
        assert isinstance(results[0], LeaseGone)


def test_it_can_do_less(time: ManualTime) -> None:
    """With the capabilities of a poorer service it has what that one has."""
    poor = replace(
        MEMORY,
        fences=False,
        sessions=False,
        saves="no",
        counts_returns=True,
        max_receive=1,
        max_body_bytes=4,
    )
    queue = MemoryQueue(time=time, capabilities=poor)
    put(queue, "a", "b")
    delivery = one(queue)
    with pytest.raises(NotSupported):
        queue.save(delivery, delivery.receipt, Saved(), 30)
    with pytest.raises(NotSupported):
        queue.open_session("worker", 15)
    queue.release([Release(lease=delivery.lease, outcome="returned")])
    again = one(queue)
    assert (again.dequeue_count, again.fence) == (2, 2)
    assert queue.put([Outgoing(body="12345")]) != [None]


def test_it_has_the_rules_of_the_store(queue: MemoryQueue, time: ManualTime) -> None:
    """What became visible first comes first, and nothing becomes visible after its end."""
    put(queue, "a", "b")
    first, second = queue.receive(2, visibility_timeout_s=30)
    queue.release([Release(lease=first.lease, outcome="failed", delay_s=20)])
    queue.release([Release(lease=second.lease, outcome="failed", delay_s=10)])
    time.advance(20)
    found = queue.receive(2, visibility_timeout_s=30)
    assert [each.body for each in found] == [b"b", b"a"]
    (refused,) = queue.put([Outgoing(body="c", delay_s=10, time_to_live_s=10)])
    assert isinstance(refused, PastExpiry)


def test_a_delay_past_the_end_is_left_out(queue: MemoryQueue) -> None:
    """A message that is given back like that can be received while it lives."""
    queue.put([Outgoing(body="work", time_to_live_s=60)])
    delivery = one(queue)
    assert queue.release([Release(lease=delivery.lease, outcome="failed", delay_s=60)]) == [None]
    assert one(queue).dequeue_count == 2


def test_only_work_can_be_cancelled(queue: MemoryQueue) -> None:
    """There is nobody to be told of it while nobody has the message."""
    put(queue, "work")
    with pytest.raises(LeaseGone):
        queue.cancel("orders-1", "not needed any more")
    delivery = one(queue)
    queue.cancel("orders-1", "not needed any more")
    queue.release([Release(lease=delivery.lease, outcome="returned")])
    (renewed,) = queue.renew([one(queue).lease], 30)
    assert isinstance(renewed, Renewed)
    assert renewed.cancel is None


def test_a_session_may_have_leases_of_several_queues(time: ManualTime) -> None:
    """It ends them all, wherever it was opened, and as interruptions: they have not lapsed."""
    queues = [MemoryQueue(name, time=time) for name in ("orders", "films")]
    session = queues[0].open_session("worker", 15)
    for queue in queues:
        put(queue, "work")
        (delivery,) = queue.receive(1, visibility_timeout_s=600, session=session)
        queue.cancel(delivery.message_id, "enough")
        assert session.cancelled(delivery.message_id) == "enough"
    session.close()
    for queue in queues:
        again = one(queue)
        assert (queue.tried(again).failures, queue.tried(again).lapses) == (0, 0)


def test_a_session_of_another_service_is_a_mistake(queue: MemoryQueue) -> None:
    """It is refused, and not ignored."""

    class Other:
        session_id = "1"
        is_lost = False

        def cancelled(self, message_id: str) -> None: ...
        def progressed(self, message_id: str) -> None: ...
        def close(self) -> None: ...

    with pytest.raises(TypeError, match="another service"):
        queue.receive(1, visibility_timeout_s=30, session=Other())


def test_a_number_of_messages_below_one_is_a_mistake(queue: MemoryQueue) -> None:
    """To ask for nothing is refused."""
    with pytest.raises(ValueError, match="max_messages"):
        queue.receive(0, visibility_timeout_s=30)


def test_what_has_expired_leaves_nothing_behind(queue: MemoryQueue, time: ManualTime) -> None:
    """Who only puts messages that expire does not fill the memory with them."""
    for _ in range(20):
        for _ in range(100):
            queue.put([Outgoing(body="work", time_to_live_s=1, dedup_key=None)])
        time.advance(2)
    assert sum(count for *_, count in queue._place.store.message_counts()) <= 1000


def test_it_is_found_where_it_was() -> None:
    """The module that it was in before leads to it."""
    assert import_module("leasehold.worker.adapters.memory").MemoryQueue is MemoryQueue
