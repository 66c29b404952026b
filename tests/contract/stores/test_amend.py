"""Contract: changing and removing messages without a receipt."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest

from leasehold.domain import admin as o
from leasehold.domain import commands as c
from leasehold.domain.errors import (
    LeaseLost,
    MessageLeased,
    MessageNotFound,
    QueueNotFound,
    VisibilityPastExpiry,
)
from leasehold.domain.model import NEVER_MS, Detail, Lease, MessageState, Outcome

from .conftest import ACCOUNT, POISON, QUEUE, Asker

Change = Callable[[Asker, Lease], Any]
CHANGES: dict[str, Change] = {
    "amend": lambda asker, lease: asker.amend(lease, body=b"changed"),
    "remove": lambda asker, lease: asker.remove(lease),
}
FORCED: dict[str, Change] = {
    "amend": lambda asker, lease: asker.amend(lease, body=b"changed", force=True),
    "remove": lambda asker, lease: asker.remove(lease, force=True),
}
each_change = pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
each_forced = pytest.mark.parametrize("change", FORCED.values(), ids=FORCED)


# --- cancel ------------------------------------------------------------------------------------


def test_a_message_can_be_cancelled_while_it_waits(asker: Asker) -> None:
    """Delayed, visible or deferred, it is gone as if it had been completed."""
    asker.put("deferred")
    deferred = asker.receive_one()
    asker.release(deferred, delay_s=60)
    asker.put("lapsed")
    lapsed = asker.receive_one(lease_s=1)
    asker.clock.advance(s=1)
    waiting = [deferred, lapsed, asker.put("delayed", delay_s=60), asker.put("visible")]
    assert asker.split() == (2, 0, 1, 1, 0)
    for lease in waiting:
        assert asker.remove(lease) == c.DONE
        assert isinstance(asker.find(lease), MessageNotFound)
        assert isinstance(asker.remove(lease), MessageNotFound)
    assert asker.split() == (0, 0, 0, 0, 0)
    assert asker.count() == 0
    asker.clock.advance(s=100)
    assert asker.receive() == ()


@each_change
def test_a_leased_message_is_left_to_its_holder(asker: Asker, change: Change) -> None:
    """The refusal says who has it and until when; nothing has changed for the holder."""
    asker.put()
    lease = asker.receive_one(holder="w1")
    refused = change(asker, lease)
    assert isinstance(refused, MessageLeased)
    assert (refused.holder, refused.until_ms) == ("w1", lease.message.visible_at_ms)
    assert asker.find(lease).message == lease.message
    assert asker.complete(lease) == c.DONE


@each_change
def test_a_lease_that_has_run_out_protects_nothing(asker: Asker, change: Change) -> None:
    """From the very moment it ends, the message is waiting like any other."""
    asker.put()
    lease = asker.receive_one(lease_s=30)
    asker.clock.advance(ms=29_999)
    assert isinstance(change(asker, lease), MessageLeased)
    asker.clock.advance(ms=1)
    assert not isinstance(change(asker, lease), Exception)


@each_forced
def test_force_ends_a_lease(asker: Asker, change: Change) -> None:
    """The holder finds its receipt dead."""
    asker.put()
    lease = asker.receive_one(holder="w1")
    assert not isinstance(change(asker, lease), Exception)
    for refused in (asker.complete(lease), asker.renew(lease, 30), asker.release(lease)):
        assert isinstance(refused, LeaseLost | MessageNotFound)


@each_change
def test_a_race_for_a_message_has_one_winner(asker: Asker, change: Change) -> None:
    """Received before, it cannot be cancelled; cancelled before, it is not received as it was."""
    receive = c.Receive(ACCOUNT, QUEUE, 1, 30)
    first, second = asker.put("first"), asker.put("second")
    named = (ACCOUNT, QUEUE)
    for lease, receive_first in ((first, True), (second, False)):
        command = (
            o.Remove(*named, lease.message.message_id)
            if change is CHANGES["remove"]
            else o.Amend(*named, lease.message.message_id, delay_s=600)
        )
        if receive_first:
            (received,), cancelled = cast("Any", asker.batch(receive, command))
            assert received.message.message_id == lease.message.message_id
            assert isinstance(cancelled, MessageLeased)
            assert asker.complete(received) == c.DONE
        else:
            cancelled, received = asker.batch(command, receive)
            assert not isinstance(cancelled, Exception)
            assert received == ()


@each_change
def test_what_cannot_be_had_cannot_be_changed(asker: Asker, change: Change) -> None:
    """Expired, completed, cleared, poisoned and unknown messages are not found."""
    expired = asker.put(time_to_live_s=5)
    asker.clock.advance(s=5)
    assert isinstance(change(asker, expired), MessageNotFound)
    asker.ask(c.RetireExpired(10))
    assert isinstance(change(asker, expired), MessageNotFound)
    poisoned = asker.bury("bad")
    assert isinstance(change(asker, poisoned), MessageNotFound)
    completed = asker.put()
    asker.complete(completed)
    assert isinstance(change(asker, completed), MessageNotFound)
    cleared = asker.put()
    asker.ask(c.Clear(ACCOUNT, QUEUE))
    assert isinstance(change(asker, cleared), MessageNotFound)
    for message_id in ("", "nonsense", "00000000-0000-8000-8000-000000000000"):
        unknown = cleared._replace(message=cleared.message._replace(message_id=message_id))
        assert isinstance(change(asker, unknown), MessageNotFound)
    asker.ask(c.DeleteQueue(ACCOUNT, QUEUE))
    assert isinstance(change(asker, cleared), QueueNotFound)
    assert asker.counts(POISON).visible == 1


def test_a_poisoned_message_is_changed_in_its_poison_queue(asker: Asker) -> None:
    """There it is a message like any other."""
    bad = asker.bury("bad")
    assert asker.amend(bad, queue=POISON, body=b"mended").queue == POISON
    assert asker.received(queue=POISON) == [b"mended"]


# --- re-time -----------------------------------------------------------------------------------


def test_a_delay_can_be_changed(asker: Asker) -> None:
    """From now on, longer or shorter, and 0 is at once."""
    put = asker.put(delay_s=3600)
    asker.clock.advance(s=10)
    seen = asker.amend(put, delay_s=20)
    assert seen.state is MessageState.DELAYED
    assert seen.message.visible_at_ms == asker.clock.now_ms() + 20_000
    asker.clock.advance(ms=19_999)
    assert asker.receive() == ()
    assert asker.amend(put, delay_s=0).state is MessageState.VISIBLE
    assert len(asker.receive()) == 1


def test_a_visible_message_can_be_put_off(asker: Asker) -> None:
    """It is delayed before its first lease, and deferred after one."""
    put = asker.put()
    assert asker.amend(put, delay_s=10).state is MessageState.DELAYED
    asker.clock.advance(s=10)
    asker.release(asker.receive_one())
    assert asker.amend(put, delay_s=10).state is MessageState.DEFERRED
    assert asker.split() == (0, 0, 0, 1, 0)
    asker.clock.advance(s=10)
    assert asker.split() == (1, 0, 0, 0, 0)


def test_a_lease_ended_by_force_is_an_attempt(asker: Asker) -> None:
    """It is written down as ended, and the message is visible or waits as asked."""
    put = asker.put()
    asker.receive_one(holder="w1")
    assert asker.amend(put, body=b"x", force=True).state is MessageState.VISIBLE
    asker.receive_one(holder="w2")
    seen = asker.amend(put, delay_s=10, force=True)
    assert seen.state is MessageState.DEFERRED
    attempts = seen.message.detail.attempts
    assert [(each.outcome, each.holder) for each in attempts] == [
        (Outcome.ENDED, "w1"),
        (Outcome.ENDED, "w2"),
    ]


def test_a_time_to_live_can_be_changed(asker: Asker) -> None:
    """From now on; -1 is for ever."""
    put = asker.put(time_to_live_s=10)
    asker.clock.advance(s=9)
    seen = asker.amend(put, time_to_live_s=10)
    assert seen.message.expires_at_ms == asker.clock.now_ms() + 10_000
    asker.clock.advance(s=9)
    assert len(asker.peek()) == 1
    assert asker.amend(put, time_to_live_s=-1).message.expires_at_ms == NEVER_MS
    asker.clock.advance(s=10**9)
    asker.ask(c.RetireExpired(10))
    assert len(asker.peek()) == 1
    asker.amend(put, time_to_live_s=1)
    asker.clock.advance(s=1)
    assert asker.peek() == ()
    assert asker.ask(c.RetireExpired(10)) == c.Swept(1)


@pytest.mark.parametrize(
    "change",
    [{"delay_s": 100}, {"time_to_live_s": 0}, {"delay_s": 10, "time_to_live_s": 10}],
)
def test_a_change_past_expiry_is_refused_whole(asker: Asker, change: dict[str, Any]) -> None:
    """A message that could not be received any more is left as it was."""
    put = asker.put(time_to_live_s=100)
    refused = asker.amend(put, body=b"changed", **change)
    assert isinstance(refused, VisibilityPastExpiry)
    assert asker.find(put).message == put.message
    assert not isinstance(asker.amend(put, delay_s=99), Exception)


# --- edit --------------------------------------------------------------------------------------


def test_what_is_not_named_stays(asker: Asker) -> None:
    """Each part can be changed alone; the fence rises each time."""
    detail = Detail(properties={"a": "1"}, message_type="t", dedup_key="k")
    message = asker.put("body", delay_s=60, priority=3, detail=detail).message
    lease = Lease(message, "")
    changes: list[dict[str, Any]] = [
        {"body": b""},
        {"priority": 5},
        {"properties": {"b": "2"}},
        {"properties": {}},
        {"delay_s": 30},
        {"time_to_live_s": 90},
    ]
    for change in changes:
        before = asker.find(lease).message
        after = asker.amend(lease, **change).message
        expected = before._replace(fence=before.fence + 1)
        if "body" in change:
            expected = expected._replace(body=change["body"])
        elif "priority" in change:
            expected = expected._replace(priority=change["priority"])
        elif "properties" in change:
            changed = Detail(properties=change["properties"], message_type="t", dedup_key="k")
            expected = expected._replace(detail=changed)
        elif "delay_s" in change:
            expected = expected._replace(visible_at_ms=asker.clock.now_ms() + 30_000)
        else:
            expected = expected._replace(expires_at_ms=asker.clock.now_ms() + 90_000)
        assert after == expected
        assert asker.find(lease).message == after


def test_the_sender_of_a_message_that_was_changed_holds_nothing(asker: Asker) -> None:
    """The receipt of the put is dead, whatever was changed."""
    put = asker.put(delay_s=60)
    asker.amend(put, priority=1)
    refused = asker.complete(put)
    assert isinstance(refused, LeaseLost)
    assert refused.reason == "superseded"


def test_a_changed_message_is_received_as_changed(asker: Asker) -> None:
    """Whether it was received before or not."""
    put = asker.put("old", delay_s=5)
    asker.amend(put, body=b"new", properties={"n": "1"})
    asker.clock.advance(s=5)
    lease = asker.receive_one()
    assert (lease.message.body, lease.message.detail.properties) == (b"new", {"n": "1"})
    asker.release(lease)
    asker.amend(put, body=b"newer")
    assert asker.received() == [b"newer"]
