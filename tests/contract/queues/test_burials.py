"""The poison queue."""

from __future__ import annotations

import pytest

from leasehold.testing.memory_queue import MemoryQueue
from leasehold.worker.adapters.azure import AzureQueue
from leasehold.worker.adapters.mns import MnsQueue
from leasehold.worker.adapters.native import NativeQueue
from leasehold.worker.adapters.protocol import (
    Delivery,
    Fault,
    Lease,
    LeaseGone,
    Release,
    Saved,
    Tried,
    Unreachable,
)
from tests.contract.queues.conftest import Bench

FAULT = Fault(text="no such customer", type="ValueError", fingerprint="abc")


def buried(bench: Bench) -> list[Delivery]:
    """Receive what is in the poison queue."""
    return bench.poison.receive(10, visibility_timeout_s=30)


@pytest.mark.parametrize("body", ["the body", b"\xff\x00", "SGVsbG8gd29ybGQ="])
def test_a_buried_message_is_in_the_poison_queue(bench: Bench, body: str | bytes) -> None:
    """The poison queue is made, and has the message with its body; its own queue has it no more."""
    delivery = bench.put_one(body, lease_s=bench.lease_s)
    bench.client.bury(delivery, delivery.receipt, FAULT)
    (copy,) = buried(bench)
    assert copy.body == (body.encode() if isinstance(body, str) else body)
    (refused,) = bench.complete(delivery.lease)
    assert isinstance(refused, LeaseGone)
    if bench.advance is not None:
        bench.advance(bench.lease_s)
        assert bench.receive() == []


def test_a_second_message_is_buried_as_well(bench: Bench) -> None:
    """The poison queue that is there is used."""
    for body in ("a", "b"):
        delivery = bench.put_one(body)
        bench.client.bury(delivery, delivery.receipt, FAULT)
    assert {each.body for each in buried(bench)} == {b"a", b"b"}


def test_progress_is_buried_with_the_message(bench: Bench) -> None:
    """Whoever brings the message back goes on from there."""
    if bench.able.saves == "no":
        pytest.skip("the service keeps no progress")
    bench.needs_time()
    bench.client.save(first := bench.put_one(), first.receipt, Saved(stage="two"), 30)
    delivery = bench.later(30)
    bench.client.bury(delivery, delivery.receipt, FAULT)
    (copy,) = buried(bench)
    assert copy.saved == Saved(stage="two")
    assert copy.body == first.body


def test_a_copy_says_where_it_comes_from(bench: Bench) -> None:
    """Where a message is copied the copy has its id, its queue, its count and the reason."""
    delivery = bench.put_one()
    bench.client.bury(delivery, delivery.receipt, FAULT)
    (copy,) = buried(bench)
    if bench.able.server_poison:
        assert copy.message_id == delivery.message_id
        return
    assert copy.properties["original-id"] == delivery.message_id
    assert copy.properties["original-queue"] == bench.client.name
    assert copy.properties["original-dequeue-count"] == "1"
    assert copy.properties["poison-reason"] == "no such customer"
    assert copy.properties["poison-type"] == "ValueError"


def test_who_lost_the_lease_buries_nothing(bench: Bench) -> None:
    """With an old receipt nothing is copied: its new holder may complete the message."""
    delivery = bench.put_one()
    lease = bench.renewed(delivery)
    with pytest.raises(LeaseGone):
        bench.client.bury(delivery, delivery.receipt, FAULT)
    bench.poison.create()
    assert buried(bench) == []
    assert bench.complete(lease) == [None]


def test_who_dies_between_copy_and_deletion_leaves_a_message_that_is_buried_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second burial ends it, and the two copies can be told to be one message."""
    if bench.able.server_poison:
        pytest.skip("the server moves it in one step")
    bench.needs_time()
    assert bench.advance is not None
    delivery = bench.put_one()

    def dies(*_: object) -> None:
        raise Unreachable("the worker died here")

    with monkeypatch.context() as patched:
        patched.setattr(AzureQueue, "_delete", dies)
        patched.setattr(MnsQueue, "_delete", dies)
        with pytest.raises(Unreachable):
            bench.client.bury(delivery, delivery.receipt, FAULT)
    again = bench.later(60)
    assert again.dequeue_count == 2
    bench.client.bury(again, again.receipt, FAULT)
    copies = buried(bench)
    assert len(copies) == 2
    assert {each.properties["original-id"] for each in copies} == {delivery.message_id}
    bench.advance(60)
    assert bench.receive() == []


@pytest.mark.parametrize("is_carried_out", [False, True])
def test_a_deletion_without_an_answer_is_finished(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, is_carried_out: bool
) -> None:
    """Another call for the same lease ends it, with one copy, whatever became of the deletion."""
    if bench.able.server_poison:
        pytest.skip("the server moves it in one step")
    delivery = bench.put_one()
    delete = type(bench.client)._delete  # type: ignore[attr-defined]

    def unanswered(client: object, *what: object) -> None:
        if is_carried_out:
            delete(client, *what)
        raise Unreachable("no answer")

    with monkeypatch.context() as patched:
        patched.setattr(type(bench.client), "_delete", unanswered)
        with pytest.raises(Unreachable, match="a copy is in"):
            bench.client.bury(delivery, delivery.receipt, FAULT)
    bench.client.bury(delivery, delivery.receipt, FAULT)
    assert len(buried(bench)) == 1
    assert bench.client.depth().total == 0


def test_a_message_without_room_is_buried_as_it_is(bench: Bench) -> None:
    """A body at the limit of the service is copied without a note around it."""
    if bench.able.server_poison:
        pytest.skip("the server moves it in one step")
    limit = 65_536 if bench.kind != "mns" else 49_152
    body = "x" * limit
    delivery = bench.put_one(body)
    bench.client.bury(delivery, delivery.receipt, FAULT)
    (copy,) = buried(bench)
    assert copy.body == body.encode()


def test_a_buried_message_has_a_fresh_start(bench: Bench) -> None:
    """What it failed at before it was moved is not held against those who look after it now."""
    if not bench.able.counts_failures:
        pytest.skip("the service counts deliveries only")
    delivery = bench.put_one()
    bench.client.release([Release(lease=delivery.lease, outcome="failed", delay_s=0)])
    delivery = bench.one()
    bench.client.bury(delivery, delivery.receipt, FAULT)
    poison, advance = bench.poison, bench.advance
    assert isinstance(poison, MemoryQueue | NativeQueue)
    assert advance is not None
    (copy,) = poison.receive(1, visibility_timeout_s=30)
    assert poison.tried(copy) == Tried(0, 0)
    advance(1)
    poison.release([Release(lease=copy.lease, outcome="failed", delay_s=0)])
    (copy,) = poison.receive(1, visibility_timeout_s=30)
    assert poison.tried(copy) == Tried(1, 0)


def test_a_buried_message_can_be_completed(bench: Bench) -> None:
    """The poison queue is a queue like others."""
    delivery = bench.put_one()
    bench.client.bury(delivery, delivery.receipt, FAULT)
    poison = bench.poison
    (copy,) = poison.receive(1, visibility_timeout_s=30)
    assert poison.complete([Lease(copy.message_id, copy.receipt)]) == [None]
