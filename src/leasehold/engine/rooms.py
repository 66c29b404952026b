"""One queue that somebody waits for: who waits, and what is known of it.

How no message is left lying while somebody waits for it: a room hears of every change to its queue
in the order in which the store made them, and gets the answers to its own receives in that same
order. So a receive that comes back with less than it asked for proves that all that the room heard
of before is gone. For what has no place in that order (time that passes, another server) the store
is asked when the next message is due, and asked again if anything of the kind happens meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias, cast

from leasehold.domain import commands as c
from leasehold.domain import oversight as o
from leasehold.domain.errors import QueueNotFound
from leasehold.domain.types import Lease

if TYPE_CHECKING:
    from leasehold.engine.waiting import WaitingRooms

_MAX_BURST: Final = 256
"""Receives tried at once while it is not known how many messages there are."""
_MAX_SLEEP_MS: Final = 60_000
"""A room looks at the clock this often: the timers of the loop stand still in a suspended host."""
_RETRY_MS: Final = 1_000
"""Until the store is asked again after it could not say what is due."""
_FREE_LOOKS: Final = 2
_MAX_PENALTY_MS: Final = 100
"""Fruitless looks are spaced out up to this, should a store call due what it never gives."""

Key: TypeAlias = tuple[str, str]
"""Account and queue."""
Gone: TypeAlias = Callable[[], Awaitable[object]]
"""Waits until nobody wants the answer any more."""


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

    def __init__(
        self, room: Room, command: c.Receive, deadline_s: float, gone: Gone | None
    ) -> None:
        self.room = room
        self.command = command
        self.future: asyncio.Future[c.Result] = room.loop.create_future()
        """What the receive gets: leases, none, or an error."""
        self.is_trying = False
        """Whether a receive of its own is under way."""
        self.is_gone = False
        """Whether nobody wants the answer any more."""
        self.is_late = False
        """Whether its time was up while a receive was under way."""
        self._deadline_s = deadline_s
        self._deadline: asyncio.TimerHandle | None = None
        self._gone = gone
        self._watch: asyncio.Future[object] | None = None

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
        loop = self.room.loop
        self._deadline = loop.call_at(self._deadline_s, self._give_up)
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
            self.room.answer(self, ())
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


class _Question:
    """Takes the answer to NextDue."""

    __slots__ = ("_room", "_trust")

    def __init__(self, room: Room, trust: int) -> None:
        self._room = room
        self._trust = trust

    def done(self) -> bool:
        return False

    def set_result(self, result: c.Result, /) -> None:
        self._room.told(result, self._trust)


class Room:
    """Those who wait for one queue, and what is known of it."""

    __slots__ = (
        "_asking",
        "_burst",
        "_covered",
        "_due_at_ms",
        "_due_is_known",
        "_fruitless",
        "_idle",
        "_is_exact",
        "_timer",
        "_trust",
        "_trying",
        "_waiters",
        "_wanted",
        "key",
        "loop",
        "rooms",
    )

    def __init__(self, rooms: WaitingRooms, key: Key) -> None:
        self.rooms = rooms
        self.key = key
        self.loop = rooms.loop
        self._waiters: dict[Waiter, None] = {}
        self._idle = 0
        """Of those, how many have no receive under way."""
        self._trying = 0
        """Receives under way, also those of waiters that have left."""
        self._covered = 0
        """Messages that these may take."""
        self._wanted = 0
        """Messages that appeared since the queue was last empty, less those received."""
        self._is_exact = False
        """Whether there are no more visible messages than that, as far as the room can know."""
        self._burst = _MAX_BURST
        """Receives that may be under way at once while it is not: the first ones all have a try,
        as they would without waiting; once there was nothing it begins with one, and doubles."""
        self._due_at_ms: int | None = None
        self._due_is_known = False
        self._trust = 0
        """How often what was known was thrown away."""
        self._fruitless = 0
        """Looks, one after the other, that found nothing."""
        self._asking = False
        self._timer: asyncio.TimerHandle | None = None

    # --- who waits ---------------------------------------------------------------------------

    def enter(self, waiter: Waiter) -> None:
        """Let one more wait, behind the others."""
        self._waiters[waiter] = None
        self._idle += 1
        self.doubt()

    def answer(self, waiter: Waiter, result: c.Result) -> None:
        """End a wait, if it has not ended yet."""
        if self.forget(waiter) and not waiter.future.done():
            waiter.future.set_result(result)

    def forget(self, waiter: Waiter) -> bool:
        """Take a waiter out of the room; False if it was out already."""
        if waiter not in self._waiters:
            return False
        del self._waiters[waiter]
        waiter.end()
        self._idle -= not waiter.is_trying
        self.rooms.changed[self] = None
        return True

    def answer_idle(self, result: Callable[[], c.Result]) -> None:
        """End the wait of all that have nothing under way."""
        for waiter in [each for each in self._waiters if not each.is_trying]:
            self.answer(waiter, result())

    @property
    def count(self) -> int:
        """How many wait here."""
        return len(self._waiters)

    # --- what happens in the queue -----------------------------------------------------------

    def doubt(self) -> None:
        """Have the store looked at: there may be more than the room has heard of."""
        self._is_exact = False
        self.rooms.changed[self] = None

    def distrust(self) -> None:
        """Forget what is known, the next due moment included."""
        self._due_is_known = False
        self._trust += 1
        self.doubt()

    def appears(self, at_ms: int, count: int = 1) -> None:
        """Note that *count* messages are visible from a moment on."""
        if at_ms <= self.rooms.clock.now_ms():
            self._wanted += count
            self.rooms.changed[self] = None
        elif self._due_is_known and (self._due_at_ms is None or at_ms < self._due_at_ms):
            self._due_at_ms = at_ms
            self._sleep()

    def taken(self, leases: tuple[Lease, ...]) -> None:
        """Note that messages were received, by whomever."""
        self._wanted = max(0, self._wanted - len(leases))
        self._fruitless = 0
        self.appears(leases[0].message.visible_at_ms, len(leases))  # they end at the same moment

    def tried(self, waiter: Waiter, result: c.Result) -> None:
        """Take the answer to a receive for *waiter*; :meth:`taken` has seen it already."""
        command = waiter.command
        waiter.is_trying = False
        self._trying -= 1
        self._covered -= command.limit
        self._idle += waiter in self._waiters
        self.rooms.changed[self] = None
        if type(result) is not tuple:
            self.answer(waiter, result)
            if type(result) is QueueNotFound:
                self.answer_idle(QueueNotFound)
            return
        if len(result) == command.limit:
            self._burst = min(self._burst * 2, _MAX_BURST)
        else:
            if self._wanted:
                # Somebody has removed it, or the queue gives less than it has.
                self._due_is_known = False
            self._wanted = 0
            self._is_exact = True
            self._burst = 1
        if result and (waiter.is_gone or waiter not in self._waiters):
            self.rooms.give_back(command, cast("tuple[Lease, ...]", result))
            self.answer(waiter, ())
        elif result or waiter.is_late or self.rooms.is_draining:
            self.answer(waiter, result)
        elif waiter in self._waiters:
            waiter.settle_down()

    # --- when something is due ---------------------------------------------------------------

    def told(self, result: c.Result, trust: int) -> None:
        """Take the answer to the question for what is due next."""
        self._asking = False
        self.rooms.changed[self] = None
        if trust != self._trust:
            return  # the store may have been asked before that; it is asked once more
        self._due_is_known = True
        now_ms = self.rooms.clock.now_ms()
        if type(result) is QueueNotFound:
            self.answer_idle(QueueNotFound)
        elif type(result) is not o.Due:
            self._due_at_ms = now_ms + _RETRY_MS
        elif result.at_ms is None:
            self._due_at_ms = None
        else:
            if result.at_ms - now_ms > _RETRY_MS:
                self._fruitless = 0
            self._due_at_ms = max(result.at_ms, now_ms + self._penalty_ms())
        self._sleep()

    def _penalty_ms(self) -> int:
        """Return how long to wait before the next look because the last ones found nothing."""
        excess = min(self._fruitless - _FREE_LOOKS, _MAX_PENALTY_MS)
        return 0 if excess <= 0 else min(2**excess, _MAX_PENALTY_MS)

    def _sleep(self) -> None:
        """Set the timer for what is due next."""
        self._stop_timer()
        if self._due_at_ms is None:
            return
        left_ms = self._due_at_ms - self.rooms.clock.now_ms()
        if left_ms <= 0:
            self._look()
        else:
            self._timer = self.loop.call_later(min(left_ms, _MAX_SLEEP_MS) / 1000, self.check)

    def check(self) -> None:
        """Look at the queue if something is due, else sleep on."""
        if self._due_at_ms is not None:
            self._sleep()
            self.rooms.settle()

    def _look(self) -> None:
        self._due_at_ms = None
        self._fruitless += 1
        self.distrust()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # --- what is done about it ---------------------------------------------------------------

    def serve(self, hand_in: HandIn, expected: int = 0) -> None:
        """Begin receives for those who came first, as many as there is reason to.

        Args:
            hand_in: What takes a command to the store.
            expected: Messages that will have appeared before these receives are carried out.
        """
        if not self._idle:
            return
        wanted, covered, trying = self._wanted + expected, self._covered, self._trying
        chosen = []
        for waiter in self._waiters:
            if wanted <= covered and (self._is_exact or trying >= self._burst):
                break
            # One whose client has gone may not have had the time to leave.
            if not waiter.is_trying and not waiter.future.done():
                chosen.append(waiter)
                covered += waiter.command.limit
                trying += 1
        self._covered, self._trying = covered, trying
        self._idle -= len(chosen)
        for waiter in chosen:
            waiter.is_trying = True
            hand_in((waiter.command, waiter))

    def settle(self, hand_in: HandIn) -> None:
        """Do what the last changes ask for."""
        self.serve(hand_in)
        if not self._waiters and not self._trying and not self._asking:
            self._stop_timer()
            self.rooms.close(self)
        elif self._idle and self._is_exact and not self._due_is_known and not self._asking:
            self._asking = True
            hand_in((o.NextDue(*self.key), _Question(self, self._trust)))
