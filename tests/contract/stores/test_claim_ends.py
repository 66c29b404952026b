"""Contract: claims are settled, given back and dissolved."""

from __future__ import annotations

from typing import Any

import pytest

from leasehold.domain import claims as cl
from leasehold.domain import commands as c
from leasehold.domain.claims import ClaimState, Exemption
from leasehold.domain.errors import (
    ClaimNotFound,
    ClaimOutOfTurn,
    ClaimSettled,
    MemberNotFound,
    QueueNotFound,
    StagedNotFound,
    StaleToken,
    StreamNotFound,
    VisibilityPastExpiry,
)
from leasehold.domain.limits import MAX_CLAIM
from leasehold.domain.model import Detail, ErrorReport, Lease, Outcome, Phase
from leasehold.domain.queue_settings import Backoff, BackoffKind, FailurePolicy

from .conftest import ACCOUNT, POISON, QUEUE, STREAM, Asker

BODIES = [b"0", b"1", b"2", b"3", b"4"]


def exempt(asker: Asker, body: bytes, number: int = 1, **how: Any) -> Exemption:
    """Return an exemption of the member with that body."""
    (member,) = [each for each in asker.read_claim(number) if each.body == body]
    return Exemption(number, member.message_id, how.pop("outcome", Outcome.RETURNED), **how)


# --- settling ----------------------------------------------------------------------------------


def test_settling_completes_all_claims_up_to_a_number(claimer: Asker) -> None:
    """Their messages are gone, and they are forgotten."""
    for number in (1, 2, 3):
        claimer.claim(number, 1)
    assert claimer.settle(2) == cl.Settled(last_settled=2, completed=2)
    assert claimer.count() == 3
    stream = claimer.stream()
    assert stream.last_settled == 2
    assert [claim.number for claim in stream.claims] == [3]
    for refused in (claimer.read_claim(1), claimer.extend(2), claimer.give_claim_back(2)):
        assert isinstance(refused, ClaimSettled)
        assert refused.last_settled == 2
    assert claimer.claimed(3) == [b"2"]


def test_settling_again_does_nothing(claimer: Asker) -> None:
    """Whatever else is asked for: nothing is sent or published twice."""
    claimer.claim(1, 1)
    claimer.stage("staged")
    more: dict[str, Any] = {"publish": ("tx",), "sends": (claimer.put_command("sent"),)}
    published: dict[str, Any] = {"published": 1, "published_by_queue": ((QUEUE, 1),)}
    assert claimer.settle(1, **more) == cl.Settled(last_settled=1, completed=1, **published)
    assert claimer.count() == 6
    wrong = (Exemption(1, "no", Outcome.FAILED),)
    for upto in (0, 1):
        again = claimer.settle(upto, exemptions=wrong, **more)
        assert again == cl.Settled(last_settled=1, already=True)
    assert claimer.count() == 6


def test_what_was_never_opened_cannot_be_settled(claimer: Asker) -> None:
    """The answer says which number is the next."""
    for expected in (1, 2):
        refused = claimer.settle(expected)
        assert isinstance(refused, ClaimOutOfTurn)
        assert refused.expected == expected
        claimer.claim(expected, 1)
    assert claimer.settle(2).completed == 2
    refused = claimer.settle(3)
    assert isinstance(refused, ClaimOutOfTurn)
    assert refused.expected == 3


def test_sends_and_staged_messages_go_with_the_settling(claimer: Asker) -> None:
    """What is published and sent is there at once, in whatever queues."""
    claimer.create("audio")
    claimer.claim(1, 5)
    claimer.stage("a", "b", queue="audio")
    claimer.stage("e", name="more", queue="audio")
    sends = (claimer.put_command("c", queue="audio"), claimer.put_command("d", delay_s=5))
    settled = claimer.settle(1, publish=("tx", "more", "tx"), sends=sends)
    assert settled == cl.Settled(
        last_settled=1, completed=5, published=3, published_by_queue=(("audio", 3),)
    )
    assert sorted(claimer.received(queue="audio")) == [b"a", b"b", b"c", b"e"]
    assert claimer.inspected() == [(b"d", "delayed")]
    assert claimer.transaction().rows == 2
    claimer.clock.advance(s=5)
    claimer.claim(2, 1)
    assert claimer.settle(2, publish=("tx",)).published == 0


