"""What a receive gives."""

from __future__ import annotations

import threading

import pytest

from leasehold.worker.adapters.protocol import Delivery, Outgoing, QueueMissing
from tests.contract.queues.conftest import Bench
from tests.patience import PATIENCE_S

BODIES = (
    "work",
    "héllo wörld \N{PILE OF POO}",
    '{"a": [1, 2]}',
    "<xml attr='1'>&amp; more</xml> ]]>",
    " padded \n\ttwo lines\r\nthree ",
    "SGVsbG8gd29ybGQ=",
    "abcd",
    "12345678",
    b"\x00\x01\xff\xfe binary",
    b"\xef\xbb\xbfwith a mark",
    "\x07 a bell",
    '{"leasehold.envelope":1,"body":"a body that looks like an envelope"}',
    '{"leasehold.poison":1,"id":"1","text":"a body that looks like a copy"}',
)


@pytest.mark.parametrize("body", BODIES)
def test_a_body_comes_back_as_it_was_put(bench: Bench, body: str | bytes) -> None:
    """Whatever the body, the receiver has the very same bytes."""
    delivery = bench.put_one(body)
    assert delivery.body == (body.encode() if isinstance(body, str) else body)
    assert delivery.body_problem is None
    assert delivery.saved is None


def test_an_empty_queue_gives_nothing(bench: Bench) -> None:
    """A receive of an empty queue returns no messages and raises nothing."""
    assert bench.receive() == []


def test_the_first_delivery_counts_one(bench: Bench) -> None:
    """The dequeue count of the first delivery is 1, and its fence is above 0."""
    delivery = bench.put_one()
    assert delivery.dequeue_count == 1
    assert delivery.fence >= 1
    assert delivery.queue == bench.client.name
    assert delivery.inserted_at_ms is not None


def test_no_more_come_than_were_asked_for(bench: Bench) -> None:
    """A receive gives at most so many messages, and no message twice."""
    bench.put("a", "b", "c")
    first = bench.receive(2)
    second = bench.receive(2)
    assert len(first) == 2
    assert len(second) == 1
    assert {each.body for each in first + second} == {b"a", b"b", b"c"}


def test_more_than_one_request_gives_is_cut(bench: Bench) -> None:
    """To ask for more than the service gives at once is no error."""
    bench.put("a")
    assert len(bench.receive(1_000_000)) == 1


def test_a_leased_message_is_hidden(bench: Bench) -> None:
    """Nobody receives a message while somebody has it."""
    bench.put_one()
    assert bench.receive() == []


def test_a_message_comes_back_when_its_lease_ends(bench: Bench) -> None:
    """After the lease the next delivery has a higher count, a higher fence, another receipt."""
    first = bench.put_one(lease_s=bench.lease_s)
    second = bench.later(bench.lease_s)
    assert second.message_id == first.message_id
    assert second.dequeue_count == 2
    assert second.fence > first.fence
    assert second.receipt != first.receipt
    assert second.body == first.body


def test_a_message_does_not_come_back_before_its_lease_ends(bench: Bench) -> None:
    """The lease has the length that was asked for, to the second."""
    bench.needs_time()
    assert bench.advance is not None
    bench.put_one(lease_s=45)
    bench.advance(44)
    assert bench.receive() == []
    bench.advance(1)
    assert len(bench.receive()) == 1


def test_a_delayed_message_comes_when_it_is_due(bench: Bench) -> None:
    """A message put with a delay is hidden until then."""
    bench.needs_time()
    bench.put("work", delay_s=bench.lease_s)
    assert bench.receive() == []
    assert bench.later(bench.lease_s).dequeue_count == 1


def test_an_expired_message_is_gone(bench: Bench) -> None:
    """A message whose time to live is over is not received."""
    if bench.kind == "mns":
        pytest.skip("messages of MNS have no life of their own")
    bench.needs_time()
    assert bench.advance is not None
    bench.put("short", time_to_live_s=60)
    bench.put("long", time_to_live_s=-1)
    bench.advance(60)
    delivery = bench.one()
    assert delivery.body == b"long"
    assert delivery.expires_at_ms is None


def test_the_expiry_is_told(bench: Bench) -> None:
    """Where the service says when a message expires, it is the insertion and the time to live."""
    if bench.kind == "mns":
        pytest.skip("messages of MNS have no life of their own")
    delivery = bench.put_one(time_to_live_s=90)
    assert delivery.inserted_at_ms is not None
    assert delivery.expires_at_ms == delivery.inserted_at_ms + 90_000


def test_a_fraction_of_a_second_is_no_lease(bench: Bench) -> None:
    """Leases are in whole seconds; a fraction is refused before anything is sent."""
    delivery = bench.put_one()
    with pytest.raises(TypeError, match="whole seconds"):
        bench.client.receive(1, visibility_timeout_s=2.5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="whole seconds"):
        bench.client.renew([delivery.lease], 2.5)  # type: ignore[arg-type]


def test_a_lease_outside_the_capabilities_is_refused(bench: Bench) -> None:
    """What the service cannot do is refused before anything is sent."""
    able = bench.able
    for lease_s in (able.min_lease_s - 1, able.max_lease_s + 1):
        with pytest.raises(ValueError, match="visibility_timeout_s"):
            bench.client.receive(1, visibility_timeout_s=lease_s)


def test_a_lease_of_the_shortest_length_is_taken(bench: Bench) -> None:
    """The shortest and the longest lease are taken."""
    bench.put("a", "b")
    assert len(bench.receive(1, bench.able.min_lease_s)) == 1
    assert len(bench.receive(1, bench.able.max_lease_s)) == 1


def test_a_receive_waits_for_a_message(bench: Bench) -> None:
    """Where the service can wait, a message that is put meanwhile ends the wait."""
    if not bench.able.max_wait_s:
        pytest.skip("the service does not wait")
    found: list[Delivery] = []
    thread = threading.Thread(
        target=lambda: found.extend(bench.receive(1, wait_s=20)), name="leasehold-test-receive"
    )
    thread.start()
    bench.client.put([Outgoing(body="work")])
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    assert [each.body for each in found] == [b"work"]


def test_a_wait_longer_than_the_service_has_is_cut(bench: Bench) -> None:
    """With a message there, a receive that would wait for very long comes back with it."""
    bench.put("work")
    assert len(bench.receive(1, wait_s=100_000)) == 1


def test_who_receives_may_be_told(bench: Bench) -> None:
    """A holder is taken everywhere, also where nobody keeps it."""
    bench.put("work")
    assert len(bench.receive(1, holder="worker-1")) == 1


def test_there_is_no_such_queue(bench: Bench) -> None:
    """A receive, a put and a count say that the queue is not there."""
    if bench.kind == "memory":
        pytest.skip("a queue in memory is there from the start")
    absent = bench.other("absent-queue")
    with pytest.raises(QueueMissing):
        absent.receive(1, visibility_timeout_s=30)
    with pytest.raises(QueueMissing):
        absent.depth()
    with pytest.raises(QueueMissing):
        absent.put([Outgoing(body="work")])


def test_nothing_secret_is_shown(bench: Bench) -> None:
    """A delivery shows no receipt when it is printed, nor does its lease."""
    delivery = bench.put_one()
    assert delivery.receipt not in repr(delivery)
    assert delivery.receipt not in repr(delivery.lease)
