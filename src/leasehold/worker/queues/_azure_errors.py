"""From the errors of the Azure SDK to those of queues.

Texts of the SDK are not passed on: they may hold receipts and signatures.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from azure.core.exceptions import (
    AzureError,
    DecodeError,
    HttpResponseError,
    ServiceRequestError,
    ServiceRequestTimeoutError,
)

from leasehold.worker.queues.errors import (
    BodyTooLarge,
    Denied,
    LeaseGone,
    PastExpiry,
    QueueError,
    QueueMissing,
    Unreachable,
)

_MEANINGS: Final[dict[str, type[QueueError]]] = {
    "MessageNotFound": LeaseGone,
    "PopReceiptMismatch": LeaseGone,
    "QueueNotFound": QueueMissing,
    "QueueBeingDeleted": QueueMissing,
    "QueueDisabled": QueueMissing,
    "MessageTooLarge": BodyTooLarge,
    "RequestBodyTooLarge": BodyTooLarge,
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
        return Unreachable(f"no answer: {type(error).__name__}", outcome_unknown=unknown)
    status = error.status_code or 0
    if isinstance(error, DecodeError) or status in _SUCCESS or not status:
        return Unreachable(f"an answer that cannot be read ({type(error).__name__})")
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
