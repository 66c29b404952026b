"""Reads large bodies into answers, as many as there is memory for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple, TypeAlias, cast

import structlog

from leasehold.bodies.base import BodyMissing
from leasehold.bodies.copies import CORRUPT, MISSING, digest
from leasehold.domain import admin as o
from leasehold.domain import claims, transactions
from leasehold.domain import commands as c
from leasehold.domain.admin import Seen
from leasehold.domain.claims import MemberPage, ReadClaim
from leasehold.domain.command import Answer, AnyCommand, Command, Effect, Perform, R
from leasehold.domain.commands import KnownBodies, Receive
from leasehold.domain.errors import (
    BodyUnreadable,
    LeaseholdError,
    MessageNotFound,
    Overloaded,
    Unavailable,
)
from leasehold.domain.model import (
    NO_DETAIL,
    BodyRef,
    ErrorReport,
    Lease,
    Message,
    Outcome,
    Queue,
    QueueKey,
    body_problem,
)
from leasehold.engine.body_place import MarkedBodies, OtherPlace
from leasehold.stores.base import COMMANDS

ANSWER_BYTES: Final = 8 * 1024 * 1024
"""Bodies read for one answer, all together; the first one is read whatever its size."""
AT_ONCE: Final = 8
"""Bodies of one command that are read or written at the same time."""
UNREADABLE_DELAY_S: Final = 60
"""How long a message whose body is missing or corrupt stays away after each try to receive it."""
UNREACHABLE_DELAY_S: Final = 5
_TRIES: Final = 3
_REPEATABLE: Final = frozenset(kind for kind in COMMANDS if kind.traits.effect is Effect.LOOKS)
"""What can be done again because it changes nothing."""

UNREACHABLE: Final = "unreachable"
LEFT_OUT: Final = "left-out"
_BROKEN: Final = frozenset({MISSING, CORRUPT})

_log = structlog.get_logger(__name__)


class Surroundings(NamedTuple):
    """What the engine gives to those who look after bodies."""

    perform: Perform
    """Carries a command out, without a thought for bodies."""
    find_queue: Callable[[str, str], Queue | None]
    spawn: Callable[[Coroutine[Any, Any, Any]], None]
    """Does something in the background, to its end."""


class BodyReader:
    """Fills bodies in. Lives in one event loop.

    Args:
        store: Where they are.
        inline_bytes: Bodies up to this size are not there.
        budget_bytes: Bodies in memory, those counted by *buffered* included.
        buffered: Returns how many bytes others hold: requests, and answers on their way.
    """

    around: Surroundings

    def __init__(
        self,
        store: MarkedBodies,
        *,
        inline_bytes: int,
        budget_bytes: int,
        buffered: Callable[[], int],
    ) -> None:
        self.read = 0
        self.unreadable = 0
        self._store = store
        self._budget_bytes = budget_bytes
        self._buffered = buffered
        self._in_flight = 0
        self._has_complained = False
        """Whether the last read failed: then the log knows already."""
        self._inline_bytes = inline_bytes
        self._portions = Portions(inline_bytes, ANSWER_BYTES)

    def is_large(self, command: AnyCommand) -> bool:
        """Tell whether a command brings a body that must not go to the store of messages."""
        find = BRINGING.get(type(command))
        return find is not None and any(len(body) > self._inline_bytes for body in find(command))

    def limited(self, command: c.Receive) -> Any:
        """Return a receive that is not for more large bodies than one answer can hold.

        Raises:
            Overloaded: There is no memory for large bodies now; nothing was received.
        """
        queue = self.around.find_queue(command.account, command.queue)
        portion = None if queue is None else self._portions.of(queue)
        if portion is None:
            return command
        if self._room() <= 0:
            raise Overloaded
        return command if command.limit <= portion else command._replace(limit=portion)

    def lacks(self, command: AnyCommand, result: Any) -> bool:
        """Tell whether a result shows messages whose bodies are still to be read."""
        if type(command) is c.Receive and self._portions.known:
            self._portions.learn(command, result)
        return lacking(command, result)

    async def fill_in(self, command: AnyCommand, result: Any) -> Any:
        """Return a result with the bodies that are in the body store.

        Messages received whose body cannot be read are given back and left out. Those of a list
        come without a body, and ``BodyRef.problem`` says why.

        Raises:
            Unavailable: The body store cannot be reached, or there is no memory for any body.
            BodyUnreadable: The body of a member of a claim is missing or corrupt.
            LeaseholdError: As for the command, if it was done again because a body was gone.
        """
        if type(command) is c.Receive:
            return await self._fill_received(command, result)
        messages = await self.fill(shown(result))
        for _ in range(_TRIES):
            if None not in messages or type(command) not in _REPEATABLE:
                break
            # A message was completed, or given another body, since it was listed.
            result = await self.around.perform(command)
            messages = await self.fill(shown(result))
        if isinstance(result, MemberPage):
            return await self._claim_page(cast("ReadClaim", command), result, messages)
        if isinstance(result, Seen) and messages[0] is None:
            raise MessageNotFound
        return with_messages(result, messages)

    async def fill(self, messages: Sequence[Message]) -> list[Message | None]:
        """Return messages with their bodies; None for one that is gone or changed by now.

        Raises:
            Overloaded: There is no memory for the first body.
        """
        filled: list[Message | None] = list(messages)
        refs = [
            (place, ref)
            for place, message in enumerate(messages)
            if (ref := message.detail.body_ref) is not None and not message.body
        ]
        chosen = refs[: self._admit([ref for _, ref in refs])]
        size = sum(ref.size_bytes for _, ref in chosen)
        self._in_flight += size
        try:
            turns = asyncio.Semaphore(AT_ONCE)
            found = await asyncio.gather(*(self._read(ref, turns) for _, ref in chosen))
        finally:
            self._in_flight -= size
        missing = tuple(
            ref.key for (_, ref), body in zip(chosen, found, strict=True) if body == MISSING
        )
        known = await self._known(missing)
        for (place, ref), body in zip(chosen, found, strict=True):
            message = messages[place]
            if isinstance(body, bytes):
                filled[place] = message._replace(body=body)
            elif body == MISSING and ref.key not in known:
                filled[place] = None
            else:
                filled[place] = self._without(message, ref, body)
        for place, ref in refs[len(chosen) :]:
            filled[place] = _with_problem(messages[place], ref, LEFT_OUT)
        self.read += len(chosen)
        return filled

    def _room(self) -> int:
        return self._budget_bytes - self._in_flight - self._buffered()

    def _admit(self, refs: Sequence[BodyRef]) -> int:
        """Return how many bodies can be read, from the first on."""
        room = self._room()
        if refs and self._in_flight and refs[0].size_bytes > room:
            raise Overloaded
        room = min(room, ANSWER_BYTES)
        for count, ref in enumerate(refs):
            room -= ref.size_bytes
            if room < 0:
                return count or 1  # one goes always, or it would never
        return len(refs)

    async def _read(self, ref: BodyRef, turns: asyncio.Semaphore) -> bytes | str:
        """Return a body, or what is wrong with it."""
        async with turns:
            try:
                body = await self._store.get(ref.key)
            except BodyMissing:
                return MISSING
            except Unavailable as error:
                # The place has said so itself if it is another one.
                if not self._has_complained and not isinstance(error.__cause__, OtherPlace):
                    self._has_complained = True
                    reason = reason_of(error)
                    _log.warning("body.unreachable", place=self._store.place, reason=reason)
                return UNREACHABLE
            self._has_complained = False
            if len(body) != ref.size_bytes or await asyncio.to_thread(digest, body) != ref.sha256:
                return CORRUPT
        return body

    async def _known(self, keys: tuple[str, ...]) -> frozenset[str]:
        """Return those of *keys* that a message refers to."""
        if not keys:
            return frozenset()
        found = await self.around.perform(KnownBodies(keys))
        return frozenset(found.keys)

    def _without(self, message: Message, ref: BodyRef, problem: str) -> Message:
        """Return a message whose body cannot be read, and say so."""
        if problem in _BROKEN:
            self.unreadable += 1
            _log.error(
                "body.unreadable",
                message_id=message.message_id,
                reason=problem,
                place=self._store.place,
                body_key=ref.key,  # what is called a key is masked as a secret
                size_bytes=ref.size_bytes,
            )
        return _with_problem(message, ref, problem)

    async def _claim_page(
        self, command: ReadClaim, page: MemberPage, messages: Sequence[Message | None]
    ) -> MemberPage:
        """Return a page that is whole: a consumer of claims must not miss a member."""
        for place, message in enumerate(messages):
            if message is None:
                raise BodyUnreadable(page.messages[place].message_id, MISSING)
            problem = body_problem(message)
            if problem == LEFT_OUT:
                shorter = await self.around.perform(replace(command, limit=place))
                assert isinstance(shorter, MemberPage)
                whole = cast("tuple[Message, ...]", tuple(messages[:place]))
                return shorter._replace(messages=whole)
            if problem == UNREACHABLE:
                raise Unavailable
            if problem is not None:
                raise BodyUnreadable(message.message_id, problem)
        return page._replace(messages=cast("tuple[Message, ...]", tuple(messages)))

    # --- receiving ---------------------------------------------------------------------------

    async def _fill_received(
        self, command: c.Receive, leases: tuple[Lease, ...]
    ) -> tuple[Lease, ...]:
        given, back = await self._sorted_out(command, leases)
        for _ in range(_TRIES):
            if back:
                await self._release(command, back)
            if given or not back:
                return given
            if all(problem == UNREACHABLE for _, problem in back):
                raise Unavailable
            # What cannot be delivered does not hold up those behind it, which may be well.
            result = await self.around.perform(command)
            given, back = await self._sorted_out(command, result)
        if back:
            await self._release(command, back)
        return given

    async def _sorted_out(
        self, command: c.Receive, leases: tuple[Lease, ...]
    ) -> tuple[tuple[Lease, ...], list[tuple[Lease, str]]]:
        """Return the leases that can be given, and those that cannot with the reason."""
        try:
            messages = await self.fill([lease.message for lease in leases])
        except BaseException:
            # No client gets them, and one that is gone does not wait for this.
            back = [(lease, LEFT_OUT) for lease in leases]
            self.around.spawn(self._release(command, back))
            raise
        given: list[Lease] = []
        back = []
        for lease, message in zip(leases, messages, strict=True):
            if message is None:
                continue  # the lease was ended meanwhile
            problem = body_problem(message)
            if problem is None:
                given.append(Lease(message, lease.receipt))
            else:
                back.append((lease, problem))
        if len(given) < len(leases):
            self._portions.shrink(command, len(given))
        return tuple(given), back

    async def _release(self, command: c.Receive, back: Sequence[tuple[Lease, str]]) -> None:
        """Give messages back that cannot be delivered now."""
        releases = []
        for (message, receipt), problem in back:
            outcome, delay_s, error = Outcome.INTERRUPTED, 0, None
            if problem in _BROKEN:
                outcome, delay_s = Outcome.FAILED, UNREADABLE_DELAY_S
                error = ErrorReport(text=f"The body is {problem}.", type="BodyUnreadable")
            elif problem == UNREACHABLE:
                delay_s = UNREACHABLE_DELAY_S
            named = (command.account, command.queue, message.message_id, receipt)
            releases.append(c.Release(*named, outcome, delay_s, error))
        try:
            await self.around.perform(c.Batch(tuple(releases)))
        except LeaseholdError as error_:  # their leases run out some day
            _log.warning("body.not_given_back", count=len(releases), reason=reason_of(error_))


def reason_of(error: BaseException) -> str:
    """Return what went wrong, for the log."""
    return str(error.__cause__ or error) or type(error).__name__


def _with_problem(message: Message, ref: BodyRef, problem: str) -> Message:
    ref = replace(ref, problem=problem)
    return message._replace(detail=replace(message.detail, body_ref=ref))


# --- inside ------------------------------------------------------------------------------------
#
# Where bodies are inside commands and results: pure functions of both.


Swap: TypeAlias = Callable[[bytes], BodyRef | None]
"""Returns what stands for a body from now on, or None to leave it where it is."""


# --- what a command brings ---------------------------------------------------------------------


def bodies_of(command: AnyCommand) -> Iterable[bytes]:
    """Return the bodies that a command brings, in the order of :func:`swapped`."""
    find = BRINGING.get(type(command))
    return () if find is None else find(command)


def _in_put(command: c.Put) -> Iterable[bytes]:
    return (command.body,)


def _in_change(command: c.Renew | o.Amend) -> Iterable[bytes]:
    return (command.body,) if isinstance(command.body, bytes) else ()


def _in_carried(command: AnyCommand) -> Sequence[bytes]:
    puts = command.carried()
    if isinstance(puts, transactions.AlikePuts):
        return puts.bodies
    return [body for each in puts for body in bodies_of(each)]


_CARRYING: Final = [kind for kind in COMMANDS if kind.carrying is not Command.carrying]

BRINGING: Final[dict[type, Callable[[Any], Iterable[bytes]]]] = {
    c.Put: _in_put,
    c.Renew: _in_change,
    o.Amend: _in_change,
    **dict.fromkeys(_CARRYING, _in_carried),
}
"""The commands that can bring bodies, and what finds them."""


def swapped(command: Command[R], swap: Swap) -> Command[R]:
    """Return a command with some of its bodies swapped for where they are."""
    change = _SWAPS.get(type(command))
    return command if change is None else change(command, swap)


def _swap_carried(command: AnyCommand, swap: Swap) -> AnyCommand:
    return command.carrying(tuple([swapped(each, swap) for each in command.carried()]))


def _swap_put(command: c.Put, swap: Swap) -> c.Put:
    ref = swap(command.body)
    if ref is None:
        return command
    return command._replace(body=b"", detail=replace(command.detail, body_ref=ref))


def _swap_renew(command: c.Renew, swap: Swap) -> c.Renew:
    ref = swap(command.body) if isinstance(command.body, bytes) else None
    return command if ref is None else command._replace(body=ref)


def _swap_amend(command: o.Amend, swap: Swap) -> o.Amend:
    ref = swap(command.body) if isinstance(command.body, bytes) else None
    return command if ref is None else replace(command, body=ref)


_SWAPS: Final[dict[type, Callable[[Any, Swap], Any]]] = {
    c.Put: _swap_put,
    c.Renew: _swap_renew,
    o.Amend: _swap_amend,
    **dict.fromkeys(_CARRYING, _swap_carried),
}


def refs_of(command: AnyCommand) -> list[BodyRef]:
    """Return where the bodies are that a command names and does not bring."""
    if isinstance(command, c.Put):
        ref = command.detail.body_ref
        return [] if ref is None else [ref]
    if isinstance(command, c.Renew | o.Amend):
        return [command.body] if isinstance(command.body, BodyRef) else []
    puts = command.carried()
    if isinstance(puts, transactions.AlikePuts):  # bodies apart make them different
        return []
    return [ref for each in puts for ref in refs_of(each)]


def adopted(command: Any, result: object) -> list[BodyRef]:
    """Return those bodies of :func:`refs_of` that a message refers to after *result*."""
    if isinstance(result, LeaseholdError | c.Duplicate):
        return []
    if isinstance(command, transactions.Stage):
        return (
            [] if isinstance(result, transactions.Staged) and result.duplicate else refs_of(command)
        )
    if isinstance(result, claims.Settled):
        return [] if result.already else refs_of(command)
    if isinstance(command, c.Batch | transactions.CommitTogether):
        results: Any = result.results if isinstance(result, transactions.Committed) else result
        if not results:  # it was done before
            return []
        parts = zip(command.commands, results, strict=True)
        return [ref for part, its_result in parts for ref in adopted(part, its_result)]
    return refs_of(command)


def doubtful(command: Any, result: object) -> list[BodyRef]:
    """Return those bodies of :func:`adopted` that may have no message: the result does not say.

    A settling does not tell which of the messages sent along had a key that was known already.
    """
    if not isinstance(result, claims.Settled):
        return []
    keyed = [put for put in command.sends if put.detail.dedup_key is not None]
    return [ref for ref in adopted(command, result) if any(ref in refs_of(put) for put in keyed)]


# --- what a result shows -----------------------------------------------------------------------


def lacking(command: AnyCommand, result: Any) -> bool:
    """Tell whether a result shows messages whose bodies are still to be read."""
    kind = type(command)
    if kind is c.Receive:
        for message, _ in result:
            detail = message.detail
            if detail is not NO_DETAIL and detail.body_ref is not None:
                return True
        return False
    if kind not in _SHOWING or getattr(command, "with_bodies", True) is False:
        return False
    if isinstance(result, claims.MemberColumns):  # of messages without detail
        return False
    return any(message.detail.body_ref is not None for message in shown(result))


_SHOWING: Final = frozenset(
    kind for kind in COMMANDS if kind.traits.answer in {Answer.MESSAGE, Answer.MESSAGES}
)

WITH_BODIES: Final = _SHOWING.union(BRINGING)
"""The commands that may bring bodies, or show some."""


def shown(result: Any) -> Sequence[Message]:
    """Return the messages that a result shows, in their order."""
    if isinstance(result, o.Seen):
        return (result.message,)
    if isinstance(result, o.MessagePage):
        return [seen.message for seen in result.messages]
    if isinstance(result, claims.MemberPage):
        return result.messages
    return [each.message if isinstance(each, Lease) else each for each in result]


def with_messages(result: Any, messages: Sequence[Message | None]) -> Any:
    """Return a result with other messages in their places; None leaves one out of a list."""
    if isinstance(result, o.Seen):
        (message,) = messages
        return result if message is None else result._replace(message=message)
    if isinstance(result, o.MessagePage):
        pairs = zip(result.messages, messages, strict=True)
        seen = [each._replace(message=new) for each, new in pairs if new is not None]
        return result._replace(messages=tuple(seen))
    kept = tuple([message for message in messages if message is not None])
    return result._replace(messages=kept) if isinstance(result, claims.MemberPage) else kept


# --- body portions -----------------------------------------------------------------------------
#
# How many messages a receive may take from a queue that can hold large ones.
#
# Only when they are leased is it known how large they are; those that do not fit in the answer
# must be given back, which costs them a delivery and their place. So a queue begins with as many
# as fit if all are as large as they may be, and the number doubles while they turn out smaller.


MAX_PORTION: Final = 10_000
MAX_QUEUES: Final = 10_000


class Portions:
    """Numbers of messages, by queue; forgotten with the process.

    Args:
        inline_bytes: Larger bodies are large.
        answer_bytes: What the bodies of one answer may have, together.
    """

    def __init__(self, inline_bytes: int, answer_bytes: int) -> None:
        self.known: dict[QueueKey, int] = {}
        """Empty while no queue takes large bodies; then nothing here costs anything."""
        self._inline_bytes = inline_bytes
        self._answer_bytes = answer_bytes

    def of(self, queue: Queue) -> int | None:
        """Return the most messages that a receive may take; None if the queue has no large ones."""
        largest = queue.settings.max_body_bytes
        if largest is None or largest <= self._inline_bytes:
            return None
        key = queue.account, queue.name
        portion = self.known.get(key)
        if portion is None:
            if len(self.known) >= MAX_QUEUES:
                self.known.clear()
            portion = self.known[key] = max(1, self._answer_bytes // largest)
        return portion

    def learn(self, command: Receive, leases: tuple[Lease, ...]) -> None:
        """Let a queue have twice as many, if twice what came would fit."""
        key = command.account, command.queue
        portion = self.known.get(key)
        if portion is None or len(leases) < portion:
            return
        if 2 * sum([_size(lease.message) for lease in leases]) <= self._answer_bytes:
            self.known[key] = min(2 * portion, MAX_PORTION)

    def shrink(self, command: Receive, given: int) -> None:
        """Note that only so many could be given."""
        key = command.account, command.queue
        if key in self.known:
            self.known[key] = max(1, min(given, self.known[key]))


def _size(message: Message) -> int:
    ref = message.detail.body_ref
    return 0 if ref is None else ref.size_bytes