@pytest.mark.parametrize(
    ("more", "error"),
    [
        ({"publish": ("no",)}, StagedNotFound),
        ({"publish": ("lost",)}, QueueNotFound),
        ({"sends": [{"queue": "no"}]}, QueueNotFound),
        ({"sends": [{"delay_s": 9, "time_to_live_s": 9}]}, VisibilityPastExpiry),
        ({"exemptions": (Exemption(1, "no", Outcome.FAILED),)}, MemberNotFound),
    ],
)
def test_a_refused_settling_does_nothing(
    claimer: Asker, more: dict[str, Any], error: type[Exception]
) -> None:
    """Neither to the members, nor what was to be sent and published with it."""
    claimer.create("audio")
    claimer.stage("lost", name="lost", queue="audio")
    claimer.ask(c.DeleteQueue(ACCOUNT, "audio"))
    claimer.stage("fine", name="fine")
    claimer.claim(1, 2)
    good = exempt(claimer, b"0", outcome=Outcome.BURIED)
    sends = tuple(claimer.put_command("sent", **put) for put in more.get("sends", ()))
    refused = claimer.settle(
        1,
        exemptions=(good, *more.get("exemptions", ())),
        publish=("fine", *more.get("publish", ())),
        sends=(claimer.put_command("sent"), *sends),
    )
    assert isinstance(refused, error)
    assert claimer.stream().last_settled == 0
    assert claimer.claimed() == [b"0", b"1"]
    assert claimer.count() == 5
    assert claimer.transaction("fine").rows == 1
    assert isinstance(claimer.ask(c.GetQueue(ACCOUNT, POISON)), QueueNotFound)


def test_sends_with_a_known_key_are_not_sent_twice(claimer: Asker) -> None:
    """As with any put."""
    key = Detail(dedup_key="once")
    claimer.put("first", detail=key)
    claimer.claim(1, 5)
    assert claimer.settle(1, sends=(claimer.put_command("second", detail=key),)).completed == 5
    assert claimer.bodies() == [b"first"]


# --- exemptions --------------------------------------------------------------------------------


def test_an_exempted_member_is_given_back(claimer: Asker) -> None:
    """As by a release: at once, after a delay, or after the queue's back-off."""
    backoff = Backoff(kind=BackoffKind.FIXED, initial_s=7, jitter=0.5)
    claimer.limit_failures(backoff=backoff)
    claimer.claim(1, 5)
    claimer.clock.advance(s=3)
    error = ErrorReport(text="no such codec")
    exemptions = (
        exempt(claimer, b"0"),
        exempt(claimer, b"1", outcome=Outcome.INTERRUPTED, delay_s=60),
        exempt(claimer, b"2", outcome=Outcome.FAILED, error=error, jitter=1.0),
    )
    settled = claimer.settle(1, exemptions=exemptions)
    assert settled == cl.Settled(last_settled=1, completed=2, exempted=3)
    now_ms = claimer.clock.now_ms()
    seen = [each.message for each in claimer.inspect().messages]
    assert [each.body for each in seen] == [b"0", b"1", b"2"]
    assert [each.visible_at_ms - now_ms for each in seen] == [0, 60_000, 10_500]
    assert {each.phase for each in seen} == {Phase.DEFERRED}
    assert {each.fence for each in seen} == {2}
    (attempt,) = seen[2].detail.attempts
    assert (attempt.outcome, attempt.error) == (Outcome.FAILED, error)
    assert (attempt.leased_at_ms, attempt.ended_at_ms) == (now_ms - 3_000, now_ms)
    assert claimer.counts().claimed == 0


