"""Travelling in time, with a clock that only moves when it is told to."""

from __future__ import annotations

import contextlib
from typing import Final

from leasehold.clock import VirtualClock
from leasehold.domain.errors import LeaseholdError, Unavailable
from leasehold.domain.session_rules import until_ms
from leasehold.domain.sessions import ListSessions, Session, SessionState
from leasehold.engine.engine import Engine

EXACT_STEPS: Final = 200
"""Stops made at the exact moments when something is due. After these there are at most as many
more, at equal distances: a journey over years takes no longer than one over days."""
SWEEP_MS: Final = 1_000
"""Maintenance is done at the first stop after this much time, as it would be without travelling."""
_MOST_SESSIONS: Final = 1_000


async def travel(engine: Engine, clock: VirtualClock, length_ms: int) -> None:
    """Let time pass for an engine, and do all that becomes due on the way.

    The clock stops at each moment that somebody waits for: a wait that ends, a message that becomes
    visible while somebody waits for it, a silent session whose messages they could have, the next
    step of a job. What follows from it is done before it goes on. Clients that are told something
    on the way may be heard at a later stop only: the journey does not wait for them.

    Args:
        engine: Uses *clock* for its time and its timers.
        clock: The clock to be moved; nobody else may move it meanwhile.
        length_ms: How far, milliseconds, 0 or more.
    """
    end_ms = clock.now_ms() + length_ms
    await engine.settle()  # what was asked for before the journey happens before it
    swept_ms = clock.now_ms()
    steps = least_ms = 0
    lost_ms = await _session_ends(engine, swept_ms) if _is_due(clock, end_ms) else []
    while _is_due(clock, end_ms):
        due_ms = clock.next_timer_ms() or end_ms
        if steps == EXACT_STEPS:
            least_ms = -(-(end_ms - clock.now_ms()) // EXACT_STEPS)
        steps += 1
        now_ms = min(max(due_ms, clock.now_ms() + least_ms), end_ms)
        if lost_ms and lost_ms[-1] <= now_ms:
            now_ms = lost_ms.pop()
            swept_ms = 0
        clock.advance(ms=now_ms - clock.now_ms())
        await engine.settle()
        if swept_ms + SWEEP_MS <= now_ms < end_ms:
            swept_ms = now_ms
            await _sweep(engine)
            await engine.settle()
    clock.advance(ms=end_ms - clock.now_ms())
    await _sweep(engine)
    engine.waiting.check()
    await engine.settle()


def _is_due(clock: VirtualClock, end_ms: int) -> bool:
    due_ms = clock.next_timer_ms()
    return due_ms is not None and due_ms <= end_ms


async def _session_ends(engine: Engine, now_ms: int) -> list[int]:
    """Return when sessions will be lost or a watchdog will look again, the first one last."""
    ends: set[int] = set()
    for account in sorted({account for account, _, _ in engine.message_counts()}):
        with contextlib.suppress(LeaseholdError):
            found = await engine.perform(ListSessions(account, _MOST_SESSIONS))
            assert isinstance(found, tuple)
            for session in found:
                if isinstance(session, Session) and session.state is SessionState.LIVE:
                    ends.add(until_ms(session) + 1)
                    if session.progress_timeout_s is not None:
                        ends.add(now_ms + session.progress_timeout_s * 1000 + 1)
    return sorted((end_ms for end_ms in ends if end_ms > now_ms), reverse=True)


async def _sweep(engine: Engine) -> None:
    # It can share the transaction of a command that is to fail; what it leaves, the next one does.
    with contextlib.suppress(Unavailable):
        await engine.sweep()
