"""Giving messages back."""

from __future__ import annotations

from typing import Final

import pytest

from leasehold.worker.adapters.protocol import (
    CountsFailures,
    Delivery,
    Fault,
    GivenBack,
    LeaseGone,
    Release,
    Tried,
)
from tests.contract.queues.conftest import Bench

_OUTCOMES: Final[tuple[GivenBack, ...]] = ("failed", "returned", "interrupted", "failed")


def release(
    delivery: Delivery, outcome: GivenBack = "returned", delay_s: int | None = None
) -> Release:
    """Return what gives a delivery back."""
    return Release(lease=delivery.lease, outcome=outcome, delay_s=delay_s)


def test_a_message_given_back_comes_again(bench: Bench) -> None:
    """It can be received at once, or after the shortest time that the service has."""
    delivery = bench.put_one()
    assert bench.client.release([release(delivery)]) == [None]
    again = bench.later(1 if bench.kind == "mns" else 0)
    assert again.message_id == delivery.message_id
    assert again.fence > delivery.fence or not bench.able.counts_returns


def test_a_message_given_back_with_a_delay_comes_when_it_is_due(bench: Bench) -> None:
    """It is hidden until the delay is over."""
    delivery = bench.put_one()
    assert bench.client.release([release(delivery, "failed", bench.lease_s)]) == [None]
    assert bench.receive() == []
    again = bench.later(bench.lease_s)
    assert again.message_id == delivery.message_id
    assert again.dequeue_count == 2


def test_what_nobody_began_may_not_be_counted(bench: Bench) -> None:
    """The capabilities say whether a message that was returned has one more on its count."""
    bench.needs_time()
    delivery = bench.put_one()
    bench.client.release([release(delivery, "returned", 1)])
    again = bench.later(1)
    assert again.dequeue_count == (2 if bench.able.counts_returns else 1)


def test_a_failure_is_counted(bench: Bench) -> None:
    """A message given back as failed has one more on its count."""
    bench.needs_time()
    delivery = bench.put_one()
    fault = Fault(text="it went wrong", type="ValueError", fingerprint="abc")
    given = Release(lease=delivery.lease, outcome="failed", delay_s=1, fault=fault)
    assert bench.client.release([given]) == [None]
    assert bench.later(1).dequeue_count == 2


def test_failures_are_told_apart_from_deliveries(bench: Bench) -> None:
    """A service that knows says how earlier deliveries ended; others count deliveries only."""
    if not bench.able.counts_failures:
        pytest.skip("the service counts deliveries only")
    assert bench.advance is not None
    delivery = bench.put_one()
    for outcome in (*_OUTCOMES, None):
        if outcome is None:
            bench.advance(30)
        else:
            bench.client.release([release(delivery, outcome, 0)])
        delivery = bench.one()
    client: CountsFailures = bench.client  # type: ignore[assignment]  # the capabilities say so
    assert client.tried(delivery) == Tried(failures=2, lapses=1)
    bench.complete(delivery.lease)
    with pytest.raises(LeaseGone):
        client.tried(delivery)


def test_the_receipt_of_a_message_given_back_is_dead(bench: Bench) -> None:
    """Whoever gave a message back has it no more."""
    delivery = bench.put_one()
    bench.client.release([release(delivery, delay_s=60)])
    (completion,) = bench.complete(delivery.lease)
    (renewal,) = bench.renew(delivery.lease)
    assert isinstance(completion, LeaseGone)
    assert isinstance(renewal, LeaseGone)


def test_many_at_once(bench: Bench) -> None:
    """Results come in order, whatever the reasons, and one that is gone spoils no other."""
    bench.put("a", "b", "c")
    first, second, third = bench.receive(3)
    bench.complete(second.lease)
    results = bench.client.release(
        [release(first, "failed", 60), release(second, "failed", 60), release(third, "interrupted")]
    )
    assert results[0] is None
    assert isinstance(results[1], LeaseGone)
    assert results[2] is None
    assert bench.later(1 if bench.kind == "mns" else 0).message_id == third.message_id


def test_a_delay_longer_than_a_lease_is_taken(bench: Bench) -> None:
    """Days are no error anywhere; a service that cannot wait so long waits as long as it can."""
    delivery = bench.put_one()
    assert bench.client.release([release(delivery, "failed", 300_000)]) == [None]
    assert bench.receive() == []
