"""Pipelines of stages on Spark: as workers on executors, or as streaming queries."""

from leasehold.spark.pipeline.queries import StageQueries, StreamSettings
from leasehold.spark.pipeline.report import (
    PipelineListener,
    PipelineProgressEvent,
    PipelineStartedEvent,
    PipelineTerminatedEvent,
    Progress,
    Report,
)
from leasehold.spark.pipeline.run import Pipeline, PipelineFailed, PipelineRun
from leasehold.spark.pipeline.settings import RunSettings

__all__ = [
    "Pipeline",
    "PipelineFailed",
    "PipelineListener",
    "PipelineProgressEvent",
    "PipelineRun",
    "PipelineStartedEvent",
    "PipelineTerminatedEvent",
    "Progress",
    "Report",
    "RunSettings",
    "StageQueries",
    "StreamSettings",
]
