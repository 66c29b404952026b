"""One worker process: all that is left to write is what the journal wants to know."""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from azure.storage.queue import QueueClient
from examples.video_pipeline.journal import Journal
from examples.video_pipeline.work import STAGES, Job, Workshop

from leasehold.worker.adapters import Delivery, Lease, QueueError, Renewed
from leasehold.worker.adapters.azure import AzureQueue
from leasehold.worker.hooks import Hooks
from leasehold.worker.leases import LeaseSettings
from leasehold.worker.outcomes import Kind, Outcome
from leasehold.worker.retry_policy import PoisonRule, RetryRule
from leasehold.worker.stages import StageHooks
from leasehold.worker.worker import Worker

CONNECTION_VARIABLE: Final = "AZURE_STORAGE_CONNECTION_STRING"
"""Where a worker finds the connection string: its key has no business among the arguments."""
MAX_DELIVERIES: Final = 3
"""When the last of them fails the message goes to the poison queue."""
RETRY_DELAY_S: Final = 1
POLL_S: Final = 0.2
"""Longest pause after an empty answer, in seconds: the protocol has no receive that waits."""
HOLD_AT_MOST_S: Final = 300.0
CALL_TIMEOUT_S: Final = 5.0


class Notes(Hooks, StageHooks):
    """Writes into the journal what happens to messages."""

    def __init__(self, journal: Journal) -> None:
        self._note = journal.note
        self._videos: dict[str, str] = {}

    def received(self, queue: str, deliveries: Sequence[Delivery]) -> None:
        """See :class:`Hooks`."""
        del queue
        for each in deliveries:
            self._videos[each.message_id] = _name_of(each)
            state = each.saved.stage if each.saved else STAGES[0]
            self._say(
                "received", each, state=state, dequeue_count=each.dequeue_count, fence=each.fence
            )

    def renewed(self, message_id: str) -> None:
        """Note that the lease on a message was renewed."""
        self._note("renewed", video=self._videos[message_id])

    def settled(self, delivery: Delivery, outcome: Outcome) -> None:
        """See :class:`Hooks`."""
        if outcome.kind is Kind.DONE:
            self._say("completed", delivery)
        elif outcome.kind is Kind.POISONED and outcome.fault is not None:
            self._say("poisoned", delivery, reason=outcome.fault.text)

    def lost(self, delivery: Delivery, why: str) -> None:
        """See :class:`Hooks`."""
        self._say("abandoned", delivery, reason=why)

    def begun(self, message: Any, stage: str) -> None:
        """See :class:`StageHooks`."""
        self._note("stage-began", video=self._videos[message.id], stage=stage)

    def finished(self, message: Any, stage: str, took_s: float) -> None:
        """See :class:`StageHooks`."""
        del took_s
        self._note("stage-done", video=self._videos[message.id], stage=stage)

    def failed(self, message: Any, stage: str, error: BaseException, *, again: bool) -> None:
        """See :class:`StageHooks`."""
        del again
        self._note("failed", video=self._videos[message.id], stage=stage, reason=str(error))

    def _say(self, event: str, delivery: Delivery, **facts: Any) -> None:
        self._note(event, video=self._videos[delivery.message_id], **facts)


def _name_of(delivery: Delivery) -> str:
    try:
        return Job.from_body(delivery.body).video
    except ValueError:
        return delivery.message_id


class NotedQueue(AzureQueue):
    """The queue through the official SDK; renewals are noted."""

    def __init__(self, queue: QueueClient, notes: Notes) -> None:
        super().__init__(queue, call_timeout_s=CALL_TIMEOUT_S)
        self._notes = notes

    def renew(
        self, leases: Sequence[Lease], visibility_timeout_s: int, *, timeout_s: float | None = None
    ) -> list[Renewed | QueueError]:
        """See :class:`AzureQueue`."""
        results = super().renew(leases, visibility_timeout_s, timeout_s=timeout_s)
        for lease, result in zip(leases, results, strict=True):
            if isinstance(result, Renewed):
                self._notes.renewed(lease.message_id)
        return results


def main() -> None:
    """Run one worker as the story starts it, until it is told to stop."""
    name, folder, queue_name, lease_s, began_s = sys.argv[1:]
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s")
    logging.getLogger("azure").setLevel(logging.WARNING)
    root = Path(folder)
    journal = Journal(root / "journals", name, float(began_s))
    notes = Notes(journal)
    queue = QueueClient.from_connection_string(os.environ[CONNECTION_VARIABLE], queue_name)
    worker = Worker(
        Workshop(root, name, journal.note).pipeline(notes),
        NotedQueue(queue, notes),
        concurrency=1,
        prefetch=0,
        lease=LeaseSettings.of(int(lease_s), HOLD_AT_MOST_S),
        retries=RetryRule(kind="fixed", initial_s=RETRY_DELAY_S, jitter=0),
        poison=PoisonRule(max_failures=MAX_DELIVERIES),
        hooks=[notes],
        name=name,
        poll_s=POLL_S,
    )

    def follow() -> None:
        sys.stdin.read()  # it ends with the process that started this one
        worker.request_stop(0)

    threading.Thread(target=follow, name="follow-the-story", daemon=True).start()
    worker.run()
    queue.close()


if __name__ == "__main__":
    main()
