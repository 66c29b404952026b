"""Service statistics and user delegation keys."""

from __future__ import annotations

from base64 import b64decode
from dataclasses import replace

import pytest

from leasehold.auth.delegation import DelegationScope, derive_value
from leasehold.auth.types import Account
from leasehold.http.requests import Response
from tests.unit.http.azure.support import ACCOUNT, BOM, Harness, error_of, root_of

_STATS = "restype=service&comp=stats"
_KEY = "restype=service&comp=userdelegationkey"


@pytest.mark.parametrize("path", [f"/{ACCOUNT}-secondary", f"/{ACCOUNT}-secondary/"])
def test_stats_of_the_secondary(azure: Harness, path: str) -> None:
    """The secondary address serves the same data, so it is always up to date."""
    response = azure.send("GET", path, _STATS)
    assert response.body == BOM + (
        b'<?xml version="1.0" encoding="utf-8"?><StorageServiceStats><GeoReplication>'
        b"<Status>live</Status><LastSyncTime>Thu, 01 Jan 2026 00:00:00 GMT</LastSyncTime>"
        b"</GeoReplication></StorageServiceStats>"
    )


def test_stats_of_the_primary(azure: Harness) -> None:
    """Only the secondary address has statistics."""
    status, code, details = error_of(azure.send("GET", f"/{ACCOUNT}", _STATS))
    assert (status, code) == (400, "InvalidQueryParameterValue")
    assert (details["QueryParameterName"], details["QueryParameterValue"]) == ("comp", "stats")


def _ask(
    azure: Harness, inner: str, version: str = "2026-04-06", root: str = "KeyInfo"
) -> Response:
    body = f"<?xml version='1.0' encoding='utf-8'?><{root}>{inner}</{root}>".encode()
    return azure.send("POST", f"/{ACCOUNT}/", _KEY, body=body, version=version, https=True)


_EXPIRY = "<Expiry>2026-01-08T00:00:00Z</Expiry>"


@pytest.mark.parametrize(
    ("inner", "start", "tenant"),
    [
        (_EXPIRY, "2026-01-01T00:00:00Z", ""),
        (f"<Start>2025-12-31T23:45:00Z</Start>{_EXPIRY}", "2025-12-31T23:45:00Z", ""),
        (f"{_EXPIRY}<DelegatedUserTid>abroad</DelegatedUserTid>", "2026-01-01T00:00:00Z", "abroad"),
    ],
)
def test_delegation_key(azure: Harness, inner: str, start: str, tenant: str) -> None:
    """The bearer of a token gets a key that says whose it is and how long it is good."""
    root = root_of(_ask(azure, inner))
    nodes = {child.tag: child.text for child in root}
    scope = DelegationScope(
        object_id="user",
        tenant_id="tenant",
        start=start,
        expiry="2026-01-08T00:00:00Z",
        service="q",
        version="2026-04-06",
        delegated_tenant_id=tenant,
    )
    value = nodes.pop("Value")
    account = Account(name=ACCOUNT, keys=(b"key of " + ACCOUNT.encode(),))
    expected_value = derive_value(ACCOUNT, account.keys[0], account.sealing_key(), scope)
    assert b64decode(value or "") == expected_value
    expected = {
        "SignedOid": "user",
        "SignedTid": "tenant",
        "SignedStart": start,
        "SignedExpiry": "2026-01-08T00:00:00Z",
        "SignedService": "q",
        "SignedVersion": "2026-04-06",
    }
    if tenant:
        expected["SignedDelegatedUserTid"] = tenant
    assert root.tag == "UserDelegationKey"
    assert list(nodes.items()) == list(expected.items())


@pytest.mark.parametrize(
    ("inner", "code", "node"),
    [
        ("", "MissingRequiredXmlNode", "Expiry"),
        ("<Start>2026-01-01T00:00:00Z</Start>", "MissingRequiredXmlNode", "Expiry"),
        ("<Expiry/>", "InvalidXmlNodeValue", "Expiry"),
        ("<Expiry>2026-01-08T00:00:01Z</Expiry>", "InvalidXmlNodeValue", "Expiry"),
        ("<Expiry>2026-01-01T00:00:00Z</Expiry>", "InvalidXmlNodeValue", "Expiry"),
        (f"<Start>tomorrow</Start>{_EXPIRY}", "InvalidXmlNodeValue", "Start"),
        (f"<Start>2026-02-01T00:00:00Z</Start>{_EXPIRY}", "InvalidXmlNodeValue", "Start"),
        (f"{_EXPIRY}<DelegatedUserTid>a&#10;b</DelegatedUserTid>", "InvalidXmlNodeValue", None),
        (f"{_EXPIRY}<Other/>", "UnsupportedXmlNode", "Other"),
    ],
)
def test_delegation_key_refusals(azure: Harness, inner: str, code: str, node: str | None) -> None:
    """A key ends within seven days of its start, and a tenant is one line."""
    status, found, details = error_of(_ask(azure, inner))
    assert (status, found) == (400, code)
    assert details["XmlNodeName"] == (node or "DelegatedUserTid")


def test_delegation_key_needs_its_document(azure: Harness) -> None:
    """Another root is another document."""
    assert error_of(_ask(azure, _EXPIRY, root="Other"))[1] == "InvalidXmlDocument"


@pytest.mark.parametrize(
    ("version", "inner", "code"),
    [
        ("2026-02-05", _EXPIRY, "FeatureVersionMismatch"),
        ("2026-04-05", f"{_EXPIRY}<DelegatedUserTid>x</DelegatedUserTid>", "UnsupportedXmlNode"),
    ],
)
def test_delegation_key_versions(azure: Harness, version: str, inner: str, code: str) -> None:
    """Keys exist since 2026-02-06, keys for another tenant since 2026-04-06."""
    assert error_of(_ask(azure, inner, version=version))[1] == code


def test_delegation_key_is_for_users(azure: Harness) -> None:
    """Credentials without a user behind them cannot have one."""
    azure.authenticator.grant = replace(azure.authenticator.grant, object_id=None)
    assert error_of(_ask(azure, _EXPIRY)) == (403, "AuthorizationFailure", {})
