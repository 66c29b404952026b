"""The table from errors of the domain and of authentication to those of the protocol."""

from __future__ import annotations

import pytest

from leasehold.auth import types as auth
from leasehold.domain import errors as domain
from leasehold.domain.commands import Complete, Put, Receive, Renew
from leasehold.http.azure.errors import CODES, TABLE, fault_of
from tests.unit.http.azure.support import (
    MESSAGE,
    MESSAGES,
    RECEIPT,
    Harness,
    error_of,
    header,
    message_xml,
)

Error = domain.LeaseholdError | auth.AuthError


def _parameter(name: str, value: str, reason: str) -> dict[str, str]:
    return {"QueryParameterName": name, "QueryParameterValue": value, "Reason": reason}


_RANGE = {
    "QueryParameterName": "n",
    "QueryParameterValue": "9",
    "MinimumAllowed": "1",
    "MaximumAllowed": "5",
}
_TTL = "messagettl must be greater than visibilitytimeout"
_SESSION = {"HeaderName": "x-ms-leasehold-session"}
_CASES: list[tuple[Error, int, str, dict[str, str]]] = [
    (domain.LeaseholdError(), 500, "InternalError", {}),
    (domain.QueueNotFound(), 404, "QueueNotFound", {}),
    (domain.QueueExists(), 409, "QueueAlreadyExists", {}),
    (domain.InvalidQueueName("a", "length"), 400, "OutOfRangeInput", {}),
    (domain.InvalidQueueName("A_b", "characters"), 400, "InvalidResourceName", {}),
    (domain.MessageNotFound(), 404, "MessageNotFound", {}),
    (domain.LeaseLost("superseded"), 404, "MessageNotFound", {}),
    (domain.LeaseLost("lapsed"), 404, "MessageNotFound", {}),
    (domain.LeaseLost("foreign"), 404, "MessageNotFound", {}),
    (
        domain.ReceiptMalformed("x"),
        400,
        "InvalidQueryParameterValue",
        _parameter("popreceipt", "x", "Invalid pop receipt format"),
    ),
    (
        domain.OutOfRange(field="n", value=9, minimum=1, maximum=5),
        400,
        "OutOfRangeQueryParameterValue",
        _RANGE,
    ),
    (
        domain.VisibilityPastExpiry("put", 30),
        400,
        "InvalidQueryParameterValue",
        _parameter("visibilitytimeout", "30", _TTL),
    ),
    (
        domain.VisibilityPastExpiry("renew", 30),
        400,
        "InvalidQueryParameterValue",
        _parameter(
            "visibilitytimeout",
            "30",
            "visibilitytimeout must not end after the message has expired",
        ),
    ),
    (
        domain.BodyTooLarge(size_bytes=70_000, limit_bytes=65_536),
        413,
        "RequestBodyTooLarge",
        {"MaxLimit": "65536"},
    ),
    (domain.InvalidMarker(), 400, "OutOfRangeInput", {}),
    (domain.MessageLeased("w1", 1), 500, "InternalError", {}),
    (domain.MessageNotLeased(), 500, "InternalError", {}),
    (domain.JobNotFound(), 500, "InternalError", {}),
    (domain.NamedTwice(), 500, "InternalError", {}),
    (domain.NotDone(), 500, "InternalError", {}),
    (domain.StreamNotFound(), 500, "InternalError", {}),
    (domain.StaleToken(2), 500, "InternalError", {}),
    (domain.ClaimNotFound(), 500, "InternalError", {}),
    (domain.ClaimOutOfTurn(1), 500, "InternalError", {}),
    (domain.ClaimSettled(1), 500, "InternalError", {}),
    (domain.ClaimLapsed(1), 500, "InternalError", {}),
    (domain.ClaimBroken(2, 1), 500, "InternalError", {}),
    (domain.MemberNotFound("m"), 500, "InternalError", {}),
    (domain.NoGroups(), 500, "InternalError", {}),
    (domain.GroupNotHeld(), 500, "InternalError", {}),
    (domain.StagedNotFound("t"), 500, "InternalError", {}),
    (domain.AlreadyPublished(), 500, "InternalError", {}),
    (domain.SettingsDiffer(), 500, "InternalError", {}),
    (domain.ChunkOutOfTurn(1), 500, "InternalError", {}),
    (domain.BodyUnreadable("id", "missing"), 500, "InternalError", {}),
    (domain.SessionNotFound(), 404, "ResourceNotFound", _SESSION),
    (domain.SessionOver("lost", "why"), 404, "ResourceNotFound", _SESSION),
    (domain.Unavailable(), 503, "ServerBusy", {}),
    (domain.StoreFull(), 503, "ServerBusy", {}),
    (domain.Overloaded(), 503, "ServerBusy", {}),
    (domain.Stopping(), 503, "ServerBusy", {}),
    (domain.AccountMoved("shop"), 503, "ServerBusy", {}),
    (domain.OutcomeUnknown(), 500, "OperationTimedOut", {}),
    (domain.NotReplicated(), 500, "OperationTimedOut", {}),
    (domain.StoreFailed(), 500, "OperationTimedOut", {}),
    (auth.AuthError(), 403, "AuthenticationFailed", {}),
    (auth.NoCredentials(), 401, "NoAuthenticationInformation", {}),
    (auth.MalformedCredentials(), 400, "InvalidAuthenticationInfo", {}),
    (auth.BadToken("old"), 401, "InvalidAuthenticationInfo", {"AuthenticationErrorDetail": "old"}),
    (
        auth.BadSignature("'GET\n'"),
        403,
        "AuthenticationFailed",
        {"AuthenticationErrorDetail": "'GET\n'"},
    ),
    (auth.NotAllowed(), 403, "AuthorizationFailure", {}),
    (
        auth.ForeignPage(),
        403,
        "AuthorizationFailure",
        {
            "AuthenticationErrorDetail": (
                "A web page of another origin needs a CORS rule that allows this request."
            )
        },
    ),
    (
        auth.CsrfTokenMissing("no token"),
        403,
        "AuthorizationFailure",
        {"AuthenticationErrorDetail": "no token"},
    ),
    (auth.PermissionMissing(), 403, "AuthorizationPermissionMismatch", {}),
    (auth.ProtocolMismatch(), 403, "AuthorizationProtocolMismatch", {}),
    (auth.SourceAddressMismatch(), 403, "AuthorizationSourceIPMismatch", {}),
    (auth.ServiceMismatch(), 403, "AuthorizationServiceMismatch", {}),
    (auth.ResourceTypeMismatch(), 403, "AuthorizationResourceTypeMismatch", {}),
    (auth.UnknownAccount("hidden"), 404, "ResourceNotFound", {}),
]


