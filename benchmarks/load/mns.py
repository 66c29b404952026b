"""The MNS protocol: requests that are signed anew each time, as those of its SDKs are.

Written apart from the server's own code on purpose, like the signatures of Azure.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import itertools
from email.utils import formatdate
from typing import Final, NamedTuple

from benchmarks.load.dialects import http_reply_length, make_body
from benchmarks.load.job import EMULATOR_ACCOUNT, EMULATOR_KEY, Job

_SPACE = b'xmlns="http://mns.aliyuncs.com/doc/v1/"'
_PROLOG = b'<?xml version="1.0" encoding="utf-8"?>'
_HANDLE = b"<ReceiptHandle>"


class _Content(NamedTuple):
    """The body of a request, and what depends on it alone."""

    signed: bytes
    """The two lines of the string to sign."""
    head: bytes
    body: bytes


_NOTHING: Final = _Content(b"\n", b"", b"")


class Mns:
    """Signs requests with the account's key; each has an id of its own.

    The server is reached at the port that its protocols share, by the name of the host.
    """

    expected = (b"HTTP/1.1 201", b"HTTP/1.1 200", b"HTTP/1.1 204")
    leases_are_bound = False
    reply_length = staticmethod(http_reply_length)

    def __init__(self, job: Job) -> None:
        self._path = f"/queues/{job.queue}/messages".encode()
        self._host = f"{EMULATOR_ACCOUNT}.mns.localhost:{job.port}".encode()
        self._mac = hmac.new(EMULATOR_KEY.encode(), digestmod=hashlib.sha1)
        self._ids = map("7a1d6f0c-5b42-{:012x}".format, itertools.count())
        self._date = b""
        one = b"<MessageBody>%b</MessageBody>" % make_body(job.body_bytes)
        self._one = self._content(self._document(b"Message", one))
        entry = b"<Message>%b</Message>" % one
        self._many = [
            self._content(self._document(b"Messages", entry * count))
            for count in range(job.batch + 1)
        ]
        self._gets = [
            b"" if limit == 1 else b"?numOfMessages=%d" % limit for limit in range(job.batch + 1)
        ]

    @staticmethod
    def _document(name: bytes, inner: bytes) -> bytes:
        return b"%b<%b %b>%b</%b>" % (_PROLOG, name, _SPACE, inner, name)

    def tick(self, now_ms: int) -> None:
        """See :class:`Dialect`."""
        self._date = formatdate(now_ms / 1000, usegmt=True).encode()

    @staticmethod
    def _content(body: bytes) -> _Content:
        digest = hashlib.md5(body, usedforsecurity=False).hexdigest()
        md5, kind = base64.b64encode(digest.encode()), b"text/xml;charset=UTF-8"
        head = b"Content-MD5: %b\r\nContent-Type: %b\r\nContent-Length: %d\r\n" % (
            md5,
            kind,
            len(body),
        )
        return _Content(b"%b\n%b" % (md5, kind), head, body)

    def _request(self, method: bytes, query: bytes, content: _Content = _NOTHING) -> bytes:
        request_id = next(self._ids).encode()
        target = self._path + query
        mac = self._mac.copy()
        mac.update(
            b"%b\n%b\n%b\nx-mns-user-request-id:%b\nx-mns-version:2015-06-06\n%b"
            % (method, content.signed, self._date, request_id, target)
        )
        return (
            b"%b %b HTTP/1.1\r\nHost: %b\r\nDate: %b\r\nx-mns-version: 2015-06-06\r\n"
            b"x-mns-user-request-id: %b\r\n%bAuthorization: MNS %b:%b\r\n\r\n%b"
            % (
                method,
                target,
                self._host,
                self._date,
                request_id,
                content.head,
                EMULATOR_ACCOUNT.encode(),
                base64.b64encode(mac.digest()),
                content.body,
            )
        )

    def put(self) -> bytes:
        """See :class:`Dialect`."""
        return self._request(b"POST", b"", self._one)

    def get(self, limit: int) -> bytes:
        """See :class:`Dialect`."""
        return self._request(b"GET", self._gets[limit])

    def wait(self, seconds: int) -> bytes:
        """Return a request for one message that waits for it."""
        return self._request(b"GET", b"?waitseconds=%d" % seconds)

    def delete(self, handle: bytes) -> bytes:
        """See :class:`Dialect`."""
        return self._request(b"DELETE", b"?ReceiptHandle=" + handle)

    def put_many(self, count: int) -> bytes:
        """Return a request to put several messages."""
        return self._request(b"POST", b"", self._many[count])

    def delete_many(self, handles: list[bytes]) -> bytes:
        """Return a request to delete several messages."""
        inner = b"".join([b"%b%b</ReceiptHandle>" % (_HANDLE, each) for each in handles])
        content = self._content(self._document(b"ReceiptHandles", inner))
        return self._request(b"DELETE", b"", content)

    def handles(self, data: bytes) -> list[bytes]:
        """See :class:`Dialect`."""
        found = []
        at = data.find(_HANDLE)
        while at >= 0:
            end = data.find(b"<", at + len(_HANDLE))
            found.append(data[at + len(_HANDLE) : end])
            at = data.find(_HANDLE, end)
        return found
