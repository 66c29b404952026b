"""Errors: one table from every domain and authentication error to the protocol's own.

A :class:`Fault` is an error as the client will see it: a code of the protocol, its status and
message (:data:`CODES`), and details. The parts of the dialect raise faults themselves for what
the domain knows nothing of.

Source: "Common REST API error codes" and "Queue Storage error codes".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias

from leasehold.auth import types as auth
from leasehold.domain import errors as domain
from leasehold.http.app import NATIVE_ONLY, Meaning, translate

Details: TypeAlias = tuple[tuple[str, str], ...]


CODES: Final[dict[str, Meaning]] = {
    "AuthenticationFailed": Meaning(
        403, "The request could not be authenticated. Check the credentials and the signature."
    ),
    "AuthorizationFailure": Meaning(403, "These credentials do not allow this operation."),
    "AuthorizationPermissionMismatch": Meaning(
        403, "The credentials lack the permission for this operation."
    ),
    "AuthorizationProtocolMismatch": Meaning(403, "The signature does not allow this protocol."),
    "AuthorizationResourceTypeMismatch": Meaning(
        403, "The signature does not allow this type of resource."
    ),
    "AuthorizationServiceMismatch": Meaning(403, "The signature does not allow this service."),
    "AuthorizationSourceIPMismatch": Meaning(
        403, "The signature does not allow this client address."
    ),
    "ConditionHeadersNotSupported": Meaning(400, "Condition headers are not supported."),
    "CorsPreflightFailure": Meaning(403, "CORS is not enabled, or no rule matches this request."),
    "EmptyMetadataKey": Meaning(400, "The name of a metadata item is empty."),
    "FeatureVersionMismatch": Meaning(
        409, "The operation is not available in the version of this request."
    ),
    "InsufficientAccountPermissions": Meaning(
        403, "The account, or this endpoint of it, does not permit the operation."
    ),
    "InternalError": Meaning(500, "The server met an internal error. Please try again."),
    "InvalidAuthenticationInfo": Meaning(
        400, "The authentication information is not in the correct format."
    ),
    "InvalidHeaderValue": Meaning(400, "The value of a header is not in the correct format."),
    "InvalidHttpVerb": Meaning(400, "The HTTP verb is unknown."),
    "InvalidMd5": Meaning(400, "The Content-MD5 header is not a valid MD5 value."),
    "InvalidMetadata": Meaning(
        400, "The metadata is invalid: a name must be an identifier, a value printable text."
    ),
    "InvalidQueryParameterValue": Meaning(
        400, "The value of a query parameter in the request URI is invalid."
    ),
    "InvalidResourceName": Meaning(400, "The resource name contains invalid characters."),
    "InvalidUri": Meaning(400, "The request URI does not name a resource of this server."),
    "InvalidXmlDocument": Meaning(400, "The XML of the request is not valid."),
    "InvalidXmlNodeValue": Meaning(400, "The value of an XML node is not in the correct format."),
    "Md5Mismatch": Meaning(400, "The Content-MD5 header does not match the body received."),
    "MessageNotFound": Meaning(404, "The specified message does not exist."),
    "MetadataTooLarge": Meaning(400, "The metadata is larger than permitted."),
    "MissingContentLengthHeader": Meaning(411, "The Content-Length header is missing."),
    "MissingRequiredHeader": Meaning(400, "A header that this request must have is missing."),
    "MissingRequiredQueryParameter": Meaning(
        400, "A query parameter that this request must have is missing."
    ),
    "MissingRequiredXmlNode": Meaning(400, "An XML node that the body must have is missing."),
    "NoAuthenticationInformation": Meaning(
        401, "The request carries no credentials. Present a bearer token or sign the request."
    ),
    "OperationTimedOut": Meaning(
        500, "The operation did not complete in time. It may or may not have taken effect."
    ),
    "OutOfRangeInput": Meaning(400, "An input of the request is out of range."),
    "OutOfRangeQueryParameterValue": Meaning(
        400, "The value of a query parameter in the request URI is out of range."
    ),
    "QueueAlreadyExists": Meaning(409, "The specified queue already exists."),
    "QueueNotFound": Meaning(404, "The specified queue does not exist."),
    "RequestBodyTooLarge": Meaning(
        # Client libraries are known to compare this text.
        413,
        "The request body is too large and exceeds the maximum permissible limit.",
    ),
    "RequestUrlFailedToParse": Meaning(400, "The URL of the request could not be parsed."),
    "ResourceNotFound": Meaning(404, "The specified resource does not exist."),
    "ServerBusy": Meaning(503, "The server is busy. Please try again."),
    "UnsupportedHttpVerb": Meaning(405, "The resource does not support this HTTP verb."),
    "UnsupportedQueryParameter": Meaning(
        400, "A query parameter is not supported in the version of this request."
    ),
    "UnsupportedXmlNode": Meaning(400, "An XML node of the body is not supported."),
}


class Fault(Exception):
    """An error as the client will see it; ``status`` and ``message`` replace those of the code."""

    def __init__(
        self,
        code: str,
        details: Details = (),
        *,
        status: int | None = None,
        message: str | None = None,
        headers: tuple[tuple[bytes, bytes], ...] = (),
    ) -> None:
        super().__init__(code)
        meaning = CODES[code]
        self.code = code
        self.details = details
        self.status = status or meaning.status
        self.message = message or meaning.message
        self.headers = headers


def invalid_parameter(name: str, value: str, reason: str) -> Fault:
    """Return the fault of a query parameter that cannot be read or makes no sense."""
    return Fault(
        "InvalidQueryParameterValue",
        (("QueryParameterName", name), ("QueryParameterValue", value), ("Reason", reason)),
    )


def invalid_header(name: str, value: str) -> Fault:
    """Return the fault of a header that cannot be read."""
    return Fault("InvalidHeaderValue", (("HeaderName", name), ("HeaderValue", value)))


def body_too_large(limit_bytes: int) -> Fault:
    """Return the fault of a body, or a message, of more than *limit_bytes*."""
    return Fault("RequestBodyTooLarge", (("MaxLimit", str(limit_bytes)),))


def _invalid_name(error: domain.InvalidQueueName) -> Fault:
    return Fault("OutOfRangeInput" if error.reason == "length" else "InvalidResourceName")


_HEADERS: Final = {"visibility_timeout_s": "x-ms-leasehold-visibility-timeout"}
"""What a request of this dialect calls fields that the store checks."""


def _out_of_range(error: domain.OutOfRange) -> Fault:
    return Fault(
        "OutOfRangeQueryParameterValue",
        (
            ("QueryParameterName", _HEADERS.get(error.field, error.field)),
            ("QueryParameterValue", str(error.value)),
            ("MinimumAllowed", str(error.minimum)),
            ("MaximumAllowed", str(error.maximum)),
        ),
    )


_PAST_EXPIRY: Final = {
    "put": "messagettl must be greater than visibilitytimeout",
    "renew": "visibilitytimeout must not end after the message has expired",
    "release": "visibilitytimeout must not end after the message has expired",
}


def _past_expiry(error: domain.VisibilityPastExpiry) -> Fault:
    value = str(error.visibility_timeout_s)
    return invalid_parameter("visibilitytimeout", value, _PAST_EXPIRY[error.verb])


def _malformed_receipt(error: domain.ReceiptMalformed) -> Fault:
    return invalid_parameter("popreceipt", error.receipt, "Invalid pop receipt format")


def _no_session(error: domain.SessionNotFound | domain.SessionOver) -> Fault:
    """For a worker both mean that it needs a new session."""
    text = "The session does not exist, or it ended long ago."
    if isinstance(error, domain.SessionOver):
        reason = f": {error.reason}" if error.reason else ""
        text = f"The session has ended ({error.state}{reason})."
    return Fault("ResourceNotFound", (("HeaderName", "x-ms-leasehold-session"),), message=text)


def _busy(message: str | None = None) -> Callable[[Any], Fault]:
    return lambda _: Fault("ServerBusy", message=message, headers=((b"retry-after", b"1"),))


def _plain(code: str) -> Callable[[Any], Fault]:
    return lambda _: Fault(code)


def _with_detail(code: str, status: int | None = None) -> Callable[[auth.AuthError], Fault]:
    def fault(error: auth.AuthError) -> Fault:
        details = (("AuthenticationErrorDetail", error.detail),) if error.detail else ()
        return Fault(code, details, status=status)

    return fault


TABLE: Final[dict[type[Exception], Callable[[Any], Fault]]] = {
    domain.LeaseholdError: _plain("InternalError"),
    **dict.fromkeys(NATIVE_ONLY, _plain("InternalError")),
    domain.QueueNotFound: _plain("QueueNotFound"),
    domain.QueueExists: _plain("QueueAlreadyExists"),
    domain.InvalidQueueName: _invalid_name,
    domain.MessageNotFound: _plain("MessageNotFound"),
    # Documented as PopReceiptMismatch; the service answers 404, and clients wait for that.
    domain.LeaseLost: _plain("MessageNotFound"),
    domain.ReceiptMalformed: _malformed_receipt,
    domain.OutOfRange: _out_of_range,
    domain.VisibilityPastExpiry: _past_expiry,
    domain.BodyTooLarge: lambda error: body_too_large(error.limit_bytes),
    # Documented as InvalidMarker; the service answers this.
    domain.InvalidMarker: _plain("OutOfRangeInput"),
    domain.BodyUnreadable: _plain("InternalError"),
    domain.SessionNotFound: _no_session,
    domain.SessionOver: _no_session,
    domain.Unavailable: _busy(),
    domain.StoreFull: _busy("The disk of the server is full; messages can still be consumed."),
    domain.Overloaded: _busy("Too many requests are waiting. Please try again."),
    domain.Stopping: _busy("The server is stopping. Please try again."),
    domain.AccountMoved: _busy(
        "The account was moved to another store; the server's account_stores must name it."
    ),
    domain.OutcomeUnknown: _plain("OperationTimedOut"),
    domain.NotReplicated: _plain("OperationTimedOut"),
    domain.StoreFailed: _plain("OperationTimedOut"),
    auth.AuthError: _with_detail("AuthenticationFailed"),
    auth.NoCredentials: _with_detail("NoAuthenticationInformation"),
    auth.MalformedCredentials: _with_detail("InvalidAuthenticationInfo"),
    auth.BadToken: _with_detail("InvalidAuthenticationInfo", 401),
    auth.BadSignature: _with_detail("AuthenticationFailed"),
    auth.NotAllowed: _with_detail("AuthorizationFailure"),
    auth.ForeignPage: _with_detail("AuthorizationFailure"),
    auth.CsrfTokenMissing: _with_detail("AuthorizationFailure"),
    auth.PermissionMissing: _with_detail("AuthorizationPermissionMismatch"),
    auth.ProtocolMismatch: _with_detail("AuthorizationProtocolMismatch"),
    auth.SourceAddressMismatch: _with_detail("AuthorizationSourceIPMismatch"),
    auth.ServiceMismatch: _with_detail("AuthorizationServiceMismatch"),
    auth.ResourceTypeMismatch: _with_detail("AuthorizationResourceTypeMismatch"),
    auth.UnknownAccount: _plain("ResourceNotFound"),
}


def fault_of(error: domain.LeaseholdError | auth.AuthError) -> Fault:
    """Return what the protocol calls an error."""
    return translate(error, TABLE)
