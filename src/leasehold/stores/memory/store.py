"""The store that keeps everything in dictionaries."""

from __future__ import annotations

import heapq
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeAlias

from leasehold.domain import admin as o
from leasehold.domain import claims as cl
from leasehold.domain import commands as c
from leasehold.domain import events as e
from leasehold.domain import sessions as s
from leasehold.domain import transactions as st
from leasehold.domain.command import AnyCommand
from leasehold.domain.errors import LeaseholdError, QueueExists, SettingsDiffer
from leasehold.domain.event_recorder import SERVER, Collected, Recorder
from leasehold.domain.events import EventType
from leasehold.domain.groups import (
    HaltGroup,
    HoldGroup,
    ReleaseGroup,
    ResumeGroup,
    SaveGroupState,
)
from leasehold.domain.model import (
    KEY_BYTES,
    Message,
    Phase,
    Queue,
    derive_sealing_key,
    differences_where_given,
    same_metadata,
    with_adapted,
    with_settings,
)
from leasehold.domain.visibility import after_catching_up, is_expired
from leasehold.stores.base import StoreHealth
from leasehold.stores.memory.admin import AdminHandlers, JobHandlers
from leasehold.stores.memory.claims import ClaimHandlers
from leasehold.stores.memory.messages import MessageHandlers
from leasehold.stores.memory.sessions import SessionHandlers, Sessions
from leasehold.stores.memory.settle import Settling
from leasehold.stores.memory.tables import Boxes, QueueTable, Tables, Taking
from leasehold.stores.memory.transactions import TransactionHandlers

_Verbs: TypeAlias = dict[type, Callable[[Any], c.Result]]


