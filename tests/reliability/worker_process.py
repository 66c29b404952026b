"""A worker in a process of its own, to be killed, stopped or left alone.

Run as ``python -m tests.reliability.worker_process``; the environment tells what it does, see
:class:`tests.reliability.worker_handlers.Rehearsal`. SIGTERM stops it gracefully.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

from leasehold.client import _sessions as client_sessions
from leasehold.client._sync import account as client_session
from leasehold.worker.adapters.protocol import Delivery, Lease, QueueClient, QueueError, Renewed
from leasehold.worker.hooks import Hooks
from leasehold.worker.outcomes import Outcome
from leasehold.worker.retry_policy import PoisonRule
from leasehold.worker.timing import SystemTime, Time
from leasehold.worker.worker import Worker
from tests.reliability import worker_handlers
from tests.reliability.worker_handlers import HANDLERS, Rehearsal, Stage
from tests.reliability.worker_ledger import Journal
from tests.reliability.worker_time import SharedBell, SharedClock, SharedTime

MOST_DELIVERIES = 100
"""A message is not poison because its workers were killed."""
_LOOK_S = 0.5
_ORPHANED = 3


class Forgetful:
    """A queue whose renewals are not sent, and taken to have worked."""

    def __init__(self, client: QueueClient) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def renew(
        self, leases: Sequence[Lease], visibility_timeout_s: int, *, timeout_s: float | None = None
    ) -> list[Renewed | QueueError]:
        """Send nothing."""
        return [Renewed(lease.receipt) for lease in leases]


class Unhurried:
    """A queue for whose renewals time waits, on a machine that is busy with other things."""

    def __init__(self, client: QueueClient, time: SharedTime) -> None:
        self._client = client
        self._time = time

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def renew(
        self, leases: Sequence[Lease], visibility_timeout_s: int, *, timeout_s: float | None = None
    ) -> list[Renewed | QueueError]:
        """See :class:`QueueClient`."""
        with self._time.urgently():
            return self._client.renew(leases, visibility_timeout_s, timeout_s=timeout_s)


class Telling(Hooks):
    """Writes down what becomes of messages."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def starting(self, worker: Worker) -> None:
        """See :class:`Hooks`. From here on signals are heard."""
        self._journal.note("started", name=worker.name)

    def settled(self, delivery: Delivery, outcome: Outcome) -> None:
        """See :class:`Hooks`."""
        name = delivery.body.decode()
        self._journal.note("settled", name=name, fence=delivery.fence, told=outcome.kind.value)

    def lost(self, delivery: Delivery, why: str) -> None:
        """See :class:`Hooks`."""
        self._journal.note("lost", name=delivery.body.decode(), fence=delivery.fence, told=why)


def _share_time(shared: SharedTime) -> None:
    """Let the heartbeats of sessions go by the shared time as well."""
    parts: list[tuple[Any, str, Any]] = [
        (client_session, "Bell", SharedBell),
        (client_sessions, "SystemClock", SharedClock),
    ]
    for module, name, made in parts:
        setattr(module, name, partial(made, shared))


def _end_with(parent: int) -> None:
    """End when the test is gone: nobody else would end this process."""
    while os.getppid() == parent:
        time.sleep(_LOOK_S)
    os._exit(_ORPHANED)


def main() -> None:
    """Work until a signal comes."""
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    rehearsal = Rehearsal.of_environment()
    logging.basicConfig(level=logging.INFO, format="%(name)s %(threadName)s %(message)s")
    logging.getLogger("azure").setLevel(logging.WARNING)  # it logs every request
    goes_by: Time = SystemTime()
    if rehearsal.clock is not None:
        goes_by = SharedTime(rehearsal.clock, rehearsal.slot)
        _share_time(goes_by)
        stage = Stage(rehearsal, goes_by)
    else:
        stage = Stage(rehearsal)
    worker_handlers.stage = lambda: stage  # type: ignore[assignment]  # that of this process
    queue: Any = rehearsal.spec.open()
    if not rehearsal.renews:
        queue = Forgetful(queue)
    elif isinstance(goes_by, SharedTime):
        queue = Unhurried(queue, goes_by)
    worker = Worker(
        HANDLERS[rehearsal.handler],
        queue,
        concurrency=rehearsal.concurrency,
        runner=rehearsal.runner,
        renewer=rehearsal.renewer,
        lease=rehearsal.lease_s,
        prefetch=rehearsal.prefetch,
        poison=PoisonRule(max_failures=MOST_DELIVERIES),
        session=rehearsal.session,
        hooks=[Telling(stage.journal)],
        time=goes_by,
        name=rehearsal.worker,
        wait_s=rehearsal.wait_s,
        tracing=False,
    )
    worker.run(grace_s=rehearsal.grace_s)
    stage.journal.note("stopped")


if __name__ == "__main__":
    main()
