"""How much of a queue is left to do."""

from __future__ import annotations

from typing import NamedTuple, Self

from leasehold.client import Client
from leasehold.client.errors import LeaseholdClientError
from leasehold.worker.queues import QueueClient, QueueError
from leasehold.worker.queues._native_errors import queue_error
from leasehold.worker.queues.specs import QueueSpec


class Left(NamedTuple):
    """What is in a queue."""

    visible: int | None
    """Messages that nobody has, and that can be received now; None: the service does not say."""
    unsettled: int
    """Messages that a run which empties the queue still has to wait for: those that are visible or
    leased, and those that wait to be tried again. What the sender has delayed is not waited for,
    where the service tells them apart."""


class Backlog:
    """Counts the messages of a queue; a context manager.

    Args:
        spec: The queue.
    """

    def __init__(self, spec: QueueSpec) -> None:
        self._spec = spec
        self._native: Client | None = None
        self._other: QueueClient | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def look(self) -> Left:
        """Count.

        Raises:
            QueueError: The service does not answer, or refuses.
        """
        if self._spec.service != "leasehold":
            self._other = self._other or self._spec.open()
            depth = self._other.depth()
            return Left(depth.visible, depth.total or 0)
        if self._native is None:
            self._native = Client.from_connection_string(self._spec.connection or None)
        try:
            counts = self._native.queue(self._spec.queue).counts()
        except (LeaseholdClientError, RuntimeError) as error:
            raise queue_error(error) from None
        return Left(counts.visible, counts.visible + counts.leased + counts.deferred)

    def visible(self) -> int | None:
        """Return how many messages could be received now; None: nobody knows."""
        try:
            return self.look().visible
        except QueueError:
            return None

    def close(self) -> None:
        """Let go of connections."""
        for each in (self._native, self._other):
            if each is not None:
                each.close()
