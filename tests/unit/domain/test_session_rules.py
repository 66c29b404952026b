"""The rules of sessions, one by one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from leasehold.domain import sessions as rules
from leasehold.domain.errors import SessionOver
from leasehold.domain.model import Detail, ErrorReport, Message, Outcome, Phase, Progress
from leasehold.domain.sessions import (
    REMEMBER_SESSION_MS,
    OpenSession,
    Session,
    SessionState,
    is_silent,
)

NOW = 1_000_000
LIVE = rules.begin(OpenSession("coho", "w1", bytes(range(10)), 10, 30), NOW)
LOST = rules.after_silence(LIVE, NOW + 11_000)
ENDED = rules.after_end(LIVE, NOW + 1_000, "deploy")
LEASED = Message(
    "id",
    b"",
    NOW,
    NOW + 600_000,
    NOW + 60_000,
    dequeue_count=1,
    phase=Phase.LEASED,
    since_ms=NOW,
    session=LIVE.session_id,
)


def test_a_session_begins() -> None:
    """Live, and just heard of."""
    assert (
        Session(
            session_id="00010203040506070809",
            account="coho",
            holder="w1",
            state=SessionState.LIVE,
            timeout_s=10,
            progress_timeout_s=30,
            started_at_ms=NOW,
            last_heartbeat_ms=NOW,
        )
        == LIVE
    )
    assert rules.until_ms(LIVE) == NOW + 10_000


def test_silence() -> None:
    """Up to its very end the timeout is kept."""
    assert not is_silent(LIVE, NOW + 10_000)
    assert is_silent(LIVE, NOW + 10_001)


@pytest.mark.parametrize("over", [LOST, ENDED])
def test_over(over: Session) -> None:
    """A session that is over says how, and is remembered for a while."""
    refusal = rules.over_refusal(over)
    assert isinstance(refusal, SessionOver)
    assert (refusal.state, refusal.reason) == (str(over.state), over.reason)
    assert over.ended_at_ms is not None
    forgotten_ms = over.ended_at_ms + REMEMBER_SESSION_MS
    assert not rules.is_forgotten(over, forgotten_ms - 1)
    assert rules.is_forgotten(over, forgotten_ms)
    assert not rules.is_forgotten(replace(over, leases=1), forgotten_ms)


def test_live() -> None:
    """A live session is neither refused nor forgotten."""
    assert rules.over_refusal(LIVE) is None
    assert not rules.is_forgotten(LIVE, NOW + 10 * REMEMBER_SESSION_MS)


@pytest.mark.parametrize(
    "other",
    [
        LEASED._replace(session=None),
        LEASED._replace(session="other"),
        LEASED._replace(phase=Phase.DEFERRED),
        LEASED._replace(visible_at_ms=NOW + 5),
        LEASED._replace(expires_at_ms=NOW + 5),
    ],
)
def test_leases(other: Message) -> None:
    """What is leased by the session and has neither lapsed nor expired."""
    assert rules.holds(LEASED, LIVE.session_id, NOW + 5)
    assert not rules.holds(other, LIVE.session_id, NOW + 5)


def test_signs() -> None:
    """The last of: leased, told, progress."""
    told = LEASED._replace(detail=Detail(progress=Progress(at_ms=NOW + 7)))
    assert rules.last_sign_ms(LEASED, None) == NOW
    assert rules.last_sign_ms(LEASED, NOW + 3) == NOW + 3
    assert rules.last_sign_ms(told, NOW + 3) == NOW + 7
    assert rules.last_sign_ms(told, NOW + 9) == NOW + 9


def test_stuck() -> None:
    """Without a sign for longer than the watchdog waits, where there is one."""
    assert not rules.is_stuck(LIVE, LEASED, None, NOW + 30_000)
    assert rules.is_stuck(LIVE, LEASED, None, NOW + 30_001)
    assert not rules.is_stuck(LIVE, LEASED, NOW + 1, NOW + 30_001)
    unwatched = replace(LIVE, progress_timeout_s=None)
    assert not rules.is_stuck(unwatched, LEASED, None, NOW + 10**9)


@pytest.mark.parametrize(
    ("session", "outcome", "text", "event"),
    [
        (LIVE, Outcome.STUCK, "no progress", "no progress"),
        (LOST, Outcome.LOST, "no heartbeat for 10 s", "session lost"),
        (ENDED, Outcome.INTERRUPTED, "deploy", "session ended"),
        (replace(ENDED, reason=None), Outcome.INTERRUPTED, None, "session ended"),
    ],
)
def test_ends(session: Session, outcome: Outcome, text: str | None, event: str) -> None:
    """The attempt says why it ended."""
    assert rules.ending_of(session)[1] == event
    (attempt,) = rules.closed_by(LEASED, session, NOW + 5).detail.attempts
    error = None if text is None else ErrorReport(text=text)
    assert (attempt.outcome, attempt.error, attempt.ended_at_ms) == (outcome, error, NOW + 5)
