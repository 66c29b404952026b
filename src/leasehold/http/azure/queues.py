"""The operations on queues: create, delete, metadata.

Source: "Operations on queues (Azure Queue Storage)" and "Naming queues and metadata".
"""

from __future__ import annotations

import re
from typing import Final

from leasehold.domain.commands import (
    CreateQueue,
    DeleteQueue,
    GetQueue,
    QueueCreated,
    QueueInfo,
    SetQueueMetadata,
)
from leasehold.domain.oversight import COUNTED_STATES
from leasehold.http.azure.call import Call
from leasehold.http.azure.errors import Fault
from leasehold.http.messages import Request, Response

# A client library sends a stray "x-ms-meta" as well; without the dash it is no metadata.
_PREFIX: Final = "x-ms-meta-"
_OURS: Final = b"x-leasehold-"
_RESERVED: Final = "leasehold_"
"""Metadata names that begin so are told by the server and cannot be set."""
_ADVISED: Final = ("first_lease_s", "renew_every_s", "batch")
"""Advice for workers that is shown as metadata beside the visibility timeout."""
_MAX_METADATA_BYTES: Final = 8192
_IDENTIFIER: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
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
        if name.lower().startswith(_RESERVED):
            continue  # ours, sent back by a client that read all metadata and writes them again
        if not name:
            raise Fault("EmptyMetadataKey")
        if _IDENTIFIER.fullmatch(name) is None or _VALUE.fullmatch(value) is None:
            raise Fault("InvalidMetadata")
        metadata[name] = value
        size += len(name) + len(value)
    if size > _MAX_METADATA_BYTES:
        raise Fault("MetadataTooLarge")
    return metadata


def parse_create(call: Call) -> CreateQueue:
    """Read Create Queue."""
    return CreateQueue(call.account, call.route.queue, read_metadata(call.request))


def render_create(call: Call, result: QueueCreated) -> Response:
    """Write the answer to Create Queue."""
    return call.reply(201 if result.created else 204)


def parse_delete(call: Call) -> DeleteQueue:
    """Read Delete Queue."""
    return DeleteQueue(call.account, call.route.queue)


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
    told = _PREFIX.encode() + _RESERVED.encode()
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
    return SetQueueMetadata(call.account, call.route.queue, read_metadata(call.request))
