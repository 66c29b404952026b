"""What the official Python SDK signs with its own code is accepted."""

from __future__ import annotations

import random
from base64 import b64encode
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote, urlsplit

import pytest
from azure.core.pipeline.transport import HttpRequest
from azure.storage.queue import (
    AccountSasPermissions,
    QueueSasPermissions,
    ResourceTypes,
    generate_account_sas,
    generate_queue_sas,
)
from azure.storage.queue._shared.authentication import SharedKeyCredentialPolicy
from azure.storage.queue._shared.models import Services, UserDelegationKey

from leasehold.auth.authenticator import Authenticator, CredentialKind, Grant
from leasehold.auth.delegation import DelegationRequest, issue_user_delegation_key
from leasehold.auth.sharedkey import format_http_date
from leasehold.auth.types import BadSignature, Operation, SignedRequest
from tests.unit.auth.support import (
    ACCOUNT,
    ACCOUNTS,
    HOUR_MS,
    KEY_TEXT,
    NAME,
    NOON_MS,
    SECOND_KEY,
    no_policies,
    query_of,
    request,
    target,
)

pytestmark = pytest.mark.sdk

_EXPIRY = datetime(2030, 1, 1, tzinfo=UTC)
_START = datetime(2026, 11, 21, 11, 45, tzinfo=UTC)


def _sent(method: str, url: str, headers: dict[str, str], *, key: str = KEY_TEXT) -> SignedRequest:
    """Let the SDK sign a request, and return it as it arrives at the server."""
    own = {
        "x-ms-version": "2026-10-06",
        "x-ms-date": format_http_date(NOON_MS),
        "x-ms-client-request-id": "791898e2-0fcd-456b-a110-4aaf1215a8e4",
        "User-Agent": "azsdk-python-storage-queue/12.18.1",
        "Accept": "application/xml",
        **headers,
    }
    outgoing = HttpRequest(method, url, headers=own)
    carrier: Any = SimpleNamespace(
        http_request=outgoing, context=SimpleNamespace(transport=SimpleNamespace())
    )
    policy: Any = SharedKeyCredentialPolicy
    policy(NAME, key).on_request(carrier)
    parts = urlsplit(outgoing.url)
    return SignedRequest(
        method=method,
        path=parts.path,
        query=query_of(parts.query),
        headers={name.lower(): value.strip() for name, value in outgoing.headers.items()},
        version="2026-10-06",
        client_ip="10.0.0.7",
        https=False,
    )


def _check(arrived: SignedRequest, **more: Any) -> Grant:
    authenticator = Authenticator(ACCOUNTS, no_policies)
    return authenticator.check(arrived, target(**more), now_ms=NOON_MS)


_BASE = f"http://127.0.0.1:10001/{NAME}"


@pytest.mark.parametrize(
    ("method", "url", "headers"),
    [
        ("GET", f"{_BASE}?comp=list", {}),
        ("GET", f"{_BASE}/?comp=list&prefix=a%20b%2Fc&include=metadata&maxresults=5", {}),
        ("GET", f"{_BASE}/?restype=service&comp=properties", {}),
        ("PUT", f"{_BASE}/q1", {"Content-Length": "0"}),
        (
            "PUT",
            f"{_BASE}/q1?comp=metadata",
            {"x-ms-meta": "{'Foo': 'Bar'}", "x-ms-meta-Foo": "Bar", "Content-Length": "0"},
        ),
        (
            "POST",
            f"{_BASE}/q1/messages?visibilitytimeout=0&messagettl=-1",
            {"Content-Length": "120", "Content-Type": "application/xml"},
        ),
        ("GET", f"{_BASE}/q1/messages?numofmessages=32&visibilitytimeout=30&timeout=5", {}),
        ("GET", f"{_BASE}/q1/messages?numofmessages=1&peekonly=true", {}),
        ("DELETE", f"{_BASE}/q1/messages/a-b?popreceipt=AgAAAAMAAAA%2B%2F%3D%3D", {}),
        ("PUT", f"{_BASE}/q1/messages/a-b?popreceipt=AA-_&visibilitytimeout=0", {}),
        ("GET", f"https://{NAME}.queue.example.net/q1?comp=metadata", {}),
        ("GET", f"http://127.0.0.1:10001/{NAME}-secondary?restype=service&comp=stats", {}),
    ],
)
@pytest.mark.parametrize(("key", "number"), [(KEY_TEXT, 1), (b64encode(SECOND_KEY).decode(), 2)])
def test_requests_the_sdk_signs(
    method: str, url: str, headers: dict[str, str], key: str, number: int
) -> None:
    """Each request the SDK makes is accepted, signed with either key."""
    arrived = _sent(method, url, headers, key=key)
    assert _check(arrived, secondary="-secondary" in url).key_number == number
    with pytest.raises(BadSignature):
        _check(_sent(method, url, headers, key="AAAA"))


