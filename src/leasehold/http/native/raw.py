"""Bodies as they are: put in one request, read in another, without JSON around them."""

from __future__ import annotations

import os
from typing import Final

from leasehold.domain.commands import Put
from leasehold.domain.errors import BodyUnreadable, Unavailable
from leasehold.domain.ids import ENTROPY_BYTES
from leasehold.domain.limits import NATIVE, WEEK_S
from leasehold.domain.oversight import FindMessage, Seen
from leasehold.domain.types import DEFAULT_PRIORITY, Detail
from leasehold.http.messages import Response
from leasehold.http.native.call import Call
from leasehold.http.native.problems import out_of_range, too_large
from leasehold.http.native.puts import NEVER, PRIORITIES, body_limit, show_put, trace_of
from leasehold.http.native.reading import param_int, short_text

PUT_PARAMS: Final = frozenset({"delay_s", "time_to_live_s", "priority", "type", "dedup_key"})

_BYTES: Final = b"application/octet-stream"
_BROKEN: Final = frozenset({"missing", "corrupt"})


def check_length(call: Call) -> None:
    """Look at how long a body is going to be, before it is read.

    Raises:
        Refused: Longer than a message of the queue may be.
    """
    size_bytes = int(call.request.headers.get("content-length", "0"))
    limit_bytes = body_limit(call, call.queue)
    if size_bytes > limit_bytes:
        raise too_large(None, size_bytes, limit_bytes)


async def put(call: Call) -> Response:
    """Put one message whose body is that of the request."""
    body = call.request.body
    limit_bytes = body_limit(call, call.queue)
    if len(body) > limit_bytes:
        raise too_large(None, len(body), limit_bytes)
    delay_s = param_int(call, "delay_s", NATIVE.delay_s)
    priority = param_int(call, "priority", PRIORITIES)
    params = call.params
    kind = short_text("type", params.get("type") or None)
    key = short_text("dedup_key", params.get("dedup_key") or None)
    along = trace_of(call)
    if kind is not None or key is not None:
        along = Detail(message_type=kind, dedup_key=key, traceparent=along.traceparent)
    command = Put(
        call.account,
        call.queue,
        body,
        delay_s or 0,
        _life_s(call),
        os.urandom(ENTROPY_BYTES),
        along,
        DEFAULT_PRIORITY if priority is None else priority,
    )
    result = await call.services.perform(command)
    return call.reply(show_put(command, result), 201)  # type: ignore[arg-type]  # the answer to Put


def _life_s(call: Call) -> int | None:
    low, high = NATIVE.time_to_live_s
    life_s = param_int(call, "time_to_live_s", (NEVER, high))
    if life_s is None:
        return WEEK_S
    if life_s == NEVER:
        return None
    if life_s < low:
        raise out_of_range("time_to_live_s", life_s, (low, high))
    return life_s


async def get(call: Call) -> Response:
    """Give the body of a message, in whatever state the message is."""
    seen = await call.services.perform(FindMessage(call.account, call.queue, call.item))
    assert isinstance(seen, Seen)
    ref = seen.message.detail.body_ref
    if ref is not None and ref.problem is not None:
        if ref.problem in _BROKEN:
            raise BodyUnreadable(seen.message.message_id, ref.problem)
        raise Unavailable
    return call.reply_bytes(_BYTES, seen.message.body)
