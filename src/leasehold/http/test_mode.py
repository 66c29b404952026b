"""What tests may do to a running server: move its clock, and make it fail."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import ContextVar
from dataclasses import replace
from random import Random
from typing import Any, Final, TypeVar

from leasehold.auth.authenticator import Grant
from leasehold.auth.types import SignedRequest, Target
from leasehold.clock import Clock, VirtualClock
from leasehold.domain import commands as c
from leasehold.domain.claims import Exemption, ExemptMembers, SettleClaims
from leasehold.domain.command import AnyCommand, Command, Perform, R
from leasehold.domain.errors import LeaseholdError, Unavailable
from leasehold.domain.sessions import ListSessions, SessionState, until_ms
from leasehold.domain.transactions import CommitTogether
from leasehold.engine.engine import Engine
from leasehold.engine.faults import Faults, has_changed
from leasehold.engine.long_poll import Gone
from leasehold.http.app import NATIVE_PREFIX, Authorizer
from leasehold.http.request_cycle import App, Receive
from leasehold.http.requests import Response

TEST_PREFIX: Final = NATIVE_PREFIX + "test/"
"""Where the addresses for tests are; what is asked there never fails on demand."""
LATEST_MS: Final = 32_503_680_000_000
"""The year 3000: no test needs to go further, and all formats of dates can show it."""

_R = TypeVar("_R")


class _Answer:
    """What is known of the answer that is being made."""

    __slots__ = ("has_changed",)

    def __init__(self) -> None:
        self.has_changed = False


_answer: ContextVar[_Answer] = ContextVar("answer")


class Controls:
    """The switches of one server in test mode. They belong to its event loop.

    Args:
        engine: What is to notice that time passes.
        clock: The engine's; only a virtual one can be moved.
        faults: What the engine's store goes by.
        seed: Of the random numbers that spread retries; the same one spreads them the same way.
    """

    def __init__(self, engine: Engine, clock: Clock, faults: Faults, *, seed: int = 0) -> None:
        self.faults = faults
        self._random = Random(seed)  # noqa: S311 - it spreads retries and guards nothing
        self._engine = engine
        self._clock = clock
        self._advancing = asyncio.Lock()

    @property
    def is_virtual(self) -> bool:
        """Whether the clock can be moved."""
        return isinstance(self._clock, VirtualClock)

    @property
    def waiting(self) -> int:
        """How many receives wait for messages."""
        return self._engine.waiting.count

    def now_ms(self) -> int:
        """Return the time that messages go by, Unix milliseconds."""
        return self._clock.now_ms()

    async def advance(self, length_ms: int) -> int:
        """Let time pass; return the new time once all that became due is done.

        Args:
            length_ms: Milliseconds, 0 or more.

        Raises:
            ValueError: It would go past LATEST_MS, or the clock is the system's.
        """
        clock = self._clock
        if not isinstance(clock, VirtualClock):
            raise ValueError("the clock of this server cannot be moved: it is not virtual")  # noqa: TRY004 - it depends on a setting, not on the caller's types
        async with self._advancing:
            if not 0 <= length_ms <= LATEST_MS - clock.now_ms():
                raise ValueError("time goes forward only, and to the year 3000 at most")
            await advance_time(self._engine, clock, length_ms)
            return clock.now_ms()

    # --- what happens to requests ------------------------------------------------------------

    def watched(self, perform: Perform) -> Perform:
        """Return *perform* with random numbers of a seed; note which requests change things."""

        async def watched_perform(command: Command[R], /) -> R:
            drawn: Command[R] = self._drawn(command)
            result = await perform(drawn)
            _note(command, result)
            return result

        return watched_perform

    def watched_wait(
        self, wait: Callable[..., Awaitable[_R]]
    ) -> Callable[..., Coroutine[Any, Any, _R]]:
        """Do the same for what may wait for messages, such as a receive."""

        async def watched(command: Any, wait_s: float, gone: Gone | None = None) -> _R:
            result = await wait(command, wait_s, gone)
            _note(command, result)
            return result

        return watched

    def _drawn(self, command: Any) -> Any:
        """Return *command* with random numbers that are the same in every run."""
        kind = type(command)
        if kind is c.Release or kind is Exemption:
            return command._replace(jitter=self._random.random())
        if kind is c.Batch:
            return command._replace(commands=tuple(map(self._drawn, command.commands)))
        if kind is CommitTogether:
            return replace(command, commands=tuple(map(self._drawn, command.commands)))
        if kind is SettleClaims or kind is ExemptMembers:
            return replace(command, exemptions=tuple(map(self._drawn, command.exemptions)))
        return command

    def around(self, app: App) -> App:
        """Return *app* with answers kept back or dropped as the faults say."""
        faults = self.faults

        async def faulty(scope: dict[str, Any], receive: Receive) -> Response | None:
            if scope["raw_path"].startswith(TEST_PREFIX.encode("ascii")):
                return await app(scope, receive)
            answer = _Answer()
            _answer.set(answer)
            response = await app(scope, receive)
            if response is None:
                return None
            if faults.delay_answers_s:
                await asyncio.sleep(faults.delay_answers_s)
            if faults.drop_answers and answer.has_changed:
                faults.drop_answers -= 1
                # What ends requests that the server has no more time for: the connection is cut
                # without a word.
                raise asyncio.CancelledError
            return response

        return faulty


class SigningTime:
    """Has signatures and tokens checked by the system's clock, which is what clients sign by.

    Args:
        authorizer: Does the work.
        clock: The system's.
    """

    def __init__(self, authorizer: Authorizer, clock: Clock) -> None:
        self._authorizer = authorizer
        self._clock = clock
        self.check_key = authorizer.check_key

    def check(self, request: SignedRequest, target: Target, *, now_ms: int) -> Grant:
        """See ``Authorizer``; *now_ms* is the engine's time and does not count."""
        del now_ms
        return self._authorizer.check(request, target, now_ms=self._clock.now_ms())

    async def check_bearer(self, request: SignedRequest, target: Target, *, now_ms: int) -> Grant:
        """See ``Authorizer``; *now_ms* is the engine's time and does not count."""
        del now_ms
        return await self._authorizer.check_bearer(request, target, now_ms=self._clock.now_ms())


