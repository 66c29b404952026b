"""Pipelines of stages on Spark executors, each message on a lease of its own.

What is named here is imported when it is first used: to declare a pipeline needs no Spark.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from leasehold.spark.pipeline.declared import Pipeline
    from leasehold.spark.pipeline.report import Progress, Report
    from leasehold.spark.pipeline.running import PipelineFailed, PipelineRun, RunSettings

_WHERE: Final = {
    "Pipeline": "declared",
    "PipelineFailed": "running",
    "PipelineRun": "running",
    "Progress": "report",
    "Report": "report",
    "RunSettings": "running",
}

__all__ = ["Pipeline", "PipelineFailed", "PipelineRun", "Progress", "Report", "RunSettings"]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_WHERE[name]}"), name)
