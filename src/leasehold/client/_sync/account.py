# Made by tools/make_sync.py from ../_async: change that, and run the tool.
"""What belongs to an account and to no single queue: sessions, transactions, events."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Final, Literal, Self

from leasehold.client import _calls as calls
from leasehold.client import _sessions as events
from leasehold.client import _sessions as log
from leasehold.client import _sessions as sessions
from leasehold.client import _streams as transactions
from leasehold.client._background import Background, Bell
from leasehold.client._calls import Leased
from leasehold.client._sessions import SessionBook, progress_of
from leasehold.client._sync.stream import Transaction
from leasehold.client.errors import LeaseholdClientError, SessionNotFound, SessionOver
from leasehold.client.models import (
    Beat,
    CancelNotice,
    Committed,
    Completion,
    Event,
    EventPage,
    Faults,
    GiveBack,
    LeaseRef,
    Outgoing,
    PipelineReport,
    ReceivedMessage,
    Renewal,
    SessionInfo,
    TransactionInfo,
)
from leasehold.client.retries import NO_RETRIES

if TYPE_CHECKING:
    from leasehold.client._sync.transport import Transport


class AccountPart:
    """The part of :class:`Client` that is about no single queue."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    @property
    def account(self) -> str:
        """Name of the account."""
        return self._transport.endpoint.account

    @property
    def test(self) -> TestControl:
        """Time and failures of a server in test mode."""
        return TestControl(self._transport)

    def report_pipeline(self, name: str, report: PipelineReport) -> None:
        """Say how a pipeline is doing, for those who watch in the console.

        Args:
            name: Of the pipeline: 1 to 256 of A-Z, a-z, 0-9 and ``. _ : ~ -``.
            report: Takes the place of what was reported before.

        Raises:
            InvalidRequest: The name, or what is reported, is not as it must be.
        """
        path = f"{calls.account_path(self.account)}/pipelines/{calls.path_segment('name', name)}"
        self._transport.call(calls.send("PUT", path, report, repeatable=True))

    # --- sessions ---

    def session(  # noqa: PLR0913 - keyword-only, and each is a choice of its own
        self,
        holder: str,
        *,
        timeout_s: int | None = None,
        progress_timeout_s: int | None = None,
        heartbeat: Literal["thread", "task"] | None = "thread",
        on_cancel: sessions.OnCancel | None = None,
        on_lost: sessions.OnLost | None = None,
        on_lease_lost: sessions.OnLeaseLost | None = None,
    ) -> Session:
        """Return a session, which is open once it is entered: ``with client.session(...)``.

        It sends a heartbeat every quarter of its timeout until it is closed. The client for threads
        has a daemon thread for that, the client for the event loop a task, which a handler that
        blocks the loop keeps waiting. No request is made yet.

        Args:
            holder: Who you are, up to 1,024 characters; the holder of all its leases.
            timeout_s: Seconds without a heartbeat after which it is lost and all its leases end, 2
                to 3,600; None: 16, so that a stall of 10 seconds loses nothing.
            progress_timeout_s: Seconds without progress after which the server ends a lease, 5 to
                604,800; None: never. Heartbeats then come every quarter of this at least.
            heartbeat: ``thread`` or ``task``: in the background, as said above, whichever word it
                is. None: you call :meth:`Session.beat` yourself.
            on_cancel: Called with a :class:`~leasehold.client.models.CancelNotice` when an operator
                wants the work on a message stopped. Like the others it is called from where the
                heartbeats are sent, and must not take long.
            on_lost: Called once with the :class:`~leasehold.client.errors.SessionOver` when the
                session is lost, or ended by another client.
            on_lease_lost: Called with the id of a message whose progress was told and which is not
                on a lease of this session any more.

        Raises:
            ValueError: *heartbeat* is none of these.
        """
        if heartbeat not in {"thread", "task", None}:
            raise ValueError(f"heartbeat is 'thread', 'task' or None, not {heartbeat!r}")
        opening = sessions.Opening(
            account=self.account,
            holder=holder,
            timeout_s=timeout_s,
            progress_timeout_s=progress_timeout_s,
        )
        book = sessions.SessionBook(
            on_cancel=on_cancel, on_lost=on_lost, on_lease_lost=on_lease_lost
        )
        return Session(self._transport, opening, book, beats=heartbeat is not None)

    def list_sessions(self) -> list[SessionInfo]:
        """Return the account's sessions, the newest first; those over are kept for an hour."""
        path = sessions.sessions_path(self.account)
        return sessions.sessions(self._transport.call(calls.get(path)))

    def get_session(self, session_id: str) -> SessionInfo:
        """Look at a session.

        Raises:
            SessionNotFound: There is none, or it was over for long.
        """
        path = sessions.session_path(self.account, session_id)
        return sessions.session(self._transport.call(calls.get(path)))

    def end_session(self, session_id: str, reason: str | None = None) -> SessionInfo:
        """End the session of any worker; its leases end as interrupted. One that is over stays as
        it is.

        Args:
            session_id: Which.
            reason: For those who look at it later, and for its worker.

        Raises:
            SessionNotFound: There is none, or it was over for long.
        """
        path = sessions.session_path(self.account, session_id)
        call = sessions.end_session(path, reason)
        return sessions.session(self._transport.call(call))

    # --- transactions ---

    def transaction(self, name: str) -> Transaction:
        """Return a handle on a transaction, of which nothing need be staged. No request is made.

        Args:
            name: 1 to 256 of A-Z, a-z, 0-9 and ``. _ : ~ -``.

        Raises:
            ValueError: The name is empty or consists of dots.
        """
        return Transaction(self._transport, name)

    def transactions(
        self, state: Literal["staged", "published"] | None = None, *, limit: int = 100
    ) -> list[TransactionInfo]:
        """Return transactions by name.

        Args:
            state: Only those that are so; None: all.
            limit: How many at most, 1 to 1,000.
        """
        call = transactions.list_transactions(self.account, state, limit)
        return transactions.transactions(self._transport.call(call))

    def commit(  # noqa: PLR0913 - keyword-only, and each is a choice of its own
        self,
        *,
        send: Iterable[Outgoing] = (),
        complete: Iterable[ReceivedMessage | LeaseRef | Completion] = (),
        release: Iterable[GiveBack] = (),
        renew: Iterable[Renewal] = (),
        publish: Iterable[str] = (),
        name: str | None = None,
        timeout_s: float | None = None,
    ) -> Committed:
        """Do several things in one transaction, over any queues of the account: all or nothing.

        Without a *name* a commit that got no answer is not tried again, since it may be done.

        Args:
            send: Messages to put, each with its queue.
            complete: Leased messages whose work is done, as they were received; a
                :class:`~leasehold.client.models.Completion` also tells what came of it.
            release: Leased messages to give back.
            renew: Leases to renew.
            publish: Names of transactions to publish, whole.
            name: Makes the commit safe to repeat for a week: of several with one name only the
                first does anything. The names of transactions and of commits are the same kind.
            timeout_s: Send the request once only, and give it up after so many seconds without a
                byte from the server; None: as the client does.

        Raises:
            LeaseLost: A receipt is not the current one. Nothing was done; so for all refusals.
            MessageNotFound: A message is completed, removed or expired.
            QueueNotFound: A queue is not there.
            StagedNotFound: A transaction to be published is unknown.
            TypeError: A message to be sent does not say for which queue.
            ValueError: A leased message does not say from which queue.
        """
        commit = transactions.Commit(
            sends=tuple(send),
            completes=tuple(complete),
            releases=tuple(release),
            renews=tuple(renew),
            publish=tuple(publish),
            name=name,
        )
        call = calls.sent_once(commit.call(self.account), timeout_s)
        retries = None if timeout_s is None else NO_RETRIES
        return commit.done(self._transport.call(call, retries))

    # --- events ---

    def events(self, after: int = 0, *, page_size: int = 1_000) -> Iterator[Event]:
        """Yield the account's events, the oldest first, up to the newest there is.

        Args:
            after: Begin after the batch with this ``seq``; 0: with the oldest that is kept.
            page_size: How many are fetched at once, 1 to 10,000.
        """
        while True:
            page = self.event_page(after, limit=page_size)
            yield from page.events
            if page.finished:
                return
            after = page.next_after

    def event_page(self, after: int = 0, *, limit: int = 1_000) -> EventPage:
        """Return some events, for those who want to go on later where they have stopped.

        Args:
            after: ``next_after`` of the page before; 0: the oldest that are kept.
            limit: How many, 1 to 10,000; all of the last one's batch come along.
        """
        return log.page(self._transport.call(log.events(self.account, after, limit)))


