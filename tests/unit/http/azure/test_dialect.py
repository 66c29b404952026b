"""The way of a request through the dialect: the order of checks, credentials, failures."""

from __future__ import annotations

import asyncio
import re
from base64 import b64encode
from hashlib import md5
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID

import pytest
from structlog.testing import capture_logs

from leasehold.auth import types as auth
from leasehold.auth.types import Operation
from leasehold.domain.command import AnyCommand
from leasehold.domain.commands import Clear, Put, Receive
from leasehold.domain.errors import QueueNotFound
from leasehold.http.azure import AzureDialect
from leasehold.http.azure.call import request_ids
from leasehold.http.azure.dialect import DEFAULT_AUTHORIZATION_URI
from leasehold.testing import ManualClock
from tests.unit.http.azure.support import (
    ACCOUNT,
    MESSAGE,
    MESSAGES,
    RECEIPT,
    FakeAuthenticator,
    Harness,
    error_of,
    header,
    make_request,
    message_xml,
    run,
)

_SECONDARY = f"/{ACCOUNT}-secondary"
_QUEUE = f"/{ACCOUNT}/orders"
_HI = message_xml("hi")


def test_what_the_authenticator_is_shown(azure: Harness) -> None:
    """It sees the request as sent, and what the dialect has understood."""
    azure.send("DELETE", f"{_SECONDARY}/orders/messages/a%41", "B=2%20x&a=1+", https=True)
    [(request, target)] = azure.authenticator.seen
    assert request.method == "DELETE"
    assert request.path == f"{_SECONDARY}/orders/messages/a%41"
    assert request.query == (("B", "2 x"), ("a", "1 "))
    assert request.headers["host"] == "127.0.0.1:10001"
    assert (request.version, request.client_ip, request.https) == ("2026-10-06", "127.0.0.1", True)
    assert target == auth.Target(
        account=ACCOUNT, operation=Operation.DELETE_MESSAGE, queue="orders", secondary=True
    )


def test_operation_without_a_queue_has_none(azure: Harness) -> None:
    """The target of an operation on the account names no queue."""
    azure.send("GET", f"/{ACCOUNT}", "comp=list")
    assert azure.authenticator.seen[0][1].queue is None


@pytest.mark.parametrize(
    ("header_value", "calls"),
    [
        *[(f"{word} x", 1) for word in ("Bearer", "bearer", "BEARER")],
        *[(text, 0) for text in ("", "Bearer", "BearerX x", "SharedKey a:b")],
    ],
)
def test_bearer_tokens_are_awaited(azure: Harness, header_value: str, calls: int) -> None:
    """A bearer token is checked in the way that may have to wait."""
    azure.send("GET", MESSAGES, headers={"authorization": header_value})
    assert azure.authenticator.bearer_calls == calls


@pytest.mark.parametrize(
    ("version", "status", "code"),
    [
        ("2019-12-12", 401, "NoAuthenticationInformation"),
        ("2026-10-06", 401, "NoAuthenticationInformation"),
        ("2019-12-11", 404, "ResourceNotFound"),
        (None, 404, "ResourceNotFound"),
    ],
)
def test_anonymous_requests(azure: Harness, version: str | None, status: int, code: str) -> None:
    """Nobody reads without credentials; since 2019-12-12 a challenge says where to get them."""
    azure.authenticator.refusal = auth.NoCredentials()
    response = azure.send("GET", MESSAGES, version=version)
    assert error_of(response)[:2] == (status, code)
    challenge = header(response, "www-authenticate")
    if status == 401:
        assert challenge == (
            "Bearer authorization_uri=https://login.example/common/oauth2/authorize "
            "resource_id=https://storage.azure.com"
        )
    else:
        assert challenge is None
    assert azure.commands == []


def test_placeholder_names_a_tenant() -> None:
    """Clients retry only if the first segment of the challenge's address is a UUID."""
    assert UUID(urlsplit(DEFAULT_AUTHORIZATION_URI).path.split("/")[1])


