"""Contract: what a holder saves stays with the message, whoever has it next."""

from __future__ import annotations

from typing import Any

import pytest

from leasehold.domain import admin as o
from leasehold.domain import commands as c
from leasehold.domain.commands import REMOVE_SAVED
from leasehold.domain.model import Lease, Outcome, Progress

from .conftest import ACCOUNT, POISON, QUEUE, Asker

SAVED = '{"page":3,"text":"' + "x" * 20_000 + '"}'


def save(asker: Asker, lease: Lease, saved: str, s: int = 60, **more: Any) -> Lease:
    """Renew a lease and save something with it."""
    renewed = asker.ask(asker.renew_command(lease, s)._replace(saved=saved, **more))
    assert isinstance(renewed, Lease)
    return renewed


@pytest.fixture
def holder(asker: Asker) -> Lease:
    """A lease of the one message, with something saved."""
    asker.put()
    return save(asker, asker.receive_one(), SAVED)


def of(lease: Lease) -> str | None:
    return lease.message.detail.saved


def test_nothing_is_saved_at_first(asker: Asker) -> None:
    """Nor by a renewal that says nothing of it."""
    assert of(asker.put()) is None
    lease = asker.receive_one()
    assert of(lease) is None
    assert of(asker.renew(lease, 60)) is None


def test_what_was_saved_is_shown_wherever_the_message_is(asker: Asker, holder: Lease) -> None:
    """To the holder, to inspectors, and to those who peek."""
    assert of(holder) == SAVED
    assert asker.find(holder).message == holder.message
    assert asker.inspect().messages[0].message == holder.message
    asker.release(holder)
    assert asker.peek()[0].detail.saved == SAVED


def test_a_renewal_that_says_nothing_leaves_it(asker: Asker, holder: Lease) -> None:
    """Also one with a new body, or with progress."""
    holder = asker.renew(holder, 60)
    assert of(holder) == SAVED
    holder = asker.renew(holder, 60, b"new" * 200)
    assert (holder.message.body, of(holder)) == (b"new" * 200, SAVED)
    progress = Progress(at_ms=asker.clock.now_ms(), fraction=0.5)
    holder = asker.ask(asker.renew_command(holder, 60)._replace(progress=progress))
    assert (holder.message.detail.progress, of(holder)) == (progress, SAVED)
    assert asker.find(holder).message == holder.message


def test_the_next_takes_its_place(asker: Asker, holder: Lease) -> None:
    """And can be taken away again."""
    holder = save(asker, holder, "1")
    assert of(holder) == asker.find(holder).message.detail.saved == "1"
    holder = save(asker, holder, REMOVE_SAVED)
    assert of(holder) is None
    assert asker.find(holder).message == holder.message
    holder = save(asker, holder, "null")
    assert asker.find(holder).message.detail.saved == of(holder) == "null"


def test_it_is_saved_together_with_the_rest(asker: Asker) -> None:
    """Body, progress and what is saved are one step."""
    asker.put(b"old" * 200)
    lease = asker.receive_one()
    progress = Progress(at_ms=asker.clock.now_ms(), note="half")
    saved = save(asker, lease, SAVED, body=b"new" * 200, progress=progress)
    assert saved.message.body == b"new" * 200
    assert (saved.message.detail.progress, of(saved)) == (progress, SAVED)
    assert asker.find(saved).message == saved.message


def test_the_next_holder_gets_it(asker: Asker, holder: Lease) -> None:
    """After a release, a lapse and an ended lease; for the same message only."""
    asker.release(holder)
    second = asker.receive_one()
    assert of(second) == SAVED
    asker.clock.advance(s=30)
    third = asker.receive_one()
    assert of(third) == SAVED
    assert third.message.detail.lapses == 1
    asker.end_lease(third)
    fourth = asker.receive_one()
    assert of(fourth) == SAVED
    asker.complete(fourth)
    asker.put()
    assert of(asker.receive_one()) is None


def test_it_outlives_the_session(asker: Asker) -> None:
    """One that is lost, and one that is ended."""
    asker.put()
    session = asker.open_session(timeout_s=10)
    save(asker, asker.receive_in(session)[0], SAVED)
    asker.clock.advance(s=11)
    assert asker.lose() == 1
    session = asker.open_session(timeout_s=10)
    (lease,) = asker.receive_in(session)
    assert of(lease) == SAVED
    progress = Progress(at_ms=asker.clock.now_ms(), fraction=0.5)
    asker.beat(session, progress={lease.message.message_id: progress})
    found = asker.find(lease).message.detail
    assert (found.progress, found.saved) == (progress, SAVED)


