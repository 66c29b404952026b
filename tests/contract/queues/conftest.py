"""The adapters that the contract holds for, each with a queue and a time of its own."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import uuid4

import pytest
from mns.account import Account

from leasehold.client import Client, RetryPolicy
from leasehold.testing import InProcessServer
from leasehold.testing.memory_queue import MemoryQueue
from leasehold.testing.time import ManualTime
from leasehold.worker.adapters.azure import AzureQueue
from leasehold.worker.adapters.mns import MnsQueue
from leasehold.worker.adapters.native import NativeQueue
from leasehold.worker.adapters.protocol import (
    Capabilities,
    Delivery,
    Lease,
    Outgoing,
    QueueClient,
    QueueError,
    Renewed,
)
from tests.contract.queues.azurite import ON_AZURITE, Azurite
from tests.contract.queues.mns_player import MnsPlayer
from tests.patience import PATIENCE_S

KINDS: Final = ("memory", "native", "azure", "azurite", "mns", "mns-served")
"""The adapter of MNS is tried with recorded answers and with the server's own dialect."""
_LOOK_S: Final = 0.05


@dataclass(kw_only=True)
class Bench:
    """A queue of one service, and how its time is moved."""

    kind: str
    client: QueueClient
    open: Callable[[str], QueueClient]
    """Opens another queue of the same account."""
    advance: Callable[[float], object] | None
    """Lets time pass; None: only the machine's does."""
    strict: bool = False
    """Whether a receipt dies when its lease ends."""
    opened: list[QueueClient] = field(default_factory=list)

    @property
    def able(self) -> Capabilities:
        """What the service can do."""
        return self.client.capabilities

    @property
    def repeats(self) -> bool:
        """Whether a renewal whose answer was lost can be sent once more."""
        return self.able.fences

    @property
    def lease_s(self) -> int:
        """A lease that is long, or of which a test can wait for the end."""
        return 30 if self.advance is not None else 1

    @property
    def poison(self) -> QueueClient:
        """The queue for what was buried."""
        if isinstance(self.client, MemoryQueue):
            return self.client.poison
        return self.other(f"{self.client.name}-poison")

    def other(self, name: str) -> QueueClient:
        """Open another queue."""
        made = self.open(name)
        self.opened.append(made)
        return made

    def put(self, *bodies: str | bytes, **members: Any) -> None:
        """Put messages."""
        messages = [Outgoing(body=body, **members) for body in bodies]
        assert self.client.put(messages) == [None] * len(bodies)

    def receive(self, most: int = 10, lease_s: int = 30, **how: Any) -> list[Delivery]:
        """Receive messages."""
        return self.client.receive(most, visibility_timeout_s=lease_s, **how)

    def one(self, lease_s: int = 30) -> Delivery:
        """Receive the only message."""
        (delivery,) = self.receive(2, lease_s)
        return delivery

    def put_one(self, body: str | bytes = "work", lease_s: int = 30, **members: Any) -> Delivery:
        """Put a message and receive it."""
        self.put(body, **members)
        return self.one(lease_s)

    def later(self, seconds: float, lease_s: int = 30) -> Delivery:
        """Let time pass, and receive the only message, which is visible by then."""
        if self.advance is not None:
            self.advance(seconds)
            return self.one(lease_s)
        end_s = time.monotonic() + PATIENCE_S
        while True:
            found = self.receive(2, lease_s)
            if found or time.monotonic() > end_s:
                (delivery,) = found
                return delivery
            time.sleep(_LOOK_S)

    def renew(self, *leases: Lease, lease_s: int = 30) -> list[Renewed | QueueError]:
        """Renew leases."""
        return self.client.renew(leases, lease_s)

    def renewed(self, delivery: Delivery, receipt: str | None = None, lease_s: int = 30) -> Lease:
        """Renew a lease, and return it with its new receipt."""
        lease = Lease(delivery.message_id, receipt or delivery.receipt)
        (result,) = self.renew(lease, lease_s=lease_s)
        assert isinstance(result, Renewed)
        return Lease(delivery.message_id, result.receipt)

    def complete(self, *leases: Lease) -> Sequence[QueueError | None]:
        """Complete messages."""
        return self.client.complete(leases)

    def needs_time(self) -> None:
        """Skip a test for which the time of the machine would take too long."""
        if self.advance is None:
            pytest.skip("only the machine's time passes here")


@pytest.fixture(scope="session")
def server() -> Iterator[InProcessServer]:
    """A server of Leasehold whose clock stands still."""
    with InProcessServer() as started:
        yield started


@pytest.fixture(scope="session")
def native(server: InProcessServer) -> Iterator[Client]:
    """A native client, which tries each request once."""
    with server.client(retries=RetryPolicy(attempts=1)) as client:
        yield client


@pytest.fixture(scope="session")
def player() -> Iterator[MnsPlayer]:
    """The answers of MNS."""
    with MnsPlayer() as started:
        yield started


@pytest.fixture(scope="session")
def azurite() -> Iterator[Azurite]:
    """Azurite, as it comes from npm."""
    with Azurite.started() as started:
        yield started


class _ServerTime(ManualTime):
    """The time of a server; nobody else moves it."""

    def __init__(self, server: InProcessServer) -> None:
        super().__init__()
        self._server = server

    def monotonic_s(self) -> float:
        """Return seconds since some moment of the past."""
        return self._server.now_ms() / 1000


def make_bench(kind: str, request: pytest.FixtureRequest) -> Bench:
    """Return the bench of an adapter; its queue does not exist yet, but in memory."""
    name = f"q{uuid4().hex}"
    if kind == "memory":
        moved = ManualTime()
        queue = MemoryQueue(name, time=moved)
        opened = lambda other: MemoryQueue(other, time=moved)  # noqa: E731 - one of five alike
        return Bench(kind=kind, client=queue, open=opened, advance=moved.advance)
    if kind == "native":
        client: Client = request.getfixturevalue("native")
        server: InProcessServer = request.getfixturevalue("server")
        return Bench(
            kind=kind,
            client=NativeQueue(client.queue(name)),
            open=lambda other: NativeQueue(client.queue(other)),
            advance=server.advance,
        )
    if kind == "mns":
        player: MnsPlayer = request.getfixturevalue("player")
        account = Account(player.url, player.access_id, player.access_key)
        return Bench(
            kind=kind,
            client=MnsQueue(account.get_queue(name), time=player.time),
            open=lambda other: MnsQueue(account.get_queue(other), time=player.time),
            advance=player.time.advance,
            strict=True,
        )
    if kind == "mns-served":
        server = request.getfixturevalue("server")
        account = Account(server.mns_url, server.account, server.key)
        return Bench(
            kind="mns",
            client=MnsQueue(account.get_queue(name), time=_ServerTime(server)),
            open=lambda other: MnsQueue(account.get_queue(other), time=_ServerTime(server)),
            advance=server.advance,
            strict=True,
        )
    service = request.getfixturevalue("server" if kind == "azure" else "azurite")
    connect = AzureQueue.from_connection_string
    waits = 60 if kind == "azure" else 0
    return Bench(
        kind=kind,
        client=connect(service.connection_string, name, max_wait_s=waits),
        open=lambda other: connect(service.connection_string, other, max_wait_s=waits),
        advance=service.advance if kind == "azure" else None,
    )


@pytest.fixture(
    params=[pytest.param(kind, marks=ON_AZURITE if kind == "azurite" else ()) for kind in KINDS]
)
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    """A new queue of each service."""
    made = make_bench(request.param, request)
    made.client.create()
    yield made
    for each in (made.client, *made.opened):
        each.close()