def test_an_exempted_member_can_be_buried(claimer: Asker) -> None:
    """Or go to the poison queue because its budget is used up."""
    claimer.limit_failures(max_failures=1)
    claimer.claim(1, 5)
    exemptions = (
        exempt(claimer, b"0", outcome=Outcome.BURIED),
        exempt(claimer, b"1", outcome=Outcome.FAILED),
        exempt(claimer, b"2", outcome=Outcome.RETURNED),
    )
    assert claimer.settle(1, exemptions=exemptions).exempted == 3
    assert claimer.split() == (1, 0, 0, 0, 2)
    poisoned = claimer.inspect(states=["poisoned"]).messages
    reasons = [seen.message.detail.poisoning.reason for seen in poisoned]  # type: ignore[union-attr]
    assert reasons == ["buried", "max_failures"]


def test_exemptions_from_several_claims(claimer: Asker) -> None:
    """Each names the claim that the message is in."""
    claimer.claim(1, 2)
    claimer.claim(2, 2)
    exemptions = (exempt(claimer, b"3", 2), exempt(claimer, b"0", 1))
    settled = claimer.settle(2, exemptions=exemptions)
    assert (settled.completed, settled.exempted) == (2, 2)
    assert sorted(claimer.received()) == [b"0", b"3", b"4"]


def test_what_is_no_member_cannot_be_exempted(claimer: Asker) -> None:
    """A message of another claim, of none, of one not settled now, lost, or named twice."""
    claimer.claim(1, 2, 30)
    claimer.claim(2, 1)
    first, other = exempt(claimer, b"0"), exempt(claimer, b"2", 2)
    (free,) = claimer.peek(1)
    for wrong in (
        (Exemption(1, other.message_id, Outcome.RETURNED),),
        (Exemption(1, free.message_id, Outcome.RETURNED),),
        (other,),
        (first, first._replace(outcome=Outcome.FAILED)),
    ):
        refused = claimer.settle(1, exemptions=wrong)
        assert isinstance(refused, MemberNotFound)
        assert refused.message_id == wrong[-1].message_id
    claimer.clock.advance(s=30)
    claimer.receive(5)
    assert isinstance(claimer.settle(1, exemptions=(first,)), MemberNotFound)


def test_an_exemption_past_its_expiry_is_refused(asker: Asker) -> None:
    """As by a release."""
    asker.put(time_to_live_s=20)
    asker.attach()
    asker.claim()
    (member,) = asker.read_claim()
    refused = asker.settle(
        1, exemptions=(Exemption(1, member.message_id, Outcome.FAILED, delay_s=20),)
    )
    assert isinstance(refused, VisibilityPastExpiry)
    fine = Exemption(1, member.message_id, Outcome.FAILED)
    twice = asker.settle(1, exemptions=(fine, fine._replace(delay_s=20)))
    assert isinstance(twice, MemberNotFound), "that it is named twice comes first"
    assert len(asker.read_claim()) == 1


# --- settling what has lapsed ------------------------------------------------------------------


def test_a_lapsed_claim_is_settled_with_what_it_has(claimer: Asker) -> None:
    """What others have taken is theirs: it is lost, and not completed."""
    claimer.claim(1, 3, 30)
    claimer.clock.advance(s=30)
    lease = claimer.receive(3)[-1]
    assert lease.message.body == b"0"
    assert claimer.settle(1) == cl.Settled(last_settled=1, completed=2, lost=1)
    assert claimer.complete(lease) == c.DONE
    assert claimer.count() == 2


def test_a_broken_claim_is_settled_with_what_it_has(claimer: Asker) -> None:
    """Also while it still hides its members."""
    claimer.claim(1, 3, 30)
    member = claimer.read_claim()[0]
    assert claimer.remove(Lease(member, ""), force=True) == c.DONE
    assert claimer.settle(1) == cl.Settled(last_settled=1, completed=2, lost=1)
    assert claimer.received() == [b"3", b"4"]


