"""A relay between two parties, which can be cut, held up and slowed down while it runs.

It knows nothing of what it carries, so it stands before servers as well as before databases.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Self, TypeVar

from tests.reliability.proxy import who_was_let_in

_T = TypeVar("_T")
_CHUNK_BYTES: Final = 65_536
_WAIT_S: Final = 20.0


class Relay:
    """Listens and passes on; a context manager, with a thread of its own.

    Args:
        upstream: A port of this machine, or the path of a socket.
        listen: The path of a socket to listen on; None: a free port of this machine.
    """

    def __init__(self, upstream: int | Path, listen: Path | None = None) -> None:
        self.port = 0
        """Where it listens, if not on a path, once it was entered."""
        self.carried_bytes = 0
        self._upstream = upstream
        self._listen = listen
        self._is_cut = False
        self._delay_s = 0.0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="relay", daemon=True)
        self._tasks: set[asyncio.Task[None]] = set()
        self._flows = {True: asyncio.Event(), False: asyncio.Event()}

    # Faults; from any thread.

    def refuse(self) -> None:
        """End all connections and refuse new ones, as the machine of a dead server does."""
        self._wait(self._end())

    def lead_to(self, upstream: int | Path) -> None:
        """End all connections, and lead new ones there."""
        self._upstream = upstream
        self._wait(self._reopen())

    def cut(self) -> None:
        """End all connections and let none through."""
        self._is_cut = True
        self._wait(self._drop())

    def stall(self, *, requests: bool = True, answers: bool = True) -> None:
        """Keep back what is said one way or both; nobody is told, and nothing is thrown away."""
        self._call(self._set_flows, not requests, not answers)

    def slow_down(self, delay_s: float) -> None:
        """Keep back each piece, either way, for so many seconds."""
        self._delay_s = delay_s

    def heal(self) -> None:
        """Pass everything on, first of all what was kept back."""
        self._is_cut = False
        self._delay_s = 0.0
        self._call(self._set_flows, True, True)

    def reset(self) -> None:
        """End all connections; new ones are let through."""
        self._wait(self._drop())

    def __enter__(self) -> Self:
        self._thread.start()
        self._wait(self._begin())
        return self

    def __exit__(self, *_: object) -> None:
        self._wait(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    # In the thread

    def _wait(self, work: Coroutine[Any, Any, _T]) -> _T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_WAIT_S)

    def _call(self, function: Any, *arguments: bool) -> None:
        async def call() -> None:
            function(*arguments)

        self._wait(call())

    def _set_flows(self, requests: bool, answers: bool) -> None:
        for way, flows in ((True, requests), (False, answers)):
            if flows:
                self._flows[way].set()
            else:
                self._flows[way].clear()

    async def _begin(self) -> None:
        self._set_flows(True, True)
        await self._listen_again()

    async def _listen_again(self) -> None:
        if self._listen is None:
            self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)
            self.port = self._server.sockets[0].getsockname()[1]
        else:
            self._server = await asyncio.start_unix_server(self._accept, self._listen)

    async def _reopen(self) -> None:
        await self._drop()
        if not self._server.is_serving():
            await self._listen_again()

    async def _end(self) -> None:
        self._server.close()
        await self._drop()

    async def _drop(self) -> None:
        await who_was_let_in()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        other: asyncio.StreamWriter | None = None
        try:
            # Either side may go whenever it likes, and a cut cancels this.
            with suppress(OSError, asyncio.CancelledError):
                if not self._is_cut:
                    back, other = await self._connect()
                    await self._carry_both(reader, writer, back, other)
        finally:
            self._tasks.discard(task)
            for each in (writer, other):
                if each is not None:
                    each.transport.abort()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if isinstance(self._upstream, Path):
            return await asyncio.open_unix_connection(self._upstream)
        return await asyncio.open_connection("127.0.0.1", self._upstream)

    async def _carry_both(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        back: asyncio.StreamReader,
        other: asyncio.StreamWriter,
    ) -> None:
        """Return when either side has closed its half, as all of these protocols mean by it."""
        ways = [
            asyncio.ensure_future(self._carry(reader, other, requests=True)),
            asyncio.ensure_future(self._carry(back, writer, requests=False)),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)

    async def _carry(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, *, requests: bool
    ) -> None:
        flow = self._flows[requests]
        while data := await source.read(_CHUNK_BYTES):
            if self._delay_s:
                await asyncio.sleep(self._delay_s)
            await flow.wait()
            self.carried_bytes += len(data)
            sink.write(data)
            await sink.drain()
