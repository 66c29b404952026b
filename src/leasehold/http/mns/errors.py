"""Errors: one table from every domain and authentication error to the protocol's own.

Source: MNS, "Error codes"; the texts are ours but for the one of an empty queue.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from leasehold.auth import mns
from leasehold.auth import types as auth
from leasehold.domain import errors as domain
from leasehold.http.app import NATIVE_ONLY, Meaning, translate

CODES: Final[dict[str, Meaning]] = {
    "AccessDenied": Meaning(403, "The access key does not allow this operation here."),
    "InternalError": Meaning(500, "The server met an internal error. Please try again."),
    "InternalServerError": Meaning(
        500, "The operation did not complete in time. It may or may not have taken effect."
    ),
    "InvalidAccessKeyId": Meaning(403, "The AccessKeyId does not exist."),
    "InvalidArgument": Meaning(400, "A value in the request is invalid."),
    "InvalidAuthorizationHeader": Meaning(
        400, "The Authorization header is not in the correct format."
    ),
    "InvalidDateHeader": Meaning(400, "The Date header is not in the correct format."),
    # The service spells it so.
    "InvalidDegist": Meaning(400, "The Content-MD5 header does not match the body received."),
    "InvalidQueryString": Meaning(400, "The query of the request cannot be read."),
    "InvalidQueueName": Meaning(
        400, "A queue name is made of letters, digits and dashes, and does not begin with a dash."
    ),
    "InvalidRequestURL": Meaning(400, "The URL of the request does not match any operation."),
    "InvalidVersionHeader": Meaning(400, "The x-mns-version header must be 2015-06-06."),
    "MalformedXML": Meaning(400, "The XML of the request is not well-formed."),
    "MessageNotExist": Meaning(404, "Message not exist."),
    "MissingAuthorizationHeader": Meaning(400, "The Authorization header is missing."),
    "MissingDateHeader": Meaning(400, "The Date header is missing."),
    "MissingReceiptHandle": Meaning(400, "The ReceiptHandle is missing."),
    "MissingVersionHeader": Meaning(400, "The x-mns-version header is missing."),
    "MissingVisibilityTimeout": Meaning(400, "The VisibilityTimeout is missing."),
    "QueueAlreadyExist": Meaning(
        409, "The queue exists already, and its attributes are not the ones sent."
    ),
    "QueueNameLengthError": Meaning(400, "A queue name has 1 to 256 characters."),
    "QueueNotExist": Meaning(404, "The queue does not exist."),
    "ReceiptHandleError": Meaning(400, "The receipt handle was not issued by this server."),
    "ServerBusy": Meaning(503, "The server is busy. Please try again."),
    "SignatureDoesNotMatch": Meaning(
        403, "The signature is not the one that the server has calculated."
    ),
    "TimeExpired": Meaning(408, "The date of the request is more than 15 minutes off."),
}


class Fault(Exception):
    """An error as the client will see it; ``message`` replaces that of the code."""

    def __init__(
        self,
        code: str,
        message: str | None = None,
        *,
        headers: tuple[tuple[bytes, bytes], ...] = (),
    ) -> None:
        super().__init__(code)
        meaning = CODES[code]
        self.code = code
        self.status = meaning.status
        self.message = message or meaning.message
        self.headers = headers


def invalid_argument(message: str) -> Fault:
    """Return the fault of a value that makes no sense."""
    return Fault("InvalidArgument", message)


def _plain(code: str) -> Callable[[Any], Fault]:
    return lambda _: Fault(code)


def _busy(message: str | None = None) -> Callable[[Any], Fault]:
    return lambda _: Fault("ServerBusy", message, headers=((b"Retry-After", b"1"),))


def _invalid_name(error: domain.InvalidQueueName) -> Fault:
    return Fault("QueueNameLengthError" if error.reason == "length" else "InvalidQueueName")


def _out_of_range(error: domain.OutOfRange) -> Fault:
    return invalid_argument(
        f"The value of {error.field} must be between {error.minimum} and {error.maximum}."
    )


def _past_expiry(error: domain.VisibilityPastExpiry) -> Fault:
    del error
    return invalid_argument("The message would expire before it becomes visible.")


def _too_large(error: domain.BodyTooLarge) -> Fault:
    return invalid_argument(
        f"The MessageBody has {error.size_bytes} bytes; the queue takes {error.limit_bytes}."
    )


_DATE_CODES: Final = {
    mns.DateProblem.MISSING: "MissingDateHeader",
    mns.DateProblem.INVALID: "InvalidDateHeader",
    mns.DateProblem.SKEWED: "TimeExpired",
}

TABLE: Final[dict[type[Exception], Callable[[Any], Fault]]] = {
    domain.LeaseholdError: _plain("InternalError"),
    **dict.fromkeys(NATIVE_ONLY, _plain("InternalError")),
    domain.SessionNotFound: _plain("InternalError"),
    domain.SessionOver: _plain("InternalError"),
    domain.QueueNotFound: _plain("QueueNotExist"),
    domain.QueueExists: _plain("QueueAlreadyExist"),
    domain.InvalidQueueName: _invalid_name,
    domain.MessageNotFound: _plain("MessageNotExist"),
    domain.LeaseLost: _plain("MessageNotExist"),
    domain.ReceiptMalformed: _plain("ReceiptHandleError"),
    domain.OutOfRange: _out_of_range,
    domain.VisibilityPastExpiry: _past_expiry,
    domain.BodyTooLarge: _too_large,
    domain.BodyUnreadable: _plain("InternalError"),
    domain.InvalidMarker: lambda _: invalid_argument("The marker was not issued by this server."),
    domain.Unavailable: _busy(),
    domain.StoreFull: _busy("The disk of the server is full; messages can still be consumed."),
    domain.Overloaded: _busy("Too many requests are waiting. Please try again."),
    domain.Stopping: _busy("The server is stopping. Please try again."),
    domain.AccountMoved: _busy(
        "The account was moved to another store; the server's account_stores must name it."
    ),
    domain.OutcomeUnknown: _plain("InternalServerError"),
    domain.NotReplicated: _plain("InternalServerError"),
    domain.StoreFailed: _plain("InternalServerError"),
    auth.AuthError: _plain("AccessDenied"),
    auth.NoCredentials: _plain("MissingAuthorizationHeader"),
    auth.MalformedCredentials: lambda error: Fault("InvalidAuthorizationHeader", error.detail),
    auth.UnknownAccount: _plain("InvalidAccessKeyId"),
    auth.BadSignature: lambda error: Fault("SignatureDoesNotMatch", error.detail),
    mns.BadDate: lambda error: Fault(_DATE_CODES[error.problem]),
}


def fault_of(error: domain.LeaseholdError | auth.AuthError) -> Fault:
    """Return what the protocol calls an error."""
    return translate(error, TABLE)
