"""moto's SQS, a stand-in for tests, over the JSON protocol of Amazon SQS. All is in memory."""

from __future__ import annotations

import http.client
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from proof.history.adapters import Promise, Queue, Refused, Unknown
from proof.history.peers.server import TIMEOUT_S, PeerServer, accepts
from proof.history.records import Delivery

PROGRAM: Final = Path.home() / ".cache/leasehold-bench/peers/moto-venv/bin/moto_server"
"""An environment of its own, for the libraries that it brings: ``pip install 'moto[server]'``."""
PROMISE: Final = Promise(
    fenced=False,  # SQS: an older receipt handle may or may not work
    prompt=False,  # SQS: a receive may miss a message
    margin_s=0.05,
)
_ACCOUNT: Final = "123456789012"
_OK: Final = 200
_SERVER_ERROR: Final = 500
# Nobody looks at the signature; the region is read from it.
_SIGNED: Final = (
    "AWS4-HMAC-SHA256 Credential=x/20260101/us-east-1/sqs/aws4_request,"
    " SignedHeaders=host, Signature=x"
)
_COUNTS: Final = ("", "Delayed", "NotVisible")


class MotoQueue(Queue):
    """One queue over one connection."""

    def __init__(self, port: int, name: str) -> None:
        self._name = name
        self._url = f"http://127.0.0.1:{port}/{_ACCOUNT}/{name}"
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)

    def _ask(self, operation: str, **asked: Any) -> dict[str, Any]:
        headers = {
            "Content-Type": "application/x-amz-json-1.0",
            "X-Amz-Target": f"AmazonSQS.{operation}",
            "Authorization": _SIGNED,
        }
        try:
            self._connection.request("POST", "/", json.dumps(asked), headers)
            answer = self._connection.getresponse()
            text = answer.read().decode()
        except (OSError, http.client.HTTPException) as error:
            raise Unknown(str(error)) from error
        if answer.status >= _SERVER_ERROR:
            raise Unknown(f"{answer.status}: {text[:200]}")
        if answer.status != _OK:
            reason = str(json.loads(text).get("__type", text)).rpartition("#")[2]
            word = "gone" if reason == "ReceiptHandleIsInvalid" else "refused"
            raise Refused(f"{word}: {reason}")
        said: dict[str, Any] = json.loads(text) if text else {}
        return said

    def create(self) -> None:
        """Make the queue."""
        self._ask("CreateQueue", QueueName=self._name)

    def put(self, body: str, *, delay_s: float, group: str) -> None:
        """SendMessage."""
        del group
        self._ask("SendMessage", QueueUrl=self._url, MessageBody=body, DelaySeconds=int(delay_s))

    def receive(self, limit: int, lease_s: float) -> Sequence[Delivery]:
        """ReceiveMessage, which gives ten at most."""
        said = self._ask(
            "ReceiveMessage",
            QueueUrl=self._url,
            MaxNumberOfMessages=min(limit, 10),
            VisibilityTimeout=int(lease_s),
            WaitTimeSeconds=0,
            AttributeNames=["ApproximateReceiveCount"],
        )
        return [
            # The number of receives is approximate, by its name.
            Delivery(each["Body"], each["ReceiptHandle"], None, each["MessageId"])
            for each in said.get("Messages", [])
        ]

    def renew(self, delivery: Delivery, lease_s: float, saved: str) -> str:
        """ChangeMessageVisibility."""
        del saved
        self._ask(
            "ChangeMessageVisibility",
            QueueUrl=self._url,
            ReceiptHandle=delivery.token,
            VisibilityTimeout=int(lease_s),
        )
        return delivery.token

    def release(self, delivery: Delivery, delay_s: float) -> None:
        """ChangeMessageVisibility."""
        self.renew(delivery, delay_s, "")

    def complete(self, delivery: Delivery) -> None:
        """DeleteMessage."""
        self._ask("DeleteMessage", QueueUrl=self._url, ReceiptHandle=delivery.token)

    def count(self) -> int | None:
        """Add up what GetQueueAttributes tells."""
        said = self._ask("GetQueueAttributes", QueueUrl=self._url, AttributeNames=["All"])
        attributes = said["Attributes"]
        return sum(int(attributes[f"ApproximateNumberOfMessages{each}"]) for each in _COUNTS)

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


@dataclass(frozen=True, slots=True)
class MotoConnector:
    """Connects; see :class:`proof.history.adapters.Connector`."""

    port: int

    def open(self, queue: str) -> MotoQueue:
        """Make a client; its first call connects."""
        return MotoQueue(self.port, queue)


def _make_queues(port: int, queues: Sequence[str]) -> None:
    for name in queues:
        queue = MotoQueue(port, name)
        queue.create()
        queue.close()


def moto(folder: Path) -> PeerServer:
    """Return a server."""
    return PeerServer(
        "moto",
        PROMISE,
        command=lambda port: [str(PROGRAM), "-H", "127.0.0.1", "-p", str(port)],
        connect=MotoConnector,
        make_queues=_make_queues,
        is_ready=accepts,
        log=folder / "moto.log",
    )
