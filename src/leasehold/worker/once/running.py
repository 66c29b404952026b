"""``once``: the body runs at the first delivery, and is skipped at the others."""

from __future__ import annotations

import functools
import inspect
import secrets
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, cast, overload

from leasehold.worker.once.guarding import Guard, Guarded
from leasehold.worker.once.keys import join_key
from leasehold.worker.once.protocol import Delivered, Processed
from leasehold.worker.once.rules import Holder, check_fence_number
from leasehold.worker.once.runs import Run
from leasehold.worker.once.transactions import History, InTransaction
from leasehold.worker.timing import SystemTime, Time

_F = TypeVar("_F", bound=Callable[..., Any])
_T = TypeVar("_T")


class Once:
    """Runs an effect at the first delivery of a message and skips it at all others.

    ::

        once = Once(SqliteProcessed("history.db"))

        @once.handler
        def handle(message):
            return charge(message.json())           # kept, and given back to repeated deliveries

        def handle(message):                        # the same by hand
            with once(message) as run:              # or: async with
                if run.first:
                    run.result = charge(message.json())

    When the body ends, the key is recorded as done; when it raises, the key is free again. While it
    runs, a newer delivery of the same message takes over at once (the lease of the older one has
    ended), and an older one gets Fenced. Another message with the same key, or the same delivery
    run a second time, waits for up to *wait_s* and then gets Busy, which is a Retry.

    **What is not promised.** Between the effect and its record the process can die, and a worker
    whose lease has ended can still be at work: then the effect happens a second time. Where both
    are in one database, :meth:`in_transaction` closes the gap; elsewhere a fenced write
    (:class:`~leasehold.worker.once.fencing.FencedTable`,
    :func:`~leasehold.worker.once.headers.fence_headers`) does.

    The window of the history has to be longer than a message can live, and than the body can run:
    what is forgotten happens again.

    Args:
        store: The history; may be left out where only :meth:`in_transaction` is used.
        step: Name of the effect, for messages that have several. Each is done once.
        wait_s: How long to wait for somebody else, in seconds; 0: not at all.
        hold_s: How long what somebody began keeps *other messages* with that key away, in seconds,
            if they neither end nor fail. None: as long as the window. The effect can happen twice
            if it is shorter than the work.
        retry_s: The delay of a Busy, in seconds.
        record_s: How long to go on trying to record what has happened while the store fails for a
            reason that may pass, in seconds; 0: one try. Then the handler gets NotRecorded.
        history: Where :meth:`in_transaction` writes.
        time: That waits are measured by.
    """

    def __init__(  # noqa: PLR0913 - settings, all but the first by name
        self,
        store: Processed | None = None,
        *,
        step: str = "",
        wait_s: float = 10.0,
        hold_s: float | None = None,
        retry_s: float = 5.0,
        record_s: float = 30.0,
        history: History | None = None,
        time: Time | None = None,
    ) -> None:
        self._step = step
        self._guard = Guard(
            store,
            time or SystemTime(),
            wait_s=wait_s,
            hold_s=hold_s,
            retry_s=retry_s,
            record_s=record_s,
        )
        if history is None:
            history = History() if store is None else History(store.window_s)
        self._history = history

    def __call__(self, message: Delivered, key: str | None = None) -> Guarded:
        """Return a context manager, for ``with`` and ``async with``, that gives a :class:`Run`.

        Args:
            message: As the handler got it.
            key: What is to be done once, if that is not the message: an order number, say, that two
                messages may be about. Keys and messages never meet.

        Raises:
            LeaseLost: On entering: the message is not held any more.
            Fenced: On entering: a newer delivery is at it. On leaving: it took over meanwhile.
            Busy: On entering; see above.
            NotRecorded: On leaving: the effect happened, and may happen again.
        """
        return Guarded(self._guard, self._identify(message, key), message)

    def call(self, message: Delivered, work: Callable[[], _T], key: str | None = None) -> _T:
        """Return what *work* returns at the first time, and the same again at the others."""
        with self(message, key) as run:
            if run.first:
                run.result = work()
        return cast("_T", run.result)

    async def acall(
        self, message: Delivered, work: Callable[[], Awaitable[_T]], key: str | None = None
    ) -> _T:
        """Do what :meth:`call` does, with an asynchronous *work*."""
        async with self(message, key) as run:
            if run.first:
                run.result = await work()
        return cast("_T", run.result)

    @overload
    def handler(self, function: _F, *, key: Callable[[Any], str] | None = None) -> _F: ...

    @overload
    def handler(
        self, function: None = None, *, key: Callable[[Any], str] | None = None
    ) -> Callable[[_F], _F]: ...

    def handler(
        self, function: _F | None = None, *, key: Callable[[Any], str] | None = None
    ) -> _F | Callable[[_F], _F]:
        """Make a handler, synchronous or not, that runs once. To be used as a decorator.

        Args:
            function: Takes the message; what it returns is kept.
            key: Makes the key of a message; see :meth:`__call__`.
        """
        if function is None:
            return lambda function: self._wrap(function, key)
        return self._wrap(function, key)

    def in_transaction(
        self, connection: Any, message: Delivered, key: str | None = None
    ) -> InTransaction:
        """Write the history into the database of the effect, so that both happen or neither.

        That is exactly once, crashes and late workers included.

        ::

            with once.in_transaction(connection, message) as run:
                if run.first:
                    connection.execute("UPDATE account SET ...")

        A transaction is begun, and committed at the end, or rolled back if the body raises. If one
        is open already, the body gets a savepoint in it, and to commit is the caller's business.
        Somebody else with the same key waits in the database until the transaction ends.

        The table must be there; see :meth:`~leasehold.worker.once.transactions.History.create`.

        Args:
            connection: A ``sqlite3.Connection``, a ``psycopg.Connection``, or, with ``async with``,
                a ``psycopg.AsyncConnection``.
            message: As the handler got it.
            key: See :meth:`__call__`.

        Raises:
            Fenced: On entering: a newer delivery of the message has done it.
            Busy: On entering: somebody is at it outside of a transaction, with the same table.
        """
        run = self._identify(message, key)
        return InTransaction(self._history, connection, run, message, self._guard.retry_s)

    @property
    def history(self) -> History:
        """Where :meth:`in_transaction` writes."""
        return self._history

    def close(self) -> None:
        """End the threads that serve asynchronous handlers. The store is left open."""
        self._guard.close()

    def _identify(self, message: Delivered, key: str | None) -> Run:
        check_fence_number(message.fence)
        source = join_key(message.queue, message.id)
        if key is None:
            full = join_key("message", message.queue, message.id, self._step)
        else:
            full = join_key("key", key, self._step)
        return Run(full, Holder(source=source, fence=message.fence, run=secrets.token_hex(8)))

    def _wrap(self, function: _F, key: Callable[[Any], str] | None) -> _F:
        def key_of(message: Any) -> str | None:
            return None if key is None else key(message)

        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def arun(message: Any) -> Any:
                return await self.acall(message, lambda: function(message), key_of(message))

            return cast("_F", arun)

        @functools.wraps(function)
        def run(message: Any) -> Any:
            return self.call(message, lambda: function(message), key_of(message))

        return cast("_F", run)
