# Made by tools/make_sync.py from ../_async: change that, and run the tool.
"""The handle on one queue."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Self, TypeVar

from msgspec import UNSET

from leasehold.client import _answers as answers
from leasehold.client import _calls as calls
from leasehold.client import _streams as streams
from leasehold.client._answers import Answer, M
from leasehold.client._calls import Call, Leased
from leasehold.client._sync.account import AccountPart, Session, session_id_of
from leasehold.client._sync.admin import QueueAdmin
from leasehold.client._sync.stream import Stream
from leasehold.client.errors import (
    GroupNotHeld,
    LeaseholdClientError,
    ServerProblem,
    SessionNotFound,
    SessionOver,
)
from leasehold.client.models import (
    DEFAULT_PRIORITY,
    DEFAULT_TIME_TO_LIVE_S,
    NEXT_GROUP,
    Completion,
    ErrorReport,
    GiveBack,
    GroupHold,
    LeaseRef,
    NewMessage,
    Outcome,
    PeekedMessage,
    Progress,
    ReceivedMessage,
    Released,
    Renewal,
    Sent,
    StreamInfo,
)
from leasehold.client.retries import NO_RETRIES
from leasehold.wire.messages import PeekRequest, ReceiveRequest

if TYPE_CHECKING:
    from leasehold.client._sync.transport import Transport

T = TypeVar("T")
R = TypeVar("R")


class QueueHandle(QueueAdmin):
    """One queue, whether it exists or not; made by :meth:`Client.queue`.

    Every method raises :class:`~leasehold.client.errors.LeaseholdClientError` or a subclass: of
    those, QueueNotFound, Unauthenticated, Forbidden, Unavailable and ConnectionFailed can come
    from any of them, and the docstrings name the others that one acts on.
    """

    @property
    def of_account(self) -> AccountPart:
        """What belongs to the queue's account: sessions, transactions, events. No request is made.

        It shares the connections of the client that this handle is from.
        """
        return AccountPart(self._transport)

    def put(  # noqa: PLR0913 - each is a part of the message
        self,
        body: str | bytes,
        *,
        delay_s: int = 0,
        time_to_live_s: int = DEFAULT_TIME_TO_LIVE_S,
        priority: int = DEFAULT_PRIORITY,
        dedup_key: str | None = None,
        type: str | None = None,  # noqa: A002 - the name on the wire
        properties: Mapping[str, str] | None = None,
        traceparent: str | None = None,
        group_id: str | None = None,
        visibility_timeout_s: int | None = None,
    ) -> Sent:
        """Put a message. When this returns it is on disk.

        A put without a *dedup_key* that got no answer is not tried again, since the message may
        be there; :class:`~leasehold.client.errors.ConnectionFailed` says so.

        Args:
            body: Text is sent as UTF-8.
            delay_s: Seconds until the message can first be received, 0 to 315,360,000 (ten years).
            time_to_live_s: Seconds until it expires, 1 to 2,147,483,647, or -1 for never.
            priority: 1 (received first) to 16 (received last).
            dedup_key: Within the queue's window a second message with this key is not put.
            type: What kind of work it is, for filters and statistics.
            properties: Names and values that travel with the body.
            traceparent: W3C trace context, ``00-...``.
            group_id: The message group that it belongs to, 1 to 128 characters.
            visibility_timeout_s: Lease of receives that name none, 1 to what the queue's setting
                ``max_message_timeout_s`` allows; None: what is set for its type or the queue.

        Raises:
            TypeError: The body is neither str nor bytes.
            OutOfRange: A number is outside its range.
            BodyTooLarge: The body is larger than the server takes.
        """
        along = dedup_key, type, properties, traceparent, group_id, visibility_timeout_s
        message = NewMessage(body, delay_s, time_to_live_s, priority, *along)
        return answers.only(self.put_many([message]))

    def put_many(
        self, messages: Iterable[NewMessage | str | bytes], *, atomic: bool = False
    ) -> list[Sent | ServerProblem]:
        """Put messages, and return for each what became of it, in the same order.

        Args:
            messages: Any number; they go out 10,000 or 8 MiB at a time.
            atomic: All or none, in one request of at most 10,000.

        Raises:
            TypeError: A body is neither str nor bytes.
            LeaseholdClientError: A whole request was refused or got no answer;
                ``results_so_far`` has the results of those before it.
        """
        return self._in_turn(calls.put_calls(self._path, messages, atomic=atomic), answers.sent)

    def receive(  # noqa: PLR0913 - keyword-only, and each is a choice of its own
        self,
        max_messages: int = 1,
        *,
        visibility_timeout_s: int | None = None,
        wait_s: float = 0,
        holder: str | None = None,
        session: Session | str | None = None,
        group: str | None = None,
    ) -> list[ReceivedMessage]:
        """Lease messages: they are invisible to others until completed, released or overdue.

        A receive that got no answer is not tried again: what it may have leased comes back when
        the lease ends.

        Args:
            max_messages: 1 to 10,000. Take no more than you can begin to work on at once.
            visibility_timeout_s: Length of the leases in seconds, 1 to 604,800; None: each message
                has its own, which its producer named or which is set for its type or the queue.
            wait_s: Seconds to wait for a first message if there is none, 0 to 60.
            holder: Who you are, for those who look at the message meanwhile.
            session: The session, or its id, that the leases belong to: they end with it. Its
                holder takes the place of *holder*.
            group: Only messages of this message group, or of :data:`~leasehold.client.models.\
                NEXT_GROUP`: the session holds it alone from then on, see :meth:`hold_group`. While
                another session does there is nothing. None: of whatever group no session holds.

        Returns:
            The messages; none if there are none, or the queue is paused.

        Raises:
            OutOfRange: A number is outside its range.
            SessionOver: The session is lost or was ended. Drop its work.
            NoGroups: The settings of the queue do not speak of groups.
            RuntimeError: The session is closed, or was not opened.
        """
        request = ReceiveRequest(
            max_messages,
            visibility_timeout_s,
            wait_s or None,
            holder,
            None if session is None else session_id_of(session),
            group or None,
            group == NEXT_GROUP,
        )
        call = calls.receive(self._path, request)
        try:
            return answers.received(self._transport.call(call), self.name)
        except (SessionOver, SessionNotFound) as error:
            if isinstance(session, Session):
                raise session.note_over(error) from error
            raise

    def hold_group(self, group: str = NEXT_GROUP, *, session: Session | str) -> HeldGroup | None:
        """Take a message group for a session alone: no other consumer gets messages of it.

        It is the session's until that is over or releases it. A session that holds the group
        already is given the same hold, with what is saved by now.

        Args:
            group: Its name; NEXT_GROUP: whichever has its turn and something to give.
            session: The session, or its id.

        Returns:
            The group; None if another session holds it, or no group has anything to give.

        Raises:
            SessionOver: The session is lost or was ended.
            NoGroups: The settings of the queue do not speak of groups.
            RuntimeError: The session is closed, or was not opened.
        """
        call = calls.hold_group(self._path, session_id_of(session), group or None)
        try:
            hold, state = answers.held_group(self._transport.call(call))
        except (SessionOver, SessionNotFound) as error:
            if isinstance(session, Session):
                raise session.note_over(error) from error
            raise
        return None if hold is None else HeldGroup(self, self._transport, session, hold, state)

    def peek(self, max_messages: int = 32) -> list[PeekedMessage]:
        """Look at up to *max_messages* (1 to 1,000) that could be received, and lease none."""
        path = f"{self._path}/messages/peek"
        call = calls.send("POST", path, PeekRequest(max_messages), repeatable=True)
        return answers.peeked(self._transport.call(call))

    def renew(  # noqa: PLR0913 - keyword-only, and each is a choice of its own
        self,
        message: M,
        visibility_timeout_s: int,
        *,
        body: str | bytes | None = None,
        progress: Progress | None = None,
        saved: Any = UNSET,
        timeout_s: float | None = None,
    ) -> M:
        """Move the end of a lease, and return the message with its new receipt.

        The old receipt is dead from then on: go on with what this returns.

        Args:
            message: The message as it was received or last renewed.
            visibility_timeout_s: Seconds from now, 0 to 604,800; 0 makes it visible at once.
            body: Replaces the body; None: leave it.
            progress: How far you have come, for people; None: leave what was said before. It is
                gone with the lease.
            saved: Whatever JSON can say, up to 65,536 bytes, for whoever receives the message next:
                it stays with the message, in place of what was saved before. None removes that;
                left out, it stays.
            timeout_s: Send each request once only, and give it up after so many seconds without a
                byte, if that is less than the client's limit: a repeat could outlive the lease,
                and would find the receipt replaced if only the answer got lost. None: as the client
                was told.

        Raises:
            LeaseLost: Another worker has the message: stop working on it. Also if the answer to an
                earlier try got lost, because its new receipt is then unknown.
            MessageNotFound: It is completed, removed or expired.
            OutOfRange: The number is outside its range, or *saved* is too large.
            TypeError: *saved* is not what JSON can say.
            ValueError: *timeout_s* is not above 0.
        """
        renewed = self.renew_many(
            [message],
            visibility_timeout_s,
            body=body,
            progress=progress,
            saved=saved,
            timeout_s=timeout_s,
        )
        return answers.only(renewed)

    def renew_many(  # noqa: PLR0913 - keyword-only, and each is a choice of its own
        self,
        messages: Iterable[M],
        visibility_timeout_s: int,
        *,
        body: str | bytes | None = None,
        progress: Progress | None = None,
        saved: Any = UNSET,
        timeout_s: float | None = None,
        atomic: bool = False,
    ) -> list[M | ServerProblem]:
        """Renew many leases; see :meth:`renew` and, for the rest, :meth:`put_many`."""
        encode = calls.renewal(visibility_timeout_s, body, progress, saved)
        return self._in_turn(
            calls.settling_calls(self._path, "renew", messages, encode, atomic=atomic),
            lambda answer, chunk: answers.renewed(answer, chunk, body, saved),
            timeout_s,
        )

    def renew_each(
        self,
        renewals: Iterable[Renewal],
        *,
        timeout_s: float | None = None,
        atomic: bool = False,
    ) -> list[ReceivedMessage | LeaseRef | ServerProblem]:
        """Renew many leases, each with progress of its own; see :meth:`renew_many`."""
        parts = calls.renewal_calls(self._path, renewals, atomic=atomic)
        return self._in_turn(parts, answers.renewed_each, timeout_s)

    def complete(self, message: Leased, *, result: Any = None) -> None:
        """Remove a message whose work is done.

        Args:
            message: Whatever has its ``id`` and ``receipt``.
            result: What came of the work, for the event log: what JSON can say, of at most 16,384
                bytes. None: nothing.

        Raises:
            LeaseLost: Another worker has it by now, and will do the work again.
            MessageNotFound: It is gone already. Not raised where an earlier try of this very call
                got no answer and may have completed it.
        """
        if result is not None:
            message = Completion(LeaseRef(message.id, message.receipt), result)
        answers.only(self.complete_many([message]))

    def complete_many(
        self,
        messages: Iterable[Leased],
        *,
        atomic: bool = False,
        timeout_s: float | None = None,
    ) -> list[ServerProblem | None]:
        """Complete many messages; the result is None for each that is done.

        A :class:`~leasehold.client.models.Completion` among them tells what came of the work. See
        :meth:`complete`, :meth:`renew` for *timeout_s* and, for the rest, :meth:`put_many`.
        """
        parts = calls.settling_calls(
            self._path, "complete", messages, calls.completion, atomic=atomic
        )
        return self._in_turn(parts, answers.completed, timeout_s)

    def release(
        self,
        message: Leased,
        *,
        outcome: Outcome = "returned",
        delay_s: int | None = None,
        error: ErrorReport | BaseException | str | None = None,
    ) -> Released:
        """Give a message back, so that another worker can take it.

        Args:
            message: Whatever has its ``id`` and ``receipt``.
            outcome: ``failed`` counts against the queue's budget of failures, ``interrupted``
                (the worker has to stop) and ``returned`` do not; ``buried``: see :meth:`bury`.
            delay_s: Seconds until it can be received again, 0 to 315,360,000; None: the queue's
                back-off after a failure, and at once otherwise.
            error: What went wrong; kept with the message for those who look at it.

        Raises:
            LeaseLost: Another worker has it by now.
            MessageNotFound: It is completed, removed or expired.
            OutOfRange: The number is outside its range.
        """
        return answers.only(
            self.release_many([message], outcome=outcome, delay_s=delay_s, error=error)
        )

    def release_many(  # noqa: PLR0913 - keyword-only, and each is a choice of its own
        self,
        messages: Iterable[Leased],
        *,
        outcome: Outcome = "returned",
        delay_s: int | None = None,
        error: ErrorReport | BaseException | str | None = None,
        atomic: bool = False,
        timeout_s: float | None = None,
    ) -> list[Released | ServerProblem]:
        """Give many messages back.

        See :meth:`release`, :meth:`renew` for *timeout_s* and, for the rest,
        :meth:`put_many`.
        """
        report = None if error is None else ErrorReport.of(error)
        encode = calls.giving_back(outcome, delay_s, report)
        parts = calls.settling_calls(self._path, "release", messages, encode, atomic=atomic)
        return self._in_turn(parts, answers.released, timeout_s)

    def release_each(
        self,
        releases: Iterable[GiveBack],
        *,
        atomic: bool = False,
        timeout_s: float | None = None,
    ) -> list[Released | ServerProblem]:
        """Give many messages back, each for a reason of its own; see :meth:`release_many`."""
        parts = calls.release_calls(self._path, releases, atomic=atomic)
        return self._in_turn(parts, answers.released, timeout_s)

    def bury(
        self,
        message: Leased,
        error: ErrorReport | BaseException | str | None = None,
        *,
        timeout_s: float | None = None,
    ) -> Released:
        """Send a message to the poison queue, whatever its budgets say.

        See :meth:`release`, and :meth:`renew` for *timeout_s*.
        """
        return answers.only(
            self.release_many([message], outcome="buried", error=error, timeout_s=timeout_s)
        )

    def _in_turn(
        self,
        parts: Iterable[tuple[Call, list[T]]],
        read: Callable[[Answer, list[T]], list[R]],
        timeout_s: float | None = None,
    ) -> list[R]:
        """Make calls one after the other; the error of one has the results of those before it."""
        results: list[R] = []
        retries = None if timeout_s is None else NO_RETRIES
        for call, chunk in parts:
            once = calls.sent_once(call, timeout_s)
            try:
                results += read(self._transport.call(once, retries), chunk)
            except LeaseholdClientError as error:
                error.results_so_far = tuple(results)
                raise
        return results

    def put_body(  # noqa: PLR0913 - each is a part of the message
        self,
        body: bytes,
        *,
        delay_s: int = 0,
        time_to_live_s: int = DEFAULT_TIME_TO_LIVE_S,
        priority: int = DEFAULT_PRIORITY,
        dedup_key: str | None = None,
        type: str | None = None,  # noqa: A002 - the name on the wire
        group_id: str | None = None,
        visibility_timeout_s: int | None = None,
    ) -> Sent:
        """Put a message with a large body, which travels as it is and in a request of its own.

        How large it may be is the queue's setting ``max_body_bytes``. For the rest see
        :meth:`put`.
        """
        numbers = delay_s, time_to_live_s, priority
        message = NewMessage(
            *(body, *numbers, dedup_key, type),
            group_id=group_id,
            visibility_timeout_s=visibility_timeout_s,
        )
        call = calls.put_body(self._path, message)
        return answers.sent_alone(self._transport.call(call))

    def get_body(self, message_id: str) -> bytes:
        """Return the body of a message in whatever state, as it is.

        Raises:
            MessageNotFound: It was never there, or is completed, removed or expired.
        """
        path = f"{calls.message_path(self._path, message_id)}/body"
        return (self._transport.call(calls.get(path, accept=calls.OCTETS))).content

    def stream(self, name: str, *, token: int | None = None) -> Stream:
        """Return a handle on a stream of claims, which need not exist. No request is made.

        Args:
            name: 1 to 256 of A-Z, a-z, 0-9 and ``. _ : ~ -``.
            token: What an attach has given, perhaps in another process; None: attach, or only
                look.

        Raises:
            ValueError: The name is empty or consists of dots.
        """
        return Stream(self._transport, self.name, name, token)

    def streams(self) -> list[StreamInfo]:
        """Return the queue's streams by name, with their claims."""
        return streams.streams(self._transport.call(calls.get(f"{self._path}/streams")))


