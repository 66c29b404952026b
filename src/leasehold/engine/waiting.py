"""Long polling: receives and claims that wait until there is something for them.

Each queue that somebody waits for has a *room*, where those who came first are served first. Nobody
polls: a room looks at the store when it has a reason to, and sleeps until the next message is due.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

from leasehold.clock import Clock, LoopTimers, Timers
from leasehold.domain import claims as k
from leasehold.domain import commands as c
from leasehold.domain import staging as t
from leasehold.domain.errors import StoreFailed
from leasehold.domain.types import Lease, Outcome, Queue
from leasehold.engine.noting import Key, Notes
from leasehold.engine.rooms import Room
from leasehold.engine.waiters import Answer, Gone, HandIn, Pending, Taking, Waiter, waiter_for

__all__ = ["MAX_WAIT_S", "Answer", "Gone", "Pending", "WaitingRooms"]

MAX_WAIT_S: Final = 60
"""Longest wait that the dialects take, seconds."""


class WaitingRooms(Notes):
    """All that wait, by queue. It lives in one event loop and begins with :meth:`open`.

    Args:
        clock: Says what is due.
        find_queue: The store's, to learn where messages that fail too often go.
        timers: What ends waits, and wakes rooms when something is due; None for the loop's.
    """

    loop: asyncio.AbstractEventLoop

    def __init__(
        self,
        clock: Clock,
        find_queue: Callable[[str, str], Queue | None],
        timers: Timers | None = None,
    ) -> None:
        super().__init__(clock, find_queue)
        self.timers = timers or LoopTimers()
        self.by_queue: dict[Key, Room] = {}
        """Rooms that somebody is in; while there are none, nothing here costs anything."""
        self.on_opened: Callable[[Key], None] = lambda _: None
        """Called when somebody begins to wait for a queue, and others do not wait for it yet."""
        self.on_closed: Callable[[Key], None] = lambda _: None
        """Called when nobody waits for a queue any more."""
        self.changed: dict[Room, None] = {}
        """Rooms that have something to do."""
        self.is_draining = False
        self._hand_in: HandIn

    def open(self, hand_in: HandIn) -> None:
        """Begin, in the loop that runs now; *hand_in* takes a command to the store."""
        self.loop = asyncio.get_running_loop()
        self._hand_in = hand_in

    @property
    def count(self) -> int:
        """How many wait."""
        return sum(room.count for room in self.by_queue.values())

    def enter(self, command: Taking, wait_s: float, gone: Gone | None = None) -> Waiter:
        """Begin a receive or a claim that waits up to *wait_s* seconds if there is nothing.

        Whoever calls awaits its ``future`` and must call ``leave`` in any case. A claim is begun
        before this returns, a receive as well unless others were here before.
        """
        key = command.account, command.queue
        room = self.by_queue.get(key)
        if room is None:
            room = self.by_queue[key] = Room(self, key)
            self.on_opened(key)
        waiter = waiter_for(room, command, self.clock.monotonic_s() + wait_s, gone)
        room.enter(waiter)
        self.settle()
        if not waiter.is_trying and not waiter.future.done():
            waiter.settle_down()
        return waiter

    def close(self, room: Room) -> None:
        """Forget a room that nobody is in."""
        if self.by_queue.get(room.key) is room:
            del self.by_queue[room.key]
            self.on_closed(room.key)

    def give_back(self, command: c.Receive, leases: tuple[Lease, ...]) -> None:
        """Release messages that were leased for somebody who has gone meanwhile."""
        for message, receipt in leases:
            named = (command.account, command.queue, message.message_id, receipt)
            release = c.Release(*named, Outcome.INTERRUPTED)
            # Not at once: a batch is being told of, and this belongs to the next.
            self.loop.call_soon(self._hand_in, (release, self.loop.create_future()))

    def settle(self) -> None:
        """Let all rooms in which something happened do something about it."""
        while self.changed:
            room, _ = self.changed.popitem()
            room.settle(self._hand_in)

    def wake(self, account: str, queue: str) -> None:
        """Have a queue looked at; for news that do not come by way of this engine."""
        room = self.by_queue.get((account, queue))
        if room is not None:
            room.wake()
            self.settle()

    def wake_all(self) -> None:
        """Have all queues looked at that somebody waits for."""
        for room in self.by_queue.values():
            room.wake()
        self.settle()

    def check(self) -> None:
        """Look at the clock; for those who have moved it."""
        for room in list(self.by_queue.values()):
            room.check()

    def drain(self) -> None:
        """End all waits with nothing, and begin no more."""
        self.is_draining = True
        for room in list(self.by_queue.values()):
            room.answer_idle()
        self.settle()

    def fail(self) -> None:
        """End all waits: the store has failed."""
        self.is_draining = True
        for room in list(self.by_queue.values()):
            room.answer_idle(StoreFailed)
        self.settle()

    # --- what the batcher tells --------------------------------------------------------------

    def anticipate(self, batch: list[Pending]) -> None:
        """Add receives for the messages that *batch* puts, so that one commit does for both."""
        expected: dict[Room, int] = {}
        for command, _ in batch:
            if type(command) is c.Put:
                self._expect(command, expected)
            elif isinstance(command, c.Batch | t.CommitTogether):
                self._expect_all(command.commands, expected)
            elif isinstance(command, k.SettleClaims):
                self._expect_all(command.sends, expected)
        for room, count in expected.items():
            room.serve(batch.append, count)

    def _expect_all(self, parts: Iterable[c.Command], expected: dict[Room, int]) -> None:
        for part in parts:
            if type(part) is c.Put:
                self._expect(part, expected)

    def _expect(self, put: c.Put, expected: dict[Room, int]) -> None:
        if not put.delay_s:
            room = self.by_queue.get((put.account, put.queue))
            if room is not None:
                expected[room] = expected.get(room, 0) + 1
