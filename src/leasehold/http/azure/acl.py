"""Get and Set Queue ACL: the stored access policies of a queue.

Source: "Get Queue ACL", "Set Queue ACL" and "Define a stored access policy".
"""

from __future__ import annotations

from leasehold.domain.commands import GetQueue, QueueInfo, SetQueuePolicies
from leasehold.domain.types import AccessPolicy
from leasehold.http.azure.call import Call
from leasehold.http.azure.dates import normal_iso8601
from leasehold.http.azure.errors import Fault
from leasehold.http.azure.xml_in import Element, invalid_document, parse_tree
from leasehold.http.azure.xml_nodes import (
    child_texts,
    children_by_name,
    invalid_value,
    missing_node,
)
from leasehold.http.azure.xml_out import element, parent
from leasehold.http.messages import Response

MAX_POLICIES = 5
MAX_ID_CHARS = 64
_PERMISSIONS = frozenset("raup")


def parse_set_acl(call: Call) -> SetQueuePolicies:
    """Read Set Queue ACL; an empty body, or root, removes all policies."""
    body = call.request.body
    policies = read_policies(parse_tree(body)) if body else ()
    return SetQueuePolicies(call.account, call.route.queue, policies)


def read_policies(root: Element) -> tuple[AccessPolicy, ...]:
    """Read ``SignedIdentifiers``. What is left out stays out.

    Raises:
        Fault: The structure or a value is wrong, there are too many policies, or two of one name.
    """
    if root.name != "SignedIdentifiers":
        raise invalid_document("The root element must be SignedIdentifiers", at=root)
    entries = list(root.children())
    if len(entries) > MAX_POLICIES:
        raise invalid_document(f"At most {MAX_POLICIES} policies are allowed", at=root)
    policies = tuple(_read_policy(entry) for entry in entries)
    if len({policy.policy_id for policy in policies}) < len(policies):
        raise invalid_document("Two policies have the same Id", at=root)
    return policies


def _read_policy(entry: Element) -> AccessPolicy:
    if entry.name != "SignedIdentifier":
        raise Fault("UnsupportedXmlNode", (("XmlNodeName", entry.name),))
    nodes = children_by_name(entry, ("Id", "AccessPolicy"))
    if "Id" not in nodes:
        raise missing_node("Id")
    policy_id = nodes["Id"].text()
    if not 1 <= len(policy_id) <= MAX_ID_CHARS:
        raise invalid_value(nodes["Id"], f"An Id has 1 to {MAX_ID_CHARS} characters")
    if "AccessPolicy" not in nodes:
        return AccessPolicy(policy_id=policy_id, complete=False)
    texts = child_texts(nodes["AccessPolicy"], ("Start", "Expiry", "Permission"))
    return AccessPolicy(
        policy_id=policy_id,
        start=_time(nodes["AccessPolicy"], texts.get("Start")),
        expiry=_time(nodes["AccessPolicy"], texts.get("Expiry")),
        permission=_permission(texts.get("Permission")),
    )


def _time(policy: Element, text: str | None) -> str | None:
    if not text:
        return None
    try:
        normal_iso8601(text)
    except ValueError:
        raise invalid_value(policy, "A time is not in ISO 8601 form", value=text) from None
    return text


def _permission(text: str | None) -> str | None:
    if not text:
        return None
    if not _PERMISSIONS.issuperset(text):
        raise invalid_document("The permission is not out of the letters r, a, u and p")
    return text


def parse_get_acl(call: Call) -> GetQueue:
    """Read Get Queue ACL."""
    return GetQueue(call.account, call.route.queue)


def render_acl(call: Call, info: QueueInfo) -> Response:
    """Write the answer to Get Queue ACL; times have seven fraction digits."""
    entries = (_entry(policy) for policy in info.queue.policies)
    return call.reply_xml(200, parent("SignedIdentifiers", *entries))


def _entry(policy: AccessPolicy) -> bytes:
    nodes = [element("Id", policy.policy_id)]
    if policy.complete:
        inner = []
        if policy.start is not None:
            inner.append(element("Start", normal_iso8601(policy.start)))
        if policy.expiry is not None:
            inner.append(element("Expiry", normal_iso8601(policy.expiry)))
        if policy.permission is not None:
            inner.append(element("Permission", policy.permission))
        nodes.append(parent("AccessPolicy", *inner))
    return parent("SignedIdentifier", *nodes)
