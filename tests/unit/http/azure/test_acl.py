"""Get and Set Queue ACL."""

from __future__ import annotations

import pytest

from leasehold.domain.commands import GetQueue, QueueInfo, SetQueuePolicies
from leasehold.domain.model import AccessPolicy, Queue
from tests.unit.http.azure.support import ACCOUNT, ACTOR, BOM, Harness, error_of

_QUEUE = f"/{ACCOUNT}/orders"


def _document(*entries: str) -> bytes:
    inner = "".join(f"<SignedIdentifier>{entry}</SignedIdentifier>" for entry in entries)
    return f"<?xml version='1.0'?>\n<SignedIdentifiers>{inner}</SignedIdentifiers>".encode()


def _policy(inner: str) -> bytes:
    return _document(f"<Id>a</Id><AccessPolicy>{inner}</AccessPolicy>")


@pytest.mark.parametrize(
    ("body", "policies"),
    [
        (b"", ()),
        (b"<SignedIdentifiers/>", ()),
        (b"<SignedIdentifiers>\n</SignedIdentifiers>", ()),
        (_document("<Id>a</Id>"), (AccessPolicy(policy_id="a", complete=False),)),
        (_document("<Id>a</Id><AccessPolicy/>"), (AccessPolicy(policy_id="a"),)),
        (
            _document("<AccessPolicy><Permission>raup</Permission></AccessPolicy><Id>a</Id>"),
            (AccessPolicy(policy_id="a", permission="raup"),),
        ),
        (
            _policy("<Start>2026-01-01</Start><Expiry>2026-01-02T00:00:00.0000000Z</Expiry>"),
            (
                AccessPolicy(
                    policy_id="a", start="2026-01-01", expiry="2026-01-02T00:00:00.0000000Z"
                ),
            ),
        ),
        (_policy("<Start/><Expiry></Expiry><Permission/>"), (AccessPolicy(policy_id="a"),)),
        (
            _document(*(f"<Id>{name * 64}</Id>" for name in "edcba")),
            tuple(AccessPolicy(policy_id=name * 64, complete=False) for name in "edcba"),
        ),
    ],
)
def test_set(azure: Harness, body: bytes, policies: tuple[AccessPolicy, ...]) -> None:
    """Policies are kept as sent: what is missing stays missing, the order stays."""
    assert azure.send("PUT", _QUEUE, "comp=acl", body=body).status == 204
    assert azure.command == SetQueuePolicies(ACCOUNT, "orders", policies, actor=ACTOR)


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"<", "InvalidXmlDocument"),
        (b"<Wrong/>", "InvalidXmlDocument"),
        (_document(*(f"<Id>{name}</Id>" for name in "abcdef")), "InvalidXmlDocument"),
        (_document("<Id>a</Id>", "<Id>a</Id>"), "InvalidXmlDocument"),
        (_document("<Id>a</Id><Id>b</Id>"), "InvalidXmlDocument"),
        (_document("<Id>a</Id>text"), "InvalidXmlDocument"),
        (_policy("<Permission>rx</Permission>"), "InvalidXmlDocument"),
        (_policy("<Permission>R</Permission>"), "InvalidXmlDocument"),
        (_document("<AccessPolicy/>"), "MissingRequiredXmlNode"),
        (_document(""), "MissingRequiredXmlNode"),
        (_document("<Id/>"), "InvalidXmlNodeValue"),
        (_document(f"<Id>{'a' * 65}</Id>"), "InvalidXmlNodeValue"),
        (_policy("<Start>soon</Start>"), "InvalidXmlNodeValue"),
        (_policy("<Expiry>2026-13-01</Expiry>"), "InvalidXmlNodeValue"),
        (b"<SignedIdentifiers><Other/></SignedIdentifiers>", "UnsupportedXmlNode"),
        (_document("<Id>a</Id><Other/>"), "UnsupportedXmlNode"),
        (_policy("<Other/>"), "UnsupportedXmlNode"),
        (_policy("<Start><b>2026-01-01</b></Start>"), "UnsupportedXmlNode"),
    ],
)
def test_set_refusals(azure: Harness, body: bytes, code: str) -> None:
    """Wrong structures and values are refused before anything is changed."""
    assert error_of(azure.send("PUT", _QUEUE, "comp=acl", body=body))[:2] == (400, code)
    assert azure.commands == []


def test_wrong_permission_has_no_place(azure: Harness) -> None:
    """The service gives line and position 0 for wrong permission letters."""
    body = _policy("<Permission>z</Permission>")
    details = error_of(azure.send("PUT", _QUEUE, "comp=acl", body=body))[2]
    assert (details["LineNumber"], details["LinePosition"]) == ("0", "0")
    assert details["Reason"]


def test_get(azure: Harness) -> None:
    """Times have seven fraction digits; what was left out is left out."""
    policies = (
        AccessPolicy(policy_id="a<b", complete=False),
        AccessPolicy(policy_id="b"),
        AccessPolicy(policy_id="c", start="2026-01-01", permission="ra"),
        AccessPolicy(policy_id="d", expiry="2026-01-01T02:00:00+02:00"),
    )
    queue = Queue(account=ACCOUNT, name="orders", policies=policies)
    azure.results[GetQueue] = QueueInfo(queue=queue, message_count=0)
    response = azure.send("GET", _QUEUE, "comp=acl")
    assert response.body == BOM + (
        b'<?xml version="1.0" encoding="utf-8"?><SignedIdentifiers>'
        b"<SignedIdentifier><Id>a&lt;b</Id></SignedIdentifier>"
        b"<SignedIdentifier><Id>b</Id><AccessPolicy /></SignedIdentifier>"
        b"<SignedIdentifier><Id>c</Id><AccessPolicy><Start>2026-01-01T00:00:00.0000000Z</Start>"
        b"<Permission>ra</Permission></AccessPolicy></SignedIdentifier>"
        b"<SignedIdentifier><Id>d</Id><AccessPolicy>"
        b"<Expiry>2026-01-01T00:00:00.0000000Z</Expiry></AccessPolicy></SignedIdentifier>"
        b"</SignedIdentifiers>"
    )


@pytest.mark.parametrize(("method", "end"), [("GET", b"<SignedIdentifiers />"), ("HEAD", b"")])
def test_get_nothing(azure: Harness, method: str, end: bytes) -> None:
    """A queue without policies has an empty list, and HEAD no body at all."""
    response = azure.send(method, _QUEUE, "comp=acl")
    assert azure.command == GetQueue(ACCOUNT, "orders")
    assert response.status == 200
    assert response.body.endswith(end)
    assert bool(response.body) == bool(end)
