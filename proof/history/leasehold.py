"""Leasehold as a system under test: its processes, and an adapter for its native API."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from msgspec import UNSET

from leasehold.client import Client
from leasehold.client.errors import (
    ConnectionFailed,
    LeaseholdClientError,
    LeaseLost,
    MessageNotFound,
    Unavailable,
)
from leasehold.client.models import LeaseRef
from leasehold.client.retries import NO_RETRIES
from leasehold.clock import AGREED_WITHIN_S
from leasehold.server.settings import DEV_ACCOUNT
from proof.history.adapters import Promise, Refused, Restart, Unknown
from proof.history.processes import ServerProcess, Spawner
from proof.history.records import Delivery
from proof.history.relay import Relay
from proof.history.shim import Shim

_TIMEOUT_S: Final = 3.0
_MILLISECOND_S: Final = 0.001
PROMISE: Final = Promise(
    renews_again=True,
    ordered=True,
    saves=True,
    counts=True,
    fills=True,
    # Times are whole milliseconds, one rounded when it is read and one when it is kept.
    margin_s=2 * _MILLISECOND_S,
)


class LeaseholdQueue:
    """One queue over the native API; see :class:`proof.history.adapters.Queue`."""

    def __init__(self, url: str, name: str, timeout_s: float = _TIMEOUT_S) -> None:
        self._client = Client(url, DEV_ACCOUNT, retries=NO_RETRIES, timeout_s=timeout_s)
        self._queue = self._client.queue(name)

    def put(self, body: str, *, delay_s: float, group: str) -> None:
        """Put a message."""
        with _Errors():
            self._queue.put(body, delay_s=int(delay_s), group_id=group or None)

    def receive(self, limit: int, lease_s: float) -> Sequence[Delivery]:
        """Take messages."""
        with _Errors():
            taken = self._queue.receive(limit, visibility_timeout_s=int(lease_s))
        return [
            Delivery(each.text, each.receipt, each.dequeue_count, each.id, each.saved or "")
            for each in taken
        ]

    def peek(self, limit: int) -> Sequence[Delivery]:
        """Look at messages."""
        with _Errors():
            return [Delivery(each.text, message_id=each.id) for each in self._queue.peek(limit)]

    def renew(self, delivery: Delivery, lease_s: float, saved: str) -> str:
        """Move the end of a lease."""
        with _Errors():
            lease = LeaseRef(delivery.message_id, delivery.token)
            return self._queue.renew(lease, int(lease_s), saved=saved or UNSET).receipt

    def release(self, delivery: Delivery, delay_s: float) -> None:
        """Give a message back."""
        with _Errors():
            self._queue.release(LeaseRef(delivery.message_id, delivery.token), delay_s=int(delay_s))

    def complete(self, delivery: Delivery) -> None:
        """Remove a message."""
        with _Errors():
            self._queue.complete(LeaseRef(delivery.message_id, delivery.token))

    def count(self) -> int | None:
        """Return how many there are."""
        with _Errors():
            return self._queue.counts().total

    def close(self) -> None:
        """Close the connections."""
        self._client.close()


class _Errors:
    """Turns the client's errors into what is known of the call."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if not isinstance(error, LeaseholdClientError):
            return
        if error.outcome_unknown:
            raise Unknown(str(error)) from error
        if isinstance(error, LeaseLost):
            raise Refused(f"lost: {error.reason}") from error
        if isinstance(error, MessageNotFound):
            raise Refused("gone") from error
        reason = "busy" if isinstance(error, Unavailable | ConnectionFailed) else "refused"
        raise Refused(f"{reason}: {error}") from error


@dataclass(frozen=True, slots=True)
class LeaseholdConnector:
    """Connects to one server; see :class:`proof.history.adapters.Connector`."""

    url: str
    timeout_s: float = _TIMEOUT_S

    def open(self, queue: str) -> LeaseholdQueue:
        """Make a client; its first call connects."""
        return LeaseholdQueue(self.url, queue, self.timeout_s)


