"""The native API: whole batches as JSON, and the few requests around a measurement."""

from __future__ import annotations

import json
import socket
from time import perf_counter_ns
from types import TracebackType
from typing import Any, Final, Self

from benchmarks.load.dialects import DELETE, GET, LEASE_S, PUT, http_reply_length, make_body
from benchmarks.load.job import EMULATOR_ACCOUNT, EMULATOR_KEY, Job
from benchmarks.load.workloads import Connection, LoadFailed, Workload

_ACCOUNT: Final = f"/v1/accounts/{EMULATOR_ACCOUNT}"
_GOOD: Final = b"HTTP/1.1 200"
_ID: Final = b'"id":"'
_RECEIPT: Final = b'"receipt":"'
_NONE_FAILED: Final = b'"failed":0'
_TIMEOUT_S: Final = 120
_CHUNK: Final = 1 << 18
_MOST: Final = 10_000
"""Messages in one call."""


def queue_path(job: Job) -> str:
    """Return the path of the queue of *job*."""
    return f"{_ACCOUNT}/queues/{job.queue}"


def make_request(port: int, method: str, path: str, body: bytes | None = None) -> bytes:
    """Return one request with the account's key as its bearer."""
    content = (
        "" if body is None else f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    )
    return (
        f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n"
        f"Authorization: Bearer {EMULATOR_KEY}\r\n{content}\r\n"
    ).encode() + (body or b"")


class Native:
    """Batches of the native API; a handle is what a completion says of one message."""

    expected = (_GOOD, _GOOD, _GOOD)
    leases_are_bound = False
    reply_length = staticmethod(http_reply_length)

    def __init__(self, job: Job) -> None:
        self._path = queue_path(job) + "/messages"
        message = {"body": make_body(job.body_bytes).decode()}
        self._put = self._post(job, "", {"messages": [message] * job.batch})
        self._gets = {
            limit: self._post(
                job, "/receive", {"max_messages": limit, "visibility_timeout_s": LEASE_S}
            )
            for limit in {1, job.batch}
        }
        self._complete = self._post(job, "/complete", None).replace(b"Length: 0", b"Length: %d")

    def _post(self, job: Job, verb: str, body: object) -> bytes:
        content = b"" if body is None else _compact(body)
        return make_request(job.port, "POST", self._path + verb, content)

    def put(self) -> bytes:
        """Return a request to put a whole batch."""
        return self._put

    def get(self, limit: int) -> bytes:
        """See :class:`Dialect`."""
        return self._gets[limit]

    def delete(self, handle: bytes) -> bytes:
        """See :class:`Dialect`."""
        return self.complete([handle])

    def complete(self, handles: list[bytes]) -> bytes:
        """Return a request to complete the messages of *handles*."""
        body = b'{"items":[' + b",".join(handles) + b"]}"
        return self._complete % len(body) + body

    def handles(self, data: bytes) -> list[bytes]:
        """See :class:`Dialect`.

        An id and a receipt hold nothing that JSON escapes, and neither does the body that
        :func:`make_body` makes, so a member's name in quotation marks is where the member is.
        Messages are mostly of one length, so the next name is looked for where it was in the
        message before: that is three times as fast as a search through the body.
        """
        found = []
        at, stride, inner = data.find(_ID), 0, 0
        while at >= 0:
            receipt = at + inner
            if not data.startswith(_RECEIPT, receipt):
                receipt = data.find(_RECEIPT, at)
                if receipt < 0:
                    break
                inner = receipt - at
            end = data.find(b'"', receipt + len(_RECEIPT)) + 1
            id_end = data.find(b'"', at + len(_ID)) + 1
            found.append(b"{%b,%b}" % (data[at:id_end], data[receipt:end]))
            following = at + stride
            if not stride or not data.startswith(_ID, following):
                following = data.find(_ID, id_end)
                stride = following - at
            at = following
        return found

    def tick(self, now_ms: int) -> None:
        """See :class:`Dialect`."""


