"""The limit: an application that answers at once, on uvicorn with httptools and uvloop.

Its answer looks like that to a put, so that the load generator finds an id and a receipt in it
and does what it does with a real server.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

_BODY: Final = (
    b'<?xml version="1.0" encoding="utf-8"?><QueueMessagesList><QueueMessage>'
    b"<MessageId>00000000-0001-8000-8000-000000000000</MessageId>"
    b"<PopReceipt>AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA</PopReceipt>"
    b"</QueueMessage></QueueMessagesList>"
)
_START: Final = {
    "type": "http.response.start",
    "status": 200,
    "headers": [
        (b"content-type", b"application/xml"),
        (b"content-length", str(len(_BODY)).encode()),
    ],
}
_END: Final = {"type": "http.response.body", "body": _BODY}


async def app(
    _scope: Mapping[str, Any],
    _receive: Callable[[], Awaitable[Any]],
    send: Callable[[Mapping[str, Any]], Awaitable[None]],
) -> None:
    """Answer 200 without looking at the request."""
    await send(_START)
    await send(_END)
