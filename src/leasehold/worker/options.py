"""What a worker was told, checked before it begins."""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeAlias, cast

from leasehold.worker.adapters.protocol import QueueClient
from leasehold.worker.adapters.specs import QueueSpec
from leasehold.worker.errors import UnsafeWorker
from leasehold.worker.handlers import Handlers, not_portable
from leasehold.worker.leases.settings import LeaseSettings
from leasehold.worker.retry_policy import PoisonRule, RetryRule
from leasehold.worker.timing import ScaledTime, SystemTime, Time

if TYPE_CHECKING:
    from leasehold.client import QueueHandle

Queue: TypeAlias = "QueueClient | QueueHandle | QueueSpec | str"
"""A queue of a worker, the handle of a client, or what opens one; text is read by
:meth:`QueueSpec.parse`."""
Queues: TypeAlias = "Queue | Sequence[Queue] | Mapping[Any, float]"
"""One queue, several, or several with their weights."""
Runner: TypeAlias = Literal["threads", "asyncio", "processes"]

MAX_CONCURRENCY: Final = 10_000
MAX_PROCESSES: Final = 256
SESSION_TIMEOUT_S: Final = 15.0


class Codec(Protocol):
    """Reads bodies; see :mod:`leasehold.worker.payloads`."""

    def decode(self, body: bytes) -> Any:
        """Return the payload. Raises ValueError if the body cannot be read."""
        ...


Decoder: TypeAlias = Codec | Callable[[bytes], Any]
"""What reads bodies."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What a worker goes by; see :class:`leasehold.worker.Worker`."""

    concurrency: int
    runner: Runner
    lease: LeaseSettings
    as_set: bool
    """Whether the service chooses how long each lease is, and *lease* says the rest."""
    prefetch: int | None
    ordered: bool
    concurrency_per_group: int | None
    retries: RetryRule
    poison: PoisonRule
    session: bool
    renewer: Literal["thread", "process"]
    wait_s: float
    poll_s: float
    report_s: float | None
    time: Time = field(default_factory=SystemTime)

    def problems(
        self,
        handlers: Handlers,
        clients: Sequence[QueueClient],
        weights: Sequence[float],
        decode: Callable[[bytes], Any] | None = None,
    ) -> list[str]:
        """Return all that is wrong, or not safe, with them."""
        most = MAX_PROCESSES if self.runner == "processes" else MAX_CONCURRENCY
        names = [client.name for client in clients]
        checks: list[tuple[bool, str]] = [
            (
                not 1 <= self.concurrency <= most,
                f"concurrency is {self.concurrency}; with {self.runner} it must be 1 to {most:,}",
            ),
            (
                self.runner not in {"threads", "asyncio", "processes"},
                f"runner is {self.runner!r}; it must be threads, asyncio or processes",
            ),
            (
                self.prefetch is not None and self.prefetch < 0,
                f"prefetch is {self.prefetch}; it must be 0 or more, or None",
            ),
            (
                self.concurrency_per_group is not None and self.concurrency_per_group < 1,
                f"concurrency_per_group is {self.concurrency_per_group}; it must be 1 or more",
            ),
            (
                self.ordered and self.concurrency_per_group not in {None, 1},
                f"concurrency_per_group is {self.concurrency_per_group}; with ordered it is 1",
            ),
            (
                self.renewer not in {"thread", "process"},
                f"renewer is {self.renewer!r}; it must be thread or process",
            ),
            (not self.wait_s >= 0, f"wait_s is {self.wait_s}; it must be 0 or more"),
            (not self.poll_s > 0, f"poll_s is {self.poll_s}; it must be above 0"),
            (
                self.report_s is not None and not self.report_s > 0,
                f"report_s is {self.report_s}; it must be above 0, or None",
            ),
            (not clients, "queues: at least one is needed"),
            (
                len(set(names)) < len(names),
                f"queues: two have the same name, of {', '.join(sorted(names))}",
            ),
        ]
        found = [text for is_wrong, text in checks if is_wrong]
        found += [
            f"queues: the weight of {name} is {weight}; it must be above 0"
            for name, weight in zip(names, weights, strict=True)
            if not weight > 0
        ]
        found += self.retries.problems() + self.poison.problems()
        found += handlers.problems(names, in_processes=self.runner == "processes")
        found += handlers.queue_problems(clients)
        if self.renewer == "process" and not isinstance(self.time, SystemTime | ScaledTime):
            found.append(
                f'renewer="process" cannot go by {type(self.time).__name__}, which is moved in this'
                " process alone; leave time out, or keep leases by a thread"
            )
        if self.runner == "processes" and (reason := not_portable(decode)) is not None:
            found.append(f"codec: it cannot be sent to another process: {reason}")
        return found + self._group_problems(clients) + self._lease_problems(clients)

    def _group_problems(self, clients: Sequence[QueueClient]) -> list[str]:
        """Return what keeps the worker from seeing groups, if it is to go by them."""
        wish = "ordered" if self.ordered else "concurrency_per_group"
        if not self.ordered and self.concurrency_per_group is None:
            return []
        return [
            f"{wish} needs message groups, but {type(client).__name__} does not report those of "
            f"{client.name}: receive from it through another protocol, such as leasehold://"
            for client in clients
            if not client.capabilities.groups
        ]

    def _lease_problems(self, clients: Sequence[QueueClient]) -> list[str]:
        found = [f"lease: {problem}" for problem in self.lease.problems()]
        if found:
            return found
        for client in clients:
            if self.as_set and not client.capabilities.tells_lengths:
                found.append(
                    f"lease_as_set: {type(client).__name__} does not report the length of leases "
                    f"of {client.name}; receive through another protocol, such as leasehold://"
                )
            found += [
                f"lease: {problem} (queue {client.name})"
                for problem in self.lease.problems(client.capabilities)
            ]
            if self.renewer == "process" and getattr(client, "spec", None) is None:
                found.append(
                    f'renewer="process" needs a way to open {client.name} once more; make it'
                    " from a QueueSpec or a connection string"
                )
        return found

    def check(
        self,
        handlers: Handlers,
        clients: Sequence[QueueClient],
        weights: Sequence[float],
        decode: Callable[[bytes], Any] | None = None,
    ) -> None:
        """Refuse what is wrong or not safe.

        Raises:
            UnsafeWorker: With all that is.
        """
        problems = self.problems(handlers, clients, weights, decode)
        if problems:
            raise UnsafeWorker(problems)


