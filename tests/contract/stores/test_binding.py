"""Contract: publishing a transaction settles claims bound to it, or nothing happens."""

from __future__ import annotations

from typing import Any

import pytest

from leasehold.domain import admin as o
from leasehold.domain import claims as cl
from leasehold.domain import commands as c
from leasehold.domain import transactions as sg
from leasehold.domain.command import AnyCommand
from leasehold.domain.errors import (
    AlreadyPublished,
    ClaimBroken,
    ClaimLapsed,
    ClaimNotFound,
    ClaimOutOfTurn,
    ClaimSettled,
    LeaseholdError,
    QueueNotFound,
    StagedNotFound,
    StaleToken,
    StreamNotFound,
)
from leasehold.domain.events import EventType, replay
from leasehold.domain.model import Outcome
from leasehold.domain.transactions import BoundClaim, StreamSettled, TransactionState

from .conftest import ACCOUNT, QUEUE, STREAM, Asker

DAY_S = 86_400


def settled(upto: int, completed: int, exempted: int = 0, lost: int = 0) -> StreamSettled:
    """Return what publishing did to the stream."""
    return StreamSettled(QUEUE, STREAM, upto, completed, exempted, lost)


def published(rows: int, *streams: StreamSettled) -> sg.Published:
    """Return the answer for messages that went back to the queue."""
    by_queue = ((QUEUE, rows),) if rows else ()
    return sg.Published(rows, by_queue=by_queue, settled=streams)


def refused_whole(asker: Asker, name: str = "tx") -> LeaseholdError:
    """Publish in every way there is, and return the refusal; nothing was done."""
    seen = asker.inspected(), asker.transaction(name), asker.last_seq(), asker.count()
    first = asker.publish(name)
    put = asker.put_command("sent")
    for refused in (
        asker.ask(sg.CommitTogether(ACCOUNT, (put,), (name,))),
        asker.ask(sg.CommitTogether(ACCOUNT, (put,), (), name)),
    ):
        assert type(refused) is type(first)
    assert isinstance(first, LeaseholdError), first
    assert (asker.inspected(), asker.transaction(name), asker.last_seq(), asker.count()) == seen
    return first


@pytest.fixture
def bound(claimer: Asker) -> Asker:
    """A claim of two messages, bound to a transaction with one."""
    claimer.claim(1, 2, 3_600)
    claimer.stage("result")
    assert claimer.bind(1).transaction == "tx"
    return claimer


# --- publishing --------------------------------------------------------------------------------


def test_publishing_settles_what_is_bound(bound: Asker) -> None:
    """In one: the results are there, and what they were made of is gone."""
    assert bound.publish() == published(1, settled(1, 2))
    assert bound.bodies() == [b"2", b"3", b"4", b"result"]
    stream = bound.stream()
    assert (stream.last_settled, stream.settled_with, stream.claims) == (1, "tx", ())
    again = bound.publish()
    assert again == sg.Published(1, already=True)
    assert bound.settle(1) == cl.Settled(last_settled=1, already=True)


def test_claims_before_it_are_settled_too(claimer: Asker) -> None:
    """As they are by settling up to a number; those after it stay."""
    for number in (1, 2, 3):
        claimer.claim(number, 1)
    claimer.stage("result")
    claimer.bind(2)
    assert claimer.publish() == published(1, settled(2, 2))
    assert [claim.number for claim in claimer.stream().claims] == [3]


def test_noted_exemptions_are_carried_out(bound: Asker) -> None:
    """Whether they were noted before the binding or after it."""
    bound.exempt(bound.exemption(b"0", outcome=Outcome.BURIED))
    assert bound.publish() == published(1, settled(1, 1, exempted=1))
    assert bound.split() == (4, 0, 0, 0, 1)


def test_nothing_need_be_staged(claimer: Asker) -> None:
    """A step may have no result."""
    claimer.claim(1)
    claimer.bind(1)
    assert claimer.publish(parts=()) == published(0, settled(1, 5))
    claimer.put("6")
    claimer.claim(2)
    claimer.bind(2, "other")
    assert claimer.publish("other") == published(0, settled(2, 1))
    assert claimer.transaction("other").state is TransactionState.PUBLISHED
    assert claimer.transaction("other").rows == 0


