"""Contract: what becomes of single members is noted ahead, and carried out when a claim settles."""

from __future__ import annotations

import pytest

from leasehold.domain import admin as o
from leasehold.domain import claims as cl
from leasehold.domain import commands as c
from leasehold.domain.errors import (
    ClaimBroken,
    ClaimLapsed,
    ClaimNotFound,
    ClaimSettled,
    MemberNotFound,
    OutOfRange,
    QueueNotFound,
    StaleToken,
    StreamNotFound,
    VisibilityPastExpiry,
)
from leasehold.domain.model import ErrorReport, Outcome
from leasehold.domain.queue_settings import Backoff, BackoffKind

from .conftest import ACCOUNT, POISON, QUEUE, STREAM, Asker

BAD = ErrorReport(text="no such codec", type="ValueError", fingerprint="abc")


def test_noted_members_are_not_completed(claimer: Asker) -> None:
    """When the claim is settled they become what was noted; all others are completed."""
    claimer.claim(1)
    noted = claimer.exempt(
        claimer.exemption(b"1", outcome=Outcome.BURIED, error=BAD),
        claimer.exemption(b"3", delay_s=10),
    )
    assert isinstance(noted, cl.Claim)
    assert (noted.noted, noted.size, noted.state) == (2, 5, cl.ClaimState.OPEN)
    assert claimer.stream().claims == (noted,)
    assert claimer.settle(1) == cl.Settled(last_settled=1, completed=3, exempted=2)
    assert claimer.bodies() == []
    claimer.clock.advance(s=10)
    assert claimer.bodies() == [b"3"]
    (buried,) = claimer.inspect(queue=POISON).messages
    assert buried.message.body == b"1"
    (attempt,) = buried.message.detail.attempts
    assert (attempt.outcome, attempt.error) == (Outcome.BURIED, BAD)


def test_until_then_a_note_changes_nothing(claimer: Asker) -> None:
    """The claim is read as before, and nothing is written to the log."""
    claimer.claim(1)
    seen, seq = claimer.read_claim(1), claimer.last_seq()
    claimer.exempt(claimer.exemption(b"1"))
    assert claimer.read_claim(1) == seen
    assert claimer.last_seq() == seq
    assert claimer.split() == (0, 5, 0, 0, 0)


def test_the_last_note_counts(claimer: Asker) -> None:
    """A repeated one is one; also within one call."""
    claimer.claim(1)
    bury = claimer.exemption(b"1", outcome=Outcome.BURIED)
    put_off = claimer.exemption(b"1", delay_s=5)
    for exemptions in ((bury,), (bury,), (put_off, bury, put_off)):
        assert claimer.exempt(*exemptions).noted == 1
    assert claimer.settle(1).exempted == 1
    assert claimer.split() == (0, 0, 0, 1, 0)


@pytest.mark.parametrize("again", [(), (b"2",), (b"1", b"4")])
def test_notes_are_replaced(claimer: Asker, again: tuple[bytes, ...]) -> None:
    """A consumer that does a claim anew says what becomes of it now, whatever it said before."""
    claimer.claim(1)
    claimer.exempt(claimer.exemption(b"1"), claimer.exemption(b"3", outcome=Outcome.BURIED))
    noted = claimer.exempt(*(claimer.exemption(body) for body in again), replace=True)
    assert noted.noted == len(again)
    assert claimer.stream().claims == (noted,)
    settled = claimer.settle(1)
    assert (settled.completed, settled.exempted) == (5 - len(again), len(again))
    assert claimer.bodies() == list(again)


