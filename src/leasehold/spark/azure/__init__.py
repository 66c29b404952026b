"""Any Azure Queue Storage as a stream, through the official SDK: at least once.

A service without claims cannot give the same messages again, so a micro-batch that Spark repeats
after a crash of the driver is empty, and its messages come in a later one, once their leases have
ended. Rows that a sink had written before the crash are written a second time then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceStreamReader
    from pyspark.sql.types import StructType

    from leasehold.spark.options import ReadOptions


def stream_reader(options: ReadOptions, schema: StructType) -> DataSourceStreamReader:
    """Return what reads a queue; see :class:`~leasehold.spark.azure.reader.AzureReader`."""
    from leasehold.spark.azure.reader import AzureReader  # noqa: PLC0415 - needs the SDK

    return AzureReader(options, schema)
