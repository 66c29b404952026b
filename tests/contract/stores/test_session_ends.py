"""Contract: sessions are lost or ended, and their leases with them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from leasehold.domain import admin as o
from leasehold.domain import claims as cl
from leasehold.domain import commands as c
from leasehold.domain import sessions as s
from leasehold.domain.errors import (
    LeaseLost,
    MessageNotFound,
    MessageNotLeased,
    QueueNotFound,
    SessionNotFound,
    SessionOver,
)
from leasehold.domain.model import (
    CancelRequest,
    ErrorReport,
    Lease,
    Message,
    MessageState,
    Outcome,
    Phase,
    Progress,
)
from leasehold.domain.sessions import SessionState

from .conftest import ACCOUNT, POISON, QUEUE, Asker


def message_of(asker: Asker, lease: Lease) -> Message:
    """Return the message as it is now."""
    seen = asker.find(lease)
    assert isinstance(seen, o.Seen)
    return seen.message


# --- being lost --------------------------------------------------------------------------------


def test_a_silent_session_loses_its_leases(asker: Asker) -> None:
    """However long they are: the messages can be received again at once."""
    for number in range(3):
        asker.put(f"{number}")
    session = asker.open_session(timeout_s=10)
    first, second = asker.receive_in(session, 2, 3_600)
    asker.receive_one(lease_s=3_600)
    asker.clock.advance(s=10)
    assert asker.lose() == 0
    asker.clock.advance(ms=1)
    assert asker.lose() == 2
    now_ms = asker.clock.now_ms()
    lost = asker.session(session)
    assert (lost.state, lost.ended_at_ms, lost.leases) == (SessionState.LOST, now_ms, 0)
    assert lost.reason == "no heartbeat for 10 s"
    message = message_of(asker, first)
    assert (message.visible_at_ms, message.since_ms) == (now_ms, now_ms)
    assert (message.phase, message.fence, message.dequeue_count) == (Phase.DEFERRED, 2, 1)
    (attempt,) = message.detail.attempts
    assert (attempt.outcome, attempt.holder) == (Outcome.LOST, "w1")
    assert attempt.error == ErrorReport(text="no heartbeat for 10 s")
    assert message.detail.lapses == 1
    assert isinstance(asker.complete(second), LeaseLost)
    assert asker.received() == [b"0", b"1"]
    assert asker.lose() == 0


def test_a_session_that_is_over_can_do_nothing(asker: Asker) -> None:
    """It hears how it ended."""
    lost, ended = asker.open_session(timeout_s=10), asker.open_session(timeout_s=60)
    asker.clock.advance(s=20)
    asker.lose()
    asker.ask(s.EndSession(ACCOUNT, ended.session_id, "deploy"))
    for session, state, reason in (
        (lost, "lost", "no heartbeat for 10 s"),
        (ended, "ended", "deploy"),
    ):
        for refused in (asker.beat(session), asker.receive_in(session)):
            assert isinstance(refused, SessionOver)
            assert (refused.state, refused.reason) == (state, reason)


def test_leases_end_a_few_at_a_time(asker: Asker) -> None:
    """By session, and the oldest message first; the next sweep goes on."""
    for number in range(5):
        asker.put(f"{number}")
    sessions = [asker.open_session(f"w{number}", 10) for number in range(2)]
    asker.receive_in(sessions[1], 2)
    asker.receive_in(sessions[0], 3)
    asker.clock.advance(s=20)
    assert asker.lose(2) == 2
    assert [asker.session(each).state for each in sessions] == [SessionState.LOST] * 2
    assert [asker.session(each).leases for each in sessions] == [1, 2]
    assert sorted(asker.bodies()) == [b"2", b"3"]
    assert [asker.lose(2), asker.lose(2)] == [2, 1]
    assert sorted(asker.bodies()) == [b"0", b"1", b"2", b"3", b"4"]


def test_a_message_that_kills_its_workers_is_poison(asker: Asker) -> None:
    """A lost session counts as a lapse; with the budget used up the message is put aside."""
    asker.limit_failures(max_lapses=2)
    asker.put("bad")
    for number in range(2):
        session = asker.open_session(f"w{number}", 10)
        assert len(asker.receive_in(session)) == 1
        asker.clock.advance(s=11)
        assert asker.lose() == 1
    assert asker.split() == (0, 0, 0, 0, 1)
    (seen,) = asker.inspect(states=["poisoned"]).messages
    assert seen.message.detail.poisoning is not None
    assert seen.message.detail.poisoning.reason == "max_lapses"
    outcomes = [attempt.outcome for attempt in seen.message.detail.attempts]
    assert outcomes == [Outcome.LOST, Outcome.LOST]


def test_leases_in_a_poison_queue_are_leases(asker: Asker) -> None:
    """And so are those of other queues of the account."""
    asker.bury("bad")
    session = asker.open_session(timeout_s=10)
    assert len(asker.receive_in(session, queue=POISON)) == 1
    asker.clock.advance(s=11)
    assert asker.lose() == 1
    assert asker.bodies() == []
    assert [message.body for message in asker.peek(queue=POISON)] == [b"bad"]


@pytest.mark.parametrize("after", ["complete", "lapse", "retaken", "given back", "expired"])
def test_what_is_no_lease_of_the_session_any_more_is_spared(asker: Asker, after: str) -> None:
    """Completed, lapsed, taken by others, given back, expired."""
    asker.put(time_to_live_s=15)
    session = asker.open_session(timeout_s=10)
    (lease,) = asker.receive_in(session, lease_s=5 if after in {"lapse", "retaken"} else 3_600)
    asker.clock.advance(s=5)
    if after == "complete":
        asker.complete(lease)
    elif after == "retaken":
        asker.receive_one(lease_s=3_600, holder="w2")
    elif after == "given back":
        asker.release(lease)
    asker.clock.advance(s=10 if after == "expired" else 6)
    before = asker.inspect()
    assert asker.lose() == 0
    assert asker.session(session).state is SessionState.LOST
    assert asker.inspect() == before


def test_members_of_claims_are_no_leases_of_sessions(asker: Asker) -> None:
    """Also those that a session had leased before."""
    asker.put()
    session = asker.open_session(timeout_s=10)
    asker.receive_in(session, lease_s=1)
    asker.clock.advance(s=2)
    asker.attach()
    asker.claim(1, lease_s=3_600)
    assert asker.session(session).leases == 0
    asker.clock.advance(s=60)
    assert asker.lose() == 0
    assert len(asker.read_claim()) == 1


# --- being ended -------------------------------------------------------------------------------


def test_ending_a_session_ends_its_leases_as_interrupted(asker: Asker) -> None:
    """At once; the reason is that of the session."""
    asker.put()
    asker.put()
    session = asker.open_session(timeout_s=10)
    lease, _ = asker.receive_in(session, 2)
    asker.clock.advance(s=3)
    ended = asker.ask(s.EndSession(ACCOUNT, session.session_id, "deploy"))
    assert (ended.state, ended.reason, ended.leases) == (SessionState.ENDED, "deploy", 0)
    assert ended.ended_at_ms == asker.clock.now_ms()
    assert asker.session(session) == ended
    message = message_of(asker, lease)
    (attempt,) = message.detail.attempts
    assert (attempt.outcome, attempt.error) == (Outcome.INTERRUPTED, ErrorReport(text="deploy"))
    assert (message.detail.interruptions, message.detail.lapses) == (1, 0)
    assert asker.split() == (2, 0, 0, 0, 0)


def test_ending_a_session_twice_changes_nothing(asker: Asker) -> None:
    """The first reason stays, and so does that of one that was lost."""
    session = asker.open_session(timeout_s=10)
    end = s.EndSession(ACCOUNT, session.session_id)
    first = asker.ask(end)
    assert (first.state, first.reason) == (SessionState.ENDED, None)
    asker.clock.advance(s=60)
    again = s.EndSession(ACCOUNT, session.session_id, "again")
    assert asker.ask(again) == first
    lost = asker.open_session(timeout_s=10)
    asker.clock.advance(s=60)
    asker.lose()
    assert asker.ask(s.EndSession(ACCOUNT, lost.session_id)).state is SessionState.LOST


def test_many_leases_end_over_time(asker: Asker) -> None:
    """Those that one step does not end, the sweep does."""
    count = s.LOST_STEP + 10
    asker.batch(*(asker.put_command() for _ in range(count)))
    session = asker.open_session(timeout_s=3_600)
    assert len(asker.receive_in(session, count)) == count
    ended = asker.ask(s.EndSession(ACCOUNT, session.session_id))
    assert ended.leases == 10
    assert asker.split()[:2] == (s.LOST_STEP, 10)
    assert asker.lose(7) == 7
    assert asker.lose(7) == 3
    assert asker.split()[:2] == (count, 0)


def test_a_session_is_forgotten_at_last(asker: Asker) -> None:
    """Long after it was over."""
    session = asker.open_session(timeout_s=10)
    live = asker.open_session(timeout_s=3_600)
    asker.clock.advance(s=11)
    asker.lose()
    asker.clock.advance(ms=s.REMEMBER_SESSION_MS - 1)
    asker.beat(live)
    asker.lose()
    assert asker.session(session).state is SessionState.LOST
    asker.clock.advance(ms=1)
    asker.lose()
    assert isinstance(asker.session(session), SessionNotFound)
    assert [each.holder for each in asker.ask(s.ListSessions(ACCOUNT))] == ["w1"]


# --- the watchdog ------------------------------------------------------------------------------


def test_the_watchdog_ends_leases_without_progress(asker: Asker) -> None:
    """The worker lives, but this work does not get on; the other leases stay."""
    for _ in range(4):
        asker.put()
    session = asker.open_session(timeout_s=3_600, progress_timeout_s=30)
    leases = asker.receive_in(session, 4)
    told, silent, spoken, renewed = leases
    asker.clock.advance(s=30)
    assert asker.lose() == 0
    progress = Progress(at_ms=asker.clock.now_ms(), fraction=0.5)
    asker.beat(
        session,
        progress={told.message.message_id: progress, spoken.message.message_id: None},
    )
    asker.renew(renewed, 3_600)
    asker.clock.advance(ms=1)
    assert asker.lose() == 1
    message = message_of(asker, silent)
    (attempt,) = message.detail.attempts
    assert (attempt.outcome, attempt.error) == (Outcome.STUCK, ErrorReport(text="no progress"))
    assert message.detail.lapses == 1
    assert asker.session(session).state is SessionState.LIVE
    assert asker.session(session).leases == 3
    asker.clock.advance(s=29)
    assert asker.lose() == 0
    asker.clock.advance(s=1)
    assert asker.lose() == 3


def test_progress_told_with_a_renewal_is_a_sign_too(asker: Asker) -> None:
    """From the moment at which it was told."""
    asker.put()
    session = asker.open_session(timeout_s=3_600, progress_timeout_s=30)
    (lease,) = asker.receive_in(session)
    asker.clock.advance(s=20)
    named = (ACCOUNT, QUEUE, lease.message.message_id, lease.receipt)
    progress = Progress(at_ms=asker.clock.now_ms())
    asker.ask(c.Renew(*named, 3_600, None, progress))
    asker.clock.advance(s=30)
    assert asker.lose() == 0
    asker.clock.advance(s=1)
    assert asker.lose() == 1


def test_the_watchdog_knows_renewals_when_the_clock_goes_back(asker: Asker) -> None:
    """A lease that had lapsed is one again, and was renewed not long ago."""
    asker.put("a")
    session = asker.open_session(timeout_s=300, progress_timeout_s=10)
    (lease,) = asker.receive_in(session, 1, 20)
    asker.clock.advance(s=15)
    renewed = asker.renew(lease, 5)
    asker.clock.advance(s=6)
    assert asker.lose() == 0
    asker.clock.advance(s=-5)
    assert asker.lose() == 0
    assert message_of(asker, renewed).phase is Phase.LEASED


def test_without_a_watchdog_nothing_is_stuck(asker: Asker) -> None:
    """Heartbeats alone keep the leases."""
    asker.put()
    session = asker.open_session(timeout_s=10)
    asker.receive_in(session)
    for _ in range(20):
        asker.clock.advance(s=10)
        asker.beat(session)
        assert asker.lose() == 0


# --- asking to stop ----------------------------------------------------------------------------


def test_a_holder_is_asked_to_stop(asker: Asker) -> None:
    """It hears of it with every renewal and heartbeat, until the lease ends."""
    asker.put("first")
    asker.put("second")
    session = asker.open_session(timeout_s=3_600)
    lease, other = asker.receive_in(session, 2)
    message_id = lease.message.message_id
    asker.clock.advance(s=3)
    asked_ms = asker.clock.now_ms()
    seen = asker.ask(s.RequestCancel(ACCOUNT, QUEUE, message_id, "wrong input"))
    cancel = CancelRequest(at_ms=asked_ms, reason="wrong input")
    assert seen.state is MessageState.LEASED
    assert seen.message == lease.message._replace(
        detail=replace(lease.message.detail, cancel=cancel)
    )
    notice = s.CancelNotice(message_id, QUEUE, "wrong input", asked_ms)
    assert asker.beat(session).cancels == (notice,)
    renewed = asker.renew(lease, 60)
    assert renewed.message.detail.cancel == cancel
    assert asker.renew(other, 60).message.detail.cancel is None
    assert asker.beat(session).cancels == (notice,)
    assert asker.release(renewed, Outcome.INTERRUPTED).message_id == message_id
    assert asker.beat(session).cancels == ()
    assert asker.receive_one().message.detail.cancel is None


def test_a_request_to_stop_ends_with_the_lease(asker: Asker) -> None:
    """Also when it lapses."""
    asker.put()
    lease = asker.receive_one(lease_s=5)
    asker.ask(s.RequestCancel(ACCOUNT, QUEUE, lease.message.message_id))
    asker.clock.advance(s=5)
    assert asker.receive_one().message.detail.cancel is None


def test_nobody_can_be_asked_about_what_is_not_leased(asker: Asker) -> None:
    """A visible message, one that is gone, one in no queue."""
    put = asker.put()
    named = (ACCOUNT, QUEUE, put.message.message_id)
    assert isinstance(asker.ask(s.RequestCancel(*named)), MessageNotLeased)
    asker.complete(put)
    assert isinstance(asker.ask(s.RequestCancel(*named)), MessageNotFound)
    assert isinstance(asker.ask(s.RequestCancel(ACCOUNT, "no", "x")), QueueNotFound)


def test_a_member_of_a_claim_can_be_named_to_its_holder(asker: Asker) -> None:
    """It stays in its claim."""
    asker.put()
    asker.attach()
    asker.claim()
    (member,) = asker.read_claim()
    seen = asker.ask(s.RequestCancel(ACCOUNT, QUEUE, member.message_id, "why"))
    assert (seen.under, seen.state) == ("nightly/1", MessageState.LEASED)
    assert asker.read_claim() == [seen.message]
    assert asker.stream().claims[0].state is cl.ClaimState.OPEN
