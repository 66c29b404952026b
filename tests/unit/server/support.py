"""A server of the real protocol and application over a stub dialect, on a real socket."""

from __future__ import annotations

import asyncio
import http.client
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, Self

import uvloop

from leasehold.http.app import Application, RequestStats
from leasehold.http.connection import HttpConnection, ServerState
from leasehold.http.guard import ConnectionLimits, Guard
from leasehold.http.request_cycle import PORTION_BYTES
from leasehold.http.requests import Request, Response
from leasehold.testing import ManualClock
from tests.patience import PATIENCE_S

MAX_BODY_BYTES: Final = 100_000
NATIVE_MAX_BODY_BYTES: Final = 1_000_000
GET: Final = b"GET /a HTTP/1.1\r\nHost: test\r\n\r\n"


class StubDialect:
    """Answers with what it was asked.

    ``/held`` waits for the test, ``/watched`` also for the client to go; ``/large`` is 4 MiB,
    ``/portion`` as much as goes out in one piece.
    """

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.arrived = threading.Semaphore(0)
        """Released once for each request that has reached the dialect."""
        self.release = asyncio.Event()
        self.abandoned = threading.Semaphore(0)
        """Released once for each watched request whose client has gone."""

    def begin(self, request: Request) -> Request:
        """See ``BaseDialect``."""
        return request

    async def enter(self, request: Request) -> Response | None:
        """Let everybody in but those who say ``no``; ``wait`` does when the test releases it."""
        says = request.headers.get("authorization")
        if says == "wait":
            await self.release.wait()
        return Response(403, [], b"no") if says == "no" else None

    def longest_body(self, request: Request) -> int:
        """See ``BaseDialect``."""
        return NATIVE_MAX_BODY_BYTES if request.raw_path.startswith("/v1/") else MAX_BODY_BYTES

    async def answer(self, request: Request) -> Response:
        """See ``BaseDialect``."""
        self.requests.append(request)
        self.arrived.release()
        path = request.raw_path
        if path == "/held":
            await self.release.wait()
        if path == "/watched":
            await self._watch(request)
        if path == "/fails":
            raise RuntimeError("as the test wants")
        if path == "/splits":
            return Response(200, [(b"x-value", b"a\r\nx-smuggled: b")])
        if path == "/large":
            return Response(200, [], b"x" * (4 * 1024 * 1024))
        if path == "/portion":
            return Response(200, [], b"x" * PORTION_BYTES)
        if request.body_too_large:
            return Response(413, [], b"too large")
        if path == "/empty":
            return Response(204, [])
        text = f"{request.method} {path} {len(request.body)}"
        return Response(200, [(b"x-ms-meta-CamelCase", b"kept")], text.encode())

    async def _watch(self, request: Request) -> None:
        gone = asyncio.create_task(request.gone())
        released = asyncio.create_task(self.release.wait())
        await asyncio.wait({gone, released}, return_when=asyncio.FIRST_COMPLETED)
        if gone.done():
            self.abandoned.release()
        gone.cancel()
        released.cancel()


class HastyApplication(Application):
    """Answers ``/hasty`` without reading the body, which the application itself never does."""

    async def __call__(self, scope: Any, receive: Any) -> Response | None:
        """See ``Application``."""
        if scope["raw_path"] != b"/hasty":
            return await super().__call__(scope, receive)
        return Response(200, [])


class NoPages:
    """No pages of the server's own."""

    paths: frozenset[str] = frozenset()

    async def answer(self, path: str) -> Response:
        """See ``Pages``."""
        raise AssertionError(path)


