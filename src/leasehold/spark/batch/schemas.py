"""The columns of a snapshot and of the event log, for Spark."""

from __future__ import annotations

from typing import Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    ByteType,
    DataType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from leasehold.spark.options import BadOption, nearest

_STRING: Final = StringType()
_TIME: Final = TimestampType()
_INT: Final = IntegerType()
_LONG: Final = LongType()
_BYTE: Final = ByteType()


def _columns(*columns: tuple[str, DataType]) -> StructType:
    return StructType([StructField(name, kind) for name, kind in columns])


EVENTS: Final = _columns(
    ("seq", _LONG),
    ("place", _INT),
    ("happened_at", _TIME),
    ("type", _STRING),
    ("account", _STRING),
    ("queue", _STRING),
    ("message_id", _STRING),
    ("inserted_at", _TIME),
    ("expires_at", _TIME),
    ("visible_at", _TIME),
    ("dequeue_count", _INT),
    ("fence", _LONG),
    ("phase", _STRING),
    ("since", _TIME),
    ("visible_since", _TIME),
    ("renewals", _INT),
    ("holder", _STRING),
    ("priority", _BYTE),
    ("session", _STRING),
    ("reason", _STRING),
    ("target", _STRING),
    ("message_type", _STRING),
    ("error_type", _STRING),
    ("error_fingerprint", _STRING),
    ("error", _STRING),
)
"""As exported to Parquet; see ``docs/reference/event-log.md``."""

ATTEMPT: Final = _columns(
    ("number", _INT),
    ("leased_at", _TIME),
    ("ended_at", _TIME),
    ("outcome", _STRING),
    ("holder", _STRING),
    ("renewals", _INT),
    ("error", _STRING),
    ("error_type", _STRING),
)
"""One lease of a message that has ended without completing it."""

SNAPSHOT: Final = _columns(
    ("message_id", _STRING),
    ("queue", _STRING),
    ("state", _STRING),
    ("why", _STRING),
    ("body", BinaryType()),
    ("body_bytes", _LONG),
    ("inserted_at", _TIME),
    ("expires_at", _TIME),
    ("visible_at", _TIME),
    ("first_visible_at", _TIME),
    ("last_visible_at", _TIME),
    ("dequeue_count", _INT),
    ("fence", _LONG),
    ("priority", _BYTE),
    ("message_type", _STRING),
    ("traceparent", _STRING),
    ("properties", MapType(_STRING, _STRING, valueContainsNull=False)),
    ("dedup_key", _STRING),
    ("under", _STRING),
    ("session", _STRING),
    ("holder", _STRING),
    ("leased_at", _TIME),
    ("leased_until", _TIME),
    ("renewals", _INT),
    ("progress", DoubleType()),
    ("progress_note", _STRING),
    ("failures", _INT),
    ("interruptions", _INT),
    ("lapses", _INT),
    ("error", _STRING),
    ("error_type", _STRING),
    ("error_fingerprint", _STRING),
    ("attempts", ArrayType(ATTEMPT, containsNull=False)),
    ("failed_in", _STRING),
    ("poison_reason", _STRING),
    ("poisoned_at", _TIME),
    ("redriven", _INT),
    ("saved", _STRING),
)
"""A message in whatever state, as an inspector sees it."""


def checked(schema: StructType, known: StructType) -> StructType:
    """Return *schema*, which a user may have given in place of ours.

    Raises:
        BadOption: It has a column that is not there, or has another type there.
    """
    by_name = {field.name: field.dataType for field in known.fields}
    for field in schema.fields:
        kind = by_name.get(field.name)
        if kind is None:
            near = nearest(field.name, [*by_name])
            raise BadOption(f"there is no column {field.name} to read.{near}")
        if kind != field.dataType:
            raise BadOption(
                f"the column {field.name} is {kind.simpleString()}, and not "
                f"{field.dataType.simpleString()}"
            )
    return schema
