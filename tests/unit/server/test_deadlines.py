"""What happens to clients that are slow, on a clock that the test moves."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from leasehold.http.connection import HttpConnection, ServerState
from leasehold.http.guard import LINGER_S, ConnectionLimits, Guard
from leasehold.http.requests import Response
from leasehold.testing import ManualClock
from tests.patience import PATIENCE_S
from tests.unit.server.support import GET, Client, Harness

HEADER_S, BODY_S, IDLE_S, WRITE_S = 10.0, 20.0, 100.0, 30.0
RATE = 1_000


@pytest.fixture
def server() -> Iterator[Harness]:
    """A server of its own for each test: a clock is shared by all connections."""
    with Harness(
        header_timeout_s=HEADER_S,
        body_timeout_s=BODY_S,
        body_min_bytes_per_s=RATE,
        idle_timeout_s=IDLE_S,
        write_timeout_s=WRITE_S,
    ) as harness:
        yield harness


def is_open(server: Harness, client: Client) -> bool:
    """Tell whether the server still reads from the connection and owes it no goodbye."""
    return bool(
        server.call(lambda: client.peer in server.guard.connections and client.peer._phase < 3)
    )


def send_and_wait(server: Harness, client: Client, data: bytes) -> None:
    """Send *data*, and wait until the server has read it."""
    phase = client.peer._phase
    client.send(data)
    server.wait_for(lambda: client.peer._phase != phase)


def test_header_that_does_not_end_is_refused(server: Harness) -> None:
    """A header that is not there in time is 408, however steadily it trickles."""
    with server.connect() as client:
        send_and_wait(server, client, b"GET /a HTTP/1.1\r\n")
        for _ in range(3):
            server.let_pass(HEADER_S / 4)
            client.send(b"X-Slow: a\r\n")
        assert is_open(server, client)
        server.let_pass(HEADER_S / 4)
        assert is_open(server, client), "never early: the time is known to one sweep only"
        server.let_pass(2.0)
        assert client.rest().startswith(b"HTTP/1.1 408 ")


def test_blank_lines_are_no_progress(server: Harness) -> None:
    """Sending nothing but line ends does not keep a connection open."""
    with server.connect() as client:
        send_and_wait(server, client, b"\r\n")
        server.let_pass(HEADER_S + 2.0)
        assert client.rest().startswith(b"HTTP/1.1 408 ")


def test_body_that_does_not_come_is_refused(server: Harness) -> None:
    """A body that is not there in time is 408, and the dialect never sees the request."""
    with server.connect() as client:
        send_and_wait(
            server, client, b"POST /a HTTP/1.1\r\nHost: test\r\nContent-Length: 10\r\n\r\nabc"
        )
        server.let_pass(BODY_S - 1)
        assert is_open(server, client)
        server.let_pass(3.0)
        assert client.rest().startswith(b"HTTP/1.1 408 ")
    assert server.dialect.requests == []
    assert server.call(lambda: server.guard.buffered) == 0


def test_body_earns_time_as_it_comes(server: Harness) -> None:
    """A large body over a slow line is served if it keeps the least rate."""
    size = 60 * RATE
    with server.connect() as client:
        head = b"POST /a HTTP/1.1\r\nHost: test\r\nContent-Length: %d\r\n\r\n" % size
        send_and_wait(server, client, head)
        for part in range(1, 60):
            client.send(b"x" * RATE)
            server.wait_for(lambda done=part: client.peer._body_bytes == done * RATE)  # type: ignore[misc]
            server.let_pass(1.2)
            assert is_open(server, client)
        assert client.ask(b"x" * RATE) == (200, b"POST /a %d" % size)


def test_idle_connection_is_closed_without_a_word(server: Harness) -> None:
    """A client that keeps a connection in its pool must not find an answer to no question."""
    with server.connect() as client:
        assert client.ask(GET)[0] == 200
        server.let_pass(IDLE_S - 1)
        assert client.ask(GET)[0] == 200
        server.let_pass(IDLE_S + 2)
        assert client.rest() == b""


def test_connection_that_never_spoke_is_closed(server: Harness) -> None:
    """A connection without a first request counts as idle."""
    with server.connect() as client:
        server.let_pass(IDLE_S + 2)
        assert client.rest() == b""


def test_client_is_not_blamed_while_the_server_works(server: Harness) -> None:
    """However long an answer takes, the client that waits for it is not cut off."""
    with server.connect() as client:
        client.send(b"GET /held HTTP/1.1\r\nHost: test\r\n\r\nGET /a HTT")
        assert server.dialect.arrived.acquire(timeout=PATIENCE_S)
        server.let_pass(10 * IDLE_S)
        server.call(server.dialect.release.set)
        assert client.answer()[0] == 200
        assert client.ask(b"P/1.1\r\nHost: test\r\n\r\n")[0] == 200


def test_begun_request_gets_its_time_after_the_answer_before_it(server: Harness) -> None:
    """The clock of a half-sent request starts when the answer before it is written."""
    with server.connect() as client:
        client.send(b"GET /held HTTP/1.1\r\nHost: test\r\n\r\nGET /a HTT")
        assert server.dialect.arrived.acquire(timeout=PATIENCE_S)
        server.let_pass(HEADER_S * 2)
        server.call(server.dialect.release.set)
        assert client.answer()[0] == 200
        server.let_pass(HEADER_S - 1)
        assert is_open(server, client)
        server.let_pass(3)
        assert client.rest().startswith(b"HTTP/1.1 408 ")


def test_slow_reader_is_cut_off(server: Harness) -> None:
    """A client that does not read its answer holds memory, so its connection is reset."""
    with server.connect(receive_buffer=4_096) as client:
        client.send(b"GET /large HTTP/1.1\r\nHost: test\r\n\r\n")
        server.wait_for(lambda: client.peer.transport.get_write_buffer_size() > 0)
        server.let_pass(1)  # the guard notices
        server.let_pass(WRITE_S)
        assert is_open(server, client)
        server.let_pass(2)
        server.wait_for(lambda: client.peer not in server.guard.connections)
        assert server.call(lambda: server.guard.refused["slow_reader"]) == 1
        assert len(client.rest()) < 4 * 1024 * 1024


def test_reader_that_catches_up_is_served(server: Harness) -> None:
    """A client that reads everything late but in time stays connected."""
    with server.connect(receive_buffer=4_096) as client:
        client.send(b"GET /large HTTP/1.1\r\nHost: test\r\n\r\n")
        server.wait_for(lambda: client.peer.transport.get_write_buffer_size() > 0)
        server.let_pass(WRITE_S)
        assert len(client.answer()[2]) == 4 * 1024 * 1024
        server.let_pass(WRITE_S)
        assert client.ask(GET)[0] == 200


def test_each_answer_has_its_own_time(server: Harness) -> None:
    """A client is not cut off that takes one large answer after the other without a pause."""
    with server.connect(receive_buffer=4_096) as client:
        for _ in range(3):
            client.send(b"GET /large HTTP/1.1\r\nHost: test\r\n\r\n")
            server.wait_for(lambda: client.peer.transport.get_write_buffer_size() > 0)
            server.let_pass(WRITE_S - 5)
            assert is_open(server, client)
            assert len(client.answer()[2]) == 4 * 1024 * 1024


def test_refused_client_that_stays_is_reset(server: Harness) -> None:
    """After a refusal the rest of the request is thrown away, but not for ever."""
    with server.connect() as client:
        client.send(b"nonsense\r\n\r\n")
        assert client.rest().startswith(b"HTTP/1.1 400 ")
        server.let_pass(LINGER_S - 1)
        client.send(b"more")
        server.let_pass(LINGER_S + 2)
        server.wait_for(lambda: client.peer not in server.guard.connections)


def test_refused_client_that_floods_is_reset(server: Harness) -> None:
    """There is a bound on what is thrown away."""
    with server.connect() as client:
        client.send(b"nonsense\r\n\r\n")
        with pytest.raises((ConnectionResetError, BrokenPipeError)):
            client.send(b"x" * 100_000_000)


class ClosingTransport(asyncio.Transport):
    """A connection over TLS whose client does not return the goodbye."""

    def __init__(self, unsent: int) -> None:
        super().__init__()
        self.unsent = unsent
        self.aborted = False

    def is_closing(self) -> bool:
        """Say yes."""
        return True

    def get_write_buffer_size(self) -> int:
        """Return what the test wants."""
        return self.unsent

    def abort(self) -> None:
        """Note it."""
        self.aborted = True


async def _no_app(scope: Any, receive: Any) -> Response | None:
    raise AssertionError


@pytest.mark.parametrize("unsent", [0, 1_000])
def test_goodbye_over_tls_is_not_waited_for_without_end(unsent: int) -> None:
    """A closing connection is reset soon if all was sent, else when the reader's time is up."""
    clock = ManualClock()
    guard = Guard(ConnectionLimits(write_timeout_s=WRITE_S), clock)
    loop = asyncio.new_event_loop()
    connection = HttpConnection(_no_app, ServerState(guard, clock), loop)
    transport = ClosingTransport(unsent)
    connection.connection_made(transport)
    loop.close()
    for _ in range(2):
        clock.advance(s=LINGER_S + 1)
        guard.sweep()
    assert transport.aborted == (unsent == 0)
    clock.advance(s=WRITE_S + 1)
    guard.sweep()
    assert transport.aborted
