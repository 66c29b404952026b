"""List Queues.

Queues that other protocols have made with a name that Azure does not allow are left out: whatever a
client finds here it can use.

Source: "List Queues (Azure Queue Storage)".
"""

from __future__ import annotations

from typing import Final

from leasehold.domain.commands import ListQueues, QueuePage
from leasehold.domain.errors import InvalidMarker, InvalidQueueName
from leasehold.domain.limits import check_azure_queue_name, check_queue_name
from leasehold.domain.types import Queue
from leasehold.http.azure.call import Call
from leasehold.http.azure.errors import invalid_parameter
from leasehold.http.azure.parameters import optional_integer
from leasehold.http.azure.xml_out import element, escape, is_xml_name, parent
from leasehold.http.messages import Response

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
        _entry(call, queue, with_metadata=with_metadata)
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


def _entry(call: Call, queue: Queue, *, with_metadata: bool) -> bytes:
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
