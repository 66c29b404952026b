"""Redis streams with a consumer group; XAUTOCLAIM ends leases by their idle time."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from proof.history.adapters import Connector, Promise, Queue, Refused, Unknown
from proof.history.peers.server import LEASE_S, TIMEOUT_S, PeerServer
from proof.history.records import Delivery

PROMISE: Final = Promise(
    delays=False,
    renewals=False,
    releases=False,
    fenced=False,  # XACK asks nobody who holds an entry
    prompt=False,  # XAUTOCLAIM looks at a page of what is pending
    margin_s=0.05,
)
_GROUP: Final = "workers"
_SYNCED_S: Final = 2.0
"""With ``everysec``, after this even a power cut leaves the groups there."""


def _client(port: int) -> Any:
    return redis.Redis(
        port=port,
        socket_timeout=TIMEOUT_S,
        decode_responses=True,
        retry=Retry(NoBackoff(), 0),
    )


@contextmanager
def redis_errors(around: type[Exception] = OSError) -> Iterator[None]:
    """Tell what the errors of the driver mean, and those of a library around it."""
    try:
        yield
    except redis.BusyLoadingError as error:
        raise Refused(f"busy: {error}") from error
    except (redis.RedisError, OSError, around) as error:
        raise Unknown(str(error)) from error


class RedisQueue(Queue):
    """One stream, read as a consumer of its own. Not peeked at: XRANGE shows what is held, too."""

    def __init__(self, port: int, stream: str) -> None:
        self._redis = _client(port)
        self._stream = stream
        self._me = uuid.uuid4().hex
        self._calls = 0

    def put(self, body: str, *, delay_s: float, group: str) -> None:
        """Add an entry."""
        del delay_s, group
        with redis_errors():
            self._redis.xadd(self._stream, {"b": body})

    def receive(self, limit: int, lease_s: float) -> Sequence[Delivery]:
        """Take what has been idle for the lease of all, then what is new."""
        del lease_s
        with redis_errors():
            claimed = self._redis.xautoclaim(
                self._stream, _GROUP, self._me, LEASE_S * 1000, "0", count=limit
            )[1]
            entries = [each for each in claimed if each[1]]
            if len(entries) < limit:
                new = self._redis.xreadgroup(
                    _GROUP, self._me, {self._stream: ">"}, count=limit - len(entries)
                )
                entries += _entries(new)
        self._calls += 1
        # There are no receipts: one of our own.
        return [
            Delivery(fields["b"], f"{entry}/{self._me}/{self._calls}", None, entry)
            for entry, fields in entries
        ]

    def renew(self, delivery: Delivery, lease_s: float, saved: str) -> str:
        """Never asked for."""
        raise NotImplementedError

    def release(self, delivery: Delivery, delay_s: float) -> None:
        """Never asked for."""
        raise NotImplementedError

    def complete(self, delivery: Delivery) -> None:
        """Acknowledge and delete at once."""
        with redis_errors():
            pipe = self._redis.pipeline(transaction=True)
            pipe.xack(self._stream, _GROUP, delivery.message_id)
            pipe.xdel(self._stream, delivery.message_id)
            acknowledged, _ = pipe.execute()
        if not acknowledged:
            raise Refused("gone")

    def count(self) -> int | None:
        """Return the length of the stream."""
        with redis_errors():
            return int(self._redis.xlen(self._stream))

    def close(self) -> None:
        """Close the connection."""
        self._redis.close()


def _entries(answer: Any) -> list[Any]:
    """Return the entries of XREADGROUP, by either protocol."""
    if not answer:
        return []
    streams = answer.values() if isinstance(answer, dict) else [each[1] for each in answer]
    found: list[Any] = []
    for each in streams:
        is_nested = each and isinstance(each[0], list)
        found += each[0] if is_nested else each
    return found


@dataclass(frozen=True, slots=True)
class RedisConnector:
    """Connects; see :class:`proof.history.adapters.Connector`."""

    port: int

    def open(self, queue: str) -> RedisQueue:
        """Make a client; its first call connects."""
        return RedisQueue(self.port, queue)


def _make_groups(port: int, streams: Sequence[str]) -> None:
    with _client(port) as client:
        for stream in streams:
            client.xgroup_create(stream, _GROUP, id="0", mkstream=True)
    time.sleep(_SYNCED_S)


def _answers(port: int) -> bool:
    try:
        with _client(port) as client:
            return bool(client.ping())
    except redis.RedisError:
        return False


def redis_streams(folder: Path, appendfsync: str) -> PeerServer:
    """Return a server for streams; see :func:`redis_server`."""
    name = f"redis-{appendfsync}"
    return redis_server(name, PROMISE, folder, appendfsync, RedisConnector, _make_groups)


def redis_server(  # noqa: PLR0913, PLR0917 - what a server is, and whose
    name: str,
    promise: Promise,
    folder: Path,
    appendfsync: str,
    connect: Callable[[int], Connector],
    make_queues: Callable[[int, Sequence[str]], None],
) -> PeerServer:
    """Return a server with an append-only file; *appendfsync* is ``always`` or ``everysec``."""
    return PeerServer(
        name,
        promise,
        command=lambda port: [
            *("redis-server", "--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder)),
            *("--appendonly", "yes", "--appendfsync", appendfsync, "--save", ""),
        ],
        connect=connect,
        make_queues=make_queues,
        is_ready=_answers,
        log=folder / "redis.log",
    )
