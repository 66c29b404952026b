"""The operations on queues: create, delete, metadata.

Source: "Operations on queues (Azure Queue Storage)" and "Naming queues and metadata".
"""

from __future__ import annotations

import re
from typing import Final

from leasehold.domain.admin import COUNTED_STATES
from leasehold.domain.commands import (
    CreateQueue,
    DeleteQueue,
    GetQueue,
    ListQueues,
    QueueCreated,
    QueueInfo,
    QueuePage,
    SetQueueMetadata,
    SetQueuePolicies,
)
from leasehold.domain.errors import InvalidMarker, InvalidQueueName
from leasehold.domain.limits import (
    MAX_POLICIES,
    MAX_POLICY_ID,
    METADATA_NAME,
    POLICY_PERMISSIONS,
    RESERVED_METADATA,
    check_azure_queue_name,
    check_queue_name,
)
from leasehold.domain.model import AccessPolicy, Queue
from leasehold.http.azure.call import Call, normal_iso8601, optional_integer
from leasehold.http.azure.errors import Fault, invalid_parameter
from leasehold.http.azure.xml import (
    child_texts,
    children_by_name,
    element,
    invalid_document,
    invalid_value,
    is_xml_name,
    missing_node,
    parent,
    parse_tree,
)
from leasehold.http.requests import Request, Response
from leasehold.http.xml import Element, escape

# A client library sends a stray "x-ms-meta" as well; without the dash it is no metadata.
_PREFIX: Final = "x-ms-meta-"
_OURS: Final = b"x-leasehold-"
_ADVISED: Final = ("first_lease_s", "renew_every_s", "batch")
"""Advice for workers that is shown as metadata beside the visibility timeout."""
_MAX_METADATA_BYTES: Final = 8192
_VALUE: Final = re.compile(r"[\t\x20-\x7e\xa0-\xff]*")


def read_metadata(request: Request) -> dict[str, str]:
    """Return the metadata among the headers: names without the prefix, in the case they came in.

    Raises:
        Fault: A name is empty or no identifier, a value is not header text, or all of them
            together are larger than 8 KiB.
    """
    metadata = {}
    size = 0
    spellings = request.raw_header_names or {}
    for header, value in request.headers.items():
        if not header.startswith(_PREFIX):
            continue
        name = spellings.get(header, header)[len(_PREFIX) :]
        if name.lower().startswith(RESERVED_METADATA):
            continue  # ours, sent back by a client that read all metadata and writes them again
        if not name:
            raise Fault("EmptyMetadataKey")
        if METADATA_NAME.fullmatch(name) is None or _VALUE.fullmatch(value) is None:
            raise Fault("InvalidMetadata")
        metadata[name] = value
        size += len(name) + len(value)
    if size > _MAX_METADATA_BYTES:
        raise Fault("MetadataTooLarge")
    return metadata


def parse_create(call: Call) -> CreateQueue:
    """Read Create Queue."""
    return CreateQueue(
        call.account, call.route.queue, read_metadata(call.request), actor=call.actor
    )


def render_create(call: Call, result: QueueCreated) -> Response:
    """Write the answer to Create Queue."""
    return call.reply(201 if result.created else 204)


def parse_delete(call: Call) -> DeleteQueue:
    """Read Delete Queue."""
    return DeleteQueue(call.account, call.route.queue, call.actor)


def parse_get_metadata(call: Call) -> GetQueue:
    """Read Get Queue Metadata."""
    return GetQueue(call.account, call.route.queue, with_counts=True)


def render_metadata(call: Call, info: QueueInfo) -> Response:
    """Write the answer to Get Queue Metadata: headers only."""
    return call.reply(
        200,
        (b"x-ms-approximate-messages-count", b"%d" % info.message_count),
        *(
            (_PREFIX.encode() + name.encode("latin-1"), value.encode("latin-1"))
            for name, value in info.queue.metadata.items()
        ),
        *_count_headers(call, info),
    )


def _count_headers(call: Call, info: QueueInfo) -> list[tuple[bytes, bytes]]:
    """Return what this server tells besides: counts by state, ages, the timeout in force."""
    headers = []
    counts, settings = info.counts, info.queue.settings
    if counts is not None:
        for state in COUNTED_STATES:
            headers.append((_OURS + state.encode() + b"-messages", b"%d" % getattr(counts, state)))
            since_ms = counts.since.get(state)
            if since_ms is not None:
                age_s = max(0, call.now_ms - since_ms) // 1000
                headers.append((_OURS + b"oldest-" + state.encode() + b"-age", b"%d" % age_s))
        headers.append((_OURS + b"claimed-messages", b"%d" % counts.claimed))
        headers.append((_OURS + b"staged-messages", b"%d" % counts.staged))
    timeout = b"%d" % settings.lease_s()
    headers.append((_OURS + b"visibility-timeout", timeout))
    # Also where client libraries look, so that workers can follow it.
    told = _PREFIX.encode() + RESERVED_METADATA.encode()
    advised = settings.advised
    if settings.adaptive is not None or advised is not None:
        headers.append((told + b"visibility_timeout_s", timeout))
    if advised is not None:
        for name in _ADVISED:
            value = getattr(advised, name)
            if value is not None:
                headers.append((told + name.encode(), b"%d" % value))
    return headers


