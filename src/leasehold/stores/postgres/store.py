"""The PostgreSQL store: batches in, one transaction out, beside those of other servers."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, auto
from typing import Any, Final, cast

import psycopg
from psycopg import errors

from leasehold.clock import Verdict
from leasehold.domain import commands as c
from leasehold.domain.claims import ReadClaim
from leasehold.domain.command import AnyCommand, Effect, Lock, Refresh
from leasehold.domain.errors import (
    NotReplicated,
    OutcomeUnknown,
    StoreFailed,
    StoreFull,
    Unavailable,
)
from leasehold.domain.model import Queue, derive_sealing_key
from leasehold.stores.base import COMMANDS, StoreHealth
from leasehold.stores.migrate.marks import AccountMoving, StoreMoved
from leasehold.stores.postgres.command_handlers import (
    SharedCompleteVerb,
    SharedMessageHandlers,
    SharedSessionHandlers,
)
from leasehold.stores.postgres.connection import Address, migrate, read_back
from leasehold.stores.postgres.cursor import Cursor, Direct, NotInTime
from leasehold.stores.postgres.primary import (
    Outcome,
    Primary,
    Trace,
    Writer,
    number_of,
    outcome_of,
)
from leasehold.stores.postgres.shared_time import NotTheTime, SharedTime
from leasehold.stores.postgres.state import NotExclusive, SharedState
from leasehold.stores.sql.command_handlers import CommandHandlers
from leasehold.stores.sql.statements import load_queries

_QUERIES: Final = load_queries("leasehold.stores.postgres")
_TRIES: Final = 5
_UNREAD: Final = -1

_SHARING: Final = frozenset(kind for kind in COMMANDS if kind.traits.lock is Lock.SHARED)
_LOOKING: Final = frozenset(kind for kind in COMMANDS if kind.traits.effect is Effect.LOOKS)
_COUNTING: Final = frozenset(kind for kind in COMMANDS if kind.traits.refresh is Refresh.COUNTS)
_LOGGING: Final = frozenset(kind for kind in COMMANDS if kind.traits.refresh is Refresh.LOG)
_TRIED: Final = _SHARING - {ReadClaim}
"""What may be tried in the event loop: a large page of a claim takes longer than that waits, and
would be read twice."""


class PostgresStore:
    """See :class:`leasehold.stores.base.RemoteStore`.

    Args:
        url: ``postgresql://user@host:port/database``, several hosts allowed, with ``schema=NAME``
            behind a question mark for another schema than ``leasehold``.
        name: Name of this server, for people.
        now_ms: The time.
        shared_time: What batches are checked against; None to take any time that they have.

    Raises:
        StoreFailed: The database cannot be reached, or is not ours.
    """

    restored_from_backup: Final = False
    """A database that was restored from a backup is not noticed: see the operator's guide."""

    def __init__(
        self, url: str, *, name: str = "", now_ms: int = 0, shared_time: SharedTime | None = None
    ) -> None:
        self._address = Address.parse(url)
        self._name = name
        cursor = Cursor(_QUERIES)
        self._cursor = cursor
        self._state = SharedState(cursor, _QUERIES)
        self._version = _UNREAD
        self._time = shared_time
        self._played: tuple[Sequence[AnyCommand], int, list[c.Result]] = ((), 0, [])
        self._is_given_up = False
        """Whether there may be something left of a batch that was tried."""
        self._trouble: psycopg.Error | None = None
        """What went wrong with it."""
        self._trace = Trace()
        try:
            self._primary = Primary(self._address, self._attach)
        except psycopg.Error as error:
            raise StoreFailed from error
        try:
            migrate(self._primary.connection, self._address.schema)
            self._settings = read_back(self._primary.connection)
            self._begin(None, exclusive=True)
            self._state.begin_store()
            self._state.slot = self._state.fetch("add_server", (name, now_ms))[0][0]
            if shared_time is not None:
                shared_time.slot = self._state.slot
            self._state.load()
            self._verbs = CommandHandlers(
                self._state, SharedMessageHandlers, SharedSessionHandlers, SharedCompleteVerb
            )
            self._primary.commit()
        except BaseException as error:
            self._primary.drop()
            if isinstance(error, AccountMoving):
                raise StoreMoved(error.mark) from None
            if isinstance(error, psycopg.Error):
                raise StoreFailed from error
            raise

    def execute(self, batch: Sequence[AnyCommand], *, now_ms: int) -> list[c.Result]:
        """See :meth:`Store.execute`.

        Raises:
            Unavailable: The database cannot be reached now, or is busy; nothing was done.
        """
        until_s = self._primary.deadline_s()
        self._clear_up(until_s)
        self._primary.ensure()
        results = self._play(batch, now_ms, until_s)
        self._played = batch, now_ms, results
        return results

    def try_execute(
        self, batch: Sequence[AnyCommand], *, now_ms: int, within_s: float
    ) -> list[c.Result] | None:
        """See :meth:`RemoteStore.try_execute`."""
        if self._is_given_up or self._primary.is_lost or not _shares(batch, _TRIED):
            return None
        self._is_given_up = True
        direct = self._primary.direct
        direct.set_deadline(within_s)
        try:
            results = self._attempt(batch, now_ms, exclusive=False)
        except Exception as error:  # noqa: BLE001 - `execute` deals with it, or meets it again
            self._trouble = error if isinstance(error, psycopg.Error) else None
            return None
        finally:
            direct.set_deadline(None)
        self._is_given_up = False
        self._played = batch, now_ms, results
        return results

    def _clear_up(self, until_s: float) -> None:
        """Undo what is left of a batch that was tried."""
        if self._is_given_up:
            self._is_given_up = False
            trouble, self._trouble = self._trouble, None
            if trouble is None:
                self._undo()
            else:
                self._recover(trouble, until_s, last=False)

    def _play(self, batch: Sequence[AnyCommand], now_ms: int, until_s: float) -> list[c.Result]:
        """Carry a batch out, again if the database has undone it."""
        exclusive = not _shares(batch, _SHARING)
        for left in reversed(range(_TRIES)):
            try:
                return self._attempt(batch, now_ms, exclusive=exclusive)
            except NotExclusive:
                exclusive = True
                self._undo()
            except AccountMoving as error:
                self._undo()
                raise Unavailable from error
            except NotTheTime as error:
                self._undo()
                if not self._is_time():
                    raise Unavailable from error
            except psycopg.Error as error:
                self._recover(error, until_s, last=not left)
            except BaseException:
                self._undo()
                raise
        raise Unavailable

    def _recover(self, error: psycopg.Error, until_s: float, *, last: bool) -> None:
        """Undo the batch, and return if it may be played again."""
        self._undo()  # finds out whether the connection is of any use
        fault = fault_of(error, closed=self._primary.is_lost)
        if fault is Fault.OURS:
            raise error
        if fault is Fault.FULL:
            self._state.is_full = True
            raise StoreFull from error
        if fault is Fault.LOST:
            self._primary.renew(until_s)
        if fault is Fault.BUSY or last:
            self._primary.report(error)
            raise Unavailable from error

    def _is_time(self) -> bool:
        """Find out who is wrong about the time; tell whether this server was not."""
        assert self._time is not None
        try:
            return self._time.look(self._run) in {Verdict.AGREES, Verdict.CORRECT}
        except psycopg.Error:  # the next batch will find out what is the matter
            return False

    def _run(self, statement: str, *bounds: object) -> list[tuple[Any, ...]]:
        """Run a statement that is a transaction of its own."""
        return self._cursor.execute(statement, bounds).fetchall()

    def _begin(self, now_ms: int | None, *, exclusive: bool) -> None:
        """Begin a transaction that has a time, or None."""
        state = self._state
        lock = state.sql["exclude" if exclusive else "share"]
        statements = f"BEGIN; {lock}; {state.sql['version']}"
        shared = None if now_ms is None else self._time
        before_ns = 0 if shared is None else shared.clock.boot_ns()
        version, self.waits, *reading = self._cursor.read_numbers(statements)
        if shared is not None and now_ms is not None:
            shared.check(now_ms, reading, before_ns)
        state.exclusive = True
        if version != self._version:
            if self._version != _UNREAD:
                state.load()
                self._verbs.sessions.load()
            self._version = version
        state.exclusive = exclusive

    def _attempt(
        self, batch: Sequence[AnyCommand], now_ms: int, *, exclusive: bool
    ) -> list[c.Result]:
        state, verbs = self._state, self._verbs
        state.now_ms = now_ms
        self._begin(now_ms, exclusive=exclusive)
        if not exclusive:
            state.lock_named(batch)
        kinds = set(map(type, batch))
        if not kinds.isdisjoint(_COUNTING):
            counting: list[Any] = [each for each in batch if type(each) in _COUNTING]
            state.refresh_counts((each.account, each.queue) for each in counting)
        if not kinds.isdisjoint(_LOGGING):
            state.log.load()
        if now_ms >= state.next_lapse_ms:
            if not exclusive:
                raise NotExclusive
            verbs.claims.lapse_due(now_ms)
        results = verbs.carry_out(batch, now_ms)
        cast("SharedSessionHandlers", verbs.sessions).write()
        state.write_down(now_ms)
        if state.changed:
            ((self._version,),) = self._cursor.execute(state.sql["raise_version"])
        self._trace = self._trace_of(kinds)
        return results

    def _trace_of(self, kinds: set[type]) -> Trace:
        """Return by what the open batch is known, should its COMMIT have no answer."""
        if self._state.log.written is not None:
            return Trace(*self._state.log.written)
        if kinds <= _LOOKING:
            return Trace()
        return Trace(number=number_of(self._primary.direct))

    def commit(self) -> bool:
        """See :meth:`Store.commit`.

        A batch that the database has undone at the last moment is played again; the list that
        ``execute`` has returned then holds its new results.

        Raises:
            NotReplicated: It is committed; the wait for the standbys was cancelled.
            OutcomeUnknown: The connection was lost, and nobody can tell what became of the batch.
            Unavailable: Nothing was done.
        """
        until_s = self._primary.deadline_s()
        for left in reversed(range(_TRIES)):
            try:
                self._commit()
            except NotReplicated:
                self._state.committed()
                raise
            except psycopg.Error as error:
                if self._stands(error, until_s, last=not left):
                    break
            else:
                self._state.committed()
                break
        self._played = (), 0, []
        return True

    def try_commit(self, *, within_s: float) -> bool:
        """See :meth:`RemoteStore.try_commit`."""
        direct = self._primary.direct
        direct.set_deadline(within_s)
        try:
            self._primary.commit()
        except NotInTime:
            return False
        except psycopg.Error as error:
            self._trouble = error
            return False
        finally:
            direct.set_deadline(None)
        self._state.committed()
        self._played = (), 0, []
        return True

    def _commit(self) -> None:
        """Commit, or find again what went wrong when that was tried."""
        trouble, self._trouble = self._trouble, None
        if trouble is not None:
            raise trouble
        self._primary.commit()

    def _stands(self, error: psycopg.Error, until_s: float, *, last: bool) -> bool:
        """Find out whether the batch was committed; if not, play it again."""
        writer, trace = self._primary.writer, self._trace
        batch, now_ms, results = self._played
        try:
            self._recover(error, until_s, last=False)
        except Unavailable as unavailable:
            if self._primary.is_lost:  # so there is nobody who could be asked
                raise OutcomeUnknown from unavailable
            raise
        outcome = Outcome.UNDONE  # the database has said so
        if self._primary.writer is not writer:
            outcome = self._outcome(writer, trace)
        if outcome is Outcome.COMMITTED:
            return True
        if outcome is Outcome.UNKNOWN:
            raise OutcomeUnknown from error
        if last:
            self._primary.report(error)
            raise Unavailable from error
        results[:] = self._play(batch, now_ms, until_s)
        return False

    def _outcome(self, writer: Writer | None, trace: Trace) -> Outcome:
        """Find out what has become of a transaction of before we connected anew."""
        if writer is None or not self._primary.has_ended:
            return Outcome.UNKNOWN
        try:
            return outcome_of(self._primary.connection, writer, trace)
        except psycopg.Error:
            return Outcome.UNKNOWN

    def _undo(self) -> None:
        """Undo the open batch, in memory too: the next one reads it anew."""
        try:
            self._cursor.execute("ROLLBACK")
        except psycopg.Error:
            self._primary.drop()
        self._state.forget_batch()
        self._state.keep_turns(done=False)
        self._version = _STALE

    def _attach(self, direct: Direct) -> None:
        """Go on with a new connection."""
        self._cursor.attach(direct)
        # A standby that takes over may give out once more what it has never seen to be used.
        self._state.drop_block()
        if self._version != _UNREAD:
            self._version = _STALE

    @property
    def slot(self) -> int:
        """The number of this server among those of the database."""
        return self._state.slot

    def find_queue(self, account: str, queue: str) -> Queue | None:
        """See :meth:`Store.find_queue`."""
        entry = self._state.catalog.find(account, queue)
        return entry.queue if entry else None

    def message_counts(self) -> list[tuple[str, str, int]]:
        """See :meth:`Store.message_counts`."""
        return self._state.catalog.message_counts()

    def health(self) -> StoreHealth:
        """See :meth:`Store.health`."""
        settings = self._settings
        durable = settings["fsync"] == "on" and settings["synchronous_commit"] not in {
            "off",
            "local",
        }
        return StoreHealth(
            kind="postgres",
            durable=durable,
            writable=not self._state.is_full,
            details={
                **settings,
                "epoch": self._state.epoch,
                "schema": self._address.schema,
                "connected": int(not self._primary.is_lost),
            },
        )

    @property
    def sealing_key(self) -> bytes:
        """See :attr:`Store.sealing_key`."""
        return derive_sealing_key(self._state.receipt_key)

    def last_seen_ms(self) -> int:
        """See :meth:`Store.last_seen_ms`."""
        return self._state.last_seen_ms

    def share_limits(self, servers: int) -> None:
        """Hand out this server's part of what queues allow a second; *servers* are at work."""
        if servers != self._state.catalog.servers:
            for entry in self._state.catalog.entries():
                entry.turns = None  # what a new server did until now was not heard of
        self._state.catalog.servers = servers

    @property
    def relocated_accounts(self) -> frozenset[str]:
        """See :attr:`Store.relocated_accounts`."""
        return self._state.relocated_accounts

    def relieve(self) -> bool:
        """See :meth:`Store.relieve`. Only the next put will tell whether there is room."""
        self._state.is_full = False
        return True

    def close(self) -> None:
        """See :meth:`Store.close`."""
        self._primary.drop()