class Batches(Workload):
    """Put a batch, receive one, complete that one; over and over."""

    def __init__(self, dialect: Native, batch: int) -> None:
        super().__init__(dialect)
        self._native = dialect
        self._batch = batch

    def begin(self, connection: Connection) -> None:
        """See :class:`Workload`."""
        connection.step = PUT
        connection.send(self._native.put())
        connection.began_ns = connection.sent_ns

    def reply(self, connection: Connection, data: bytes) -> None:
        """See :class:`Workload`."""
        if not self.take(connection, data):
            return
        if connection.step == PUT:
            if self._all_done(data, "sent"):
                connection.step = GET
                connection.send(self._native.get(self._batch))
        elif connection.step == GET:
            handles = self._native.handles(data)
            if handles:
                connection.asked = len(handles)
                connection.step = DELETE
                connection.send(self._native.complete(handles))
            else:
                self._count_empty()
                connection.send(self._native.get(self._batch))
        elif self._all_done(data, "completed"):
            self.messages += connection.asked
            self.cycles.append(perf_counter_ns() - connection.began_ns)
            if self.stopping:
                self.finish(connection)
            else:
                self.begin(connection)

    @property
    def owed(self) -> int:
        """Messages sent and not completed: some receives bring fewer than a batch."""
        return len(self.latencies[PUT]) * self._batch - self.messages

    def _all_done(self, data: bytes, verb: str) -> bool:
        """Tell whether each item of an answer is good; a bad one fails the workload."""
        if data.find(_NONE_FAILED) >= 0:
            return True
        self.fail(f"not every message was {verb}: {data[:2000]!r}")
        return False


class NativeClient:
    """One connection for single requests, each timed from its first byte to its last."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._link = socket.create_connection(("127.0.0.1", port), timeout=_TIMEOUT_S)
        self._link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.taken_ns = 0
        """How long the last answer took."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._link.close()

    def call(self, method: str, path: str, body: object = None) -> Any:
        """Return the JSON of a good answer, or None where it has no body.

        Raises:
            LoadFailed: The status is not 2xx, or the connection was lost.
        """
        content = None if body is None else _compact(body)
        request = make_request(self._port, method, path, content)
        began = perf_counter_ns()
        self._link.sendall(request)
        parts, length, have = [], -1, 0
        while length < 0 or have < length:
            part = self._link.recv(_CHUNK)
            if not part:
                raise LoadFailed(f"the server closed the connection during {method} {path}")
            parts.append(part)
            have += len(part)
            if length < 0:
                length = http_reply_length(b"".join(parts))
        self.taken_ns = perf_counter_ns() - began
        answer = b"".join(parts)
        if not answer.startswith(b"HTTP/1.1 2"):
            raise LoadFailed(f"unexpected answer to {method} {path}: {answer[:2000]!r}")
        text = answer[answer.find(b"\r\n\r\n") + 4 :]
        return json.loads(text) if text else None


def create_queue(job: Job) -> None:
    """Create the queue of *job* where it is missing."""
    with NativeClient(job.port) as client:
        client.call("PUT", queue_path(job), {})


def count_messages(job: Job) -> int:
    """Return how many messages the queue of *job* holds, in whatever state."""
    with NativeClient(job.port) as client:
        total: int = client.call("GET", queue_path(job) + "/counts")["total"]
        return total


def drain(job: Job, messages: int) -> None:
    """Receive and complete so many messages.

    Raises:
        LoadFailed: There are not as many.
    """
    path = queue_path(job) + "/messages"
    with NativeClient(job.port) as client:
        while messages:
            asked = {"max_messages": min(messages, _MOST), "visibility_timeout_s": LEASE_S}
            found = client.call("POST", f"{path}/receive", asked)["messages"]
            items = [{"id": one["id"], "receipt": one["receipt"]} for one in found]
            if not items or client.call("POST", f"{path}/complete", {"items": items})["failed"]:
                raise LoadFailed(f"{messages} messages that were sent cannot be completed")
            messages -= len(items)


def _compact(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
