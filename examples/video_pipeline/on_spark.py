"""The stages as executors of Spark run them: the same work, with notes for the journals around it.

This module is imported on executors. What it needs there is made when it is first used.
"""

from __future__ import annotations

import re
import socket
from dataclasses import dataclass
from functools import cache
from os import getpid
from pathlib import Path
from typing import Any

from examples.video_pipeline.journal import Journal
from examples.video_pipeline.work import Job, Workshop

from leasehold.spark.cluster import processes
from leasehold.worker import LeaseLost, Poison
from leasehold.worker.errors import WorkerError

_EXECUTOR_ID = re.compile(r"CoarseGrainedExecutorBackend .*--executor-id (\S+)")


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage, small enough to travel: where the run is, and when it began."""

    name: str
    root: Path
    began_s: float
    """Of the story, monotonic seconds, which all processes of a machine share."""

    def __call__(self, message: Any, state: Any) -> Any:
        """Do the stage for one message, as :class:`leasehold.worker.stages.Stages` calls it."""
        desk = _desk(self.root, self.began_s)
        video = Job.of(message).video
        desk.see(message, video, self.name)
        desk.note("stage-began", video=video, stage=self.name)
        try:
            done = getattr(desk.workshop, self.name)(message, state)
        except Poison as error:
            desk.note("failed", video=video, stage=self.name, reason=str(error))
            raise
        except LeaseLost as error:
            desk.note("abandoned", video=video, reason=str(error))
            raise
        except WorkerError:
            raise
        except Exception as error:
            desk.note("failed", video=video, stage=self.name, reason=str(error))
            raise
        desk.note("stage-done", video=video, stage=self.name)
        return done


class _Desk:
    """What an executor's process keeps between messages."""

    def __init__(self, root: Path, began_s: float) -> None:
        self.name = executor_name()
        self.note = Journal(root / "journals", self.name, began_s).note
        self.workshop = Workshop(root, self.name, self.note)
        self._seen: set[tuple[str, int]] = set()

    def see(self, message: Any, video: str, stage: str) -> None:
        """Note the first stage of each delivery: that is where this holder begins."""
        delivery = (message.id, message.dequeue_count)
        if delivery not in self._seen:
            self._seen.add(delivery)
            self.note(
                "received",
                video=video,
                state=stage,
                dequeue_count=message.dequeue_count,
                fence=message.fence,
            )


@cache
def _desk(root: Path, began_s: float) -> _Desk:
    return _Desk(root, began_s)


def executor_name() -> str:
    """Return ``executor-N``, with the number that Spark gave the executor of this process.

    Spark does not tell it to Python, so it is read from the command line of the process that
    started ours.
    """
    known = {each.pid: each for each in processes()}
    pid = getpid()
    while pid in known:
        if found := _EXECUTOR_ID.search(known[pid].command):
            return f"executor-{found[1]}"
        pid = known[pid].parent
    return f"{socket.gethostname()}-{getpid()}"