@pytest.mark.parametrize(
    ("version", "query", "status", "code"),
    [
        ("2015-04-05", "sig=x", 403, "AuthenticationFailed"),
        ("2015-04-04", "sig=x", 404, "ResourceNotFound"),
        ("2015-04-04", "", 403, "AuthenticationFailed"),
    ],
)
def test_refused_signatures_were_hidden_once(
    azure: Harness, version: str, query: str, status: int, code: str
) -> None:
    """Before 2015-04-05 a refused shared access signature was not found."""
    azure.authenticator.refusal = auth.BadSignature()
    assert error_of(azure.send("GET", MESSAGES, query, version=version))[:2] == (status, code)


@pytest.mark.parametrize(
    ("method", "path", "query", "options"),
    [
        ("GET", MESSAGES, "numofmessages=0", {}),
        ("GET", MESSAGES, "numofmessages=x", {}),
        ("DELETE", MESSAGE, "", {}),
        ("PUT", f"/{ACCOUNT}/Bad_Name", "", {}),
        ("PUT", _QUEUE, "", {"headers": {"x-ms-meta-": "x"}}),
        ("POST", MESSAGES, "", {"body": b"<"}),
        ("POST", MESSAGES, "", {"too_large": True}),
        ("POST", MESSAGES, "timeout=x", {"headers": {"if-match": "*"}}),
        ("DELETE", f"{_SECONDARY}/orders", "", {}),
        ("GET", f"/{ACCOUNT}", "restype=service&comp=stats", {}),
        ("PUT", _QUEUE, "comp=acl", {"version": "2009-09-19"}),
    ],
)
def test_credentials_come_before_everything_else(
    azure: Harness, method: str, path: str, query: str, options: dict[str, Any]
) -> None:
    """Somebody without rights learns nothing but that."""
    azure.authenticator.refusal = auth.NotAllowed()
    assert error_of(azure.send(method, path, query, **options))[1] == "AuthorizationFailure"
    azure.authenticator.refusal = None
    response = azure.send(method, path, query, **options)
    assert error_of(response)[1] != "AuthorizationFailure"
    assert azure.commands == []


def test_version_and_address_come_before_credentials(azure: Harness) -> None:
    """What names no operation cannot be authorised."""
    azure.authenticator.refusal = auth.NotAllowed()
    expected = [
        (("GET", MESSAGES, ""), {"version": "soon"}, "InvalidHeaderValue"),
        (("GET", f"{_QUEUE}/%zz", ""), {}, "InvalidUri"),
        (("GET", MESSAGES, "a=%"), {}, "RequestUrlFailedToParse"),
        (("PUT", MESSAGES, ""), {}, "UnsupportedHttpVerb"),
        (("BREW", MESSAGES, ""), {}, "InvalidHttpVerb"),
        (("GET", _QUEUE, "comp=pot"), {}, "InvalidQueryParameterValue"),
    ]
    for arguments, options, code in expected:
        assert error_of(azure.send(*arguments, **options))[1] == code
    assert azure.authenticator.seen == []


def test_wrong_verb_carries_allow(azure: Harness) -> None:
    """The answer to a wrong verb names the right ones."""
    response = azure.send("PATCH", MESSAGE)
    assert (response.status, header(response, "allow")) == (405, "DELETE, OPTIONS, PUT")


def test_missing_queue_is_not_found_for_those_with_rights(azure: Harness) -> None:
    """What the store says comes last."""
    azure.results[Receive] = QueueNotFound()
    assert error_of(azure.send("GET", MESSAGES)) == (404, "QueueNotFound", {})


@pytest.mark.parametrize(
    ("method", "path", "query", "served"),
    [
        ("GET", "/", "comp=list", True),
        ("GET", "/", "restype=service&comp=properties", True),
        ("GET", "/", "restype=service&comp=stats", True),
        ("PUT", "/", "restype=service&comp=properties", False),
        ("GET", "/orders", "comp=metadata", True),
        ("HEAD", "/orders", "comp=metadata", True),
        ("GET", "/orders", "comp=acl", True),
        ("PUT", "/orders", "", False),
        ("DELETE", "/orders", "", False),
        ("PUT", "/orders", "comp=metadata", False),
        ("PUT", "/orders", "comp=acl", False),
        ("GET", "/orders/messages", "peekonly=true", True),
        ("GET", "/orders/messages", "", False),
        ("POST", "/orders/messages", "", False),
        ("DELETE", "/orders/messages", "", False),
        ("PUT", "/orders/messages/id", f"popreceipt={RECEIPT}&visibilitytimeout=1", False),
        ("DELETE", "/orders/messages/id", f"popreceipt={RECEIPT}", False),
    ],
)
def test_secondary_address_is_read_only(
    azure: Harness, method: str, path: str, query: str, served: bool
) -> None:
    """The secondary serves reads; getting messages is a write."""
    response = azure.send(method, _SECONDARY + path, query)
    if served:
        assert response.status == 200
    else:
        assert error_of(response) == (403, "InsufficientAccountPermissions", {})
        assert azure.commands == []