class MemoryStore:
    """See :class:`leasehold.stores.base.Store`."""

    def __init__(self, *, receipt_key: bytes | None = None) -> None:
        self._tables = Tables(receipt_key or secrets.token_bytes(KEY_BYTES))
        self._documents: dict[tuple[str, str], str] = {}
        taking = Taking(self._tables)
        sessions = self._sessions = Sessions(self._tables)
        messages = MessageHandlers(self._tables, taking, sessions)
        boxes: Boxes = {}
        settling = Settling(self._tables, messages, boxes)
        staging = TransactionHandlers(self._tables, messages, boxes, settling)
        admin = self._admin = AdminHandlers(self._tables, staging, taking)
        claims = self._claims = ClaimHandlers(self._tables, taking, messages, staging, settling)
        events = self._events = EventHandlers(self._tables.log)
        self._verbs: _Verbs = {
            **self._own_verbs(),
            **_message_verbs(messages, admin, JobHandlers(self._tables, admin)),
            **_claim_verbs(claims, staging),
            **_session_verbs(SessionHandlers(self._tables, sessions, taking)),
            **_log_verbs(events, BodyHandlers(self._tables, staging)),
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
            c.CatchUp: self._catch_up,
            c.NoteTime: lambda _: c.DONE,
        }

    # --- the interface -----------------------------------------------------------------------

    def execute(self, batch: Sequence[AnyCommand], *, now_ms: int) -> list[c.Result]:
        """See :meth:`Store.execute`."""
        self._tables.now_ms = now_ms
        self._claims.lapse_due()
        results = [self._perform(command) for command in batch]
        self._events.write(now_ms)
        return results

    def commit(self) -> bool:
        """Do nothing: there is no disk."""
        return True

    def find_queue(self, account: str, queue: str) -> Queue | None:
        """See :meth:`Store.find_queue`."""
        held = self._tables.queues.get((account, queue))
        return held.queue if held else None

    def message_counts(self) -> list[tuple[str, str, int]]:
        """See :meth:`Store.message_counts`."""
        return [(*key, len(held.rows)) for key, held in self._tables.queues.items()]

    def health(self) -> StoreHealth:
        """See :meth:`Store.health`."""
        return StoreHealth(kind="memory", durable=False, writable=True, details={})

    @property
    def relocated_accounts(self) -> frozenset[str]:
        """See :attr:`Store.relocated_accounts`. Nothing moves from memory to elsewhere."""
        return frozenset()

    @property
    def sealing_key(self) -> bytes:
        """See :attr:`Store.sealing_key`."""
        return derive_sealing_key(self._tables.receipt_key)

    def last_seen_ms(self) -> int:
        """See :meth:`Store.last_seen_ms`: a new store has seen nothing."""
        return 0

    def relieve(self) -> bool:
        """See :meth:`Store.relieve`."""
        return True

    def close(self) -> None:
        """See :meth:`Store.close`."""

    # --- queues ------------------------------------------------------------------------------

    def _perform(self, command: AnyCommand) -> c.Result:
        log = self._tables.log
        since = log.reached
        try:
            result = self._verbs[type(command)](command)
        except LeaseholdError as error:
            return error
        log.sign(since, getattr(command, "actor", None))
        return result

    def _create_queue(self, command: c.CreateQueue) -> c.Result:
        key = command.account, command.queue
        held = self._tables.queues.get(key)
        if held is not None:
            differences = differences_where_given(
                held.queue.settings, command.settings, command.given
            )
            if differences:
                raise SettingsDiffer(differences)
            if same_metadata(held.queue.metadata, command.metadata):
                return c.QueueCreated(created=False)
            raise QueueExists
        self._tables.create(
            Queue(
                account=command.account,
                name=command.queue,
                metadata=dict(command.metadata),
                settings=command.settings,
                created_at_ms=self._tables.now_ms,
            )
        )
        return c.QueueCreated(created=True)

    def _delete_queue(self, command: c.DeleteQueue) -> c.Result:
        held = self._tables.get(command.account, command.queue)
        self._tables.drop(held)
        self._claims.forget_streams(held)
        self._tables.note(EventType.QUEUE_DELETED, held)
        del self._tables.queues[command.account, command.queue]
        return c.DONE

    def _get_queue(self, command: c.GetQueue) -> c.Result:
        held = self._tables.get(command.account, command.queue)
        counts = self._admin.counts_of(held) if command.with_counts else None
        return c.QueueInfo(queue=held.queue, message_count=len(held.rows), counts=counts)

    def _set_metadata(self, command: c.SetQueueMetadata) -> c.Result:
        held = self._tables.get(command.account, command.queue)
        self._tables.change(held, replace(held.queue, metadata=dict(command.metadata)))
        return c.DONE

    def _set_settings(self, command: c.SetQueueSettings) -> c.Result:
        held = self._tables.get(command.account, command.queue)
        self._tables.change(held, with_settings(held.queue, command.settings))
        return c.DONE

    def _set_adapted(self, command: c.SetAdapted) -> c.Result:
        held = self._tables.get(command.account, command.queue)
        since = self._tables.log.reached
        self._tables.change(held, with_adapted(held.queue, command.adapted, command.rule))
        self._tables.log.sign(since, SERVER)
        return c.DONE

    def _set_policies(self, command: c.SetQueuePolicies) -> c.Result:
        held = self._tables.get(command.account, command.queue)
        self._tables.change(held, replace(held.queue, policies=command.policies))
        return c.DONE

    def _list_queues(self, command: c.ListQueues) -> c.Result:
        found = sorted(
            name
            for account, name in self._tables.queues
            if account == command.account
            and name >= command.start
            and name.startswith(command.prefix)
        )
        page = found[: command.limit]
        return c.QueuePage(
            queues=tuple(self._tables.queues[command.account, name].queue for name in page),
            next_start=found[command.limit] if len(found) > command.limit else None,
        )

    def _get_document(self, command: c.GetAccountDocument) -> c.Result:
        return c.AccountDocument(self._documents.get((command.account, command.kind)))

    def _set_document(self, command: c.SetAccountDocument) -> c.Result:
        self._documents[command.account, command.kind] = command.content
        return c.DONE

    # --- messages as a whole -----------------------------------------------------------------

    def _clear(self, command: c.Clear) -> c.Result:
        held = self._tables.get(command.account, command.queue)
        self._tables.drop(held)
        held.rows, held.retired, held.turns, held.halts = {}, {}, None, {}
        self._claims.lose_members(held)
        self._tables.note(EventType.QUEUE_CLEARED, held)
        return c.DONE

    # --- maintenance -------------------------------------------------------------------------

    def _retire_expired(self, command: c.RetireExpired) -> c.Result:
        expired: Iterable[tuple[int, int, QueueTable]] = (
            (message.expires_at_ms, key, held)
            for held in self._tables.queues.values()
            for key, message in held.rows.items()
            if is_expired(message, self._tables.now_ms) and not held.hides(key)
        )
        due = heapq.nsmallest(command.limit, expired, key=lambda row: row[:2])
        for _, key, held in due:
            message = self._tables.take(held, key)
            self._tables.note(EventType.EXPIRED, held, message)
            # It is of no more interest when it could have been received.
            held.retired[key] = message._replace(
                visible_at_ms=message.expires_at_ms, phase=Phase.WAITING
            )
        return c.Swept(len(due))

    def _remove_retired(self, command: c.RemoveRetired) -> c.Result:
        old: Iterable[tuple[int, int, QueueTable]] = (
            (message.expires_at_ms, key, held)
            for held in self._tables.queues.values()
            for key, message in held.retired.items()
            if message.expires_at_ms < command.expired_before_ms
        )
        removed = heapq.nsmallest(command.limit, old, key=lambda row: row[:2])
        for _, key, held in removed:
            del held.retired[key]
        return c.Swept(len(removed))

    def _reap_dropped(self, command: c.ReapDropped) -> c.Result:
        count = min(len(self._tables.dropped), command.limit)
        del self._tables.dropped[:count]
        return c.Swept(count)

    def _catch_up(self, command: c.CatchUp) -> c.Result:
        ahead = [
            (message.visible_at_ms, key, table)
            for table in self._tables.queues.values()
            for key, message in table.rows.items()
            if self._tables.now_ms + c.AHEAD_MS < message.visible_at_ms <= command.until_ms
            and message.since_ms == message.visible_at_ms
            and key not in table.held
        ]
        due = sorted(ahead, key=lambda each: each[:2])[: command.limit]
        for _, key, table in due:
            self._tables.keep(table, key, after_catching_up(table.rows[key], command.at_ms))
        return c.Swept(len(due))

    def _forget_keys(self, command: c.ForgetKeys) -> c.Result:
        old = [
            (until_ms, key, held)
            for held in self._tables.queues.values()
            for key, (_, until_ms) in held.keys.items()
            if until_ms <= self._tables.now_ms
        ]
        for _, key, held in sorted(old, key=lambda each: each[:2])[: command.limit]:
            del held.keys[key]
        return c.Swept(min(len(old), command.limit))


