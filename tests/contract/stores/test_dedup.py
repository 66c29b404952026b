"""Contract: a key that is sent again within the window is the same message."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from leasehold.domain import commands as c
from leasehold.domain.errors import VisibilityPastExpiry
from leasehold.domain.model import Detail, Lease, Outcome
from leasehold.stores.sqlite import SqliteStore
from leasehold.testing import ManualClock

from .conftest import ACCOUNT, POISON, QUEUE, Asker

WINDOW_MS = 300_000
KEYED = Detail(dedup_key="order-7")


def put_keyed(asker: Asker, body: str = "work", key: str = "order-7", **fields: Any) -> Any:
    return asker.put(body, detail=Detail(dedup_key=key), **fields)


def test_the_second_send_of_a_key_puts_nothing(asker: Asker) -> None:
    """It is answered with the id, the receipt and the times of the first message as it was put."""
    first = put_keyed(asker, "one", delay_s=5, time_to_live_s=1000)
    asker.clock.advance(s=2)
    again = put_keyed(asker, "two")
    assert again == c.Duplicate(
        first.message.message_id,
        first.receipt,
        first.message.inserted_at_ms,
        first.message.expires_at_ms,
        first.message.visible_at_ms,
    )
    asker.clock.advance(s=3)
    assert asker.received() == [b"one"]
    assert asker.count() == 1


def test_the_receipt_of_a_duplicate_is_that_of_the_first_send(asker: Asker) -> None:
    """A sender that sends again after a lost answer can still take the message back."""
    put_keyed(asker, delay_s=60)
    again = put_keyed(asker, delay_s=60)
    assert asker.ask(c.Complete(ACCOUNT, QUEUE, again.message_id, again.receipt)) == c.DONE
    assert asker.count() == 0


def test_two_of_one_batch_are_one_message(asker: Asker) -> None:
    """Also in one transaction the first one decides, whether or not the batch is atomic."""
    put = asker.put_command(detail=KEYED)
    first, again = asker.batch(put, put)
    assert isinstance(first, Lease)
    assert isinstance(again, c.Duplicate)
    assert again.message_id == first.message.message_id
    for atomic in (False, True):
        (batched,) = asker.batch(c.Batch((put, put), atomic))
        assert [each.message_id for each in batched] == [first.message.message_id] * 2  # type: ignore[attr-defined]
    assert asker.count() == 1


def test_keys_are_told_apart_and_no_key_is_no_key(asker: Asker) -> None:
    """Other keys, other queues and messages without a key are other messages."""
    asker.create("other")
    put_keyed(asker, "one")
    put_keyed(asker, "two", "order-8")
    put_keyed(asker, "three", "Order-7")
    put_keyed(asker, "four", queue="other")
    asker.put("five")
    asker.put("six")
    assert asker.count() == 5
    assert asker.count("other") == 1


def test_the_window_ends_to_the_millisecond(asker: Asker) -> None:
    """It is counted from the first send; a duplicate does not lengthen it."""
    first = put_keyed(asker)
    asker.clock.advance(ms=WINDOW_MS - 1)
    assert isinstance(put_keyed(asker), c.Duplicate)
    asker.clock.advance(ms=1)
    second = put_keyed(asker)
    assert isinstance(second, Lease)
    assert second.message.message_id != first.message.message_id
    assert put_keyed(asker).message_id == second.message.message_id


def test_a_key_outlives_its_message(asker: Asker) -> None:
    """What has been completed is not done twice because it was sent twice."""
    first = put_keyed(asker)
    asker.complete(asker.receive_one())
    again = put_keyed(asker)
    assert again.message_id == first.message.message_id
    assert asker.count() == 0


def test_a_key_outlives_expiry_and_the_sweep(asker: Asker) -> None:
    """A short-lived message that is gone keeps its key until the window ends."""
    first = put_keyed(asker, time_to_live_s=10)
    asker.clock.advance(s=20)
    asker.ask(c.RetireExpired(10))
    asker.ask(c.RemoveRetired(asker.clock.now_ms(), 10))
    assert put_keyed(asker).message_id == first.message.message_id


def test_a_key_outlives_a_clear(asker: Asker) -> None:
    """Emptying a queue is no reason to do again what was sent before."""
    first = put_keyed(asker)
    asker.ask(c.Clear(ACCOUNT, QUEUE))
    assert put_keyed(asker).message_id == first.message.message_id
    assert asker.count() == 0
    asker.clock.advance(ms=WINDOW_MS)
    assert isinstance(put_keyed(asker), Lease)


def test_a_key_goes_with_its_queue(asker: Asker) -> None:
    """A queue made anew knows nothing of what was sent to the one before."""
    put_keyed(asker)
    asker.ask(c.DeleteQueue(ACCOUNT, QUEUE))
    asker.create()
    assert isinstance(put_keyed(asker), Lease)


def test_a_key_survives_a_restart(tmp_path: Path, clock: ManualClock) -> None:
    """A store on disk remembers keys as it does messages."""
    asker = Asker(SqliteStore(tmp_path, cache_mib=2), clock)
    asker.create()
    first = put_keyed(asker)
    asker.store.close()
    asker.store = SqliteStore(tmp_path, cache_mib=2)
    again = put_keyed(asker)
    assert (again.message_id, again.receipt) == (first.message.message_id, first.receipt)
    asker.store.close()


def test_a_key_follows_no_message_to_the_poison_queue(asker: Asker) -> None:
    """A key is of the queue that it was sent to, also when the message has moved."""
    first = put_keyed(asker)
    asker.release(asker.receive_one(), Outcome.BURIED)
    assert put_keyed(asker).message_id == first.message.message_id
    assert isinstance(put_keyed(asker, queue=POISON), Lease)
    assert asker.split() == (0, 0, 0, 0, 2)


def test_the_window_is_a_setting(asker: Asker) -> None:
    """The one in force at the first send counts."""
    asker.govern(dedup_window_s=10)
    put_keyed(asker)
    asker.govern(dedup_window_s=1000)
    put_keyed(asker, key="longer")
    asker.clock.advance(s=10)
    assert isinstance(put_keyed(asker, "after"), Lease)
    assert isinstance(put_keyed(asker, key="longer"), c.Duplicate)


def test_a_window_of_nothing_remembers_nothing(asker: Asker) -> None:
    """The key is kept with the message, and that is all."""
    asker.govern(dedup_window_s=0)
    for _ in range(2):
        assert isinstance(put_keyed(asker), Lease)
    assert [lease.message.detail.dedup_key for lease in asker.receive(2)] == ["order-7"] * 2


def test_a_refused_send_leaves_no_key(asker: Asker) -> None:
    """What was not put can be sent again in a better form."""
    refused = put_keyed(asker, delay_s=30, time_to_live_s=30)
    assert isinstance(refused, VisibilityPastExpiry)
    assert isinstance(put_keyed(asker), Lease)


def test_a_duplicate_is_told_before_its_times_are_judged(asker: Asker) -> None:
    """The first send is what counts, whatever the second one asks for."""
    put_keyed(asker)
    assert isinstance(put_keyed(asker, delay_s=30, time_to_live_s=30), c.Duplicate)


@pytest.mark.parametrize("swept", [False, True])
def test_forgetting_takes_only_keys_whose_window_is_over(asker: Asker, swept: bool) -> None:
    """The sweep goes by slices, the oldest first, and changes no answer."""
    for index in range(5):
        put_keyed(asker, key=f"old-{index}")
    asker.clock.advance(s=1)
    put_keyed(asker, key="new")
    if swept:
        assert asker.ask(c.ForgetKeys(10)) == c.Swept(0)
    asker.clock.advance(ms=WINDOW_MS - 1000)
    if swept:
        assert asker.ask(c.ForgetKeys(3)) == c.Swept(3)
        assert asker.ask(c.ForgetKeys(3)) == c.Swept(2)
        assert asker.ask(c.ForgetKeys(3)) == c.Swept(0)
    assert isinstance(put_keyed(asker, key="new"), c.Duplicate)
    assert isinstance(put_keyed(asker, key="old-0"), Lease)
