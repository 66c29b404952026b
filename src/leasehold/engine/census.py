"""What there is of sessions, claims and event log: counted when somebody wants to know."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from leasehold.domain import commands as c
from leasehold.domain.claims import AttachStream, ClaimState, ListStreams
from leasehold.domain.errors import LeaseholdError
from leasehold.domain.events import Extent, LogExtent
from leasehold.domain.sessions import ListSessions, OpenSession, Session, SessionState

CLAIM_STATES: Final[tuple[ClaimState, ...]] = tuple(
    state for state in ClaimState if state is not ClaimState.SETTLED
)
"""States that claims are counted by; those settled are gone."""
_ASKED_AT_ONCE: Final = 128
_ALL: Final = 1_000_000

Perform: TypeAlias = Callable[[c.Command], Awaitable[c.Result]]
Key: TypeAlias = tuple[str, str]
"""Account and queue."""


class Census(NamedTuple):
    """How many there are."""

    sessions: Mapping[tuple[str, SessionState], int]
    """By account and state; every account that is known has all states."""
    lost_sessions: int
    """Sessions lost since the server started, as far as they were still remembered when counted."""
    claims: Mapping[Key, Mapping[ClaimState, int]]
    """By queue and state, for queues with streams."""
    log: Extent | None
    """None if the store could not say."""


COUNTED: Final = (AttachStream, OpenSession, c.DeleteQueue)
"""Commands that a :class:`CensusTaker` wants to hear of."""
NOTHING: Final = Census({}, 0, {}, None)


class CensusTaker:
    """Counts, and remembers where it need not look.

    Args:
        since_ms: When the server started; what was lost before is not its to count.
    """

    def __init__(self, since_ms: int) -> None:
        self._since_ms = since_ms
        self._accounts: set[str] = set()
        """Accounts in which sessions were opened; they need not have queues."""
        self._with_streams: set[Key] = set()
        """Queues that have had a stream, as far as is known."""
        self._knows_streams = False
        """Whether all queues have been asked, so that no others have one."""
        self._lost: set[str] = set()
        """Sessions that have been counted as lost and are remembered by the store still."""
        self._lost_count = 0

    def note(self, command: c.Command, _: c.Result) -> None:
        """Hear of a command that was carried out."""
        if type(command) is AttachStream:
            self._with_streams.add((command.account, command.queue))
        elif type(command) is c.DeleteQueue:
            self._with_streams.discard((command.account, command.queue))
        elif type(command) is OpenSession:
            self._accounts.add(command.account)

    async def take(self, perform: Perform, queues: Collection[Key]) -> Census:
        """Count, in all accounts and queues that there are.

        What cannot be counted now is left out.
        """
        accounts = sorted({account for account, _ in queues} | self._accounts)
        found = await _ask(perform, [ListSessions(account, _ALL) for account in accounts])
        sessions: Counter[tuple[str, SessionState]] = Counter()
        for account, listed in zip(accounts, found, strict=True):
            sessions.update({(account, state): 0 for state in SessionState})
            sessions.update((account, each.state) for each in listed or ())
        self._count_lost(each for listed in found for each in listed or ())
        (log,) = await _ask(perform, [LogExtent()])
        claims = await self._count_claims(perform, queues)
        return Census(sessions, self._lost_count, claims, log)

    def _count_lost(self, sessions: Iterable[Session]) -> None:
        lost = {
            each.session_id
            for each in sessions
            if each.state is SessionState.LOST and (each.ended_at_ms or 0) >= self._since_ms
        }
        self._lost_count += len(lost - self._lost)
        self._lost = lost

    async def _count_claims(
        self, perform: Perform, queues: Collection[Key]
    ) -> dict[Key, Mapping[ClaimState, int]]:
        asked = sorted(self._with_streams.intersection(queues) if self._knows_streams else queues)
        found = await _ask(perform, [ListStreams(*key) for key in asked])
        claims: dict[Key, Mapping[ClaimState, int]] = {}
        for key, streams in zip(asked, found, strict=True):
            if streams:
                self._with_streams.add(key)
                states = Counter(claim.state for stream in streams for claim in stream.claims)
                claims[key] = {state: states[state] for state in CLAIM_STATES}
        self._knows_streams = self._knows_streams or None not in found
        return claims


async def _ask(perform: Perform, commands: Sequence[c.Command]) -> list[Any]:
    """Return the answers; None for what was refused."""
    answers: list[Any] = []
    for start in range(0, len(commands), _ASKED_AT_ONCE):
        part = commands[start : start + _ASKED_AT_ONCE]
        results = await asyncio.gather(*map(perform, part), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException) and not isinstance(result, LeaseholdError):
                raise result
            answers.append(None if isinstance(result, LeaseholdError) else result)
    return answers
