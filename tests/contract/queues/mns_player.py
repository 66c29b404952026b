"""Plays the answers of MNS over HTTP, so that the official SDK can be tested without an account.

The answers are the files of ``mns_answers``: what the service is known to send, with the places
that change from call to call left open. Behind them is a queue in memory for each name, with the
strict rule: a handle dies when its lease ends.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import socket
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path
from string import Template
from typing import Any, Final, Self
from urllib.parse import parse_qsl, unquote, urlsplit
from xml.etree import ElementTree as ET
from xml.sax.saxutils import escape

from leasehold.testing.memory_queue import MEMORY, MemoryQueue
from leasehold.testing.time import ManualTime
from leasehold.worker.adapters.protocol import Delivery, Lease, Outgoing, QueueMissing, Renewed

ANSWERS: Final = {
    path.stem: Template(path.read_text())
    for path in (Path(__file__).parent / "mns_answers").glob("*.xml")
}
RETENTION_S: Final = 345_600
_SPACE: Final = 'xmlns="http://mns.aliyuncs.com/doc/v1"'
_KEEPS_ALL: Final = replace(MEMORY, counts_returns=True)
_STATUS: Final = {
    "MessageNotExist": 404,
    "QueueNotExist": 404,
    "ReceiptHandleError": 400,
    "InvalidArgument": 400,
    "InternalError": 500,
    "QpsLimitExceeded": 400,
    "AccessDenied": 403,
    "SignatureDoesNotMatch": 403,
    "MalformedXML": 400,
    "QueueAlreadyExist": 409,
}
Reply = tuple[int, str]


class Refused(Exception):
    """The service answers with this code."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