def _shares(batch: Sequence[AnyCommand], sharing: frozenset[type[AnyCommand]]) -> bool:
    """Tell whether all of a batch is among *sharing*, and none of it counts by state."""
    kinds = set(map(type, batch))
    if not sharing.issuperset(kinds):
        return False
    return c.GetQueue not in kinds or not any(
        type(each) is c.GetQueue and each.with_counts for each in batch
    )


_STALE: Final = -2
"""Version of what is in memory when a batch was undone: not that of the database."""


# --- faults ------------------------------------------------------------------------------------
#
# What an error of PostgreSQL means for the batch that met it.


class Fault(Enum):
    """What is to be done about it; the batch is undone in any case."""

    AGAIN = auto()
    """It came from what others did at the same moment: play the batch again."""
    LOST = auto()
    """This connection is of no more use: connect anew, and play the batch again."""
    FULL = auto()
    """The disk is full."""
    BUSY = auto()
    """The database cannot do that now; the same may work later."""
    OURS = auto()
    """The statement is wrong, or the database is damaged: an operator has to look into it."""


# https://www.postgresql.org/docs/current/errcodes-appendix.html
_AGAIN: Final = (errors.DeadlockDetected, errors.SerializationFailure)
_LOST: Final = (
    # The server was made read-only, or has become a standby: another host may be the primary.
    errors.ReadOnlySqlTransaction,
    # A table was changed, or what was prepared was thrown away; a new connection has neither.
    errors.FeatureNotSupported,
    errors.InvalidSqlStatementName,
)


def fault_of(error: psycopg.Error, *, closed: bool) -> Fault:
    """Return what to do about *error*.

    Args:
        error: What was raised.
        closed: Whether the connection is closed now; not every error that ends it says so.
    """
    if closed or isinstance(error, _LOST):
        return Fault.LOST
    if isinstance(error, _AGAIN):
        return Fault.AGAIN
    if isinstance(error, errors.DiskFull):
        return Fault.FULL
    if isinstance(error, psycopg.OperationalError):
        return Fault.BUSY
    return Fault.OURS
