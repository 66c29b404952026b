"""Reads large bodies into answers, as many as there is memory for."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple, TypeAlias, cast

import structlog

from leasehold.bodies.base import BodyMissing, BodyStore
from leasehold.bodies.inside import lacking, shown, with_messages
from leasehold.domain import commands as c
from leasehold.domain.bodies import BodyKeys, KnownBodies
from leasehold.domain.claims import MemberPage, ReadClaim
from leasehold.domain.errors import (
    BodyUnreadable,
    LeaseholdError,
    MessageNotFound,
    Overloaded,
    Unavailable,
)
from leasehold.domain.oversight import FindMessage, Inspect, Seen
from leasehold.domain.types import BodyRef, ErrorReport, Lease, Message, Outcome, Queue
from leasehold.engine.body_portions import Portions

ANSWER_BYTES: Final = 8 * 1024 * 1024
"""Bodies read for one answer, all together; the first one is read whatever its size."""
AT_ONCE: Final = 8
"""Bodies of one command that are read or written at the same time."""
UNREADABLE_DELAY_S: Final = 60
"""How long a message whose body is missing or corrupt stays away after each try to receive it."""
UNREACHABLE_DELAY_S: Final = 5
_TRIES: Final = 3
_REPEATABLE: Final = frozenset({c.Peek, FindMessage, Inspect, ReadClaim})
"""What can be done again because it changes nothing."""

MISSING: Final = "missing"
CORRUPT: Final = "corrupt"
UNREACHABLE: Final = "unreachable"
LEFT_OUT: Final = "left-out"
_BROKEN: Final = frozenset({MISSING, CORRUPT})

_log = structlog.get_logger(__name__)

Perform: TypeAlias = Callable[[c.Command], Awaitable[c.Result]]


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
        store: BodyStore,
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
        self._portions = Portions(inline_bytes, ANSWER_BYTES)

    def limited(self, command: c.Receive) -> c.Receive:
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

    def lacks(self, command: c.Command, result: c.Result) -> bool:
        """Tell whether a result shows messages whose bodies are still to be read."""
        if type(command) is c.Receive and self._portions.known:
            self._portions.learn(command, cast("tuple[Lease, ...]", result))
        return lacking(command, result)

    async def fill_in(self, command: c.Command, result: Any) -> Any:
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
            # Somebody has completed a message, or given it another body, since it was listed.
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
                if not self._has_complained:
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
        assert isinstance(found, BodyKeys)
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
            problem = problem_of(message)
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
            # What cannot be delivered stands in nobody's way: those behind it may be well.
            result = await self.around.perform(command)
            given, back = await self._sorted_out(command, cast("tuple[Lease, ...]", result))
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
            # Nobody gets them, and in the case of a client that is gone nobody waits for this.
            back = [(lease, LEFT_OUT) for lease in leases]
            self.around.spawn(self._release(command, back))
            raise
        given: list[Lease] = []
        back = []
        for lease, message in zip(leases, messages, strict=True):
            if message is None:
                continue  # somebody has ended the lease meanwhile
            problem = problem_of(message)
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


def digest(body: bytes) -> str:
    """Return the SHA-256 of a body in hexadecimal. Some milliseconds a MiB: not for the loop."""
    return hashlib.sha256(body).hexdigest()


def reason_of(error: BaseException) -> str:
    """Return what went wrong, for the log."""
    return str(error.__cause__ or error) or type(error).__name__


def problem_of(message: Message) -> str | None:
    """Return why a message comes without its body; None if it does not."""
    ref = message.detail.body_ref
    return None if ref is None else ref.problem


def _with_problem(message: Message, ref: BodyRef, problem: str) -> Message:
    ref = replace(ref, problem=problem)
    return message._replace(detail=replace(message.detail, body_ref=ref))
