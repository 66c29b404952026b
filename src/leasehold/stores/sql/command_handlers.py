"""The verbs of a store in a database: what carries out which command."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

from leasehold.domain import admin as o
from leasehold.domain import claims as cl
from leasehold.domain import commands as c
from leasehold.domain import events as e
from leasehold.domain import sessions as s
from leasehold.domain import transactions as st
from leasehold.domain.command import AnyCommand, never
from leasehold.domain.errors import LeaseholdError, StoreFull
from leasehold.domain.groups import (
    HaltGroup,
    HoldGroup,
    ReleaseGroup,
    ResumeGroup,
    SaveGroupState,
)
from leasehold.stores.base import COMMANDS
from leasehold.stores.sql.admin import AdminHandlers, JobHandlers, QueueHandlers
from leasehold.stores.sql.claims import ClaimHandlers
from leasehold.stores.sql.failures import FailureHandlers
from leasehold.stores.sql.maintenance import BodyKeyHandlers, EventHandlers, MaintenanceHandlers
from leasehold.stores.sql.messages import CompleteVerb, MessageHandlers
from leasehold.stores.sql.recorder import Recorder
from leasehold.stores.sql.sessions import SessionHandlers
from leasehold.stores.sql.settle import Settling
from leasehold.stores.sql.state import StagedBook, State
from leasehold.stores.sql.transactions import TransactionHandlers

_Run: TypeAlias = Callable[[Sequence[Any], int], Sequence[c.Result]]
_Verb: TypeAlias = Callable[[Any, int], c.Result]


class CommandHandlers:
    """The verbs of one store.

    Args:
        state: The store's.
        messages_type: The verbs on messages, as this database has them.
        sessions_type: The verbs on sessions, likewise.
        completing_type: The verb that completes, likewise.
    """

    def __init__(
        self,
        state: State,
        messages_type: type[MessageHandlers] = MessageHandlers,
        sessions_type: type[SessionHandlers] = SessionHandlers,
        completing_type: type[CompleteVerb] = CompleteVerb,
    ) -> None:
        self._state = state
        self._failures = FailureHandlers(state)
        self.sessions = sessions_type(state, self._failures)
        self.sessions.load()
        messages = messages_type(state, self.sessions)
        self._failures.judge = messages.judge
        self._completing = completing_type(state, messages.judge)
        book = StagedBook(state)
        settling = Settling(state, self._failures, book)
        verbs = state, messages, self._failures, self._completing
        staging = TransactionHandlers(*verbs, book, settling)
        self.claims = ClaimHandlers(*verbs[:3], staging, settling)
        self._runs = {
            **self._message_runs(messages),
            **_claim_runs(self.claims, state.log),
            **_staging_runs(staging, state.log),
            **_session_runs(self.sessions, state.log),
            **_log_runs(EventHandlers(state), BodyKeyHandlers(state)),
        }

    def carry_out(self, batch: Sequence[AnyCommand], now_ms: int) -> list[c.Result]:
        """Carry out commands in their order; those of one kind that follow each other as a run."""
        results: list[c.Result] = []
        start, end = 0, len(batch)
        while start < end:
            kind = type(batch[start])
            stop = start + 1
            while stop < end and type(batch[stop]) is kind:
                stop += 1
            if self._state.is_full and kind in _NEED_ROOM:
                results.extend(self._refuse_growth(batch[start:stop], now_ms))
            else:
                results.extend(self._runs[kind](batch[start:stop], now_ms))
            start = stop
        return results

    def _batch(self, command: c.Batch, now_ms: int) -> c.Result:
        if command.atomic:
            if self._state.is_full and not all(map(self._fits, command.commands)):
                return tuple(StoreFull() for _ in command.commands)
            refusals = self._failures.refusals(command, now_ms)
            if refusals is not None:
                return refusals
        log = self._state.log
        since = log.reached
        results = tuple(self.carry_out(command.commands, now_ms))
        if command.actor is not None:
            log.sign(since, command.actor)
        return results

    def _refuse_growth(self, run: Sequence[AnyCommand], now_ms: int) -> list[c.Result]:
        results: list[c.Result] = []
        for command in run:
            if self._fits(command):
                results.extend(self._runs[type(command)]([command], now_ms))
            else:
                results.append(StoreFull())
        return results

    def _message_runs(self, messages: MessageHandlers) -> dict[type, _Run]:
        """Return what carries out a run of commands, by their type."""
        admin = AdminHandlers(self._state)
        queues = QueueHandlers(self._state, admin, self.claims)
        jobs = JobHandlers(self._state, admin)
        maintenance = MaintenanceHandlers(self._state)
        log = self._state.log
        return {
            c.Put: messages.put,
            c.Receive: messages.receive,
            c.Peek: _one_by_one(messages.peek),
            c.Renew: _one_by_one(messages.renew),
            c.Complete: self._completing.complete,
            c.Release: _one_by_one(self._failures.release),
            c.Batch: _one_by_one(self._batch),
            c.Clear: _one_by_one(_signing(log, queues.clear)),
            c.CreateQueue: _one_by_one(_signing(log, queues.create)),
            c.DeleteQueue: _one_by_one(_signing(log, queues.delete)),
            c.GetQueue: _one_by_one(queues.get),
            c.SetQueueMetadata: _one_by_one(_signing(log, queues.set_metadata)),
            c.SetQueuePolicies: _one_by_one(_signing(log, queues.set_policies)),
            c.SetQueueSettings: _one_by_one(_signing(log, queues.set_settings)),
            c.SetAdapted: _one_by_one(queues.set_adapted),
            c.ListQueues: _one_by_one(queues.list),
            c.GetAccountDocument: _one_by_one(queues.get_document),
            c.SetAccountDocument: _one_by_one(queues.set_document),
            c.RetireExpired: _one_by_one(maintenance.retire_expired),
            c.RemoveRetired: _one_by_one(maintenance.remove_retired),
            c.ReapDropped: _one_by_one(maintenance.reap_dropped),
            c.ForgetKeys: _one_by_one(maintenance.forget_keys),
            c.CatchUp: _one_by_one(maintenance.catch_up),
            o.Inspect: _one_by_one(admin.inspect),
            o.FindMessage: _one_by_one(admin.find),
            o.LookAtGroup: _one_by_one(admin.look_at_group),
            HaltGroup: _one_by_one(_signing(log, admin.halt_group)),
            ResumeGroup: _one_by_one(_signing(log, admin.resume_group)),
            o.CountGroups: _one_by_one(admin.count_groups),
            o.CountMessages: _one_by_one(admin.count),
            o.NextDue: _one_by_one(admin.next_due),
            o.Amend: _one_by_one(_signing(log, admin.amend)),
            o.Remove: _one_by_one(_signing(log, admin.remove)),
            o.EndLease: _one_by_one(_signing(log, admin.end_lease)),
            o.ExtendLease: _one_by_one(_signing(log, admin.extend_lease)),
            o.StartJob: _one_by_one(jobs.start),
            o.StepJob: _one_by_one(jobs.step),
            o.StopJob: _one_by_one(_signing(log, jobs.stop)),
            o.GetJob: _one_by_one(jobs.get),
            o.ListJobs: _one_by_one(jobs.list),
            c.NoteTime: _one_by_one(maintenance.note_time),
        }

    def _fits(self, command: AnyCommand) -> bool:
        """Tell whether a command of those that may need room does not."""
        if isinstance(command, c.CreateQueue):
            return self._state.catalog.find(command.account, command.queue) is not None
        return not command.traits.room(command)


_NEED_ROOM: Final = frozenset(kind for kind in COMMANDS if kind.traits.room is not never)


def _claim_runs(claims: ClaimHandlers, log: Recorder) -> dict[type, _Run]:
    return {
        cl.AttachStream: _one_by_one(claims.attach),
        cl.OpenClaim: _one_by_one(claims.open),
        cl.ReadClaim: _one_by_one(claims.read),
        cl.ExtendClaim: _one_by_one(claims.extend),
        cl.ExemptMembers: _one_by_one(claims.exempt),
        cl.BindClaim: _one_by_one(claims.bind),
        cl.SettleClaims: _one_by_one(claims.settle),
        cl.GiveBackClaim: _one_by_one(_signing(log, claims.give_back)),
        cl.GetStream: _one_by_one(claims.get),
        cl.ListStreams: _one_by_one(claims.list_all),
        cl.DeleteStream: _one_by_one(_signing(log, claims.delete)),
        cl.LapseClaims: _one_by_one(claims.lapse),
    }


def _staging_runs(staging: TransactionHandlers, log: Recorder) -> dict[type, _Run]:
    return {
        st.Stage: _one_by_one(staging.stage),
        st.Publish: _one_by_one(_signing(log, staging.publish)),
        st.Discard: _one_by_one(_signing(log, staging.discard)),
        st.GetTransaction: _one_by_one(staging.get),
        st.ListTransactions: _one_by_one(staging.list),
        st.ExpireStaged: _one_by_one(staging.expire),
        st.CommitTogether: _one_by_one(staging.commit_together),
    }


def _session_runs(sessions: SessionHandlers, log: Recorder) -> dict[type, _Run]:
    return {
        s.OpenSession: _one_by_one(sessions.open),
        s.Heartbeat: _one_by_one(sessions.heartbeat),
        s.EndSession: _one_by_one(_signing(log, sessions.end)),
        s.GetSession: _one_by_one(sessions.get),
        s.ListSessions: _one_by_one(sessions.list),
        s.ListLeases: _one_by_one(sessions.leases),
        s.LoseSessions: _one_by_one(sessions.lose),
        s.RequestCancel: _one_by_one(_signing(log, sessions.cancel)),
        HoldGroup: _one_by_one(sessions.hold_group),
        SaveGroupState: _one_by_one(sessions.save_group_state),
        ReleaseGroup: _one_by_one(_signing(log, sessions.release_group)),
    }


def _log_runs(events: EventHandlers, keys: BodyKeyHandlers) -> dict[type, _Run]:
    return {
        e.ReadEvents: _one_by_one(events.read),
        e.TailEvents: _one_by_one(events.tail),
        e.LogExtent: _one_by_one(events.extent),
        e.TrimEvents: _one_by_one(events.trim),
        e.KeepNote: _one_by_one(events.keep_note),
        e.ReadNote: _one_by_one(events.read_note),
        c.ReadBodyGarbage: _one_by_one(keys.read_garbage),
        c.ForgetBodyGarbage: _one_by_one(keys.forget_garbage),
        c.KnownBodies: _one_by_one(keys.known),
        c.ReadBodyPlace: _one_by_one(keys.read_place),
        c.MarkBodyPlace: _one_by_one(keys.mark_place),
    }


def _signing(log: Recorder, verb: Callable[[Any, int], c.Result]) -> _Verb:
    """Make a verb say in its events who has asked for it."""

    def perform(command: Any, now_ms: int) -> c.Result:
        since = log.reached
        result = verb(command, now_ms)
        log.sign(since, command.actor)
        return result

    return perform


def _one_by_one(
    verb: Callable[[Any, int], c.Result],
) -> Callable[[Sequence[Any], int], list[c.Result]]:
    """Make a verb for one command into one for a run of them; refusals become results."""

    def run(commands: Sequence[Any], now_ms: int) -> list[c.Result]:
        results: list[c.Result] = []
        for command in commands:
            try:
                results.append(verb(command, now_ms))
            except LeaseholdError as error:
                results.append(error)
        return results

    return run