def test_a_sender_can_save_before_anybody_receives(asker: Asker) -> None:
    """Its receipt acts until then; a first receive brings it."""
    save(asker, asker.put(), SAVED, s=0)
    assert of(asker.receive_one()) == SAVED


def test_a_refused_renewal_saves_nothing(asker: Asker, holder: Lease) -> None:
    """The receipt was replaced."""
    asker.renew(holder, 60)
    refused = asker.ask(asker.renew_command(holder, 60)._replace(saved="2"))
    assert not isinstance(refused, Lease)
    assert asker.find(holder).message.detail.saved == SAVED


def test_poison_and_redrive_keep_it(asker: Asker, holder: Lease) -> None:
    """Whoever looks into the poison queue sees it, and so does the next holder."""
    assert asker.release(holder, Outcome.BURIED).poisoned == "buried"
    assert asker.peek(queue=POISON)[0].detail.saved == SAVED
    asker.run_job(o.JobKind.REDRIVE)
    lease = asker.receive_one()
    assert (lease.message.dequeue_count, of(lease)) == (1, SAVED)


def test_an_amended_message_keeps_it(asker: Asker, holder: Lease) -> None:
    """An operator changes only what is named."""
    seen = asker.amend(holder, priority=1, force=True)
    assert seen.message.detail.saved == SAVED
    assert of(asker.receive_one()) == SAVED


@pytest.mark.parametrize("ends", ["given back", "lapsed", "reopened"])
def test_a_claim_keeps_it(asker: Asker, holder: Lease, ends: str) -> None:
    """Who reads it is not shown that; whoever receives a member afterwards has it."""
    asker.release(holder)
    asker.put(b"other")
    asker.attach()
    asker.claim(1, lease_s=10)
    assert [message.detail.saved for message in asker.read_claim()] == [None, None]
    assert asker.find(holder).message.detail.saved == SAVED
    if ends == "given back":
        asker.give_claim_back()
    else:
        asker.clock.advance(s=11)
        if ends == "reopened":
            asker.open()
            asker.give_claim_back()
    saved = {lease.message.body: of(lease) for lease in asker.receive(10)}
    assert saved == {b"work": SAVED, b"other": None}


def test_renewals_of_a_batch_save_each_their_own(asker: Asker) -> None:
    """With all or nothing, nothing is saved if one of them is refused."""
    for number in range(3):
        asker.put(f"{number}")
    leases = asker.receive(3)
    commands = [
        asker.renew_command(lease, 60)._replace(saved=f"{number}")
        for number, lease in enumerate(leases)
    ]
    renewed = asker.ask(c.Batch(tuple(commands), atomic=True))
    assert [of(lease) for lease in renewed] == ["0", "1", "2"]
    stale = [each._replace(saved="9") for each in commands[:1]]
    good = asker.renew_command(renewed[1], 60)._replace(saved="9")
    asker.ask(c.Batch((*stale, good), atomic=True))
    assert [asker.find(lease).message.detail.saved for lease in leases] == ["0", "1", "2"]


def test_the_event_log_does_not_carry_it(asker: Asker, holder: Lease) -> None:
    """A renewal is an event as any other is."""
    asker.complete(holder)
    events = asker.events()
    assert [event.type.name for event in events[-2:]] == ["RENEWED", "COMPLETED"]
    assert "xxxx" not in repr(events)


@pytest.mark.parametrize("how", ["complete", "remove", "clear", "expire"])
def test_it_is_gone_with_the_message(asker: Asker, holder: Lease, how: str) -> None:
    """Whatever ends the message; those of others stay."""
    asker.put(b"other")
    other = save(asker, asker.receive_one(), "1")
    if how == "complete":
        asker.complete(holder)
    elif how == "remove":
        asker.remove(holder, force=True)
    elif how == "expire":
        asker.amend(holder, time_to_live_s=1, force=True)
        asker.clock.advance(s=2)
        asker.ask(c.RetireExpired(10))
        asker.ask(c.RemoveRetired(asker.clock.now_ms(), 10))
    else:
        asker.ask(c.Clear(ACCOUNT, QUEUE))
        asker.ask(c.ReapDropped(10))
        assert asker.count() == 0
        return
    assert asker.find(other).message.detail.saved == "1"
    assert asker.count() == 1