class MnsPlayer:
    """An account of MNS on this machine; a context manager.

    Attributes:
        refuse: Codes to be answered to the next requests, in their place.
        drop: How many answers get lost after the request was carried out.
        requests: Method and target of all requests.
        own_lease_s: VisibilityTimeout of all queues.
    """

    access_id = "id-of-the-tests"
    access_key = "key-of-the-tests"

    def __init__(self) -> None:
        self.time = ManualTime()
        self.queues: dict[str, MemoryQueue] = {}
        self.refuse: list[str] = []
        self.drop = 0
        self.requests: list[tuple[str, str]] = []
        self.own_lease_s = 30
        self.connections = 0
        self.open: list[socket.socket] = []
        self.handles: dict[str, Lease] = {}
        self._numbers = count(1)
        handler = type("Handler", (_Handler,), {"player": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(
            target=self._server.serve_forever,
            name="leasehold-mns-player",
            kwargs={"poll_interval": 0.01},
        )

    @property
    def url(self) -> str:
        """Where it is."""
        return f"http://127.0.0.1:{self._server.server_port}"

    @property
    def connection_string(self) -> str:
        """How it is reached."""
        return f"Endpoint={self.url};AccessKeyId={self.access_id};AccessKeySecret={self.access_key}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def close_connections(self) -> None:
        """Close all connections that are idle, as a keep-alive does that has run out."""
        for each in self.open:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        self.open.clear()

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    # --- the service -------------------------------------------------------------------------

    def answer(self, method: str, target: str, content: bytes) -> Reply:
        """Carry out a request."""
        self.requests.append((method, target))
        parts = urlsplit(target)
        # A plus in a handle is a plus: the SDK does not encode it.
        query = {name.lower(): value for name, value in parse_qsl(parts.query.replace("+", "%2B"))}
        _, kind, name, *rest = unquote(parts.path).split("/")
        assert kind == "queues"
        try:
            self._refuse_as_planned()
            if not rest:
                return self._queue(method, name)
            return self._messages(method, self._find(name), query, content)
        except Refused as refused:
            return _STATUS[refused.code], self._error(refused.code)
        except QueueMissing:
            return 404, self._error("QueueNotExist")

    def _refuse_as_planned(self) -> None:
        if self.refuse:
            raise Refused(self.refuse.pop(0))

    def _find(self, name: str) -> MemoryQueue:
        if name not in self.queues:
            raise Refused("QueueNotExist")
        return self.queues[name]

    def _queue(self, method: str, name: str) -> Reply:
        if method == "PUT":
            known = name in self.queues
            if not known:
                self.queues[name] = MemoryQueue(
                    name, time=self.time, strict=True, capabilities=_KEEPS_ALL
                )
            return (204 if known else 201), ""
        depth = self._find(name).depth()
        return 200, _played(
            "attributes",
            name=name,
            lease_s=self.own_lease_s,
            visible=depth.visible,
            leased=depth.leased,
            delayed=depth.delayed,
        )

    def _messages(
        self, method: str, queue: MemoryQueue, query: dict[str, str], content: bytes
    ) -> Reply:
        if method == "POST":
            return self._send(queue, content)
        if method == "GET":
            return self._receive(queue, query)
        if method == "PUT":
            lease = self._lease(query["receipthandle"])
            (renewed,) = queue.renew([lease], int(query["visibilitytimeout"]))
            if not isinstance(renewed, Renewed):
                raise Refused("MessageNotExist")
            visible_ms = self._now_ms() + int(query["visibilitytimeout"]) * 1000
            handle = self._handle(Lease(lease.message_id, renewed.receipt))
            return 200, _played("visibility", handle=handle, visible_ms=visible_ms)
        if "receipthandle" in query:
            handles = [query["receipthandle"]]
        else:
            handles = [str(each.text) for each in ET.fromstring(content)]
        return self._delete(queue, handles, is_batch="receipthandle" not in query)

    def _send(self, queue: MemoryQueue, content: bytes) -> Reply:
        root = ET.fromstring(content)
        found = {_local(each.tag): each for each in root}
        body = found["MessageBody"].text or ""
        if len(body.encode()) > 65_536 or not body:
            raise Refused("InvalidArgument")
        delay_s = int(found["DelaySeconds"].text or 0) if "DelaySeconds" in found else 0
        properties: dict[str, str] = {}
        for group in ("UserProperties", "SystemProperties"):
            for each in found.get(group, ()):
                named = {_local(member.tag): member.text or "" for member in each}
                properties[f"{group}/{named['Name']}"] = named["Value"]
        queue.put(
            [
                Outgoing(
                    body=body, delay_s=delay_s, time_to_live_s=RETENTION_S, properties=properties
                )
            ]
        )
        return 201, _played("sent", id=_id(queue.left()[-1].message_id), md5=_md5(body))

    def _receive(self, queue: MemoryQueue, query: dict[str, str]) -> Reply:
        found = queue.receive(
            int(query.get("numofmessages", "1")),
            visibility_timeout_s=self.own_lease_s,
            wait_s=int(query.get("waitseconds", "0")),
        )
        if not found:
            raise Refused("MessageNotExist")
        if "numofmessages" not in query:
            whole = self._message(found[0]).strip().replace("<Message>", f"<Message {_SPACE}>", 1)
            return 200, f'<?xml version="1.0" ?>\n{whole}\n'
        return 200, _played("received", raw={"messages": "".join(map(self._message, found))})

    def _message(self, delivery: Delivery) -> str:
        body = delivery.body.decode()
        return _played(
            "received_message",
            raw={"properties": _properties(delivery.properties)},
            id=_id(delivery.message_id),
            md5=_md5(body),
            body=body,
            handle=self._handle(delivery.lease),
            enqueue_ms=delivery.inserted_at_ms,
            first_ms=self._now_ms(),
            visible_ms=self._now_ms() + self.own_lease_s * 1000,
            count=delivery.dequeue_count,
        )

    def _delete(self, queue: MemoryQueue, handles: list[str], *, is_batch: bool) -> Reply:
        failed: list[tuple[str, str]] = []
        for handle in handles:
            try:
                (refused,) = queue.complete([self._lease(handle)])
            except Refused as error:
                failed.append((handle, error.code))
            else:
                failed += [] if refused is None else [(handle, "MessageNotExist")]
        if not failed:
            return 204, ""
        if not is_batch:
            raise Refused(failed[0][1])
        entries = [
            _played("errors_entry", code=code, text=code, handle=handle) for handle, code in failed
        ]
        return 404, _played("errors", raw={"errors": "".join(entries)})

    # --- its parts ---------------------------------------------------------------------------

    def _handle(self, lease: Lease) -> str:
        number = base64.b64encode(f"{next(self._numbers)}~>?".encode()).decode()
        handle = f"{_id(lease.message_id)}-{number}"
        self.handles[handle] = lease
        return handle

    def _lease(self, handle: str) -> Lease:
        if handle not in self.handles:
            raise Refused("ReceiptHandleError")
        return self.handles[handle]

    def _now_ms(self) -> int:
        return 1_767_225_600_000 + round(self.time.monotonic_s() * 1000)

    def _error(self, code: str) -> str:
        return _played("error", code=code, text=code, request="0" * 24, host=self.url)


class _Handler(BaseHTTPRequestHandler):
    player: MnsPlayer
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1

    def setup(self) -> None:
        self.player.connections += 1
        super().setup()
        self.player.open.append(self.connection)

    def _do(self) -> None:
        size = int(self.headers.get("content-length") or 0)
        status, text = self.player.answer(self.command, self.path, self.rfile.read(size))
        if self.player.drop:
            self.player.drop -= 1
            self.close_connection = True
            return
        content = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", "text/xml;charset=utf-8")
        self.send_header("x-mns-request-id", "0" * 24)
        self.send_header("x-mns-version", "2015-06-06")
        self.send_header("Location", f"{self.player.url}{self.path}")
        if status != 204:
            self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_PUT = do_POST = do_DELETE = _do  # noqa: N815 - the names are given

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name is given
        """Say nothing."""


def _played(answer: str, raw: dict[str, str] | None = None, **values: object) -> str:
    """Return an answer with its open places filled in; what is *raw* holds elements."""
    shown = {key: escape(str(value), {"\r": "&#13;"}) for key, value in values.items()}
    return ANSWERS[answer].substitute(shown | (raw or {}))


def _properties(properties: Any) -> str:
    text = ""
    for group, entry in (
        ("UserProperties", "PropertyValue"),
        ("SystemProperties", "SystemPropertyValue"),
    ):
        mine = {
            name.partition("/")[2]: value
            for name, value in properties.items()
            if name.startswith(group)
        }
        items = "".join(
            f"<{entry}><Name>{escape(name)}</Name><Value>{escape(value)}</Value>"
            f"<Type>STRING</Type></{entry}>"
            for name, value in mine.items()
        )
        text += f"<{group}>{items}</{group}>" if items else ""
    return text


def _local(tag: str) -> str:
    return tag.rpartition("}")[2]


def _id(message_id: str) -> str:
    """Return an id as the service has them: 32 hexadecimal digits in upper case."""
    return hashlib.md5(message_id.encode()).hexdigest().upper()


def _md5(body: str) -> str:
    return hashlib.md5(body.encode()).hexdigest().upper()