def test_parts_that_are_not_named_are_dropped(bound: Asker) -> None:
    """And a part that is not there stops everything."""
    bound.stage("other", part="p")
    assert isinstance(bound.publish(parts=("q",)), StagedNotFound)
    assert bound.stream().last_settled == 0
    assert bound.publish(parts=("p",)) == published(1, settled(1, 2))
    assert bound.bodies() == [b"2", b"3", b"4", b"other"]


def test_a_queue_that_is_gone_stops_everything(bound: Asker) -> None:
    """What is staged for it cannot be published, so nothing is settled."""
    bound.create("sums")
    bound.stage("sum", part="p", queue="sums")
    bound.ask(c.DeleteQueue(ACCOUNT, "sums"))
    assert isinstance(bound.publish(), QueueNotFound)
    assert [claim.number for claim in bound.stream().claims] == [1]


def test_claims_of_several_streams(claimer: Asker) -> None:
    """All of them are settled, and each stream tells with what."""
    claimer.create("audio")
    claimer.put("sound", queue="audio")
    claimer.attach("hourly", "audio")
    claimer.claim(1, 2)
    claimer.claim(2, 2)
    claimer.claim(1, queue="audio", stream="hourly")
    for number in (2, 1):
        claimer.bind(number)
    claimer.bind(1, queue="audio", stream="hourly")
    transaction = claimer.transaction()
    assert transaction.rows == 0
    assert transaction.claims == (
        BoundClaim("audio", "hourly", 1),
        BoundClaim(QUEUE, STREAM, 1),
        BoundClaim(QUEUE, STREAM, 2),
    )
    audio = StreamSettled("audio", "hourly", 1, 1, 0, 0)
    assert claimer.publish() == published(0, audio, settled(2, 4))
    assert claimer.stream("hourly", "audio").settled_with == "tx"
    assert claimer.transaction().claims == ()


def test_the_log_tells_of_it_as_of_a_settling(bound: Asker) -> None:
    """The same events, in the batch of what was published; replayed, they give what there is."""
    seq = bound.last_seq()
    bound.publish()
    events = bound.events(seq)
    assert len({event.seq for event in events}) == 1
    assert sorted(event.type for event in events) == [
        EventType.PUBLISHED,
        EventType.SETTLED,
        EventType.SETTLED,
    ]
    assert [each.target for each in events if each.type is EventType.SETTLED] == [f"{STREAM}/1"] * 2
    page = bound.inspect()
    assert set(replay(bound.events())) == {seen.message.message_id for seen in page.messages}


# --- together with other things ------------------------------------------------------------------


def test_a_commit_settles_what_is_bound_to_what_it_publishes(bound: Asker) -> None:
    """With all else that it does."""
    put = bound.put_command("sent")
    committed = bound.ask(sg.CommitTogether(ACCOUNT, (put,), ("tx",)))
    assert (committed.published, committed.settled) == (1, (settled(1, 2),))
    assert bound.bodies() == [b"2", b"3", b"4", b"result", b"sent"]
    assert bound.stream().settled_with == "tx"


def test_a_commit_settles_what_is_bound_to_its_own_name(claimer: Asker) -> None:
    """So results need not be staged."""
    claimer.claim(1)
    claimer.bind(1, "step-1")
    put = claimer.put_command("sent")
    committed = claimer.ask(sg.CommitTogether(ACCOUNT, (put,), (), "step-1"))
    assert (committed.published, committed.settled) == (0, (settled(1, 5),))
    assert claimer.bodies() == [b"sent"]
    again = claimer.ask(sg.CommitTogether(ACCOUNT, (put,), (), "step-1"))
    assert again == sg.Committed((), already=True)


