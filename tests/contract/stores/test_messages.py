"""Contract: putting, receiving and peeking."""

from __future__ import annotations

import re

import pytest

from leasehold.domain import commands as c
from leasehold.domain.errors import QueueNotFound, VisibilityPastExpiry
from leasehold.domain.model import NEVER_MS

from .conftest import ACCOUNT, QUEUE, Asker


def test_a_message_comes_back_as_it_was_put(asker: Asker) -> None:
    """Body, id and times are those of the answer to the put; the first receive counts one."""
    body = bytes(range(256)) * 100
    put = asker.put(body, time_to_live_s=100)
    now_ms = asker.clock.now_ms()
    assert put.message.inserted_at_ms == put.message.visible_at_ms == now_ms
    assert put.message.expires_at_ms == now_ms + 100_000
    lease = asker.receive_one(lease_s=10)
    assert lease.message.message_id == put.message.message_id
    assert lease.message.body == body
    assert lease.message.dequeue_count == 1
    assert lease.message.visible_at_ms == now_ms + 10_000
    assert lease.message.expires_at_ms == now_ms + 100_000


def test_ids_and_receipts_are_unique_and_safe_in_urls(asker: Asker) -> None:
    """Ids are lower-case UUIDs; receipts differ even within one batch and need no escaping."""
    asker.batch(*(asker.put_command() for _ in range(32)))
    leases = asker.receive(32)
    assert len({lease.message.message_id for lease in leases}) == 32
    assert len({lease.receipt for lease in leases}) == 32
    for lease in leases:
        assert re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", lease.message.message_id)
        assert re.fullmatch(r"[A-Za-z0-9_-]+", lease.receipt)


def test_empty_body(asker: Asker) -> None:
    """An empty body is a body."""
    asker.put(b"")
    assert asker.receive_one().message.body == b""


def test_delayed_message_is_received_at_its_time_and_not_before(asker: Asker) -> None:
    """A delay holds to the millisecond."""
    asker.put(delay_s=10)
    asker.clock.advance(ms=9_999)
    assert asker.receive() == ()
    assert asker.peek() == ()
    asker.clock.advance(ms=1)
    assert asker.receive_one().message.dequeue_count == 1


def test_put_is_refused_when_it_would_never_be_visible(asker: Asker) -> None:
    """A delay must be shorter than the time to live; equal is too long."""
    assert isinstance(asker.put(delay_s=30, time_to_live_s=30), VisibilityPastExpiry)
    assert asker.count() == 0
    assert asker.put(delay_s=29, time_to_live_s=30).message.body == b"work"


def test_leased_message_is_exclusive_until_its_lease_ends(asker: Asker) -> None:
    """Nobody receives it before; at the very moment the lease ends somebody may."""
    asker.put()
    asker.receive_one(lease_s=30)
    asker.clock.advance(ms=29_999)
    assert asker.receive() == ()
    asker.clock.advance(ms=1)
    assert asker.receive_one().message.dequeue_count == 2


def test_expired_message_is_neither_received_nor_seen(asker: Asker) -> None:
    """Time to live ends to the millisecond."""
    asker.put(time_to_live_s=5)
    asker.clock.advance(ms=4_999)
    assert len(asker.peek()) == 1
    asker.clock.advance(ms=1)
    assert asker.peek() == ()
    assert asker.receive() == ()


def test_a_message_without_time_to_live_never_expires(asker: Asker) -> None:
    """A century later it is still there."""
    assert asker.put(time_to_live_s=None).message.expires_at_ms == NEVER_MS
    asker.clock.advance(s=100 * 366 * 86_400)
    asker.ask(c.RetireExpired(10))
    assert asker.receive_one().message.dequeue_count == 1


def test_order_is_by_next_visible_time_then_age(asker: Asker) -> None:
    """What became visible first is received first, wherever it stood when it was put."""
    asker.put("late", delay_s=5)
    asker.put("first")
    asker.put("second")
    taken = asker.receive_one(lease_s=2)
    assert taken.message.body == b"first"
    asker.clock.advance(s=10)
    assert asker.bodies() == [b"second", b"first", b"late"]
    assert [lease.message.body for lease in asker.receive(2)] == [b"second", b"first"]