def parse_set_metadata(call: Call) -> SetQueueMetadata:
    """Read Set Queue Metadata; no metadata at all removes what there is."""
    return SetQueueMetadata(call.account, call.route.queue, read_metadata(call.request), call.actor)


# --- listing -----------------------------------------------------------------------------------
#
# List Queues.
#
# Queues that other protocols have made with a name that Azure does not allow are left out:
# whatever a client finds here it can use.
#
# Source: "List Queues (Azure Queue Storage)".


MAX_RESULTS: Final = 5000
"""Queues on a page; who asks for more gets as many."""
_ASKED_RESULTS: Final = (1, 2**31 - 1)


def parse_list(call: Call) -> ListQueues:
    """Read List Queues."""
    params = call.params
    _wants_metadata(call)  # for its refusal
    return ListQueues(
        call.account,
        params.get("prefix", ""),
        _start_of(params.get("marker", ""), call.account),
        min(optional_integer(params, "maxresults", MAX_RESULTS, _ASKED_RESULTS), MAX_RESULTS),
    )


def _start_of(marker: str, account: str) -> str:
    """Return the queue at which a page starts; a marker is ``/{account}/{queue}``."""
    if not marker:
        return ""
    name = marker.removeprefix(f"/{account}/")
    try:
        check_queue_name(name)  # the next one may be one that is left out
    except InvalidQueueName:
        raise InvalidMarker from None
    if name == marker:
        raise InvalidMarker
    return name


def _wants_metadata(call: Call) -> bool:
    include = call.params.get("include", "")
    wanted = {part.strip().lower() for part in include.split(",")} - {""}
    if not wanted <= {"metadata"}:
        raise invalid_parameter("include", include, "The only value is metadata.")
    return bool(wanted)


def render_list(call: Call, page: QueuePage) -> Response:
    """Write the answer to List Queues."""
    with_metadata = _wants_metadata(call)
    nodes = [
        element(name, call.params[parameter])
        for name, parameter in (
            ("Prefix", "prefix"),
            ("Marker", "marker"),
            ("MaxResults", "maxresults"),
        )
        if call.params.get(parameter)
    ]
    queues = [
        _queue_entry(call, queue, with_metadata=with_metadata)
        for queue in page.queues
        if _is_azure_name(queue.name)
    ]
    nodes.append(parent("Queues", *queues))
    marker = "" if page.next_start is None else f"/{call.account}/{page.next_start}"
    nodes.append(element("NextMarker", marker))
    # The older attribute holds the address as well, in spite of its name.
    attribute = b"ServiceEndpoint" if call.version.cors else b"AccountName"
    return call.reply_xml(
        200,
        b'<EnumerationResults %b="%b">%b</EnumerationResults>'
        % (attribute, escape(_endpoint(call)), b"".join(nodes)),
    )


def _is_azure_name(name: str) -> bool:
    try:
        check_azure_queue_name(name)
    except InvalidQueueName:
        return False
    return True


def _endpoint(call: Call) -> str:
    scheme = "https" if call.request.https else "http"
    host = call.request.headers.get("host", "localhost")
    return f"{scheme}://{host}{call.route.place.base}/"


def _queue_entry(call: Call, queue: Queue, *, with_metadata: bool) -> bytes:
    nodes = [element("Name", queue.name)]
    if not call.version.cors:
        nodes.append(element("Url", _endpoint(call) + queue.name))
    if with_metadata:
        items = (_metadata(name, value) for name, value in queue.metadata.items())
        nodes.append(parent("Metadata", *items))
    return parent("Queue", *nodes)


def _metadata(name: str, value: str) -> bytes:
    if is_xml_name(name):
        return element(name, value)
    return element("x-ms-invalid-name", name)


# --- acl ---------------------------------------------------------------------------------------
#
# Get and Set Queue ACL: the stored access policies of a queue.
#
# Source: "Get Queue ACL", "Set Queue ACL" and "Define a stored access policy".


def parse_set_acl(call: Call) -> SetQueuePolicies:
    """Read Set Queue ACL; an empty body, or root, removes all policies."""
    body = call.request.body
    policies = read_policies(parse_tree(body)) if body else ()
    return SetQueuePolicies(call.account, call.route.queue, policies, call.actor)


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
    if not 1 <= len(policy_id) <= MAX_POLICY_ID:
        raise invalid_value(nodes["Id"], f"An Id has 1 to {MAX_POLICY_ID} characters")
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
    if not set(POLICY_PERMISSIONS).issuperset(text):
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