# --- held groups -------------------------------------------------------------------------------


class HeldGroup:
    """A message group that a session has to itself, and what is saved for it.

    ::

        with client.session("worker-1") as session:
            group = queue.hold_group(session=session)
            with group:
                for message in group.receive(10, wait_s=20):
                    ...
                    queue.complete(message)
                group.save(b"seven seen")

    As a context manager it releases the group at the end. Made by
    :meth:`QueueHandle.hold_group`.
    """

    def __init__(
        self,
        queue: QueueHandle,
        transport: Transport,
        session: Session | str,
        hold: GroupHold,
        state: bytes,
    ) -> None:
        self._queue = queue
        self._path = calls.queue_path(transport.endpoint.account, queue.name)
        self._transport = transport
        self._session = session
        self.hold = hold
        """Which group, since when, and the fence of the hold, to carry into writes elsewhere."""
        self.state = state
        """What was saved for the group, up to 65,536 bytes; empty for nothing."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.group_id!r} of {self._queue.name!r}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(GroupNotHeld, SessionOver, SessionNotFound):
            self.release()

    @property
    def group_id(self) -> str:
        """The name of the group."""
        return self.hold.group_id

    @property
    def fence(self) -> int:
        """Higher than that of all holds before, of whatever group."""
        return self.hold.fence

    def receive(
        self,
        max_messages: int = 1,
        *,
        visibility_timeout_s: int | None = None,
        wait_s: float = 0,
    ) -> list[ReceivedMessage]:
        """Lease messages of the group; see :meth:`QueueHandle.receive`.

        If the session has lost the group meanwhile and no other has it, it is taken again, under
        another fence: what is saved with the old one is refused then.
        """
        return self._queue.receive(
            max_messages,
            visibility_timeout_s=visibility_timeout_s,
            wait_s=wait_s,
            session=self._session,
            group=self.group_id,
        )

    def save(self, state: bytes) -> None:
        """Keep some bytes for whoever holds the group next, in place of what was kept.

        Args:
            state: Up to 65,536 bytes; none to keep nothing.

        Raises:
            GroupNotHeld: Another session holds the group by now, or none.
            OutOfRange: It is too long.
        """
        session = session_id_of(self._session)
        call = calls.save_group_state(self._path, self.group_id, session, self.fence, state)
        self._transport.call(call)
        self.state = state

    def release(self) -> None:
        """Hold the group no more; what is leased of it stays on lease.

        Raises:
            GroupNotHeld: The session does not hold it any more.
        """
        session = session_id_of(self._session)
        self._transport.call(calls.release_group(self._path, self.group_id, session))
