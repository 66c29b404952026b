"""Contract: what a receipt may do, and when."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from leasehold.domain import commands as c
from leasehold.domain.errors import (
    LeaseLost,
    MessageNotFound,
    ReceiptMalformed,
    VisibilityPastExpiry,
)
from leasehold.domain.model import Lease
from leasehold.stores.sqlite import SqliteStore

from .conftest import ACCOUNT, QUEUE, Asker

Act = Callable[[Asker, Lease], Any]
ACTS: dict[str, Act] = {
    "complete": lambda asker, lease: asker.complete(lease),
    "renew": lambda asker, lease: asker.renew(lease, 30),
}
each_act = pytest.mark.parametrize("act", ACTS.values(), ids=ACTS)


@each_act
def test_current_receipt_acts(asker: Asker, act: Act) -> None:
    """The receipt of the current lease completes and renews."""
    asker.put()
    assert not isinstance(act(asker, asker.receive_one()), Exception)


@each_act
def test_receipt_of_a_put_acts_until_the_first_receive(asker: Asker, act: Act) -> None:
    """Whoever put a message can take it back or change it while nobody has received it."""
    asker.put("one", delay_s=60)
    assert not isinstance(act(asker, asker.put("two", delay_s=60)), Exception)
    put = asker.put("three")
    while asker.receive():
        pass
    result = act(asker, put)
    assert isinstance(result, LeaseLost)
    assert result.reason == "superseded"


@each_act
def test_old_receipt_is_dead_after_redelivery(asker: Asker, act: Act) -> None:
    """A worker that lost its lease can neither complete nor renew."""
    asker.put()
    late = asker.receive_one(lease_s=30)
    asker.clock.advance(s=31)
    current = asker.receive_one()
    result = act(asker, late)
    assert isinstance(result, LeaseLost)
    assert result.reason == "superseded"
    assert asker.complete(current) == c.DONE


@each_act
def test_lapsed_receipt_acts_until_somebody_takes_the_message(asker: Asker, act: Act) -> None:
    """The until-retaken rule: running out alone does not kill a receipt."""
    asker.put()
    lease = asker.receive_one(lease_s=1)
    asker.clock.advance(s=3600)
    assert not isinstance(act(asker, lease), Exception)


@each_act
def test_renewal_kills_the_receipt_it_was_made_with(asker: Asker, act: Act) -> None:
    """After a renewal only the new receipt acts."""
    asker.put()
    lease = asker.receive_one()
    renewed = asker.renew(lease, 60)
    assert renewed.receipt != lease.receipt
    assert isinstance(act(asker, lease), LeaseLost)
    assert not isinstance(act(asker, renewed), Exception)


@each_act
def test_completed_message_is_gone_for_good(asker: Asker, act: Act) -> None:
    """Neither a second complete nor a renewal finds it, and it never comes back."""
    asker.put()
    lease = asker.receive_one(lease_s=1)
    asker.complete(lease)
    assert isinstance(act(asker, lease), MessageNotFound)
    asker.clock.advance(s=3600)
    assert asker.receive() == ()


@each_act
def test_expired_message_is_out_of_reach_of_its_holder(asker: Asker, act: Act) -> None:
    """Expiry wins over a lease."""
    asker.put(time_to_live_s=10)
    lease = asker.receive_one(lease_s=60)
    asker.clock.advance(s=10)
    assert isinstance(act(asker, lease), MessageNotFound)


@each_act
@pytest.mark.parametrize("message_id", ["", "nonsense", "00000000-0000-0000-0000-000000000000"])
def test_unknown_message_is_said_before_the_receipt_is_read(
    asker: Asker, act: Act, message_id: str
) -> None:
    """With an unknown id even a malformed receipt answers MessageNotFound."""
    asker.put()
    lease = asker.receive_one()
    unknown = lease._replace(message=lease.message._replace(message_id=message_id), receipt="?")
    assert isinstance(act(asker, unknown), MessageNotFound)


@each_act
def test_an_id_that_differs_in_its_random_part_is_unknown(asker: Asker, act: Act) -> None:
    """Knowing the row is not enough."""
    asker.put()
    lease = asker.receive_one()
    other = lease.message.message_id[:-1] + ("0" if lease.message.message_id[-1] != "0" else "1")
    unknown = lease._replace(message=lease.message._replace(message_id=other))
    assert isinstance(act(asker, unknown), MessageNotFound)
    upper = lease._replace(message=lease.message._replace(message_id=other.upper()))
    assert isinstance(act(asker, upper), MessageNotFound)


@each_act
@pytest.mark.parametrize(
    "receipt", ["", "AgAAAAMAAAAAAAAA", "x" * 35, "x" * 37, "ü" * 36, "+" * 36, "A" * 34 + "=="]
)
def test_malformed_receipt_is_told_from_a_lost_one(asker: Asker, act: Act, receipt: str) -> None:
    """What does not look like a receipt is called malformed and does nothing."""
    asker.put()
    lease = asker.receive_one()._replace(receipt=receipt)
    assert isinstance(act(asker, lease), ReceiptMalformed)
    assert asker.count() == 1


@each_act
def test_forged_receipt_never_acts(asker: Asker, act: Act) -> None:
    """Changing any character of a receipt makes it worthless."""
    asker.put()
    lease = asker.receive_one()
    for index in range(len(lease.receipt)):
        changed = "A" if lease.receipt[index] != "A" else "B"
        receipt = lease.receipt[:index] + changed + lease.receipt[index + 1 :]
        assert isinstance(act(asker, lease._replace(receipt=receipt)), LeaseLost)
    assert asker.complete(lease) == c.DONE


@each_act
def test_receipt_of_another_message_does_not_act(asker: Asker, act: Act) -> None:
    """A receipt is for one message, also within one batch."""
    asker.put("one")
    asker.put("two")
    one, two = asker.receive(2)
    mixed = one._replace(receipt=two.receipt)
    result = act(asker, mixed)
    assert isinstance(result, LeaseLost)
    assert result.reason == "foreign"
    assert asker.count() == 2


def test_receipt_does_not_act_through_another_queue(asker: Asker) -> None:
    """Naming the wrong queue is naming an unknown message."""
    asker.create("other")
    asker.put()
    lease = asker.receive_one()
    assert isinstance(asker.complete(lease, queue="other"), MessageNotFound)
    assert isinstance(asker.ask(asker.renew_command(lease, 1, queue="other")), MessageNotFound)
    assert asker.complete(lease) == c.DONE


def test_renewal_moves_the_end_of_the_lease_only(asker: Asker) -> None:
    """Count, expiry and body stay; the end is counted from now."""
    asker.put("text", time_to_live_s=3600)
    lease = asker.receive_one(lease_s=30)
    asker.clock.advance(s=20)
    renewed = asker.renew(lease, 100)
    assert renewed.message == lease.message._replace(
        visible_at_ms=asker.clock.now_ms() + 100_000,
        fence=lease.message.fence + 1,
        renewals=1,
    )
    asker.clock.advance(ms=99_999)
    assert asker.receive() == ()
    asker.clock.advance(ms=1)
    assert asker.receive_one().message.dequeue_count == 2


def test_renewal_by_zero_gives_the_message_back(asker: Asker) -> None:
    """It is visible at once, and the new receipt still acts until somebody takes it."""
    asker.put()
    released = asker.renew(asker.receive_one(), 0)
    assert len(asker.peek()) == 1
    assert asker.complete(released) == c.DONE


@pytest.mark.parametrize("body", [b"", b"02state", b"x" * 65_536])
def test_renewal_with_a_body_saves_progress(asker: Asker, body: bytes) -> None:
    """The next holder receives the new body; an empty one is a body like any other."""
    asker.put("01state")
    renewed = asker.renew(asker.receive_one(), 10, body)
    assert renewed.message.body == body
    asker.clock.advance(s=10)
    assert asker.receive_one().message.body == body


def test_renewal_past_expiry_is_refused(asker: Asker) -> None:
    """Up to the very end of its life a message may be leased, not a second longer."""
    asker.put(time_to_live_s=100)
    lease = asker.receive_one()
    refused = asker.renew(lease, 101, b"new")
    assert isinstance(refused, VisibilityPastExpiry)
    assert refused.visibility_timeout_s == 101
    assert asker.renew(lease, 100).message.body == b"work"


def test_a_renewal_that_may_end_past_expiry(asker: Asker) -> None:
    """The expiry wins: the message is gone then, leased or not, and its receipt with it."""
    asker.put(time_to_live_s=100)
    lease = asker.receive_one()
    renewed = asker.ask(asker.renew_command(lease, 500)._replace(past_expiry=True))
    assert renewed.message.visible_at_ms - asker.clock.now_ms() == 500_000
    asker.clock.advance(s=99)
    assert asker.receive() == ()
    asker.clock.advance(s=1)
    assert isinstance(asker.complete(renewed), MessageNotFound)
    assert asker.receive() == ()


def test_a_repeated_renewal_that_may_end_past_expiry(asker: Asker) -> None:
    """Its answer was lost: the old receipt leads to the newest, and the expiry still wins."""
    asker.put(time_to_live_s=100)
    lease = asker.receive_one()
    command = asker.renew_command(lease, 500)._replace(past_expiry=True, may_repeat=True)
    lost, again = asker.ask(command), asker.ask(command)
    assert again.receipt == lost.receipt
    assert again.message.visible_at_ms - asker.clock.now_ms() == 500_000
    asker.clock.advance(s=100)
    assert isinstance(asker.ask(command), MessageNotFound)


def test_fence_rises_with_every_receipt(asker: Asker) -> None:
    """Of two holders the later one has the higher number."""
    asker.put()
    first = asker.receive_one(lease_s=1)
    second = asker.renew(first, 1)
    asker.clock.advance(s=1)
    third = asker.receive_one()
    assert 0 < first.message.fence < second.message.fence < third.message.fence


def test_of_two_acts_on_one_message_in_a_batch_the_first_decides(asker: Asker) -> None:
    """Within a batch, too, only one of two completes succeeds, whichever its receipt."""
    asker.put()
    late = asker.receive_one(lease_s=1)
    asker.clock.advance(s=1)
    lease = asker.receive_one()
    results = asker.batch(
        asker.complete_command(late), asker.complete_command(lease), asker.complete_command(lease)
    )
    assert [type(result) for result in results] == [LeaseLost, c.Done, MessageNotFound]
    assert asker.count() == 0


def test_completes_of_a_batch_are_judged_one_by_one(asker: Asker) -> None:
    """Good and bad completes may share a batch, of one queue or several."""
    asker.create("other")
    for _ in range(3):
        asker.put()
    asker.put(queue="other")
    one, two, three = asker.receive(3)
    (elsewhere,) = asker.receive(1, queue="other")
    results = asker.batch(
        asker.complete_command(one),
        asker.complete_command(two._replace(receipt="?")),
        asker.complete_command(elsewhere, queue="other"),
        asker.complete_command(elsewhere, queue="missing"),
        asker.complete_command(three),
    )
    assert [type(result).__name__ for result in results] == [
        "Done",
        "ReceiptMalformed",
        "Done",
        "QueueNotFound",
        "Done",
    ]
    assert asker.count() == 1
    assert asker.count("other") == 0


def test_renew_then_complete_in_one_batch(asker: Asker) -> None:
    """A complete with the receipt from before a renewal in the same batch is too late."""
    asker.put()
    lease = asker.receive_one()
    results = asker.batch(asker.renew_command(lease, 30), asker.complete_command(lease))
    assert isinstance(results[1], LeaseLost)
    assert asker.complete(results[0]) == c.DONE  # type: ignore[arg-type]
    assert asker.ask(c.Receive(ACCOUNT, QUEUE, 1, 1)) == ()


@each_act
def test_under_the_strict_rule_a_receipt_dies_with_its_lease(asker: Asker, act: Act) -> None:
    """It acts to the last millisecond of the lease, and not a moment longer."""
    asker.create_strict()
    asker.put()
    asker.put()
    one, two = asker.receive(2, lease_s=10)
    asker.clock.advance(ms=9_999)
    assert not isinstance(act(asker, one), Exception)
    asker.clock.advance(ms=1)
    result = act(asker, two)
    assert isinstance(result, LeaseLost)
    assert result.reason == "lapsed"


@each_act
@pytest.mark.parametrize("change", [str.upper, lambda text: text.replace("-", " ", 1)])
def test_an_id_in_another_spelling_is_unknown(
    asker: Asker, act: Act, change: Callable[[str], str]
) -> None:
    """An id is the exact text that was given out."""
    lease = asker.put("x" * 10, entropy=b"\xff" * 10)
    spelled = change(lease.message.message_id)
    assert spelled != lease.message.message_id
    other = lease._replace(message=lease.message._replace(message_id=spelled))
    assert isinstance(act(asker, other), MessageNotFound)


def test_sealing_key_is_the_stores_own(asker: Asker, tmp_path: Path) -> None:
    """No client is shown the secret that sessions are sealed with, and no two stores share one."""
    asker.put()
    lease = asker.receive_one()
    key = asker.store.sealing_key
    assert len(key) == 32
    assert asker.store.sealing_key == key
    with closing(SqliteStore(tmp_path)) as other:
        assert other.sealing_key != key
    shown = f"{asker.store.health()} {lease} {asker.events()}"
    assert [text for text in (repr(key), key.hex(), b64encode(key).decode()) if text in shown] == []