# --- session -----------------------------------------------------------------------------------
#
# The session of a worker process.


_LEAVE_S: Final = 1.0
_END_S: Final = 2.0
_log: Final = logging.getLogger("leasehold.client")


class Session:
    """A worker process that says that it lives, once for all its leases.

    ::

        with client.session("worker-1") as session:
            for message in queue.receive(10, wait_s=20, session=session):
                session.progress(message, 0.5)
                if session.cancelled(message): ...

    When its heartbeats stop for longer than the timeout the session is lost: all its leases end,
    however long they are. What uses a lost session raises
    :class:`~leasehold.client.errors.SessionOver`; the heartbeats themselves raise nothing, and are
    tried again until the server says that the session is over. Made by
    :meth:`Client.session`.
    """

    def __init__(
        self,
        transport: Transport,
        opening: sessions.Opening,
        book: SessionBook,
        *,
        beats: bool,
    ) -> None:
        """*beats*: whether it sends heartbeats by itself."""
        self._transport = transport
        self._opening = opening
        self._book = book
        self._beats = beats
        self._bell: Bell | None = None
        self._background: Background | None = None

    def __repr__(self) -> str:
        shown = self.id if self._book.info is not None else "not open"
        return f"<{type(self).__name__} {shown} holder={self._opening.holder!r}>"

    @property
    def id(self) -> str:
        """The id that the server has given it. RuntimeError: it is not open yet."""
        return self._book.id

    @property
    def holder(self) -> str:
        """What the worker calls itself."""
        return self._opening.holder

    @property
    def info(self) -> SessionInfo | None:
        """The session as it was opened; None before that."""
        return self._book.info

    @property
    def until_ms(self) -> int:
        """When it is lost unless there is another heartbeat, by the server's clock."""
        return self._book.until_ms

    @property
    def is_lost(self) -> bool:
        """Whether the server has said that it is over: silent for too long, or ended by others."""
        return self._book.is_over

    @property
    def is_overdue(self) -> bool:
        """Whether no heartbeat was answered for longer than the timeout.

        It may be lost then, and not know yet: begin nothing new.
        """
        return self._book.is_overdue

    def open(self) -> Self:
        """Begin the session, and its heartbeats; to enter it does the same.

        Raises:
            RuntimeError: It has been opened before.
            OutOfRange: A timeout is outside its range.
        """
        if self._bell is not None:
            raise RuntimeError("a session is opened once")
        bell = self._bell = Bell()
        try:
            answer = self._transport.call(self._opening.call())
            self._book.begin(sessions.session(answer))
        except BaseException:
            self._bell = None
            raise
        if self._beats:

            def beat_on() -> None:
                self._beat_on(bell)

            self._background = Background(beat_on, f"heartbeats of session {self.id}")
        return self

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self, reason: str | None = None) -> None:
        """End the session; leases that it still has end as interrupted.

        If the server cannot be told, the session is lost by itself after its timeout. A second
        time does nothing.

        Args:
            reason: For those who look at the session later.
        """
        book = self._book
        if book.is_closed or book.info is None:
            return
        is_over, book.is_closed = book.is_over, True
        if self._bell is not None:
            self._bell.ring()
        if self._background is not None:
            self._background.leave(_LEAVE_S)
        if is_over:
            return
        try:
            # Once, and not for long: whoever ends wants to end, and the session does so by itself.
            self._transport.call(sessions.end_session(self._path, reason, _END_S), NO_RETRIES)
        except (LeaseholdClientError, RuntimeError) as failure:
            _log.warning("session %s could not be ended: %s", self.id, failure)

    def check(self) -> None:
        """Refuse to go on with a session that is over.

        Raises:
            SessionOver: It is lost, or was ended.
            RuntimeError: It is closed, or not open yet.
        """
        self._book.check()

    def progress(
        self, message: Leased | str, fraction: float | None = None, note: str | None = None
    ) -> None:
        """Say how far a message is; it is told with the next heartbeat.

        Args:
            message: The message, or its id.
            fraction: 0 to 1.
            note: What is being done, for those who look. With neither: only that it gets on,
                which is enough for the watchdog.

        Raises:
            SessionOver: The session is lost: stop working.
            ValueError: The fraction is not between 0 and 1.
        """
        self._book.note_progress(message, progress_of(fraction, note))

    def cancelled(self, message: Leased | str) -> CancelNotice | None:
        """Return an operator's wish that the work on a message be stopped, None if there is none.

        It is known from the latest heartbeat.

        Args:
            message: The message, or its id.

        Raises:
            SessionOver: The session is lost: stop working.
        """
        return self._book.cancelled(message)

    def beat(self) -> Beat:
        """Send a heartbeat now; only needed where the session sends none by itself.

        Raises:
            SessionOver: The session is lost, or was ended.
        """
        self._book.check()
        told = self._book.take_progress()
        try:
            return self._beat(told, try_s=None)
        except (SessionOver, SessionNotFound) as failure:
            raise self._book.note_over(failure) from failure
        except LeaseholdClientError as failure:
            self._book.missed(told, failure)
            raise

    def note_over(self, failure: SessionOver | SessionNotFound) -> SessionOver:
        """Take note that the server has refused something because the session is over.

        Args:
            failure: What it said.

        Returns:
            The error to raise.
        """
        return self._book.note_over(failure)

    @property
    def _path(self) -> str:
        return sessions.session_path(self._transport.endpoint.account, self.id)

    def _beat(self, told: sessions.Told, *, try_s: float | None) -> Beat:
        began_s = self._book.now_s()
        call = sessions.heartbeat(self._path, told, try_s)
        retries = None if try_s is None else NO_RETRIES
        heard = sessions.beat(self._transport.call(call, retries))
        self._book.heard(told, heard, began_s)
        return heard

    def _beat_on(self, bell: Bell) -> None:
        """Send heartbeats until the session is closed or over."""
        book = self._book
        pause_s: float | None = book.interval_s
        while pause_s is not None and not bell.wait(pause_s):
            told, began_s = book.take_progress(), book.now_s()
            try:
                self._beat(told, try_s=book.try_s)
                left_s = book.interval_s - (book.now_s() - began_s)
                pause_s = 0.0 if book.has_more else max(0.0, left_s)
            except LeaseholdClientError as failure:
                _log.debug("heartbeat of session %s: %s", self.id, failure)
                pause_s = book.missed(told, failure)
            except Exception:  # noqa: BLE001 - whatever it is, the session must live on
                if self._transport.is_closed:
                    return
                # Such as a provider of tokens that fails. The session lives as long as it can.
                _log.exception("heartbeat of session %s", self.id)
                book.keep_progress(told)
                pause_s = book.retry_s