def _family(root: type[Exception]) -> set[type[Exception]]:
    return {root}.union(*[_family(child) for child in root.__subclasses__()])


def test_table_covers_every_error_class() -> None:
    """A new error class must be given a code, and a case below."""
    every = {
        kind
        for kind in _family(domain.LeaseholdError) | _family(auth.AuthError)
        if kind.__module__ in (domain.__name__, auth.__name__)
    }
    assert set(TABLE) == every
    assert {type(case[0]) for case in _CASES} == every


@pytest.mark.parametrize(("error", "status", "code", "details"), _CASES)
def test_each_error_has_its_answer(
    azure: Harness, error: Error, status: int, code: str, details: dict[str, str]
) -> None:
    """Status, code and details of an error are those of the protocol."""
    if isinstance(error, auth.AuthError):
        azure.authenticator.refusal = error
    else:
        azure.results[Receive] = error
    response = azure.send("GET", MESSAGES)
    assert error_of(response) == (status, code, details)
    assert header(response, "x-ms-error-code") == code
    assert header(response, "retry-after") == ("1" if status == 503 else None)
    assert (header(response, "www-authenticate") is not None) == (status == 401)


def test_unknown_subclass_is_treated_as_its_parent() -> None:
    """An error class from elsewhere gets the nearest code there is."""

    class DiskOnFire(domain.Unavailable):
        """The disk is on fire."""

    assert fault_of(DiskOnFire()).code == "ServerBusy"


def test_full_store_says_so(azure: Harness) -> None:
    """The one who reads the error learns that the disk is full, and that it is not his fault."""
    azure.results[Put] = domain.StoreFull()
    response = azure.send("POST", MESSAGES, body=message_xml("x"))
    assert b"disk of the server is full" in response.body


@pytest.mark.parametrize("code", sorted(CODES))
def test_codes_have_a_status_and_a_sentence(code: str) -> None:
    """Every code is complete, and its message ends like a sentence."""
    status, message = CODES[code]
    assert 400 <= status <= 503
    assert message.endswith(".")
    assert message.isascii()


def test_text_that_clients_compare() -> None:
    """Tests of client libraries look for this very sentence."""
    expected = "The request body is too large and exceeds the maximum permissible limit."
    assert CODES["RequestBodyTooLarge"].message == expected


def test_details_are_escaped(azure: Harness) -> None:
    """What a client sent comes back as text, never as markup, and always as legal XML."""
    azure.results[Complete] = domain.ReceiptMalformed('<a b="c">&\ufffe\0\r')
    response = azure.send("DELETE", MESSAGE, f"popreceipt={RECEIPT}")
    assert error_of(response)[2]["QueryParameterValue"] == '<a b="c">&\ufffd\ufffd\r'


@pytest.mark.parametrize("status", [404, 413, 503])
def test_head_has_headers_only(azure: Harness, status: int) -> None:
    """The error of a HEAD request is its code header."""
    errors: dict[int, Exception] = {
        404: auth.UnknownAccount(),
        413: domain.BodyTooLarge(size_bytes=2, limit_bytes=1),
        503: domain.Overloaded(),
    }
    code = fault_of(errors[status]).code  # type: ignore[arg-type]
    azure.authenticator.refusal = errors[status]  # type: ignore[assignment]
    response = azure.send("HEAD", MESSAGES.removesuffix("/messages"), "comp=metadata")
    assert (response.status, response.body) == (status, b"")
    assert header(response, "x-ms-error-code") == code
    assert header(response, "content-type") is None


def test_receipt_errors_of_an_update(azure: Harness) -> None:
    """A late worker's update is not found, as its delete is."""
    azure.results[Renew] = domain.LeaseLost("superseded")
    response = azure.send("PUT", MESSAGE, f"popreceipt={RECEIPT}&visibilitytimeout=1")
    assert error_of(response) == (404, "MessageNotFound", {})
