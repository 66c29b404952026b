"""A worker whose leases are kept by another process, to be killed by a test.

It prints the ids of the process that renews and of a process that it has forked, which holds all
that it had open.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from leasehold.worker.leases import LeaseSettings
from leasehold.worker.leases.process import ProcessLeaseManager
from tests.unit.worker.leases.file_queue import FileQueue

LEASE_S = 1


def main() -> None:
    """Keep some leases until somebody puts an end to it."""
    manager = ProcessLeaseManager(LeaseSettings.of(LEASE_S))
    queue = FileQueue(Path(sys.argv[1]))
    asked_at_s = time.monotonic()
    for delivery in queue.receive(3, LEASE_S):
        manager.keep(queue, delivery, asked_at_s=asked_at_s)  # type: ignore[arg-type]
    child = os.fork() if sys.argv[2] == "fork" else 0
    if sys.argv[2] == "fork" and not child:
        signal.pause()
    sys.stdout.write(f"{manager._process.pid} {child}\n")
    sys.stdout.flush()
    signal.pause()


if __name__ == "__main__":
    main()
