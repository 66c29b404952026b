"""Celery's broker on Redis: kombu's transport, used as a worker with late acknowledgements does."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import kombu
from kombu.exceptions import OperationalError
from redis.backoff import NoBackoff
from redis.retry import Retry

from proof.history.adapters import Promise, Queue, Refused
from proof.history.peers.redis_streams import redis_errors, redis_server
from proof.history.peers.server import LEASE_S, TIMEOUT_S, PeerServer
from proof.history.records import Delivery

PROMISE: Final = Promise(
    delays=False,  # a countdown is kept by the worker that has the task
    renewals=False,
    releases=False,
    fenced=False,  # an acknowledgement asks nobody who holds the task
    prompt=False,  # what has timed out is put back ten at a time
    margin_s=0.05,
)


class CeleryQueue(Queue):
    """One queue, on a connection and a channel of its own. Nothing can be peeked at."""

    def __init__(self, port: int, name: str) -> None:
        self._name = name
        self._me = uuid.uuid4().hex
        self._calls = 0
        options = {
            "visibility_timeout": LEASE_S,
            # Of a worker that dies while it puts back what has timed out. By default nobody else
            # does so for five minutes then.
            "unacked_mutex_expire": LEASE_S,
            "socket_timeout": TIMEOUT_S,
        }
        with redis_errors(OperationalError):
            self._connection = kombu.Connection(
                f"redis://127.0.0.1:{port}/0", transport_options=options
            )
            self._channel: Any = self._connection.channel()
            self._channel.client.set_retry(Retry(NoBackoff(), 0))
            self._producer = kombu.Producer(self._channel)

    def put(self, body: str, *, delay_s: float, group: str) -> None:
        """Send a message to the queue."""
        del delay_s, group
        with redis_errors(OperationalError):
            self._producer.publish(
                body,
                exchange="",
                routing_key=self._name,
                content_type="text/plain",
                content_encoding="utf-8",
                retry=False,
            )

    def receive(self, limit: int, lease_s: float) -> Sequence[Delivery]:
        """Put back what has timed out, as each worker does now and then, and take messages."""
        del lease_s
        taken: list[Delivery] = []
        self._calls += 1
        with redis_errors(OperationalError):
            self._channel.qos.restore_visible(interval=1)
            while len(taken) < limit:
                message = self._channel.basic_get(self._name, no_ack=False)
                if message is None:
                    break
                tag = message.delivery_tag
                token = f"{tag}/{self._me}/{self._calls}"
                taken.append(Delivery(message.payload, token, None, tag))
        return taken

    def renew(self, delivery: Delivery, lease_s: float, saved: str) -> str:
        """Never asked for."""
        raise NotImplementedError

    def release(self, delivery: Delivery, delay_s: float) -> None:
        """Never asked for."""
        raise NotImplementedError

    def complete(self, delivery: Delivery) -> None:
        """Acknowledge. Whether it was in time is not told."""
        tag, me, _ = delivery.token.split("/")
        if me != self._me:
            raise Refused("lost: its connection is closed")
        with redis_errors(OperationalError):
            self._channel.basic_ack(tag)

    def count(self) -> int | None:
        """Return how many wait in the queue, and how many of all queues are with workers."""
        with redis_errors(OperationalError):
            client = self._channel.client
            return int(client.llen(self._name)) + int(client.hlen(self._channel.unacked_key))

    def close(self) -> None:
        """Close the connection, which gives back what it holds."""
        with redis_errors(OperationalError):
            self._connection.close()


@dataclass(frozen=True, slots=True)
class CeleryConnector:
    """Connects; see :class:`proof.history.adapters.Connector`."""

    port: int

    def open(self, queue: str) -> CeleryQueue:
        """Connect."""
        return CeleryQueue(self.port, queue)


def celery_redis(folder: Path) -> PeerServer:
    """Return Redis with an append-only file, synced at each write."""
    return redis_server(
        "celery-redis", PROMISE, folder, "always", CeleryConnector, lambda _, __: None
    )
