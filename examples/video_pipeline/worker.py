"""One worker process: receive a message, do the stages that are left, delete the message."""

from __future__ import annotations

import argparse
import json
import os
import signal
import threading
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Final

from azure.core.exceptions import AzureError
from examples.video_pipeline.journal import Journal
from examples.video_pipeline.keeper import LeaseKeeper
from examples.video_pipeline.leases import Lease, LeaseLost, open_queue
from examples.video_pipeline.videos import BadVideo, Cancelled
from examples.video_pipeline.work import (
    BadMessage,
    Job,
    State,
    Workshop,
    from_text,
    run_stage,
    to_text,
)

CONNECTION_VARIABLE: Final = "AZURE_STORAGE_CONNECTION_STRING"
"""Where a worker finds the connection string: its key has no business among the arguments."""
MAX_DEQUEUE_COUNT: Final = 3
"""Deliveries after which a message that fails again goes to the poison queue."""
RETRY_DELAY_S: Final = 1
"""Seconds until a message that failed is delivered again."""
POLL_S: Final = 0.2
"""Pause after an empty answer, in seconds: the protocol has no receive that waits."""
HOLD_AT_MOST_S: Final = 60.0


class Worker:
    """Works on one message at a time until it is asked to stop."""

    def __init__(self, *, journal: Journal, root: Path, queue: str, lease_s: int) -> None:
        connection_string = os.environ[CONNECTION_VARIABLE]
        self._queue = open_queue(connection_string, queue)
        self._poison = open_queue(connection_string, f"{queue}-poison")
        self._journal = journal
        self._root = root
        self._lease_s = lease_s
        self._parent = os.getppid()
        self._stopping = threading.Event()
        # With half of the lease left there is time for a renewal to fail and be tried again.
        self._keeper = LeaseKeeper(
            every_s=lease_s / 8,
            renew_below_s=lease_s / 2,
            at_most_s=HOLD_AT_MOST_S,
            on_renewed=lambda lease: journal.note("renewed", video=lease.name),
        )

    def stop(self, _signal: int = 0, _frame: FrameType | None = None) -> None:
        """Finish the message in hand and end; fit to be a signal handler."""
        self._stopping.set()

    def run(self) -> None:
        """Work until asked to stop, or until the process that started this one is gone."""
        self._journal.note("started")
        while not self._stopping.is_set() and os.getppid() == self._parent:
            asked_at_s = time.monotonic()
            try:
                message = self._queue.receive_message(visibility_timeout=self._lease_s)
                if message is None:
                    self._stopping.wait(POLL_S)
                    continue
                lease = Lease(self._queue, message, lease_s=self._lease_s, asked_at_s=asked_at_s)
                self._handle(lease)
            except AzureError as error:
                # Nothing is lost: a message in hand comes back when its lease ends.
                self._journal.note("queue-error", reason=str(error).split("\n", 1)[0])
                self._stopping.wait(1)
        self._journal.note("stopped")

    def _handle(self, lease: Lease) -> None:
        """Work on one message while the keeper renews it."""
        with self._keeper.hold(lease):
            try:
                try:
                    state, job = from_text(lease.text)
                except BadMessage as error:
                    # It will not read any better the next time.
                    self._bury(lease, str(error), ())
                    return
                lease.name = job.video
                facts = {"state": state.stage, "dequeue_count": lease.dequeue_count}
                self._journal.note("received", video=job.video, **facts)
                if lease.dequeue_count > MAX_DEQUEUE_COUNT:
                    self._bury(lease, "its workers vanished without a word", job.failures)
                else:
                    self._work(lease, state, job)
            except (LeaseLost, Cancelled):
                self._journal.note("abandoned", video=lease.name, reason=lease.lost_because)

    def _work(self, lease: Lease, state: State, job: Job) -> None:
        """Do all stages from *state* on; after each the message says how far it has come."""
        while state is not State.COMPLETED:
            note = partial(self._journal.note, video=job.video, stage=state.stage)
            shop = Workshop(
                root=self._root,
                worker=self._journal.who,
                cancelled=lease.lost,
                confirm=lease.confirm,
                note=note,
            )
            note("stage-began")
            try:
                job = run_stage(state, job, shop)
            except BadVideo as error:
                note("failed", reason=str(error))
                self._fail(lease, state, job, str(error))
                return
            state = State(state + 1)
            lease.save(to_text(state, job))
            note("stage-done")
        lease.complete()
        self._journal.note("completed", video=job.video)

    def _fail(self, lease: Lease, state: State, job: Job, reason: str) -> None:
        """Give the message back with the reason in it, or bury it if that was the last try."""
        failures = (*job.failures, f"{self._journal.who} in {state.stage}: {reason}")
        if lease.dequeue_count >= MAX_DEQUEUE_COUNT:
            self._bury(lease, reason, failures)
            return
        lease.give_back(to_text(state, replace(job, failures=failures)), delay_s=RETRY_DELAY_S)
        self._journal.note("gave-back", video=job.video, delay_s=RETRY_DELAY_S)

    def _bury(self, lease: Lease, reason: str, failures: tuple[str, ...]) -> None:
        """Copy the message to the poison queue, then delete it.

        The protocol has no move. Dying between the two steps leaves it in both queues, and the
        next worker copies it again: a copy too many is better than none.
        """
        epitaph = {
            "reason": reason,
            "failures": failures,
            "dequeue_count": lease.dequeue_count,
            "message_id": lease.id,
            "text": lease.text,
        }
        self._poison.send_message(json.dumps(epitaph))
        lease.complete()
        self._journal.note("poisoned", video=lease.name, reason=reason)


def main() -> None:
    """Run one worker as the story starts it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--name", required=True)
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--queue", required=True)
    parser.add_argument("--lease-s", type=int, required=True)
    parser.add_argument("--began-s", type=float, required=True)
    options = parser.parse_args()
    journal = Journal(options.root / "journals", options.name, options.began_s)
    worker = Worker(
        journal=journal, root=options.root, queue=options.queue, lease_s=options.lease_s
    )
    signal.signal(signal.SIGTERM, worker.stop)
    worker.run()


if __name__ == "__main__":
    main()
