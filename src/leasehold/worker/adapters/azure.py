"""A queue of Azure, of Azurite or of a Leasehold server, through the official SDK.

It needs the extra ``azure``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

from azure.core.exceptions import (
    AzureError,
    DecodeError,
    HttpResponseError,
    ResourceExistsError,
    ServiceRequestError,
    ServiceRequestTimeoutError,
)
from azure.storage.queue import QueueClient as SdkQueue
from azure.storage.queue import QueueMessage

from leasehold.worker.adapters.envelope import EnvelopeForm, ProgressForm
from leasehold.worker.adapters.fallbacks import (
    dated_ms,
    length_s,
    life_s,
    poison_name,
    refuse_extras,
    request_timeout_s,
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
from leasehold.worker.adapters.specs import QueueSpec
from leasehold.worker.adapters.texts import Base64Policy, TextAdapter, TextDelivery, Texts
from leasehold.worker.timing import SystemTime

AZURE: Final = Capabilities(
    service="azure",
    max_receive=32,
    max_settle=1,
    min_lease_s=1,
    max_lease_s=604_800,
    max_wait_s=0,
    max_body_bytes=65_536,
    fences=False,
    sessions=False,
    claims=False,
    server_poison=False,
    saves="in_body",
    counts_returns=True,
    groups=False,
    tells_lengths=True,
)
"""What Azure Queue storage can do."""

_NEVER: Final = 9999
"""Year in which messages expire that never do."""
_EXISTS: Final = "QueueAlreadyExists"
_LONGEST_WAIT_S: Final = 60


class AzureQueue(TextAdapter):
    """A queue of Azure Queue storage.

    ::

        queue = AzureQueue.from_connection_string(connection, "orders")
        queue = AzureQueue(QueueClient.from_connection_string(connection, "orders"))

    Bodies may be text or base64, whatever sender they come from; see
    :mod:`leasehold.worker.adapters.texts`. Progress is kept in the text of the message, in
    the envelope of :mod:`leasehold.worker.adapters.envelope`, and in base64 if the message was:
    whoever reads the queue with an SDK sees the body in it.

    ``bury`` makes sure of the lease, puts a copy into ``<queue>-poison`` and then deletes the
    message. Who dies between the two leaves both; the message is delivered and buried again, and
    :mod:`the copies <leasehold.worker.adapters.fallbacks>` have the same ``original-id``. A message
    that leaves no room for that is copied as it was.

    Type, properties, deduplication key, group and trace context of a message have no place here: a
    Leasehold server tells the group in a header, which the SDK does not show with its messages.

    A receive may leave the length of its leases to the service: Azure's is 30 s, a Leasehold server
    has one for each queue, type and message. What it was is the time from the answer to the end of
    the lease, by the clock of the service: as set, or a second less.

    No request is repeated by the SDK, since that could outlive a lease or deliver to no worker;
    those that create queues and count are.

    Args:
        queue: The caller's client, which stays open; its own encoding policies are not used.
        encoding: Whether texts are base64: "auto", "none" or "base64".
        reads: Reads a body, or raises ValueError; makes "auto" guess better.
        form: How progress is written into texts.
        call_timeout_s: Seconds that a request may take, above 0.
        max_wait_s: Seconds that the server can wait for a first message, 0 to 60. Leasehold can;
            Azure refuses the parameter, so leave 0 there.
    """

    def __init__(  # noqa: PLR0913 - keyword-only, and each is a choice of its own
        self,
        queue: SdkQueue,
        *,
        encoding: Base64Policy = "auto",
        reads: Callable[[bytes], object] | None = None,
        form: ProgressForm | None = None,
        call_timeout_s: float = 30.0,
        max_wait_s: int = 0,
    ) -> None:
        if not 0 <= max_wait_s <= _LONGEST_WAIT_S:
            raise ValueError(f"max_wait_s is {max_wait_s}; it must be 0 to {_LONGEST_WAIT_S}")
        texts = Texts(queue.queue_name, encoding, reads, form or EnvelopeForm())
        able = replace(AZURE, max_wait_s=max_wait_s)
        super().__init__(queue.queue_name, able, texts, call_timeout_s, SystemTime())
        self._queue = _client_of(queue, queue.queue_name)
        self._own: SdkQueue | None = None
        self._poison: SdkQueue | None = None

    @classmethod
    def from_connection_string(cls, connection: str, queue: str, **options: Any) -> AzureQueue:
        """Open a queue with an SDK client of its own, which is closed with it.

        Args:
            connection: As the SDK takes it.
            queue: Name of the queue.
            **options: Those of the class.

        Raises:
            ValueError: The string cannot be used. The text shows no value.
        """
        try:
            client = SdkQueue.from_connection_string(connection, queue)
        except ValueError as error:
            raise ValueError(f"the connection string cannot be used: {error}") from None
        made = cls(client, **options)
        made._own = client
        kept = {"encoding": str(options["encoding"])} if "encoding" in options else {}
        made.spec = QueueSpec("azure", queue, connection, kept)
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
        waited_s = int(min(wait_s, self._capabilities.max_wait_s))
        asked: dict[str, Any] = {"params": {"wait": waited_s}} if waited_s else {}
        named_s = None if visibility_timeout_s == AS_SET else visibility_timeout_s
        dates: list[str] = []
        with azure_errors():
            pages = self._queue.receive_messages(
                messages_per_page=min(max_messages, AZURE.max_receive),
                visibility_timeout=named_s,
                raw_response_hook=lambda answer: dates.append(
                    answer.http_response.headers.get("Date", "")
                ),
                **asked,
                **self._limits(None, waited_s),
            ).by_page()
            # The iterator would ask for page after page until the queue is empty.
            page = next(iter(pages), None)
            found = [] if page is None else list(page)
        answered_ms = dated_ms(dates[-1]) if dates else None
        return [self._delivery(each, named_s, answered_ms) for each in found]

    def _delivery(
        self, message: QueueMessage, named_s: int | None, answered_ms: int | None
    ) -> Delivery:
        lease_s = named_s or length_s(answered_ms, _ms(message.next_visible_on), AZURE)
        opened = self._texts.open(str(message.content or ""))
        count = message.dequeue_count or 1
        return TextDelivery(
            queue=self.name,
            message_id=message.id,
            receipt=message.pop_receipt or "",
            body=opened.body,
            body_problem=opened.body_problem,
            dequeue_count=count,
            fence=count,
            inserted_at_ms=_ms(message.inserted_on),
            expires_at_ms=_ms(message.expires_on),
            # Both moments are told in whole seconds.
            expires_in_s=life_s(
                _ms(message.next_visible_on), _ms(message.expires_on), lease_s, unsure_ms=1000
            ),
            properties=opened.properties,
            saved=opened.saved,
            content=opened.content,
            was_base64=opened.was_base64,
            lease_s=lease_s if named_s is None else None,
        )

    # --- settling ----------------------------------------------------------------------------

    def _renew(
        self,
        lease: Lease,
        visibility_timeout_s: int,
        timeout_s: float | None = None,
        text: str | None = None,
    ) -> Renewed:
        with azure_errors(visibility=True):
            updated = self._queue.update_message(
                lease.message_id,
                lease.receipt,
                text,
                visibility_timeout=visibility_timeout_s,
                timeout=None if timeout_s is None else max(1, math.ceil(timeout_s)),
                **self._limits(timeout_s),
            )
        return Renewed(updated.pop_receipt or "")

    def _delete(self, lease: Lease, timeout_s: float | None) -> None:
        with azure_errors():
            self._queue.delete_message(lease.message_id, lease.receipt, **self._limits(timeout_s))

    def _give_back(self, release: Release, timeout_s: float | None) -> None:
        delay_s = min(release.delay_s or 0, AZURE.max_lease_s)
        try:
            self._renew(release.lease, delay_s, timeout_s)
        except PastExpiry:
            if not delay_s:
                raise
            # To let its lease run out instead could be the end of it.
            self._renew(release.lease, 0, timeout_s)

    def save(
        self, delivery: Delivery, receipt: str, saved: Saved, visibility_timeout_s: int
    ) -> Renewed:
        """See :class:`QueueClient`.

        Raises:
            TypeError: The state is not what JSON can say.
            ValueError: The form has no place for it.
        """
        self._check_lease(visibility_timeout_s)
        return self._renew(
            Lease(delivery.message_id, receipt),
            visibility_timeout_s,
            request_timeout_s(visibility_timeout_s),
            self._texts.wrapped(delivery, saved),
        )

    def _send_copy(self, text: str, delivery: Delivery, timeout_s: float | None) -> None:
        del delivery
        if self._poison is None:
            self._poison = _client_of(self._queue, poison_name(self.name))
        try:
            self._send(self._poison, text, timeout_s, time_to_live=-1)
        except QueueMissing:
            _create(self._poison)
            self._send(self._poison, text, timeout_s, time_to_live=-1)

    # --- the rest ----------------------------------------------------------------------------

    def _put(self, outgoing: Outgoing) -> None:
        refuse_extras(
            (
                ("a type", outgoing.type),
                ("properties", outgoing.properties),
                ("a deduplication key", outgoing.dedup_key),
                ("a message group", outgoing.group_id),
                ("a trace context", outgoing.traceparent),
            ),
            "Azure",
        )
        text = self._fresh(outgoing)
        lives = outgoing.time_to_live_s
        self._send(
            self._queue,
            text,
            None,
            visibility_timeout=outgoing.delay_s,
            **({} if lives is None else {"time_to_live": lives}),
        )

    def _send(self, queue: SdkQueue, text: str, timeout_s: float | None, **options: Any) -> None:
        with azure_errors():
            queue.send_message(text, **options, **self._limits(timeout_s))

    def depth(self) -> Depth:
        """See :class:`QueueClient`. Azure tells the total only, and not exactly."""
        with azure_errors():
            count = self._queue.get_queue_properties().approximate_message_count
        return Depth(visible=None, leased=None, delayed=None, total=count)

    def create(self) -> None:
        """See :class:`QueueClient`."""
        _create(self._queue)

    def close(self) -> None:
        """See :class:`QueueClient`. A client that was given stays open."""
        if self._own is not None:
            self._own.close()

    def _limits(self, timeout_s: float | None, waited_s: int = 0) -> dict[str, Any]:
        """Return the options of one request: no repeats, and how long it may take."""
        length_s = self._limit_s(timeout_s)
        connect_s = length_s / 3
        return {
            "retry_total": 0,
            "connection_timeout": connect_s,
            "read_timeout": length_s - connect_s + waited_s,
        }


def _client_of(queue: SdkQueue, name: str) -> SdkQueue:
    """Return a client of a queue in the same account that leaves texts as they are.

    It shares the connections of the one given. With a decoding policy, one text that does not
    follow it would make the whole receive fail, and lease the rest to no worker.
    """
    # What QueueServiceClient.get_queue_client does; a queue's client has no such method.
    return SdkQueue(
        f"{queue.scheme}://{queue.primary_hostname}{queue._query_str}",  # noqa: SLF001
        name,
        credential=queue.credential,
        api_version=queue.api_version,
        require_encryption=queue.require_encryption,
        encryption_version=queue.encryption_version,
        key_encryption_key=queue.key_encryption_key,
        key_resolver_function=queue.key_resolver_function,
        _pipeline=queue._pipeline,  # noqa: SLF001
        _configuration=queue._config,  # noqa: SLF001
    )


def _create(queue: SdkQueue) -> None:
    try:
        queue.create_queue()
    except ResourceExistsError as error:
        if code_of(error) != _EXISTS:
            raise queue_error(error) from None
    except AzureError as error:
        raise queue_error(error) from None


def _ms(when: datetime | None) -> int | None:
    """Return a moment as Unix milliseconds; None for never, or if the service does not say."""
    return None if when is None or when.year >= _NEVER else round(when.timestamp() * 1000)


# --- azure errors ------------------------------------------------------------------------------
#
# From the errors of the Azure SDK to those of queues.
#
# Texts of the SDK are not passed on: they may hold receipts and signatures.


_MEANINGS: Final[dict[str, type[QueueError]]] = {
    "MessageNotFound": LeaseGone,
    "PopReceiptMismatch": LeaseGone,
    "QueueNotFound": QueueMissing,
    "QueueBeingDeleted": QueueMissing,
    "QueueDisabled": QueueMissing,
    "MessageTooLarge": BodyTooLarge,
    "RequestBodyTooLarge": BodyTooLarge,
    "AuthenticationFailed": Unauthenticated,
    "InvalidAuthenticationInfo": Unauthenticated,
    "NoAuthenticationInformation": Unauthenticated,
}
_BAD_VALUES: Final = frozenset({"InvalidQueryParameterValue", "OutOfRangeQueryParameterValue"})
_VISIBILITY: Final = "visibilitytimeout"
_LATER: Final = frozenset({408, 429})
_SUCCESS: Final = range(200, 300)
_TOO_LARGE: Final = 413
_SERVER_ERROR: Final = 500
_BUSY: Final = 503
_NEVER_SENT: Final = frozenset(
    {"NewConnectionError", "ConnectTimeoutError", "NameResolutionError", "ConnectTimeout"}
)


@contextmanager
def azure_errors(*, visibility: bool = False) -> Iterator[None]:
    """Raise the QueueError that an error of the SDK means, without the SDK's.

    Args:
        visibility: The request asks for a visibility timeout of a length that the service takes.
    """
    try:
        yield
    except AzureError as error:
        raise queue_error(error, visibility=visibility) from None


def queue_error(error: AzureError, *, visibility: bool = False) -> QueueError:
    """Return what an error of the SDK means; see :func:`azure_errors`."""
    if not isinstance(error, HttpResponseError):
        unknown = not (isinstance(error, ServiceRequestError) and _was_never_sent(error))
        return Unreachable(f"no response: {type(error).__name__}", outcome_unknown=unknown)
    status = error.status_code or 0
    if isinstance(error, DecodeError) or status in _SUCCESS or not status:
        return Unreachable(f"an unreadable response ({type(error).__name__})")
    code = code_of(error)
    text = f"{code} ({status})"
    meaning = _MEANINGS.get(code)
    if code in _BAD_VALUES and _named(error) in {_VISIBILITY, ""} and visibility:
        # The length itself was checked before.
        meaning = PastExpiry
    if meaning is not None:
        return meaning(text)
    if status == _TOO_LARGE:
        return BodyTooLarge(text)
    if status in _LATER or status >= _SERVER_ERROR:
        # ServerBusy is said before anything is done.
        known = status in _LATER or (status == _BUSY and code == "ServerBusy")
        return Unreachable(text, outcome_unknown=not known, retry_after_s=_retry_after_s(error))
    return Denied(text)


def _named(error: HttpResponseError) -> str:
    """Return which parameter of the query the service refuses, "" if it does not say."""
    more = getattr(error, "additional_info", None) or {}
    return str(more.get("QueryParameterName", "")).lower()


def code_of(error: AzureError) -> str:
    """Return the code of the service, or "no code"."""
    code = getattr(error, "error_code", None)
    return str(getattr(code, "value", code) or "no code")


def _was_never_sent(error: AzureError) -> bool:
    """Return whether it is certain that the request did not leave."""
    if isinstance(error, ServiceRequestTimeoutError):
        return True
    seen: list[BaseException] = []
    waiting: list[object] = [error.inner_exception, error.__cause__, error.__context__]
    while waiting:
        found = waiting.pop()
        if not isinstance(found, BaseException) or found in seen:
            continue
        if type(found).__name__ in _NEVER_SENT:
            return True
        seen.append(found)
        waiting += [found.__cause__, found.__context__, getattr(found, "reason", None), *found.args]
    return False


def _retry_after_s(error: HttpResponseError) -> float | None:
    headers = getattr(error.response, "headers", None) or {}
    text = str(headers.get("Retry-After", ""))
    return float(text) if text.isascii() and text.isdigit() else None