def session_id_of(session: Session | str) -> str:
    """Return the id of a session that can be used.

    Raises:
        SessionOver: It is lost, or was ended.
        RuntimeError: It is closed, or not open yet.
    """
    if isinstance(session, str):
        return session
    session.check()
    return session.id


# --- rig ---------------------------------------------------------------------------------------
#
# What a server in test mode can be told: to let time pass, and to fail.


class TestControl:
    """Time and failures of a server that was started for tests; see :attr:`Client.test`.

    A server in another mode answers ``no-such-route`` to all of it.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def now_ms(self) -> int:
        """Return the server's time, Unix milliseconds."""
        return events.now_ms(self._transport.call(calls.get(events.CLOCK)))

    def advance(self, seconds: float) -> int:
        """Let time pass on the server, and return its time then, Unix milliseconds.

        Args:
            seconds: How much, 0 to 315,360,000 (ten years).
        """
        return events.now_ms(self._transport.call(events.advance(seconds)))

    def faults(
        self,
        *,
        fail_commits: int = 0,
        delay_answers_s: float = 0,
        drop_answers: int = 0,
    ) -> Faults:
        """Have the server fail from now on, in place of what was said before.

        Args:
            fail_commits: So many commits fail, 0 to 1,000,000.
            delay_answers_s: Every answer is held back so long, 0 to 60 seconds.
            drop_answers: So many requests are carried out and get no answer, 0 to 1,000,000.
        """
        wanted = Faults(
            fail_commits=fail_commits, delay_answers_s=delay_answers_s, drop_answers=drop_answers
        )
        return events.faults(self._transport.call(events.set_faults(wanted)))

    def get_faults(self) -> Faults:
        """Return what is left to fail."""
        return events.faults(self._transport.call(calls.get(events.FAULTS)))

    def clear_faults(self) -> None:
        """Have the server fail no more."""
        self._transport.call(events.clear_faults())
