"""One request and its answer: what the application sees of a connection.

An answer is written with one call, header names keep their spelling (clients read the case of
metadata names from them), and no event, timer or pattern match is made per request.

The application is called with what ASGI calls a scope, with those keys only that it reads, and with
ASGI's ``receive``. What it returns is the answer, whole.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sized
from http import HTTPStatus
from typing import Any, Final, Protocol

import structlog

from leasehold.http.admission import STALLED_S, UNDER_WAY, Holding, caller_of
from leasehold.http.guard import Guard
from leasehold.http.requests import Response

Receive = Callable[[], Awaitable[dict[str, Any]]]
App = Callable[[dict[str, Any], Receive], Awaitable[Response | None]]
"""Answers a request; None if its client has gone before it was complete."""

PORTION_BYTES: Final = 256 * 1024
"""What of a large answer is handed to the connection at once; others have a turn in between."""

RAW_NAMES: Final = "leasehold.header_names"
"""Key in the scope: lower-case name -> name as sent, or None; see ``Request``."""
PROVE: Final = "leasehold.prove"
"""Key in the scope: what the application calls when it has found the credentials good."""

_STATUS_LINES: Final = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode("ascii")
    for status in HTTPStatus
}
_CLOSE: Final = (b"connection", b"close")
_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
_DISCONNECT: Final = {"type": "http.disconnect"}
_FAILED: Final = Response(500, [(b"content-length", b"22"), _CLOSE], b"Internal Server Error\n")

_log = structlog.get_logger(__name__)


class Carrier(Protocol):
    """The connection that a request came on, as the request sees it."""

    transport: asyncio.Transport
    loop: asyncio.AbstractEventLoop
    guard: Guard
    server: tuple[str, int] | None
    client: tuple[str, int] | None
    scheme: str
    headers: list[tuple[bytes, bytes]]
    half_closed: bool
    write_paused: bool

    @property
    def queued(self) -> Sized:
        """Requests that wait for their turn."""
        ...

    def prove(self) -> None:
        """Note that the request whose answer comes next has shown good credentials."""
        ...

    def resume_reading(self) -> None:
        """Take what the client sends."""
        ...

    async def drain(self) -> None:
        """Wait until the client has taken most of what was written, or is gone."""
        ...

    def default_head(self) -> bytes:
        """Return the fields that every answer has."""
        ...

    def answered(self, cycle: RequestCycle) -> None:
        """Go on after *cycle* has written its answer."""
        ...


def scope_of(
    connection: Carrier, method: str, target: bytes, raw_names: dict[str, str] | None
) -> dict[str, Any]:
    """Return the application's view of the request whose header *connection* has just read."""
    raw_path, _, query = target.partition(b"?")
    return {
        "server": connection.server,
        "client": connection.client,
        "scheme": connection.scheme,
        "method": method,
        "raw_path": raw_path,
        "query_string": query,
        "headers": connection.headers,
        RAW_NAMES: raw_names,
        PROVE: connection.prove,
    }


