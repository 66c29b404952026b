"""Contract: a complete that comes when its message has left the queue is in the event log."""

from __future__ import annotations

from typing import Any

import pytest

from leasehold.domain import admin as o
from leasehold.domain import commands as c
from leasehold.domain.errors import MessageNotFound
from leasehold.domain.events import EventType
from leasehold.domain.model import Lease

from .conftest import ACCOUNT, POISON, QUEUE, Asker


def refused(asker: Asker, after_seq: int) -> list[tuple[Any, ...]]:
    """Return queue, reason and the seconds that the work took, of what was refused since."""
    return [
        (event.queue, event.reason, event.since_ms and (event.at_ms - event.since_ms) / 1000)
        for event in asker.events(after_seq)
        if event.type is EventType.REFUSED
    ]


def late_after(asker: Asker, after_s: float, lease: Lease) -> list[tuple[Any, ...]]:
    """Complete a lease so many seconds later, and return what was recorded of that."""
    asker.clock.advance(s=after_s)
    after = asker.last_seq()
    answer = asker.complete(lease)
    assert type(answer) is MessageNotFound
    assert answer.late
    return refused(asker, after)


def set_aside(asker: Asker, deliveries: int = 2) -> list[Lease]:
    """Return the leases of 10 s of a message that is in the poison queue after the last."""
    asker.limit_failures(max_deliveries=deliveries)
    asker.put()
    leases = []
    for _ in range(deliveries):
        leases.append(asker.receive_one(lease_s=10))
        asker.clock.advance(s=10)
    assert asker.receive() == ()
    assert asker.count(POISON) == 1
    return leases


def test_a_complete_after_the_move_to_the_poison_queue(asker: Asker) -> None:
    """Each of the leases tells how long its work took, in the queue where it was asked for."""
    first, second = set_aside(asker)
    assert late_after(asker, 5, first) == [(QUEUE, "moved", 25.0)]
    assert late_after(asker, 1, second) == [(QUEUE, "moved", 16.0)]
    assert asker.count(POISON) == 1


def test_a_receipt_that_a_renewal_replaced_is_of_the_same_lease(asker: Asker) -> None:
    """Its work began with the receive as well."""
    asker.limit_failures(max_deliveries=1)
    asker.put()
    lease = asker.receive_one(lease_s=10)
    asker.clock.advance(s=5)
    asker.renew(lease, 10)
    asker.clock.advance(s=10)
    assert asker.receive() == ()
    assert late_after(asker, 5, lease) == [(QUEUE, "moved", 20.0)]


def test_a_complete_while_somebody_works_on_it_in_the_poison_queue(asker: Asker) -> None:
    """What is done there changes nothing about it."""
    first, _ = set_aside(asker)
    asker.receive_one(queue=POISON)
    assert late_after(asker, 5, first) == [(QUEUE, "moved", 25.0)]


def test_a_complete_after_a_redrive(asker: Asker) -> None:
    """The message is in its queue again, and its receipt is an old one there."""
    first, _ = set_aside(asker)
    asker.run_job(o.JobKind.REDRIVE)
    asker.clock.advance(s=5)
    after = asker.last_seq()
    asker.complete(first)
    assert refused(asker, after) == [(QUEUE, "superseded", 25.0)]


@pytest.mark.parametrize("lease_s", [5, 60])
def test_a_complete_after_the_expiry(asker: Asker, lease_s: int) -> None:
    """Whether the lease had run out by then or not, until the message is swept."""
    asker.put(time_to_live_s=10)
    lease = asker.receive_one(lease_s=lease_s)
    assert late_after(asker, 15, lease) == [(QUEUE, "expired", 15.0)]
    asker.ask(c.RetireExpired(10))
    asker.ask(c.RemoveRetired(asker.clock.now_ms(), 10))
    after = asker.last_seq()
    assert type(asker.complete(lease)) is MessageNotFound
    assert asker.events(after) == []


def test_a_complete_together_with_others(asker: Asker) -> None:
    """In one batch, each is told apart."""
    late, _ = set_aside(asker)
    asker.put()
    good = asker.receive_one()
    after = asker.last_seq()
    answers = asker.batch(asker.complete_command(late), asker.complete_command(good))
    assert (type(answers[0]), answers[1]) == (MessageNotFound, c.DONE)
    assert refused(asker, after) == [(QUEUE, "moved", 20.0)]


def test_what_never_was_a_lease_there_is_no_event(asker: Asker) -> None:
    """A receipt of another message or store, the sender's, or one asked for in another account."""
    late, _ = set_aside(asker)
    asker.create(account="other")
    asker.create("else")
    asker.put()
    other = asker.receive_one()
    name = late.message.message_id
    made_up = late.receipt[:-2] + ("AA" if late.receipt[-2:] != "AA" else "BA")
    after = asker.last_seq()
    for command in (
        c.Complete(ACCOUNT, QUEUE, name, other.receipt),
        c.Complete(ACCOUNT, QUEUE, name, made_up),
        c.Complete(ACCOUNT, QUEUE, name, "nonsense"),
        c.Complete("other", QUEUE, name, late.receipt),
        c.Complete(ACCOUNT, "else", name, late.receipt),
    ):
        answer = asker.ask(command)
        assert type(answer) is MessageNotFound
        assert not answer.late
    asker.renew(late, 30)
    asker.release(late)
    assert asker.events(after) == []


def test_a_purged_message_tells_nothing(asker: Asker) -> None:
    """Nothing is left that would say when its lease began."""
    asker.put()
    lease = asker.receive_one(lease_s=10)
    asker.ask(c.Clear(ACCOUNT, QUEUE))
    after = asker.last_seq()
    answer = asker.complete(lease)
    assert type(answer) is MessageNotFound
    assert not answer.late
    assert asker.events(after) == []


def test_a_queue_without_a_log_has_no_event_of_it(asker: Asker) -> None:
    """The setting of the queue that was asked counts."""
    late, _ = set_aside(asker)
    asker.govern(event_log=False)
    assert late_after(asker, 5, late) == []
