"""What to send and how to read the answer, for each protocol.

Requests are bytes made by hand, answers are searched and not parsed: the generator shares its
machine with the server it measures.
"""

from __future__ import annotations

import base64
import itertools
from email.utils import formatdate
from typing import Final, Protocol

from benchmarks.load.job import EMULATOR_ACCOUNT, EMULATOR_KEY, Job
from benchmarks.load.signing import VERSION, Hmac, service_sas, string_to_sign

PUT: Final = 0
GET: Final = 1
DELETE: Final = 2
VERBS: Final = ("put", "get", "delete")

LEASE_S: Final = 3600
"""Longer than any phase, so that no message comes back while it is being counted."""

_ID_CHARS: Final = 36
_NO_CONTENT: Final = b"HTTP/1.1 204"


class Dialect(Protocol):
    """One protocol, with everything constant about its requests worked out beforehand."""

    expected: tuple[bytes, bytes, bytes]
    """How a good answer to a put, a get and a delete begins."""
    leases_are_bound: bool
    """Whether only the connection that got a message may delete it."""

    def put(self) -> bytes:
        """Return a request to put one message."""
        ...

    def get(self, limit: int) -> bytes:
        """Return a request for up to *limit* messages."""
        ...

    def delete(self, handle: bytes) -> bytes:
        """Return a request to delete the message of *handle*."""
        ...

    def reply_length(self, data: bytes) -> int:
        """Return how long the answer at the start of *data* is, or -1 while that is unknown."""
        ...

    def handles(self, data: bytes) -> list[bytes]:
        """Return a handle for each message in the answer to a get."""
        ...

    def tick(self, now_ms: int) -> None:
        """Take note of the time; called once before the start and then every few seconds."""
        ...


