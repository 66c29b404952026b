"""The columns of messages, for Spark and for Arrow: the same names as the native API's."""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa
from pyspark.sql.types import (
    BinaryType,
    ByteType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from leasehold.spark.options import BadOption, ReadOptions, nearest

_STRING: Final = StringType()
_TIME: Final = TimestampType()

MESSAGE: Final = StructType(
    [
        StructField("message_id", _STRING, nullable=False),
        StructField("body", BinaryType(), nullable=False),
        StructField("inserted_at", _TIME, nullable=False),
        StructField("expires_at", _TIME, nullable=True),
        StructField("visible_since", _TIME, nullable=False),
        StructField("dequeue_count", IntegerType(), nullable=False),
        StructField("fence", LongType(), nullable=False),
        StructField("priority", ByteType(), nullable=False),
        StructField("message_type", _STRING, nullable=True),
        StructField("traceparent", _STRING, nullable=True),
        StructField(
            "properties", MapType(_STRING, _STRING, valueContainsNull=False), nullable=True
        ),
        StructField("queue", _STRING, nullable=False),
        StructField("claim", LongType(), nullable=False),
    ]
)
"""Columns of the messages of a stream. ``expires_at`` is null for those that never expire."""


def message_schema(options: ReadOptions) -> StructType:
    """Return the columns of a stream of messages, where the user gives none."""
    if options.on_bad_record != "keep" or options.message_encoding != "base64":
        return MESSAGE
    fields = [
        StructField(field.name, field.dataType, nullable=field.nullable or field.name == "body")
        for field in MESSAGE.fields
    ]
    return StructType(
        [*fields, StructField(options.column_name_of_corrupt_record, _STRING, nullable=True)]
    )


def chosen(schema: StructType, columns: tuple[str, ...] | None) -> StructType:
    """Return the columns named, in the order named; all for None.

    Raises:
        BadOption: There is no such column.
    """
    if columns is None:
        return schema
    known = {field.name.lower(): field for field in schema.fields}
    for name in columns:
        if name.lower() not in known:
            near = nearest(name, [field.name for field in schema.fields])
            raise BadOption(f"option columns: there is no column {name}.{near}")
    return StructType([known[name.lower()] for name in columns])


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return what Arrow batches must look like so that Spark takes them as *schema*."""
    from pyspark.sql.pandas.types import to_arrow_schema  # noqa: PLC0415 - imports pandas

    made: Any = to_arrow_schema(schema, timezone="UTC")
    return made
