"""The SQLite store: batches in, one transaction and one fsync out."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias

import apsw

from leasehold.domain import bodies as b
from leasehold.domain import claims as cl
from leasehold.domain import commands as c
from leasehold.domain import events as e
from leasehold.domain import oversight as o
from leasehold.domain import sessions as s
from leasehold.domain import staging as st
from leasehold.domain.errors import LeaseholdError, StoreFailed, StoreFull, Unavailable
from leasehold.domain.receipts import KEY_BYTES
from leasehold.domain.types import Queue
from leasehold.stores.base import StoreHealth
from leasehold.stores.sql_files import load_queries
from leasehold.stores.sqlite.body_keys import BodyKeyVerbs
from leasehold.stores.sqlite.catalog import Catalog
from leasehold.stores.sqlite.claims import ClaimVerbs
from leasehold.stores.sqlite.completing import CompleteVerb
from leasehold.stores.sqlite.connection import open_database, read_back
from leasehold.stores.sqlite.epoch import adopt_mark, keep_mark, prepare_mark, read_mark
from leasehold.stores.sqlite.eventlog import EventVerbs
from leasehold.stores.sqlite.failures import FailureVerbs
from leasehold.stores.sqlite.jobs import JobVerbs
from leasehold.stores.sqlite.maintenance import MaintenanceVerbs
from leasehold.stores.sqlite.messages import MessageVerbs
from leasehold.stores.sqlite.oversight import OversightVerbs
from leasehold.stores.sqlite.queues import QueueVerbs
from leasehold.stores.sqlite.reserve import Reserve
from leasehold.stores.sqlite.sessions import SessionVerbs
from leasehold.stores.sqlite.settling import Settling
from leasehold.stores.sqlite.staged_book import StagedBook
from leasehold.stores.sqlite.staging import StagingVerbs
from leasehold.stores.sqlite.state import State

FILE_NAME: Final = "leasehold.db"
RESERVE_NAME: Final = "reserve"
_VACUUM_PAGES: Final = 250
_QUERIES: Final = load_queries("leasehold.stores.sqlite")


_Run: TypeAlias = Callable[[Sequence[Any], int], Sequence[c.Result]]


class SqliteStore:
    """See :class:`leasehold.stores.base.Store`.

    Args:
        folder: Folder of the database, created if it is not there.
        cache_mib: Size of SQLite's page cache in MiB; bounds the memory of a store of any size.
        reserve_bytes: Room kept aside for draining a full disk; 0 for none.
        vfs: Name of a registered SQLite VFS, for tests that injure the disk.

    Raises:
        StoreFailed: The database cannot be opened.
    """

    put_back: bool
    """Whether the database was put back from a copy, so that earlier receipts are void."""

    def __init__(
        self,
        folder: Path,
        *,
        cache_mib: int = 32,
        reserve_bytes: int = 0,
        vfs: str | None = None,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._reserve = Reserve(folder / RESERVE_NAME, reserve_bytes)
        self._changes = -1
        try:
            try:
                self._connection = open_database(folder / FILE_NAME, cache_mib=cache_mib, vfs=vfs)
            except (apsw.FullError, apsw.IOError, apsw.CantOpenError):
                # Opening takes room too: on a full disk that is what the reserve is for.
                self._reserve.give_up()
                self._connection = open_database(folder / FILE_NAME, cache_mib=cache_mib, vfs=vfs)
            self._settings = read_back(self._connection)
            self._state = State(
                self._connection.cursor(), _QUERIES, Catalog(), partial(keep_mark, folder)
            )
            self._begin_epoch()
            self._state.load()
        except (apsw.Error, OSError) as error:
            raise StoreFailed from error
        self._state.is_full = not self._reserve.take()
        self._failures = FailureVerbs(self._state)
        self._sessions = SessionVerbs(self._state, self._failures)
        self._sessions.load()
        messages = MessageVerbs(self._state, self._sessions)
        self._failures.judge = messages.judge
        book = StagedBook(self._state)
        settling = Settling(self._state, self._failures, book)
        verbs = self._state, messages, self._failures
        staging = StagingVerbs(*verbs, book, settling)
        self._claims = ClaimVerbs(*verbs, staging, settling)
        self._runs = {
            **self._verbs(messages),
            **_claim_runs(self._claims),
            **_staging_runs(staging),
            **_session_runs(self._sessions),
            **_log_runs(EventVerbs(self._state), BodyKeyVerbs(self._state)),
        }

    def _verbs(self, messages: MessageVerbs) -> dict[type, _Run]:
        """Return what carries out a run of commands, by their type."""
        oversight = OversightVerbs(self._state)
        queues = QueueVerbs(self._state, oversight.counts_of, self._claims)
        jobs = JobVerbs(self._state, oversight)
        maintenance = MaintenanceVerbs(self._state)
        return {
            c.Put: messages.put,
            c.Receive: messages.receive,
            c.Peek: _one_by_one(messages.peek),
            c.Renew: _one_by_one(messages.renew),
            c.Complete: CompleteVerb(self._state, messages.judge).complete,
            c.Release: _one_by_one(self._failures.release),
            c.Batch: _one_by_one(self._batch),
            c.Clear: _one_by_one(queues.clear),
            c.CreateQueue: _one_by_one(queues.create),
            c.DeleteQueue: _one_by_one(queues.delete),
            c.GetQueue: _one_by_one(queues.get),
            c.SetQueueMetadata: _one_by_one(queues.set_metadata),
            c.SetQueuePolicies: _one_by_one(queues.set_policies),
            c.SetQueueSettings: _one_by_one(queues.set_settings),
            c.SetAdapted: _one_by_one(queues.set_adapted),
            c.ListQueues: _one_by_one(queues.list),
            c.GetAccountDocument: _one_by_one(queues.get_document),
            c.SetAccountDocument: _one_by_one(queues.set_document),
            c.RetireExpired: _one_by_one(maintenance.retire_expired),
            c.RemoveRetired: _one_by_one(maintenance.remove_retired),
            c.ReapDropped: _one_by_one(maintenance.reap_dropped),
            c.ForgetKeys: _one_by_one(maintenance.forget_keys),
            o.Inspect: _one_by_one(oversight.inspect),
            o.FindMessage: _one_by_one(oversight.find),
            o.CountMessages: _one_by_one(oversight.count),
            o.NextDue: _one_by_one(oversight.next_due),
            o.Amend: _one_by_one(oversight.amend),
            o.Remove: _one_by_one(oversight.remove),
            o.EndLease: _one_by_one(oversight.end_lease),
            o.StartJob: _one_by_one(jobs.start),
            o.StepJob: _one_by_one(jobs.step),
            o.StopJob: _one_by_one(jobs.stop),
            o.GetJob: _one_by_one(jobs.get),
            o.ListJobs: _one_by_one(jobs.list),
            c.NoteTime: _one_by_one(maintenance.note_time),
        }

    def _begin_epoch(self) -> None:
        """Mark the database and the folder as opened by this store.

        On a full disk the old marks stay, which still match. A database that was put back is not
        opened then: it must not go on with the receipts of before.
        """
        mark = secrets.token_hex(16)
        try:
            prepare_mark(self._folder, mark)
            with self._connection:
                self.put_back = self._state.mark(
                    read_mark(self._folder), mark, secrets.token_bytes(KEY_BYTES)
                )
        except (apsw.FullError, OSError):
            if self._state.is_put_back(read_mark(self._folder)):
                raise
            self.put_back = False
        else:
            adopt_mark(self._folder)

    def _end_epoch(self) -> None:
        """Mark both once more, so that every copy made until now is an old one."""
        mark, beside = secrets.token_hex(16), read_mark(self._folder)
        prepare_mark(self._folder, mark)
        with self._connection:
            self._state.set_marks(mark, beside or "")
            self._state.note_log()
        adopt_mark(self._folder)
        with self._connection:
            self._state.set_marks(mark, mark)

    def execute(self, batch: Sequence[c.Command], *, now_ms: int) -> list[c.Result]:
        """See :meth:`Store.execute`. Commands of one kind that follow each other share statements.

        On a full disk, commands that need room are refused and the others are carried out.
        """
        try:
            self._state.cursor.execute("BEGIN IMMEDIATE")
            if now_ms >= self._state.next_lapse_ms:
                self._claims.lapse_due(now_ms)
            results = self._carry_out(batch, now_ms)
            self._state.write_counts()
            self._state.log.write(now_ms)
        except apsw.Error as error:
            raise self._undo(error) from error
        except Exception:
            self._roll_back()
            raise
        return results

    def _carry_out(self, batch: Sequence[c.Command], now_ms: int) -> list[c.Result]:
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
        return tuple(self._carry_out(command.commands, now_ms))

    def commit(self) -> bool:
        """See :meth:`Store.commit`."""
        try:
            self._state.cursor.execute("COMMIT")
        except apsw.Error as error:
            raise self._undo(error) from error
        self._state.log.committed()
        changes = self._connection.total_changes()
        wrote, self._changes = changes != self._changes, changes
        return wrote

    def find_queue(self, account: str, queue: str) -> Queue | None:
        """See :meth:`Store.find_queue`."""
        entry = self._state.catalog.find(account, queue)
        return entry.queue if entry else None

    def message_counts(self) -> list[tuple[str, str, int]]:
        """See :meth:`Store.message_counts`."""
        return self._state.catalog.message_counts()

    def health(self) -> StoreHealth:
        """See :meth:`Store.health`."""
        durable = (
            self._settings["journal_mode"] == "wal" and int(self._settings["synchronous"]) >= 2  # noqa: PLR2004 - FULL
        )
        return StoreHealth(
            kind="sqlite",
            durable=durable,
            writable=not self._state.is_full,
            details={**self._settings, "epoch": self._state.epoch},
        )

    def last_seen_ms(self) -> int:
        """See :meth:`Store.last_seen_ms`."""
        return self._state.last_seen_ms

    def relieve(self) -> bool:
        """See :meth:`Store.relieve`. There is room once the reserve, and more, can be allocated."""
        if not self._state.is_full:
            return True
        try:
            self._connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
            # Moving pages takes room in the WAL first, so it goes by slices.
            self._state.cursor.execute(f"PRAGMA incremental_vacuum({_VACUUM_PAGES})").fetchall()
            self._connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        except (apsw.FullError, apsw.BusyError):  # busy: somebody reads, a backup perhaps
            return False
        except apsw.Error as error:
            raise StoreFailed from error
        self._state.is_full = not self._reserve.take(again=True)
        return not self._state.is_full

    def close(self) -> None:
        """See :meth:`Store.close`."""
        if not self._connection.in_transaction:
            with contextlib.suppress(apsw.Error, OSError):
                self._end_epoch()
        self._state.cursor.close(force=True)
        self._connection.close()

    def _refuse_growth(self, run: Sequence[c.Command], now_ms: int) -> list[c.Result]:
        results: list[c.Result] = []
        for command in run:
            if self._fits(command):
                results.extend(self._runs[type(command)]([command], now_ms))
            else:
                results.append(StoreFull())
        return results

    def _undo(self, error: apsw.Error) -> LeaseholdError:
        """Undo the open batch and say what happened to it."""
        if isinstance(error, apsw.BusyError):  # somebody else writes; nothing was begun
            return Unavailable()
        full = isinstance(error, apsw.FullError)
        if full:
            self._state.is_full = True
            self._reserve.give_up()
        try:
            self._roll_back()
        except StoreFailed as failed:
            return failed
        return StoreFull() if full else StoreFailed()

    def _roll_back(self) -> None:
        """Undo the open batch, in memory too."""
        try:
            if self._connection.in_transaction:
                self._state.cursor.execute("ROLLBACK")
            self._state.load()
            self._sessions.load()
        except apsw.Error as error:
            raise StoreFailed from error

    def _fits(self, command: c.Command) -> bool:
        """Tell whether a command of those that may need room does not."""
        if isinstance(command, c.CreateQueue):
            return self._state.catalog.find(command.account, command.queue) is not None
        if isinstance(command, c.Renew):
            return command.body is None and not command.saved
        if isinstance(command, st.CommitTogether):
            return all(map(self._fits, command.commands))
        if isinstance(command, cl.SettleClaims):
            return not command.sends
        return type(command) not in _NEED_ROOM


_NEED_ROOM: Final = frozenset(
    {
        c.Put,
        c.Renew,
        c.CreateQueue,
        c.SetQueueMetadata,
        c.SetQueuePolicies,
        c.SetAccountDocument,
        o.Amend,
        o.StartJob,
        st.Stage,
        st.CommitTogether,
        cl.ExemptMembers,
        cl.SettleClaims,
        e.KeepNote,
    }
)


def _claim_runs(claims: ClaimVerbs) -> dict[type, _Run]:
    return {
        cl.AttachStream: _one_by_one(claims.attach),
        cl.OpenClaim: _one_by_one(claims.open),
        cl.ReadClaim: _one_by_one(claims.read),
        cl.ExtendClaim: _one_by_one(claims.extend),
        cl.ExemptMembers: _one_by_one(claims.exempt),
        cl.BindClaim: _one_by_one(claims.bind),
        cl.SettleClaims: _one_by_one(claims.settle),
        cl.GiveBackClaim: _one_by_one(claims.give_back),
        cl.GetStream: _one_by_one(claims.get),
        cl.ListStreams: _one_by_one(claims.list_all),
        cl.DeleteStream: _one_by_one(claims.delete),
        cl.LapseClaims: _one_by_one(claims.lapse),
    }


def _staging_runs(staging: StagingVerbs) -> dict[type, _Run]:
    return {
        st.Stage: _one_by_one(staging.stage),
        st.Publish: _one_by_one(staging.publish),
        st.Discard: _one_by_one(staging.discard),
        st.GetTransaction: _one_by_one(staging.get),
        st.ListTransactions: _one_by_one(staging.list),
        st.ExpireStaged: _one_by_one(staging.expire),
        st.CommitTogether: _one_by_one(staging.commit_together),
    }


def _session_runs(sessions: SessionVerbs) -> dict[type, _Run]:
    return {
        s.OpenSession: _one_by_one(sessions.open),
        s.Heartbeat: _one_by_one(sessions.heartbeat),
        s.EndSession: _one_by_one(sessions.end),
        s.GetSession: _one_by_one(sessions.get),
        s.ListSessions: _one_by_one(sessions.list),
        s.LoseSessions: _one_by_one(sessions.lose),
        s.RequestCancel: _one_by_one(sessions.cancel),
    }


def _log_runs(events: EventVerbs, keys: BodyKeyVerbs) -> dict[type, _Run]:
    return {
        e.ReadEvents: _one_by_one(events.read),
        e.LogExtent: _one_by_one(events.extent),
        e.TrimEvents: _one_by_one(events.trim),
        e.KeepNote: _one_by_one(events.keep_note),
        e.ReadNote: _one_by_one(events.read_note),
        b.ReadBodyGarbage: _one_by_one(keys.read_garbage),
        b.ForgetBodyGarbage: _one_by_one(keys.forget_garbage),
        b.KnownBodies: _one_by_one(keys.known),
    }


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