class RequestCycle:
    """Calls the application for one request and writes what it answers, in one piece if small."""

    __slots__ = (
        "_all_received",
        "_connection",
        "_expects_continue",
        "_holding",
        "_left",
        "_left_since_s",
        "_portions",
        "_waiter",
        "begun",
        "body",
        "disconnected",
        "is_watching",
        "keep_alive",
        "more_body",
        "proved",
        "response_complete",
        "scope",
        "size",
    )

    def __init__(
        self,
        connection: Carrier,
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
        self.response_complete = False
        self._connection = connection
        self._expects_continue = expects_continue
        self._waiter: asyncio.Future[None] | None = None
        self._all_received = False
        self._holding: Holding | None = None
        self._portions = 0
        """Of a large answer, those handed to the connection."""
        self._left = (0, 0)
        """The same at the last look, and the bytes of them that the client had not taken."""
        self._left_since_s = 0.0

    @property
    def held(self) -> int:
        """Bytes of the room for large answers that this request holds."""
        return 0 if self._holding is None else self._holding.held

    def hold(self) -> Holding:
        """Return what this request holds of the room for large answers."""
        if self._holding is None:
            self._holding = Holding(caller_of(self.scope))
        return self._holding

    def is_in_the_way(self, now_s: float) -> bool:
        """Tell whether the client has taken nothing of an answer whose room others wait for.

        To be asked at each sweep; STALLED_S says for how long.
        """
        holding = self._holding
        if holding is None or not holding.held:
            return False
        connection = self._connection
        left = self._portions, connection.transport.get_write_buffer_size()
        if left != self._left:
            self._left, self._left_since_s = left, now_s
        guard = connection.guard
        stalled_s = now_s - guard.interval_s - self._left_since_s
        return stalled_s > STALLED_S and guard.answers.is_short_of(holding.caller)

    async def run(self, app: App) -> None:
        """Let *app* answer; whatever it does, the client is not left waiting."""
        self.begun = True
        UNDER_WAY.set(self)
        try:
            await self._answer(app)
        except Exception:  # noqa: BLE001 - the last stop of every error
            _log.exception("http.application_failed", method=self.scope["method"])
            self._connection.transport.abort()
        except BaseException:
            # The server stops and has no more patience: no answer is the honest one.
            self._connection.transport.abort()
            raise
        finally:
            if self._holding is not None:
                self._connection.guard.answers.leave(self._holding)

    async def _answer(self, app: App) -> None:
        try:
            response = await app(self.scope, self.receive)
            head = b"" if response is None else self._render_head(response)
        except Exception:  # noqa: BLE001 - whatever it is, the client is told that it failed
            _log.exception("http.application_failed", method=self.scope["method"])
            response = _FAILED
            head = self._render_head(response)
        if response is None:
            if self.disconnected:
                return
            _log.error("http.no_answer", method=self.scope["method"])
            response = _FAILED
            head = self._render_head(response)
        if response.stream is None:
            await self._write(head, response.body)
        else:
            await self._write_stream(head, response.stream)

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
        """Note that the client does not wait for the answer any more."""
        self.disconnected = True
        if self._holding is not None:
            self._holding.give_up()
        self.wake()

    def wake(self) -> None:
        """Let the application look again, if it waits."""
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    async def receive(self) -> dict[str, Any]:
        """Return the next part of the body, or that the client is gone.

        Either is a message of ASGI: ``http.request`` or ``http.disconnect``.

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
                connection.resume_reading()
            self._waiter = connection.loop.create_future()
            try:
                await self._waiter
            finally:
                self.is_watching = False
        return _DISCONNECT

    async def _write(self, head: bytes, body: bytes | memoryview) -> None:
        connection = self._connection
        if connection.write_paused:
            await connection.drain()
        if self.disconnected:
            return
        if not body or self.scope["method"] == "HEAD":
            connection.transport.write(head)
        elif len(body) <= PORTION_BYTES or self.more_body:
            connection.transport.write(head + body)
        else:
            await self._write_portions(head, body)
        if self._holding is not None:
            connection.guard.answers.leave(self._holding)
        if not self.disconnected:
            self.response_complete = True
            connection.answered(self)

    async def _write_portions(self, head: bytes, body: bytes | memoryview) -> None:
        """Write a large answer at the pace of its reader."""
        connection = self._connection
        connection.guard.answers.made(self.hold(), len(body))
        connection.transport.write(head)
        rest = memoryview(body)
        while rest and not self.disconnected:
            portion = rest[:PORTION_BYTES]
            rest = rest[PORTION_BYTES:]
            # What the connection has not sent yet may wait for a slow reader when the room was
            # given back. A view would keep the whole answer in memory, and uvloop lets go of what
            # it was given together only when all of it is sent.
            connection.transport.write(bytes(portion))
            self._portions += 1
            if connection.write_paused:
                await connection.drain()
            else:
                await asyncio.sleep(0)

    async def _write_stream(self, head: bytes, stream: AsyncGenerator[bytes, None]) -> None:
        """Write what comes, when it comes, at the pace of its reader."""
        connection = self._connection
        try:
            if connection.write_paused:
                await connection.drain()
            connection.transport.write(head)
            async for part in stream:
                if self.disconnected:
                    return
                connection.transport.write(part)
                if connection.write_paused:
                    await connection.drain()
        finally:
            await stream.aclose()
        if not self.disconnected:
            self.response_complete = True
            connection.answered(self)

    def _render_head(self, response: Response) -> bytes:
        """Return status and header as they are written.

        Raises:
            ValueError: A header has a line break in it.
        """
        headers = response.headers
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
            raise ValueError("a header contains a line break")
        return b"%b%b%b" % (
            _STATUS_LINES[response.status],
            self._connection.default_head(),
            fields,
        )
