"""A queue of a Leasehold server, through the server's native API."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final, TypeVar, cast

from msgspec import UNSET, UnsetType

from leasehold.client import Client, QueueHandle
from leasehold.client import errors as native
from leasehold.client.errors import LeaseholdClientError, MessageNotFound, OutOfRange, ServerProblem
from leasehold.client.handles import Session
from leasehold.client.models import (
    DEFAULT_TIME_TO_LIVE_S,
    Completion,
    ErrorReport,
    GiveBack,
    LeaseRef,
    NewMessage,
    Progress,
    ReceivedMessage,
    Renewal,
)
from leasehold.client.models import Outgoing as Sending
from leasehold.worker.adapters.envelope import (
    MARKER,
    EnvelopeForm,
    ProgressForm,
    UnreadableEnvelope,
    looks_wrapped,
    read_saved,
    saved_members,
    wrap,
)
from leasehold.worker.adapters.fallbacks import Adapter, life_s, request_timeout_s
from leasehold.worker.adapters.protocol import (
    AS_SET,
    BodyTooLarge,
    Capabilities,
    Delivery,
    Denied,
    Depth,
    Fault,
    Forward,
    Lease,
    LeaseGone,
    Outgoing,
    PastExpiry,
    QueueError,
    QueueMissing,
    Release,
    Renewed,
    Saved,
    SetAside,
    Tried,
    Unauthenticated,
    Unreachable,
    WorkerSession,
)
from leasehold.worker.adapters.specs import QueueSpec
from leasehold.worker.call_batcher import CallBatcher

LEASEHOLD: Final = Capabilities(
    service="leasehold",
    max_receive=10_000,
    max_settle=10_000,
    min_lease_s=1,
    max_lease_s=604_800,
    max_wait_s=60,
    max_body_bytes=None,
    fences=True,
    sessions=True,
    claims=True,
    server_poison=True,
    saves="beside",
    counts_returns=True,
    counts_failures=True,
    tells_lengths=True,
    tells_order=True,
    forwards=True,
)
"""What the native API can do."""
_IN_BODIES: Final = replace(LEASEHOLD, saves="in_body", forwards=False)

_MARKER: Final = MARKER.encode()
_SHORTEST_SESSION_S: Final = 2
_CANCELLED: Final = "requested by an operator"
_ONCE_S: Final = math.inf
"""As long as the client waits for an answer, and no second try."""
_MAX_LOOKS: Final = 4
"""Missing messages looked up in a call: after a purge all of a batch are missing."""
_LAPSES: Final = ("lapsed", "lost", "stuck")
"""How an attempt ends that its worker has not ended."""
_R = TypeVar("_R")


class NativeQueue(Adapter):
    """A queue of a Leasehold server.

    ::

        queue = NativeQueue(client.queue("orders"))

    Progress is kept beside the body, up to 65,536 bytes of JSON, and the body stays as it was put.
    What an earlier version kept in a body, in the envelope of
    :mod:`leasehold.worker.adapters.envelope`, is still read, and so are such bodies from others.
    The fraction and the stage are told to the server as well, for people who look.

    Saves of several threads at the same time share a request, as completions do in a worker.
    Renewals, saves and receives are sent once; the client's own retries could outlive a lease. So
    is what settles a message within a time of its own, as workers do. The rest is tried again as
    the client was told to.

    Args:
        queue: The handle; its client stays the caller's.
        form: How progress is written into bodies, where others read it there; body and progress
            together must then not be longer than the queue takes. None: it is kept beside them.
    """

    def __init__(self, queue: QueueHandle, *, form: ProgressForm | None = None) -> None:
        super().__init__(queue.name, LEASEHOLD if form is None else _IN_BODIES)
        self._queue = queue
        self._form = form
        self._saver = Saver(queue)
        self._own: Client | None = None

    @classmethod
    def from_connection_string(
        cls,
        connection: str | UnsetType,
        queue: str,
        *,
        form: ProgressForm | None = None,
        timeout_s: float = 30.0,
    ) -> NativeQueue:
        """Open a queue with a client of its own, which is closed with it.

        Args:
            connection: As :meth:`leasehold.client.Client.from_connection_string` takes it; UNSET
                as if that were called without it.
            queue: Name of the queue.
            form: As for the constructor.
            timeout_s: Seconds without a byte from the server after which a try has failed.

        Raises:
            InvalidConnectionString: It cannot be used.
        """
        client = Client.from_connection_string(connection, timeout_s=timeout_s)
        made = cls(client.queue(queue), form=form)
        made._own = client
        made.spec = QueueSpec(
            service="leasehold", queue=queue, connection="" if connection is UNSET else connection
        )
        return made

    def receive(
        self,
        max_messages: int,
        *,
        visibility_timeout_s: int,
        wait_s: float = 0,
        holder: str | None = None,
        session: WorkerSession | None = None,
    ) -> list[Delivery]:
        """See :class:`QueueClient`.

        Raises:
            LeaseGone: The session is over.
        """
        named_s = None if visibility_timeout_s == AS_SET else visibility_timeout_s
        if named_s is not None:
            self._check_lease(named_s)
        under = None
        if session is not None:
            if not isinstance(session, NativeSession):
                raise TypeError("the session belongs to another service")
            under = session.session
        try:
            found = self._queue.receive(
                min(max_messages, LEASEHOLD.max_receive),
                visibility_timeout_s=named_s,
                wait_s=min(wait_s, LEASEHOLD.max_wait_s),
                holder=holder,
                session=under,
            )
        except (LeaseholdClientError, RuntimeError) as error:
            raise queue_error(error) from None
        return [self._delivery(each, named_s) for each in found]

    def _delivery(self, message: ReceivedMessage, named_s: int | None) -> Delivery:
        # A server of before that does not tell is believed to give the shortest there is.
        lease_s = named_s or message.lease_s or LEASEHOLD.min_lease_s
        body, problem, saved = message.body, None, None
        if self._form is not None or _MARKER in body:
            form = self._form or EnvelopeForm()
            try:
                body, saved = form.unwrap(body.decode())
            except UnreadableEnvelope as error:
                body, problem = b"", str(error)
            except UnicodeDecodeError:
                problem = None if self._form is None else "the body is not text"
        if self._form is None and message.saved is not None:
            try:
                saved = read_saved(message.saved)
            except UnreadableEnvelope as error:
                body, problem = b"", str(error)
        return Delivery(
            queue=message.queue,
            message_id=message.id,
            receipt=message.receipt,
            body=body,
            body_problem=problem,
            dequeue_count=message.dequeue_count,
            fence=message.fence,
            inserted_at_ms=message.inserted_at_ms,
            expires_at_ms=message.expires_at_ms,
            expires_in_s=life_s(message.visible_at_ms, message.expires_at_ms, lease_s),
            type=message.type,
            properties=message.properties,
            traceparent=message.traceparent,
            group_id=message.group_id,
            saved=saved,
            lease_s=lease_s if named_s is None else None,
        )

    # --- settling ----------------------------------------------------------------------------

    def renew(
        self, leases: Sequence[Lease], visibility_timeout_s: int, *, timeout_s: float | None = None
    ) -> list[Renewed | QueueError]:
        """See :class:`QueueClient`. *timeout_s* counts from the last byte that came."""
        self._check_lease(visibility_timeout_s)
        refs = [LeaseRef(each.message_id, each.receipt) for each in leases]
        once_s = _ONCE_S if timeout_s is None else timeout_s
        try:
            found = self._queue.renew_many(refs, visibility_timeout_s, timeout_s=once_s)
        except (LeaseholdClientError, RuntimeError) as error:
            so_far = getattr(error, "results_so_far", ())
            return _rest(_renewals(so_far), queue_error(error), len(leases))
        return _renewals(found)

    def complete(
        self, leases: Sequence[Lease], *, timeout_s: float | None = None
    ) -> list[QueueError | None]:
        """See :class:`QueueClient`.

        Of those that are not there any more the first few are looked up: one that was set aside
        is a :class:`SetAside`. It takes a request each, and the right to peek.
        """
        done = [_completion(each) for each in leases]
        try:
            found = self._queue.complete_many(done, timeout_s=timeout_s)
        except (LeaseholdClientError, RuntimeError) as error:
            return _rest(_so_far(error), queue_error(error), len(leases))
        results = [_refusal(each) for each in found]
        missing = [at for at, each in enumerate(found) if isinstance(each, MessageNotFound)]
        for at in missing[:_MAX_LOOKS]:
            try:
                results[at] = self._fate(leases[at], timeout_s) or results[at]
            except (LeaseholdClientError, RuntimeError):  # nor will the next be answered
                break
        return results

    def forward(
        self, given: Sequence[tuple[Lease, Forward]], *, timeout_s: float | None = None
    ) -> list[QueueError | None]:
        """See :class:`Forwards`. Needs the right to add messages to the other queue.

        All share a commit. If that is refused, as for one lost lease, each has its own.
        """
        done, sends = [], []
        for lease, each in given:
            done.append(_completion(lease, self.name))
            body = wrap(_bytes_of(each.outgoing), each.saved)
            sends.append(Sending(body, queue=each.queue, **_members(each.outgoing)))
        fate: QueueError | None = None
        try:
            self._queue.of_account.commit(complete=done, send=sends, timeout_s=timeout_s)
        except (LeaseholdClientError, RuntimeError) as error:
            fate = queue_error(error)
            if len(given) > 1 and not isinstance(fate, Unreachable):
                return [self.forward([each], timeout_s=timeout_s)[0] for each in given]
            if isinstance(error, MessageNotFound):
                with suppress(LeaseholdClientError, RuntimeError):
                    fate = self._fate(given[0][0], timeout_s) or fate
        return [fate] * len(given)

    def _fate(self, lease: Lease, timeout_s: float | None) -> SetAside | None:
        """Look whether a message that is not in the queue any more was set aside; None: not so."""
        try:
            poisoned = self._queue.get(lease.message_id, timeout_s=timeout_s).poisoned
        except MessageNotFound:
            return None
        if poisoned is None:
            return None
        return SetAside(
            "the server moved the message to the poison queue during processing, after too many "
            f"deliveries ({poisoned.reason}): it is not completed"
        )

    def release(
        self, releases: Sequence[Release], *, timeout_s: float | None = None
    ) -> list[QueueError | None]:
        """See :class:`QueueClient`.

        Those that would expire before their delay is over are given back without one: the server
        refuses them, and to let their leases run out instead could be the end of them.
        """
        given = [
            GiveBack(
                LeaseRef(each.lease.message_id, each.lease.receipt),
                each.outcome,
                each.delay_s,
                _report(each.fault),
            )
            for each in releases
        ]
        try:
            found = self._queue.release_each(given, timeout_s=timeout_s)
        except (LeaseholdClientError, RuntimeError) as failure:
            return _rest(_so_far(failure), queue_error(failure), len(releases))
        results = [_refusal(each) for each in found]
        late = [
            at
            for at, each in enumerate(found)
            if isinstance(each, ServerProblem) and each.code == PAST_EXPIRY and releases[at].delay_s
        ]
        if late:
            at_once = [replace(releases[at], delay_s=0) for at in late]
            again: Sequence[QueueError | None]
            try:
                again = self.release(at_once, timeout_s=timeout_s)
            except QueueError as failure:
                again = [failure] * len(late)
            for at, result in zip(late, again, strict=True):
                results[at] = result
        return results

    def save(
        self, delivery: Delivery, receipt: str, saved: Saved, visibility_timeout_s: int
    ) -> Renewed:
        """See :class:`QueueClient`.

        Raises:
            TypeError: The state is not what JSON can say.
            ValueError: The fraction is not within 0 to 1, or the form has no place for it.
        """
        self._check_lease(visibility_timeout_s)
        kept: dict[str, Any]
        if self._form is None:
            kept = {"saved": saved_members(saved)}
        else:
            kept = {"body": self._form.wrap(delivery.body, saved)}
        lease = Lease(delivery.message_id, receipt)
        renewed = self._saver.save(lease, saved, visibility_timeout_s, kept)
        return Renewed(renewed.receipt, _reason(renewed))

    def bury(
        self, delivery: Delivery, receipt: str, fault: Fault, *, timeout_s: float | None = None
    ) -> None:
        """See :class:`QueueClient`. It is one step, and the message keeps its id and its story."""
        ref = LeaseRef(delivery.message_id, receipt)
        try:
            self._queue.bury(ref, _report(fault), timeout_s=timeout_s)
        except (LeaseholdClientError, RuntimeError) as error:
            raise queue_error(error) from None

    def tried(self, delivery: Delivery) -> Tried:
        """See :class:`CountsFailures`. Needs the right to peek.

        In a poison queue only what came after the message was moved there counts.
        """
        try:
            found = self._queue.get(delivery.message_id)
        except (LeaseholdClientError, RuntimeError) as error:
            raise queue_error(error) from None
        if found.poisoned is None or found.queue != self.name:
            return Tried(found.failures, found.lapses)
        moved_at_ms = found.poisoned.at_ms
        since = Counter(each.outcome for each in found.attempts if each.ended_at_ms > moved_at_ms)
        return Tried(since["failed"], sum(since[each] for each in _LAPSES))

    # --- the rest ----------------------------------------------------------------------------

    def group_order(self) -> str:
        """See :class:`TellsOrder`."""
        try:
            groups = self._queue.info().settings.groups
        except (LeaseholdClientError, RuntimeError) as error:
            raise queue_error(error) from None
        return "none" if groups is None else groups.order

    def put(self, messages: Sequence[Outgoing]) -> list[QueueError | None]:
        """See :class:`QueueClient`. The server has a place for everything."""
        given = [self._new(each) for each in messages]
        try:
            return [_refusal(each) for each in self._queue.put_many(given)]
        except (LeaseholdClientError, RuntimeError) as error:
            return _rest(_so_far(error), queue_error(error), len(messages))

    def _new(self, outgoing: Outgoing) -> NewMessage:
        body = _bytes_of(outgoing)
        content: str | bytes = body
        if self._form is not None:
            content = self._form.fresh(body)
        elif _MARKER in body and looks_wrapped(body.decode(errors="replace")):
            content = wrap(body, None)
        return NewMessage(content, **_members(outgoing))

    def depth(self) -> Depth:
        """See :class:`QueueClient`. Exact; what was given back with a delay counts as delayed."""
        try:
            counts = self._queue.counts()
        except (LeaseholdClientError, RuntimeError) as error:
            raise queue_error(error) from None
        return Depth(
            visible=counts.visible,
            leased=counts.leased,
            delayed=counts.delayed + counts.deferred,
            total=counts.total,
        )

    def create(self) -> None:
        """See :class:`QueueClient`."""
        try:
            self._queue.create()
        except (LeaseholdClientError, RuntimeError) as error:
            raise queue_error(error) from None

    def open_session(self, holder: str, timeout_s: float) -> WorkerSession:
        """See :class:`QueueClient`. Other queues of the same client can receive under it as well.

        Args:
            holder: Who works, for people.
            timeout_s: Rounded up to whole seconds; 2 to 3,600.
        """
        length_s = max(_SHORTEST_SESSION_S, math.ceil(timeout_s))
        session = self._queue.of_account.session(holder, timeout_s=length_s)
        try:
            return NativeSession(session.open())
        except (LeaseholdClientError, RuntimeError) as error:
            raise queue_error(error) from None

    def close(self) -> None:
        """See :class:`QueueClient`. A client that was given stays open."""
        if self._own is not None:
            self._own.close()


class NativeSession:
    """A session of a Leasehold server; see :class:`WorkerSession`."""

    def __init__(self, session: Session) -> None:
        self.session = session
        """The client's."""
        self._is_lost = False

    @property
    def session_id(self) -> str:
        """See :class:`WorkerSession`."""
        return self.session.id

    @property
    def is_lost(self) -> bool:
        """Whether its leases have ended, or must be taken to have.

        Also when no heartbeat was answered for longer than the timeout: by then the server may
        have ended it. It does not come back from that.
        """
        if not self._is_lost:
            self._is_lost = self.session.is_lost or self.session.is_overdue
        return self._is_lost

    def cancelled(self, message_id: str) -> str | None:
        """See :class:`WorkerSession`."""
        try:
            notice = self.session.cancelled(message_id)
        except (LeaseholdClientError, RuntimeError):  # it is over, which is_lost tells
            return None
        return None if notice is None else notice.reason or _CANCELLED

    def progressed(self, message_id: str) -> None:
        """See :class:`WorkerSession`."""
        try:
            self.session.progress(message_id)
        except (LeaseholdClientError, RuntimeError):  # as above
            return

    def close(self) -> None:
        """See :class:`WorkerSession`. A server that cannot be told finds out by itself."""
        self.session.close()


