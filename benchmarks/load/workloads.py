"""What the connections do: closed loops, each with one request under way."""

from __future__ import annotations

import asyncio
from time import perf_counter_ns
from typing import cast

from benchmarks.load.dialects import DELETE, GET, PUT, VERBS, Dialect

_MAX_EMPTY_GETS = 100_000
"""So many answers without a message, one after another, mean that messages are missing."""


class LoadFailed(Exception):
    """The server did not answer as it should; the text says what was asked and answered."""


class Connection(asyncio.Protocol):
    """One connection; it frames the answers and leaves the rest to its workload."""

    __slots__ = (
        "_dialect",
        "_partial",
        "asked",
        "began_ns",
        "closed",
        "held",
        "sent_ns",
        "step",
        "transport",
        "work",
    )

    def __init__(self, dialect: Dialect, held: list[bytes]) -> None:
        self._dialect = dialect
        self._partial = b""
        self.closed = False
        self.held = held
        """Handles of messages got and not yet deleted; shared unless leases are bound."""
        self.work: Workload | None = None
        self.step = PUT
        self.asked = 0
        self.began_ns = 0
        self.sent_ns = 0
        self.transport: asyncio.WriteTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        # uvloop's transports have the methods of asyncio's without being of its classes.
        self.transport = cast("asyncio.WriteTransport", transport)

    def send(self, request: bytes) -> None:
        """Send a request; the clock of its latency starts here."""
        assert self.transport is not None
        self.sent_ns = perf_counter_ns()
        self.transport.write(request)

    def data_received(self, data: bytes) -> None:
        """Wait for a whole answer and hand it on."""
        if self._partial:
            data = self._partial + data
        length = self._dialect.reply_length(data)
        if length < 0 or len(data) < length:
            self._partial = data
            return
        self._partial = b""
        if self.work is None:
            return
        if len(data) > length:
            self.work.fail(f"more than one answer to {VERBS[self.step]}: {data[:2000]!r}")
            return
        self.work.reply(self, data)

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail the workload, if this connection still had work to do."""
        self.closed = True
        if self.work is not None:
            self.work.fail(f"the server closed a connection during {VERBS[self.step]}: {exc}")


class Workload:
    """What all connections do in one phase, and what came of it."""

    def __init__(self, dialect: Dialect) -> None:
        self.dialect = dialect
        self.stopping = False
        self.latencies: tuple[list[int], list[int], list[int]] = ([], [], [])
        self.cycles: list[int] = []
        self.messages = 0
        """Messages that the gets brought."""
        self.empty_gets = 0
        self._active = 0
        self._done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def run(
        self, connections: list[Connection], duration_s: float | None, timeout_s: float
    ) -> None:
        """Set all connections to work and wait until the last one has finished.

        Args:
            connections: Idle ones.
            duration_s: After this long no connection begins anew; None for until it is done.
            timeout_s: After this long the server counts as failed.
        """
        loop = asyncio.get_running_loop()
        self._active = len(connections)
        timers = [loop.call_later(timeout_s, self.fail, f"not finished after {timeout_s:.0f} s")]
        if duration_s is not None:
            timers.append(loop.call_later(duration_s, self.stop))
        for connection in connections:
            connection.work = self
        for connection in connections:
            self.begin(connection)
        try:
            await self._done
        finally:
            for timer in timers:
                timer.cancel()

    def stop(self) -> None:
        """Let every connection finish what it has begun."""
        self.stopping = True

    def fail(self, reason: str) -> None:
        """Give up."""
        if not self._done.done():
            self._done.set_exception(LoadFailed(reason))

    def finish(self, connection: Connection) -> None:
        """Take a connection out that has nothing left to do."""
        connection.work = None
        self._active -= 1
        if not self._active and not self._done.done():
            self._done.set_result(None)

    def take(self, connection: Connection, data: bytes) -> bool:
        """Note the latency of an answer and tell whether it is the expected one."""
        step = connection.step
        self.latencies[step].append(perf_counter_ns() - connection.sent_ns)
        if data.startswith(self.dialect.expected[step]):
            return True
        self.fail(f"unexpected answer to {VERBS[step]}: {data[:2000]!r}")
        return False

    def begin(self, connection: Connection) -> None:
        """Send the first request of a connection, or finish it."""
        raise NotImplementedError

    def reply(self, connection: Connection, data: bytes) -> None:
        """Take an answer and send the next request, or finish."""
        raise NotImplementedError

    def _count_empty(self) -> None:
        self.empty_gets += 1
        if self.empty_gets > _MAX_EMPTY_GETS:
            self.fail("messages are missing: gets go on bringing none")


class Cycle(Workload):
    """Put a message, get one, delete that one; over and over."""

    def begin(self, connection: Connection) -> None:
        """See :class:`Workload`."""
        connection.step = PUT
        connection.send(self.dialect.put())
        connection.began_ns = connection.sent_ns

    def reply(self, connection: Connection, data: bytes) -> None:
        """See :class:`Workload`."""
        if not self.take(connection, data):
            return
        step = connection.step
        if step == PUT:
            connection.step = GET
            connection.send(self.dialect.get(1))
        elif step == GET:
            handles = self.dialect.handles(data)
            if handles:
                self.messages += 1
                connection.step = DELETE
                connection.send(self.dialect.delete(handles[0]))
            else:
                self._count_empty()
                connection.send(self.dialect.get(1))
        else:
            self.cycles.append(perf_counter_ns() - connection.began_ns)
            if self.stopping:
                self.finish(connection)
            else:
                self.begin(connection)


class Puts(Workload):
    """Put messages until told to stop, or *count* of them (0 for no limit)."""

    def __init__(self, dialect: Dialect, count: int) -> None:
        super().__init__(dialect)
        self._left = count or 1 << 62

    def begin(self, connection: Connection) -> None:
        """See :class:`Workload`."""
        if self.stopping or not self._left:
            self.finish(connection)
            return
        self._left -= 1
        connection.step = PUT
        connection.send(self.dialect.put())

    def reply(self, connection: Connection, data: bytes) -> None:
        """See :class:`Workload`."""
        if self.take(connection, data):
            self.begin(connection)


class Gets(Workload):
    """Get exactly *count* messages, up to *batch* at a time."""

    def __init__(self, dialect: Dialect, count: int, batch: int) -> None:
        super().__init__(dialect)
        self._unasked = count
        self._batch = batch

    def begin(self, connection: Connection) -> None:
        """See :class:`Workload`."""
        limit = min(self._batch, self._unasked)
        if not limit:
            self.finish(connection)
            return
        self._unasked -= limit
        connection.step = GET
        connection.asked = limit
        connection.send(self.dialect.get(limit))

    def reply(self, connection: Connection, data: bytes) -> None:
        """See :class:`Workload`."""
        if not self.take(connection, data):
            return
        handles = self.dialect.handles(data)
        self.messages += len(handles)
        self._unasked += connection.asked - len(handles)
        connection.held += handles
        if not handles:
            self._count_empty()
        self.begin(connection)


class Deletes(Workload):
    """Delete every message that was got."""

    def begin(self, connection: Connection) -> None:
        """See :class:`Workload`."""
        if not connection.held:
            self.finish(connection)
            return
        connection.step = DELETE
        connection.send(self.dialect.delete(connection.held.pop()))

    def reply(self, connection: Connection, data: bytes) -> None:
        """See :class:`Workload`."""
        if self.take(connection, data):
            self.begin(connection)
