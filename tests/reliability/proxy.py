"""A proxy that breaks connections at a chosen moment of a request.

It reads just enough HTTP to know where a request and its answer end. The client may keep its
connection; each request goes to the server over a connection of its own.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections import Counter, deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from enum import StrEnum
from typing import Any, Final, Self, TypeVar

from tests.patience import PATIENCE_S

_T = TypeVar("_T")
_LINGER_NOT: Final = struct.pack("ii", 1, 0)
"""The socket option that makes closing a reset."""


class Fault(StrEnum):
    """What happens to one request."""

    NONE = "none"
    CUT_BEFORE_REQUEST = "cut before the request"
    """The server never hears of it."""
    CUT_IN_REQUEST = "cut in the request"
    """The server gets half of it."""
    CUT_BEFORE_ANSWER = "cut before the answer"
    """The server has answered; the client gets nothing."""
    CUT_IN_ANSWER = "cut in the answer"
    """The server has answered; the client gets half of it."""
    RESET_BEFORE_ANSWER = "reset before the answer"
    """As cut, but with a reset."""
    HALF_CLOSE = "half close"
    """The server sees the end of the stream right behind the request; the answer comes back."""
    BYTE_BY_BYTE = "byte by byte"
    """Both ways, one byte at a time."""
    DUPLICATE = "duplicate"
    """The server gets the request over two connections; the client gets one of the answers."""
    SWALLOW = "swallow"
    """For controls: the client is told that it is done, and the server never hears of it."""


BEFORE: Final = (Fault.CUT_BEFORE_REQUEST, Fault.CUT_IN_REQUEST)
"""The call has no effect and no answer."""
AFTER: Final = (Fault.CUT_BEFORE_ANSWER, Fault.CUT_IN_ANSWER, Fault.RESET_BEFORE_ANSWER)
"""The call has its effect and no whole answer."""
HARMLESS: Final = (Fault.NONE, Fault.HALF_CLOSE, Fault.BYTE_BY_BYTE)
"""The call has its effect and its answer."""

_TURNS: Final = 10
"""Of the loop, which more than suffice for a connection to be made."""
_SWALLOWED: Final = b"HTTP/1.1 204 No Content\r\nContent-Length: 0\r\n\r\n"


async def who_was_let_in() -> None:
    """Wait for the tasks of connections that the loop has just accepted to begin."""
    for _ in range(_TURNS):
        await asyncio.sleep(0)


class Proxy:
    """Stands before a server on this machine; a context manager, with a thread of its own.

    Args:
        upstream: Port of the server.
        choose: Draws the fault of each request for which none is planned.
    """

    def __init__(self, upstream: int, choose: Callable[[], Fault] = lambda: Fault.NONE) -> None:
        self.port = 0
        """Where it listens, once it has been entered."""
        self.happened: Counter[Fault] = Counter()
        """How often each fault has come to its end."""
        self._upstream = upstream
        self._choose = choose
        self._planned: deque[Fault] = deque()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._connections: set[asyncio.Task[None]] = set()

    def plan(self, *faults: Fault) -> None:
        """Let the next requests suffer these faults, in this order."""
        self._planned.extend(faults)

    def __enter__(self) -> Self:
        self._thread.start()
        self._server = self._wait(asyncio.start_server(self._accept, "127.0.0.1", 0))
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    def __exit__(self, *_: object) -> None:
        self._wait(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _wait(self, work: Coroutine[Any, Any, _T]) -> _T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout=PATIENCE_S)

    async def _stop(self) -> None:
        self._server.close()
        await who_was_let_in()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            # The client may go whenever it likes, and on shutdown this is cancelled.
            with suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
                while await self._relay(reader, writer):
                    pass
        finally:
            self._connections.discard(task)
            writer.close()

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Let one request suffer its fault; tell whether the connection goes on."""
        request = await _message(reader)
        fault = self._planned.popleft() if self._planned else self._choose()
        try:
            return await self._suffer(fault, request, writer)
        finally:
            self.happened[fault] += 1

    async def _suffer(self, fault: Fault, request: bytes, writer: asyncio.StreamWriter) -> bool:
        if fault is Fault.CUT_BEFORE_REQUEST:
            return False
        if fault is Fault.SWALLOW:
            writer.write(_SWALLOWED)
            return True
        if fault is Fault.CUT_IN_REQUEST:
            await self._send_half(request)
            return False
        if fault is Fault.DUPLICATE:
            answers = await asyncio.gather(self._ask(request), self._ask(request))
            writer.write(answers[0])
            return True
        answer = await self._ask(
            request,
            half_close=fault is Fault.HALF_CLOSE,
            byte_by_byte=fault is Fault.BYTE_BY_BYTE,
        )
        if fault in AFTER:
            if fault is Fault.CUT_IN_ANSWER:
                writer.write(answer[: len(answer) // 2])
                await writer.drain()
            elif fault is Fault.RESET_BEFORE_ANSWER:
                client = writer.get_extra_info("socket")
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_NOT)
            return False
        await _write(writer, answer, byte_by_byte=fault is Fault.BYTE_BY_BYTE)
        return b"\r\nconnection: close\r\n" not in answer.lower()

    async def _ask(
        self, request: bytes, *, half_close: bool = False, byte_by_byte: bool = False
    ) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._upstream)
        try:
            await _write(writer, request, byte_by_byte=byte_by_byte)
            if half_close:
                writer.write_eof()
            return await _message(reader)
        finally:
            writer.close()

    async def _send_half(self, request: bytes) -> None:
        """Send half of a request, and wait until the server has seen that there is no more."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self._upstream)
        writer.write(request[: len(request) // 2])
        writer.write_eof()
        with suppress(OSError):
            await reader.read()
        writer.close()


async def _message(reader: asyncio.StreamReader) -> bytes:
    """Read one request or answer whose length is told by its head."""
    head = await reader.readuntil(b"\r\n\r\n")
    for line in head.lower().split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name == b"content-length":
            return head + await reader.readexactly(int(value))
    return head


async def _write(writer: asyncio.StreamWriter, data: bytes, *, byte_by_byte: bool) -> None:
    if not byte_by_byte:
        writer.write(data)
        await writer.drain()
        return
    for at in range(len(data)):
        writer.write(data[at : at + 1])
        await writer.drain()
        await asyncio.sleep(0)
