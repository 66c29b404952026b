"""The store that keeps everything in dictionaries."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from leasehold.domain import bodies as b
from leasehold.domain import claims as cl
from leasehold.domain import commands as c
from leasehold.domain import events as e
from leasehold.domain import oversight as o
from leasehold.domain import sessions as s
from leasehold.domain import staging as st
from leasehold.domain.errors import LeaseholdError, QueueExists, SettingsDiffer
from leasehold.domain.events import EventType
from leasehold.domain.queues import same_metadata, same_where_given, with_settings
from leasehold.domain.types import Phase, Queue
from leasehold.domain.visibility import is_expired
from leasehold.stores.base import StoreHealth
from leasehold.stores.memory.bodies import BodyVerbs
from leasehold.stores.memory.boxes import Boxes
from leasehold.stores.memory.claims import ClaimVerbs
from leasehold.stores.memory.events import EventVerbs
from leasehold.stores.memory.jobs import JobVerbs
from leasehold.stores.memory.messages import MessageVerbs
from leasehold.stores.memory.oversight import OversightVerbs
from leasehold.stores.memory.sessions import Sessions, SessionVerbs
from leasehold.stores.memory.settling import Settling
from leasehold.stores.memory.shelves import Shelf, Shelves
from leasehold.stores.memory.staging import StagingVerbs
from leasehold.stores.memory.taking import Taking

_Verbs: TypeAlias = dict[type, Callable[[Any], c.Result]]


class MemoryStore:
    """See :class:`leasehold.stores.base.Store`."""

    is_remote = False

    def __init__(self, *, receipt_key: bytes = b"memory") -> None:
        self._shelves = Shelves(receipt_key)
        self._documents: dict[tuple[str, str], str] = {}
        taking = Taking(self._shelves)
        sessions = self._sessions = Sessions(self._shelves)
        messages = MessageVerbs(self._shelves, taking, sessions)
        boxes: Boxes = {}
        settling = Settling(self._shelves, messages, boxes)
        staging = StagingVerbs(self._shelves, messages, boxes, settling)
        oversight = self._oversight = OversightVerbs(self._shelves, staging)
        claims = self._claims = ClaimVerbs(self._shelves, taking, messages, staging, settling)
        events = self._events = EventVerbs(self._shelves.log)
        self._verbs: _Verbs = {
            **self._own_verbs(),
            **_message_verbs(messages, oversight, JobVerbs(self._shelves, oversight)),
            **_claim_verbs(claims, staging),
            **_session_verbs(SessionVerbs(self._shelves, sessions, taking)),
            **_log_verbs(events, BodyVerbs(self._shelves, staging)),
        }

    def _own_verbs(self) -> _Verbs:
        return {
            c.CreateQueue: self._create_queue,
            c.DeleteQueue: self._delete_queue,
            c.GetQueue: self._get_queue,
            c.SetQueueMetadata: self._set_metadata,
            c.SetQueuePolicies: self._set_policies,
            c.SetQueueSettings: self._set_settings,
            c.SetAdapted: self._set_adapted,
            c.ListQueues: self._list_queues,
            c.GetAccountDocument: self._get_document,
            c.SetAccountDocument: self._set_document,
            c.Clear: self._clear,
            c.RetireExpired: self._retire_expired,
            c.RemoveRetired: self._remove_retired,
            c.ReapDropped: self._reap_dropped,
            c.ForgetKeys: self._forget_keys,
            c.NoteTime: lambda _: c.DONE,
        }

    # --- the interface -----------------------------------------------------------------------

    def execute(self, batch: Sequence[c.Command], *, now_ms: int) -> list[c.Result]:
        """See :meth:`Store.execute`."""
        self._shelves.now_ms = now_ms
        self._claims.lapse_due()
        results = [self._perform(command) for command in batch]
        self._events.write(now_ms)
        return results

    def commit(self) -> bool:
        """Do nothing: there is no disk."""
        return True

    def hurry(self, within_s: float | None) -> None:
        """See :meth:`Store.hurry`."""

    def find_queue(self, account: str, queue: str) -> Queue | None:
        """See :meth:`Store.find_queue`."""
        held = self._shelves.queues.get((account, queue))
        return held.queue if held else None

    def message_counts(self) -> list[tuple[str, str, int]]:
        """See :meth:`Store.message_counts`."""
        return [(*key, len(held.rows)) for key, held in self._shelves.queues.items()]

    def health(self) -> StoreHealth:
        """See :meth:`Store.health`."""
        return StoreHealth(kind="memory", durable=False, writable=True, details={})

    @property
    def away(self) -> frozenset[str]:
        """See :attr:`Store.away`. Nothing moves from memory to elsewhere."""
        return frozenset()

    def last_seen_ms(self) -> int:
        """See :meth:`Store.last_seen_ms`: a new store has seen nothing."""
        return 0

    def relieve(self) -> bool:
        """See :meth:`Store.relieve`."""
        return True

    def close(self) -> None:
        """See :meth:`Store.close`."""

    # --- queues ------------------------------------------------------------------------------

    def _perform(self, command: c.Command) -> c.Result:
        try:
            return self._verbs[type(command)](command)
        except LeaseholdError as error:
            return error

    def _create_queue(self, command: c.CreateQueue) -> c.Result:
        key = command.account, command.queue
        held = self._shelves.queues.get(key)
        if held is not None:
            if not same_where_given(held.queue.settings, command.settings, command.given):
                raise SettingsDiffer
            if same_metadata(held.queue.metadata, command.metadata):
                return c.QueueCreated(created=False)
            raise QueueExists
        self._shelves.create(
            Queue(
                account=command.account,
                name=command.queue,
                metadata=dict(command.metadata),
                settings=command.settings,
                created_at_ms=self._shelves.now_ms,
            )
        )
        return c.QueueCreated(created=True)

    def _delete_queue(self, command: c.DeleteQueue) -> c.Result:
        held = self._shelves.get(command.account, command.queue)
        self._shelves.drop(held)
        self._claims.forget_streams(held)
        self._shelves.note(EventType.QUEUE_DELETED, held)
        del self._shelves.queues[command.account, command.queue]
        return c.DONE

    def _get_queue(self, command: c.GetQueue) -> c.Result:
        held = self._shelves.get(command.account, command.queue)
        counts = self._oversight.counts_of(held) if command.with_counts else None
        return c.QueueInfo(queue=held.queue, message_count=len(held.rows), counts=counts)

    def _set_metadata(self, command: c.SetQueueMetadata) -> c.Result:
        held = self._shelves.get(command.account, command.queue)
        held.queue = replace(held.queue, metadata=dict(command.metadata))
        return c.DONE

    def _set_settings(self, command: c.SetQueueSettings) -> c.Result:
        held = self._shelves.get(command.account, command.queue)
        held.queue = with_settings(held.queue, command.settings)
        return c.DONE

    def _set_adapted(self, command: c.SetAdapted) -> c.Result:
        held = self._shelves.get(command.account, command.queue)
        settings = replace(held.queue.settings, adapted=command.adapted)
        held.queue = replace(held.queue, settings=settings)
        return c.DONE

    def _set_policies(self, command: c.SetQueuePolicies) -> c.Result:
        held = self._shelves.get(command.account, command.queue)
        held.queue = replace(held.queue, policies=command.policies)
        return c.DONE

    def _list_queues(self, command: c.ListQueues) -> c.Result:
        found = sorted(
            name
            for account, name in self._shelves.queues
            if account == command.account
            and name >= command.start
            and name.startswith(command.prefix)
        )
        page = found[: command.limit]
        return c.QueuePage(
            queues=tuple(self._shelves.queues[command.account, name].queue for name in page),
            next_start=found[command.limit] if len(found) > command.limit else None,
        )

    def _get_document(self, command: c.GetAccountDocument) -> c.Result:
        return c.AccountDocument(self._documents.get((command.account, command.kind)))

    def _set_document(self, command: c.SetAccountDocument) -> c.Result:
        self._documents[command.account, command.kind] = command.content
        return c.DONE

    # --- messages as a whole -----------------------------------------------------------------

    def _clear(self, command: c.Clear) -> c.Result:
        held = self._shelves.get(command.account, command.queue)
        self._shelves.drop(held)
        held.rows, held.retired = {}, {}
        self._claims.lose_members(held)
        self._shelves.note(EventType.QUEUE_CLEARED, held)
        return c.DONE

    # --- maintenance -------------------------------------------------------------------------

    def _retire_expired(self, command: c.RetireExpired) -> c.Result:
        expired: Iterable[tuple[int, int, Shelf]] = (
            (message.expires_at_ms, key, held)
            for held in self._shelves.queues.values()
            for key, message in held.rows.items()
            if is_expired(message, self._shelves.now_ms) and not held.hides(key)
        )
        due = heapq.nsmallest(command.limit, expired, key=lambda row: row[:2])
        for _, key, held in due:
            message = self._shelves.take(held, key)
            self._shelves.note(EventType.EXPIRED, held, message)
            # It is of no more interest when it could have been received.
            held.retired[key] = message._replace(
                visible_at_ms=message.expires_at_ms, phase=Phase.WAITING
            )
        return c.Swept(len(due))

    def _remove_retired(self, command: c.RemoveRetired) -> c.Result:
        old = [
            (key, held)
            for held in self._shelves.queues.values()
            for key, message in held.retired.items()
            if message.expires_at_ms < command.expired_before_ms
        ]
        for key, held in old[: command.limit]:
            del held.retired[key]
        return c.Swept(min(len(old), command.limit))

    def _reap_dropped(self, command: c.ReapDropped) -> c.Result:
        count = min(len(self._shelves.dropped), command.limit)
        del self._shelves.dropped[:count]
        return c.Swept(count)

    def _forget_keys(self, command: c.ForgetKeys) -> c.Result:
        old = [
            (until_ms, key, held)
            for held in self._shelves.queues.values()
            for key, (_, until_ms) in held.keys.items()
            if until_ms <= self._shelves.now_ms
        ]
        for _, key, held in sorted(old, key=lambda each: each[:2])[: command.limit]:
            del held.keys[key]
        return c.Swept(min(len(old), command.limit))


def _message_verbs(messages: MessageVerbs, oversight: OversightVerbs, jobs: JobVerbs) -> _Verbs:
    return {
        c.Put: messages.put,
        c.Receive: messages.receive,
        c.Peek: messages.peek,
        c.Renew: messages.renew,
        c.Complete: messages.complete,
        c.Release: messages.release,
        c.Batch: messages.batch,
        o.Inspect: oversight.inspect,
        o.FindMessage: oversight.find,
        o.CountMessages: oversight.count,
        o.NextDue: oversight.next_due,
        o.Amend: oversight.amend,
        o.Remove: oversight.remove,
        o.EndLease: oversight.end_lease,
        o.StartJob: jobs.start,
        o.StepJob: jobs.step,
        o.StopJob: jobs.stop,
        o.GetJob: jobs.get,
        o.ListJobs: jobs.list,
    }


def _claim_verbs(claims: ClaimVerbs, staging: StagingVerbs) -> _Verbs:
    return {
        cl.AttachStream: claims.attach,
        cl.OpenClaim: claims.open,
        cl.ReadClaim: claims.read,
        cl.ExtendClaim: claims.extend,
        cl.ExemptMembers: claims.exempt,
        cl.BindClaim: claims.bind,
        cl.SettleClaims: claims.settle,
        cl.GiveBackClaim: claims.give_back,
        cl.GetStream: claims.get,
        cl.ListStreams: claims.list,
        cl.DeleteStream: claims.delete,
        cl.LapseClaims: claims.lapse,
        st.Stage: staging.stage,
        st.Publish: staging.publish,
        st.Discard: staging.discard,
        st.GetTransaction: staging.get,
        st.ListTransactions: staging.list,
        st.ExpireStaged: staging.expire,
        st.CommitTogether: staging.commit_together,
    }


def _session_verbs(sessions: SessionVerbs) -> _Verbs:
    return {
        s.OpenSession: sessions.open,
        s.Heartbeat: sessions.heartbeat,
        s.EndSession: sessions.end,
        s.GetSession: sessions.get,
        s.ListSessions: sessions.list,
        s.LoseSessions: sessions.lose,
        s.RequestCancel: sessions.request_cancel,
    }


def _log_verbs(events: EventVerbs, bodies: BodyVerbs) -> _Verbs:
    return {
        e.ReadEvents: events.read,
        e.LogExtent: events.extent,
        e.TrimEvents: events.trim,
        e.KeepNote: events.keep_note,
        e.ReadNote: events.read_note,
        b.ReadBodyGarbage: bodies.garbage,
        b.ForgetBodyGarbage: bodies.forget,
        b.KnownBodies: bodies.known,
    }
