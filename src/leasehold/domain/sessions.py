"""Sessions: a worker process says that it lives, once for all its leases.

A lease says how long the work may take, a session how soon a dead worker is noticed. When a
session is lost all its leases end, however long they are. A *watchdog* also ends the leases of a
worker that lives and does not get on.

As with :mod:`leasehold.domain.commands`, an answer is the value named in the docstring or an error.
Heartbeats are not written to the disk: after a restart each session has its whole timeout again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final, NamedTuple

from leasehold.domain.admin import Seen
from leasehold.domain.command import (
    TAKEN_PER_COMMAND,
    Answer,
    Command,
    Lock,
    Rank,
    Refresh,
    Swept,
    changes,
    looks,
    never,
    one,
    quarter,
    upkeep,
)
from leasehold.domain.errors import LeaseholdError, SessionOver
from leasehold.domain.failures import close_attempt
from leasehold.domain.limits import DEFAULT_SESSION_TIMEOUT_S
from leasehold.domain.model import ErrorReport, Message, Outcome, Phase, Progress

HEARTBEATS_PER_TIMEOUT: Final = 4
REMEMBER_SESSION_MS: Final = 3_600_000
"""How long a session that is over can still be looked at."""
LOST_STEP: Final = 500
"""Leases that one step of ending ends."""


class SessionState(StrEnum):
    """Whether the worker lives."""

    LIVE = "live"
    LOST = "lost"
    """No heartbeat in time."""
    ENDED = "ended"
    """The worker said good-bye, or an operator ended it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """One worker process."""

    session_id: str
    account: str
    holder: str
    """What the worker calls itself; the holder of all its leases."""
    state: SessionState
    timeout_s: int
    progress_timeout_s: int | None
    """A lease without progress for so many seconds ends; None: no watchdog."""
    started_at_ms: int
    last_heartbeat_ms: int
    ended_at_ms: int | None = None
    reason: str | None = None
    """Why it is over."""
    leases: int = 0
    """Messages on its leases now."""


@dataclass(frozen=True, slots=True)
class OpenSession(Command[Session]):
    """Begin a session. Answer: :class:`Session`."""

    traits = changes(Rank.FIRST, one, Lock.ALONE, never, Answer.PLAIN, finishes=False, wakes=False)

    account: str
    holder: str
    entropy: bytes
    """``ids.ENTROPY_BYTES`` random bytes for the id."""
    timeout_s: int = DEFAULT_SESSION_TIMEOUT_S
    progress_timeout_s: int | None = None


def _by_progress(command: Heartbeat) -> int:
    return 1 + len(command.progress or ()) // TAKEN_PER_COMMAND


@dataclass(frozen=True, slots=True)
class Heartbeat(Command["Beat"]):
    """Say that the worker lives. Answer: :class:`Beat`, SessionNotFound or SessionOver."""

    traits = changes(
        Rank.HEARTBEAT, _by_progress, Lock.SHARED, never, Answer.PLAIN, finishes=True, wakes=False
    )

    account: str
    session_id: str
    progress: Mapping[str, Progress | None] | None = None
    """By message id: how far it has come, or None for only "it gets on"."""


class CancelNotice(NamedTuple):
    """A message whose work an operator wants stopped."""

    message_id: str
    queue: str
    reason: str | None
    at_ms: int


class Beat(NamedTuple):
    """What a worker hears at a heartbeat."""

    until_ms: int
    """When the session is lost unless there is another heartbeat."""
    cancels: tuple[CancelNotice, ...] = ()
    lost: tuple[str, ...] = ()
    """Of the messages whose progress was told: those no longer on a lease of this session."""


@dataclass(frozen=True, slots=True)
class EndSession(Command[Session]):
    """End a session; its leases end as interrupted. Answer: :class:`Session`.

    Or SessionNotFound. At most LOST_STEP leases end at once; :class:`LoseSessions` goes on.
    """

    traits = changes(
        Rank.END_SESSION, quarter, Lock.ALONE, never, Answer.PLAIN, finishes=True, wakes=True
    )

    account: str
    session_id: str
    reason: str | None = None
    actor: str | None = None
    """Who asks for it in the console, for the event log."""


@dataclass(frozen=True, slots=True)
class GetSession(Command[Session]):
    """Look at a session. Answer: :class:`Session`, or SessionNotFound."""

    traits = looks(Rank.FIRST, one, Lock.SHARED, Answer.PLAIN, Refresh.NOTHING)

    account: str
    session_id: str


@dataclass(frozen=True, slots=True)
class ListSessions(Command[tuple[Session, ...]]):
    """List the sessions of an account, the newest first. Answer: tuple of Session."""

    traits = looks(Rank.FIRST, one, Lock.SHARED, Answer.PLAIN, Refresh.NOTHING)

    account: str
    limit: int = 1_000


@dataclass(frozen=True, slots=True)
class ListLeases(Command[tuple["HeldMessage", ...]]):
    """List what is on the leases of a session. Answer: tuple of HeldMessage, or SessionNotFound."""

    traits = looks(Rank.FIRST, one, Lock.SHARED, Answer.PLAIN, Refresh.NOTHING)

    account: str
    session_id: str
    limit: int = 100


class HeldMessage(NamedTuple):
    """A message on a lease of a session."""

    queue: str
    message: Message
    """Without its body."""
    last_sign_ms: int
    """When there was last a sign that the work gets on; see :func:`last_sign_ms`."""


@dataclass(frozen=True, slots=True)
class LoseSessions(Command[Swept]):
    """End what has gone silent or stuck: up to *limit* leases. Answer: Swept.

    Sessions without a heartbeat in time are lost; leases of sessions that are over end; so do those
    that the watchdog finds. What was over for long is forgotten.
    """

    traits = upkeep(Rank.LOSE_SESSIONS, one, never, Refresh.NOTHING, wakes=True)

    limit: int = LOST_STEP


@dataclass(frozen=True, slots=True)
class RequestCancel(Command[Seen]):
    """Ask the holder of a lease to stop. Answer: Seen.

    Or QueueNotFound, MessageNotFound, MessageNotLeased. The answers to its renewals and heartbeats
    carry the request until the lease ends.
    """

    traits = changes(
        Rank.FIRST, one, Lock.ALONE, never, Answer.MESSAGE, finishes=False, wakes=False
    )

    account: str
    queue: str
    message_id: str
    reason: str | None = None
    actor: str | None = None
    """Who asks for it, for the event log."""


def is_silent(session: Session, now_ms: int) -> bool:
    """Tell whether a live session has missed its heartbeats."""
    return now_ms - session.last_heartbeat_ms > session.timeout_s * 1000


# --- session rules -----------------------------------------------------------------------------
#
# The rules of sessions: pure functions that every store decides by.


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
