"""Messages to put, as JSON brings them; in requests of several kinds."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import Final

from leasehold.domain.commands import Duplicate, Put
from leasehold.domain.ids import ENTROPY_BYTES
from leasehold.domain.limits import NATIVE, WEEK_S
from leasehold.domain.types import DEFAULT_PRIORITY, NO_DETAIL, Detail, Lease
from leasehold.http.native import flow_shapes, shapes
from leasehold.http.native.bodies import expiry
from leasehold.http.native.call import Call
from leasehold.http.native.problems import Refused, invalid
from leasehold.http.native.reading import (
    body_of,
    queue_name,
    read_properties,
    short_text,
    within,
)

PRIORITIES: Final = (1, 16)
NEVER: Final = -1
"""As a time to live."""

_SURE: Final = 4
"""No character has more bytes."""
_TRACEPARENT: Final = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")


def body_limit(call: Call, queue: str) -> int:
    """Return how many bytes the body of a message in a queue of the account may have."""
    found = call.services.find_queue(call.account, queue)
    limit = None if found is None else found.settings.max_body_bytes
    return NATIVE.body_bytes if limit is None else limit


def trace_of(call: Call) -> Detail:
    """Return what is sent along with messages that bring nothing: the trace of the request."""
    header = call.request.headers.get("traceparent")
    # The header is another party's business, so a wrong one is ignored.
    if header and _TRACEPARENT.fullmatch(header):
        return Detail(traceparent=header)
    return NO_DETAIL


def read_put(
    item: shapes.PutItem, along: Detail, limit_bytes: int
) -> tuple[bytes, int, int | None, Detail, int]:
    """Return body, delay, time to live, what is sent along and priority of one message.

    Args:
        item: The message.
        along: What is sent along if it brings nothing; see :func:`trace_of`.
        limit_bytes: Largest body.

    Raises:
        Refused: Something about it will not do. The field is named as within the item.
    """
    text = item.body
    if text is None or item.body_base64 is not None or item.json or len(text) * _SURE > limit_bytes:
        body = _required_body(item, limit_bytes)
    else:
        body = text.encode()
    life_s = item.time_to_live_s
    if life_s is None:
        life_s = WEEK_S
    elif life_s == NEVER:
        life_s = None
    else:
        within("time_to_live_s", life_s, NATIVE.time_to_live_s)
    delay_s, priority = item.delay_s, item.priority
    if delay_s is None:
        delay_s = 0
    else:
        within("delay_s", delay_s, NATIVE.delay_s)
    if priority is None:
        priority = DEFAULT_PRIORITY
    else:
        within("priority", priority, PRIORITIES)
    if (
        item.dedup_key is not None
        or item.type is not None
        or item.properties
        or item.traceparent is not None
    ):
        along = _detail_of(item, along.traceparent)
    return body, delay_s, life_s, along, priority


def _required_body(item: shapes.PutItem, limit_bytes: int) -> bytes:
    body = body_of(item, limit_bytes=limit_bytes)
    if body is None:
        raise invalid(None, "The message has none of `body`, `body_base64` and `json`.")
    return body


def _detail_of(item: shapes.PutItem, trace: str | None) -> Detail:
    own = item.traceparent
    if own is not None:
        check_trace("traceparent", own)
    return Detail(
        properties=read_properties("properties", item.properties),
        message_type=short_text("type", item.type),
        traceparent=own or trace,
        dedup_key=short_text("dedup_key", item.dedup_key),
    )


def check_trace(field: str, trace: str) -> None:
    """Check a trace context that a message brings.

    Raises:
        Refused: It is none of W3C's.
    """
    if _TRACEPARENT.fullmatch(trace) is None:
        raise invalid(field, f"`{field}` is no W3C trace context.", value=trace)


class PutReader:
    """Reads messages that each name their queue.

    Args:
        call: The request.
    """

    def __init__(self, call: Call) -> None:
        self.account = call.account
        self.along = trace_of(call)
        """What is sent along with a message that brings nothing."""
        self._call = call
        self._limits: dict[str, int] = {}

    def read(self, path: str, given: Sequence[flow_shapes.QueuedPut]) -> tuple[Put, ...]:
        """Return the commands of all messages.

        Args:
            path: Place of the list in the request, such as ``$.sends``.
            given: The list.

        Raises:
            Refused: One of them will not do.
        """
        entropy = os.urandom(ENTROPY_BYTES * len(given))
        puts = []
        for place, item in enumerate(given):
            at = place * ENTROPY_BYTES
            try:
                puts.append(self.read_one(item, entropy[at : at + ENTROPY_BYTES]))
            except Refused as refused:
                field = refused.problem.field
                refused.problem.field = f"{path}[{place}]{'.' + field if field else ''}"
                raise
        return tuple(puts)

    def read_one(self, item: flow_shapes.QueuedPut, entropy: bytes) -> Put:
        """Return the command of one message.

        Raises:
            Refused: It will not do. The field is named as within the item.
        """
        queue = item.queue
        limit_bytes = self.limit_of(queue)
        body, delay_s, life_s, detail, priority = read_put(item, self.along, limit_bytes)
        return Put(self.account, queue, body, delay_s, life_s, entropy, detail, priority)

    def limit_of(self, queue: str) -> int:
        """Return how many bytes a body may have.

        Raises:
            Refused: No queue can be called so.
        """
        limit_bytes = self._limits.get(queue)
        if limit_bytes is None:
            limit_bytes = body_limit(self._call, queue_name("queue", queue))
            self._limits[queue] = limit_bytes
        return limit_bytes


def show_put(_: Put, result: Lease | Duplicate) -> shapes.PutResult:
    """Return what a put tells of a message."""
    if type(result) is Lease:
        message, receipt = result
        return shapes.PutResult(
            message.message_id,
            message.inserted_at_ms,
            expiry(message.expires_at_ms),
            message.visible_at_ms,
            receipt,
        )
    assert isinstance(result, Duplicate)
    return shapes.PutResult(
        result.message_id,
        result.inserted_at_ms,
        expiry(result.expires_at_ms),
        result.visible_at_ms,
        result.receipt,
        duplicate=True,
    )
