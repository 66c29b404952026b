"""Who works: sessions with what each holds, and pipelines that report how they are doing."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, Final

import msgspec

from leasehold.auth.console import ConsoleSessions
from leasehold.auth.types import Operation
from leasehold.clock import Clock
from leasehold.domain.commands import GetAccountDocument
from leasehold.domain.errors import SessionNotFound
from leasehold.domain.events import NEWEST, Event, EventType, TailEvents
from leasehold.domain.sessions import HeldMessage, ListLeases, ListSessions, Session, SessionState
from leasehold.http.console.live import session_of
from leasehold.http.native.account import PIPELINES, pipelines_in
from leasehold.http.native.call import Call, param_int
from leasehold.http.native.errors import Refused, problem
from leasehold.http.requests import Response

MOST_SESSIONS: Final = 1_000
MOST_MESSAGES: Final = 50
"""Messages of one session that are shown."""
QUIET_S: Final = 300
"""A message without a sign for longer is stuck, where no watchdog says after how long."""
SILENT_SHARE: Final = 0.5
"""So much of its timeout a session may be silent before that is worth a look."""
STALE_S: Final = 15
"""A running pipeline that has not reported for longer may be dead."""
MOST_LIVES: Final = 500
"""Messages of a pipeline whose life is shown, the newest."""
MOST_LOOKS: Final = 8
_AT_ONCE: Final = 25
_MS: Final = 1000


class Workers:
    """Answers who works on what.

    Args:
        sessions: Know who has signed in.
        clock: The engine's.
    """

    PARAMS: Final = frozenset({"limit", "messages"})

    def __init__(self, sessions: ConsoleSessions, clock: Clock) -> None:
        self._sessions = sessions
        self._clock = clock

    async def workers(self, call: Call) -> Response:
        """Show the sessions of the account with what each holds, stuck ones first."""
        session_of(self._sessions, call, Operation.PEEK_MESSAGES)
        limit = param_int(call, "limit", (1, MOST_SESSIONS)) or 100
        shown = param_int(call, "messages", (1, MOST_MESSAGES)) or 10
        perform = call.services.perform
        listed = await perform(ListSessions(call.account, MOST_SESSIONS))
        now_ms = self._clock.now_ms()
        found: list[dict[str, Any]] = []
        for start in range(0, len(listed), _AT_ONCE):
            part = listed[start : start + _AT_ONCE]
            held = await asyncio.gather(
                *(_leases(call, each) if each.leases else _nothing() for each in part)
            )
            found += map(lambda each, its: show_worker(each, its, shown, now_ms), part, held)
        found.sort(key=_order)
        counts = {state.value: 0 for state in SessionState}
        for each in listed:
            counts[each.state.value] += 1
        return call.reply(
            {
                "now_ms": now_ms,
                "sessions": counts,
                "stuck": sum(each["stuck"] is not None for each in found),
                "more": max(0, len(found) - limit),
                "workers": found[:limit],
            }
        )

    # --- pipelines ---------------------------------------------------------------------------

    async def pipelines(self, call: Call) -> Response:
        """Show the pipelines of the account."""
        session_of(self._sessions, call, Operation.PEEK_MESSAGES)
        now_ms = self._clock.now_ms()
        known = await self._known(call)
        shown = [show_pipeline(each, now_ms) for each in known.values()]
        shown.sort(key=lambda each: -each["at_ms"])
        return call.reply({"now_ms": now_ms, "pipelines": shown})

    async def pipeline(self, call: Call) -> Response:
        """Show one pipeline, and the life of each of its messages from the event log."""
        session_of(self._sessions, call, Operation.PEEK_MESSAGES)
        found = (await self._known(call)).get(call.item)
        if found is None:
            raise Refused(problem("no-such-route", "No pipeline with this name has reported."))
        began_ms, seq, events = found["began_at_ms"], NEWEST, list[Event]()
        reached_ms: int | None = None
        for _ in range(MOST_LOOKS):
            tail = await call.services.perform(TailEvents(call.account, seq, found["queue"]))
            events += tail.events
            seq, reached_ms = tail.next_seq, tail.oldest_at_ms or reached_ms
            if not seq or (reached_ms is not None and reached_ms < began_ms):
                break
        own = [event for event in events if event.at_ms >= began_ms]
        lives = lives_of(reversed(own))
        covers = not seq or (reached_ms is not None and reached_ms < began_ms)
        return call.reply(
            {
                **show_pipeline(found, self._clock.now_ms()),
                "timeline": lives[-MOST_LIVES:],
                "timeline_complete": covers and len(lives) <= MOST_LIVES,
            }
        )

    async def _known(self, call: Call) -> dict[str, dict[str, Any]]:
        kept = await call.services.perform(GetAccountDocument(call.account, PIPELINES))
        return pipelines_in(kept.content)


async def _nothing() -> tuple[HeldMessage, ...]:
    return ()


async def _leases(call: Call, session: Session) -> tuple[HeldMessage, ...]:
    command = ListLeases(call.account, session.session_id, MOST_MESSAGES)
    try:
        return await call.services.perform(command)
    except SessionNotFound:  # it was forgotten meanwhile
        return ()


# --- what is shown -----------------------------------------------------------------------------
#
# Pure functions.


def show_worker(
    session: Session, held: Iterable[HeldMessage], most: int, now_ms: int
) -> dict[str, Any]:
    """Return a session with what it holds; what has given no sign for longest comes first."""
    is_live = session.state is SessionState.LIVE
    messages = sorted(held, key=lambda each: each.last_sign_ms)
    quiet_s = (now_ms - messages[0].last_sign_ms) / _MS if messages else None
    silent_s = (now_ms - session.last_heartbeat_ms) / _MS if is_live else None
    return {
        "session_id": session.session_id,
        "holder": session.holder,
        "state": session.state.value,
        "reason": session.reason,
        "timeout_s": session.timeout_s,
        "progress_timeout_s": session.progress_timeout_s,
        "started_at_ms": session.started_at_ms,
        "last_heartbeat_ms": session.last_heartbeat_ms,
        "ended_at_ms": session.ended_at_ms,
        "silent_s": silent_s,
        "quiet_s": quiet_s,
        "stuck": why_stuck(session, silent_s, quiet_s),
        "holds": session.leases,
        "messages": [_show_held(each, now_ms) for each in messages[:most]],
    }


def why_stuck(session: Session, silent_s: float | None, quiet_s: float | None) -> str | None:
    """Say why a worker is worth a look; None if it is not."""
    if silent_s is not None and silent_s > session.timeout_s * SILENT_SHARE:
        return f"no heartbeat for {silent_s:.0f} s; the session is lost after {session.timeout_s} s"
    if quiet_s is None:
        return None
    watchdog_s = session.progress_timeout_s
    if quiet_s > (QUIET_S if watchdog_s is None else watchdog_s * SILENT_SHARE):
        return f"no progress reported for {quiet_s:.0f} s"
    return None


def _show_held(held: HeldMessage, now_ms: int) -> dict[str, Any]:
    message = held.message
    progress = message.detail.progress
    return {
        "queue": held.queue,
        "id": message.message_id,
        "since_ms": message.since_ms,
        "until_ms": message.visible_at_ms,
        "dequeue_count": message.dequeue_count,
        "renewals": message.renewals,
        "type": message.detail.message_type,
        "group_id": message.detail.group_id,
        "progress": None
        if progress is None
        else {"fraction": progress.fraction, "note": progress.note, "at_ms": progress.at_ms},
        "quiet_s": (now_ms - held.last_sign_ms) / _MS,
    }


def _order(shown: dict[str, Any]) -> tuple[Any, ...]:
    """Stuck ones first, then live ones by how quiet their messages are, idle ones, and the rest."""
    is_over = shown["state"] != SessionState.LIVE.value
    return (
        shown["stuck"] is None,
        is_over,
        0.0 if shown["quiet_s"] is None else -1.0 - shown["quiet_s"],
        -shown["started_at_ms"],
        shown["session_id"],
    )


def show_pipeline(known: dict[str, Any], now_ms: int) -> dict[str, Any]:
    """Return what a pipeline has reported, and whether it still does."""
    silent_s = max(0, now_ms - known["at_ms"]) / _MS
    is_stale = known["state"] == "running" and silent_s > STALE_S
    return {**known, "silent_s": silent_s, "stale": is_stale}


_OVER: Final = {
    EventType.COMPLETED: "completed",
    EventType.RELEASED: "released",
    EventType.LAPSED: "lapsed",
    EventType.LEASE_ENDED: "lease-ended",
    EventType.POISONED: "poisoned",
    EventType.REMOVED: "removed",
}


_LAST: Final = frozenset({EventType.COMPLETED, EventType.POISONED, EventType.REMOVED})


class _Life(msgspec.Struct):
    id: str
    put_ms: int | None = None
    leases: list[dict[str, Any]] = []
    state: str = "waiting"


def lives_of(events: Iterable[Event]) -> list[dict[str, Any]]:
    """Return what became of each message: its leases, by whom, from when until when, and how.

    Args:
        events: The oldest first.
    """
    lives: dict[str, _Life] = {}
    for event in events:
        if event.message_id is None:
            continue
        life = lives.get(event.message_id)
        if life is None:
            life = lives[event.message_id] = _Life(event.message_id, event.inserted_at_ms)
        if event.type is EventType.RECEIVED:
            lease = {"holder": event.holder, "from_ms": event.at_ms, "until_ms": None}
            life.leases.append({**lease, "how": None, "delivery": event.dequeue_count})
            life.state = "leased"
        elif event.type in _OVER:
            how = _OVER[event.type]
            if life.leases and life.leases[-1]["until_ms"] is None:
                lapsed = event.type is EventType.LAPSED and event.visible_at_ms is not None
                until_ms = event.visible_at_ms if lapsed else event.at_ms
                life.leases[-1] |= {"until_ms": until_ms, "how": how, "error": event.error}
            life.state = how if event.type in _LAST else "waiting"
    return [msgspec.to_builtins(each) for each in lives.values()]
