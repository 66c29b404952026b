"""HTTP requests and responses as the dialects see them, free of any server's types."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

Header: TypeAlias = tuple[bytes, bytes]
"""Name and value."""

MAX_HOST_CHARS: Final = 300
"""Longer than any host with a port (RFC 1035, section 2.3.4); what is longer is not remembered."""
MAX_INTEGER_CHARS: Final = 19
"""As many digits as a 64-bit number has; what is longer is not parsed at all."""


@dataclass(slots=True, kw_only=True)
class Request:
    """One request. Its body, if any, is put in when the header has been checked."""

    method: str
    raw_path: str
    """The path as sent, still percent-encoded, without the query."""
    raw_query: str
    """The query as sent, without the question mark."""
    headers: Mapping[str, str]
    """Lower-case names; the values of a repeated header are joined with a comma."""
    body: bytes
    body_too_large: bool
    """The body was longer than the server reads; *body* is then empty and the connection ends."""
    client_ip: str
    https: bool
    has_body: bool = False
    """The header announces a body, which may turn out to be empty."""
    is_foreign: bool = False
    """A web page that is not this server's has sent it, and anybody could have signed it."""
    raw_header_names: Mapping[str, str] | None = None
    """Lower-case name to name as sent, for metadata headers sent with capitals; None if none."""
    receive: Callable[[], Awaitable[Mapping[str, Any]]] | None = None
    """What else comes from the client, as messages of ASGI. The body has come from it already."""

    async def gone(self) -> None:
        """Wait until the client has gone; for what takes long to answer."""
        receive = self.receive
        if receive is None:
            await asyncio.get_running_loop().create_future()
            return
        while (await receive())["type"] != "http.disconnect":
            pass  # the empty body of a request without one


class Response(NamedTuple):
    """An answer; ``Content-Length`` is added by the application."""

    status: int
    headers: list[Header]
    body: Any = b""
    """Bytes; of a page of Arrow a view of them, which is sent as bytes are. Nearly all who read a
    body know which, so it is not for each of them to ask."""
    stream: AsyncGenerator[bytes, None] | None = None
    """In place of a body: parts, each sent as soon as it is there. Its end is that of the
    connection, so the header says ``Connection: close``, and no length is told. It is closed in
    any case, also when the client has gone; until then it may wait as long as it likes."""


# --- percent -----------------------------------------------------------------------------------
#
# Percent-encoding, decoded strictly.


_HEX_DIGITS: Final = "0123456789ABCDEFabcdef"
_BYTE_OF: Final = {
    (high + low).encode(): bytes((int(high + low, 16),))
    for high in _HEX_DIGITS
    for low in _HEX_DIGITS
}


def percent_decode(text: str) -> str:
    """Decode ``%XX`` once.

    Raises:
        ValueError: A percent sign is not followed by two hexadecimal digits, the result is not
            UTF-8, or *text* itself is not ASCII.
    """
    first, *rest = text.encode("ascii").split(b"%")
    decoded = [first]
    for piece in rest:
        octet = _BYTE_OF.get(piece[:2])
        if octet is None:
            raise ValueError(text)
        decoded += (octet, piece[2:])
    return b"".join(decoded).decode("utf-8")


# --- digests -----------------------------------------------------------------------------------
#
# Digests of bodies, which for large ones take long enough to be the work of a thread.


_T = TypeVar("_T")

_AT_ONCE_BYTES: Final = 262_144
"""Half a millisecond; more goes to a thread, as the library lets others run meanwhile."""


async def md5_digest(body: bytes) -> bytes:
    """Return the MD5 of a body."""
    return await digesting(len(body), _digest, body)


async def digesting(size: int, write: Callable[..., _T], *of: Any) -> _T:
    """Return ``write(*of)``, which takes digests of *size* bytes; of many on a thread."""
    if size <= _AT_ONCE_BYTES:
        return write(*of)
    return await asyncio.to_thread(write, *of)


def _digest(body: bytes) -> bytes:
    return hashlib.md5(body, usedforsecurity=False).digest()
