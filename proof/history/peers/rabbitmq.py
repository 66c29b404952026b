"""RabbitMQ over AMQP 0-9-1: classic durable and quorum queues, with publisher confirms.

A delivery is its channel's until it is acknowledged: there is no time after which it comes back.
Messages are got one by one (``basic.get``), or pushed to a consumer (``basic.consume``).
"""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, Final

import amqp

from proof.history.adapters import Promise, Queue, Refused, Unknown
from proof.history.peers.server import TIMEOUT_S, PeerServer, free_port
from proof.history.records import Delivery

PROGRAM: Final = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
"""Where Debian's package has it."""
PROMISE: Final = Promise(
    leases=False,  # as long as the channel is open
    delays=False,
    renewals=False,
    fenced=False,  # a tag is good on its own channel alone, so there is nothing to ask for
    prompt=False,  # basic.get may find a queue empty that is about to get a message back
)
_PERSISTENT: Final = 2
_PREFETCH: Final = 16
"""More than a client holds at once; what is pushed and not yet asked for is among it."""
_ARRIVES_S: Final = 0.05
"""So long a receive waits for what is pushed."""


@contextmanager
def _errors() -> Iterator[None]:
    try:
        yield
    except (OSError, amqp.AMQPError) as error:
        raise Unknown(f"{type(error).__name__}: {error}") from error


def _connect(port: int) -> Any:
    connection = amqp.Connection(
        f"127.0.0.1:{port}",
        connect_timeout=TIMEOUT_S,
        read_timeout=TIMEOUT_S,
        write_timeout=TIMEOUT_S,
        confirm_publish=True,
    )
    connection.connect()
    return connection


class RabbitQueue(Queue):
    """One queue over one connection with one channel.

    Args:
        port: Of the server.
        name: Of the queue.
        pushed: Whether messages come to a consumer; else each is got by a call.
    """

    def __init__(self, port: int, name: str, *, pushed: bool) -> None:
        self._name = name
        self._me = uuid.uuid4().hex
        self._numbers = count(1)
        self._tags: dict[str, int] = {}
        self._pushed: deque[amqp.Message] | None = None
        with _errors():
            self._connection = _connect(port)
            self._channel = self._connection.channel()
            if pushed:
                self._pushed = deque()
                self._channel.basic_qos(0, _PREFETCH, a_global=False)
                self._channel.basic_consume(name, callback=self._pushed.append)

    def put(self, body: str, *, delay_s: float, group: str) -> None:
        """Publish a persistent message, and wait until it is confirmed."""
        del delay_s, group
        message = amqp.Message(body, delivery_mode=_PERSISTENT, content_encoding="utf-8")
        with _errors():
            self._channel.basic_publish(
                message, routing_key=self._name, mandatory=True, timeout=TIMEOUT_S
            )

    def receive(self, limit: int, lease_s: float) -> Sequence[Delivery]:
        """Get one after the other, or take what has been pushed or is about to be."""
        del lease_s
        taken: list[Delivery] = []
        with _errors():
            while len(taken) < limit:
                message = self._next()
                if message is None:
                    break
                # Tags begin anew with each channel: a receipt of our own.
                token = f"{self._me}/{next(self._numbers)}"
                self._tags[token] = message.delivery_info["delivery_tag"]
                taken.append(Delivery(str(message.body), token))
        return taken

    def renew(self, delivery: Delivery, lease_s: float, saved: str) -> str:
        """Never asked for."""
        raise NotImplementedError

    def release(self, delivery: Delivery, delay_s: float) -> None:
        """Have it back in the queue, and ask something so that an answer says that it is there."""
        del delay_s
        tag = self._tag(delivery)
        with _errors():
            self._channel.basic_reject(tag, requeue=True)
            self._ask()

    def complete(self, delivery: Delivery) -> None:
        """Acknowledge. AMQP has no answer to that, so the next one on the channel has to do."""
        tag = self._tag(delivery)
        with _errors():
            self._channel.basic_ack(tag)
            self._ask()

    def count(self) -> int | None:
        """Return how many are ready."""
        with _errors():
            return int(self._ask())

    def close(self) -> None:
        """Close it, which gives back what is not acknowledged."""
        with _errors():
            self._connection.close()

    def _next(self) -> amqp.Message | None:
        if self._pushed is None:
            return self._channel.basic_get(self._name)
        if not self._pushed:
            try:
                self._connection.drain_events(timeout=_ARRIVES_S)
            except TimeoutError:
                return None
        return self._pushed.popleft() if self._pushed else None

    def _ask(self) -> int:
        """Declare the queue that is there; return how many messages are ready."""
        return int(self._channel.queue_declare(self._name, passive=True).message_count)

    def _tag(self, delivery: Delivery) -> int:
        """Return the tag of a delivery of this channel; a tag can be used once."""
        tag = self._tags.pop(delivery.token, None)
        if tag is None:
            raise Refused("lost: its channel is closed, or it was used")
        return tag


@dataclass(frozen=True, slots=True)
class RabbitConnector:
    """Connects; see :class:`proof.history.adapters.Connector`."""

    port: int
    pushed: bool

    def open(self, queue: str) -> RabbitQueue:
        """Connect."""
        return RabbitQueue(self.port, queue, pushed=self.pushed)


def _answers(port: int) -> bool:
    try:
        _connect(port).close()
    except (OSError, amqp.AMQPError):
        return False
    return True


def rabbitmq(folder: Path, kind: str, *, pushed: bool) -> PeerServer:
    """Return one node; *kind* of its queues is ``classic`` or ``quorum``.

    With *pushed* its clients consume, else they get.
    """
    name = f"proof-{uuid.uuid4().hex[:8]}@localhost"
    # Each node of a machine is to be found by a daemon of Erlang's; a fixed port does without.
    distribution = free_port()

    def command(port: int) -> list[str]:
        return [
            *("/usr/bin/env", f"HOME={folder}", f"RABBITMQ_NODENAME={name}"),
            *(f"RABBITMQ_NODE_PORT={port}", f"RABBITMQ_DIST_PORT={distribution}"),
            *("RABBITMQ_NODE_IP_ADDRESS=127.0.0.1", f"RABBITMQ_LOG_BASE={folder}/log"),
            *(f"RABBITMQ_MNESIA_BASE={folder}/data", "RABBITMQ_LOGS=-"),
            f"RABBITMQ_ENABLED_PLUGINS_FILE={folder}/plugins",
            # With its standard input there the script becomes the node: a kill reaches it.
            *("RABBITMQ_ALLOW_INPUT=1", "RABBITMQ_SERVER_START_ARGS=-noinput", str(PROGRAM)),
        ]

    def make_queues(port: int, queues: Sequence[str]) -> None:
        connection = _connect(port)
        channel = connection.channel()
        for queue in queues:
            channel.queue_declare(
                queue, durable=True, auto_delete=False, arguments={"x-queue-type": kind}
            )
        connection.close()

    return PeerServer(
        f"rabbitmq-{kind}",
        PROMISE,
        command=command,
        connect=lambda port: RabbitConnector(port, pushed),
        make_queues=make_queues,
        is_ready=_answers,
        log=folder / "rabbitmq.log",
    )