def test_a_parked_claim_is_settled(claimer: Asker) -> None:
    """As an open one."""
    claimer.claim(1, 3, 30)
    claimer.extend(1, 600, park=True)
    assert claimer.settle(1).completed == 3


# --- giving back -------------------------------------------------------------------------------


def test_a_claim_given_back_is_as_if_never_opened(claimer: Asker) -> None:
    """Its members are visible at once, and the number can be opened anew."""
    claimer.claim(1, 2, holder="driver")
    claimer.claim(2, 1)
    claimer.clock.advance(s=3)
    assert claimer.give_claim_back(1) == c.DONE
    assert [claim.number for claim in claimer.stream().claims] == [2]
    assert isinstance(claimer.read_claim(1), ClaimNotFound)
    now_ms = claimer.clock.now_ms()
    returned = claimer.inspect(states=["visible"]).messages[0].message
    assert (returned.visible_at_ms, returned.since_ms) == (now_ms, now_ms)
    assert (returned.phase, returned.fence, returned.dequeue_count) == (Phase.DEFERRED, 2, 1)
    assert [each.outcome for each in returned.detail.attempts] == [Outcome.RETURNED]
    assert claimer.claim(1, 9).size == 4
    assert claimer.settle(2).completed == 5


def test_a_settling_steps_over_a_number_given_back(claimer: Asker) -> None:
    """It counts as settled from then on."""
    claimer.claim(1, 1)
    claimer.claim(2, 1)
    claimer.give_claim_back(1)
    assert claimer.settle(2) == cl.Settled(last_settled=2, completed=1)
    assert isinstance(claimer.open(1), ClaimSettled)
    assert claimer.count() == 4


def test_a_large_claim_can_be_given_back_while_it_is_opened(asker: Asker) -> None:
    """Whoever opens it may have thought better of it."""
    asker.batch(*(asker.put_command() for _ in range(cl.CLAIM_STEP + 1)))
    asker.attach()
    assert asker.claim(1, MAX_CLAIM).state is ClaimState.OPENING
    assert asker.give_claim_back(1) == cl.Dissolving(cl.CLAIM_STEP - cl.FOLD_STEP)
    assert asker.ask(cl.LapseClaims(MAX_CLAIM)) == c.Swept(cl.CLAIM_STEP - cl.FOLD_STEP)
    assert asker.split()[0] == cl.CLAIM_STEP + 1
    assert asker.claim(1, 5).size == 5


def test_a_lapsed_claim_given_back_leaves_lapsed_leases(claimer: Asker) -> None:
    """What others took is theirs, and the rest are visible since the lapse."""
    claimer.claim(1, 3, 30)
    claimer.clock.advance(s=40)
    claimer.receive(3)
    assert claimer.give_claim_back(1) == c.DONE
    assert claimer.stream().claims == ()
    left = claimer.peek()
    assert [each.body for each in left] == [b"1", b"2"]
    assert {each.visible_at_ms for each in left} == {claimer.clock.now_ms() - 10_000}
    leases = claimer.receive(2)
    assert [lease.message.detail.lapses for lease in leases] == [1, 1]


def test_a_broken_claim_given_back_hides_nothing(claimer: Asker) -> None:
    """Members that it still hid are visible at once."""
    claimer.claim(1, 3, 30)
    member = claimer.read_claim()[0]
    claimer.end_lease(Lease(member, ""))
    assert claimer.give_claim_back(1) == c.DONE
    assert claimer.split() == (5, 0, 0, 0, 0)


def test_deleting_a_stream_gives_its_claims_back(claimer: Asker) -> None:
    """A stream of the same name begins anew."""
    claimer.claim(1, 1)
    claimer.settle(1)
    claimer.claim(2, 2)
    claimer.claim(3, 1)
    delete = cl.DeleteStream(ACCOUNT, QUEUE, STREAM)
    assert claimer.ask(delete) == c.DONE
    assert isinstance(claimer.ask(delete), StreamNotFound)
    assert claimer.split() == (4, 0, 0, 0, 0)
    assert claimer.attach().last_settled == 0
    assert claimer.claim(1).size == 4


