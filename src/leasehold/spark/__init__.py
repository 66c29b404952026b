"""Queues on Apache Spark: a source, a sink, staged pipelines and analytics, through PySpark.

What is named here is imported when it is first used: options and names need no Spark.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from leasehold.spark.batch.events import check_events
    from leasehold.spark.cluster import running_cluster
    from leasehold.spark.options import BadOption
    from leasehold.spark.pipeline.run import Pipeline
    from leasehold.spark.session import (
        FormatNotLoaded,
        cluster_session,
        local_session,
        register,
    )
    from leasehold.spark.source import LeaseholdDataSource
    from leasehold.spark.stream.reader import SettleListener

_WHERE: Final = {
    "BadOption": "leasehold.spark.options",
    "FormatNotLoaded": "leasehold.spark.session",
    "LeaseholdDataSource": "leasehold.spark.source",
    "Pipeline": "leasehold.spark.pipeline.run",
    "SettleListener": "leasehold.spark.stream.reader",
    "check_events": "leasehold.spark.batch.events",
    "cluster_session": "leasehold.spark.session",
    "local_session": "leasehold.spark.session",
    "register": "leasehold.spark.session",
    "running_cluster": "leasehold.spark.cluster",
}

__all__ = [
    "BadOption",
    "FormatNotLoaded",
    "LeaseholdDataSource",
    "Pipeline",
    "SettleListener",
    "check_events",
    "cluster_session",
    "local_session",
    "register",
    "running_cluster",
]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_WHERE[name]), name)
