"""Queues as exactly-once streams: each micro-batch is one claim of the server."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceStreamReader
    from pyspark.sql.types import StructType

    from leasehold.spark.options import ReadOptions

__all__ = ["stream_reader"]


def stream_reader(options: ReadOptions, schema: StructType) -> DataSourceStreamReader:
    """Return what takes messages in micro-batches. Nothing is asked of the server yet.

    Raises:
        BadOption: The options do not fit each other or the columns.
    """
    from leasehold.spark.stream.reader import ClaimReader  # noqa: PLC0415 - imports Spark

    return ClaimReader(options, schema)
