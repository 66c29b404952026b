"""A queue of Alibaba's Message Service (MNS, also called SMQ), through the official SDK.

It needs the extra ``mns``.
"""

from __future__ import annotations

import base64
import http.client
import select
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Final

from mns.account import Account
from mns.message_property import (
    MessagePropertyValue,
    MessageSystemPropertyValue,
    PropertyType,
    SystemPropertyName,
    SystemPropertyType,
)
from mns.mns_client import MNSClient
from mns.mns_exception import (
    MNSClientNetworkException,
    MNSClientParameterException,
    MNSExceptionBase,
    MNSServerException,
)
from mns.mns_http import MNSHttp, ResponseInternal
from mns.mns_request import (
    GetQueueAttributesRequest,
    GetQueueAttributesResponse,
)
from mns.queue import Message, Queue, QueueMeta

from leasehold.spans import carried, is_used
from leasehold.worker.adapters.envelope import ProgressForm
from leasehold.worker.adapters.fallbacks import (
    dated_ms,
    length_s,
    one_by_one,
    poison_name,
    refuse_extras,
    shortened,
)
from leasehold.worker.adapters.protocol import (
    AS_SET,
    BodyTooLarge,
    Capabilities,
    Delivery,
    Denied,
    Depth,
    Lease,
    LeaseGone,
    NotSupported,
    Outgoing,
    PastExpiry,
    QueueError,
    QueueMissing,
    Release,
    Renewed,
    Saved,
    Unauthenticated,
    Unreachable,
    WorkerSession,
)
from leasehold.worker.adapters.specs import QueueSpec, parts_of
from leasehold.worker.adapters.texts import Base64Policy, TextAdapter, TextDelivery, Texts
from leasehold.worker.timing import SystemTime, Time

MNS: Final = Capabilities(
    service="mns",
    max_receive=16,
    max_settle=1,
    min_lease_s=1,
    max_lease_s=43_200,
    max_wait_s=30,
    max_body_bytes=65_536,
    fences=False,
    sessions=False,
    claims=False,
    server_poison=False,
    saves="no",
    counts_returns=True,
    tells_lengths=True,
)
"""What MNS can do. It deletes up to 16 messages in a request, but renews them one by one."""

_BAD_VALUE: Final = "InvalidArgument"
_MAX_DELETE: Final = 16
_MAX_DELAY_S: Final = 604_800
_SAME_MS: Final = 1000
_FRESH_S: Final = 60.0
"""How long the queue's own visibility timeout is taken for known."""


