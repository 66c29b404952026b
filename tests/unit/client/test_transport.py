"""Time-outs, failures of the network, and the lives of connections, over a real socket too."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpcore
import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa

from leasehold.client import AsyncClient, Client, ConnectionFailed, RetryPolicy
from leasehold.client.errors import UnexpectedAnswer
from leasehold.client.models import LeaseRef
from tests.e2e.identity import _write_certificate
from tests.patience import PATIENCE_S
from tests.unit.client.support import PUT_RESULT, QUEUE, Driver, Script, answer, results

ONCE = RetryPolicy(attempts=1)
_TLS_HANDSHAKE = b"\x16"
EMPTY = b'{"messages":[]}'
ANSWER = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"


class SocketServer:
    """Answers every request with no messages, unless its path asks to wait; counts connections."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self.connections = 0
        self.heads: list[bytes] = []
        self.waiting = threading.Event()
        self.hung_up = threading.Event()
        self._open: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._socket.accept()
                self.connections += 1
                self._open.append(connection)
                thread = threading.Thread(target=self._serve, args=(connection,))
                self._threads.append(thread)
                thread.start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, suppress(OSError):
            while request := _request(connection):
                self.heads.append(request)
                if b"/queues/slow/" in request:
                    self.waiting.set()
                    if not connection.recv(1):
                        self.hung_up.set()
                    return
                connection.sendall(ANSWER % (len(EMPTY), EMPTY))

    def close(self) -> None:
        """End all threads."""
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        for connection in self._open:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(PATIENCE_S)


def _request(connection: socket.socket) -> bytes:
    data = b""
    while b"\r\n\r\n" not in data:
        part = connection.recv(65_536)
        if not part or part[:1] == _TLS_HANDSHAKE:
            return b""
        data += part
    head, _, body = data.partition(b"\r\n\r\n")
    length = next(
        (int(line[15:]) for line in head.lower().split(b"\r\n") if line[:15] == b"content-length:"),
        0,
    )
    while len(body) < length:
        body += connection.recv(65_536)
    return head


@pytest.fixture
def server() -> Iterator[SocketServer]:
    """A server made of threads."""
    made = SocketServer()
    yield made
    made.close()


@pytest.fixture
def nobody() -> Iterator[str]:
    """An address where nobody listens."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{bound.getsockname()[1]}"


def timeouts(script: Script) -> dict[str, float]:
    """Return the time-outs of the latest request."""
    return dict(script.last.extensions["timeout"])


def test_the_timeout_leaves_room_for_the_wait(driver: Driver) -> None:
    """The server may take the time that it was asked to wait, and the usual time on top."""
    script = Script(answer({"messages": []}))
    queue = driver.client(script, timeout_s=7).queue("jobs")
    driver.do(queue.receive(wait_s=20))
    assert timeouts(script) == {"connect": 7, "read": 27, "write": 7, "pool": None}
    driver.do(queue.receive())
    assert timeouts(script)["read"] == 7


def test_a_renewal_can_have_less_time(driver: Driver) -> None:
    """Less than the client's other calls have, not more."""
    script = Script(results({"id": "m", "receipt": "r2"}))
    queue = driver.client(script, timeout_s=7).queue("jobs")
    lease = LeaseRef("m", "r1")
    for timeout_s, expected in ((0.5, 0.5), (60, 7), (None, 7)):
        driver.do(queue.renew(lease, 30, timeout_s=timeout_s))
        assert timeouts(script) == {**dict.fromkeys(("connect", "read", "write"), expected)} | {
            "pool": None
        }
    with pytest.raises(ValueError, match="above 0"):
        driver.do(queue.renew(lease, 30, timeout_s=0))


def test_connecting_takes_no_longer_than_it_should(driver: Driver) -> None:
    """A long time-out for answers does not mean waiting as long for a machine that is off."""
    script = Script(answer(QUEUE))
    driver.do(driver.client(script, timeout_s=300).queue("jobs").info())
    assert timeouts(script)["connect"] == 10


