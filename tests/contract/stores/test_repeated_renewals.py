"""Contract: renewals whose answer was lost, and which are sent again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from leasehold.domain import commands as c
from leasehold.domain.errors import LeaseLost, MessageNotFound, VisibilityPastExpiry
from leasehold.domain.events import EventType
from leasehold.domain.model import BodyRef, Lease, Progress

from .conftest import ACCOUNT, QUEUE, Asker

SAVED = '{"frame":1}'


def again(asker: Asker, lease: Lease, s: int = 30, **said: Any) -> Any:
    """Renew as somebody who may not have heard the answer to a renewal."""
    return asker.ask(asker.renew_command(lease, s)._replace(may_repeat=True, **said))


def assert_refused(result: object) -> None:
    """Make sure that it was refused as one with an old receipt."""
    assert isinstance(result, LeaseLost)
    assert result.reason == "superseded"


def test_a_renewal_sent_again_tells_the_newest_receipt(asker: Asker) -> None:
    """However often: the receipt from before the lost answer leads to the one that acts."""
    asker.put()
    lease = asker.receive_one()
    lost = asker.renew(lease, 30)
    for _ in range(3):
        asker.clock.advance(s=10)
        told = again(asker, lease)
        assert told.receipt == lost.receipt
        assert (told.message.fence, told.message.renewals) == (lost.message.fence, 1)
        assert told.message.visible_at_ms == asker.clock.now_ms() + 30_000
    asker.clock.advance(s=29)
    assert asker.receive() == ()
    assert asker.complete(told) == c.DONE


def test_without_the_wish_an_old_receipt_is_dead(asker: Asker) -> None:
    """Whoever speaks a protocol in which each update kills the receipt before gets just that."""
    asker.put()
    lease = asker.receive_one()
    asker.renew(lease, 30)
    assert_refused(asker.renew(lease, 30))


def test_a_first_renewal_is_like_any_other(asker: Asker) -> None:
    """With the newest receipt it makes a new one."""
    asker.put()
    lease = asker.receive_one()
    renewed = again(asker, lease, 60)
    assert renewed.receipt != lease.receipt
    assert renewed.message.fence == lease.message.fence + 1
    assert renewed.message.renewals == 1


def test_only_a_renewal_can_be_repeated(asker: Asker) -> None:
    """The receipt before the newest neither completes nor gives back."""
    asker.put()
    lease = asker.receive_one()
    lost = asker.renew(lease, 30)
    assert_refused(asker.complete(lease))
    assert_refused(asker.release(lease))
    again(asker, lease)
    assert_refused(asker.complete(lease))
    assert asker.complete(lost) == c.DONE


def test_two_renewals_back_is_too_far(asker: Asker) -> None:
    """Whoever has gone on with a newer receipt has heard the answer."""
    asker.put()
    first = asker.receive_one()
    second = asker.renew(first, 30)
    third = asker.renew(second, 30)
    assert_refused(again(asker, first))
    assert again(asker, second).receipt == third.receipt


def test_a_receipt_of_an_earlier_lease_never_acts(asker: Asker) -> None:
    """Not before and not after the next holder has renewed."""
    asker.put()
    late = asker.receive_one(lease_s=1)
    renewed = asker.renew(late, 1)
    asker.clock.advance(s=1)
    current = asker.receive_one()
    for old in (late, renewed):
        assert_refused(again(asker, old))
    asker.renew(current, 30)
    for old in (late, renewed):
        assert_refused(again(asker, old))
    assert again(asker, current).message.dequeue_count == 2


@pytest.mark.parametrize("back_ms", [0, -60_000])
def test_the_clock_decides_nothing(asker: Asker, back_ms: int) -> None:
    """A clock that was set back brings no earlier lease back."""
    asker.put()
    late = asker.receive_one(lease_s=1)
    asker.renew(late, 1)
    asker.clock.advance(s=1)
    asker.receive_one()
    asker.clock.advance(ms=back_ms)
    assert_refused(again(asker, late))


def test_the_receipt_of_a_put_is_of_no_lease(asker: Asker) -> None:
    """A sender who moves the end of a delay has to go on with the new receipt."""
    put = asker.put(delay_s=60)
    moved = asker.renew(put, 120)
    assert_refused(again(asker, put))
    assert asker.complete(moved) == c.DONE


def _give_back(asker: Asker, lease: Lease) -> None:
    asker.renew(lease, 0)


def _end_lease(asker: Asker, lease: Lease) -> None:
    asker.end_lease(lease)


def _amend(asker: Asker, lease: Lease) -> None:
    asker.amend(lease, priority=3, force=True)


def _amend_after_lapse(asker: Asker, lease: Lease) -> None:
    asker.clock.advance(s=60)
    asker.amend(lease, priority=3)


def _release(asker: Asker, lease: Lease) -> None:
    asker.release(lease)


@pytest.mark.parametrize("end", [_give_back, _end_lease, _amend, _amend_after_lapse, _release])
@pytest.mark.parametrize("renewals", [0, 1, 2])
def test_nothing_is_repeated_after_the_end_of_a_lease(
    asker: Asker, end: Callable[[Asker, Lease], None], renewals: int
) -> None:
    """Whatever raised the fence last, if it was no renewal, no receipt from before acts."""
    asker.put()
    leases = [asker.receive_one()]
    for _ in range(renewals):
        leases.append(asker.renew(leases[-1], 30))
    end(asker, leases[-1])
    for lease in leases:
        assert_refused(again(asker, lease))


def test_taken_up_again_after_being_given_back(asker: Asker) -> None:
    """What was given back with a timeout of nothing, and taken up, begins anew."""
    asker.put()
    lease = asker.receive_one()
    given_back = asker.renew(lease, 0)
    asker.renew(given_back, 30)
    assert_refused(again(asker, given_back))
    assert_refused(again(asker, lease))


def test_a_claim_ends_it(asker: Asker) -> None:
    """A message that was taken into a claim has another holder."""
    asker.put()
    late = asker.receive_one(lease_s=1)
    asker.renew(late, 1)
    asker.clock.advance(s=1)
    asker.attach()
    asker.claim()
    assert_refused(again(asker, late))


def test_repeating_never_shortens_a_lease(asker: Asker) -> None:
    """A request that was held up on its way does not undo a longer one that came after it."""
    asker.put()
    lease = asker.receive_one()
    longer = asker.renew(lease, 600)
    told = again(asker, lease, 10)
    assert told.message.visible_at_ms == longer.message.visible_at_ms


def test_a_save_is_recognised_by_what_it_saved(asker: Asker) -> None:
    """Sent again it is answered; one that would save something else is refused."""
    asker.put()
    lease = asker.receive_one()
    lost = asker.ask(asker.renew_command(lease, 30)._replace(saved=SAVED))
    assert again(asker, lease, saved=SAVED).receipt == lost.receipt
    assert_refused(again(asker, lease, saved='{"frame":2}'))
    assert_refused(again(asker, lease, saved=c.REMOVE_SAVED))
    assert again(asker, lease).message.detail.saved == SAVED


def test_a_late_save_does_not_undo_a_newer_one(asker: Asker) -> None:
    """Of two saves under the same receipt the one that came first stays."""
    asker.put()
    lease = asker.receive_one()
    newer = again(asker, lease, saved='{"frame":2}')
    assert_refused(again(asker, lease, saved=SAVED))
    assert asker.find(newer).message.detail.saved == '{"frame":2}'


def test_removing_what_was_saved_is_recognised(asker: Asker) -> None:
    """Nothing is there, and nothing was to be there."""
    asker.put()
    lease = asker.receive_one()
    lost = asker.ask(asker.renew_command(lease, 30)._replace(saved=c.REMOVE_SAVED))
    assert again(asker, lease, saved=c.REMOVE_SAVED).receipt == lost.receipt


@pytest.mark.parametrize("body", [b"", b"new", b"x" * 1_000])
def test_a_new_body_is_recognised(asker: Asker, body: bytes) -> None:
    """The same body once more is no change; another one is refused."""
    asker.put()
    lease = asker.receive_one()
    lost = asker.renew(lease, 30, body)
    assert again(asker, lease, body=body).receipt == lost.receipt
    assert_refused(again(asker, lease, body=b"other"))
    assert asker.find(lost).message.body == body


def test_a_body_kept_elsewhere_is_no_empty_one(asker: Asker) -> None:
    """A message whose body is in the body store is not mistaken for one without a body."""
    asker.put()
    lease = asker.receive_one()
    ref = BodyRef(key="k1", size_bytes=3, sha256="0" * 64)
    asker.ask(asker.renew_command(lease, 30)._replace(body=ref))
    assert_refused(again(asker, lease, body=b""))
    assert not isinstance(again(asker, lease), Exception)


def test_progress_is_heard(asker: Asker) -> None:
    """How far the work has come is for people, and may come with a renewal sent again."""
    asker.put()
    lease = asker.receive_one()
    asker.renew(lease, 30)
    progress = Progress(at_ms=asker.clock.now_ms(), fraction=0.5)
    assert again(asker, lease, progress=progress).message.detail.progress == progress


def test_a_renewal_past_expiry_stays_refused(asker: Asker) -> None:
    """Sent again it may not last longer than the message either, nor outlive it."""
    asker.put(time_to_live_s=100)
    lease = asker.receive_one()
    asker.renew(lease, 50)
    assert isinstance(again(asker, lease, 101), VisibilityPastExpiry)
    asker.clock.advance(s=100)
    assert isinstance(again(asker, lease), MessageNotFound)


def test_under_the_strict_rule_it_ends_with_the_lease(asker: Asker) -> None:
    """While the lease runs it is answered, afterwards it is refused."""
    asker.create_strict()
    asker.put()
    lease = asker.receive_one()
    asker.renew(lease, 30)
    asker.clock.advance(s=20)
    assert not isinstance(again(asker, lease), Exception)
    asker.clock.advance(s=30)
    refused = again(asker, lease)
    assert isinstance(refused, LeaseLost)
    assert refused.reason == "lapsed"


def test_a_lapsed_lease_is_repeated_until_somebody_takes_the_message(asker: Asker) -> None:
    """Under the other rule a lease that ran out can still be renewed, also like this."""
    asker.put()
    lease = asker.receive_one()
    lost = asker.renew(lease, 1)
    asker.clock.advance(s=60)
    assert again(asker, lease).receipt == lost.receipt
    assert asker.receive() == ()


def test_it_is_an_event_of_its_own(asker: Asker) -> None:
    """The end of the lease has moved: the log says so, with the fence that did not."""
    asker.put()
    lease = asker.receive_one()
    lost = asker.renew(lease, 30)
    asker.clock.advance(s=5)
    told = again(asker, lease)
    *_, event = asker.events()
    assert (event.type, event.fence, event.renewals) == (
        EventType.RENEWED,
        lost.message.fence,
        1,
    )
    assert event.visible_at_ms == told.message.visible_at_ms


def test_within_one_batch(asker: Asker) -> None:
    """The first and its repetition may even come together, in a batch or a transaction."""
    asker.put()
    lease = asker.receive_one()
    command = asker.renew_command(lease, 30)._replace(may_repeat=True)
    one, two = asker.batch(command, command)
    assert isinstance(one, Lease)
    assert isinstance(two, Lease)
    assert one.receipt == two.receipt
    (three,) = asker.ask(c.Batch(commands=(command,), atomic=True))
    assert three.receipt == one.receipt
    complete = c.Complete(ACCOUNT, QUEUE, lease.message.message_id, two.receipt)
    assert asker.ask(complete) == c.DONE