def _note(command: AnyCommand, result: Any) -> None:
    if has_changed(command, result):
        answer = _answer.get(None)
        if answer is not None:
            answer.has_changed = True


# --- virtual time ------------------------------------------------------------------------------
#
# Moving time on, with a clock that only moves when it is told to.


EXACT_STEPS: Final = 200
"""Stops made at the exact moments when something is due. After these there are at most as many
more, at equal distances: an advance over years takes no longer than one over days."""
SWEEP_MS: Final = 1_000
"""Maintenance is done at the first stop after this much time, as it would be by a real clock."""
_MOST_SESSIONS: Final = 1_000


async def advance_time(engine: Engine, clock: VirtualClock, length_ms: int) -> None:
    """Let time pass for an engine, and do all that becomes due on the way.

    The clock stops at each moment that is waited for: a wait that ends, a message that becomes
    visible while a consumer waits for it, a silent session whose messages they could have, the next
    step of a job. What follows from it is done before it goes on. Clients that are told something
    on the way may be heard at a later stop only: the clock does not wait for them.

    Args:
        engine: Uses *clock* for its time and its timers.
        clock: The clock to be moved; nothing else may move it meanwhile.
        length_ms: How far, milliseconds, 0 or more.
    """
    end_ms = clock.now_ms() + length_ms
    await engine.settle()  # what was asked for before time passes happens before that
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
            for session in found:
                if session.state is SessionState.LIVE:
                    ends.add(until_ms(session) + 1)
                    if session.progress_timeout_s is not None:
                        ends.add(now_ms + session.progress_timeout_s * 1000 + 1)
    return sorted((end_ms for end_ms in ends if end_ms > now_ms), reverse=True)


async def _sweep(engine: Engine) -> None:
    # It can share the transaction of a command that is to fail; what it leaves, the next one does.
    with contextlib.suppress(Unavailable):
        await engine.sweep()
