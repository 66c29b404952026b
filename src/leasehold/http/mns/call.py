"""One request on its way through the dialect, and the answers made for it."""

from __future__ import annotations

import os
import re
from itertools import count
from typing import Final, TypeAlias

from leasehold.domain.types import Queue
from leasehold.http.messages import Request, Response
from leasehold.http.mns.errors import Fault
from leasehold.http.mns.parameters import Params
from leasehold.http.mns.routing import Operation, Route
from leasehold.http.mns.xml_out import document, element
from leasehold.http.xml_tree import Element

Header: TypeAlias = tuple[bytes, bytes]

VERSION: Final = "2015-06-06"

_CONTENT_TYPE: Final = (b"Content-Type", b"text/xml;charset=utf-8")
_VERSION: Final = (b"x-mns-version", VERSION.encode())
# Python's SDK looks this one up in lower case, so it must be spelled so.
_REQUEST_ID: Final = b"x-mns-request-id"
_HOST: Final = re.compile(r"[A-Za-z0-9._:\[\]-]{1,255}")


class RequestIds:
    """Ids of the form that the service uses: 24 hexadecimal digits in upper case.

    The first eight digits count, the rest is drawn once per process.
    """

    def __init__(self, entropy: bytes | None = None) -> None:
        drawn = (os.urandom(12) if entropy is None else entropy).hex().upper()
        self._tail = drawn[:16].encode()
        self._count = count(int(drawn[16:], 16))

    def draw(self) -> bytes:
        """Return the next id; ids repeat after 2**32 requests."""
        return b"%08X%b" % (next(self._count) & 0xFFFF_FFFF, self._tail)


class Call:
    """What is known so far about a request. The dialect fills it in, stage by stage."""

    __slots__ = (
        "accepts_late",
        "account",
        "entered",
        "found",
        "now_ms",
        "operation",
        "params",
        "request",
        "request_id",
        "root",
        "route",
    )
    route: Route
    """Set before any operation reads its request."""
    entered: Operation
    """What is wanted, once the credentials have been found good."""

    def __init__(self, request: Request, request_id: bytes, now_ms: int) -> None:
        self.request = request
        self.request_id = request_id
        self.now_ms = now_ms
        self.params: Params = {}
        self.account = ""
        self.found: Queue | None = None
        """The queue as it was when the request came, if it was there; for its defaults."""
        self.root: Element | None = None
        """The document in the body, if it was too long to be read at once."""
        self.operation: str = "mns-unknown"
        self.accepts_late = False
        """Whether a message may be hidden beyond its expiry."""

    @property
    def origin(self) -> str:
        """Scheme, host and port that the client knows the server by."""
        host = self.request.headers.get("host", "")
        scheme = "https" if self.request.https else "http"
        return f"{scheme}://{host if _HOST.fullmatch(host) else 'localhost'}"

    def reply(self, status: int, *extra: Header) -> Response:
        """Return an answer without a body."""
        return Response(status, [(_REQUEST_ID, self.request_id), _VERSION, *extra])

    def reply_xml(self, status: int, content: bytes, *extra: Header) -> Response:
        """Return an answer with a document."""
        headers = [(_REQUEST_ID, self.request_id), _VERSION, _CONTENT_TYPE, *extra]
        return Response(status, headers, content)

    def reply_fault(self, fault: Fault) -> Response:
        """Return an error; clients insist on all four of its elements."""
        content = document(
            b"Error",
            element("Code", fault.code),
            element("Message", fault.message),
            element("RequestId", self.request_id.decode("ascii")),
            element("HostId", self.origin),
        )
        return self.reply_xml(fault.status, content, *fault.headers)