class MnsQueue(TextAdapter):
    """A queue of MNS.

    ::

        queue = MnsQueue(Account(endpoint, access_id, access_key).get_queue("orders"))

    A receive of MNS has no visibility timeout of its own: the queue's counts. Where that is another
    than a worker asks for, each message that was received is renewed at once, which costs a
    request each; so give the queue the timeout that the workers use, or let the workers take what
    is set. A message whose renewal fails is not delivered; it comes back by itself.

    A body cannot be changed, so no progress is kept. Nothing can be made visible at once: what is
    given back comes after a second. A message lives as long as the queue says, and has no place for
    a type or a deduplication key.

    ``bury`` makes sure of the lease, puts a copy into ``<queue>-poison`` and then deletes the
    message. Who dies between the two leaves both; the message is delivered and buried again, and
    :mod:`the copies <leasehold.worker.adapters.fallbacks>` have the same ``original-id``. A message
    that leaves no room for that is copied as it was.

    Args:
        queue: The SDK's object. Its account is used for more connections, with the same
            credentials; the connection that it has itself is left alone.
        encoding: Whether bodies are base64: "auto", "none" or "base64". None: as the SDK's object
            has it, which is base64 unless it was told otherwise.
        reads: Reads a body, or raises ValueError; makes "auto" guess better.
        form: How others have written progress into the bodies that they put; it is read, and new
            messages get it. None: bodies are as they are.
        call_timeout_s: Seconds without a byte after which a request has failed, above 0; what the
            server is asked to wait comes on top.
        time: For tests.
    """

    def __init__(  # noqa: PLR0913 - keyword-only, and each is a choice of its own
        self,
        queue: Any,
        *,
        encoding: Base64Policy | None = None,
        reads: Callable[[bytes], object] | None = None,
        form: ProgressForm | None = None,
        call_timeout_s: float = 30.0,
        time: Time | None = None,
    ) -> None:
        name: str = queue.queue_name
        chosen: Base64Policy = encoding or ("base64" if queue.encoding else "none")
        self._time = time or SystemTime()
        texts = Texts(name, chosen, reads, form)
        super().__init__(name, MNS, texts, call_timeout_s, self._time)
        self._clients = Clients(queue.mns_client)
        self._lock = threading.Lock()
        self._own_lease: tuple[int, float] | None = None

    @classmethod
    def from_connection_string(cls, connection: str, queue: str, **options: Any) -> MnsQueue:
        """Open a queue with an account object of its own.

        Args:
            connection: ``Endpoint=https://...;AccessKeyId=...;AccessKeySecret=...``, with
                ``;SecurityToken=...`` for temporary credentials.
            queue: Name of the queue.
            **options: Those of the class.

        Raises:
            ValueError: A part is missing. The text shows no value.
        """
        parts = parts_of(connection)
        for name in ("Endpoint", "AccessKeyId", "AccessKeySecret"):
            if not parts.get(name.lower()):
                raise ValueError(f"{name} is missing in the connection string")
        endpoint = parts["endpoint"]
        if not endpoint.startswith(("http://", "https://")):
            raise ValueError("Endpoint must begin with http:// or https://")
        account = Account(
            endpoint, parts["accesskeyid"], parts["accesskeysecret"], parts.get("securitytoken", "")
        )
        made = cls(account.get_queue(queue), **options)
        kept = {"encoding": str(options["encoding"])} if options.get("encoding") else {}
        made.spec = QueueSpec("mns", queue, connection, kept)
        return made

    # --- receiving ---------------------------------------------------------------------------

    def receive(
        self,
        max_messages: int,
        *,
        visibility_timeout_s: int,
        wait_s: float = 0,
        holder: str | None = None,
        session: WorkerSession | None = None,
    ) -> list[Delivery]:
        """See :class:`QueueClient`. *holder* has no place here."""
        del holder
        self._check_receive(visibility_timeout_s, session)
        as_set = visibility_timeout_s == AS_SET
        own_lease_s = AS_SET if as_set else self._queue_lease_s()
        waited_s = int(min(wait_s, MNS.max_wait_s))
        with self._clients.queue(self._name, self._call_timeout_s + waited_s) as queue:
            try:
                found = queue.batch_receive_message(min(max_messages, MNS.max_receive), waited_s)
            except MNSServerException as error:
                if error.type != NO_MESSAGE:
                    raise
                return []
            answered_ms = queue.mns_client.http.answered_ms
        if as_set:
            from_ms = _leased_ms(found, answered_ms)
            return [
                replace(
                    self._delivery(each),
                    lease_s=length_s(from_ms, int(each.next_visible_time), MNS),
                )
                for each in found
            ]
        if own_lease_s != visibility_timeout_s:
            sure = set[str]()
        else:
            sure = _of_length(found, visibility_timeout_s)
        deliveries = [self._delivery(each) for each in found]
        others = [each for each in deliveries if each.message_id not in sure]
        changed = {each.message_id: each for each in self._with_lease(others, visibility_timeout_s)}
        return [
            changed.get(each.message_id, each)
            for each in deliveries
            if each.message_id in sure or each.message_id in changed
        ]

    def _with_lease(self, deliveries: list[Delivery], visibility_timeout_s: int) -> list[Delivery]:
        """Return those whose leases could be given the length that was asked for."""
        found = []
        for delivery in deliveries:
            try:
                renewed, lease_s = shortened(
                    partial(self._renew, delivery.lease), visibility_timeout_s
                )
            except QueueError as error:  # it comes back when the queue's own timeout ends
                if isinstance(error, Unreachable):
                    break
                continue
            life_s = None if lease_s == visibility_timeout_s else float(lease_s)
            found.append(replace(delivery, receipt=renewed.receipt, expires_in_s=life_s))
        return found

    def _delivery(self, message: Any) -> Delivery:
        opened = self._texts.open(str(message.message_body))
        count = int(message.dequeue_count)
        system = message.get_system_properties() or {}
        trace = system.get(SystemPropertyName.TRACEPARENT)
        return TextDelivery(
            queue=self._name,
            message_id=message.message_id,
            receipt=message.receipt_handle,
            body=opened.body,
            body_problem=opened.body_problem,
            dequeue_count=count,
            fence=count,
            inserted_at_ms=int(message.enqueue_time),
            properties={**_shown(message.get_user_properties() or {}), **opened.properties},
            traceparent=None if trace is None else str(trace.string_value),
            group_id=message.message_group_id or None,
            saved=opened.saved,
            content=opened.content,
            was_base64=opened.was_base64,
        )

    def _queue_lease_s(self) -> int:
        """Return the queue's own visibility timeout, which may be a minute old."""
        now_s = self._time.monotonic_s()
        with self._lock:
            known = self._own_lease
        if known is not None and now_s - known[1] < _FRESH_S:
            return known[0]
        lease_s = int(self._attributes().visibility_timeout)
        with self._lock:
            self._own_lease = (lease_s, now_s)
        return lease_s

    def _attributes(self) -> Any:
        # The SDK's own method warns of members that are going to be removed.
        request, response = GetQueueAttributesRequest(self._name), GetQueueAttributesResponse()
        with self._clients.queue(self._name, self._call_timeout_s) as queue:
            queue.mns_client.get_queue_attributes(request, response)
        return response

    # --- settling ----------------------------------------------------------------------------

    def _renew(
        self, lease: Lease, visibility_timeout_s: int, timeout_s: float | None = None
    ) -> Renewed:
        with self._clients.queue(self._name, self._limit_s(timeout_s)) as queue:
            try:
                changed = queue.change_message_visibility(lease.receipt, visibility_timeout_s)
            except MNSServerException as error:
                # The length itself was checked before.
                if error.type == _BAD_VALUE:
                    raise PastExpiry(f"{_BAD_VALUE} for {visibility_timeout_s} s") from None
                raise
        return Renewed(str(changed.receipt_handle))

    def complete(
        self, leases: Sequence[Lease], *, timeout_s: float | None = None
    ) -> list[QueueError | None]:
        """See :class:`QueueClient`. Sixteen go in one request."""
        parts = [leases[at : at + _MAX_DELETE] for at in range(0, len(leases), _MAX_DELETE)]
        results: list[QueueError | None] = []
        deleted = one_by_one(parts, lambda part: self._delete_all(part, timeout_s))
        for part, found in zip(parts, deleted, strict=True):
            results += [found] * len(part) if isinstance(found, QueueError) else found
        return results

    def _delete(self, lease: Lease, timeout_s: float | None) -> None:
        with self._clients.queue(self._name, self._limit_s(timeout_s)) as queue:
            queue.delete_message(lease.receipt)

    def _delete_all(
        self, leases: Sequence[Lease], timeout_s: float | None
    ) -> list[QueueError | None]:
        if len(leases) == 1:
            self._delete(leases[0], timeout_s)
            return [None]
        receipts = [each.receipt for each in leases]
        with self._clients.queue(self._name, self._limit_s(timeout_s)) as queue:
            try:
                queue.batch_delete_message(receipts)
            except MNSServerException as error:
                if not error.sub_errors:
                    raise
                failed = {each["ReceiptHandle"]: each["ErrorCode"] for each in error.sub_errors}
                return [error_of(failed[each]) if each in failed else None for each in receipts]
        return [None] * len(receipts)

    def _give_back(self, release: Release, timeout_s: float | None) -> None:
        delay_s = min(max(release.delay_s or 0, MNS.min_lease_s), MNS.max_lease_s)
        shortened(lambda length_s: self._renew(release.lease, length_s, timeout_s), delay_s)

    def save(
        self, delivery: Delivery, receipt: str, saved: Saved, visibility_timeout_s: int
    ) -> Renewed:
        """See :class:`QueueClient`.

        Raises:
            NotSupported: Always: a body of MNS cannot be changed.
        """
        del delivery, receipt, saved, visibility_timeout_s
        raise NotSupported("MNS keeps no progress: the body of a message cannot be changed")

    def _send_copy(self, text: str, delivery: Delivery, timeout_s: float | None) -> None:
        name = poison_name(self._name)
        message = _new(text, delivery)
        try:
            self._send(name, message, timeout_s)
        except QueueMissing:
            self._create(name)
            self._send(name, message, timeout_s)

    # --- the rest ----------------------------------------------------------------------------

    def _put(self, outgoing: Outgoing) -> None:
        refuse_extras(
            (
                ("a type", outgoing.type),
                ("a deduplication key", outgoing.dedup_key),
                ("a time to live per message", outgoing.time_to_live_s),
            ),
            "MNS",
        )
        if not 0 <= outgoing.delay_s <= _MAX_DELAY_S:
            raise Denied(f"delay_s is {outgoing.delay_s}; it must be 0 to {_MAX_DELAY_S}")
        message = _new(self._fresh(outgoing), outgoing)
        message.set_delayseconds(outgoing.delay_s)
        self._send(self._name, message, None)

    def _send(self, name: str, message: Any, timeout_s: float | None) -> None:
        size = len(message.message_body.encode())
        if not size:
            raise Denied("MNS does not accept empty bodies")
        if size > (MNS.max_body_bytes or 0):
            raise BodyTooLarge(
                f"the text has {size} bytes; MNS accepts at most {MNS.max_body_bytes}"
            )
        with self._clients.queue(name, self._limit_s(timeout_s)) as queue:
            queue.send_message(message)

    def depth(self) -> Depth:
        """See :class:`QueueClient`. MNS counts roughly, and means to count 0 one day."""
        found = self._attributes()
        visible, leased = int(found.active_messages), int(found.inactive_messages)
        delayed = int(found.delay_messages)
        return Depth(
            visible=visible, leased=leased, delayed=delayed, total=visible + leased + delayed
        )

    def create(self) -> None:
        """See :class:`QueueClient`. A new one has a visibility timeout of 30 seconds."""
        self._create(self._name)

    def _create(self, name: str) -> None:
        with self._clients.queue(name, self._call_timeout_s) as queue:
            try:
                queue.create(QueueMeta())
            except MNSServerException as error:
                if error.type != EXISTS:
                    raise

    def close(self) -> None:
        """See :class:`QueueClient`. The SDK's object that was given is left alone."""
        self._clients.close()