def _reason(lease: LeaseRef | ReceivedMessage) -> str | None:
    return None if lease.cancel is None else lease.cancel.reason or _CANCELLED


def _report(fault: Fault | None) -> ErrorReport | None:
    if fault is None:
        return None
    # An exception can say what is no UTF-8, such as the name of a file. Nobody's message must stay
    # unsettled for that.
    text = fault.text.encode("utf-8", "backslashreplace").decode()
    return ErrorReport(text, fault.type, fault.fingerprint)


def _renewals(found: Sequence[object]) -> list[Renewed | QueueError]:
    return [
        Renewed(each.receipt, _reason(each))
        if isinstance(each, LeaseRef)
        else queue_error(cast("Exception", each))
        for each in found
    ]


def _refusal(result: object) -> QueueError | None:
    return queue_error(result) if isinstance(result, LeaseholdClientError) else None


def _so_far(error: Exception) -> list[QueueError | None]:
    """Return the results of the requests before the one that failed."""
    return [_refusal(each) for each in getattr(error, "results_so_far", ())]


def _rest(results: list[_R], error: QueueError, wanted: int) -> list[_R | QueueError]:
    """Fill up the results of a call that was cut into several requests.

    Raises:
        QueueError: There are none: the call failed as a whole.
    """
    if not results:
        raise error
    return [*results, *[error] * (wanted - len(results))]


