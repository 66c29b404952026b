"""Stages in two queues, and a worker for them that dies while it sends a message on.

``python -m tests.unit.worker.stages.apart CONNECTION before|after``: of the commit.
With the name of a queue in place of that it works there until it is killed.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from leasehold.worker.adapters.native import NativeQueue
from leasehold.worker.adapters.specs import QueueSpec
from leasehold.worker.retry_policy import PoisonRule
from leasehold.worker.stages import StageMessage, Stages
from leasehold.worker.worker import Worker

stages = Stages(results=True)


@stages.stage("scan")
def scan(message: StageMessage, state: Any) -> dict[str, Any]:
    """Leave a line, if there is a file for it."""
    if "STAGES_LOG" in os.environ:
        with Path(os.environ["STAGES_LOG"]).open("a") as log:
            log.write(f"scan {message.text}\n")
    return {"queues": [message.queue], "text": message.text}


@stages.stage("encode", queue="videos-gpu")
def encode(message: StageMessage, state: Any) -> dict[str, Any]:
    """Say in which queue."""
    return {**state, "queues": [*state["queues"], message.queue]}


@stages.stage("publish", queue="videos")
def publish(message: StageMessage, state: Any) -> dict[str, Any]:
    """Say in which queue."""
    return {**state, "queues": [*state["queues"], message.queue]}


class Dying(NativeQueue):
    """Ends its process before or after it sends messages on."""

    def forward(self, given: Any, *, timeout_s: float | None = None) -> Any:
        """Die."""
        if sys.argv[2] == "after":
            super().forward(given, timeout_s=timeout_s)
        os._exit(9)


if __name__ == "__main__":
    connection, how = sys.argv[1:]
    if how in {"before", "after"}:
        Worker(stages, Dying.from_connection_string(connection, "videos")).run_until_idle(30)
    else:
        often = PoisonRule(max_failures=None)
        spec = QueueSpec("leasehold", how, connection)
        Worker(stages, spec, lease=2, session=False, wait_s=0.5, poison=often).run()
