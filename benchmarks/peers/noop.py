"""The limits: applications that answer at once.

:func:`app` is for uvicorn with httptools and uvloop. ``python -m benchmarks.peers.noop PORT`` puts
:func:`answer` on Leasehold's own class of connections. Their answer looks like that to a put, so
that the load generator finds an id and a receipt in it and does what it does with a real server.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Final

import uvloop

from leasehold.clock import SystemClock
from leasehold.http.connection import HttpConnection, ServerState
from leasehold.http.guard import ConnectionLimits, Guard
from leasehold.http.request_cycle import Receive
from leasehold.http.requests import Response

_BODY: Final = (
    b'<?xml version="1.0" encoding="utf-8"?><QueueMessagesList><QueueMessage>'
    b"<MessageId>00000000-0001-8000-8000-000000000000</MessageId>"
    b"<PopReceipt>AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA</PopReceipt>"
    b"</QueueMessage></QueueMessagesList>"
)
_HEADERS: Final = [
    (b"content-type", b"application/xml"),
    (b"content-length", str(len(_BODY)).encode()),
]
_START: Final = {"type": "http.response.start", "status": 200, "headers": _HEADERS}
_END: Final = {"type": "http.response.body", "body": _BODY}


async def app(
    _scope: Mapping[str, Any],
    _receive: Callable[[], Awaitable[Any]],
    send: Callable[[Mapping[str, Any]], Awaitable[None]],
) -> None:
    """Answer 200 without looking at the request."""
    await send(_START)
    await send(_END)


async def answer(_scope: Mapping[str, Any], receive: Receive) -> Response:
    """Answer 200 to a request whose body was read, and not looked at."""
    while (await receive()).get("more_body"):
        pass
    return Response(200, _HEADERS, _BODY)


async def _serve(port: int) -> None:
    clock = SystemClock()
    state = ServerState(Guard(ConnectionLimits(), clock), clock)
    connection = partial(HttpConnection, answer, state)
    server = await asyncio.get_running_loop().create_server(connection, "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(_serve(int(sys.argv[1])))