def _shown(properties: Mapping[str, Any]) -> dict[str, str]:
    """Return user properties as text; binary ones as base64."""
    return {
        name: base64.b64encode(value.binary_value).decode()
        if value.binary_value is not None
        else str(value.string_value)
        for name, value in properties.items()
    }


def _new(text: str, like: Outgoing | Delivery) -> Any:
    message = Message(text, message_group_id=like.group_id or "")
    for name, value in like.properties.items():
        message.add_user_property(name, MessagePropertyValue(PropertyType.STRING, value))
    trace = like.traceparent
    if trace is None and isinstance(like, Outgoing) and is_used():
        trace = carried().get("traceparent")  # the SDK makes no span, so that of who sends
    if trace is not None:
        value = MessageSystemPropertyValue(SystemPropertyType.STRING, trace)
        message.add_system_property(SystemPropertyName.TRACEPARENT, value)
    return message


# --- mns sdk -----------------------------------------------------------------------------------
#
# What the MNS SDK needs around it: connections for several threads, time limits, clear errors.
#
# The SDK has one connection for each account object, which two threads must not share; over https
# it waits for ever; and it repeats a request whose connection broke, after which a renewal that
# was carried out looks like a lost lease. So each call here borrows a client of its own, whose
# connection does neither.


NO_MESSAGE: Final = "MessageNotExist"
EXISTS: Final = "QueueAlreadyExist"

