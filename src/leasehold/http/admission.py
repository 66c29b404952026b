"""How many requests may wait for the engine at once, and how many for messages."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, Protocol, cast

from leasehold.domain import claims as k
from leasehold.domain import commands as c
from leasehold.domain import sessions as s
from leasehold.domain import staging as t
from leasehold.domain.errors import Overloaded
from leasehold.domain.types import Lease
from leasehold.engine.waiting import Gone
from leasehold.http.answers import SHOWING, SMALL_BYTES, UNDER_WAY, Answers, Sizes

MAX_WAITERS: Final = 10_000
"""Receives and claims that may wait for messages at once; each is an open connection, and 10 kB."""

_FINISHING: Final = frozenset(
    {
        c.Complete,
        c.Renew,
        c.Release,
        s.Heartbeat,
        s.EndSession,
        k.ExtendClaim,
        k.ExemptMembers,
        k.BindClaim,
        k.SettleClaims,
        k.GiveBackClaim,
        t.Discard,
    }
)
_EXTRA_SHARE: Final = 4


class LongReceive(Protocol):
    """The engine's; see :meth:`leasehold.engine.engine.Engine.receive`."""

    async def __call__(
        self, command: c.Receive, wait_s: float, gone: Gone | None = None
    ) -> tuple[Lease, ...]:
        """Receive messages, and wait for some if there are none."""
        ...


class LongClaim(Protocol):
    """The engine's; see :meth:`leasehold.engine.engine.Engine.open_claim`."""

    async def __call__(
        self, command: k.OpenClaim, wait_s: float = 0, gone: Gone | None = None
    ) -> k.Opened:
        """Open a claim whole, and wait for messages if there are none."""
        ...


class Admission:
    """Stands before the engine and turns away what is too much.

    What finishes work heals an overload, so updates and deletes of messages, and the like for
    claims, are let in for a quarter longer than the rest; so are heartbeats, without which an
    overload would end all leases.

    Args:
        perform: The engine's.
        limit: Commands that may wait at once.
        receive: The engine's; without it a receive never waits for messages.
        open_claim: The engine's; needed where claims are opened.
        max_waiters: Receives and claims that may wait for messages at once.
        answers: Where room is asked for before a command that may have a large answer is begun.
    """

    def __init__(  # noqa: PLR0913 - keyword-only, and each is a choice of its own
        self,
        perform: Callable[[c.Command], Awaitable[c.Result]],
        *,
        limit: int,
        receive: LongReceive | None = None,
        open_claim: LongClaim | None = None,
        max_waiters: int = MAX_WAITERS,
        answers: Answers | None = None,
    ) -> None:
        self.pending = 0
        """Commands waiting now."""
        self.waiting = 0
        """Receives and claims waiting for messages now; they are not among the commands."""
        self.refused = 0
        """Commands turned away since the start."""
        self._perform = perform
        self._receive = receive
        self._open_claim = open_claim
        self._max_waiters = max_waiters
        self._answers = answers
        self._sizes = Sizes()
        self._limit = limit
        self._finishing_limit = limit + limit // _EXTRA_SHARE

    async def perform(self, command: c.Command) -> c.Result:
        """See :meth:`leasehold.engine.engine.Engine.perform`.

        Raises:
            Overloaded: Too many commands wait; this one was not begun.
            LeaseholdError: The engine's refusal.
        """
        if self.pending >= self._limit and (
            not _finishes(command) or self.pending >= self._finishing_limit
        ):
            self.refused += 1
            raise Overloaded
        answers = self._answers
        if answers is not None:
            if type(command) in SHOWING and not _takes_one(command):
                return await self._show(command, answers)
            answers.others += 1
        self.pending += 1
        try:
            return await self._perform(command)
        finally:
            self.pending -= 1

    async def _show(self, command: c.Command, answers: Answers) -> c.Result:
        """Carry out a command that may have a large answer, once there is room for that."""
        holder = UNDER_WAY.get(None)
        size = self._sizes.guess(command)
        if holder is None or size <= SMALL_BYTES:
            size = 0
            answers.others += 1
        else:
            await answers.enter(holder.hold(), size)
        self.pending += 1
        try:
            result = await self._perform(command)
        finally:
            self.pending -= 1
        self._note_size(command, result, size)
        return result

    def _note_size(self, command: c.Command, result: object, expected: int) -> None:
        """Note how large the answer will be, of which *expected* bytes are counted already."""
        size = self._sizes.learn(command, result)
        holder = UNDER_WAY.get(None)
        if holder is not None and self._answers is not None and (expected or size > SMALL_BYTES):
            self._answers.resize(holder.hold(), size - expected)

    async def receive(
        self, command: c.Receive, wait_s: float, gone: Gone | None = None
    ) -> tuple[Lease, ...]:
        """See :meth:`leasehold.engine.engine.Engine.receive`.

        One that may wait is let in like a command, but does not keep its place while it waits: a
        thousand idle workers are no reason to turn away those who send.

        Raises:
            Overloaded: Too many commands wait, or too many receives; this one was not begun.
            LeaseholdError: The engine's refusal.
        """
        if not wait_s or self._receive is None:
            return cast("tuple[Lease, ...]", await self.perform(command))
        self._admit_waiter()
        self.waiting += 1
        try:
            leases = await self._receive(command, wait_s, gone)
        finally:
            self.waiting -= 1
        if command.limit > 1:
            # Room for what may never come would be kept from others for as long as the wait.
            self._note_size(command, leases, 0)
        return leases

    async def open_claim(
        self, command: k.OpenClaim, wait_s: float = 0, gone: Gone | None = None
    ) -> k.Opened:
        """See :meth:`leasehold.engine.engine.Engine.open_claim`; admitted like a receive.

        Raises:
            Overloaded: Too many commands wait, or too many that wait for messages.
            LeaseholdError: The engine's refusal.
        """
        assert self._open_claim is not None
        self._admit_waiter()
        # Also without a wait: a large claim takes many commands, of which only one waits at a time.
        self.waiting += 1
        try:
            return await self._open_claim(command, wait_s, gone)
        finally:
            self.waiting -= 1

    def _admit_waiter(self) -> None:
        if self.pending >= self._limit or self.waiting >= self._max_waiters:
            self.refused += 1
            raise Overloaded


def _takes_one(command: c.Command) -> bool:
    return type(command) is c.Receive and command.limit == 1


def _finishes(command: c.Command) -> bool:
    if isinstance(command, c.Batch | t.CommitTogether):
        return all(type(part) in _FINISHING for part in command.commands)
    return type(command) in _FINISHING
