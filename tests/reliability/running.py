"""A server that can be killed, and a client that sees every byte it sends and gets."""

from __future__ import annotations

import base64
import contextlib
import os
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Self
from urllib.parse import quote, unquote
from xml.etree import ElementTree as ET
from xml.sax.saxutils import escape

from leasehold.auth.sas import SasTerms, make_account_sas
from leasehold.auth.sharedkey import (
    format_http_date,
    sign,
)
from leasehold.auth.types import BadSignature, SignedRequest
from leasehold.clock import SystemClock
from tests.e2e.server import DEV_ACCOUNT, DEV_KEY, Endpoint, Server
from tests.patience import PATIENCE_S

VERSION: Final = "2026-10-06"
KEY: Final = base64.b64decode(DEV_KEY)
CLOCK: Final = SystemClock()
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
_WITHOUT_BODY: Final = (204, 304)


class KillableServer(Server):
    """A server whose process can be killed and started again on the same data."""

    port: int
    """Where it listens, once it was started."""
    _struck: subprocess.Popen[bytes] | None = None
    """The process that was struck."""

    def start(self) -> Endpoint:
        """Start the process and wait until it is ready."""
        endpoint = super().start()
        self.port = endpoint.port
        return endpoint

    def strike(self) -> None:
        """Send SIGKILL and do not wait, from any thread; :meth:`kill` must follow."""
        self._struck = self._process
        assert self._struck is not None
        self._struck.kill()

    def kill(self) -> None:
        """End the process with SIGKILL and wait for its end; fail if it had logged a traceback."""
        process, self._process = self._process, None
        assert process is not None
        if process is not self._struck:
            assert process.poll() is None, f"the server had already ended:\n{self.log}"
        process.kill()
        process.wait()
        assert "Traceback" not in self.log, f"the server logged a traceback:\n{self.log}"

    def kill_while_starting(self, after_s: float) -> None:
        """Start the process and kill it so many seconds later, ready or not."""
        starter = threading.Thread(target=self._try_to_start)
        starter.start()
        eventually(lambda: self._process is not None, "the process exists")
        time.sleep(after_s)
        self.kill()
        starter.join()

    def rss_bytes(self) -> int:
        """Return the memory that the process has resident."""
        pages = Path(f"/proc/{self.pid}/statm").read_text().split()[1]
        return int(pages) * _PAGE_BYTES

    def _try_to_start(self) -> None:
        with contextlib.suppress(AssertionError):  # it ends, or is gone, while being waited for
            self.start()


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One HTTP answer, whole."""

    status: int
    headers: Mapping[str, str]
    """Names in lower case; of a repeated field the last value."""
    body: bytes = b""

    @property
    def code(self) -> str:
        """The protocol's error code; empty if there is none."""
        return self.headers.get("x-ms-error-code", "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """One message in the answer to a put, a get or a peek."""

    message_id: str
    receipt: str = ""
    dequeue_count: int = 0
    text: str = ""


class UnansweredError(ConnectionError):
    """The connection ended before a whole answer had come."""


class Connection:
    """One TCP connection to the server.

    Its methods raise OSError when it breaks: UnansweredError at its end, TimeoutError when
    nothing comes within ``timeout_s``.
    """

    def __init__(self, port: int, timeout_s: float = PATIENCE_S) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout_s)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = b""

    def send(self, data: bytes) -> None:
        """Send all of *data*."""
        self._socket.sendall(data)

    def half_close(self) -> None:
        """Send no more, but go on reading."""
        with contextlib.suppress(OSError):  # the other side may have closed already
            self._socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Close both directions."""
        self._socket.close()

    def read_answer(self, *, head: bool = False) -> Answer:
        """Read the next answer that is final; *head* tells that it answers a HEAD."""
        while True:
            raw_head = self._until(b"\r\n\r\n")
            first, *lines = raw_head[:-4].decode("latin-1").split("\r\n")
            protocol, status, *_ = first.split(" ", 2)
            assert protocol == "HTTP/1.1", raw_head
            fields = (line.partition(":") for line in lines)
            headers = {name.lower(): value.strip() for name, _, value in fields}
            if int(status) >= 200:
                body = b"" if head or int(status) in _WITHOUT_BODY else self._body(headers)
                return Answer(status=int(status), headers=headers, body=body)

    def read_rest(self) -> bytes:
        """Return all that comes until the other side closes or resets."""
        with contextlib.suppress(ConnectionResetError):
            while data := self._socket.recv(65_536):
                self._buffer += data
        rest, self._buffer = self._buffer, b""
        return rest

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _body(self, headers: Mapping[str, str]) -> bytes:
        assert "content-length" in headers, f"an answer of unknown length: {headers}"
        length = int(headers["content-length"])
        while len(self._buffer) < length:
            self._more()
        body, self._buffer = self._buffer[:length], self._buffer[length:]
        return body

    def _until(self, mark: bytes) -> bytes:
        while mark not in self._buffer:
            self._more()
        end = self._buffer.index(mark) + len(mark)
        found, self._buffer = self._buffer[:end], self._buffer[end:]
        return found

    def _more(self) -> None:
        data = self._socket.recv(65_536)
        if not data:
            raise UnansweredError("the connection ended without a whole answer")
        self._buffer += data


def serialize(method: str, target: str, headers: Mapping[str, str], body: bytes = b"") -> bytes:
    """Return a request as it goes over the wire; header values are sent as Latin-1."""
    lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {headers[name]}" for name in headers)]
    return "\r\n".join((*lines, "", "")).encode("latin-1") + body


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A request before it is signed."""

    method: str
    path: str
    """Percent-encoded, with the account in front."""
    query: str = ""
    """Without the question mark."""
    headers: tuple[tuple[str, str], ...] = ()
    """Beside those that every request has; these come last and win."""
    body: bytes = b""

    @property
    def target(self) -> str:
        """Path and query."""
        return f"{self.path}?{self.query}" if self.query else self.path

    def all_headers(self) -> dict[str, str]:
        """Return the headers of the request, without a signature."""
        headers = {"host": "127.0.0.1", "x-ms-version": VERSION}
        if self.body or self.method in {"PUT", "POST"}:
            headers["content-length"] = str(len(self.body))
        return headers | dict(self.headers)

    def with_sas(self, sas: str) -> Asked:
        """Return the request with the parameters of a shared access signature."""
        return replace(self, query=f"{self.query}&{sas}" if self.query else sas)

    def unsigned(self) -> bytes:
        """Return the request as it goes over the wire."""
        return serialize(self.method, self.target, self.all_headers(), self.body)

    def signed(self, key: bytes = KEY, account: str = DEV_ACCOUNT) -> bytes:
        """Return the request as it goes over the wire, signed with an account key."""
        headers = {"x-ms-date": format_http_date(CLOCK.now_ms())} | self.all_headers()
        headers["authorization"] = self.authorization(headers, key, account)
        return serialize(self.method, self.target, headers, self.body)

    def authorization(self, headers: Mapping[str, str], key: bytes, account: str) -> str:
        """Return the Authorization header of the request with these *headers*."""
        pairs = (part.partition("=") for part in self.query.split("&") if part)
        request = SignedRequest(
            method=self.method,
            path=self.path,
            query=tuple((_decoded(name), _decoded(value)) for name, _, value in pairs),
            headers={name.lower(): value for name, value in headers.items()},
            version=headers["x-ms-version"],
            client_ip="127.0.0.1",
            https=False,
        )
        try:
            return sign(request, account, key)
        except BadSignature:  # it cannot be signed: whatever is sent then is wrong
            return f"SharedKey {account}:{'A' * 43}="


def _decoded(text: str) -> str:
    return unquote(text.replace("+", " "), errors="surrogateescape")


def sas_of(account: str = DEV_ACCOUNT, key: bytes = KEY, permission: str = "rwdlacup") -> str:
    """Return an account signature good for years, as a query."""
    terms = SasTerms(permission=permission, expiry="2099-01-01T00:00:00Z", version=VERSION)
    return make_account_sas(account, key, terms)


def message(text: str) -> bytes:
    """Return the body of a put or an update."""
    return f"<QueueMessage><MessageText>{escape(text)}</MessageText></QueueMessage>".encode()


def deliveries(answer: Answer) -> tuple[Delivery, ...]:
    """Return the messages in an answer."""
    return tuple(
        Delivery(
            message_id=entry.findtext("MessageId", ""),
            receipt=entry.findtext("PopReceipt", ""),
            dequeue_count=int(entry.findtext("DequeueCount", "0")),
            text=entry.findtext("MessageText", ""),
        )
        for entry in ET.fromstring(answer.body)
    )


class Client:
    """Speaks to one account over one connection, which it opens when it is needed.

    Its methods return whatever the server answers, and raise OSError when it does not; the next
    call then uses a new connection.
    """

    def __init__(
        self,
        port: int,
        *,
        account: str = DEV_ACCOUNT,
        key: bytes = KEY,
        timeout_s: float = PATIENCE_S,
    ) -> None:
        self.port = port
        self.account = account
        self._key = key
        self._sas = sas_of(account, key)
        self._timeout_s = timeout_s
        self._connection: Connection | None = None

    def create(self, queue: str, **metadata: str) -> Answer:
        """Create a queue."""
        headers = tuple((f"x-ms-meta-{name}", value) for name, value in metadata.items())
        return self.call(self.asked("PUT", queue, headers=headers))

    def put(self, queue: str, text: str, query: str = "") -> Answer:
        """Put a message."""
        return self.call(self.asked("POST", f"{queue}/messages", query, body=message(text)))

    def get(self, queue: str, count: int = 1, lease_s: int = 30) -> Answer:
        """Get messages."""
        query = f"numofmessages={count}&visibilitytimeout={lease_s}"
        return self.call(self.asked("GET", f"{queue}/messages", query))

    def peek(self, queue: str, count: int = 32) -> Answer:
        """Peek at messages."""
        query = f"peekonly=true&numofmessages={count}"
        return self.call(self.asked("GET", f"{queue}/messages", query))

    def update(
        self, queue: str, message_id: str, receipt: str, lease_s: int, text: str | None = None
    ) -> Answer:
        """Update a message; without *text* its visibility only."""
        query = f"popreceipt={quote(receipt, safe='')}&visibilitytimeout={lease_s}"
        body = b"" if text is None else message(text)
        return self.call(self.asked("PUT", f"{queue}/messages/{message_id}", query, body=body))

    def delete(self, queue: str, message_id: str, receipt: str) -> Answer:
        """Delete a message."""
        query = f"popreceipt={quote(receipt, safe='')}"
        return self.call(self.asked("DELETE", f"{queue}/messages/{message_id}", query))

    def count(self, queue: str) -> int:
        """Return how many messages the server says a queue holds."""
        answer = self.call(self.asked("GET", queue, "comp=metadata"))
        assert answer.status == 200, answer
        return int(answer.headers["x-ms-approximate-messages-count"])

    def take_all(self, queue: str, lease_s: int = 600) -> list[Delivery]:
        """Lease everything that is visible now."""
        taken: list[Delivery] = []
        while batch := deliveries(self.get(queue, 32, lease_s)):
            taken += batch
        return taken

    def asked(
        self,
        method: str,
        resource: str,
        query: str = "",
        *,
        headers: Iterable[tuple[str, str]] = (),
        body: bytes = b"",
    ) -> Asked:
        """Return a request to a resource of the account."""
        path = f"/{self.account}/{resource}"
        return Asked(method=method, path=path, query=query, headers=tuple(headers), body=body)

    def call(self, asked: Asked) -> Answer:
        """Send a request with the account's shared access signature."""
        return self.send(asked.with_sas(self._sas).unsigned(), head=asked.method == "HEAD")

    def call_signed(self, asked: Asked) -> Answer:
        """Send a request signed with the account's key, which may do what a SAS may not."""
        return self.send(asked.signed(self._key, self.account), head=asked.method == "HEAD")

    def send(self, raw: bytes, *, head: bool = False) -> Answer:
        """Send a request as it is and return the answer."""
        if self._connection is None:
            self._connection = Connection(self.port, self._timeout_s)
        try:
            self._connection.send(raw)
            answer = self._connection.read_answer(head=head)
        except OSError:
            self.close()
            raise
        if answer.headers.get("connection") == "close":
            self.close()
        return answer

    def close(self) -> None:
        """Close the connection; the next call opens another one."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def page(port: int, path: str) -> Answer:
    """Return one of the server's own pages."""
    with Connection(port) as connection:
        connection.send(serialize("GET", path, {"host": "127.0.0.1", "connection": "close"}))
        return connection.read_answer()


def eventually(holds: Callable[[], object], what: str, timeout_s: float = PATIENCE_S) -> None:
    """Wait until something holds; fail if it does not within *timeout_s*."""
    deadline_s = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline_s, f"not within {timeout_s} s: {what}"
        time.sleep(0.01)
