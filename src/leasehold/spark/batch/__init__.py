"""Batch reads, which lease nothing: a queue as it is, and the event log."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceReader
    from pyspark.sql.types import StructType

    from leasehold.spark.options import ReadOptions

__all__ = ["events_reader", "events_schema", "snapshot_reader", "snapshot_schema"]

# The readers are imported when they are used: a schema is asked for far more often.


def events_schema(options: ReadOptions) -> StructType:
    """Return the columns of the event log, those of option ``columns`` if it is given.

    Raises:
        BadOption: One of them is not there.
    """
    from leasehold.spark.schemas import EVENTS, chosen  # noqa: PLC0415

    return chosen(EVENTS, options.columns)


def snapshot_schema(options: ReadOptions) -> StructType:
    """Return the columns of a snapshot; see :func:`events_schema`."""
    from leasehold.spark.schemas import SNAPSHOT, chosen  # noqa: PLC0415

    return chosen(SNAPSHOT, options.columns)


def events_reader(options: ReadOptions, schema: StructType) -> DataSourceReader:
    """Return what reads the event log of an account, or its exported files."""
    from leasehold.spark.batch.events import events_reader as made  # noqa: PLC0415 - see above

    return made(options, schema)


def snapshot_reader(options: ReadOptions, schema: StructType) -> DataSourceReader:
    """Return what looks at the messages of a queue."""
    from leasehold.spark.batch.snapshot import snapshot_reader as made  # noqa: PLC0415 - see above

    return made(options, schema)
