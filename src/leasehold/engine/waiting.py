"""Long polling: receives and claims that wait until there is something for them.

Each queue that somebody waits for has a *room*, where those who came first are served first. Nobody
polls: a room looks at the store when it has a reason to, and sleeps until the next message is due.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, Final

from leasehold.clock import Clock, LoopTimers, Timers
from leasehold.domain import claims as k
from leasehold.domain import commands as c
from leasehold.domain import oversight as o
from leasehold.domain import sessions as s
from leasehold.domain import staging as t
from leasehold.domain.errors import LeaseholdError, QueueNotFound, StoreFailed
from leasehold.domain.queue_settings import poison_queue_of
from leasehold.domain.types import Lease, Outcome, Queue
from leasehold.engine.rooms import Key, Room
from leasehold.engine.waiters import Answer, Gone, HandIn, Pending, Taking, Waiter, waiter_for

__all__ = ["MAX_WAIT_S", "Answer", "Gone", "Pending", "WaitingRooms"]

MAX_WAIT_S: Final = 60
"""Longest wait that the dialects take, seconds."""


class WaitingRooms:
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
        self.clock = clock
        self.timers = timers or LoopTimers()
        self.by_queue: dict[Key, Room] = {}
        """Rooms that somebody is in; while there are none, nothing here costs anything."""
        self.changed: dict[Room, None] = {}
        """Rooms that have something to do."""
        self.is_draining = False
        self._find_queue = find_queue
        self._hand_in: HandIn
        self._notes: dict[type, Callable[[Any, Any], None]] = {
            c.Put: self._note_lease,
            c.Renew: self._note_lease,
            c.Receive: self._note_receive,
            c.Release: self._note_release,
            c.Batch: self._note_batch,
            c.SetQueueSettings: self._note_settings,
            c.DeleteQueue: self._note_delete,
            o.Amend: self._note_seen,
            o.EndLease: self._note_seen,
            o.StartJob: self._note_job,
            o.StepJob: self._note_job,
            s.LoseSessions: self._note_sweep,
            s.EndSession: self._note_ended_session,
            k.AttachStream: self._note_stream,
            k.OpenClaim: self._note_open,
            k.ExtendClaim: self._note_extend,
            k.SettleClaims: self._note_settle,
            k.GiveBackClaim: self._note_given_back,
            k.DeleteStream: self._note_given_back,
            k.LapseClaims: self._note_sweep,
            t.Publish: self._note_publish,
            t.CommitTogether: self._note_commit,
        }

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
            room.distrust()
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

    def note(self, command: c.Command, result: c.Result) -> None:
        """Hear of the result of a command, before whoever asked for it does."""
        note = self._notes.get(type(command))
        if note is not None and not isinstance(result, LeaseholdError):
            note(command, result)

    def _note_lease(self, command: c.Put | c.Renew, result: c.Result) -> None:
        room = self.by_queue.get((command.account, command.queue))
        if room is not None and type(result) is Lease:
            room.appears(result.message.visible_at_ms)

    def _note_receive(self, command: c.Receive, result: tuple[Lease, ...]) -> None:
        if result:
            room = self.by_queue.get((command.account, command.queue))
            if room is not None:
                room.taken(result)
        self._note_taken_away(command)

    def _note_taken_away(self, command: Taking) -> None:
        """Note that messages may have gone to the poison queue instead."""
        queue = self._find_queue(command.account, command.queue)
        if queue is not None and queue.settings.failure_policy is not None:
            self._note_poison(queue)

    def _note_release(self, command: c.Release, result: c.Released) -> None:
        if result.poisoned is None:
            room = self.by_queue.get((command.account, command.queue))
            if room is not None:
                room.appears(result.visible_at_ms)
            return
        queue = self._find_queue(command.account, command.queue)
        if queue is not None:  # also without a policy: it may have been buried
            self._note_poison(queue)

    def _note_poison(self, queue: Queue) -> None:
        room = self.by_queue.get((queue.account, poison_queue_of(queue.name, queue.settings)))
        if room is not None:
            room.distrust()

    def _note_batch(self, command: c.Batch, results: tuple[c.Result, ...]) -> None:
        for part, result in zip(command.commands, results, strict=True):
            self.note(part, result)

    def _note_seen(self, command: o.Amend | o.EndLease, result: o.Seen) -> None:
        room = self.by_queue.get((command.account, result.queue))
        if room is not None:
            room.appears(result.message.visible_at_ms)

    def _note_settings(self, command: c.SetQueueSettings, _: c.Result) -> None:
        self._distrust(command.account, command.queue)

    def _note_delete(self, command: c.DeleteQueue, _: c.Result) -> None:
        room = self.by_queue.get((command.account, command.queue))
        if room is not None:
            room.answer_idle(QueueNotFound)

    def _note_job(self, _: c.Command, job: o.Job) -> None:
        if job.plan.kind is o.JobKind.REDRIVE and not job.plan.dry_run:
            for (account, queue), room in self.by_queue.items():
                if account == job.account and queue == (job.plan.target or queue):
                    room.distrust()

    # --- sessions, claims, staged sends ------------------------------------------------------

    def _distrust(self, account: str | None, queue: str | None = None) -> None:
        """Have rooms look that may have got something: one, those of an account, or all."""
        if queue is not None and account is not None:
            room = self.by_queue.get((account, queue))
            if room is not None:
                room.distrust()
            return
        for key, room in self.by_queue.items():
            if account in {None, key[0]}:
                room.distrust()

    def _note_sweep(self, _: c.Command, swept: c.Swept) -> None:
        if swept.count:  # whose leases or claims these were is not said
            self._distrust(None)

    def _note_ended_session(self, command: s.EndSession, _: c.Result) -> None:
        self._distrust(command.account)

    def _note_stream(self, command: k.AttachStream, _: c.Result) -> None:
        room = self.by_queue.get((command.account, command.queue))
        if room is not None:
            room.call(command.stream)

    def _note_open(self, command: k.OpenClaim, opened: k.Opened) -> None:
        room = self.by_queue.get((command.account, command.queue))
        if room is not None and opened.claim is not None:
            room.claimed(opened)
            room.call(command.stream)
        self._note_taken_away(command)

    def _note_extend(self, command: k.ExtendClaim, claim: k.Claim) -> None:
        room = self.by_queue.get((command.account, command.queue))
        if room is not None:
            room.appears(claim.until_ms, claim.remaining)

    def _note_settle(self, command: k.SettleClaims, settled: k.Settled) -> None:
        self._note_settled(command.account, command.queue, command.stream, settled.exempted)
        if settled.already:
            return
        self._note_streams(command.account, settled.beside)
        if settled.published:
            self._distrust(command.account)
        for put in command.sends:
            at_ms = self.clock.now_ms() + put.delay_s * 1000
            room = self.by_queue.get((put.account, put.queue))
            if room is not None:
                room.appears(at_ms)

    def _note_settled(self, account: str, queue_name: str, stream: str, exempted: int) -> None:
        room = self.by_queue.get((account, queue_name))
        if room is not None:
            room.call(stream)
        if exempted:
            self._distrust(account, queue_name)
            queue = self._find_queue(account, queue_name)
            if queue is not None:
                self._note_poison(queue)

    def _note_streams(self, account: str, streams: Iterable[t.StreamSettled]) -> None:
        for each in streams:
            self._note_settled(account, each.queue, each.stream, each.exempted)

    def _note_given_back(self, command: k.GiveBackClaim | k.DeleteStream, _: c.Result) -> None:
        room = self.by_queue.get((command.account, command.queue))
        if room is not None:
            room.distrust()
            room.call(command.stream)

    def _note_publish(self, command: t.Publish, published: t.Published) -> None:
        self._note_streams(command.account, published.settled)
        if published.rows and not published.already:
            self._distrust(command.account)

    def _note_commit(self, command: t.CommitTogether, committed: t.Committed) -> None:
        if committed.already:
            return
        for part, result in zip(command.commands, committed.results, strict=True):
            self.note(part, result)
        self._note_streams(command.account, committed.settled)
        if committed.published:
            self._distrust(command.account)
