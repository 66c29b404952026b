"""Saves of many handlers in one request, for a Leasehold server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from leasehold.client import QueueHandle
from leasehold.client.errors import LeaseholdClientError, OutOfRange
from leasehold.client.models import LeaseRef, Progress, ReceivedMessage, Renewal
from leasehold.worker.gathering import Gathering
from leasehold.worker.queues._native_errors import queue_error
from leasehold.worker.queues._one_by_one import request_timeout_s
from leasehold.worker.queues.errors import BodyTooLarge
from leasehold.worker.queues.protocol import Lease, Saved

_MOST: Final = 1_000
_PATIENCE_S: Final = 1.0
"""So long a save waits for a request of others that is not answered."""

Renewed = ReceivedMessage | LeaseRef


class Saver:
    """Keeps the progress of messages of one queue; made for handlers in many threads.

    Args:
        queue: The handle.
    """

    def __init__(self, queue: QueueHandle) -> None:
        self._queue = queue
        self._together: Gathering[Renewal, Renewed] = Gathering(
            self._send, most=_MOST, patience_s=_PATIENCE_S
        )

    def save(
        self, lease: Lease, saved: Saved, visibility_timeout_s: int, kept: dict[str, Any]
    ) -> Renewed:
        """Keep *saved*, which *kept* says in the form in which it is kept.

        Raises:
            QueueError: It is not kept.
        """
        return self._together.ask(
            Renewal(
                LeaseRef(lease.message_id, lease.receipt),
                visibility_timeout_s,
                progress=Progress(saved.fraction, saved.stage),
                **kept,
            )
        )

    def _send(self, renewals: Sequence[Renewal]) -> list[Renewed | BaseException]:
        results: list[Renewed | BaseException] = []
        timeout_s = request_timeout_s(min(each.visibility_timeout_s for each in renewals))
        try:
            found = self._queue.renew_each(renewals, timeout_s=timeout_s)
        except (LeaseholdClientError, RuntimeError) as error:
            found = list(getattr(error, "results_so_far", ()))
            # One for each thread, since a traceback is hung onto it.
            results = [queue_error(error) for _ in renewals[len(found) :]]
        return [_result(each) for each in found] + results


def _result(found: Renewed | Exception) -> Renewed | BaseException:
    if isinstance(found, OutOfRange) and (found.field or "").endswith(".saved"):
        return BodyTooLarge(str(found))
    return queue_error(found) if isinstance(found, Exception) else found