# --- native errors -----------------------------------------------------------------------------
#
# From the errors of the native client to those of queues.


_MEANINGS: Final[tuple[tuple[type[Exception], type[QueueError]], ...]] = (
    (native.LeaseLost, LeaseGone),
    (native.MessageNotFound, LeaseGone),
    (native.SessionOver, LeaseGone),
    (native.SessionNotFound, LeaseGone),
    (native.QueueNotFound, QueueMissing),
    (native.BodyTooLarge, BodyTooLarge),
    (native.Unauthenticated, Unauthenticated),
)
PAST_EXPIRY: Final = "visibility-past-expiry"
_LATER: Final = frozenset({408, 429})
_CLIENT_ERROR: Final = 400
_SERVER_ERROR: Final = 500


def queue_error(error: Exception) -> QueueError:
    """Return what an error of the client means.

    Args:
        error: Of the client; a RuntimeError is what a closed one raises.
    """
    meaning = _meaning(error)
    if isinstance(error, native.LeaseholdClientError):
        # Also where the refusal is clear: the client may have made an earlier try.
        meaning.outcome_unknown = error.outcome_unknown
    return meaning


def _meaning(error: Exception) -> QueueError:
    for kind, meaning in _MEANINGS:
        if isinstance(error, kind):
            return meaning(str(error))
    if isinstance(error, native.ServerProblem) and error.code == PAST_EXPIRY:
        return PastExpiry(str(error))
    if isinstance(error, native.ConnectionFailed | native.Unavailable):
        return Unreachable(str(error), retry_after_s=getattr(error, "retry_after_s", None))
    if isinstance(error, native.ServerProblem | native.UnexpectedAnswer):
        return _by_status(error)
    if isinstance(error, native.LeaseholdClientError):
        return Unreachable(str(error))
    return Unreachable(f"the client cannot be used: {error}", outcome_unknown=False)


