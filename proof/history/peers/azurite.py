"""Azurite, the emulator of Azure Queue Storage, over its REST interface."""

from __future__ import annotations

import base64
import http.client
import time
from collections.abc import Sequence
from dataclasses import dataclass
from email.utils import formatdate
from pathlib import Path
from typing import Final
from urllib.parse import quote
from xml.etree import ElementTree as ET

from benchmarks.load.job import EMULATOR_ACCOUNT, EMULATOR_KEY
from benchmarks.load.signing import VERSION, Hmac, string_to_sign
from benchmarks.peers.others import AZURITE

from leasehold.clock import SystemClock
from proof.history.adapters import Promise, Refused, Unknown
from proof.history.peers.server import TIMEOUT_S, PeerServer, accepts
from proof.history.records import Delivery

PROMISE: Final = Promise(
    prompt=False,  # Azure may miss a message and find it later
    margin_s=1.0,  # times are whole seconds
)
PACKAGE: Final = (
    Path.home() / ".cache/leasehold-bench/peers" / f"azurite-{AZURITE}" / "node_modules/azurite"
)
"""Where the benchmarks install it."""
_CLOCK: Final = SystemClock()
_SAVED_S: Final = 6.0
"""Its database is saved every five seconds; before that a kill takes the queues with it."""
_NOT_DONE: Final = 300
_GONE: Final = 404
_SERVER_ERROR: Final = 500
_TYPE: Final = "application/xml"


class AzuriteQueue:
    """One queue over one connection."""

    def __init__(self, port: int, name: str) -> None:
        self._name = name
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)

    def _ask(
        self, method: str, path: str, query: dict[str, str], body: str = ""
    ) -> tuple[http.client.HTTPMessage, str]:
        full = f"/{EMULATOR_ACCOUNT}/{self._name}{path}"
        stated = [
            ("x-ms-date", formatdate(_CLOCK.now_ms() / 1000, usegmt=True)),
            ("x-ms-version", VERSION),
        ]
        content, kind = body.encode(), _TYPE if body else ""
        pairs = sorted(query.items())
        signed = string_to_sign(method, full, pairs, stated, (len(content), kind))
        code = Hmac(base64.b64decode(EMULATOR_KEY)).base64(signed.encode()).decode()
        headers = {**dict(stated), "Authorization": f"SharedKey {EMULATOR_ACCOUNT}:{code}"}
        if body:
            headers["Content-Type"] = kind
        target = full + "?" * bool(pairs)
        target += "&".join(f"{key}={quote(value, safe='')}" for key, value in pairs)
        try:
            self._connection.request(method, target, body=content or None, headers=headers)
            answer = self._connection.getresponse()
            text = answer.read().decode()
        except (OSError, http.client.HTTPException) as error:
            raise Unknown(str(error)) from error
        if answer.status >= _SERVER_ERROR:
            raise Unknown(f"{answer.status}: {text}")
        reason = answer.headers.get("x-ms-error-code", "")
        if "PopReceiptMismatch" in reason or "PopReceiptMismatch" in text:
            raise Refused(f"lost: {reason}")
        if answer.status == _GONE:
            raise Refused(f"gone: {reason}")
        if answer.status >= _NOT_DONE:
            raise Refused(f"refused: {answer.status} {text[:200]}")
        return answer.headers, text

    def create(self) -> None:
        """Make the queue."""
        self._ask("PUT", "", {})

    def put(self, body: str, *, delay_s: float, group: str) -> None:
        """Put Message."""
        del group
        query = {"visibilitytimeout": str(int(delay_s))}
        self._ask("POST", "/messages", query, _message(body))

    def receive(self, limit: int, lease_s: float) -> Sequence[Delivery]:
        """Get Messages."""
        query = {"numofmessages": str(limit), "visibilitytimeout": str(int(lease_s))}
        return _deliveries(self._ask("GET", "/messages", query)[1])

    def peek(self, limit: int) -> Sequence[Delivery]:
        """Peek Messages."""
        query = {"numofmessages": str(limit), "peekonly": "true"}
        return _deliveries(self._ask("GET", "/messages", query)[1])

    def renew(self, delivery: Delivery, lease_s: float, saved: str) -> str:
        """Update Message, with the body that it has."""
        del saved
        query = {"popreceipt": delivery.token, "visibilitytimeout": str(int(lease_s))}
        path = f"/messages/{delivery.message_id}"
        headers, _ = self._ask("PUT", path, query, _message(delivery.body))
        return str(headers["x-ms-popreceipt"])

    def release(self, delivery: Delivery, delay_s: float) -> None:
        """Update Message."""
        self.renew(delivery, delay_s, "")

    def complete(self, delivery: Delivery) -> None:
        """Delete Message."""
        query = {"popreceipt": delivery.token}
        self._ask("DELETE", f"/messages/{delivery.message_id}", query)

    def count(self) -> int | None:
        """Get Queue Metadata, whose count is not exact."""
        headers, _ = self._ask("GET", "", {"comp": "metadata"})
        return int(headers["x-ms-approximate-messages-count"])

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


def _message(body: str) -> str:
    return f"<QueueMessage><MessageText>{body}</MessageText></QueueMessage>"


def _deliveries(text: str) -> list[Delivery]:
    return [
        Delivery(
            each.findtext("MessageText", ""),
            each.findtext("PopReceipt", ""),
            None if each.find("PopReceipt") is None else int(each.findtext("DequeueCount", "0")),
            each.findtext("MessageId", ""),
        )
        for each in ET.fromstring(text.lstrip("\ufeff")).iter("QueueMessage")
    ]


@dataclass(frozen=True, slots=True)
class AzuriteConnector:
    """Connects; see :class:`proof.history.adapters.Connector`."""

    port: int

    def open(self, queue: str) -> AzuriteQueue:
        """Make a client; its first call connects."""
        return AzuriteQueue(self.port, queue)


def _make_queues(port: int, queues: Sequence[str]) -> None:
    for name in queues:
        queue = AzuriteQueue(port, name)
        queue.create()
        queue.close()
    time.sleep(_SAVED_S)


def azurite(folder: Path) -> PeerServer:
    """Return a server with its data on disk."""
    data = folder / "azurite"
    data.mkdir()
    return PeerServer(
        "azurite",
        PROMISE,
        command=lambda port: [
            *("node", str(PACKAGE / "dist" / "src" / "queue" / "main.js")),
            *("--queueHost", "127.0.0.1", "--queuePort", str(port), "--location", str(data)),
            *("--silent", "--skipApiVersionCheck", "--disableTelemetry"),
        ],
        connect=AzuriteConnector,
        make_queues=_make_queues,
        is_ready=accepts,
        log=folder / "azurite.log",
    )
