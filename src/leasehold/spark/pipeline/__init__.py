"""Pipelines of stages on Spark: as workers on executors, or as streaming queries."""

from leasehold.spark.pipeline.queries import StageQueries, StreamSettings
from leasehold.spark.pipeline.report import Progress, Report
from leasehold.spark.pipeline.run import Pipeline, PipelineFailed, PipelineRun, RunSettings

__all__ = [
    "Pipeline",
    "PipelineFailed",
    "PipelineRun",
    "Progress",
    "Report",
    "RunSettings",
    "StageQueries",
    "StreamSettings",
]
