"""Requests that take long to answer: their clients may go, and no deadline is meant for them."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Iterator

import pytest

from tests.patience import PATIENCE_S
from tests.unit.server.support import GET, Client, Harness

WATCHED = b"GET /watched HTTP/1.1\r\nHost: test\r\n\r\n"
WITH_BODY = b"POST /watched HTTP/1.1\r\nHost: test\r\nContent-Length: 70000\r\n\r\n" + b"x" * 70_000


@pytest.fixture
def server() -> Iterator[Harness]:
    """A server of one test's own, as tests let go of what it holds."""
    with Harness() as harness:
        yield harness


def begin(server: Harness, client: Client, request: bytes = WATCHED) -> None:
    """Send a request, and wait until the server waits for its client to go."""
    client.send(request)
    assert server.dialect.arrived.acquire(timeout=PATIENCE_S)

    def is_watching() -> bool:
        active = client.peer.active
        return active is not None and active.is_watching

    server.wait_for(is_watching)


def close(sock: socket.socket) -> None:
    sock.close()


def half_close(sock: socket.socket) -> None:
    sock.shutdown(socket.SHUT_WR)


def reset(sock: socket.socket) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


@pytest.mark.parametrize("request_bytes", [WATCHED, WITH_BODY], ids=["empty", "body"])
@pytest.mark.parametrize("leave", [close, half_close, reset])
def test_a_client_that_leaves_is_noticed(
    server: Harness, leave: Callable[[socket.socket], None], request_bytes: bytes
) -> None:
    """However it goes: the wait ends, and so does the connection."""
    with server.connect() as client:
        begin(server, client, request_bytes)
        client.close()  # the file over the socket, which would keep it open
        leave(client.sock)
        assert server.dialect.abandoned.acquire(timeout=PATIENCE_S)
        server.wait_for(lambda: not server.guard.connections)
        assert server.call(lambda: server.guard.buffered) == 0


def test_a_client_that_left_before_is_noticed(server: Harness) -> None:
    """The end of what the client sends may come before the wait begins."""
    with server.connect() as client:
        client.send(WATCHED)
        half_close(client.sock)
        assert server.dialect.abandoned.acquire(timeout=PATIENCE_S)
        server.wait_for(lambda: not server.guard.connections)
        assert client.rest() == b""


def test_a_connection_serves_on_after_a_wait(server: Harness) -> None:
    """What was watched and answered leaves nothing behind."""
    with server.connect() as client:
        begin(server, client)
        server.call(server.dialect.release.set)
        assert client.answer()[2] == b"GET /watched 0"
        assert client.ask(GET) == (200, b"GET /a 0")
        assert not server.call(lambda: client.peer.active)


def test_a_client_that_only_stops_sending_gets_its_answer(server: Harness) -> None:
    """Where nobody waits for the client to go, half a connection is enough."""
    with server.connect() as client:
        client.send(GET.replace(b"/a", b"/held"))
        assert server.dialect.arrived.acquire(timeout=PATIENCE_S)
        half_close(client.sock)
        server.wait_for(lambda: client.peer.half_closed)
        server.call(server.dialect.release.set)
        assert client.answer()[2] == b"GET /held 0"


def test_no_deadline_strikes_a_wait(server: Harness) -> None:
    """The client is not idle, it waits for us: also with half of the next request sent."""
    with server.connect() as client:
        begin(server, client)
        server.let_pass(3600)
        client.send(GET[:10])
        for _ in range(3):
            server.let_pass(3600)
        server.call(server.dialect.release.set)
        assert client.answer()[2] == b"GET /watched 0"
        client.send(GET[10:])
        assert client.answer()[2] == b"GET /a 0"


def test_requests_behind_a_wait_stay_in_the_kernel(server: Harness) -> None:
    """Waiting for the client to go does not mean reading all it sends."""
    with server.connect() as client:
        begin(server, client)
        client.send(GET)
        server.wait_for(lambda: len(client.peer.queued) == 1)
        assert server.call(lambda: client.peer.read_paused)
        server.call(server.dialect.release.set)
        assert client.answer()[2] == b"GET /watched 0"
        assert client.answer()[2] == b"GET /a 0"


def test_a_wait_with_requests_behind_it_reads_no_more(server: Harness) -> None:
    """The same if they came together with the request that waits."""
    with server.connect() as client:
        client.send(WATCHED + GET)
        assert server.dialect.arrived.acquire(timeout=PATIENCE_S)
        server.wait_for(lambda: bool(client.peer.active and client.peer.active.is_watching))
        assert server.call(lambda: client.peer.read_paused)
        server.call(server.dialect.release.set)
        assert [client.answer()[2] for _ in range(2)] == [b"GET /watched 0", b"GET /a 0"]


def test_a_stopping_server_closes_after_the_answer(server: Harness) -> None:
    """A wait that the server ends is answered, with the news that the connection ends."""
    with server.connect() as client:
        begin(server, client)
        server.call(client.peer.shutdown)
        server.call(server.dialect.release.set)
        status, headers, _ = client.answer()
        assert (status, headers["connection"]) == (200, "close")
        assert client.rest() == b""