def _message_verbs(messages: MessageHandlers, admin: AdminHandlers, jobs: JobHandlers) -> _Verbs:
    return {
        c.Put: messages.put,
        c.Receive: messages.receive,
        c.Peek: messages.peek,
        c.Renew: messages.renew,
        c.Complete: messages.complete,
        c.Release: messages.release,
        c.Batch: messages.batch,
        o.Inspect: admin.inspect,
        o.FindMessage: admin.find,
        o.LookAtGroup: admin.look_at_group,
        HaltGroup: admin.halt_group,
        ResumeGroup: admin.resume_group,
        o.CountGroups: admin.count_groups,
        o.CountMessages: admin.count,
        o.NextDue: admin.next_due,
        o.Amend: admin.amend,
        o.Remove: admin.remove,
        o.EndLease: admin.end_lease,
        o.ExtendLease: admin.extend_lease,
        o.StartJob: jobs.start,
        o.StepJob: jobs.step,
        o.StopJob: jobs.stop,
        o.GetJob: jobs.get,
        o.ListJobs: jobs.list,
    }


def _claim_verbs(claims: ClaimHandlers, staging: TransactionHandlers) -> _Verbs:
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


def _session_verbs(sessions: SessionHandlers) -> _Verbs:
    return {
        HoldGroup: sessions.hold_group,
        SaveGroupState: sessions.save_group_state,
        ReleaseGroup: sessions.release_group,
        s.OpenSession: sessions.open,
        s.Heartbeat: sessions.heartbeat,
        s.EndSession: sessions.end,
        s.GetSession: sessions.get,
        s.ListSessions: sessions.list,
        s.ListLeases: sessions.leases,
        s.LoseSessions: sessions.lose,
        s.RequestCancel: sessions.request_cancel,
    }


def _log_verbs(events: EventHandlers, bodies: BodyHandlers) -> _Verbs:
    return {
        e.ReadEvents: events.read,
        e.TailEvents: events.tail,
        e.LogExtent: events.extent,
        e.TrimEvents: events.trim,
        e.KeepNote: events.keep_note,
        e.ReadNote: events.read_note,
        c.ReadBodyGarbage: bodies.garbage,
        c.ForgetBodyGarbage: bodies.forget,
        c.KnownBodies: bodies.known,
        c.ReadBodyPlace: bodies.place,
        c.MarkBodyPlace: bodies.mark,
    }


# --- bodies ------------------------------------------------------------------------------------
#
# Keys of large bodies in memory: which of them no message refers to any more.