_GONE: Final = frozenset({NO_MESSAGE, "ReceiptHandleError"})
_MISSING: Final = frozenset({"QueueNotExist", "QueueDeletedRecently"})
_REFUSED_FOR_NOW: Final = frozenset(
    {"ServerBusy", "TooManyRequests", "QpsLimitExceeded", "TimeExpired"}
)
_FAILED: Final = frozenset({"InternalError", "InternalServerError"})
_UNAUTHENTICATED: Final = frozenset(
    {
        "InvalidAccessKeyId",
        "InvalidAuthorizationHeader",
        "MissingAuthorizationHeader",
        "SignatureDoesNotMatch",
    }
)


class Clients:
    """Clients of one account, each with a connection of its own; threads may share it."""

    def __init__(self, client: MNSClient) -> None:
        self._like = client
        self._lock = threading.Lock()
        self._idle: list[MNSClient] = []
        self._closed = False

    @contextmanager
    def queue(self, name: str, timeout_s: float) -> Iterator[Any]:
        """Lend the SDK's object for a queue; its bodies are the texts as they are.

        Args:
            name: Of the queue.
            timeout_s: Seconds without a byte after which a call has failed.

        Raises:
            QueueError: What an error of the SDK means.
        """
        with self._lock:
            client = self._idle.pop() if self._idle else None
        client = client or self._made()
        client.http.limit(timeout_s)
        queue = Queue(name, client)
        queue.set_encoding(encoding=False)
        try:
            yield queue
        except MNSExceptionBase as error:
            raise queue_error(error) from None
        finally:
            with self._lock:
                if not self._closed:
                    self._idle.append(client)
                    client = None
            if client is not None:
                client.close_connection()

    def close(self) -> None:
        """Close the connections that are not in use; the others when they come back."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for client in idle:
            client.close_connection()

    def _made(self) -> MNSClient:
        like = self._like
        scheme = "https" if like.is_https else "http"
        made = MNSClient(
            f"{scheme}://{like.host}",
            version=like.version,
            credentials_provider=like.credentials_provider,
        )
        made.http = _Connection(made.host, made.is_https)
        return made


class _Connection(MNSHttp):  # type: ignore[misc]  # the SDK has no annotations
    """A connection that sends each request once."""

    def __init__(self, host: str, is_https: bool) -> None:
        super().__init__(host, is_https=is_https)
        kind = http.client.HTTPSConnection if is_https else http.client.HTTPConnection
        self.conn: Any = kind(host)
        self.answered_ms: int | None = None
        """When the last answer was written, by the clock of the service, in whole seconds."""

    def limit(self, timeout_s: float) -> None:
        """Set the seconds without a byte after which a call has failed."""
        self.conn.timeout = timeout_s
        if self.conn.sock is not None:
            self.conn.sock.settimeout(timeout_s)

    def send_request(self, request: Any) -> Any:
        """Send a request of the SDK, and return what it is to make of the answer.

        Raises:
            Unreachable: No answer came.
        """
        conn: Any = self.conn
        is_open = conn.sock is not None
        if is_open and _is_over(conn.sock):
            conn.close()
            is_open = False
        try:
            if not is_open:
                conn.connect()
                conn.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError as error:
            conn.close()
            text = f"no connection: {type(error).__name__}"
            raise Unreachable(text, outcome_unknown=False) from None
        try:
            conn.request(request.method, request.uri, request.data, request.header)
            answer = conn.getresponse()
            content = answer.read().decode()
        except (OSError, http.client.HTTPException, UnicodeDecodeError) as error:
            conn.close()
            raise Unreachable(f"no response: {type(error).__name__}") from None
        # The SDK looks some of them up in lower case.
        headers = {name.lower(): value for name, value in answer.getheaders()}
        self.answered_ms = dated_ms(headers.get("date", ""))
        return ResponseInternal(status=answer.status, header=headers, data=content)


def queue_error(error: MNSExceptionBase) -> QueueError:
    """Return what an error of the SDK means; texts that hold whole answers are not passed on."""
    if isinstance(error, MNSClientParameterException):
        return Denied(f"{error.type}: the SDK does not take an argument")
    if isinstance(error, MNSClientNetworkException):
        return Unreachable(f"an unreadable response ({error.type})")
    if not isinstance(error, MNSServerException):
        return Unreachable(type(error).__name__)
    return error_of(str(error.type))


def error_of(code: str) -> QueueError:
    """Return what a code of the service means."""
    if code in _GONE:
        return LeaseGone(code)
    if code in _MISSING:
        return QueueMissing(code)
    if code in _REFUSED_FOR_NOW or code in _FAILED:
        return Unreachable(code, outcome_unknown=code in _FAILED)
    return Unauthenticated(code) if code in _UNAUTHENTICATED else Denied(code)


def _is_over(sock: socket.socket) -> bool:
    """Return whether the other end has closed an idle connection: nothing else can be there."""
    readable, _, _ = select.select([sock], [], [], 0)
    return bool(readable)


def _of_length(found: Sequence[Any], lease_s: int) -> set[str]:
    """Return the ids of messages of one receive whose leases surely have a length.

    A server may give messages timeouts of their own, by type for one. When the receive was, by the
    clock of the service, is told by messages that were delivered for the first time only.
    """
    from_ms = _leased_ms(found, None)
    if from_ms is None:
        return set()
    end_ms = from_ms + lease_s * 1000
    return {
        each.message_id for each in found if abs(int(each.next_visible_time) - end_ms) < _SAME_MS
    }


def _leased_ms(found: Sequence[Any], answered_ms: int | None) -> int | None:
    """Return when messages of one receive were leased, by the clock of the service.

    Those delivered for the first time tell. If there is none among them it is the moment of the
    answer, which is no earlier; None if that is not known either.
    """
    first = (int(each.first_dequeue_time) for each in found if int(each.dequeue_count) == 1)
    return next(first, answered_ms)
