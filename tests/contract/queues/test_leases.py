"""Renewals, receipts and completions."""

from __future__ import annotations

import pytest

from leasehold.worker.adapters.protocol import (
    Delivery,
    Lease,
    LeaseGone,
    Outgoing,
    QueueError,
    Renewed,
)
from tests.contract.queues.conftest import Bench


def test_a_renewal_keeps_the_message_hidden(bench: Bench) -> None:
    """After a renewal the lease runs for its full length again."""
    bench.needs_time()
    assert bench.advance is not None
    delivery = bench.put_one(lease_s=30)
    bench.advance(29)
    lease = bench.renewed(delivery, lease_s=30)
    bench.advance(29)
    assert bench.receive() == []
    assert bench.complete(lease) == [None]


def test_a_lease_is_renewed_again_and_again(bench: Bench) -> None:
    """Each renewal needs the receipt of the one before, and there is no end to them."""
    delivery = bench.put_one()
    lease = delivery.lease
    for _ in range(5):
        lease = bench.renewed(delivery, lease.receipt)
    assert bench.complete(lease) == [None]


def test_a_renewal_replaces_the_receipt(bench: Bench) -> None:
    """The receipt from before the renewal acts no more, and loses nothing by trying."""
    delivery = bench.put_one()
    lease = bench.renewed(delivery)
    assert lease.receipt != delivery.receipt
    (refused,) = bench.complete(delivery.lease)
    assert isinstance(refused, LeaseGone)
    (renewal,) = bench.renew(delivery.lease)
    if bench.repeats:
        assert isinstance(renewal, Renewed)
        assert renewal.receipt == lease.receipt
    else:
        assert isinstance(renewal, LeaseGone)
    assert bench.complete(lease) == [None]


def test_a_receipt_of_an_earlier_lease_repeats_nothing(bench: Bench) -> None:
    """Where a renewal can be sent again, it is by the holder of the lease and nobody else."""
    first = bench.put_one(lease_s=bench.lease_s)
    renewed = bench.renewed(first, lease_s=bench.lease_s)
    second = bench.later(bench.lease_s)
    lease = bench.renewed(second)
    for old in (first.lease, renewed):
        (refused,) = bench.renew(old)
        assert isinstance(refused, LeaseGone)
    assert bench.complete(lease) == [None]


def test_a_renewal_leaves_the_body_alone(bench: Bench) -> None:
    """The next delivery has the body as it was put, however often the lease was renewed."""
    delivery = bench.put_one("the body", lease_s=bench.lease_s)
    lease = bench.renewed(delivery, lease_s=bench.lease_s)
    bench.renewed(delivery, lease.receipt, lease_s=bench.lease_s)
    assert bench.later(bench.lease_s).body == b"the body"


def test_a_renewal_can_shorten_a_lease(bench: Bench) -> None:
    """The new end counts from the renewal, also if that is sooner."""
    bench.needs_time()
    delivery = bench.put_one(lease_s=600)
    bench.renewed(delivery, lease_s=10)
    assert bench.later(10).dequeue_count == 2


def test_somebody_elses_lease_is_not_taken_back(bench: Bench) -> None:
    """A late renewal does not take the message from its new holder, nor does a completion."""
    first = bench.put_one(lease_s=bench.lease_s)
    second = bench.later(bench.lease_s)
    (renewal,) = bench.renew(first.lease)
    (completion,) = bench.complete(first.lease)
    assert isinstance(renewal, LeaseGone)
    assert isinstance(completion, LeaseGone)
    assert bench.complete(second.lease) == [None]


def test_a_lease_that_ran_out(bench: Bench) -> None:
    """Until somebody else receives the message the receipt acts, except under the strict rule."""
    bench.needs_time()
    assert bench.advance is not None
    delivery = bench.put_one(lease_s=30)
    bench.advance(31)
    (result,) = bench.renew(delivery.lease)
    assert isinstance(result, LeaseGone if bench.strict else Renewed)


