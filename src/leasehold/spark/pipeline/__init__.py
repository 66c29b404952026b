"""Pipelines of stages on Spark executors, each message on a lease of its own."""

from leasehold.spark.pipeline.listener import (
    PipelineListener,
    PipelineProgressEvent,
    PipelineStartedEvent,
    PipelineTerminatedEvent,
)
from leasehold.spark.pipeline.report import Progress, Report
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
]
