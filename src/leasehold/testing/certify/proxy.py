"""Stands between a worker and the server: notes every request, and fails those it is told to.

Requests are read whole and passed on as they came, so signatures stay good. What a request does
to a message is told from its address: in the Azure and the native interface, or in that of MNS,
which has a port of its own.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qsl, unquote

import httptools

from leasehold.clock import Clock
from leasehold.domain.errors import ReceiptMalformed
from leasehold.http.mns.messages import read_handle, wire_id

_ERRORS: Final = 400
_SERVER_ERRORS: Final = 500
_CHUNK_BYTES: Final = 65_536
_UNAVAILABLE: Final = (
    b"HTTP/1.1 503 Service Unavailable\r\nx-ms-error-code: ServerBusy\r\n"
    b"content-type: application/problem+json\r\ncontent-length: 47\r\n\r\n"
    b'{"code":"overloaded","status":503,"detail":"x"}'
)
_MNS_BUSY_BODY: Final = (
    b'<?xml version="1.0" ?>\n<Error xmlns="http://mns.aliyuncs.com/doc/v1">\n'
    b"  <Code>ServerBusy</Code>\n  <Message>The server is busy.</Message>\n"
    b"  <RequestId>000000000000000000000000</RequestId>\n  <HostId>http://127.0.0.1</HostId>\n"
    b"</Error>\n"
)
_MNS_UNAVAILABLE: Final = (
    b"HTTP/1.1 503 Service Unavailable\r\nx-mns-version: 2015-06-06\r\n"
    b"x-mns-request-id: 000000000000000000000000\r\ncontent-type: text/xml;charset=utf-8\r\n"
    b"content-length: %d\r\n\r\n%b"
) % (len(_MNS_BUSY_BODY), _MNS_BUSY_BODY)
_AZURE: Final = re.compile(r"/[^/]+/(?P<queue>[^/]+)/messages(?:/(?P<id>[^/?]+))?$")
_NATIVE: Final = re.compile(r"/v1/accounts/[^/]+/queues/(?P<queue>[^/]+)/messages/(?P<verb>\w+)$")
_MNS: Final = re.compile(r"/queues/(?P<queue>[^/]+)/messages$")
_MNS_HANDLE: Final = re.compile(r"<ReceiptHandle>\s*([^<\s]+)\s*</ReceiptHandle>")
_ID: Final = re.compile(r'"id"\s*:\s*"([^"]+)"')
_VERBS: Final = {
    "receive": "receive",
    "renew": "update",
    "complete": "delete",
    "release": "release",
}


class Kind(StrEnum):
    """What a request does."""

    RECEIVE = "receive"
    UPDATE = "update"
    """Renews, saves or gives back: in the Azure interface and in MNS they are one operation."""
    DELETE = "delete"
    RELEASE = "release"
    OTHER = "other"


@dataclass(slots=True)
class Exchange:
    """A request, and what it was answered."""

    kind: Kind
    queue: str
    """Name of the queue; empty where there is none."""
    at_s: float
    """When it had arrived, monotonic seconds."""
    messages: tuple[str, ...] = ()
    """Ids of the messages that it names."""
    is_batch: bool = False
    """Whether it is answered for each message, within a body of JSON."""
    status: int = 0
    """Of the answer that the worker was given; 0 for none."""
    answer: bytes = b""
    """Body of that answer."""
    is_faked: bool = False
    """Whether the proxy failed it."""

    def refused(self) -> tuple[str, ...]:
        """Return the ids of those messages for which the server has refused it."""
        if self.is_faked or not self.status:
            return ()
        if self.status >= _SERVER_ERRORS:
            return ()
        if self.status >= _ERRORS:
            # A batch of MNS names those that it concerns, any other answer is about all.
            named = _messages_of(_MNS_HANDLE.findall(self.answer.decode("utf-8", "replace")))
            return named or self.messages
        if not self.is_batch:
            return ()
        results = json.loads(self.answer).get("results", ())
        pairs = zip(self.messages, results, strict=False)
        return tuple(message_id for message_id, result in pairs if "error" in result)

    def returned(self, message_id: str) -> bool:
        """Tell whether its answer names a message."""
        return any(form.encode() in self.answer for form in (message_id, wire_id(message_id)))


Fault = Callable[[Exchange], Awaitable["Outcome"]]


class Outcome(StrEnum):
    """What becomes of a request."""

    FORWARD = "forward"
    REFUSE = "refuse"
    """503, and the server never sees it."""
    CUT_BEFORE = "cut-before"
    """The connection is closed, and the server never sees it."""
    CUT_AFTER = "cut-after"
    """The server does it, and the connection is closed in place of the answer."""


class Proxy:
    """Listens on a free port of 127.0.0.1, and passes requests on.

    Args:
        url: Of the server: scheme, host and port.
        face: The interface that is spoken there.
        clock: For the times of exchanges.
    """

    def __init__(self, url: str, face: Face, clock: Clock) -> None:
        host, _, port = url.rpartition("//")[2].rpartition(":")
        self._upstream = host, int(port)
        self._face = face
        self._clock = clock
        self.exchanges: list[Exchange] = []
        self.fault: Fault | None = None
        """Asked for each request; None lets all pass."""
        self.is_down = False
        """Whether connections are refused, as by a server that is away."""
        self._asking: set[asyncio.Task[None]] = set()
        self._was_asked = False
        self._server: asyncio.Server
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> int:
        """Listen; return the port."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def stop(self) -> None:
        """Close everything."""
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def was_asked(self) -> bool:
        """Tell whether a client waits for an answer, or has since the last call."""
        was_asked, self._was_asked = self._was_asked or bool(self._asking), False
        return was_asked

    def go_down(self) -> None:
        """Close all connections, and refuse new ones until :attr:`is_down` is false again."""
        self.is_down = True
        for task in self._tasks:
            task.cancel()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._begin_asking(task)
        try:
            if not self.is_down:
                await self._serve(task, reader, writer)
        except (OSError, asyncio.IncompleteReadError, httptools.HttpParserError):
            pass  # One of the two ends has gone.
        except asyncio.CancelledError:
            pass  # As the proxy wants.
        finally:
            self._tasks.discard(task)
            self._asking.discard(task)
            with suppress(OSError):
                writer.close()

    def _begin_asking(self, task: asyncio.Task[None]) -> None:
        self._asking.add(task)
        self._was_asked = True

    async def _serve(
        self,
        task: asyncio.Task[None],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        up_reader, up_writer = await asyncio.open_connection(*self._upstream)
        try:
            while request := await read_whole(reader, httptools.HttpRequestParser):
                self._begin_asking(task)
                if not await self._exchange(request, writer, up_reader, up_writer):
                    return
                self._asking.discard(task)
        finally:
            up_writer.close()

    async def _exchange(
        self,
        request: Whole,
        writer: asyncio.StreamWriter,
        up_reader: asyncio.StreamReader,
        up_writer: asyncio.StreamWriter,
    ) -> bool:
        """Answer one request; tell whether the connection goes on."""
        exchange = self._face.read(request, self._clock.monotonic_s())
        self.exchanges.append(exchange)
        outcome = Outcome.FORWARD if self.fault is None else await self.fault(exchange)
        exchange.is_faked = outcome is not Outcome.FORWARD
        if outcome is Outcome.CUT_BEFORE:
            return False
        if outcome is Outcome.REFUSE:
            exchange.status = 503
            writer.write(self._face.unavailable)
            await writer.drain()
            return True
        up_writer.write(request.raw)
        answer = await read_whole(up_reader, httptools.HttpResponseParser, method=request.method)
        if answer is None or outcome is Outcome.CUT_AFTER:
            return False
        exchange.status, exchange.answer = answer.status, bytes(answer.body)
        writer.write(answer.raw)
        await writer.drain()
        return answer.keeps_alive


@dataclass(slots=True)
class Whole:
    """A message of HTTP, whole, as it came and taken apart; httptools calls its methods."""

    method: str = ""
    path: str = ""
    status: int = 0
    raw: bytearray = field(default_factory=bytearray)
    body: bytearray = field(default_factory=bytearray)
    is_whole: bool = False
    has_head: bool = False
    keeps_alive: bool = True
    url: bytearray = field(default_factory=bytearray)
    parser: Any = None
    """What takes it apart."""

    def on_url(self, part: bytes) -> None:
        """Take a part of the address."""
        self.url += part

    def on_headers_complete(self) -> None:
        """Note that the header is there."""
        self.has_head = True
        # The parser knows it only now: after the end it is about the next message.
        self.keeps_alive = self.parser.should_keep_alive()

    def on_body(self, part: bytes) -> None:
        """Take a part of the body."""
        self.body += part

    def on_message_complete(self) -> None:
        """Note that all is there."""
        self.is_whole = True


async def read_whole(
    reader: asyncio.StreamReader, kind: Callable[[Any], Any], *, method: str = ""
) -> Whole | None:
    """Read a request or an answer; None if the other end closes before it begins.

    Clients of queues wait for an answer before they send again, so nothing follows in a piece.
    """
    found = Whole(method=method)
    parser = found.parser = kind(found)
    while not found.is_whole:
        piece = await reader.read(_CHUNK_BYTES)
        if not piece:
            return None
        found.raw += piece
        parser.feed_data(piece)
        if method == "HEAD" and found.has_head:
            break  # The length in its header is that of a body that does not come.
    if kind is httptools.HttpRequestParser:
        found.method = parser.get_method().decode("ascii")
        found.path = found.url.decode("latin-1")
    else:
        found.status = parser.get_status_code()
    return found


def _read_http(request: Whole, at_s: float) -> Exchange:
    path, _, query = request.path.partition("?")
    kind, queue = Kind.OTHER, ""
    messages: tuple[str, ...] = ()
    if native := _NATIVE.match(path):
        queue = native["queue"]
        kind = Kind(_VERBS.get(native["verb"], "other"))
        messages = tuple(_ID.findall(request.body.decode("utf-8", "replace")))
    elif azure := _AZURE.match(path):
        queue = azure["queue"]
        peeks = "peekonly=true" in query.lower()
        if azure["id"] is None:
            kind = Kind.RECEIVE if request.method == "GET" and not peeks else Kind.OTHER
        else:
            kind = {"PUT": Kind.UPDATE, "DELETE": Kind.DELETE}.get(request.method, Kind.OTHER)
            messages = (azure["id"],)
    return Exchange(kind, unquote(queue), at_s, messages, is_batch=native is not None)


def _read_mns(request: Whole, at_s: float) -> Exchange:
    path, _, query = request.path.partition("?")
    found = _MNS.match(path)
    if found is None:
        return Exchange(Kind.OTHER, "", at_s)
    given = {name.lower(): value for name, value in parse_qsl(query)}
    kinds = {"GET": Kind.RECEIVE, "PUT": Kind.UPDATE, "DELETE": Kind.DELETE}
    kind = kinds.get(request.method, Kind.OTHER)
    if given.get("peekonly", "").lower() == "true":
        kind = Kind.OTHER
    handles = [given["receipthandle"]] if "receipthandle" in given else []
    if kind is Kind.DELETE:
        handles += _MNS_HANDLE.findall(request.body.decode("utf-8", "replace"))
    return Exchange(kind, unquote(found["queue"]), at_s, _messages_of(handles))


def _messages_of(handles: Iterable[str]) -> tuple[str, ...]:
    """Return the ids of the messages that receipt handles are for, as events have them."""
    found = []
    for handle in handles:
        with suppress(ReceiptMalformed):
            found.append(read_handle(handle)[0])
    return tuple(found)


class Face(NamedTuple):
    """An interface of the server, as the proxy sees it."""

    read: Callable[[Whole, float], Exchange]
    """Tells what a request does; the second argument is when it had arrived, monotonic seconds."""
    unavailable: bytes
    """The answer of a server that cannot do it now, whole."""


AZURE_AND_NATIVE: Final = Face(_read_http, _UNAVAILABLE)
MNS: Final = Face(_read_mns, _MNS_UNAVAILABLE)
