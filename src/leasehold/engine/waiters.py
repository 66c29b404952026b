"""Those who wait in a room: receives, and claims that are to be opened."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, cast

from leasehold.clock import Timer
from leasehold.domain import commands as c
from leasehold.domain.claims import ClaimState, OpenClaim, Opened

if TYPE_CHECKING:
    from leasehold.engine.rooms import Room

Gone: TypeAlias = Callable[[], Awaitable[object]]
"""Waits until nobody wants the answer any more."""
Taking: TypeAlias = c.Receive | OpenClaim
"""What can wait: a command that takes messages."""


class Answer(Protocol):
    """Who gets the result of a command; a future is one."""

    def done(self) -> bool:
        """Tell whether it is no use to set the result."""
        ...

    def set_result(self, result: c.Result, /) -> None:
        """Take the result, which is durable."""
        ...


Pending: TypeAlias = tuple[c.Command, Answer]
HandIn: TypeAlias = Callable[[Pending], object]


class Waiter:
    """One receive that may wait."""

    __slots__ = (
        "_deadline",
        "_deadline_s",
        "_gone",
        "_watch",
        "command",
        "future",
        "is_gone",
        "is_late",
        "is_trying",
        "room",
    )

    command: Any
    """What is to be carried out: a Receive."""
    nothing: c.Result = ()
    """The answer that there is nothing."""

    def __init__(
        self, room: Room, command: Taking, deadline_s: float, gone: Gone | None = None
    ) -> None:
        self.room = room
        self.command = command
        self.future: asyncio.Future[c.Result] = room.loop.create_future()
        """What whoever waits gets: what was taken, nothing, or an error."""
        self.is_trying = False
        """Whether its command is under way."""
        self.is_gone = False
        """Whether nobody wants the answer any more."""
        self.is_late = False
        """Whether its time was up while its command was under way."""
        self._deadline_s = deadline_s
        self._deadline: Timer | None = None
        self._gone = gone
        self._watch: asyncio.Future[object] | None = None

    # --- what its answers mean ---------------------------------------------------------------

    def is_given(self, result: Any) -> bool:
        """Tell whether an answer brings something, so that the wait is over."""
        return bool(result)

    def is_rest(self, result: Any) -> bool:
        """Tell whether an answer proves that nothing visible is left."""
        return bool(len(result) < self.command.limit)

    def give_back(self, result: Any) -> None:
        """Undo what was taken for somebody who has gone meanwhile."""
        self.room.rooms.give_back(self.command, result)

    # --- waiting -----------------------------------------------------------------------------

    def done(self) -> bool:
        """See :class:`Answer`: the room wants to know in any case."""
        return False

    def set_result(self, result: c.Result, /) -> None:
        """See :class:`Answer`."""
        self.room.tried(self, result)

    def settle_down(self) -> None:
        """Wait, for as long as there is time and somebody who wants to know."""
        if self._deadline is not None:
            return
        rooms = self.room.rooms
        left_s = self._deadline_s - rooms.clock.monotonic_s()
        self._deadline = rooms.timers.call_later(left_s, self._give_up)
        if self._gone is not None:
            self._watch = asyncio.ensure_future(self._gone())
            self._watch.add_done_callback(self._abandoned)

    def _abandoned(self, watch: asyncio.Future[object]) -> None:
        if not watch.cancelled():
            watch.exception()  # or it would be logged as never looked at
            self.is_gone = True
            self._give_up()

    def _give_up(self) -> None:
        if self.is_trying:
            self.is_late = True
        else:
            self.room.answer(self, self.nothing)
            self.room.rooms.settle()

    def end(self) -> None:
        """Let go of the timer and the watch."""
        if self._deadline is not None:
            self._deadline.cancel()
        if self._watch is not None:
            self._watch.cancel()

    def leave(self) -> None:
        """Wait no longer: nothing that was not begun yet is begun for it. Harmless at any time."""
        if self.room.forget(self):
            self.room.rooms.settle()


class Claimer(Waiter):
    """One claim that is to be opened once there is something to claim."""

    __slots__ = ()

    nothing = Opened(None)

    def is_given(self, result: Any) -> bool:
        """See :class:`Waiter`."""
        return cast("Opened", result).claim is not None

    def is_rest(self, result: Any) -> bool:
        """See :class:`Waiter`. A claim that was there already says nothing of the queue."""
        claim = cast("Opened", result).claim
        if claim is None:
            return True
        is_whole = claim.size >= claim.limit or claim.max_bytes is not None
        return not (result.replayed or is_whole or claim.state is ClaimState.OPENING)

    def give_back(self, result: Any) -> None:
        """Leave it open: it can be found by its number, and perhaps somebody has by now."""


def waiter_for(room: Room, command: Taking, deadline_s: float, gone: Gone | None = None) -> Waiter:
    """Return who waits for *command* to bring something."""
    kind = Claimer if isinstance(command, OpenClaim) else Waiter
    return kind(room, command, deadline_s, gone)
