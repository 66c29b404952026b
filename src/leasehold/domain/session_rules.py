"""The rules of sessions: pure functions that every store decides by."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from leasehold.domain.errors import LeaseholdError, SessionOver
from leasehold.domain.failures import close_attempt
from leasehold.domain.sessions import (
    REMEMBER_SESSION_MS,
    OpenSession,
    Session,
    SessionState,
)
from leasehold.domain.types import ErrorReport, Message, Outcome, Phase

_MS: Final = 1000

SESSION_LOST: Final = "session lost"
SESSION_ENDED: Final = "session ended"
NO_PROGRESS: Final = "no progress"


def id_of(entropy: bytes) -> str:
    """Return the id of a session, of ``ids.ENTROPY_BYTES`` random bytes."""
    return entropy.hex()


def begin(command: OpenSession, now_ms: int) -> Session:
    """Return a session as it starts."""
    return Session(
        session_id=id_of(command.entropy),
        account=command.account,
        holder=command.holder,
        state=SessionState.LIVE,
        timeout_s=command.timeout_s,
        progress_timeout_s=command.progress_timeout_s,
        started_at_ms=now_ms,
        last_heartbeat_ms=now_ms,
    )


def over_refusal(session: Session) -> LeaseholdError | None:
    """Say why a session can do nothing more, or None if it is live; silence alone is no reason."""
    if session.state is SessionState.LIVE:
        return None
    return SessionOver(str(session.state), session.reason)


def until_ms(session: Session) -> int:
    """Return up to when, inclusive, a session lives without another heartbeat."""
    return session.last_heartbeat_ms + session.timeout_s * _MS


def after_silence(session: Session, now_ms: int) -> Session:
    """Return a session that has missed its heartbeats."""
    reason = f"no heartbeat for {session.timeout_s} s"
    return replace(session, state=SessionState.LOST, ended_at_ms=now_ms, reason=reason)


def after_end(session: Session, now_ms: int, reason: str | None) -> Session:
    """Return a session that has said good-bye."""
    return replace(session, state=SessionState.ENDED, ended_at_ms=now_ms, reason=reason)


def is_forgotten(session: Session, now_ms: int) -> bool:
    """Tell whether a session was over for long; one with leases left is kept until they ended."""
    ended_at_ms = session.ended_at_ms
    over_for_long = ended_at_ms is not None and now_ms - ended_at_ms >= REMEMBER_SESSION_MS
    return over_for_long and not session.leases


def holds(message: Message, session_id: str, now_ms: int) -> bool:
    """Tell whether a message is on a lease of the session now."""
    return (
        message.session == session_id
        and message.phase is Phase.LEASED
        and message.visible_at_ms > now_ms
        and message.expires_at_ms > now_ms
    )


def last_sign_ms(message: Message, told_ms: int | None) -> int:
    """Return when there was last a sign that the work on a lease gets on.

    Args:
        message: On a lease.
        told_ms: When its holder last renewed it, or spoke of it in a heartbeat, as far as the store
            remembers.
    """
    progress = message.detail.progress
    reported_ms = 0 if progress is None else progress.at_ms
    return max(message.since_ms, told_ms or 0, reported_ms)


def is_stuck(session: Session, message: Message, told_ms: int | None, now_ms: int) -> bool:
    """Tell whether the watchdog ends this lease of a live session."""
    timeout_s = session.progress_timeout_s
    if timeout_s is None:
        return False
    return now_ms - last_sign_ms(message, told_ms) > timeout_s * _MS


def ending_of(session: Session) -> tuple[Outcome, str, ErrorReport | None]:
    """Say how the leases of a session end: outcome, reason of the event, error of the attempt.

    Those of a live session end when they are stuck.
    """
    error = None if session.reason is None else ErrorReport(text=session.reason)
    if session.state is SessionState.LIVE:
        return Outcome.STUCK, NO_PROGRESS, ErrorReport(text=NO_PROGRESS)
    if session.state is SessionState.LOST:
        return Outcome.LOST, SESSION_LOST, error
    return Outcome.INTERRUPTED, SESSION_ENDED, error


def closed_by(message: Message, session: Session, now_ms: int) -> Message:
    """Return a message whose attempt ended with its session, or for want of progress."""
    outcome, _, error = ending_of(session)
    return close_attempt(message, outcome, now_ms, error)