class Harness:
    """Runs the server in a thread of its own, with a clock that the test moves."""

    def __init__(self, **limits: Any) -> None:
        self.clock = ManualClock()
        self.guard = Guard(ConnectionLimits(**limits), self.clock)
        self.dialect: StubDialect
        self.port = 0
        self._loop: asyncio.AbstractEventLoop
        self._stop: asyncio.Event
        self._started = threading.Event()
        self._thread = threading.Thread(target=lambda: uvloop.run(self._serve()), daemon=True)

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        self.dialect = StubDialect()
        app = HastyApplication(
            dialect=self.dialect,
            pages=NoPages(),
            clock=self.clock,
            timings=RequestStats(),
            native=self.dialect,
        )
        self.state = state = ServerState(self.guard, self.clock)
        server = await self._loop.create_server(
            lambda: HttpConnection(app, state), host="127.0.0.1", port=0
        )
        self.port = server.sockets[0].getsockname()[1]
        self._started.set()
        await self._stop.wait()
        self.dialect.release.set()
        server.close()
        for connection in list(state.connections):
            connection.transport.abort()
        await server.wait_closed()
        await asyncio.gather(*state.tasks, return_exceptions=True)

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._started.wait(PATIENCE_S)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()

    def call(self, function: Callable[[], Any]) -> Any:
        """Call *function* in the server's loop and return what it returns."""

        async def call() -> Any:
            return function()

        return asyncio.run_coroutine_threadsafe(call(), self._loop).result(PATIENCE_S)

    def let_pass(self, seconds: float) -> None:
        """Move the clock, then let the guard look at all connections."""
        self.call(lambda: self.clock.advance(s=seconds))
        self.call(self.guard.sweep)

    def wait_for(self, condition: Callable[[], bool]) -> None:
        """Let the server's loop turn until *condition*, evaluated in it, holds."""

        async def wait() -> None:
            while not condition():  # noqa: ASYNC110 - what is waited for has no event
                await asyncio.sleep(0)

        asyncio.run_coroutine_threadsafe(wait(), self._loop).result(PATIENCE_S)

    def connections(self) -> list[HttpConnection]:
        """Return the open connections, to be looked at in the server's loop."""
        return [each for each in self.guard.connections if isinstance(each, HttpConnection)]

    @contextmanager
    def connect(self, receive_buffer: int | None = None) -> Iterator[Client]:
        """Open a connection, and wait until the server knows it."""
        sock = socket.socket()
        if receive_buffer:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        sock.settimeout(PATIENCE_S)
        with sock:
            sock.connect(("127.0.0.1", self.port))
            name = sock.getsockname()

            def peers() -> list[HttpConnection]:
                return [each for each in self.connections() if each.client == name]

            self.wait_for(lambda: bool(peers()))
            client = Client(sock, peers()[0])
            try:
                yield client
            finally:
                client.close()


class Client:
    """The client's side of a connection."""

    def __init__(self, sock: socket.socket, peer: HttpConnection) -> None:
        self.sock = sock
        self.peer = peer
        """The server's side; to be looked at in the server's loop only."""
        self._file = sock.makefile("rb")

    def close(self) -> None:
        """Close the reading side; the socket closes with its context."""
        self._file.close()

    def send(self, data: bytes) -> None:
        """Send bytes as they are."""
        self.sock.sendall(data)

    def answer(self, method: str = "GET") -> tuple[int, dict[str, str], bytes]:
        """Read one answer: status, header with names as sent, body."""
        response = http.client.HTTPResponse(_Readable(self._file), method=method)  # type: ignore[arg-type]
        response.begin()
        return response.status, dict(response.getheaders()), response.read()

    def ask(self, data: bytes) -> tuple[int, bytes]:
        """Send a request and return status and body of the answer."""
        self.send(data)
        status, _, body = self.answer()
        return status, body

    def rest(self) -> bytes:
        """Return all that comes until the server closes; a reset counts as closed."""
        received = b""
        try:
            while data := self._file.read1(65_536):
                received += data
        except ConnectionResetError:
            pass
        return received


class _Readable:
    """What HTTPResponse takes for a socket; keeps what it reads ahead for the next answer."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def makefile(self, mode: str) -> Any:
        assert mode == "rb"
        return _Unclosable(self._file)


class _Unclosable:
    def __init__(self, file: Any) -> None:
        self._file = file

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def close(self) -> None:
        """Leave the file open for the next answer."""

    def flush(self) -> None:
        """Do nothing."""
