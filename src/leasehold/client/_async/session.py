"""The session of a worker process."""

from __future__ import annotations

import logging
from types import TracebackType
from typing import Final, Self

from leasehold.client import _sessions as sessions
from leasehold.client._async.transport import AsyncTransport
from leasehold.client._background import AsyncBackground, AsyncBell
from leasehold.client._calls import Leased
from leasehold.client._sessions import SessionBook, progress_of
from leasehold.client.errors import LeaseholdClientError, SessionNotFound, SessionOver
from leasehold.client.models import Beat, CancelNotice, SessionInfo
from leasehold.client.retries import NO_RETRIES

_LEAVE_S: Final = 1.0
_END_S: Final = 2.0
_log: Final = logging.getLogger("leasehold.client")


class AsyncSession:
    """A worker process that says that it lives, once for all its leases.

    ::

        async with client.session("worker-1") as session:
            for message in await queue.receive(10, wait_s=20, session=session):
                session.progress(message, 0.5)
                if session.cancelled(message): ...

    When its heartbeats stop for longer than the timeout the session is lost: all its leases end,
    however long they are. What uses a lost session raises
    :class:`~leasehold.client.errors.SessionOver`; the heartbeats themselves raise nothing, and are
    tried again until the server says that the session is over. Made by
    :meth:`AsyncClient.session`.
    """

    def __init__(
        self,
        transport: AsyncTransport,
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
        self._bell: AsyncBell | None = None
        self._background: AsyncBackground | None = None

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

    async def open(self) -> Self:
        """Begin the session, and its heartbeats; to enter it does the same.

        Raises:
            RuntimeError: It has been opened before.
            OutOfRange: A timeout is outside its range.
        """
        if self._bell is not None:
            raise RuntimeError("a session is opened once")
        bell = self._bell = AsyncBell()
        try:
            answer = await self._transport.call(self._opening.call())
            self._book.begin(sessions.session(answer))
        except BaseException:
            self._bell = None
            raise
        if self._beats:

            async def beat_on() -> None:
                await self._beat_on(bell)

            self._background = AsyncBackground(beat_on, f"heartbeats of session {self.id}")
        return self

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def aclose(self, reason: str | None = None) -> None:
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
            await self._background.leave(_LEAVE_S)
        if is_over:
            return
        try:
            # Once, and not for long: whoever ends wants to end, and the session does so by itself.
            await self._transport.call(sessions.end_session(self._path, reason, _END_S), NO_RETRIES)
        except (LeaseholdClientError, RuntimeError) as failure:
            _log.warning("session %s could not be ended: %s", self.id, failure)

    def check(self) -> None:
        """Refuse to go on with a session that is over.

        Raises:
            SessionOver: It is lost, or somebody has ended it.
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

    async def beat(self) -> Beat:
        """Send a heartbeat now; only needed where the session sends none by itself.

        Raises:
            SessionOver: The session is lost, or somebody has ended it.
        """
        self._book.check()
        told = self._book.take_progress()
        try:
            return await self._beat(told, try_s=None)
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

    async def _beat(self, told: sessions.Told, *, try_s: float | None) -> Beat:
        began_s = self._book.now_s()
        call = sessions.heartbeat(self._path, told, try_s)
        retries = None if try_s is None else NO_RETRIES
        heard = sessions.beat(await self._transport.call(call, retries))
        self._book.heard(told, heard, began_s)
        return heard

    async def _beat_on(self, bell: AsyncBell) -> None:
        """Send heartbeats until the session is closed or over."""
        book = self._book
        pause_s: float | None = book.interval_s
        while pause_s is not None and not await bell.wait(pause_s):
            told, began_s = book.take_progress(), book.now_s()
            try:
                await self._beat(told, try_s=book.try_s)
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


def session_id_of(session: AsyncSession | str) -> str:
    """Return the id of a session that can be used.

    Raises:
        SessionOver: It is lost, or somebody has ended it.
        RuntimeError: It is closed, or not open yet.
    """
    if isinstance(session, str):
        return session
    session.check()
    return session.id
