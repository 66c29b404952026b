"""What adapters share: how they begin, and many requests in place of one without batches."""

from __future__ import annotations

import base64
import json
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any, Final, TypeVar

from leasehold.worker.adapters.protocol import (
    Capabilities,
    Delivery,
    Denied,
    Fault,
    Lease,
    LeaseGone,
    NotSupported,
    PastExpiry,
    QueueError,
    QueueMissing,
    Renewed,
    Unreachable,
    WorkerSession,
)
from leasehold.worker.adapters.specs import QueueSpec
from leasehold.worker.timing import Time

_T = TypeVar("_T")
_R = TypeVar("_R")


class Adapter:
    """What adapters begin with.

    Args:
        name: Of the queue.
        capabilities: What the service can do.
    """

    def __init__(self, name: str, capabilities: Capabilities) -> None:
        self._name = name
        self._capabilities = capabilities
        self.spec: QueueSpec | None = None
        """How another process can open the same queue; None if that is not known."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"

    @property
    def name(self) -> str:
        """See :class:`QueueClient`."""
        return self._name

    @property
    def capabilities(self) -> Capabilities:
        """See :class:`QueueClient`."""
        return self._capabilities

    def open_session(self, holder: str, timeout_s: float) -> WorkerSession:
        """See :class:`QueueClient`.

        Raises:
            NotSupported: The service has none.
        """
        del holder, timeout_s
        raise NotSupported(f"{self._capabilities.service} has no sessions")

    def _check_lease(self, visibility_timeout_s: int) -> None:
        """Refuse a lease that the service does not take.

        Raises:
            TypeError: It is not in whole seconds.
            ValueError: It is outside the range.
        """
        shortest_s, longest_s = self._capabilities.min_lease_s, self._capabilities.max_lease_s
        if not isinstance(visibility_timeout_s, int):
            raise TypeError("visibility_timeout_s must be whole seconds")
        if not shortest_s <= visibility_timeout_s <= longest_s:
            raise ValueError(
                f"visibility_timeout_s is {visibility_timeout_s}; "
                f"it must be {shortest_s} to {longest_s}"
            )


_REQUEST_SHARE: Final = 1 / 3
"""Of a lease, which is renewed when half of it is left."""
_LONGEST_REQUEST_S: Final = 10.0


def one_by_one(items: Sequence[_T], work: Callable[[_T], _R]) -> list[_R | QueueError]:
    """Do *work* for each item; return its result, or the error that it raised.

    When no server answers, or the queue is not there, the rest is left alone: to wait for each
    would take as many time-outs as there are items.

    Raises:
        QueueError: There was one item only, and all that is wrong concerns the whole call.
    """
    results: list[_R | QueueError] = []
    for item in items:
        try:
            results.append(work(item))
        except QueueError as error:
            if len(items) == 1 and isinstance(error, Unreachable | QueueMissing | Denied):
                raise
            results.append(error)
            if isinstance(error, Unreachable | QueueMissing):
                results += [_left_alone(error)] * (len(items) - len(results))
                break
    return results


def _left_alone(error: QueueError) -> QueueError:
    if isinstance(error, Unreachable):
        return Unreachable(
            f"not tried: {error}", outcome_unknown=False, retry_after_s=error.retry_after_s
        )
    return type(error)(str(error))


def shortened(ask: Callable[[int], _R], wanted_s: int) -> tuple[_R, int]:
    """Ask for a lease, and for shorter ones while they would end after the message expires.

    Returns:
        What came of it, and the length that was granted.

    Raises:
        PastExpiry: The message expires within a second.
        QueueError: It was refused for another reason.
    """
    length_s = wanted_s
    while True:
        try:
            return ask(length_s), length_s
        except PastExpiry:
            length_s = length_s * 3 // 4
            if not length_s:
                raise


def dated_ms(date: str) -> int | None:
    """Return the moment of a Date header as Unix milliseconds; None if it is not one."""
    try:
        return round(parsedate_to_datetime(date).timestamp() * 1000)
    except ValueError:
        return None


def length_s(from_ms: int | None, until_ms: int | None, able: Capabilities) -> int:
    """Return the length of a lease that the service chose, in whole seconds, rounded down.

    Args:
        from_ms: When it began by the clock of the service, or when the answer was written, which is
            no earlier; None if that is not known.
        until_ms: When it ends, by the same clock; None if that is not known.
        able: Within whose limits it is; what is not known is the shortest lease there is.
    """
    if from_ms is None or until_ms is None:
        return able.min_lease_s
    return min(max((until_ms - from_ms) // 1000, able.min_lease_s), able.max_lease_s)


def life_s(
    visible_at_ms: int | None, expires_at_ms: int | None, lease_s: int, unsure_ms: int = 0
) -> float | None:
    """Return how long a message lives from the moment it was leased, in seconds.

    Both moments are the service's, so that no difference of clocks counts.

    Args:
        visible_at_ms: When the lease ends.
        expires_at_ms: When the message expires; None: never, or that is not known.
        lease_s: How long the lease is.
        unsure_ms: By how much the difference of the two may be less than it seems.
    """
    if visible_at_ms is None or expires_at_ms is None:
        return None
    return max(0.0, (expires_at_ms - visible_at_ms - unsure_ms) / 1000 + lease_s)


def request_timeout_s(visibility_timeout_s: int) -> float:
    """Return how long a request may take that saves progress, or settles a message.

    The lease is not renewed meanwhile. If no answer comes there must be time for one more request.
    """
    return min(_LONGEST_REQUEST_S, visibility_timeout_s * _REQUEST_SHARE)


def refuse_extras(names: Sequence[tuple[str, object]], service: str) -> None:
    """Refuse what a service has no place for.

    Raises:
        NotSupported: One of the values is something.
    """
    for name, value in names:
        if value:
            raise NotSupported(f"{service} does not support {name}")


# --- poison ------------------------------------------------------------------------------------
#
# What a copy in a poison queue says about the message, where a service has no place for it.
#
# The copy is a JSON object around the text that the message had, which people and any SDK can
# read::
#
#     {"leasehold.poison": 1, "id": "...", "queue": "orders", "reason": "no such customer",
#      "type": "ValueError", "dequeue_count": 5, "inserted_at_ms": 1767225600000, "text": "..."}
#
# The id is that of the message in its own queue. Whoever buries a message copies it first and
# deletes it then; who dies in between leaves a message that is buried again, so that two copies
# with one id are the same message. A text that is base64 of something that is no text is in
# ``base64``.


MARKER: Final = "leasehold.poison"
VERSION: Final = 1
SUFFIX: Final = "-poison"
ORIGINAL_ID: Final = "original-id"
"""Name of the property by which two copies of a message can be told."""

_LONGEST_IN_AZURE: Final = 63
_LONGEST: Final = 256
_MAX_REASON: Final = 1024
# https://www.w3.org/TR/xml/#charsets; what is below U+0020 JSON escapes by itself.
_NOT_IN_XML: Final = re.compile("[\ud800-\udfff\ufffe\uffff]")


@dataclass(frozen=True, slots=True)
class Unwrapped:
    """A copy, taken apart."""

    content: bytes
    is_text: bool
    properties: Mapping[str, str]


def poison_name(queue: str) -> str:
    """Return the name of a queue's poison queue, as Azure Functions has it.

    A name that leaves no room for the suffix is cut, as the server does.
    """
    longest = _LONGEST_IN_AZURE if len(queue) <= _LONGEST_IN_AZURE else _LONGEST
    room = longest - len(SUFFIX)
    if len(queue) <= room:
        return f"{queue}{SUFFIX}"
    name = queue[:room].rstrip("-") + SUFFIX
    return name if name != queue else queue[: -len(SUFFIX) - 1].rstrip("-") + SUFFIX


def is_poison_name(queue: str) -> bool:
    """Return whether copies are to be expected in a queue."""
    return queue.endswith(SUFFIX)


def wrap_poison(text: str, delivery: Delivery, fault: Fault, *, is_base64: bool = False) -> str:
    """Return the text of the copy.

    Args:
        text: What the message was.
        delivery: The message.
        fault: Why it is buried; the first 1,024 characters are kept.
        is_base64: Whether *text* is base64 of something that is no text.
    """
    members: dict[str, Any] = {
        MARKER: VERSION,
        "id": delivery.message_id,
        "queue": delivery.queue,
        "reason": fault.text[:_MAX_REASON],
        "type": fault.type,
        "dequeue_count": delivery.dequeue_count,
        "inserted_at_ms": delivery.inserted_at_ms,
        "base64" if is_base64 else "text": text,
    }
    given = {name: value for name, value in members.items() if value is not None}
    copy = json.dumps(given, ensure_ascii=False)
    return json.dumps(given) if _NOT_IN_XML.search(copy) else copy


def unwrap_poison(text: str) -> Unwrapped | None:
    """Return what a copy says; None if the text is no copy of our making."""
    if MARKER not in text:
        return None
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or found.get(MARKER) != VERSION:
        return None
    content = _content(found)
    if content is None:
        return None
    names = {
        "id": ORIGINAL_ID,
        "queue": "original-queue",
        "dequeue_count": "original-dequeue-count",
        "inserted_at_ms": "original-inserted-at-ms",
        "reason": "poison-reason",
        "type": "poison-type",
    }
    shown = {names[name]: str(found[name]) for name in names if name in found}
    return Unwrapped(content, "text" in found, shown)


def _content(found: Mapping[str, Any]) -> bytes | None:
    match found:
        case {"text": str(text)}:
            return text.encode("utf-8", "surrogatepass")
        case {"base64": str(text)}:
            try:
                return base64.b64decode(text, validate=True)
            except ValueError:
                return None
    return None


# --- burying -----------------------------------------------------------------------------------
#
# Setting a message aside by copying it and deleting it then, where a service has no such step.


BURIAL_S: Final = 60
"""Length of the lease under which a message is copied and deleted, seconds."""
_MOST: Final = 1000
"""Burials that are remembered until they are finished; the oldest is forgotten first."""


@dataclass(slots=True)
class _Begun:
    """How far a burial has come."""

    asked: str
    """The receipt that it was asked for with."""
    receipt: str
    """The newest."""
    until_s: float | None = None
    """Monotonic seconds until which nobody else can have the message; None: that is not known."""
    is_copied: bool = False
    is_unsure: bool = False
    """Whether the message may be deleted: a deletion under this lease got no answer."""


class Burials:
    """Sets messages aside in three requests: renew, copy, delete.

    One that got no answer is gone on with by the next call for the same lease: with the receipt
    that its own renewal has brought, and without a second copy. What it says is so: it returns if
    the message is not in its queue any more, and :class:`LeaseGone` means that it may be there.

    A copy whose request got no answer may have been made all the same, and is then made twice. So
    it is when a message comes again because it could not be deleted.

    Args:
        renew: Renews a lease. Each of the three is told how long its request may take.
        copy: Puts the copy of a message into the poison queue.
        delete: Deletes a message.
        time: What leases go by.
    """

    def __init__(
        self,
        *,
        renew: Callable[[Lease, int, float | None], Renewed],
        copy: Callable[[Delivery, Fault, float | None], object],
        delete: Callable[[Lease, float | None], object],
        time: Time,
    ) -> None:
        self._renew = renew
        self._copy = copy
        self._delete = delete
        self._time = time
        self._lock = threading.Lock()
        self._begun: OrderedDict[str, _Begun] = OrderedDict()

    def bury(
        self, delivery: Delivery, receipt: str, fault: Fault, *, timeout_s: float | None = None
    ) -> None:
        """Set a message aside, or go on with that.

        Raises:
            QueueError: It is not done. The text says whether there is a copy already.
        """
        with self._lock:
            begun = self._begun.pop(delivery.message_id, None)
        if begun is None or begun.asked != receipt:
            begun = _Begun(receipt, receipt)
        try:
            self._go_on(begun, delivery, fault, timeout_s)
        except QueueError as error:
            if begun.is_copied:
                told = (
                    f"a copy is in {poison_name(delivery.queue)} already, and may not be the last"
                )
                error.args = (f"{error}; {told}",)
            if not isinstance(error, LeaseGone):
                self._keep(delivery.message_id, begun)
            raise

    def _go_on(
        self, begun: _Begun, delivery: Delivery, fault: Fault, timeout_s: float | None
    ) -> None:
        now_s = self._time.monotonic_s()
        if begun.until_s is None or now_s >= begun.until_s:
            lease = Lease(delivery.message_id, begun.receipt)
            renewed, lease_s = shortened(
                lambda length_s: self._renew(lease, length_s, timeout_s), BURIAL_S
            )
            begun.receipt = renewed.receipt
            # It is there still, so an earlier deletion was not carried out.
            begun.until_s, begun.is_unsure = now_s + lease_s, False
        if not begun.is_copied:
            self._copy(delivery, fault, timeout_s)
            begun.is_copied = True
        try:
            self._delete(Lease(delivery.message_id, begun.receipt), timeout_s)
        except LeaseGone:
            # Nobody else can have taken it yet: the earlier deletion was carried out.
            if not begun.is_unsure or self._time.monotonic_s() >= begun.until_s:
                raise
        except Unreachable as error:
            begun.is_unsure = begun.is_unsure or error.outcome_unknown
            raise

    def _keep(self, message_id: str, begun: _Begun) -> None:
        with self._lock:
            self._begun[message_id] = begun
            if len(self._begun) > _MOST:
                self._begun.popitem(last=False)
