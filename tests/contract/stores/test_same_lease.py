"""Contract: queues that take any receipt of the present lease."""

from __future__ import annotations

import pytest

from leasehold.domain import commands as c
from leasehold.domain.errors import LeaseLost
from leasehold.domain.queue_settings import LapsedReceipts, MnsAttributes

from .conftest import ACCOUNT, QUEUE, Asker


@pytest.fixture
def kind(asker: Asker) -> Asker:
    """Give a store whose queue has the rule."""
    asker.govern(lapsed_receipts=LapsedReceipts.SAME_LEASE)
    return asker


def assert_refused(result: object, reason: str) -> None:
    """Make sure that a receipt did not act, and why."""
    assert isinstance(result, LeaseLost)
    assert result.reason == reason


def test_a_receipt_that_was_replaced_completes(kind: Asker) -> None:
    """However often the lease was renewed since."""
    kind.put()
    lease = kind.receive_one()
    for _ in range(3):
        kind.renew(lease, 30)
    assert kind.complete(lease) == c.DONE


def test_many_of_them_complete_together(kind: Asker) -> None:
    """The way that many messages take at once knows the rule, too."""
    for _ in range(40):
        kind.put()
    leases = kind.receive(limit=40)
    for lease in leases:
        kind.renew(lease, 30)
    results = kind.ask(c.Batch(tuple(kind.complete_command(lease) for lease in leases)))
    assert set(results) == {c.DONE}


def test_a_receipt_that_was_replaced_renews(kind: Asker) -> None:
    """And gives back, sooner than the newest said."""
    kind.put()
    lease = kind.receive_one()
    kind.renew(lease, 30)
    renewed = kind.renew(lease, 10)
    assert renewed.message.visible_at_ms == kind.clock.now_ms() + 10_000
    assert renewed.message.fence == lease.message.fence + 2
    kind.clock.advance(s=10)
    assert kind.receive_one().message.dequeue_count == 2


def test_all_of_them_die_with_the_lease(kind: Asker) -> None:
    """Whether anybody has taken the message since, or not."""
    kind.put()
    lease = kind.receive_one()
    renewed = kind.renew(lease, 30)
    kind.clock.advance(s=30)
    assert_refused(kind.complete(renewed), "lapsed")
    assert_refused(kind.complete(lease), "lapsed")
    again = kind.receive_one()
    assert_refused(kind.complete(renewed), "superseded")
    assert_refused(kind.complete(lease), "superseded")
    assert kind.complete(again) == c.DONE


def test_a_message_that_was_given_back(kind: Asker) -> None:
    """It is nobody's, with whatever receipt of before."""
    kind.put()
    lease = kind.receive_one()
    renewed = kind.renew(lease, 30)
    kind.ask(c.Release(ACCOUNT, QUEUE, renewed.message.message_id, renewed.receipt, delay_s=60))
    assert_refused(kind.complete(lease), "superseded")
    assert_refused(kind.complete(renewed), "superseded")


def test_the_receipt_of_a_delayed_message(kind: Asker) -> None:
    """It is replaced by the next one, as everywhere: nobody holds a lease yet."""
    put = kind.put(delay_s=60)
    changed = kind.renew(put, 30)
    assert_refused(kind.complete(put), "superseded")
    assert kind.complete(changed) == c.DONE


def test_attributes_of_mns_are_kept(asker: Asker) -> None:
    """With the other settings, and without them there are none."""
    attributes = MnsAttributes(delay_s=1, time_to_live_s=60, wait_s=2, logging_enabled=True)
    asker.govern(mns=attributes)
    assert asker.ask(c.GetQueue(ACCOUNT, QUEUE)).queue.settings.mns == attributes
    asker.govern()
    assert asker.ask(c.GetQueue(ACCOUNT, QUEUE)).queue.settings.mns is None
