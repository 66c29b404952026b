"""Progress that is kept with a message."""

from __future__ import annotations

import pytest

from leasehold.worker.adapters.protocol import (
    BodyTooLarge,
    Delivery,
    Lease,
    LeaseGone,
    NotSupported,
    Saved,
)
from tests.contract.queues.conftest import Bench

SAVED = Saved(stage="encode", state={"frame": 1200, "names": ["ä", "\x01"]}, fraction=0.4)


@pytest.fixture
def saving(bench: Bench) -> Bench:
    """A bench of a service that keeps progress."""
    if bench.able.saves == "no":
        pytest.skip("the service keeps no progress")
    return bench


def save(bench: Bench, delivery: Delivery, saved: Saved, receipt: str | None = None) -> Lease:
    """Save, and return the lease with its new receipt."""
    renewed = bench.client.save(delivery, receipt or delivery.receipt, saved, bench.lease_s)
    return Lease(delivery.message_id, renewed.receipt)


@pytest.mark.parametrize("body", ["text", '{"a": "b"}', b"\xff\x00\xfe", "", "SGVsbG8gd29ybGQ="])
def test_the_next_holder_goes_on_from_there(saving: Bench, body: str | bytes) -> None:
    """The next delivery has what was saved, and the body as it was put."""
    saving.needs_time()
    delivery = saving.put_one(body)
    save(saving, delivery, SAVED)
    again = saving.later(saving.lease_s)
    assert again.saved == SAVED
    assert again.body == (body.encode() if isinstance(body, str) else body)


def test_the_newest_wins(saving: Bench) -> None:
    """What is saved takes the place of all that was saved before."""
    saving.needs_time()
    delivery = saving.put_one()
    lease = save(saving, delivery, SAVED)
    save(saving, delivery, Saved(state=[1]), lease.receipt)
    assert saving.later(saving.lease_s).saved == Saved(state=[1])


def test_the_next_holder_saves_as_well(saving: Bench) -> None:
    """Progress survives any number of holders, and the body stays as it is."""
    saving.needs_time()
    delivery = saving.put_one("the body")
    for number in range(3):
        save(saving, delivery, Saved(state=number))
        delivery = saving.later(saving.lease_s)
        assert delivery.saved == Saved(state=number)
        assert delivery.body == b"the body"


def test_a_renewal_keeps_what_was_saved(saving: Bench) -> None:
    """Renewals after a save lose nothing of it."""
    delivery = saving.put_one(lease_s=saving.lease_s)
    lease = save(saving, delivery, SAVED)
    saving.renewed(delivery, lease.receipt, lease_s=saving.lease_s)
    assert saving.later(saving.lease_s).saved == SAVED


def test_a_save_renews_the_lease(saving: Bench) -> None:
    """The receipt from before is dead, the new one completes the message."""
    delivery = saving.put_one()
    lease = save(saving, delivery, SAVED)
    (refused,) = saving.complete(delivery.lease)
    assert isinstance(refused, LeaseGone)
    assert saving.complete(lease) == [None]


def test_who_lost_the_lease_saves_nothing(saving: Bench) -> None:
    """A save with an old receipt is refused, and the progress of the new holder stays."""
    saving.needs_time()
    first = saving.put_one(lease_s=30)
    second = saving.later(30)
    save(saving, second, Saved(state="mine"))
    with pytest.raises(LeaseGone):
        saving.client.save(first, first.receipt, Saved(state="late"), 30)
    assert saving.later(30).saved == Saved(state="mine")


def test_too_much_is_refused(saving: Bench) -> None:
    """Body and progress together over the limit are refused, and the lease is as it was."""
    if saving.able.saves == "beside":
        pytest.skip("progress has a place of its own")
    delivery = saving.put_one("x" * 60_000)
    with pytest.raises(BodyTooLarge):
        saving.client.save(delivery, delivery.receipt, Saved(state="y" * 10_000), 30)
    assert saving.complete(delivery.lease) == [None]


def test_a_state_that_json_cannot_say_is_refused(saving: Bench) -> None:
    """It is a mistake of the handler, and nothing is sent."""
    delivery = saving.put_one()
    with pytest.raises(TypeError, match="JSON"):
        saving.client.save(delivery, delivery.receipt, Saved(state=object()), 30)
    assert saving.complete(delivery.lease) == [None]


def test_a_service_that_keeps_nothing_says_so(bench: Bench) -> None:
    """Where progress has no place a save is refused, and the lease is as it was."""
    if bench.able.saves != "no":
        pytest.skip("the service keeps progress")
    delivery = bench.put_one()
    with pytest.raises(NotSupported):
        bench.client.save(delivery, delivery.receipt, SAVED, 30)
    assert bench.complete(delivery.lease) == [None]
