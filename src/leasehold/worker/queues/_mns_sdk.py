"""What the MNS SDK needs around it: connections for several threads, time limits, clear errors.

The SDK has one connection for each account object, which two threads must not share; over https it
waits for ever; and it repeats a request whose connection broke, after which a renewal that was
carried out looks like a lost lease. So each call here borrows a client of its own, whose
connection does neither.
"""

from __future__ import annotations

import http.client
import select
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from mns.mns_client import MNSClient
from mns.mns_exception import (
    MNSClientNetworkException,
    MNSClientParameterException,
    MNSExceptionBase,
    MNSServerException,
)
from mns.mns_http import MNSHttp, ResponseInternal
from mns.queue import Queue

from leasehold.worker.queues.errors import (
    Denied,
    LeaseGone,
    QueueError,
    QueueMissing,
    Unreachable,
)

NO_MESSAGE: Final = "MessageNotExist"
EXISTS: Final = "QueueAlreadyExist"

_GONE: Final = frozenset({NO_MESSAGE, "ReceiptHandleError"})
_MISSING: Final = frozenset({"QueueNotExist", "QueueDeletedRecently"})
_REFUSED_FOR_NOW: Final = frozenset(
    {"ServerBusy", "TooManyRequests", "QpsLimitExceeded", "TimeExpired"}
)
_FAILED: Final = frozenset({"InternalError", "InternalServerError"})


class Clients:
    """Clients of one account, each with a connection of its own; threads may share it."""

    def __init__(self, client: MNSClient) -> None:
        self._like = client
        self._lock = threading.Lock()
        self._idle: list[MNSClient] = []
        self._closed = False

    @contextmanager
    def queue(self, name: str, timeout_s: float) -> Iterator[Any]:
        """Lend the SDK's object for a queue; its bodies are the texts as they are.

        Args:
            name: Of the queue.
            timeout_s: Seconds without a byte after which a call has failed.

        Raises:
            QueueError: What an error of the SDK means.
        """
        with self._lock:
            client = self._idle.pop() if self._idle else None
        client = client or self._made()
        client.http.limit(timeout_s)
        queue = Queue(name, client)
        queue.set_encoding(encoding=False)
        try:
            yield queue
        except MNSExceptionBase as error:
            raise queue_error(error) from None
        finally:
            with self._lock:
                if not self._closed:
                    self._idle.append(client)
                    client = None
            if client is not None:
                client.close_connection()

    def close(self) -> None:
        """Close the connections that nobody uses; the others when they come back."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for client in idle:
            client.close_connection()

    def _made(self) -> MNSClient:
        like = self._like
        scheme = "https" if like.is_https else "http"
        made = MNSClient(
            f"{scheme}://{like.host}",
            version=like.version,
            credentials_provider=like.credentials_provider,
        )
        made.http = _Connection(made.host, made.is_https)
        return made


class _Connection(MNSHttp):  # type: ignore[misc]  # the SDK has no annotations
    """A connection that sends each request once."""

    def __init__(self, host: str, is_https: bool) -> None:
        super().__init__(host, is_https=is_https)
        kind = http.client.HTTPSConnection if is_https else http.client.HTTPConnection
        self.conn: Any = kind(host)

    def limit(self, timeout_s: float) -> None:
        """Set the seconds without a byte after which a call has failed."""
        self.conn.timeout = timeout_s
        if self.conn.sock is not None:
            self.conn.sock.settimeout(timeout_s)

    def send_request(self, request: Any) -> Any:
        """Send a request of the SDK, and return what it is to make of the answer.

        Raises:
            Unreachable: No answer came.
        """
        conn: Any = self.conn
        is_open = conn.sock is not None
        if is_open and _is_over(conn.sock):
            conn.close()
            is_open = False
        try:
            if not is_open:
                conn.connect()
                conn.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError as error:
            conn.close()
            text = f"no connection: {type(error).__name__}"
            raise Unreachable(text, outcome_unknown=False) from None
        try:
            conn.request(request.method, request.uri, request.data, request.header)
            answer = conn.getresponse()
            content = answer.read().decode()
        except (OSError, http.client.HTTPException, UnicodeDecodeError) as error:
            conn.close()
            raise Unreachable(f"no answer: {type(error).__name__}") from None
        # The SDK looks some of them up in lower case.
        headers = {name.lower(): value for name, value in answer.getheaders()}
        return ResponseInternal(status=answer.status, header=headers, data=content)


def queue_error(error: MNSExceptionBase) -> QueueError:
    """Return what an error of the SDK means; texts that hold whole answers are not passed on."""
    if isinstance(error, MNSClientParameterException):
        return Denied(f"{error.type}: the SDK does not take an argument")
    if isinstance(error, MNSClientNetworkException):
        return Unreachable(f"an answer that cannot be read ({error.type})")
    if not isinstance(error, MNSServerException):
        return Unreachable(type(error).__name__)
    return error_of(str(error.type))


def error_of(code: str) -> QueueError:
    """Return what a code of the service means."""
    if code in _GONE:
        return LeaseGone(code)
    if code in _MISSING:
        return QueueMissing(code)
    if code in _REFUSED_FOR_NOW or code in _FAILED:
        return Unreachable(code, outcome_unknown=code in _FAILED)
    return Denied(code)


def _is_over(sock: socket.socket) -> bool:
    """Return whether the other end has closed an idle connection: nothing else can be there."""
    readable, _, _ = select.select([sock], [], [], 0)
    return bool(readable)
