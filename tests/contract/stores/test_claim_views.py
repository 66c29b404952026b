"""Contract: what others see of claims and can do to them."""

from __future__ import annotations

import pytest

from leasehold.domain import admin as o
from leasehold.domain import claims as cl
from leasehold.domain import commands as c
from leasehold.domain.claims import ClaimState
from leasehold.domain.errors import ClaimBroken, LeaseLost, MessageNotFound, QueueNotFound
from leasehold.domain.filters import MessageFilter
from leasehold.domain.model import Lease, MessageState

from .conftest import ACCOUNT, POISON, QUEUE, STREAM, Asker

BODIES = [b"0", b"1", b"2", b"3", b"4"]


# --- what others see ---------------------------------------------------------------------------


def test_members_are_counted_and_listed_as_leased(claimer: Asker) -> None:
    """Under the name of their claim, which counts them too."""
    claimer.claim(1, 2, 30, holder="driver")
    claimer.receive_one()
    counts = claimer.counts()
    assert (counts.visible, counts.leased, counts.claimed, counts.total) == (2, 3, 2, 5)
    assert claimer.count() == 5
    page = claimer.inspect()
    assert [(str(seen.state), seen.under) for seen in page.messages] == [
        ("leased", f"{STREAM}/1"),
        ("leased", f"{STREAM}/1"),
        ("leased", None),
        ("visible", None),
        ("visible", None),
    ]
    by_holder = claimer.inspect(states=["leased"], holder="driver").messages
    assert [seen.message.body for seen in by_holder] == [b"0", b"1"]
    member = page.messages[0].message
    assert claimer.ask(o.FindMessage(ACCOUNT, QUEUE, member.message_id)) == page.messages[0]
    assert member.visible_at_ms == claimer.clock.now_ms() + 30_000
    assert claimer.due_ms() == 0
    claimer.receive(5, lease_s=3_600)
    assert claimer.due_ms() == 30_000


def test_since_when_members_are_leased(claimer: Asker) -> None:
    """The oldest lease of the queue may be that of a claim."""
    claimer.claim(1, 2)
    claimer.clock.advance(s=5)
    claimer.receive_one(lease_s=3_600)
    since = claimer.counts().since
    assert since[MessageState.LEASED] == claimer.clock.now_ms() - 5_000


def test_members_do_not_expire_while_they_are_hidden(asker: Asker) -> None:
    """Only when the claim has lapsed; what settles it meanwhile completes them."""
    asker.put("short", time_to_live_s=10)
    asker.put("long")
    asker.attach()
    asker.claim(1, 5, 30)
    asker.clock.advance(s=20)
    assert asker.ask(c.RetireExpired(10)) == c.Swept(0)
    assert asker.split() == (0, 2, 0, 0, 0)
    assert asker.inspected() == [(b"short", "leased"), (b"long", "leased")]
    assert asker.claimed() == [b"short", b"long"]
    asker.clock.advance(s=10)
    assert asker.split() == (1, 0, 0, 0, 0)
    assert asker.inspected() == [(b"short", "expired"), (b"long", "visible")]
    assert asker.ask(c.RetireExpired(10)) == c.Swept(1)
    (claim,) = asker.stream().claims
    assert (claim.state, claim.lost) == (ClaimState.BROKEN, 1)


def test_expired_members_of_a_lapsed_claim_are_in_no_count(asker: Asker) -> None:
    """Nor does the time of their lapse say anything of the messages that are visible."""
    asker.put("short", time_to_live_s=10)
    asker.attach()
    asker.claim(1, 5, 5)
    asker.clock.advance(s=20)
    asker.put("new")
    assert asker.split() == (1, 0, 0, 0, 0)
    assert asker.counts().since == {MessageState.VISIBLE: asker.clock.now_ms()}


def test_for_those_with_a_receipt_a_hidden_member_does_not_expire_either(asker: Asker) -> None:
    """It is somebody else's: the claim's."""
    put = asker.put(time_to_live_s=10)
    asker.attach()
    asker.claim(1, 5, 60)
    asker.clock.advance(s=10)
    for refused in (asker.complete(put), asker.renew(put, 5), asker.release(put)):
        assert isinstance(refused, LeaseLost)
    asker.clock.advance(s=50)
    assert isinstance(asker.complete(put), MessageNotFound)


def test_an_expired_member_can_be_settled(asker: Asker) -> None:
    """The work on it was done."""
    asker.put(time_to_live_s=10)
    asker.attach()
    asker.claim(1, 5, 60)
    asker.clock.advance(s=20)
    assert asker.settle(1).completed == 1
    assert asker.count() == 0


