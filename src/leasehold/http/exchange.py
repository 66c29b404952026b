"""One request and its answer: the ASGI side of a connection.

uvicorn's own class does the same with more steps. This one writes an answer with one call, keeps
the spelling of header names (clients read the case of metadata names from them) and makes no
event, timer or pattern match per request.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

import structlog
from uvicorn.protocols.http.httptools_impl import STATUS_LINE

if TYPE_CHECKING:
    from leasehold.http.protocol import GuardedProtocol

RAW_NAMES: Final = "leasehold.header_names"
"""Key in the ASGI scope: lower-case name -> name as sent, or None; see ``Request``."""
PROVE: Final = "leasehold.prove"
"""Key in the ASGI scope: what the application calls when it has found the credentials good."""

_ASGI: Final = {"version": "3.0", "spec_version": "2.3"}
_CLOSE: Final = (b"connection", b"close")
_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
_DISCONNECT: Final = {"type": "http.disconnect"}
_INTERNAL_ERROR: Final = b"Internal Server Error\n"

_log = structlog.get_logger(__name__)


def scope_of(
    connection: GuardedProtocol,
    method: str,
    target: bytes,
    version: str,
    raw_names: dict[str, str] | None,
) -> dict[str, Any]:
    """Return ASGI's view of the request whose header *connection* has just read."""
    raw_path, _, query = target.partition(b"?")
    path = raw_path.decode("ascii")
    return {
        "type": "http",
        "asgi": _ASGI,
        "http_version": version,
        "server": connection.server,
        "client": connection.client,
        "scheme": connection.scheme,
        "method": method,
        "root_path": "",
        "path": unquote(path) if "%" in path else path,
        "raw_path": raw_path,
        "query_string": query,
        "headers": connection.headers,
        RAW_NAMES: raw_names,
        PROVE: connection.prove,
    }


class Exchange:
    """Calls the application for one request and writes what it answers, in one piece."""

    __slots__ = (
        "_all_received",
        "_connection",
        "_expects_continue",
        "_head",
        "_waiter",
        "begun",
        "body",
        "disconnected",
        "is_watching",
        "keep_alive",
        "more_body",
        "proved",
        "response_complete",
        "response_started",
        "scope",
        "size",
    )

    def __init__(
        self,
        connection: GuardedProtocol,
        scope: dict[str, Any],
        *,
        keep_alive: bool,
        expects_continue: bool,
    ) -> None:
        self.scope = scope
        self.keep_alive = keep_alive
        self.body: bytes | bytearray = b""
        """What has arrived of the body and was not yet received by the application."""
        self.more_body = True
        self.size = 0
        """Bytes of the body so far, received by the application or not."""
        self.begun = False
        """Whether the application has had a turn."""
        self.proved = False
        """Whether the application has found its credentials good."""
        self.disconnected = False
        self.is_watching = False
        """Whether the application, which has all of the body, waits for the client to go."""
        self.response_started = False
        self.response_complete = False
        self._connection = connection
        self._expects_continue = expects_continue
        self._head = b""
        self._waiter: asyncio.Future[None] | None = None
        self._all_received = False

    async def run(self, app: Any) -> None:
        """Let *app* answer; whatever it does, the client is not left waiting."""
        self.begun = True
        try:
            await app(self.scope, self.receive, self.send)
        except Exception:  # noqa: BLE001 - the last stop of every error
            _log.exception("http.application_failed", method=self.scope["method"])
            await self._fail()
        except BaseException:
            # The server stops and has no more patience: no answer is the honest one.
            self._connection.transport.abort()
            raise
        else:
            if not self.response_complete and not self.disconnected:
                _log.error("http.no_answer", method=self.scope["method"])
                await self._fail()

    def add_body(self, part: bytes) -> None:
        """Take some more of the body."""
        if not self.body:
            self.body = part
        elif isinstance(self.body, bytearray):
            self.body += part
        else:
            self.body = bytearray(self.body) + part
        self.wake()

    def disconnect(self) -> None:
        """Note that nobody waits for the answer any more."""
        self.disconnected = True
        self.wake()

    def wake(self) -> None:
        """Let the application look again, if it waits."""
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    async def receive(self) -> dict[str, Any]:
        """See ASGI: the next part of the body, or that the client is gone.

        Whoever asks when there is no more of the body wants to know when the client goes. One that
        has closed its sending side may still be reading, but nothing tells it from one that is
        gone, and work for the latter would be lost: then the connection is closed.
        """
        connection = self._connection
        if self._expects_continue:
            self._expects_continue = False
            if not connection.transport.is_closing():
                connection.transport.write(_CONTINUE)
        while not self.disconnected and not self.response_complete:
            if not self._all_received and (self.body or not self.more_body):
                body, self.body = self.body, b""
                self._all_received = not self.more_body
                return {"type": "http.request", "body": bytes(body), "more_body": self.more_body}
            if self._all_received:
                self.is_watching = True
                if connection.half_closed:
                    connection.transport.close()
            if not connection.queued:  # or there would be no end to the requests that wait
                connection.flow.resume_reading()
            self._waiter = connection.loop.create_future()
            try:
                await self._waiter
            finally:
                self.is_watching = False
        return _DISCONNECT

    async def send(self, message: Any) -> None:
        """See ASGI: the status and header, then the whole body.

        Raises:
            RuntimeError: The messages are out of order, the body comes in parts, or a header has
                a line break in it.
        """
        if message["type"] == "http.response.start":
            self._head = self._render_head(message)
            self.response_started = True
            return
        if not self._head or self.response_complete or message.get("more_body"):
            raise RuntimeError(f"out of order: {message['type']}")
        connection = self._connection
        if connection.flow.write_paused:
            await connection.flow.drain()
        if self.disconnected:
            return
        self.response_complete = True
        body = message.get("body")
        if body and self.scope["method"] != "HEAD":
            connection.transport.write(self._head + body)
        else:
            connection.transport.write(self._head)
        connection.answered(self)

    def _render_head(self, start: Any) -> bytes:
        status, headers = start["status"], start["headers"]
        if _CLOSE in headers:
            self.keep_alive = False
        elif self.more_body or not self.keep_alive:
            # An answer before the end of the body ends the connection: the rest is not wanted.
            self.keep_alive = False
            headers = [*headers, _CLOSE]
        fields = b"\r\n".join((*map(b": ".join, headers), b"", b""))
        # One line break after each field and one at the end: any other within a value would make
        # further fields of it, or the body.
        breaks = len(headers) + 1
        if fields.count(b"\n") != breaks or fields.count(b"\r") != breaks:
            raise RuntimeError("a header has a line break in it")
        return b"%b%b%b" % (STATUS_LINE[status], self._connection.default_head(), fields)

    async def _fail(self) -> None:
        if self.response_started:
            self._connection.transport.abort()
            return
        length = str(len(_INTERNAL_ERROR)).encode("ascii")
        headers = [(b"content-length", length), _CLOSE]
        await self.send({"type": "http.response.start", "status": 500, "headers": headers})
        await self.send({"type": "http.response.body", "body": _INTERNAL_ERROR})