@pytest.mark.parametrize(
    "name", ["if-match", "if-none-match", "if-modified-since", "if-unmodified-since"]
)
@pytest.mark.parametrize(("method", "path"), [("GET", MESSAGES), ("DELETE", _QUEUE)])
def test_conditions_are_not_supported(azure: Harness, name: str, method: str, path: str) -> None:
    """A condition that would be ignored is refused: the client counts on it."""
    response = azure.send(method, path, headers={name: "*"})
    assert error_of(response) == (400, "ConditionHeadersNotSupported", {})


_MD5 = b64encode(md5(_HI).digest()).decode()


@pytest.mark.parametrize(
    ("value", "code"),
    [
        (_MD5, None),
        ("", None),
        (b64encode(md5(b"").digest()).decode(), "Md5Mismatch"),
        ("abc", "InvalidMd5"),
        ("not base64!", "InvalidMd5"),
        ("é", "InvalidMd5"),
        (b64encode(b"short").decode(), "InvalidMd5"),
        (" " + _MD5, "InvalidMd5"),
    ],
)
def test_content_md5(azure: Harness, value: str, code: str | None) -> None:
    """A body that arrived differently from what was sent is not stored."""
    response = azure.send("POST", MESSAGES, body=_HI, headers={"content-md5": value})
    if code is None:
        assert response.status == 201
    else:
        assert error_of(response) == (400, code, {})
        assert azure.commands == []


@pytest.mark.parametrize(
    ("method", "path", "query"),
    [
        ("POST", MESSAGES, ""),
        ("PUT", _QUEUE, "comp=acl"),
        ("PUT", f"/{ACCOUNT}", "restype=service&comp=properties"),
        ("POST", f"/{ACCOUNT}", "restype=service&comp=userdelegationkey"),
    ],
)
def test_missing_length(azure: Harness, method: str, path: str, query: str) -> None:
    """An operation with a body wants to know how long it is, or that it comes in chunks."""
    request = make_request(method, path, query)
    headers = dict(request.headers)
    del headers["content-length"]
    request.headers = headers
    assert error_of(run(azure.dialect.handle(request))) == (411, "MissingContentLengthHeader", {})
    request.headers = headers | {"transfer-encoding": "chunked"}
    assert run(azure.dialect.handle(request)).status != 411


def test_operation_without_a_body_needs_no_length(azure: Harness) -> None:
    """Creating a queue has no body, so its length is no question."""
    request = make_request("PUT", _QUEUE)
    request.headers = {"x-ms-version": "2026-10-06"}
    assert run(azure.dialect.handle(request)).status == 201


@pytest.mark.parametrize(
    ("method", "path", "query", "body", "operation", "status"),
    [
        ("POST", MESSAGES, "", _HI, "put-message", 201),
        ("GET", MESSAGES, "", b"", "get-messages", 200),
        ("GET", MESSAGES, "peekonly=true", b"", "peek-messages", 200),
        ("GET", MESSAGES, "numofmessages=0", b"", "get-messages", 400),
        ("GET", "/", "", b"", "unknown", 400),
        ("BREW", MESSAGES, "", b"", "unknown", 400),
        ("GET", f"/{ACCOUNT}", "comp=list", b"", "list-queues", 200),
        ("OPTIONS", MESSAGES, "", b"", "preflight", 400),
    ],
)
def test_each_request_is_observed_once(
    azure: Harness,
    *,
    method: str,
    path: str,
    query: str,
    body: bytes,
    operation: str,
    status: int,
) -> None:
    """The metrics hear of every request, by operation and status."""
    assert azure.send(method, path, query, body=body).status == status
    assert azure.observed == [(operation, status)]


_SECRET = "hunter2"