def test_receive_takes_no_more_than_asked(asker: Asker) -> None:
    """The limit is an upper bound; fewer come when there are fewer."""
    for index in range(5):
        asker.put(str(index))
    assert len(asker.receive(3)) == 3
    assert len(asker.receive(32)) == 2
    assert asker.receive(32) == ()


def test_peek_changes_nothing(asker: Asker) -> None:
    """Peeking leaves dequeue count, visibility and fence alone."""
    asker.put()
    assert asker.peek() == asker.peek()
    assert asker.peek()[0].dequeue_count == 0
    assert asker.receive_one().message.dequeue_count == 1


def test_lease_may_outlast_the_message(asker: Asker) -> None:
    """A receive may ask for longer than the message lives; expiry still wins."""
    asker.put(time_to_live_s=10)
    lease = asker.receive_one(lease_s=3600)
    assert lease.message.visible_at_ms > lease.message.expires_at_ms
    asker.clock.advance(s=10)
    assert asker.complete(lease) != c.DONE


def test_count_is_of_all_messages_visible_or_not(asker: Asker) -> None:
    """Leased and delayed messages count, completed ones do not."""
    asker.put()
    asker.put(delay_s=60)
    lease = asker.receive_one()
    assert asker.count() == 2
    asker.complete(lease)
    assert asker.count() == 1


def test_commands_of_a_batch_see_what_those_before_did(asker: Asker) -> None:
    """A batch is carried out in order, as if each command had been alone."""
    first, second = asker.put_command("one"), asker.put_command("two")
    results = asker.batch(
        first,
        c.Receive(ACCOUNT, QUEUE, 1, 30),
        second,
        c.Receive(ACCOUNT, QUEUE, 32, 30),
        c.GetQueue(ACCOUNT, QUEUE),
    )
    bodies = [[lease.message.body for lease in results[index]] for index in (1, 3)]  # type: ignore[attr-defined]
    assert bodies == [[b"one"], [b"two"]]
    assert results[4].message_count == 2  # type: ignore[attr-defined]


def test_receives_of_one_batch_share_the_messages(asker: Asker) -> None:
    """No message goes to two receivers; each gets its own lease length; queues do not mix."""
    asker.create("other")
    for index in range(4):
        asker.put(str(index))
    asker.put("elsewhere", queue="other")
    now_ms = asker.clock.now_ms()
    one, other, missing, two = asker.batch(
        c.Receive(ACCOUNT, QUEUE, 1, 10),
        c.Receive(ACCOUNT, "other", 5, 20),
        c.Receive(ACCOUNT, "missing", 5, 20),
        c.Receive(ACCOUNT, QUEUE, 32, 30),
    )
    assert [lease.message.body for lease in one] == [b"0"]  # type: ignore[attr-defined]
    assert [lease.message.body for lease in other] == [b"elsewhere"]  # type: ignore[attr-defined]
    assert isinstance(missing, QueueNotFound)
    assert [lease.message.body for lease in two] == [b"1", b"2", b"3"]  # type: ignore[attr-defined]
    assert {lease.message.visible_at_ms for lease in two} == {now_ms + 30_000}  # type: ignore[attr-defined]


def test_one_refused_command_does_not_disturb_its_batch(asker: Asker) -> None:
    """Each command of a batch succeeds or is refused by itself."""
    good, bad = asker.put_command("good"), asker.put_command("bad", queue="missing")
    results = asker.batch(good, bad, asker.put_command("late", delay_s=9, time_to_live_s=9), good)
    assert [type(result).__name__ for result in results] == [
        "Lease",
        "QueueNotFound",
        "VisibilityPastExpiry",
        "Lease",
    ]
    assert asker.bodies() == [b"good", b"good"]


@pytest.mark.parametrize("size", [1, 1_000, 4_096, 65_536])
def test_bodies_of_every_size_survive_a_renewal(asker: Asker, size: int) -> None:
    """A renewal without a body keeps the body, whatever its size."""
    body = bytes(index % 251 for index in range(size))
    asker.put(body)
    lease = asker.renew(asker.receive_one(), 0)
    assert lease.message.body == body
    assert asker.receive_one().message.body == body
