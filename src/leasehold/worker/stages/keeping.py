"""Progress for a service that keeps none: beside the queue, in a store of the worker's own."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from leasehold.worker.queues._one_by_one import request_timeout_s
from leasehold.worker.queues.around import Around
from leasehold.worker.queues.errors import LeaseGone, QueueError
from leasehold.worker.queues.protocol import (
    Capabilities,
    Delivery,
    Fault,
    Lease,
    QueueClient,
    Renewed,
    Saved,
    WorkerSession,
)
from leasehold.worker.stages.progress_store import ProgressStore

_log: Final = logging.getLogger("leasehold.worker.stages")


class KeepsProgress(Around):
    """A queue client that keeps progress in a store, for a service that cannot (MNS).

    It can also go around a client that keeps progress by itself, to have more room for it: what
    that client has kept is then used for messages of which the store knows nothing.

    Args:
        client: The queue.
        store: That all workers of the queue share; it is not closed with the client.
    """

    def __init__(self, client: QueueClient, store: ProgressStore) -> None:
        super().__init__(client)
        self._store = store

    @property
    def capabilities(self) -> Capabilities:
        """Those of the service, and progress beside the body."""
        return replace(self.client.capabilities, saves="beside")

    def receive(
        self,
        max_messages: int,
        *,
        visibility_timeout_s: int,
        wait_s: float = 0,
        holder: str | None = None,
        session: WorkerSession | None = None,
    ) -> list[Delivery]:
        """Lease messages, with what is kept for them."""
        received = super().receive(
            max_messages,
            visibility_timeout_s=visibility_timeout_s,
            wait_s=wait_s,
            holder=holder,
            session=session,
        )
        # Also at a first delivery by its count: one that was given back is not always counted.
        kept = self._store.load(self.name, [each.message_id for each in received])
        return [
            replace(each, saved=kept[each.message_id]) if each.message_id in kept else each
            for each in received
        ]

    def save(
        self, delivery: Delivery, receipt: str, saved: Saved, visibility_timeout_s: int
    ) -> Renewed:
        """Keep *saved*, and renew the lease.

        Raises:
            LeaseGone: Nothing was saved.
            QueueError: The lease could not be renewed; *saved* is kept if it still exists.
            TypeError: The state is not what JSON can say.
        """
        message_id, fence = delivery.message_id, delivery.fence
        before = self._store.load(self.name, [message_id]).get(message_id, Saved())
        # First the store: if that fails, the receipt in hand is still the newest.
        if not self._store.keep(self.name, message_id, saved, fence):
            raise LeaseGone("somebody who received the message later has saved progress")
        timeout_s = request_timeout_s(visibility_timeout_s)
        [renewed] = self.client.renew(
            [Lease(message_id, receipt)], visibility_timeout_s, timeout_s=timeout_s
        )
        if isinstance(renewed, LeaseGone):
            self._store.keep(self.name, message_id, before, fence)
        if isinstance(renewed, QueueError):
            raise renewed
        return renewed

    def complete(
        self, leases: Sequence[Lease], *, timeout_s: float | None = None
    ) -> list[QueueError | None]:
        """Remove messages whose work is done, and what is kept for them."""
        results = super().complete(leases, timeout_s=timeout_s)
        gone = [
            lease.message_id
            for lease, result in zip(leases, results, strict=True)
            if result is None
        ]
        if gone:
            self._forget(gone)
        return results

    def bury(
        self, delivery: Delivery, receipt: str, fault: Fault, *, timeout_s: float | None = None
    ) -> None:
        """Move a message to the poison queue, and drop what is kept for it."""
        super().bury(delivery, receipt, fault, timeout_s=timeout_s)
        self._forget([delivery.message_id])

    def _forget(self, message_ids: Sequence[str]) -> None:
        try:
            self._store.forget(self.name, message_ids)
        except Exception:  # noqa: BLE001 - the messages are gone all the same; the rest is swept
            _log.warning("progress_not_forgotten", exc_info=True, extra={"queue": self.name})
