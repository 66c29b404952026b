"""Get User Delegation Key: a key for signing shared access signatures, for the bearer of a token.

Source: "Get User Delegation Key (Azure Queue Storage)".
"""

from __future__ import annotations

from base64 import b64encode

from leasehold.auth.authenticator import Grant
from leasehold.auth.delegation import (
    DelegationRequest,
    UserDelegationKey,
    issue_user_delegation_key,
)
from leasehold.auth.times import parse_iso_time
from leasehold.auth.types import Account, NotAllowed
from leasehold.domain.errors import OutOfRange
from leasehold.http.azure.call import Call
from leasehold.http.azure.versions import DELEGATED_TENANT_SINCE
from leasehold.http.azure.xml_in import Element, invalid_document, parse_tree
from leasehold.http.azure.xml_nodes import children_by_name, invalid_value, missing_node
from leasehold.http.azure.xml_out import element, parent
from leasehold.http.messages import Response

_MAX_ID_CHARS = 128
_REASONS = {
    "start": "The start must be at most seven days ahead",
    "expiry": "The expiry must be later than now and the start, by at most seven days",
}


def get_delegation_key(call: Call, account: Account, grant: Grant) -> Response:
    """Answer Get User Delegation Key.

    Raises:
        Fault: The request's body is not one, or asks for a time that is not to be had.
        NotAllowed: The grant is not that of a user.
    """
    if grant.object_id is None or grant.tenant_id is None:
        raise NotAllowed
    root = parse_tree(call.request.body)
    if root.name != "KeyInfo":
        raise invalid_document("The root element must be KeyInfo", at=root)
    known = ["Start", "Expiry"]
    if call.version.text >= DELEGATED_TENANT_SINCE:
        known.append("DelegatedUserTid")
    nodes = children_by_name(root, known)
    if "Expiry" not in nodes:
        raise missing_node("Expiry")
    wish = DelegationRequest(
        object_id=grant.object_id,
        tenant_id=grant.tenant_id,
        version=call.version.text,
        expires_at_ms=_moment(nodes["Expiry"]),
        starts_at_ms=_moment(nodes["Start"]) if "Start" in nodes else None,
        delegated_tenant_id=_tenant(nodes.get("DelegatedUserTid")),
    )
    try:
        key = issue_user_delegation_key(account, wish, now_ms=call.now_ms)
    except OutOfRange as error:
        node = nodes.get("Start" if error.field == "start" else "Expiry", root)
        raise invalid_value(node, _REASONS[error.field]) from None
    return call.reply_xml(200, _render(key))


def _moment(node: Element) -> int:
    at_ms = parse_iso_time(node.text().strip())
    if at_ms is None:
        raise invalid_value(node, "The time is not in ISO 8601 form")
    return at_ms


def _tenant(node: Element | None) -> str:
    text = "" if node is None else node.text().strip()
    # It becomes a field of a string to sign, where a line break would make it two.
    if node is not None and (len(text) > _MAX_ID_CHARS or not text.isprintable()):
        raise invalid_value(node, "The tenant is not an identifier")
    return text


def _render(key: UserDelegationKey) -> bytes:
    scope = key.scope
    nodes = [
        element("SignedOid", scope.object_id),
        element("SignedTid", scope.tenant_id),
        element("SignedStart", scope.start),
        element("SignedExpiry", scope.expiry),
        element("SignedService", scope.service),
        element("SignedVersion", scope.version),
    ]
    if scope.delegated_tenant_id:
        nodes.append(element("SignedDelegatedUserTid", scope.delegated_tenant_id))
    nodes.append(element("Value", b64encode(key.value).decode("ascii")))
    return parent("UserDelegationKey", *nodes)
