"""How many requests may wait for the engine at once, and how many for messages."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any, Final, Protocol
from urllib.parse import unquote_plus

from leasehold.clock import Clock
from leasehold.domain import admin as o
from leasehold.domain import claims as k
from leasehold.domain import commands as c
from leasehold.domain import events as e
from leasehold.domain.command import Answer, AnyCommand, Command, Perform, R
from leasehold.domain.errors import Overloaded
from leasehold.domain.limits import LOOK_BYTES
from leasehold.domain.model import Lease, Message, QueueKey
from leasehold.engine.long_poll import Gone
from leasehold.stores.base import COMMANDS

MAX_WAITERS: Final = 10_000
"""Receives and claims that may wait for messages at once; each is an open connection, and 10 kB."""

_FINISHING: Final = frozenset(kind for kind in COMMANDS if kind.traits.finishes)
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
        perform: Perform,
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

    async def perform(self, command: Command[R]) -> R:
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

    async def _show(self, command: Command[R], answers: Answers) -> R:
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

    def _note_size(self, command: AnyCommand, result: object, expected: int) -> None:
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
        if self._receive is None or not (wait_s or command.group is not None):
            return await self.perform(command)
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


def _takes_one(command: AnyCommand) -> bool:
    return type(command) is c.Receive and command.limit == 1


def _finishes(command: AnyCommand) -> bool:
    return type(command) in _FINISHING and all(
        type(each) in _FINISHING for each in command.subcommands()
    )


# --- answers -----------------------------------------------------------------------------------
#
# Room for large answers: how many bytes may be made, and wait for their readers, at once.
#
# An answer that shows many messages is memory from the moment it is asked for: what the store
# reads, what is written of it, and what the client has not taken yet. So room for it is asked for
# before the store is. Three bounds hold:
#
# * what is being made at once, so that neither a batch of the engine nor a turn of the event loop
#   has more than one or two large answers to work at;
# * what is held altogether, until it is sent;
# * what one caller holds, so that clients that never read their answers hold up no others.
#
# Who finds no room waits for it, the callers in turn, and is told to come again if it takes too
# long. What is probably small goes past all this.


SMALL_BYTES: Final = 128 * 1024
"""Answers that are probably not larger need no room."""
MAKING_BYTES: Final = LOOK_BYTES
"""What may be in the making at once, or a single answer."""
MAKING_S: Final = 0.1
"""What takes longer to make waits for something else, such as an object store, and holds up no
others.
"""
MAX_REST_S: Final = 0.05
"""Longest rest after an answer was made; see ``Answers.others``."""
WAIT_S: Final = 10.0
"""Longest wait for room."""
STALLED_S: Final = 2.0
"""A reader that takes nothing of its answer for so long loses it, if others wait for room."""
SHARES: Final = 4
"""One caller gets this part of all room at most, or a single answer."""

_UNKNOWN_BYTES: Final = 64 * 1024
"""What a message of a queue may have of which nothing was seen yet."""
_EVENT_BYTES: Final = 400
_MAX_QUEUES: Final = 10_000
_FADING: Final = 7 / 8
"""Of the largest average seen in a queue, after each smaller one."""


def caller_of(scope: Mapping[str, Any]) -> str:
    """Return who is asking, so far as that can be told apart without work.

    The address, and the credentials without what is different in each request. They need not be
    genuine: who has shown none that are never gets as far as to ask for room.
    """
    client = scope["client"]
    address = client[0] if client else ""
    for name, value in scope["headers"]:
        if name == b"authorization":
            who = value.decode("latin-1")
            if who[:7].lower() != "bearer ":
                who = who.rpartition(":")[0]
            return f"{address} {' '.join(who.split())}"
    for pair in scope["query_string"].split(b"&"):
        if pair.startswith(b"sig="):
            return f"{address} sig {unquote_plus(pair[4:].decode('latin-1'))}"
    return address


class Holding:
    """What one request holds of the room, and who asks."""

    __slots__ = ("caller", "held", "making", "timer", "waiter")

    def __init__(self, caller: str) -> None:
        self.caller = caller
        self.held = 0
        self.making = 0
        self.timer: asyncio.TimerHandle | None = None
        """Ends the making, if it takes long."""
        self.waiter: asyncio.Future[None] | None = None

    def give_up(self) -> None:
        """Wait no longer: the client has gone."""
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_exception(Overloaded())


class Holder(Protocol):
    """A request under way."""

    def hold(self) -> Holding:
        """Return what it holds, the same each time."""
        ...


UNDER_WAY: Final[ContextVar[Holder]] = ContextVar("leasehold_request")
"""The request that a task answers. Commands do not know whose they are, and need not."""


class Answers:
    """All large answers of one server. Lives in one event loop.

    Args:
        limit_bytes: What all of them may hold.
        count: Told of each change of what they hold, in bytes.
        clock: For how long answers take to make.
    """

    def __init__(self, limit_bytes: int, count: Callable[[int], None], clock: Clock) -> None:
        self.limit_bytes = limit_bytes
        self.share_bytes = limit_bytes // SHARES
        self.held = 0
        """Bytes held now."""
        self.most_held = 0
        """The most that were held at a time."""
        self.making = 0
        self.most_making = 0
        """The most that were in the making at a time."""
        self.by_caller: dict[str, int] = {}
        """Bytes held now; callers that hold none are not there."""
        self.others = 0
        """Commands with small answers so far, to be counted by who lets them in. While some come,
        the next large answer is begun only after a rest as long as the last one took to make: so
        half of the time is theirs."""
        self.refused = 0
        """Answers for which there was no room in time."""
        self._count = count
        self._clock = clock
        self._began_s = 0.0
        self._others_before = 0
        self._is_resting = False
        self._waiting: OrderedDict[str, deque[tuple[int, Holding]]] = OrderedDict()

    @property
    def is_waited_for(self) -> bool:
        """Whether a request waits, for room or for a turn."""
        return bool(self._waiting)

    def is_short_of(self, caller: str) -> bool:
        """Tell whether a request waits for room that *caller* holds, and not just for a turn."""
        for each, line in self._waiting.items():
            size, _ = line[0]
            if self.held + size > self.limit_bytes or (
                each == caller and not self._has_share(caller, size)
            ):
                return True
        return False

    async def enter(self, holding: Holding, size: int) -> None:
        """Wait for room for an answer.

        Args:
            holding: Of the request. One that holds something already never waits: it would wait
                for what it holds itself.
            size: Bytes that the answer will have, roughly.

        Raises:
            Overloaded: There was none for WAIT_S seconds, or the client has gone.
        """
        if not holding.held and (self._waiting or not self._fits(holding.caller, size)):
            await self._wait(holding, size)
            return
        self._begin(holding, size)

    def resize(self, holding: Holding, change: int) -> None:
        """Note that an answer has turned out larger or smaller than it was thought to be."""
        change = max(change, -holding.held)
        holding.held += change
        self.held += change
        self.most_held = max(self.most_held, self.held)
        self._count(change)
        left = self.by_caller.get(holding.caller, 0) + change
        if left:
            self.by_caller[holding.caller] = left
        else:
            self.by_caller.pop(holding.caller, None)
        if change < 0:
            self._admit()

    def made(self, holding: Holding, size: int) -> None:
        """Note that an answer is made, and how many bytes it has."""
        self._end_making(holding)
        self.resize(holding, size - holding.held)

    def leave(self, holding: Holding) -> None:
        """Give back all that a request holds: its answer was sent, or its client has gone."""
        if holding.held:
            self.resize(holding, -holding.held)
        self._end_making(holding)

    def _fits(self, caller: str, size: int) -> bool:
        return self._has_turn(size) and self._has_share(caller, size)

    def _has_turn(self, size: int) -> bool:
        """Tell whether there is room, whoever asks."""
        making, held = self.making, self.held
        if self._is_resting:
            return False
        return (not making or making + size <= MAKING_BYTES) and (
            not held or held + size <= self.limit_bytes
        )

    def _has_share(self, caller: str, size: int) -> bool:
        held = self.by_caller.get(caller, 0)
        return not held or held + size <= self.share_bytes

    def _begin(self, holding: Holding, size: int) -> None:
        if holding.timer is None:
            loop = asyncio.get_running_loop()
            holding.timer = loop.call_later(MAKING_S, self._end_making, holding)
        if not self.making:
            self._began_s = self._clock.monotonic_s()
            self._others_before = self.others
        holding.making += size
        self.making += size
        self.most_making = max(self.most_making, self.making)
        self.resize(holding, size)

    def _end_making(self, holding: Holding) -> None:
        if holding.timer is not None:
            holding.timer.cancel()
            holding.timer = None
        if holding.making:
            self.making -= holding.making
            holding.making = 0
            if not self.making and self.others != self._others_before:
                self._rest()
            self._admit()

    def _rest(self) -> None:
        """Leave the loop to others for a while."""
        took_s = self._clock.monotonic_s() - self._began_s
        if took_s > 0:
            self._is_resting = True
            rest_s = min(took_s, MAX_REST_S)
            asyncio.get_running_loop().call_later(rest_s, self._end_rest)

    def _end_rest(self) -> None:
        self._is_resting = False
        self._admit()

    async def _wait(self, holding: Holding, size: int) -> None:
        loop = asyncio.get_running_loop()
        waiter = holding.waiter = loop.create_future()
        entry = (size, holding)
        self._waiting.setdefault(holding.caller, deque()).append(entry)
        timer = loop.call_later(WAIT_S, holding.give_up)
        self._admit()
        try:
            await waiter
        except BaseException as error:
            if isinstance(error, Overloaded):
                self.refused += 1
            else:
                self.leave(holding)  # room may have been given in the same moment
            self._forget(entry)
            raise
        finally:
            timer.cancel()
            holding.waiter = None

    def _forget(self, entry: tuple[int, Holding]) -> None:
        caller = entry[1].caller
        line = self._waiting.get(caller)
        if line is not None and entry in line:
            line.remove(entry)
            if not line:
                del self._waiting[caller]
            self._admit()

    def _admit(self) -> None:
        """Let those in for whom there is room, one of each caller in turn."""
        for caller in tuple(self._waiting):
            line = self._waiting.get(caller)
            while line and line[0][1].waiter.done():  # type: ignore[union-attr]  # it waits
                line.popleft()
            if not line:
                self._waiting.pop(caller, None)
                continue
            size, holding = line[0]
            if not self._has_turn(size):
                return
            if not self._has_share(caller, size):
                continue
            line.popleft()
            self._waiting.move_to_end(caller)
            if not line:
                del self._waiting[caller]
            self._begin(holding, size)
            assert holding.waiter is not None
            holding.waiter.set_result(None)


class Sizes:
    """What answers will probably have, by what was seen in their queue before."""

    def __init__(self) -> None:
        self._by_queue: dict[QueueKey, float] = {}

    def guess(self, command: Any) -> int:
        """Return how many bytes of messages the answer to a command has, roughly; 0 if few."""
        kind = type(command)
        if kind is e.ReadEvents:
            return int(min(command.limit * _EVENT_BYTES, LOOK_BYTES))
        if kind is o.Inspect:
            return LOOK_BYTES  # it may read so much to find nothing
        count = 1 if kind is o.FindMessage else command.limit
        average = self._by_queue.get((command.account, command.queue), _UNKNOWN_BYTES)
        return int(min(count * average, LOOK_BYTES))

    def learn(self, command: Any, result: Any) -> int:
        """Note what an answer has; return how many bytes that is."""
        count, size = _MEASURES[type(command)](result)
        if type(command) is e.ReadEvents:
            return size
        key = command.account, command.queue
        before = self._by_queue.get(key, 0.0)
        if len(self._by_queue) >= _MAX_QUEUES:
            self._by_queue.clear()
        self._by_queue[key] = max(size / count if count else 0.0, before * _FADING)
        return size


def _leases(leases: tuple[Lease, ...]) -> tuple[int, int]:
    return len(leases), sum([_bytes_of(lease.message) for lease in leases])


def _messages(messages: tuple[Message, ...]) -> tuple[int, int]:
    return len(messages), sum(map(_bytes_of, messages))


def _members(page: k.MemberPage | k.MemberColumns) -> tuple[int, int]:
    if isinstance(page, k.MemberColumns):
        return len(page.sizes), sum(page.sizes)
    return _messages(page.messages)


def _bytes_of(message: Message) -> int:
    return len(message.body) + len(message.detail.saved or "")


_MEASURES: Final[dict[type, Callable[[Any], tuple[int, int]]]] = {
    c.Receive: _leases,
    c.Peek: _messages,
    o.Inspect: lambda page: _messages(tuple([seen.message for seen in page.messages])),
    o.FindMessage: lambda seen: _messages((seen.message,)),
    k.ReadClaim: _members,
    e.ReadEvents: lambda page: (len(page.events), len(page.events) * _EVENT_BYTES),
}
SHOWING: Final = frozenset(
    kind for kind in COMMANDS if kind.traits.answer in {Answer.MESSAGES, Answer.EVENTS}
)
"""Commands whose answers show messages, or very much else."""