@pytest.mark.parametrize(
    ("error", "words", "unknown"),
    [
        (httpx.ConnectError("[Errno 111] Connection refused"), "Connection refused", False),
        (httpx.ConnectTimeout(""), "no connection within 5 s", False),
        (httpx.ReadTimeout(""), "no response within 5 s besides the wait of 20 s", True),
        (httpx.WriteTimeout(""), "no response within 5 s", True),
        (httpx.ReadError(""), "ReadError", True),
        (httpx.RemoteProtocolError("Server disconnected"), "Server disconnected", True),
    ],
)
def test_a_failure_of_the_network_is_explained(
    driver: Driver, error: Exception, words: str, unknown: bool
) -> None:
    """The error names the server, the cause, and whether anything may have been done."""
    client = driver.client(Script(error), timeout_s=5, retries=ONCE)
    with pytest.raises(ConnectionFailed) as caught:
        driver.do(client.queue("jobs").receive(wait_s=20))
    failure = caught.value
    assert failure.outcome_unknown is unknown
    assert failure.url == "http://127.0.0.1:10001"
    assert words in str(failure)
    assert failure.url in str(failure)
    assert ("is unknown" in str(failure)) is unknown


class _Blocked(httpx.ConnectError):
    """What a transport of a user may raise."""


def test_a_failure_of_a_users_own_kind_is_what_it_derives_from(driver: Driver) -> None:
    """A connection that was not made has carried nothing."""
    client = driver.client(Script(_Blocked("by the proxy")), retries=ONCE)
    with pytest.raises(ConnectionFailed, match="by the proxy") as caught:
        driver.do(client.queue("jobs").receive())
    assert not caught.value.outcome_unknown


def test_what_the_caller_handles_is_no_cause(driver: Driver, nobody: str) -> None:
    """A call made in an except block tells of its own failure."""
    client = driver.real(nobody, retries=ONCE)
    try:
        raise ssl.SSLCertVerificationError("of the caller")  # noqa: TRY301 - as a caller does
    except ssl.SSLCertVerificationError:
        with pytest.raises(ConnectionFailed, match="Errno") as caught:
            driver.do(client.queue("jobs").put("x"))
    assert "of the caller" not in str(caught.value)
    assert not caught.value.is_untrusted


def test_a_call_that_closing_cuts_off_is_of_unknown_outcome(server: SocketServer) -> None:
    """The server has it, and may have carried it out."""

    async def use() -> None:
        client = AsyncClient(server.url)
        call = asyncio.create_task(client.queue("slow").peek())
        await asyncio.to_thread(server.waiting.wait, 10)
        await client.aclose()
        with pytest.raises(ConnectionFailed) as caught:
            await call
        assert caught.value.outcome_unknown

    asyncio.run(use())


def test_nobody_listening_is_said_plainly(driver: Driver, nobody: str) -> None:
    """The message names the address and how to start a server there."""
    client = driver.real(nobody)
    with pytest.raises(ConnectionFailed, match="Start one there with leasehold serve") as caught:
        driver.do(client.queue("jobs").put("x"))
    assert nobody in str(caught.value)
    assert "Errno" in str(caught.value)
    assert not caught.value.outcome_unknown