@pytest.mark.parametrize("act", ["remove", "end_lease", "amend", "purge"])
def test_an_operator_who_takes_a_member_breaks_the_claim(claimer: Asker, act: str) -> None:
    """It cannot be read whole any more; the other members stay hidden until it would have ended."""
    claimer.claim(1, 3, 30)
    member: Lease = Lease(claimer.read_claim()[1], "")
    if act == "remove":
        assert claimer.remove(member, force=True) == c.DONE
    elif act == "end_lease":
        assert claimer.end_lease(member, reason="wrong").state is MessageState.VISIBLE
    elif act == "amend":
        claimer.amend(member, body=b"new", force=True)
    else:
        assert claimer.run_job(o.JobKind.PURGE, filter=MessageFilter(text="1")).moved == 1
    (claim,) = claimer.stream().claims
    assert (claim.state, claim.size, claim.lost) == (ClaimState.BROKEN, 3, 1)
    assert isinstance(claimer.read_claim(), ClaimBroken)
    assert isinstance(claimer.extend(), ClaimBroken)
    assert claimer.counts().claimed == 2
    taken = set(claimer.received())
    assert taken >= {b"3", b"4"}
    assert not taken & {b"0", b"2"}
    claimer.clock.advance(s=30)
    assert claimer.counts().claimed == 0
    assert {b"0", b"2"} <= set(claimer.received())
    assert claimer.stream().claims[0].state is ClaimState.BROKEN


def test_members_are_not_removed_or_amended_by_mistake(claimer: Asker) -> None:
    """Without force they are spared, as all that is leased."""
    claimer.claim(1, 3, 30, holder="driver")
    member = Lease(claimer.read_claim()[0], "")
    for refused in (claimer.remove(member), claimer.amend(member, body=b"new")):
        assert refused.holder == "driver"
        assert refused.until_ms == claimer.clock.now_ms() + 30_000
    assert claimer.claimed() == BODIES[:3]


def test_clearing_the_queue_breaks_its_claims(claimer: Asker) -> None:
    """They have lost all their members."""
    claimer.claim(1, 2)
    claimer.claim(2, 2)
    assert claimer.ask(c.Clear(ACCOUNT, QUEUE)) == c.DONE
    claims = claimer.stream().claims
    assert [(each.state, each.lost) for each in claims] == [(ClaimState.BROKEN, 2)] * 2
    assert (claimer.count(), claimer.split()) == (0, (0, 0, 0, 0, 0))
    assert claimer.settle(2) == cl.Settled(last_settled=2, lost=4)


def test_deleting_the_queue_forgets_its_streams(claimer: Asker) -> None:
    """A queue of the same name has none of them."""
    claimer.claim(1, 2)
    claimer.ask(c.DeleteQueue(ACCOUNT, QUEUE))
    assert isinstance(claimer.read_claim(), QueueNotFound)
    claimer.create()
    assert claimer.ask(cl.ListStreams(ACCOUNT, QUEUE)) == ()
    assert claimer.split() == (0, 0, 0, 0, 0)
    assert claimer.attach().last_settled == 0


def test_a_poison_queue_can_be_claimed(asker: Asker) -> None:
    """Its messages are poisoned for those who look at the queue that they came from."""
    for number in range(2):
        asker.bury(f"{number}")
    asker.attach(queue=POISON)
    asker.claim(1, 1, queue=POISON)
    assert asker.claimed(queue=POISON) == [b"0"]
    assert asker.split() == (0, 0, 0, 0, 2)
    assert asker.split(POISON) == (1, 1, 0, 0, 0)
    listed = asker.inspect(states=["poisoned"]).messages
    assert [seen.under for seen in listed] == [f"{STREAM}/1", None]
    assert asker.run_job(o.JobKind.REDRIVE).moved == 2
    assert asker.stream(queue=POISON).claims[0].state is ClaimState.BROKEN


def test_claimed_poison_does_not_expire(asker: Asker) -> None:
    """While a claim holds it, whoever looks at the queue that it came from still sees it."""
    asker.limit_failures(poison_time_to_live_s=50)
    for number in range(2):
        asker.bury(f"{number}")
    asker.attach(queue=POISON)
    asker.claim(1, 1, queue=POISON, lease_s=60)
    (held,) = asker.read_claim(queue=POISON)
    asker.clock.advance(s=50)
    asker.ask(c.RetireExpired(10))
    assert asker.split() == (0, 0, 0, 0, 1)
    assert asker.inspected(states=["poisoned"]) == [(b"0", "poisoned")]
    assert asker.ask(o.FindMessage(ACCOUNT, QUEUE, held.message_id)).state == "poisoned"
    asker.clock.advance(s=10)
    assert asker.split() == (0, 0, 0, 0, 0)
    assert asker.inspected(states=["poisoned"]) == []
    gone = asker.ask(o.FindMessage(ACCOUNT, QUEUE, held.message_id))
    assert isinstance(gone, MessageNotFound)
