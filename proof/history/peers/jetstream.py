"""NATS JetStream: a stream that keeps what was not acknowledged, and a consumer that is pulled."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import nats
from nats.errors import Error
from nats.errors import TimeoutError as NoMessage
from nats.js.api import (
    AckPolicy,
    ConsumerConfig,
    RetentionPolicy,
    StorageType,
    StreamConfig,
)

from proof.history.adapters import Promise, Queue, Unknown
from proof.history.peers.server import LEASE_S, TIMEOUT_S, PeerServer
from proof.history.records import Delivery

PROMISE: Final = Promise(
    delays=False,
    fenced=False,  # an acknowledgement counts, whoever has the message now
    prompt=False,  # a pull may end before what is redelivered is due
    margin_s=0.05,
)
_CONSUMER: Final = "workers"
_PULL_S: Final = 0.05
"""How long a pull waits when nothing is there."""
_Value = TypeVar("_Value")


async def _connect(port: int) -> Any:
    async def ignore(_: Exception) -> None: ...

    return await nats.connect(
        f"nats://127.0.0.1:{port}",
        allow_reconnect=False,
        connect_timeout=int(TIMEOUT_S),
        error_cb=ignore,
    )


class JetStreamQueue(Queue):
    """One stream of one subject, pulled over a connection of its own.

    Not peeked at: whoever reads a stream directly sees what is held, too.
    """

    def __init__(self, port: int, stream: str) -> None:
        self._stream = stream
        self._loop = asyncio.new_event_loop()
        self._connection: Any = None
        try:
            self._connection = self._do(_connect(port))
            self._context = self._connection.jetstream(timeout=TIMEOUT_S)
            self._pull = self._do(self._context.pull_subscribe_bind(_CONSUMER, stream=stream))
        except Unknown:
            self.close()
            raise

    def _do(self, work: Awaitable[_Value]) -> _Value:
        try:
            return self._loop.run_until_complete(asyncio.wait_for(work, TIMEOUT_S))
        except (OSError, Error, TimeoutError) as error:
            raise Unknown(f"{type(error).__name__}: {error}") from error

    def put(self, body: str, *, delay_s: float, group: str) -> None:
        """Publish, and wait for the answer of the stream."""
        del delay_s, group
        self._do(self._context.publish(self._stream, body.encode()))

    def receive(self, limit: int, lease_s: float) -> Sequence[Delivery]:
        """Pull. What is not acknowledged within the time of the consumer comes again."""
        del lease_s
        try:
            taken = self._loop.run_until_complete(self._pull.fetch(limit, timeout=_PULL_S))
        except NoMessage:
            return []
        except (OSError, Error, TimeoutError) as error:
            raise Unknown(f"{type(error).__name__}: {error}") from error
        # How often it was delivered is not promised: after a kill a number comes again.
        return [
            Delivery(each.data.decode(), each.reply, None, str(each.metadata.sequence.stream))
            for each in taken
        ]

    def renew(self, delivery: Delivery, lease_s: float, saved: str) -> str:
        """Say that work goes on, and ask something, so that an answer says that it was heard."""
        del lease_s, saved
        self._say(delivery, b"+WPI")
        return delivery.token

    def release(self, delivery: Delivery, delay_s: float) -> None:
        """Have it delivered again."""
        del delay_s
        self._say(delivery, b"-NAK")

    def complete(self, delivery: Delivery) -> None:
        """Acknowledge, and wait until that is confirmed."""
        self._say(delivery, b"+ACK")

    def _say(self, delivery: Delivery, word: bytes) -> None:
        self._do(self._connection.request(delivery.token, word, timeout=TIMEOUT_S))

    def count(self) -> int | None:
        """Return how many messages the stream has."""
        return int(self._do(self._context.stream_info(self._stream)).state.messages)

    def close(self) -> None:
        """Close the connection and its loop."""
        try:
            if self._connection is not None:
                self._do(self._connection.close())
        finally:
            self._loop.close()


@dataclass(frozen=True, slots=True)
class JetStreamConnector:
    """Connects; see :class:`proof.history.adapters.Connector`."""

    port: int

    def open(self, queue: str) -> JetStreamQueue:
        """Connect."""
        return JetStreamQueue(self.port, queue)


async def _make_streams(port: int, streams: Sequence[str]) -> None:
    connection = await _connect(port)
    context = connection.jetstream(timeout=TIMEOUT_S)
    for name in streams:
        await context.add_stream(
            StreamConfig(
                name=name,
                subjects=[name],
                retention=RetentionPolicy.WORK_QUEUE,
                storage=StorageType.FILE,
            )
        )
        await context.add_consumer(
            name,
            ConsumerConfig(durable_name=_CONSUMER, ack_policy=AckPolicy.EXPLICIT, ack_wait=LEASE_S),
        )
    await connection.close()


async def _is_ready(port: int) -> bool:
    connection = await _connect(port)
    try:
        await connection.jetstream(timeout=1).account_info()
    finally:
        await connection.close()
    return True


def _answers(port: int) -> bool:
    try:
        return asyncio.run(_is_ready(port))
    except (OSError, Error, TimeoutError):
        return False


def jetstream(folder: Path) -> PeerServer:
    """Return a server whose streams are files, with its defaults."""
    return PeerServer(
        "nats",
        PROMISE,
        command=lambda port: [
            *("nats-server", "-a", "127.0.0.1", "-p", str(port)),
            *("-js", "-sd", str(folder / "store")),
        ],
        connect=JetStreamConnector,
        make_queues=lambda port, queues: asyncio.run(_make_streams(port, queues)),
        is_ready=_answers,
        log=folder / "nats.log",
    )