def test_the_same_is_sent_with_a_transport_of_httpx(driver: Driver, server: SocketServer) -> None:
    """The client's own connections send the lines that httpx would send."""
    httpx_own = httpx.AsyncHTTPTransport() if driver.is_async else httpx.HTTPTransport()
    for transport in (None, httpx_own):
        queue = driver.real(server.url, retries=ONCE, transport=transport).queue("jobs")
        for name, *arguments in (
            ("receive", 5),
            ("put", "caf\u00e9"),
            ("put_body", b""),
            ("info",),
            ("delete",),
            ("get_body", "a b"),
        ):
            with suppress(UnexpectedAnswer):
                driver.do(getattr(queue, name)(*arguments))

    def lines(head: bytes) -> list[bytes]:
        first, *others = head.split(b"\r\n")
        varying = (b"authorization:", b"x-ms-date:")
        return [first, *sorted(line for line in others if not line.lower().startswith(varying))]

    own, given = server.heads[:6], server.heads[6:]
    assert len(given) == 6
    assert [lines(head) for head in own] == [lines(head) for head in given]
    assert any(b"content-length: 0" in head.lower() for head in own)


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("http://q.test", b"q.test"),
        ("http://q.test:80", b"q.test"),
        ("https://q.test:80", b"q.test:80"),
        ("https://[::1]:10001", b"[::1]:10001"),
        ("http://b\u00fccher.test:8080", b"xn--bcher-kva.test:8080"),
    ],
)
def test_the_host_is_named(url: str, host: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """With its port where that is not the usual one, and in ASCII."""
    sent: list[httpcore.Request] = []

    def handle(_: object, request: httpcore.Request) -> httpcore.Response:
        sent.append(request)
        return httpcore.Response(200, content=EMPTY)

    monkeypatch.setattr(httpcore.ConnectionPool, "handle_request", handle)
    with Client(url, "acme", key="a2V5") as client:
        assert client.queue("jobs").receive() == []
    assert dict(sent[0].headers)[b"Host"] == host


def test_connections_are_kept_open(driver: Driver, server: SocketServer) -> None:
    """Calls one after the other use one connection."""
    queue = driver.real(server.url).queue("jobs")
    for _ in range(5):
        assert driver.do(queue.receive()) == []
    assert server.connections == 1


def test_a_closed_client_refuses_calls(driver: Driver) -> None:
    """Closing twice does no harm."""
    script = Script(answer(QUEUE))
    client = driver.client(script)
    close = client.aclose if driver.is_async else client.close
    for _ in range(2):
        driver.do(close())
    with pytest.raises(RuntimeError, match="closed"):
        driver.do(client.queue("jobs").info())
    assert not script.requests


def test_a_connection_made_while_the_client_is_closed_is_closed(
    driver: Driver, server: SocketServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call that was about to connect ends, and leaves no connection open."""
    client = driver.real(server.url, retries=ONCE)
    if driver.is_async:
        connect = httpcore.AsyncConnectionPool.handle_async_request

        async def close_before(pool: Any, request: httpcore.Request) -> httpcore.Response:
            await client.aclose()
            return await connect(pool, request)

        monkeypatch.setattr(httpcore.AsyncConnectionPool, "handle_async_request", close_before)
    else:
        connect_now = httpcore.ConnectionPool.handle_request

        def close_before_now(pool: Any, request: httpcore.Request) -> httpcore.Response:
            client.close()
            return connect_now(pool, request)

        monkeypatch.setattr(httpcore.ConnectionPool, "handle_request", close_before_now)
    assert driver.do(client.queue("jobs").receive()) == []
    assert client._transport._connections._pool.connections == []


def test_a_client_is_a_context(server: SocketServer) -> None:
    """Leaving the context closes its connections."""
    with Client(server.url) as client:
        assert client.queue("jobs").receive() == []
    with pytest.raises(RuntimeError, match="closed"):
        client.queue("jobs").receive()

    async def use() -> AsyncClient:
        async with AsyncClient(server.url) as client:
            assert await client.queue("jobs").receive() == []
        return client

    client_of_loop = asyncio.run(use())
    with pytest.raises(RuntimeError, match="closed"):
        asyncio.run(client_of_loop.get_job("j1"))


def test_threads_may_share_a_client(server: SocketServer) -> None:
    """Each call under way has a connection of its own, and none gets another's answer."""
    with Client(server.url) as client, ThreadPoolExecutor(8) as threads:
        queue = client.queue("jobs")
        done = list(threads.map(lambda _: queue.receive(), range(200)))
    assert done == [[]] * 200
    assert 1 <= server.connections <= 8


def test_a_slow_receive_keeps_nobody_waiting(server: SocketServer) -> None:
    """While receives wait, other calls of the same client go through."""

    async def use() -> None:
        async with AsyncClient(server.url) as client:
            slow = [asyncio.create_task(client.queue("slow").receive(wait_s=60)) for _ in range(30)]
            await asyncio.to_thread(server.waiting.wait, 10)
            assert await client.queue("jobs").receive() == []
            for task in slow:
                task.cancel()
            await asyncio.gather(*slow, return_exceptions=True)

    asyncio.run(use())


def test_a_cancelled_receive_hangs_up(server: SocketServer) -> None:
    """The server sees the end of the connection, and the client can be used on."""

    async def use() -> None:
        async with AsyncClient(server.url) as client:
            task = asyncio.create_task(client.queue("slow").receive(wait_s=60))
            await asyncio.to_thread(server.waiting.wait, 10)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert await asyncio.to_thread(server.hung_up.wait, 10)
            assert await client.queue("jobs").receive() == []

    asyncio.run(use())


def test_a_timeout_of_the_caller_ends_a_receive(server: SocketServer) -> None:
    """asyncio.timeout works as with any other call."""

    async def use() -> None:
        async with AsyncClient(server.url) as client:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.01):
                    await client.queue("slow").receive(wait_s=60)

    asyncio.run(use())


def test_an_answer_that_does_not_come_is_a_failure(driver: Driver, server: SocketServer) -> None:
    """After the time-out the call ends, and says that its outcome is not known."""
    client = driver.real(server.url, timeout_s=0.05)
    with pytest.raises(ConnectionFailed) as caught:
        driver.do(client.queue("slow").receive())
    assert caught.value.outcome_unknown
    assert server.hung_up.wait(PATIENCE_S)


def test_a_server_in_the_clear_is_no_tls_server(driver: Driver, server: SocketServer) -> None:
    """https to a plain server fails before anything is sent."""
    context = ssl.create_default_context()
    url = server.url.replace("http:", "https:")
    client = driver.real(url, retries=ONCE, ssl_context=context)
    with pytest.raises(ConnectionFailed) as caught:
        driver.do(client.queue("jobs").receive())
    assert not caught.value.outcome_unknown


def test_the_whole_answer_is_read(driver: Driver) -> None:
    """A long list of results arrives complete."""
    many = [PUT_RESULT | {"id": str(number)} for number in range(3_000)]
    script = Script(answer({"results": many}))
    done = driver.do(driver.client(script).queue("jobs").put_many(["x"] * 3_000))
    assert [sent.id for sent in done] == [str(number) for number in range(3_000)]


def test_a_certificate_that_is_not_trusted_is_told_apart(driver: Driver, tmp_path: Path) -> None:
    """Something is running there: what failed is said, and how to name the authority."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    _write_certificate(key, tmp_path / "cert.pem", tmp_path / "key.pem")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")
    with socket.create_server(("127.0.0.1", 0)) as listening:
        url = f"https://127.0.0.1:{listening.getsockname()[1]}"

        def shake_hands() -> None:
            connection, _ = listening.accept()
            with suppress(OSError), context.wrap_socket(connection, server_side=True):
                pass

        with ThreadPoolExecutor(1) as pool:
            pool.submit(shake_hands)
            client = driver.real(url, retries=ONCE, ssl_context=ssl.create_default_context())
            with pytest.raises(ConnectionFailed) as caught:
                driver.do(client.queue("jobs").receive())
    assert caught.value.is_untrusted
    assert not caught.value.outcome_unknown
    text = str(caught.value)
    assert f"The certificate of {url} is not trusted: self-signed certificate" in text
    assert "--ca-file" in text
    assert "Is it running" not in text