def test_a_commit_that_is_refused_settles_nothing(bound: Asker) -> None:
    """All or nothing."""
    late = c.Complete(ACCOUNT, QUEUE, "nobody", "AAAAAAAAAQAAAAErV8mqrjZo18C3U4330O5H")
    committed = bound.ask(sg.CommitTogether(ACCOUNT, (late,), ("tx",)))
    assert committed.settled == ()
    assert bound.stream().last_settled == 0
    assert bound.transaction().state is TransactionState.STAGED


def test_settling_and_publishing_in_one_call(bound: Asker) -> None:
    """A claim that is bound to what the settling of its own stream publishes, is settled once."""
    done = bound.settle(1, publish=("tx",))
    assert done == cl.Settled(
        last_settled=1, completed=2, published=1, published_by_queue=((QUEUE, 1),)
    )
    assert bound.stream().settled_with == "tx"


def test_a_settling_that_publishes_what_a_later_claim_is_bound_to(claimer: Asker) -> None:
    """It settles up to that one."""
    claimer.claim(1, 2)
    claimer.claim(2, 2)
    claimer.stage("result")
    claimer.bind(2)
    last = claimer.exemption(b"3", 2)
    done = claimer.settle(1, publish=("tx",), exemptions=(last,))
    assert (done.last_settled, done.completed, done.exempted) == (2, 3, 1)


def test_a_settling_that_publishes_for_other_streams(bound: Asker) -> None:
    """They are settled with it, and told of besides."""
    bound.create("audio")
    bound.put("sound", queue="audio")
    bound.attach("hourly", "audio")
    bound.claim(1, queue="audio", stream="hourly")
    done = bound.settle(1, publish=("tx",), queue="audio", stream="hourly")
    assert (done.last_settled, done.completed, done.beside) == (1, 1, (settled(1, 2),))
    assert bound.stream("hourly", "audio").settled_with is None


def test_a_settling_that_is_refused_settles_no_stream(bound: Asker) -> None:
    """Nor publishes anything."""
    bound.put("6")
    bound.attach("other")
    bound.claim(1, stream="other")
    bound.attach()
    refused = bound.settle(1, publish=("tx",), stream="other")
    assert isinstance(refused, StaleToken)
    assert bound.stream("other").last_settled == 0


# --- what refuses to be published ----------------------------------------------------------------


def test_who_was_fenced_cannot_publish(bound: Asker) -> None:
    """Somebody else has attached, and it is theirs to work on the claim."""
    token = bound.attach().token
    refused = refused_whole(bound)
    assert isinstance(refused, StaleToken)
    assert refused.token == token


@pytest.mark.parametrize("step", ["settle", "publish-other", "give-back", "rebind"])
def test_nor_after_the_other_has_gone_on(bound: Asker, step: str) -> None:
    """Whatever has become of the claim, and whatever it is bound to now."""
    bound.attach()
    if step == "settle":
        bound.settle(1)
    elif step == "give-back":
        bound.give_claim_back(1)
    else:
        bound.bind(1, "other")
        if step == "publish-other":
            assert bound.publish("other") == published(0, settled(1, 2))
    assert isinstance(refused_whole(bound), StaleToken)


def test_whoever_binds_it_again_can_publish(bound: Asker) -> None:
    """Under the same name too: so a restart goes on."""
    bound.attach()
    bound.bind(1)
    assert bound.publish() == published(1, settled(1, 2))


def test_a_broken_claim_stops_everything(bound: Asker) -> None:
    """Others have members of it: their results would be there twice."""
    bound.clock.advance(s=3_600)
    assert bound.received(4)[3] == b"0"
    refused = refused_whole(bound)
    assert isinstance(refused, ClaimBroken)
    assert (refused.size, refused.lost) == (2, 1)
    bound.claim(1, accept_loss=True)
    assert bound.publish() == published(1, settled(1, 1, lost=1))


def test_so_does_one_before_it_that_is_broken(bound: Asker) -> None:
    """It would be settled as well."""
    bound.claim(2, 1, 3_600)
    bound.bind(2, "later")
    (first, _) = bound.read_claim(1)
    bound.ask(o.Remove(ACCOUNT, QUEUE, first.message_id, force=True))
    assert isinstance(refused_whole(bound, "later"), ClaimBroken)


