"""What the results of commands mean for those who wait: in which queues something may be had."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol, TypeAlias

from leasehold.clock import Clock
from leasehold.domain import admin as o
from leasehold.domain import claims as k
from leasehold.domain import commands as c
from leasehold.domain import sessions as s
from leasehold.domain import transactions as t
from leasehold.domain.claims import OpenClaim, Opened
from leasehold.domain.command import AnyCommand
from leasehold.domain.errors import LeaseholdError, QueueNotFound
from leasehold.domain.groups import ReleaseGroup, ResumeGroup
from leasehold.domain.model import Lease, Queue, QueueKey
from leasehold.domain.queue_settings import poison_queue_of

ReceiveOrClaim: TypeAlias = c.Receive | OpenClaim
"""What can wait: a command that takes messages."""


class Answer(Protocol):
    """Who gets the result of a command; a future is one."""

    def done(self) -> bool:
        """Tell whether it is no use to set the result."""
        ...

    def set_result(self, result: c.Result, /) -> None:
        """Take the result, which is durable."""
        ...


Pending: TypeAlias = tuple[AnyCommand, Answer]
HandIn: TypeAlias = Callable[[Pending], object]


class QueueListener(Protocol):
    """What hears of one queue."""

    def appears(self, at_ms: int, count: int = 1) -> None:
        """*count* messages are visible from a moment on."""
        ...

    def taken(self, leases: tuple[Lease, ...]) -> None:
        """Messages were received; there is one at least."""
        ...

    def claimed(self, opened: Opened) -> None:
        """A claim was opened, or found again."""
        ...

    def call(self, stream: str) -> None:
        """Something happened to a stream: its claims may be had, or another consumer attached to
        it.
        """
        ...

    def distrust(self) -> None:
        """Anything may have happened."""
        ...

    def answer_idle(self, error: Callable[[], c.Result] | None = None) -> None:
        """The queue is no more."""
        ...


class QueueListeners:
    """Tells the listeners of queues what the results of commands mean for them.

    Args:
        clock: Says what is visible by now.
        find_queue: The store's, to learn where messages that fail too often go.
    """

    by_queue: Mapping[QueueKey, QueueListener]
    """Queues of which anybody wants to hear."""

    def __init__(self, clock: Clock, find_queue: Callable[[str, str], Queue | None]) -> None:
        self.clock = clock
        self._find_queue = find_queue
        self._notes: dict[type, Callable[[Any, Any], None]] = {
            c.Put: self._note_lease,
            c.Renew: self._note_lease,
            c.Receive: self._note_receive,
            c.Release: self._note_release,
            c.Complete: self._note_removed,
            c.Batch: self._note_batch,
            c.SetQueueSettings: self._note_settings,
            c.DeleteQueue: self._note_delete,
            o.Amend: self._note_seen,
            o.EndLease: self._note_seen,
            o.Remove: self._note_removed,
            ResumeGroup: self._note_removed,
            ReleaseGroup: self._note_removed,
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

    def note(self, command: AnyCommand, result: c.Result) -> None:
        """Hear of the result of a command."""
        note = self._notes.get(type(command))
        if note is not None and not isinstance(result, LeaseholdError):
            note(command, result)

    def _note_lease(self, command: c.Put | c.Renew, result: c.Result) -> None:
        listener = self.by_queue.get((command.account, command.queue))
        if listener is not None and type(result) is Lease:
            listener.appears(result.message.visible_at_ms)

    def _note_receive(self, command: c.Receive, result: tuple[Lease, ...]) -> None:
        if result:
            listener = self.by_queue.get((command.account, command.queue))
            if listener is not None:
                listener.taken(result)
        self._note_taken_away(command)

    def _note_taken_away(self, command: ReceiveOrClaim) -> None:
        """Note that messages may have gone to the poison queue instead."""
        queue = self._find_queue(command.account, command.queue)
        if queue is not None and queue.settings.failure_policy is not None:
            self._note_poison(queue)

    def _note_release(self, command: c.Release, result: c.Released) -> None:
        if result.poisoned is None:
            listener = self.by_queue.get((command.account, command.queue))
            if listener is not None:
                listener.appears(result.visible_at_ms)
            self._note_freed(command.account, command.queue)
            return
        self._note_freed(command.account, command.queue)
        queue = self._find_queue(command.account, command.queue)
        if queue is not None:  # also without a policy: it may have been buried
            self._note_poison(queue)

    def _note_removed(
        self, command: c.Complete | o.Remove | ResumeGroup | ReleaseGroup, _: c.Result
    ) -> None:
        self._note_freed(command.account, command.queue)

    def _note_freed(self, account: str, queue_name: str) -> None:
        """Note that message groups may have something to give again."""
        listener = self.by_queue.get((account, queue_name))
        if listener is not None:
            queue = self._find_queue(account, queue_name)
            if queue is not None and queue.settings.groups is not None:
                listener.distrust()

    def _note_poison(self, queue: Queue) -> None:
        listener = self.by_queue.get((queue.account, poison_queue_of(queue.name, queue.settings)))
        if listener is not None:
            listener.distrust()

    def _note_batch(self, command: c.Batch, results: tuple[c.Result, ...]) -> None:
        for part, result in zip(command.commands, results, strict=True):
            self.note(part, result)

    def _note_seen(self, command: o.Amend | o.EndLease, result: o.Seen) -> None:
        listener = self.by_queue.get((command.account, result.queue))
        if listener is not None:
            listener.appears(result.message.visible_at_ms)

    def _note_settings(self, command: c.SetQueueSettings, _: c.Result) -> None:
        self._distrust(command.account, command.queue)

    def _note_delete(self, command: c.DeleteQueue, _: c.Result) -> None:
        listener = self.by_queue.get((command.account, command.queue))
        if listener is not None:
            listener.answer_idle(QueueNotFound)

    def _note_job(self, _: AnyCommand, job: o.Job) -> None:
        if job.plan.kind is o.JobKind.REDRIVE and not job.plan.dry_run:
            for (account, queue), listener in self.by_queue.items():
                if account == job.account and queue == (job.plan.target or queue):
                    listener.distrust()

    # --- sessions, claims, staged sends ------------------------------------------------------

    def _distrust(self, account: str | None, queue: str | None = None) -> None:
        """Have queues looked at that may have got something: one, those of an account, or all."""
        if queue is not None and account is not None:
            listener = self.by_queue.get((account, queue))
            if listener is not None:
                listener.distrust()
            return
        for key, listener in self.by_queue.items():
            if account in {None, key[0]}:
                listener.distrust()

    def _note_sweep(self, _: AnyCommand, swept: c.Swept) -> None:
        if swept.count:  # whose leases or claims these were is not said
            self._distrust(None)

    def _note_ended_session(self, command: s.EndSession, _: c.Result) -> None:
        self._distrust(command.account)

    def _note_stream(self, command: k.AttachStream, _: c.Result) -> None:
        listener = self.by_queue.get((command.account, command.queue))
        if listener is not None:
            listener.call(command.stream)

    def _note_open(self, command: k.OpenClaim, opened: k.Opened) -> None:
        listener = self.by_queue.get((command.account, command.queue))
        if listener is not None and opened.claim is not None:
            listener.claimed(opened)
            listener.call(command.stream)
        self._note_taken_away(command)

    def _note_extend(self, command: k.ExtendClaim, claim: k.Claim) -> None:
        listener = self.by_queue.get((command.account, command.queue))
        if listener is not None:
            listener.appears(claim.until_ms, claim.remaining)

    def _note_settle(self, command: k.SettleClaims, settled: k.Settled) -> None:
        self._note_settled(command.account, command.queue, command.stream, settled.exempted)
        if settled.already:
            return
        self._note_streams(command.account, settled.beside)
        if settled.published:
            self._distrust(command.account)
        for put in command.sends:
            at_ms = self.clock.now_ms() + put.delay_s * 1000
            listener = self.by_queue.get((put.account, put.queue))
            if listener is not None:
                listener.appears(at_ms)

    def _note_settled(self, account: str, queue_name: str, stream: str, exempted: int) -> None:
        listener = self.by_queue.get((account, queue_name))
        if listener is not None:
            listener.call(stream)
        self._note_freed(account, queue_name)
        if exempted:
            self._distrust(account, queue_name)
            queue = self._find_queue(account, queue_name)
            if queue is not None:
                self._note_poison(queue)

    def _note_streams(self, account: str, streams: Iterable[t.StreamSettled]) -> None:
        for each in streams:
            self._note_settled(account, each.queue, each.stream, each.exempted)

    def _note_given_back(self, command: k.GiveBackClaim | k.DeleteStream, _: c.Result) -> None:
        listener = self.by_queue.get((command.account, command.queue))
        if listener is not None:
            listener.distrust()
            listener.call(command.stream)

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