_IN_NAMES = "aabbczAB019-'-'_.~!*#$%&+^`|"


def test_many_random_requests() -> None:
    """Requests with random paths, parameters and metadata are all accepted.

    Whatever characters names of headers have: the SDK sorts them in an order of its own.
    """
    draw = random.Random(20261121)
    letters = "abcXYZ019_ -.~!*'()%/+:@&=?,;$é€"
    for _ in range(2_000):
        names = {"".join(draw.choices("abcdefghij", k=3)) for _ in range(draw.randint(0, 4))}
        query = "&".join(
            f"{name}={quote(''.join(draw.choices(letters, k=draw.randint(0, 9))), safe='')}"
            for name in names
        )
        path = quote("".join(draw.choices(letters, k=draw.randint(0, 9))))
        metadata = {
            f"x-ms-meta-{''.join(draw.choices(_IN_NAMES, k=draw.randint(1, 7)))}": "".join(
                draw.choices("abcXYZ019_  -.~!*'()", k=draw.randint(1, 9))
            ).strip()
            for _ in range(draw.randint(0, 4))
        }
        # Names that differ in case alone are one header on the wire.
        metadata = {name.lower(): value for name, value in metadata.items()}
        assert _check(_sent("PUT", f"{_BASE}/{path}?{query}", metadata))


@pytest.mark.parametrize("protocol", [None, "https", "https,http"])
@pytest.mark.parametrize("ip", [None, "10.0.0.7", "10.0.0.1-10.0.0.9"])
@pytest.mark.parametrize("start", [None, _START])
def test_signatures_the_sdk_makes(
    protocol: str | None, ip: str | None, start: datetime | None
) -> None:
    """Service and account signatures made by the SDK are accepted."""
    more: dict[str, Any] = {"expiry": _EXPIRY, "start": start, "ip": ip, "protocol": protocol}
    service = generate_queue_sas(
        NAME, "q1", KEY_TEXT, permission=QueueSasPermissions(read=True, add=True), **more
    )
    account = generate_account_sas(
        NAME,
        KEY_TEXT,
        ResourceTypes(service=True, container=True, object=True),
        AccountSasPermissions(read=True, write=True, process=True),
        services=Services(queue=True, blob=True),
        **more,
    )
    for token, kind in (
        (service, CredentialKind.SERVICE_SAS),
        (account, CredentialKind.ACCOUNT_SAS),
    ):
        assert _check(request(query=token), operation=Operation.PEEK_MESSAGES).kind is kind


def test_delegation_signatures_the_sdk_makes() -> None:
    """The SDK can sign with a delegation key issued here."""
    issued = issue_user_delegation_key(
        ACCOUNT,
        DelegationRequest(
            object_id="user",
            tenant_id="directory",
            version="2026-10-06",
            expires_at_ms=NOON_MS + HOUR_MS,
        ),
        now_ms=NOON_MS,
    )
    make: Any = UserDelegationKey
    key = make()
    key.signed_oid, key.signed_tid = issued.scope.object_id, issued.scope.tenant_id
    key.signed_start, key.signed_expiry = issued.scope.start, issued.scope.expiry
    key.signed_service, key.signed_version = issued.scope.service, issued.scope.version
    key.value = b64encode(issued.value).decode()
    token = generate_queue_sas(
        NAME, "q1", permission="raup", expiry=_EXPIRY, user_delegation_key=key
    )
    grant = _check(request(query=token), operation=Operation.PUT_MESSAGE)
    assert (grant.kind, grant.object_id) == (CredentialKind.USER_DELEGATION_SAS, "user")
