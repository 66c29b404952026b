"""Sessions: a worker process says that it lives, once for all its leases.

A lease says how long the work may take, a session how soon a dead worker is noticed. When a
session is lost all its leases end, however long they are. A *watchdog* also ends the leases of a
worker that lives and does not get on.

As with :mod:`leasehold.domain.commands`, an answer is the value named in the docstring or an error.
Heartbeats are not written to the disk: after a restart each session has its whole timeout again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple, TypeAlias

from leasehold.domain.types import Progress

DEFAULT_SESSION_TIMEOUT_S: Final = 16
"""With a heartbeat every quarter of it, a stall of 10 s loses nothing, and a dead worker is noticed
within 17 s."""
SESSION_TIMEOUTS_S: Final = (2, 3_600)
PROGRESS_TIMEOUTS_S: Final = (5, 604_800)
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
class OpenSession:
    """Begin a session. Answer: :class:`Session`."""

    account: str
    holder: str
    entropy: bytes
    """``ids.ENTROPY_BYTES`` random bytes for the id."""
    timeout_s: int = DEFAULT_SESSION_TIMEOUT_S
    progress_timeout_s: int | None = None


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Say that the worker lives. Answer: :class:`Beat`, SessionNotFound or SessionOver."""

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
class EndSession:
    """End a session; its leases end as interrupted. Answer: :class:`Session`.

    Or SessionNotFound. At most LOST_STEP leases end at once; :class:`LoseSessions` goes on.
    """

    account: str
    session_id: str
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class GetSession:
    """Look at a session. Answer: :class:`Session`, or SessionNotFound."""

    account: str
    session_id: str


@dataclass(frozen=True, slots=True)
class ListSessions:
    """List the sessions of an account, the newest first. Answer: tuple of Session."""

    account: str
    limit: int = 1_000


@dataclass(frozen=True, slots=True)
class LoseSessions:
    """End what has gone silent or stuck: up to *limit* leases. Answer: Swept.

    Sessions without a heartbeat in time are lost; leases of sessions that are over end; so do those
    that the watchdog finds. What was over for long is forgotten.
    """

    limit: int = LOST_STEP


@dataclass(frozen=True, slots=True)
class RequestCancel:
    """Ask the holder of a lease to stop. Answer: Seen.

    Or QueueNotFound, MessageNotFound, MessageNotLeased. The answers to its renewals and heartbeats
    carry the request until the lease ends.
    """

    account: str
    queue: str
    message_id: str
    reason: str | None = None


SessionCommand: TypeAlias = (
    OpenSession | Heartbeat | EndSession | GetSession | ListSessions | LoseSessions | RequestCancel
)
SessionResult: TypeAlias = Session | Beat | tuple[Session, ...]


def is_silent(session: Session, now_ms: int) -> bool:
    """Tell whether a live session has missed its heartbeats."""
    return now_ms - session.last_heartbeat_ms > session.timeout_s * 1000