class Leasehold:
    """One server or more on one store; see :class:`proof.history.adapters.System`.

    Args:
        data: Data folder of the servers.
        store_url: Of a PostgreSQL that all servers share; None: SQLite in the data folder.
        servers: How many.
        shim: What they are started under.
        bug: A bug of ``proof.bugs`` that they have.
        settle: Returns when the database does nothing any more for servers that were killed.
    """

    name = "leasehold"

    def __init__(  # noqa: PLR0913 - each is a choice of its own
        self,
        data: Path,
        *,
        store_url: str | None = None,
        servers: int = 1,
        shim: Shim | None = None,
        bug: str | None = None,
        settle: Callable[[], None] = lambda: None,
    ) -> None:
        options = ["--data", str(data), "--disk-reserve-mib", "4"]
        margin_s = PROMISE.margin_s
        if store_url is not None:
            options = ["--store-url", store_url]
            # Servers of one database act while their time is as close as this to the shared one,
            # on either side of it.
            margin_s += 2 * AGREED_WITHIN_S
        self.promise = replace(PROMISE, margin_s=margin_s)
        self.shim = shim
        self.data = data
        self.endings: list[str] = []
        """The logs of servers that have logged a traceback and not been made to."""
        self._settle = settle
        self._offset_s = 0.0
        self._stack = ExitStack()
        self._lock = threading.RLock()
        self.relays: list[Relay] = []
        """Before the servers, one each; none before the start."""
        data.mkdir(parents=True, exist_ok=True)
        self._spawner = Spawner(shim.environment if shim is not None else {}, bug)
        logs = [data.with_name(f"{data.name}-{number}.log") for number in range(servers)]
        self.processes = [ServerProcess(self._spawner, log, options) for log in logs]

    def start(self, queues: Sequence[str], ordered: Sequence[str]) -> None:
        """Start the servers and their relays, and make the queues."""
        for process in self.processes:
            process.start()
            relay = Relay(process.port)
            self.relays.append(self._stack.enter_context(relay))
        with Client(f"http://127.0.0.1:{self.relays[0].port}", DEV_ACCOUNT) as client:
            for name in queues:
                client.queue(name).create()
            for name in ordered:
                client.queue(name).create(settings={"groups": {"order": "fifo"}})

    def connector(self, client: int) -> LeaseholdConnector:
        """Return what the client of this number connects with."""
        relay = self.relays[client % len(self.relays)]
        return LeaseholdConnector(f"http://127.0.0.1:{relay.port}")

    def pids(self) -> Sequence[int]:
        """Return the processes that run."""
        with self._lock:
            return [each.pid for each in self.processes if not each.has_ended]

    def kill(self) -> None:
        """End all servers with SIGKILL."""
        with self._lock:
            for process in self.processes:
                process.end()
                if "Traceback" in process.log:
                    self.endings.append(process.log)
            for relay in self.relays:
                relay.refuse()
            self._settle()

    def restart(self) -> Restart:
        """Start those that do not run."""
        with self._lock:
            dead = [
                (process, relay)
                for process, relay in zip(self.processes, self.relays, strict=True)
                if process.has_ended
            ]
            for process, relay in dead:
                relay.refuse()
                process.end()
            is_barrier = len(dead) == len(self.processes)
            if is_barrier:
                self._settle()
            for process, _ in dead:
                process.start()
            barrier_s = time.monotonic() if is_barrier else None
            for process, relay in dead:
                relay.lead_to(process.port)
            return Restart(barrier_s, self._moved_s() if dead else 0.0)

    def _moved_s(self) -> float:
        """Return how far the clock is from where it was when servers were started before."""
        before_s, self._offset_s = self._offset_s, 0.0
        if self.shim is not None:
            self._offset_s = self.shim.clock_offset_s
        return self._offset_s - before_s

    def stop(self) -> None:
        """End everything."""
        for process in self.processes:
            process.end()
        self._spawner.close()
        self._stack.close()