def make_body(size_bytes: int) -> bytes:
    """Return a text of *size_bytes* that needs no escaping in XML."""
    unit = base64.b64encode(bytes(range(256)))
    return (unit * (size_bytes // len(unit) + 1))[:size_bytes]


def http_reply_length(data: bytes) -> int:
    """Return how long the HTTP answer at the start of *data* is, or -1 while that is unknown."""
    head = data.find(b"\r\n\r\n")
    if head < 0:
        return -1
    at = data.find(b"ontent-length: ", 0, head)
    if at < 0:
        at = data.find(b"ontent-Length: ", 0, head)
    if at >= 0:
        return head + 4 + int(data[at + 15 : data.find(b"\r", at + 15)])
    if data.startswith(_NO_CONTENT):
        return head + 4
    # Chunked: one request is under way at a time, so the last chunk ends what has arrived.
    return len(data) if data.endswith(b"0\r\n\r\n") else -1


def make_dialect(job: Job) -> Dialect:
    """Return the dialect that *job* speaks."""
    if job.dialect == "beanstalkd":
        return Beanstalk(job)
    return SharedKey(job) if job.auth == "sharedkey" else Sas(job)


class _Azure:
    """What both kinds of authentication share: the answers."""

    leases_are_bound = False
    reply_length = staticmethod(http_reply_length)

    def __init__(self, job: Job) -> None:
        self.expected = (b"HTTP/1.1 201", b"HTTP/1.1 200", b"HTTP/1.1 204")
        if job.dialect == "noop":
            self.expected = (b"HTTP/1.1 200", b"HTTP/1.1 200", b"HTTP/1.1 200")
        self._path = f"/{EMULATOR_ACCOUNT}/{job.queue}/messages"
        self._host = f"Host: 127.0.0.1:{job.port}\r\nx-ms-version: {VERSION}\r\n"
        self._xml = (
            b'<?xml version="1.0" encoding="utf-8"?><QueueMessage><MessageText>'
            + make_body(job.body_bytes)
            + b"</MessageText></QueueMessage>"
        )

    def handles(self, data: bytes) -> list[bytes]:
        found = []
        at = data.find(b"<MessageId>")
        while at >= 0:
            at += 11
            receipt = data.find(b"<PopReceipt>", at) + 12
            end = data.find(b"<", receipt)
            found.append(data[at : at + _ID_CHARS] + data[receipt:end])
            at = data.find(b"<MessageId>", end)
        return found


def _escape(receipt: bytes) -> bytes:
    """Percent-encode the three characters of base64 that a query cannot hold."""
    return receipt.replace(b"+", b"%2B").replace(b"/", b"%2F").replace(b"=", b"%3D")


class Sas(_Azure):
    """Azure with a shared access signature: all but the deletes are constants."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        sas = service_sas(job.queue)
        self._put = (
            f"POST {self._path}?{sas} HTTP/1.1\r\n{self._host}Content-Type: application/xml\r\n"
            f"Content-Length: {len(self._xml)}\r\n\r\n"
        ).encode() + self._xml
        self._gets = [
            (
                f"GET {self._path}?numofmessages={limit}&visibilitytimeout={LEASE_S}&{sas} "
                f"HTTP/1.1\r\n{self._host}\r\n"
            ).encode()
            for limit in range(33)
        ]
        self._delete_start = f"DELETE {self._path}/".encode()
        self._delete_end = f"&{sas} HTTP/1.1\r\n{self._host}Content-Length: 0\r\n\r\n".encode()

    def put(self) -> bytes:
        """See :class:`Dialect`."""
        return self._put

    def get(self, limit: int) -> bytes:
        """See :class:`Dialect`."""
        return self._gets[limit]

    def delete(self, handle: bytes) -> bytes:
        """See :class:`Dialect`."""
        return b"%b%b?popreceipt=%b%b" % (
            self._delete_start,
            handle[:_ID_CHARS],
            _escape(handle[_ID_CHARS:]),
            self._delete_end,
        )

    def tick(self, now_ms: int) -> None:
        """See :class:`Dialect`."""


class SharedKey(_Azure):
    """Azure with the account's key: each request has an id of its own, so each is signed anew."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self._sign = Hmac(base64.b64decode(EMULATOR_KEY)).base64
        self._path_bytes = self._path.encode()
        self._ids = map("7a1d6f0c-5b42-4c1e-9d38-{:012x}".format, itertools.count())
        self._date = ""
        self._put: tuple[bytes, bytes, bytes] = (b"", b"", b"")
        self._gets: list[tuple[bytes, bytes, bytes]] = []
        self._delete: tuple[bytes, bytes, bytes] = (b"", b"", b"")

    def tick(self, now_ms: int) -> None:
        """See :class:`Dialect`."""
        self._date = formatdate(now_ms / 1000, usegmt=True)
        self._put = self._parts("POST", [], len(self._xml), "application/xml")
        self._gets = [
            self._parts("GET", [("numofmessages", str(limit)), ("visibilitytimeout", str(LEASE_S))])
            for limit in range(33)
        ]
        self._delete = self._parts("DELETE", [])

    def _parts(
        self, method: str, query: list[tuple[str, str]], length: int = 0, content_type: str = ""
    ) -> tuple[bytes, bytes, bytes]:
        """Return the signed text up to the request id, from it on, and the end of the head."""
        signed = string_to_sign(
            method,
            self._path,
            query,
            headers=[
                ("x-ms-client-request-id", "@"),
                ("x-ms-date", self._date),
                ("x-ms-version", VERSION),
            ],
            content=(length, content_type),
        ).encode()
        before, after = signed.split(b"@")
        question = "?" + "&".join(f"{name}={value}" for name, value in query) if query else ""
        kind = f"Content-Type: {content_type}\r\n" if content_type else ""
        size = "" if method == "GET" else f"Content-Length: {length}\r\n"
        head = (
            f"{question} HTTP/1.1\r\n{self._host}{kind}{size}x-ms-date: {self._date}\r\n"
            f"Authorization: SharedKey {EMULATOR_ACCOUNT}:"
        ).encode()
        return before, after, head

    def put(self) -> bytes:
        """See :class:`Dialect`."""
        before, after, head = self._put
        request_id = next(self._ids).encode()
        return b"POST %b%b%b\r\nx-ms-client-request-id: %b\r\n\r\n%b" % (
            self._path_bytes,
            head,
            self._sign(before + request_id + after),
            request_id,
            self._xml,
        )

    def get(self, limit: int) -> bytes:
        """See :class:`Dialect`."""
        before, after, head = self._gets[limit]
        request_id = next(self._ids).encode()
        return b"GET %b%b%b\r\nx-ms-client-request-id: %b\r\n\r\n" % (
            self._path_bytes,
            head,
            self._sign(before + request_id + after),
            request_id,
        )

    def delete(self, handle: bytes) -> bytes:
        """See :class:`Dialect`."""
        before, after, head = self._delete
        message_id, receipt = handle[:_ID_CHARS], handle[_ID_CHARS:]
        request_id = next(self._ids).encode()
        signed = b"%b%b%b/%b\npopreceipt:%b" % (before, request_id, after, message_id, receipt)
        return b"DELETE %b/%b?popreceipt=%b%b%b\r\nx-ms-client-request-id: %b\r\n\r\n" % (
            self._path_bytes,
            message_id,
            _escape(receipt),
            head,
            self._sign(signed),
            request_id,
        )


class Beanstalk:
    """beanstalkd's own line protocol, with the default tube as the queue."""

    expected = (b"INSERTED ", b"RESERVED ", b"DELETED\r\n")
    leases_are_bound = True

    def __init__(self, job: Job) -> None:
        body = make_body(job.body_bytes)
        self._put = b"put 0 0 %d %d\r\n%b\r\n" % (LEASE_S, len(body), body)

    def put(self) -> bytes:
        """See :class:`Dialect`."""
        return self._put

    def get(self, limit: int) -> bytes:
        """See :class:`Dialect`."""
        if limit != 1:
            raise ValueError("beanstalkd hands out one job at a time")
        return b"reserve-with-timeout 0\r\n"

    def delete(self, handle: bytes) -> bytes:
        """See :class:`Dialect`."""
        return b"delete %b\r\n" % handle

    def reply_length(self, data: bytes) -> int:
        """See :class:`Dialect`."""
        line = data.find(b"\r\n")
        if line < 0:
            return -1
        if data.startswith(b"RESERVED "):
            return line + 4 + int(data[data.rfind(b" ", 0, line) + 1 : line])
        return line + 2

    def handles(self, data: bytes) -> list[bytes]:
        """See :class:`Dialect`."""
        return [data[9 : data.find(b" ", 9)]]

    def tick(self, now_ms: int) -> None:
        """See :class:`Dialect`."""
