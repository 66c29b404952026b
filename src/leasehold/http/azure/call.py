"""One request on its way through the dialect, and the answers made for it."""

from __future__ import annotations

import os
from datetime import timedelta
from functools import lru_cache
from typing import Final

from leasehold.auth.authenticator import Grant
from leasehold.auth.types import (
    EPOCH,
    Operation,
    Pairs,
    format_http_date,
    format_iso_time,
    parse_iso_time,
)
from leasehold.http.azure.errors import Fault
from leasehold.http.azure.routing import UNREADABLE, Route, Version
from leasehold.http.azure.xml import PROLOG, element, parent
from leasehold.http.dialect import BaseCall, RequestIds
from leasehold.http.requests import Header, Response

_CONTENT_TYPE: Final = (b"content-type", b"application/xml")
_NO_CACHE: Final = (b"cache-control", b"no-cache")
_CLIENT_REQUEST_ID: Final = "x-ms-client-request-id"
_CLIENT_REQUEST_ID_CHARS: Final = 1024


def request_ids(entropy: bytes | None = None) -> RequestIds:
    """Return ids of the form the service uses: a GUID whose last six digits are zero.

    The first eight digits count, the rest is drawn once per process.
    """
    drawn = (os.urandom(13) if entropy is None else entropy).hex()
    tail = f"-{drawn[:4]}-4{drawn[4:7]}-8{drawn[7:10]}-{drawn[10:16]}000000"
    return RequestIds(b"%08x" + tail.encode(), int(drawn[16:24], 16))


class Call(BaseCall):
    """What is known so far about a request. The dialect fills it in, stage by stage."""

    __slots__ = (
        "entered",
        "max_body_bytes",
        "pairs",
        "params",
        "route",
        "text",
        "version",
    )
    route: Route
    """Set before any operation reads its request."""
    entered: tuple[Operation, Grant]
    """What is wanted and who wants it, once the credentials have been found good."""

    def __init__(self) -> None:
        self.version: Version = UNREADABLE
        self.pairs: Pairs = ()
        self.params: dict[str, str] = {}
        self.account = ""
        self.max_body_bytes: int | None = None
        """What is set for the queue, in place of the version's limit; for what brings a body."""
        self.text: bytes | None = None
        """The text of the message in the body, if it was too long to be read at once."""
        self.operation = "unknown"

    def reply(self, status: int, *extra: Header) -> Response:
        """Return an answer without a body."""
        return Response(status, self._headers(*extra))

    def reply_xml(self, status: int, root: bytes) -> Response:
        """Return an answer with a body; *root* is its root element."""
        if self.request.method == "HEAD":
            return Response(status, self._headers())
        return Response(status, self._headers(_CONTENT_TYPE), PROLOG + root)

    def reply_fault(self, fault: Fault) -> Response:
        """Return an error."""
        extra = fault.headers
        if self.version.error_code_header:
            extra += ((b"x-ms-error-code", fault.code.encode("ascii")),)
        if self.request.method == "HEAD":
            return Response(fault.status, self._headers(*extra))
        request_id = self.request_id.decode("ascii")
        message = f"{fault.message}\nRequestId:{request_id}\nTime:{iso8601(self.now_ms)}"
        root = parent(
            "Error",
            element("Code", fault.code),
            element("Message", message),
            *(element(name, value) for name, value in fault.details),
        )
        return Response(fault.status, self._headers(_CONTENT_TYPE, *extra), PROLOG + root)

    def _headers(self, *extra: Header) -> list[Header]:
        version = self.version
        headers = [(b"x-ms-request-id", self.request_id), *extra]
        if version.header is not None:
            headers.append(version.header)
        if version.echoes_client_request_id:
            client_id = self.request.headers.get(_CLIENT_REQUEST_ID)
            if client_id and _is_echoed(client_id):
                headers.append((b"x-ms-client-request-id", client_id.encode("ascii")))
        if self.request.method == "GET":
            headers.append(_NO_CACHE)
        return headers


def _is_echoed(text: str) -> bool:
    return (
        text.isascii()
        and text.isprintable()
        and " " not in text
        and len(text) <= _CLIENT_REQUEST_ID_CHARS
    )


# --- dates -------------------------------------------------------------------------------------
#
# Times as the protocol writes them: RFC 1123 in most places, ISO 8601 in a few.


_FRACTION_DIGITS: Final = 7  # the service counts in units of 100 ns


@lru_cache(maxsize=8192)
def _rfc1123_of_second(second: int) -> bytes:
    return format_http_date(second * 1000).encode("ascii")


def rfc1123(time_ms: int) -> bytes:
    """Write Unix milliseconds as RFC 1123 in GMT; the fraction of a second is dropped."""
    return _rfc1123_of_second(time_ms // 1000)


def iso8601(time_ms: int) -> str:
    """Write Unix milliseconds as ISO 8601 in UTC with seven fraction digits."""
    moment = EPOCH + timedelta(milliseconds=time_ms)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{time_ms % 1000:03}0000Z"


def normal_iso8601(text: str) -> str:
    """Rewrite a time of a policy in UTC with seven fraction digits.

    Raises:
        ValueError: It is not of a form that :func:`~leasehold.auth.types.parse_iso_time` takes.
    """
    at_ms = parse_iso_time(text)
    if at_ms is None:
        raise ValueError(text)
    try:
        seconds = format_iso_time(at_ms)[:-1]
    except OverflowError:
        raise ValueError(text) from None
    fraction = text.partition(".")[2].rstrip("Z").partition("+")[0].partition("-")[0]
    return f"{seconds}.{fraction:0<{_FRACTION_DIGITS}.{_FRACTION_DIGITS}}Z"