def test_a_claim_that_has_lapsed_and_lost_nobody_does_not(bound: Asker) -> None:
    """It is whole."""
    bound.clock.advance(s=3_600)
    assert bound.publish() == published(1, settled(1, 2))


def test_one_before_it_that_is_still_opening_does(
    claimer: Asker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody has seen it."""
    monkeypatch.setattr(cl, "CLAIM_STEP", 2)
    assert claimer.claim(1, 3).state is cl.ClaimState.OPENING
    claimer.claim(2, 1)
    claimer.bind(2)
    assert isinstance(refused_whole(claimer), ClaimOutOfTurn)


def test_a_claim_that_was_given_back_stops_everything(bound: Asker) -> None:
    """Also when its number is used again: others have its messages, or will have."""
    bound.give_claim_back(1)
    assert isinstance(refused_whole(bound), ClaimNotFound)
    bound.claim(1, 2)
    assert isinstance(refused_whole(bound), ClaimNotFound)
    bound.settle(1)
    assert isinstance(refused_whole(bound), ClaimSettled)
    bound.discard()
    assert bound.publish(parts=()) == sg.Published(0)


@pytest.mark.parametrize(
    ("command", "refusal"),
    [
        (cl.DeleteStream(ACCOUNT, QUEUE, STREAM), StreamNotFound),
        (c.Clear(ACCOUNT, QUEUE), ClaimBroken),
        (c.DeleteQueue(ACCOUNT, QUEUE), QueueNotFound),
    ],
)
def test_an_operator_may_have_ended_it(
    claimer: Asker, command: AnyCommand, refusal: type[LeaseholdError]
) -> None:
    """What was made of messages that went elsewhere is not published."""
    claimer.create("sums")
    claimer.claim(1)
    claimer.stage("sum", queue="sums")
    claimer.bind(1)
    claimer.ask(command)
    assert isinstance(claimer.publish(), refusal)
    assert claimer.count("sums") == 0
    if refusal is QueueNotFound:
        claimer.create()
        assert isinstance(claimer.publish(), StreamNotFound)
    if refusal is not ClaimBroken:
        claimer.attach()
        assert isinstance(claimer.publish(), StaleToken)


# --- binding -----------------------------------------------------------------------------------


def test_a_claim_tells_what_it_is_bound_to(bound: Asker) -> None:
    """So does the transaction, which is staged from then on."""
    (claim,) = bound.stream().claims
    assert claim.transaction == "tx"
    assert bound.claim(1).transaction == "tx"
    assert bound.transaction().claims == (BoundClaim(QUEUE, STREAM, 1),)
    assert bound.transaction().state is TransactionState.STAGED


def test_to_bind_again_changes_nothing(bound: Asker) -> None:
    """Each task of a job does it."""
    seen = bound.transaction(), bound.stream()
    assert bound.bind(1) == seen[1].claims[0]
    assert (bound.transaction(), bound.stream()) == seen


def test_another_name_takes_the_place_of_the_first(bound: Asker) -> None:
    """Which settles nothing then; with nothing staged it is forgotten."""
    bound.bind(1, "other")
    bound.bind(1, "third")
    assert isinstance(bound.transaction("other"), StagedNotFound)
    assert bound.transaction("tx").claims == ()
    assert bound.publish("tx") == published(1)
    assert bound.stream().last_settled == 0
    assert bound.publish("third") == published(0, settled(1, 2))


def test_a_settling_undoes_the_binding(bound: Asker) -> None:
    """Whoever settles may publish the results all the same: it is the same consumer."""
    bound.claim(2, 1)
    bound.bind(2, "empty")
    bound.settle(2)
    assert bound.stream().settled_with is None
    assert isinstance(bound.transaction("empty"), StagedNotFound)
    assert bound.transaction().claims == ()
    assert bound.publish() == published(1)
    assert bound.stream().settled_with is None


def test_who_may_bind(claimer: Asker) -> None:
    """Whoever has attached last, a claim that can be read, to what is not published."""
    claimer.claim(1)
    token = claimer.stream().token
    claimer.attach()
    assert isinstance(claimer.bind(1, token=token), StaleToken)
    assert isinstance(claimer.bind(2), ClaimNotFound)
    assert isinstance(claimer.bind(1, stream="other", token=1), StreamNotFound)
    assert isinstance(claimer.bind(1, queue="other", token=1), QueueNotFound)
    claimer.stage("result")
    claimer.publish()
    assert isinstance(claimer.bind(1), AlreadyPublished)
    assert claimer.stream().claims[0].transaction is None
    claimer.clock.advance(s=60)
    assert isinstance(claimer.bind(1, "other"), ClaimLapsed)
    claimer.receive(10)
    assert isinstance(claimer.bind(1, "other"), ClaimBroken)
    assert isinstance(claimer.transaction("other"), StagedNotFound)


def test_a_settled_claim_tells_with_what_it_was_settled(bound: Asker) -> None:
    """Whoever comes too late knows from this that its own results are published."""
    bound.publish()
    bound.attach()
    calls: list[Any] = [
        bound.open(1),
        bound.read_claim(1),
        bound.extend(1),
        bound.bind(1),
        bound.give_claim_back(1),
    ]
    for refused in calls:
        assert isinstance(refused, ClaimSettled)
        assert (refused.last_settled, refused.settled_with) == (1, "tx")
    bound.claim(2)
    bound.settle(2)
    refused = bound.read_claim(2)
    assert (refused.last_settled, refused.settled_with) == (2, None)


# --- what vanishes -------------------------------------------------------------------------------


def test_what_is_discarded_settles_nothing(bound: Asker) -> None:
    """The claim is as it was before."""
    assert bound.discard() == sg.Discarded(1)
    assert bound.stream().claims[0].transaction is None
    assert isinstance(bound.publish(), StagedNotFound)
    bound.stage("again")
    assert bound.publish() == published(1)
    assert bound.stream().last_settled == 0


def test_to_discard_parts_leaves_the_binding(bound: Asker) -> None:
    """Even if nothing is staged any more: the next try may stage nothing, too."""
    assert bound.discard(parts=("",)) == sg.Discarded(1)
    assert bound.transaction().claims == (BoundClaim(QUEUE, STREAM, 1),)
    assert bound.publish() == published(0, settled(1, 2))


def test_what_nobody_publishes_vanishes(claimer: Asker) -> None:
    """A day after it was bound; bound again in the second half of the day it stays longer."""
    claimer.claim(1, lease_s=7 * DAY_S)
    claimer.bind(1)
    claimer.clock.advance(s=DAY_S // 2 + 1)
    claimer.bind(1)
    claimer.clock.advance(s=DAY_S - 1)
    assert claimer.ask(sg.ExpireStaged(10)) == c.Swept(0)
    claimer.clock.advance(s=1)
    assert claimer.ask(sg.ExpireStaged(10)) == c.Swept(1)
    assert claimer.stream().claims[0].transaction is None
    assert isinstance(claimer.publish(), StagedNotFound)


def test_staged_messages_are_kept_as_long_as_what_they_are_bound_to(claimer: Asker) -> None:
    """To bind puts off when they vanish, if less than half a day is left, and never nearer."""
    claimer.claim(1, lease_s=7 * DAY_S)
    claimer.stage("short", timeout_s=60)
    claimer.bind(1)
    until_ms = claimer.clock.now_ms() + DAY_S * 1000
    assert claimer.transaction().until_ms == until_ms
    claimer.clock.advance(s=DAY_S // 2)
    claimer.bind(1)
    assert claimer.transaction().until_ms == until_ms
    claimer.clock.advance(ms=1)
    claimer.bind(1)
    assert claimer.transaction().until_ms == claimer.clock.now_ms() + DAY_S * 1000
    claimer.stage("long", name="long", timeout_s=2 * DAY_S)
    claimer.bind(1, "long")
    assert claimer.transaction("long").until_ms == claimer.clock.now_ms() + 2 * DAY_S * 1000