def test_a_completed_message_is_gone(bench: Bench) -> None:
    """After its completion a message can be neither renewed nor completed nor received."""
    delivery = bench.put_one(lease_s=bench.lease_s)
    assert bench.complete(delivery.lease) == [None]
    (renewal,) = bench.renew(delivery.lease)
    (completion,) = bench.complete(delivery.lease)
    assert isinstance(renewal, LeaseGone)
    assert isinstance(completion, LeaseGone)
    if bench.advance is not None:
        bench.advance(bench.lease_s)
        assert bench.receive() == []


def test_a_message_that_never_was(bench: Bench) -> None:
    """A lease of a message that the queue never had is gone."""
    mine = bench.put_one()
    other = bench.other(f"{bench.client.name}b")
    other.create()
    other.put([Outgoing(body="work")])
    (foreign,) = other.receive(1, visibility_timeout_s=30)
    (result,) = bench.renew(Lease(foreign.message_id, foreign.receipt))
    if bench.kind == "mns":
        # A handle of MNS alone says which message is meant, and both are of one account.
        assert isinstance(result, QueueError)
    else:
        assert isinstance(result, LeaseGone)
    assert bench.complete(mine.lease) == [None]


def test_an_expired_message_cannot_be_renewed(bench: Bench) -> None:
    """The end of a message's life ends its lease as well."""
    if bench.kind == "mns":
        pytest.skip("messages of MNS have no life of their own")
    bench.needs_time()
    assert bench.advance is not None
    delivery = bench.put_one(lease_s=300, time_to_live_s=60)
    bench.advance(61)
    (result,) = bench.renew(delivery.lease)
    assert isinstance(result, LeaseGone)


def test_many_leases_at_once(bench: Bench) -> None:
    """Results come in the order of the leases, and one that is gone spoils no other."""
    bench.put("a", "b", "c", "d")
    deliveries = bench.receive(4)
    assert bench.complete(deliveries[1].lease) == [None]
    leases = [each.lease for each in deliveries]
    renewals = bench.renew(*leases)
    gone = [isinstance(each, LeaseGone) for each in renewals]
    assert gone == [False, True, False, False]
    newest = [
        Lease(each.message_id, renewed.receipt)
        for each, renewed in zip(leases, renewals, strict=True)
        if isinstance(renewed, Renewed)
    ]
    results = bench.complete(newest[0], leases[1], newest[1], newest[2])
    assert [isinstance(each, LeaseGone) for each in results] == [False, True, False, False]
    assert [each for each in results if each is not None] == [results[1]]


def test_more_leases_than_one_request_holds(bench: Bench) -> None:
    """Forty messages are renewed and completed in one call."""
    bench.put(*(f"{number}" for number in range(40)))
    deliveries: list[Delivery] = []
    while len(deliveries) < 40:
        found = bench.receive(40)
        assert found
        deliveries += found
    renewals = bench.renew(*(each.lease for each in deliveries))
    leases = [
        Lease(each.message_id, renewed.receipt)
        for each, renewed in zip(deliveries, renewals, strict=True)
        if isinstance(renewed, Renewed)
    ]
    assert bench.complete(*leases) == [None] * 40
    assert bench.receive() == []


def test_no_leases_at_all(bench: Bench) -> None:
    """Calls for nothing do nothing."""
    assert bench.client.renew([], 30) == []
    assert bench.client.complete([]) == []
    assert bench.client.release([]) == []
    assert bench.client.put([]) == []


def test_a_renewal_may_be_given_a_time_limit(bench: Bench) -> None:
    """With a limit that is long enough a renewal does what it does without."""
    delivery = bench.put_one()
    (result,) = bench.client.renew([delivery.lease], 30, timeout_s=10.0)
    assert isinstance(result, Renewed)
    assert result.receipt not in repr(result)


def test_refusals_show_no_receipt(bench: Bench) -> None:
    """The text of an error holds neither the receipt nor a key."""
    delivery = bench.put_one()
    bench.complete(delivery.lease)
    (refused,) = bench.complete(delivery.lease)
    assert refused is not None
    assert (
        delivery.receipt not in f"{refused!r} {refused} {refused.__cause__} {refused.__context__}"
    )