def test_a_replacement_that_is_refused_changes_nothing(
    claimer: Asker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was noted before stays, and the limit counts what is noted anew only."""
    monkeypatch.setattr("leasehold.domain.claims.MAX_NOTED", 2)
    claimer.claim(1)
    bodies = (b"1", b"2", b"3")
    one, two, three = (claimer.exemption(body) for body in bodies)
    claimer.exempt(one, two)
    assert isinstance(claimer.exempt(one, two, three, replace=True), OutOfRange)
    assert claimer.stream().claims[0].noted == 2
    assert claimer.exempt(two, three, replace=True).noted == 2
    assert claimer.settle(1).exempted == 2
    assert claimer.bodies() == [b"2", b"3"]


def test_nothing_need_be_noted(claimer: Asker) -> None:
    """A task may have no bad members."""
    claim = claimer.claim(1)
    assert claimer.exempt() == claim
    assert claimer.settle(1).completed == 5


def test_exemptions_of_the_settling_itself_win(claimer: Asker) -> None:
    """Over what was noted of the same member; the others add up."""
    claimer.claim(1)
    claimer.exempt(
        claimer.exemption(b"0", outcome=Outcome.BURIED),
        claimer.exemption(b"1", outcome=Outcome.BURIED),
    )
    given = (claimer.exemption(b"1"), claimer.exemption(b"2"))
    settled = claimer.settle(1, exemptions=given)
    assert (settled.completed, settled.exempted) == (2, 3)
    assert claimer.bodies() == [b"1", b"2"]
    assert claimer.split() == (2, 0, 0, 0, 1)


def test_notes_of_several_claims_are_carried_out_together(claimer: Asker) -> None:
    """Each claim that is settled brings its own."""
    for number in (1, 2, 3):
        claimer.claim(number, 1)
        (body,) = claimer.claimed(number)
        claimer.exempt(claimer.exemption(body, number), number=number)
    settled = claimer.settle(2)
    assert (settled.completed, settled.exempted) == (0, 2)
    assert [claim.noted for claim in claimer.stream().claims] == [1]


def test_a_failure_noted_has_the_back_off_of_the_queue(claimer: Asker) -> None:
    """And counts in the queue's budgets, as that of a release does."""
    back_off = Backoff(kind=BackoffKind.FIXED, initial_s=7, jitter=False)
    claimer.limit_failures(max_failures=2, backoff=back_off)
    for number, expected in ((1, (0, 0, 0, 1, 0)), (2, (0, 0, 0, 0, 1))):
        claimer.claim(number)
        claimer.exempt(
            claimer.exemption(b"1", number, outcome=Outcome.FAILED, error=BAD), number=number
        )
        assert claimer.settle(number).exempted == 1
        assert claimer.split() == expected
        claimer.clock.advance(s=7)


def test_only_members_can_be_exempted(claimer: Asker) -> None:
    """If one of them is none, nothing is noted."""
    claimer.claim(1, 2)
    claimer.claim(2, 1)
    good = claimer.exemption(b"0")
    for other in (
        claimer.exemption(b"2", 2)._replace(number=1),
        good._replace(message_id="nobody"),
        good._replace(message_id=good.message_id[:-1] + "0"),
    ):
        refused = claimer.exempt(good, other)
        assert isinstance(refused, MemberNotFound)
        assert refused.message_id == other.message_id
    assert claimer.stream().claims[0].noted == 0
    assert claimer.settle(1).completed == 2


def test_a_delay_past_the_end_of_a_message_is_refused(asker: Asker) -> None:
    """As it is when the claim is settled."""
    asker.put(b"short", time_to_live_s=60)
    asker.attach()
    asker.claim(1)
    assert isinstance(asker.exempt(asker.exemption(b"short", delay_s=60)), VisibilityPastExpiry)
    assert asker.stream().claims[0].noted == 0


def test_a_delay_that_has_become_too_long_does_not_stop_the_settling(asker: Asker) -> None:
    """The message is given back without it."""
    asker.put(b"short", time_to_live_s=60)
    asker.attach()
    asker.claim(1, lease_s=3_600)
    asker.exempt(asker.exemption(b"short", delay_s=50))
    asker.clock.advance(s=20)
    assert asker.settle(1).exempted == 1
    assert asker.bodies() == [b"short"]


def test_who_may_note(claimer: Asker) -> None:
    """Whoever has attached last, on a claim that can be read."""
    claimer.claim(1)
    noted = claimer.exemption(b"1")
    token = claimer.stream().token
    claimer.attach()
    assert isinstance(claimer.exempt(noted, token=token), StaleToken)
    assert isinstance(claimer.exempt(noted, number=2), ClaimNotFound)
    assert isinstance(claimer.exempt(noted, stream="other", token=1), StreamNotFound)
    assert isinstance(claimer.exempt(noted, queue="other", token=1), QueueNotFound)
    claimer.clock.advance(s=60)
    assert isinstance(claimer.exempt(noted), ClaimLapsed)
    claimer.receive()
    assert isinstance(claimer.exempt(noted), ClaimBroken)
    claimer.settle(1)
    assert isinstance(claimer.exempt(noted), ClaimSettled)


def test_a_claim_that_is_still_opening_takes_no_notes(
    claimer: Asker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody has seen its members."""
    monkeypatch.setattr(cl, "CLAIM_STEP", 2)
    opening = claimer.claim(1)
    assert opening.state is cl.ClaimState.OPENING
    member = claimer.inspect(states=["leased"]).messages[0].message.message_id
    noted = cl.Exemption(1, member, Outcome.RETURNED)
    assert isinstance(claimer.exempt(noted), ClaimNotFound)


def test_a_note_on_a_member_that_was_lost_is_not_looked_at(claimer: Asker) -> None:
    """The one who took it decides."""
    claimer.claim(1)
    claimer.exempt(
        claimer.exemption(b"0", outcome=Outcome.BURIED), claimer.exemption(b"4"), number=1
    )
    claimer.clock.advance(s=60)
    lease = claimer.receive_one()
    assert lease.message.body == b"0"
    settled = claimer.settle(1)
    assert (settled.completed, settled.exempted, settled.lost) == (3, 1, 1)
    assert claimer.complete(lease) == c.DONE
    assert claimer.split() == (1, 0, 0, 0, 0)


@pytest.mark.parametrize("end", ["give-back", "delete-stream", "clear", "delete-queue"])
def test_notes_die_with_their_claim(claimer: Asker, end: str) -> None:
    """Another claim of the same number, and of the same messages, knows nothing of them."""
    claimer.claim(1)
    claimer.exempt(claimer.exemption(b"1", outcome=Outcome.BURIED))
    if end == "give-back":
        claimer.give_claim_back(1)
    elif end == "delete-stream":
        claimer.ask(cl.DeleteStream(ACCOUNT, QUEUE, STREAM))
    elif end == "clear":
        claimer.ask(c.Clear(ACCOUNT, QUEUE))
        assert [claim.noted for claim in claimer.stream().claims] == [0]
        claimer.give_claim_back(1)
        claimer.put("new")
    else:
        claimer.ask(c.DeleteQueue(ACCOUNT, QUEUE))
        claimer.create()
        claimer.put("new")
    claimer.attach()
    again = claimer.claim(1)
    assert again.noted == 0
    assert claimer.settle(1) == cl.Settled(last_settled=1, completed=again.size)


def test_a_claim_that_is_opened_again_keeps_its_notes(claimer: Asker) -> None:
    """By somebody else, and also if it had lapsed."""
    claimer.claim(1)
    claimer.exempt(claimer.exemption(b"1"))
    claimer.clock.advance(s=60)
    claimer.attach()
    assert claimer.claim(1).noted == 1
    assert claimer.extend(1).noted == 1
    assert claimer.settle(1).exempted == 1


def test_not_too_many_members_are_noted(claimer: Asker, monkeypatch: pytest.MonkeyPatch) -> None:
    """To settle them takes time; those that are noted already can be noted anew."""
    monkeypatch.setattr(cl, "MAX_NOTED", 2)
    claimer.claim(1)
    exemptions = [claimer.exemption(body) for body in (b"0", b"1", b"2")]
    assert claimer.exempt(*exemptions[:2]).noted == 2
    refused = claimer.exempt(*exemptions[1:])
    assert isinstance(refused, OutOfRange)
    assert (refused.field, refused.value, refused.maximum) == ("exemptions", 3, 2)
    assert claimer.exempt(*exemptions[:2]).noted == 2


def test_noted_members_can_be_seen_and_removed(claimer: Asker) -> None:
    """They are members like any other until then."""
    claimer.claim(1)
    claimer.exempt(claimer.exemption(b"1"))
    (seen,) = [each for each in claimer.inspect().messages if each.message.body == b"1"]
    removed = claimer.ask(o.Remove(ACCOUNT, QUEUE, seen.message.message_id, force=True))
    assert not isinstance(removed, Exception)
    settled = claimer.settle(1)
    assert (settled.completed, settled.exempted, settled.lost) == (4, 0, 1)
