"""From the errors of the native client to those of queues."""

from __future__ import annotations

from typing import Final

from leasehold.client import errors as native
from leasehold.worker.queues.errors import (
    BodyTooLarge,
    Denied,
    LeaseGone,
    PastExpiry,
    QueueError,
    QueueMissing,
    Unreachable,
)

_MEANINGS: Final[tuple[tuple[type[Exception], type[QueueError]], ...]] = (
    (native.LeaseLost, LeaseGone),
    (native.MessageNotFound, LeaseGone),
    (native.SessionOver, LeaseGone),
    (native.SessionNotFound, LeaseGone),
    (native.QueueNotFound, QueueMissing),
    (native.BodyTooLarge, BodyTooLarge),
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
