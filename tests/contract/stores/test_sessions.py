"""Contract: workers say that they live, and lose their leases when they do not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from leasehold.domain import admin as o
from leasehold.domain import commands as c
from leasehold.domain import sessions as s
from leasehold.domain.errors import (
    QueueNotFound,
    SessionNotFound,
)
from leasehold.domain.model import Lease, Message, MessageState, Progress
from leasehold.domain.sessions import SessionState

from .conftest import ACCOUNT, QUEUE, Asker


def message_of(asker: Asker, lease: Lease) -> Message:
    """Return the message as it is now."""
    seen = asker.find(lease)
    assert isinstance(seen, o.Seen)
    return seen.message


# --- opening and looking -----------------------------------------------------------------------


def test_a_session_begins_with_its_first_sign_of_life(empty: Asker) -> None:
    """It needs no queue."""
    session = empty.open_session("w1", 10, progress_timeout_s=60)
    now_ms = empty.clock.now_ms()
    assert session == s.Session(
        session_id=session.session_id,
        account=ACCOUNT,
        holder="w1",
        state=SessionState.LIVE,
        timeout_s=10,
        progress_timeout_s=60,
        started_at_ms=now_ms,
        last_heartbeat_ms=now_ms,
    )
    assert empty.session(session) == session
    assert empty.open_session("w1").session_id != session.session_id


def test_sessions_are_listed_the_newest_first(asker: Asker) -> None:
    """Those of the account."""
    opened = []
    for number in range(3):
        opened.append(asker.open_session(f"w{number}"))
        asker.clock.advance(s=1)
    listed = asker.ask(s.ListSessions(ACCOUNT))
    assert listed == tuple(reversed(opened))
    assert asker.ask(s.ListSessions(ACCOUNT, 1)) == (opened[2],)
    assert asker.ask(s.ListSessions("other")) == ()


def test_a_session_is_of_one_account(asker: Asker) -> None:
    """Others do not find it; nor does anybody find one that there is not."""
    session = asker.open_session()
    for account, session_id in (("other", session.session_id), (ACCOUNT, "no")):
        for command in (
            s.GetSession(account, session_id),
            s.Heartbeat(account, session_id),
            s.EndSession(account, session_id),
        ):
            assert isinstance(asker.ask(command), SessionNotFound)
    for queue, error in ((QUEUE, SessionNotFound), ("no", QueueNotFound)):
        receive = c.Receive(ACCOUNT, queue, 1, 30, None, "no")
        assert isinstance(asker.ask(receive), error)


# --- leases ------------------------------------------------------------------------------------


def test_leases_belong_to_the_session(asker: Asker) -> None:
    """And to the holder that it names, whatever the receive says."""
    for _ in range(3):
        asker.put()
    session = asker.open_session("w1")
    command = c.Receive(ACCOUNT, QUEUE, 2, 60, "somebody else", session.session_id)
    leases = asker.ask(command)
    assert {lease.message.session for lease in leases} == {session.session_id}
    assert {lease.message.holder for lease in leases} == {"w1"}
    asker.receive_one(holder="w2")
    assert asker.session(session).leases == 2
    assert message_of(asker, leases[0]) == leases[0].message
    asker.complete(leases[0])
    assert asker.session(session).leases == 1
    asker.clock.advance(s=60)
    assert asker.session(session).leases == 0
    assert asker.receive_one().message.session is None


def test_a_renewal_stays_in_the_session(asker: Asker) -> None:
    """And so does a lease taken up again."""
    asker.put()
    session = asker.open_session()
    (lease,) = asker.receive_in(session)
    renewed = asker.renew(lease, 30)
    assert renewed.message.session == session.session_id
    given_back = asker.renew(renewed, 0)
    assert asker.session(session).leases == 0
    assert asker.renew(given_back, 30).message.session == session.session_id
    assert asker.session(session).leases == 1


def test_a_receive_is_a_sign_of_life(asker: Asker) -> None:
    """Also when it gets nothing, and when the session was silent for too long."""
    session = asker.open_session(timeout_s=10)
    asker.clock.advance(s=9)
    assert asker.receive_in(session) == ()
    asker.clock.advance(s=10)
    asker.lose()
    assert asker.session(session).state is SessionState.LIVE
    asker.clock.advance(s=60)
    assert asker.receive_in(session) == ()
    asker.lose()
    assert asker.session(session).last_heartbeat_ms == asker.clock.now_ms()


def test_sessions_of_one_batch_have_their_own_leases(asker: Asker) -> None:
    """However their receives are carried out together."""
    for number in range(4):
        asker.put(f"{number}")
    sessions = [asker.open_session(f"w{number}") for number in range(2)]
    results: list[Any] = asker.batch(
        *(c.Receive(ACCOUNT, QUEUE, 1, 60, None, each.session_id) for each in sessions),
        c.Receive(ACCOUNT, QUEUE, 1, 60, None, "no"),
        c.Receive(ACCOUNT, QUEUE, 1, 60, "alone"),
        c.Receive(ACCOUNT, QUEUE, 9, 60, "alone"),
    )
    holders = [
        [(lease.message.body, lease.message.holder) for lease in result]
        for result in results
        if isinstance(result, tuple)
    ]
    assert holders == [
        [(b"0", "w0")],
        [(b"1", "w1")],
        [(b"2", "alone")],
        [(b"3", "alone")],
    ]
    assert isinstance(results[2], SessionNotFound)


def test_a_refused_receive_changes_nothing(asker: Asker) -> None:
    """What it did not get is there for others, now and later."""
    asker.put()
    put_ms = asker.clock.now_ms()
    for _ in range(2):
        asker.clock.advance(s=5)
        refused = asker.ask(c.Receive(ACCOUNT, QUEUE, 5, 60, None, "no"))
        assert isinstance(refused, SessionNotFound)
        assert asker.bodies() == [b"work"]
        assert asker.counts().since == {MessageState.VISIBLE: put_ms}
    assert asker.received() == [b"work"]


def test_a_lease_without_a_session_is_in_none(asker: Asker) -> None:
    """Also if the message was in one in its earlier life, before it was poison."""
    asker.limit_failures(max_failures=1)
    asker.put()
    session = asker.open_session(timeout_s=10)
    (lease,) = asker.receive_in(session)
    assert asker.fail(lease).poisoned
    assert asker.run_job(o.JobKind.REDRIVE).moved == 1
    lease = asker.receive_one(lease_s=3_600)
    assert lease.message.session is None
    assert message_of(asker, lease) == lease.message
    assert asker.session(session).leases == 0
    asker.clock.advance(s=11)
    assert asker.lose() == 0
    assert asker.complete(lease) == c.DONE


# --- heartbeats --------------------------------------------------------------------------------


def test_heartbeats_keep_a_session(asker: Asker) -> None:
    """The answer says until when."""
    session = asker.open_session(timeout_s=10)
    for _ in range(5):
        asker.clock.advance(s=10)
        asker.lose()
        assert asker.beat(session) == s.Beat(asker.clock.now_ms() + 10_000)
    expected = replace(session, last_heartbeat_ms=asker.clock.now_ms())
    assert asker.session(session) == expected


def test_a_late_heartbeat_revives(asker: Asker) -> None:
    """As long as nobody has found the session silent."""
    asker.put()
    session = asker.open_session(timeout_s=10)
    asker.receive_in(session)
    asker.clock.advance(s=60)
    assert asker.session(session).state is SessionState.LIVE
    assert isinstance(asker.beat(session), s.Beat)
    assert asker.lose() == 0
    assert asker.session(session).leases == 1


def test_progress_is_told_with_a_heartbeat(asker: Asker) -> None:
    """The receipts stay good; what is on no lease of this session is told to be lost."""
    for _ in range(4):
        asker.put()
    session = asker.open_session()
    told, silent, lapsed = (asker.receive_in(session, lease_s=s)[0] for s in (60, 60, 5))
    other = asker.receive_one(lease_s=60)
    asker.clock.advance(s=5)
    progress = Progress(at_ms=asker.clock.now_ms(), fraction=0.5, note="half")
    ids = [lease.message.message_id for lease in (told, silent, lapsed, other)]
    beat = asker.beat(session, progress=dict(zip(ids, [progress, None, None, None], strict=True)))
    assert beat.lost == (ids[2], ids[3])
    assert message_of(asker, told) == told.message._replace(
        detail=replace(told.message.detail, progress=progress)
    )
    assert message_of(asker, silent) == silent.message
    assert asker.beat(session, progress={"no": progress}).lost == ("no",)
    assert asker.complete(told) == c.DONE
    assert asker.beat(session, progress={ids[0]: None}).lost == (ids[0],)
