"""Listeners that are told how runs of pipelines go, in the manner of ``StreamingQueryListener``."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from leasehold.spark.pipeline.report import Progress

_log: Final = logging.getLogger("leasehold.spark.pipeline")


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineStartedEvent:
    """A run has begun."""

    id: str
    """Of the run; also the job group of its Spark jobs."""
    name: str
    """Of the pipeline."""
    queue: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineProgressEvent:
    """How a run is doing."""

    id: str
    name: str
    progress: Progress


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineTerminatedEvent:
    """A run is over."""

    id: str
    name: str
    progress: Progress
    """The last one."""
    exception: str | None
    """Why it could not go on; None: it came to its end, or was stopped."""


class PipelineListener:
    """Does nothing; override what is of interest, and give it to a run with ``listeners=[...]``.

    The methods are called in threads of the driver, one at a time for each run. An exception is
    logged and otherwise ignored. Whoever takes long delays the next call, and the last method
    delays the end of the run; it must not wait for that end.
    """

    def onPipelineStarted(self, event: PipelineStartedEvent) -> None:  # noqa: N802 - in Spark's spelling
        """Run when a run has begun."""

    def onPipelineProgress(self, event: PipelineProgressEvent) -> None:  # noqa: N802
        """Run every two seconds, unless ``progress_s`` says otherwise."""

    def onPipelineTerminated(self, event: PipelineTerminatedEvent) -> None:  # noqa: N802
        """Run once, when a run is over."""


class Listeners:
    """All listeners of a run as one.

    Args:
        listeners: In the order in which they are told.
        run_id: Of the run.
        name: Of the pipeline.
    """

    def __init__(self, listeners: Sequence[PipelineListener], *, run_id: str, name: str) -> None:
        self._listeners = listeners
        self._id = run_id
        self._name = name

    def started(self, queue: str) -> None:
        """Tell that the run has begun."""
        event = PipelineStartedEvent(id=self._id, name=self._name, queue=queue)
        self._tell("onPipelineStarted", event)

    def progress(self, now: Progress) -> None:
        """Tell how it is doing."""
        event = PipelineProgressEvent(id=self._id, name=self._name, progress=now)
        self._tell("onPipelineProgress", event)

    def terminated(self, last: Progress, exception: str | None) -> None:
        """Tell that it is over."""
        event = PipelineTerminatedEvent(
            id=self._id, name=self._name, progress=last, exception=exception
        )
        self._tell("onPipelineTerminated", event)

    def _tell(self, method: str, event: Any) -> None:
        for each in self._listeners:
            try:
                getattr(each, method)(event)
            except Exception:  # noqa: BLE001 - whoever watches must not stop the work
                _log.exception("%s of %s", method, type(each).__name__)
