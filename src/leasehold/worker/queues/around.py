"""A queue client around another one, to change some of what it does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from leasehold.worker.queues.errors import QueueError
from leasehold.worker.queues.protocol import (
    Capabilities,
    Delivery,
    Depth,
    Fault,
    Lease,
    Outgoing,
    QueueClient,
    Release,
    Renewed,
    Saved,
    WorkerSession,
)


class Around:
    """Passes everything on to *client*; what it has beside the protocol can be asked for as well.

    Args:
        client: The client inside.
    """

    def __init__(self, client: QueueClient) -> None:
        self.client = client

    def __getattr__(self, name: str) -> Any:
        if name == "client":  # asked for by copy, before there is one
            raise AttributeError(name)
        return getattr(self.client, name)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.client!r})"

    @property
    def name(self) -> str:
        """See :class:`~leasehold.worker.queues.QueueClient`; the same goes for all methods."""
        return self.client.name

    @property
    def capabilities(self) -> Capabilities:
        """What the service can do, with what was added to it."""
        return self.client.capabilities

    def receive(
        self,
        max_messages: int,
        *,
        visibility_timeout_s: int,
        wait_s: float = 0,
        holder: str | None = None,
        session: WorkerSession | None = None,
    ) -> list[Delivery]:
        """Lease messages."""
        return self.client.receive(
            max_messages,
            visibility_timeout_s=visibility_timeout_s,
            wait_s=wait_s,
            holder=holder,
            session=session,
        )

    def renew(
        self, leases: Sequence[Lease], visibility_timeout_s: int, *, timeout_s: float | None = None
    ) -> list[Renewed | QueueError]:
        """Renew leases."""
        return self.client.renew(leases, visibility_timeout_s, timeout_s=timeout_s)

    def complete(
        self, leases: Sequence[Lease], *, timeout_s: float | None = None
    ) -> list[QueueError | None]:
        """Remove messages whose work is done."""
        return self.client.complete(leases, timeout_s=timeout_s)

    def release(
        self, releases: Sequence[Release], *, timeout_s: float | None = None
    ) -> list[QueueError | None]:
        """Give messages back."""
        return self.client.release(releases, timeout_s=timeout_s)

    def save(
        self, delivery: Delivery, receipt: str, saved: Saved, visibility_timeout_s: int
    ) -> Renewed:
        """Keep how far the work has come."""
        return self.client.save(delivery, receipt, saved, visibility_timeout_s)

    def bury(
        self, delivery: Delivery, receipt: str, fault: Fault, *, timeout_s: float | None = None
    ) -> None:
        """Move a message to the poison queue."""
        self.client.bury(delivery, receipt, fault, timeout_s=timeout_s)

    def put(self, messages: Sequence[Outgoing]) -> list[QueueError | None]:
        """Put messages."""
        return self.client.put(messages)

    def depth(self) -> Depth:
        """Count the messages."""
        return self.client.depth()

    def create(self) -> None:
        """Create the queue, unless it is there."""
        self.client.create()

    def open_session(self, holder: str, timeout_s: float) -> WorkerSession:
        """Open a session."""
        return self.client.open_session(holder, timeout_s)

    def close(self) -> None:
        """Let go of connections."""
        self.client.close()