@pytest.mark.parametrize("queue_too", [False, True])
def test_no_token_is_ever_given_twice(claimer: Asker, *, queue_too: bool) -> None:
    """Whoever worked on a stream that was deleted cannot settle the claims of the next one."""
    zombie = claimer.stream().token
    if queue_too:
        claimer.ask(c.DeleteQueue(ACCOUNT, QUEUE))
        claimer.create()
        claimer.put("a")
    else:
        claimer.ask(cl.DeleteStream(ACCOUNT, QUEUE, STREAM))
    assert claimer.attach().token > zombie
    claimer.claim(1, 1)
    assert isinstance(claimer.settle(1, token=zombie), StaleToken)
    assert isinstance(claimer.give_claim_back(1, token=zombie), StaleToken)
    assert claimer.settle(1).completed == 1


# --- dissolving --------------------------------------------------------------------------------


def lapsed_claims(asker: Asker, count: int, size: int = 2) -> None:
    """Open claims that lapse one after the other, and let all of them."""
    asker.batch(*(asker.put_command(f"{number}") for number in range(count * size)))
    asker.attach()
    for number in range(1, count + 1):
        asker.claim(number, size, 30 + number)
    asker.clock.advance(s=30 + count)


def test_few_lapsed_claims_are_kept(asker: Asker) -> None:
    """They can still be reopened."""
    lapsed_claims(asker, cl.MAX_LAPSED)
    assert asker.ask(cl.LapseClaims(100)) == c.Swept(0)
    assert asker.claim(1).size == 2


def test_of_more_lapsed_claims_the_oldest_are_dissolved(asker: Asker) -> None:
    """A few members at a time; they stay in their queue, and those claims are broken."""
    lapsed_claims(asker, cl.MAX_LAPSED + 2)
    before = asker.bodies(100)
    assert asker.ask(cl.LapseClaims(3)) == c.Swept(3)
    claims = asker.stream().claims
    assert [claim.lost for claim in claims[:3]] == [2, 1, 0]
    assert [claim.state for claim in claims[:3]] == [
        ClaimState.BROKEN,
        ClaimState.BROKEN,
        ClaimState.LAPSED,
    ]
    assert asker.ask(cl.LapseClaims(3)) == c.Swept(1)
    assert asker.ask(cl.LapseClaims(3)) == c.Swept(0)
    assert [claim.lost for claim in asker.stream().claims[:3]] == [2, 2, 0]
    assert asker.bodies(100) == before
    assert asker.claim(3).size == 2


def test_claims_are_counted_by_queue(asker: Asker) -> None:
    """Several streams of one queue together; those of other queues, and open ones, do not count."""
    asker.create("audio")
    for number in range(cl.MAX_LAPSED):
        asker.put(f"{number}")
        asker.attach(f"s{number}")
        asker.claim(1, 1, 30, stream=f"s{number}")
    asker.put(queue="audio")
    asker.attach(queue="audio")
    asker.claim(1, 1, 30, queue="audio")
    asker.put("open")
    asker.attach()
    asker.claim(1, 1, 3_600)
    asker.clock.advance(s=30)
    assert asker.ask(cl.LapseClaims(100)) == c.Swept(0)
    asker.clock.advance(s=3_600)
    assert asker.ask(cl.LapseClaims(100)) == c.Swept(1)
    assert asker.stream("s0").claims[0].lost == 1


def test_budgets_count_claims_as_deliveries(asker: Asker) -> None:
    """A member that comes back too often goes to the poison queue."""
    asker.govern(failure_policy=FailurePolicy(max_deliveries=2))
    asker.put()
    asker.attach()
    for _ in range(2):
        asker.claim(1)
        asker.give_claim_back(1)
    assert asker.open(1) == cl.Opened(None)
    assert asker.split() == (0, 0, 0, 0, 1)