@pytest.mark.parametrize("error", [ValueError(_SECRET), KeyError(_SECRET), AssertionError()])
def test_unexpected_failures(azure: Harness, error: Exception) -> None:
    """A failure nobody thought of is an internal error, logged once and without any secret."""
    azure.results[Receive] = error
    headers = {"authorization": f"SharedKey {_SECRET}"}
    with capture_logs() as logs:
        response = azure.send("GET", MESSAGES, f"numofmessages=1&sig={_SECRET}", headers=headers)
    assert error_of(response) == (500, "InternalError", {})
    [entry] = logs
    assert entry["action"] == "azure.internal_error"
    assert entry["operation"] == "get-messages"
    assert entry["request_id"] == header(response, "x-ms-request-id")
    assert entry["error"] == type(error).__name__
    assert _SECRET not in str(entry)
    assert azure.observed == [("get-messages", 500)]


def test_failing_authenticator(azure: Harness) -> None:
    """A failure on the way to a decision is never a yes."""

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError

    azure.authenticator.check = fail  # type: ignore[assignment, method-assign]
    with capture_logs():
        assert error_of(azure.send("DELETE", MESSAGES))[1] == "InternalError"
    assert azure.commands == []


def test_cancelled_request_stays_cancelled(azure: Harness) -> None:
    """The server can take a request back; that is no internal error."""

    async def perform(_: AnyCommand) -> Any:
        raise asyncio.CancelledError

    dialect = AzureDialect(
        perform=perform,
        authenticator=FakeAuthenticator(),
        clock=ManualClock(),
        accounts=azure.dialect._accounts,
    )
    with pytest.raises(asyncio.CancelledError):
        run(dialect.handle(make_request("DELETE", MESSAGES)))


def test_request_ids_are_unique_and_of_the_services_form(azure: Harness) -> None:
    """A GUID that ends in six zeros, another one each time."""
    ids = [header(azure.send("DELETE", MESSAGES), "x-ms-request-id") or "" for _ in range(50)]
    assert len(set(ids)) == 50
    for text in ids:
        assert str(UUID(text)) == text
        assert text.endswith("000000")


@pytest.mark.parametrize("entropy", [bytes(13), b"\xff" * 13, bytes(range(13))])
def test_request_ids_wrap_within_their_form(entropy: bytes) -> None:
    """The counter never grows out of its eight digits."""
    drawn = request_ids(entropy)
    for _ in range(3):
        assert re.fullmatch(
            rb"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-8[0-9a-f]{3}-[0-9a-f]{6}000000", drawn.draw()
        )


def test_two_processes_draw_different_ids() -> None:
    """The part that does not count is drawn at the start."""
    assert request_ids().draw()[8:] != request_ids().draw()[8:]


def test_error_without_a_version_has_the_newest_form(azure: Harness) -> None:
    """If even the query cannot be read, clients of today get what they look for."""
    response = azure.send("GET", MESSAGES, "%", headers={"x-ms-client-request-id": "c"})
    assert header(response, "x-ms-error-code") == "RequestUrlFailedToParse"
    assert header(response, "x-ms-client-request-id") == "c"
    assert header(response, "x-ms-version") is None


def test_many_requests_at_once() -> None:
    """Requests that wait for each other's batch do not disturb one another."""
    azure = Harness()
    gate = asyncio.Event()

    async def perform(command: AnyCommand) -> Any:
        await gate.wait()
        return await azure.perform(command)

    async def scenario() -> list[int]:
        dialect = AzureDialect(
            perform=perform,
            authenticator=azure.authenticator,
            clock=azure.clock,
            accounts=azure.dialect._accounts,
        )
        tasks = [
            asyncio.create_task(dialect.handle(make_request("POST", MESSAGES, body=_HI))),
            asyncio.create_task(dialect.handle(make_request("DELETE", MESSAGES))),
            asyncio.create_task(
                dialect.handle(
                    make_request(
                        "PUT",
                        f"/{ACCOUNT}",
                        "restype=service&comp=properties",
                        body=b"<StorageServiceProperties/>",
                    )
                )
            ),
        ]
        gate.set()
        return [(await task).status for task in tasks]

    assert asyncio.run(scenario()) == [201, 204, 202]
    assert {type(command) for command in azure.commands} == {Put, Clear}