class BodyHandlers:
    """Each method carries out one command."""

    def __init__(self, tables: Tables, staging: TransactionHandlers) -> None:
        self._tables = tables
        self._staging = staging
        self._place_mark: str | None = None

    def garbage(self, command: c.ReadBodyGarbage) -> c.Result:
        """List keys of bodies whose messages are gone."""
        unused = self._tables.body_keys - _keys_of(self._messages())
        return c.BodyKeys(tuple(sorted(unused)[: command.limit]))

    def forget(self, command: c.ForgetBodyGarbage) -> c.Result:
        """Forget keys whose bodies have been removed."""
        self._tables.body_keys -= set(command.keys) - _keys_of(self._messages())
        return c.DONE

    def place(self, command: c.ReadBodyPlace) -> c.Result:
        """Tell by what the place for bodies is known."""
        used = sorted(_keys_of(self._messages()))
        return c.BodyPlace(self._place_mark, tuple(used[: command.limit]))

    def mark(self, command: c.MarkBodyPlace) -> c.Result:
        """Keep the mark of the place for bodies."""
        self._place_mark = command.mark
        return c.DONE

    def known(self, command: c.KnownBodies) -> c.Result:
        """Tell which of some keys a message refers to."""
        used = _keys_of(self._messages())
        return c.BodyKeys(tuple(key for key in command.keys if key in used))

    def _messages(self) -> Iterator[Message]:
        for table in self._tables.queues.values():
            yield from table.rows.values()
            yield from table.retired.values()
        yield from self._tables.dropped
        yield from self._staging.messages()


def _keys_of(messages: Iterable[Message]) -> set[str]:
    refs = (message.detail.body_ref for message in messages)
    return {ref.key for ref in refs if ref is not None}


# --- events ------------------------------------------------------------------------------------
#
# The event log in memory: a list of what each batch changed.


_BYTES_PER_EVENT = 100


class _Batch(NamedTuple):
    """The events of one batch."""

    seq: int
    at_ms: int
    collected: Collected


class EventHandlers:
    """Each method carries out one command."""

    def __init__(self, log: Recorder) -> None:
        self._log = log
        self._batches: list[_Batch] = []
        self._last_seq = 0
        self._notes: dict[str, str] = {}

    def write(self, now_ms: int) -> None:
        """Keep what was recorded of a batch."""
        collected = self._log.take()
        if collected.events:
            self._last_seq += 1
            self._batches.append(_Batch(self._last_seq, now_ms, collected))

    def read(self, command: e.ReadEvents) -> c.Result:
        """Read events in their order."""
        found: list[e.Event] = []
        reached = command.after_seq
        for batch in self._batches:
            if batch.seq <= command.after_seq:
                continue
            if len(found) >= command.limit:
                return e.EventPage(tuple(found), reached, finished=False)
            reached = batch.seq
            found += [
                event
                for event in _events_in(batch)
                if command.message_id in {None, event.message_id}
                and command.account in {None, event.account}
            ]
        return e.EventPage(tuple(found), reached, finished=True)

    def tail(self, command: e.TailEvents) -> c.Result:
        """Read events from the newest back; here at once."""
        batches = [batch for batch in self._batches if batch.seq <= command.upto_seq]
        found = [
            event
            for batch in reversed(batches)
            for event in reversed(_events_in(batch))
            if event.account == command.account
            and command.queue in {None, event.queue}
            and command.message_id in {None, event.message_id}
        ]
        return e.EventTail(tuple(found), 0, batches[0].at_ms if batches else None)

    def extent(self, _command: e.LogExtent) -> c.Result:
        """Say how much log there is."""
        if not self._batches:
            return e.Extent(0, 0, 0, None)
        first = self._batches[0]
        events = sum(len(batch.collected.events) for batch in self._batches)
        return e.Extent(first.seq, self._last_seq, events * _BYTES_PER_EVENT, first.at_ms)

    def trim(self, command: e.TrimEvents) -> c.Result:
        """Forget the oldest batches; the last one stays."""
        old = [batch for batch in self._batches[:-1] if batch.seq <= command.upto_seq]
        count = min(len(old), command.limit)
        del self._batches[:count]
        return c.Swept(count)

    def keep_note(self, command: e.KeepNote) -> c.Result:
        """Keep a text."""
        self._notes[command.name] = command.content
        return c.DONE

    def read_note(self, command: e.ReadNote) -> c.Result:
        """Read a text."""
        return e.Note(self._notes.get(command.name))


def _events_in(batch: _Batch) -> list[e.Event]:
    of, events = batch.collected
    return [
        e.event_of(batch.seq, place, batch.at_ms, of[recorded[1]], recorded)
        for place, recorded in enumerate(events)
    ]
