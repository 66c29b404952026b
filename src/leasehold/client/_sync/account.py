# Made by tools/make_sync.py from ../_async: change that, and run the tool.
"""What belongs to an account and to no single queue: sessions, transactions, events."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal

from leasehold.client import _calls as calls
from leasehold.client import _events as log
from leasehold.client import _sessions as sessions
from leasehold.client import _transactions as transactions
from leasehold.client._sync.rig import Rig
from leasehold.client._sync.session import Session
from leasehold.client._sync.transaction import Transaction
from leasehold.client._sync.transport import Transport
from leasehold.client.models import (
    Committed,
    Event,
    EventPage,
    GiveBack,
    LeaseRef,
    Outgoing,
    ReceivedMessage,
    Renewal,
    SessionInfo,
    TransactionInfo,
)


class AccountPart:
    """The part of :class:`Client` that is about no single queue."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    @property
    def account(self) -> str:
        """Name of the account."""
        return self._transport.endpoint.account

    @property
    def test(self) -> Rig:
        """Time and failures of a server in test mode."""
        return Rig(self._transport)

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
                session is lost, or ended by somebody else.
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
        """End somebody's session; its leases end as interrupted. One that is over stays as it is.

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
        complete: Iterable[ReceivedMessage | LeaseRef] = (),
        release: Iterable[GiveBack] = (),
        renew: Iterable[Renewal] = (),
        publish: Iterable[str] = (),
        name: str | None = None,
    ) -> Committed:
        """Do several things in one transaction, over any queues of the account: all or nothing.

        Without a *name* a commit that got no answer is not tried again, since it may be done.

        Args:
            send: Messages to put, each with its queue.
            complete: Leased messages whose work is done, as they were received.
            release: Leased messages to give back.
            renew: Leases to renew.
            publish: Names of transactions to publish, whole.
            name: Makes the commit safe to repeat for a week: of several with one name only the
                first does anything. The names of transactions and of commits are the same kind.

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
        return commit.done(self._transport.call(commit.call(self.account)))

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
