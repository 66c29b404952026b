"""Contract: an operator ends a lease."""

from __future__ import annotations

from leasehold.domain import admin as o
from leasehold.domain import commands as c
from leasehold.domain.errors import (
    LeaseLost,
    MessageNotFound,
    MessageNotLeased,
    QueueNotFound,
    VisibilityPastExpiry,
)
from leasehold.domain.model import Attempt, ErrorReport, MessageState, Outcome

from .conftest import ACCOUNT, QUEUE, Asker


def test_an_ended_lease_makes_the_message_visible_at_once(asker: Asker) -> None:
    """The next receive gets it, and the holder of before cannot act any more."""
    asker.put()
    lease = asker.receive_one(lease_s=3600)
    seen = asker.end_lease(lease)
    assert (seen.state, seen.queue) == (MessageState.VISIBLE, QUEUE)
    assert asker.split() == (1, 0, 0, 0, 0)
    for refused in (asker.complete(lease), asker.renew(lease, 30), asker.release(lease)):
        assert isinstance(refused, LeaseLost)
        assert refused.reason == "superseded"
    again = asker.receive_one()
    assert again.message.dequeue_count == 2
    assert again.message.fence > lease.message.fence + 1
    assert asker.complete(again) == c.DONE


def test_an_ended_lease_can_leave_a_delay(asker: Asker) -> None:
    """The message is deferred until then."""
    asker.put()
    seen = asker.end_lease(asker.receive_one(), delay_s=10)
    assert seen.state is MessageState.DEFERRED
    assert asker.split() == (0, 0, 0, 1, 0)
    asker.clock.advance(ms=9_999)
    assert asker.receive() == ()
    asker.clock.advance(ms=1)
    assert len(asker.receive()) == 1


def test_an_ended_lease_is_an_attempt_with_its_reason(asker: Asker) -> None:
    """Who had it, for how long, and why it was ended."""
    start_ms = asker.clock.now_ms()
    asker.put()
    lease = asker.receive_one(holder="w1")
    asker.clock.advance(s=5)
    seen = asker.end_lease(lease, reason="w1 is stuck")
    assert seen.message.detail.attempts == (
        Attempt(
            number=1,
            leased_at_ms=start_ms,
            ended_at_ms=start_ms + 5_000,
            outcome=Outcome.ENDED,
            holder="w1",
            error=ErrorReport(text="w1 is stuck"),
            fence=1,
        ),
    )
    assert asker.find(lease) == seen


def test_an_ended_lease_never_poisons_by_itself(asker: Asker) -> None:
    """Whoever ended it wants to see the message in its queue; the next receive may not get it."""
    asker.limit_failures(max_deliveries=1)
    asker.put()
    assert asker.end_lease(asker.receive_one()).state is MessageState.VISIBLE
    assert asker.split() == (1, 0, 0, 0, 0)
    assert asker.receive() == ()
    assert asker.split() == (0, 0, 0, 0, 1)


def test_only_a_lease_can_be_ended(asker: Asker) -> None:
    """Not one that has run out, nor a delay, nor a deferral."""
    delayed = asker.put(delay_s=60)
    visible = asker.put()
    for lease in (delayed, visible):
        assert isinstance(asker.end_lease(lease), MessageNotLeased)
    lease = asker.receive_one(lease_s=10)
    asker.clock.advance(s=10)
    assert isinstance(asker.end_lease(lease), MessageNotLeased)
    asker.release(asker.receive_one(), delay_s=60)
    assert isinstance(asker.end_lease(lease), MessageNotLeased)
    assert asker.complete(delayed) == c.DONE


def test_a_delay_past_expiry_is_refused(asker: Asker) -> None:
    """The lease then goes on."""
    asker.put(time_to_live_s=100)
    lease = asker.receive_one()
    assert isinstance(asker.end_lease(lease, delay_s=100), VisibilityPastExpiry)
    assert asker.complete(lease) == c.DONE


def test_a_lease_that_is_not_there_cannot_be_ended(asker: Asker) -> None:
    """Expired, completed and unknown messages are not found."""
    asker.put(time_to_live_s=5)
    lease = asker.receive_one(lease_s=60)
    asker.clock.advance(s=5)
    assert isinstance(asker.end_lease(lease), MessageNotFound)
    asker.put()
    lease = asker.receive_one()
    asker.complete(lease)
    assert isinstance(asker.end_lease(lease), MessageNotFound)
    missing = o.EndLease(ACCOUNT, "missing", lease.message.message_id)
    assert isinstance(asker.ask(missing), QueueNotFound)


def test_a_race_with_the_holder_has_one_winner(asker: Asker) -> None:
    """Whichever comes first in a batch decides."""
    for ends_first in (True, False):
        asker.put()
        lease = asker.receive_one()
        end = o.EndLease(ACCOUNT, QUEUE, lease.message.message_id)
        complete = asker.complete_command(lease)
        results = asker.batch(*((end, complete) if ends_first else (complete, end)))
        assert isinstance(results[0], o.Seen if ends_first else c.Done)
        assert isinstance(results[1], LeaseLost if ends_first else MessageNotFound)
        assert asker.count() == ends_first
        asker.ask(c.Clear(ACCOUNT, QUEUE))