def opened(queues: Queues) -> tuple[list[QueueClient], list[float], list[QueueClient]]:
    """Return the clients of queues, their weights, and those clients that were opened here."""
    given: Iterable[tuple[Queue, float]]
    if isinstance(queues, Mapping):
        given = queues.items()
    elif isinstance(queues, Sequence) and not isinstance(queues, str):
        given = [(queue, 1.0) for queue in queues]
    else:
        given = [(queues, 1.0)]
    clients: list[QueueClient] = []
    weights: list[float] = []
    own: list[QueueClient] = []
    try:
        for queue, weight in given:
            client = _client_of(queue)
            if client is not queue:
                own.append(client)
            clients.append(client)
            weights.append(weight)
    except BaseException:
        for client in own:
            client.close()
        raise
    return clients, weights, own


def _client_of(queue: Queue) -> QueueClient:
    """Return the client of one queue.

    Raises:
        TypeError: It is none of what a worker takes.
        ValueError: It is no address of a queue.
    """
    if isinstance(queue, str):
        queue = QueueSpec.parse(queue)
    if isinstance(queue, QueueSpec):
        return queue.open()
    if hasattr(queue, "capabilities"):
        return cast("QueueClient", queue)
    # Late, as workers of other services need none of it.
    from leasehold.client import QueueHandle  # noqa: PLC0415
    from leasehold.worker.adapters.native import NativeQueue  # noqa: PLC0415

    if isinstance(queue, QueueHandle):
        return NativeQueue(queue)
    raise TypeError(
        f"a worker takes a handler and then a queue, not {type(queue).__name__}; give "
        'Client(...).queue("orders"), or an address such as leasehold:///orders'
    )


def reader_of(codec: Decoder | None) -> Callable[[bytes], Any] | None:
    """Return what reads bodies."""
    if codec is None:
        return None
    return codec if callable(codec) else codec.decode


def holder_name(name: str) -> str:
    """Return a name that no other worker has, for people who look at the queue."""
    return f"{name}@{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(3)}"