def _by_status(error: native.ServerProblem | native.UnexpectedAnswer) -> QueueError:
    """Return what a refusal without a meaning of its own is, or the answer of a proxy."""
    status = error.status
    if status in _LATER:
        return Unreachable(str(error))
    if _CLIENT_ERROR <= status < _SERVER_ERROR:
        return Denied(str(error))
    return Unreachable(str(error))


# --- native saving -----------------------------------------------------------------------------
#
# Saves of many handlers in one request, for a Leasehold server.


_MOST: Final = 1_000
_PATIENCE_S: Final = 1.0
"""So long a save waits for a request of others that is not answered."""

RenewedAnswer = ReceivedMessage | LeaseRef


class Saver:
    """Keeps the progress of messages of one queue; made for handlers in many threads.

    Args:
        queue: The handle.
    """

    def __init__(self, queue: QueueHandle) -> None:
        self._queue = queue
        self._together: CallBatcher[Renewal, RenewedAnswer] = CallBatcher(
            self._send, most=_MOST, patience_s=_PATIENCE_S
        )

    def save(
        self, lease: Lease, saved: Saved, visibility_timeout_s: int, kept: dict[str, Any]
    ) -> RenewedAnswer:
        """Keep *saved*, which *kept* says in the form in which it is kept.

        Raises:
            QueueError: It is not kept.
        """
        return self._together.ask(
            Renewal(
                LeaseRef(lease.message_id, lease.receipt),
                visibility_timeout_s,
                progress=Progress(saved.fraction, saved.stage),
                **kept,
            )
        )

    def _send(self, renewals: Sequence[Renewal]) -> list[RenewedAnswer | BaseException]:
        results: list[RenewedAnswer | BaseException] = []
        timeout_s = request_timeout_s(min(each.visibility_timeout_s for each in renewals))
        try:
            found = self._queue.renew_each(renewals, timeout_s=timeout_s)
        except (LeaseholdClientError, RuntimeError) as error:
            found = list(getattr(error, "results_so_far", ()))
            # One for each thread, since a traceback is hung onto it.
            results = [queue_error(error) for _ in renewals[len(found) :]]
        return [_result(each) for each in found] + results


def _result(found: RenewedAnswer | Exception) -> RenewedAnswer | BaseException:
    if isinstance(found, OutOfRange) and (found.field or "").endswith(".saved"):
        return BodyTooLarge(str(found))
    return queue_error(found) if isinstance(found, Exception) else found


def _bytes_of(outgoing: Outgoing) -> bytes:
    return outgoing.body.encode() if isinstance(outgoing.body, str) else outgoing.body


def _members(outgoing: Outgoing) -> dict[str, Any]:
    """Return what is sent of a message beside its body."""
    life_s = outgoing.time_to_live_s
    return {
        "delay_s": outgoing.delay_s,
        "time_to_live_s": DEFAULT_TIME_TO_LIVE_S if life_s is None else life_s,
        "dedup_key": outgoing.dedup_key,
        "type": outgoing.type,
        "properties": outgoing.properties or None,
        "traceparent": outgoing.traceparent,
        "group_id": outgoing.group_id,
    }


def _completion(lease: Lease, queue: str = "") -> LeaseRef | Completion:
    ref = LeaseRef(lease.message_id, lease.receipt, queue=queue)
    return ref if lease.result is None else Completion(ref, lease.result)
