"""The columns of messages, for Spark and for Arrow: the same names as the native API's."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from inspect import signature
from itertools import pairwise
from typing import Any, Final, TypeVar

import pyarrow as pa
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

from leasehold.domain.events import COLUMNS, Kind
from leasehold.events.names import FIELDS
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
        StructField("group_id", _STRING, nullable=True),
        StructField("queue", _STRING, nullable=False),
        StructField("claim", LongType(), nullable=False),
    ]
)
"""Columns of the messages of a stream. ``expires_at`` is null for those that never expire."""

CLAIM_TOKEN: Final = StructField("claim_token", LongType(), nullable=False)
"""Only where it is asked for: with it a sink may say what becomes of single messages of a claim."""


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
    if "claim" in known:
        known[CLAIM_TOKEN.name] = CLAIM_TOKEN
    for name in columns:
        if name.lower() not in known:
            near = nearest(name, [field.name for field in schema.fields])
            raise BadOption(f"option columns: there is no column {name}.{near}")
    return StructType([known[name.lower()] for name in columns])


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return what Arrow batches must look like so that Spark takes them as *schema*."""
    from pyspark.sql.pandas.types import to_arrow_schema  # noqa: PLC0415 - imports pandas

    # PySpark 4.1 has no zone to be named: there it is always UTC.
    named: dict[str, Any] = (
        {"timezone": "UTC"} if "timezone" in signature(to_arrow_schema).parameters else {}
    )
    made: Any = to_arrow_schema(schema, **named)
    return made


# --- schemas -----------------------------------------------------------------------------------
#
# The columns of a snapshot and of the event log, for Spark.


_INT: Final = IntegerType()
_LONG: Final = LongType()
_BYTE: Final = ByteType()


def _columns(*columns: tuple[str, DataType]) -> StructType:
    return StructType([StructField(name, kind) for name, kind in columns])


_SPARK: Final[Mapping[Kind, DataType]] = {
    Kind.INT8: _BYTE,
    Kind.INT32: _INT,
    Kind.INT64: _LONG,
    Kind.TEXT: _STRING,
    Kind.MOMENT: _TIME,
    Kind.TYPE: _STRING,
    Kind.PHASE: _STRING,
}
EVENTS: Final = _columns(*((name, _SPARK[COLUMNS[of].kind]) for name, of in FIELDS.items()))
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
    ("group_id", _STRING),
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


STAGE: Final = _columns(
    ("stage", _STRING),
    ("began_at", _TIME),
    ("seconds", DoubleType()),
    ("attempts", _INT),
    ("outcome", _STRING),
)
"""One stage of the delivery that has completed a message."""

RESULTS: Final = _columns(
    ("message_id", _STRING),
    ("queue", _STRING),
    ("message_type", _STRING),
    ("group_id", _STRING),
    ("outcome", _STRING),
    ("reason", _STRING),
    ("error_type", _STRING),
    ("error_fingerprint", _STRING),
    ("error", _STRING),
    ("inserted_at", _TIME),
    ("leased_at", _TIME),
    ("ended_at", _TIME),
    ("dequeue_count", _INT),
    ("fence", _LONG),
    ("holder", _STRING),
    ("session", _STRING),
    ("stages", ArrayType(STAGE, containsNull=False)),
    ("output", _STRING),
    ("output_bytes", _LONG),
    ("origin_id", _STRING),
    ("target", _STRING),
    ("trace_id", _STRING),
    ("actor", _STRING),
    ("account", _STRING),
    ("seq", _LONG),
    ("place", _INT),
)
"""What became of a message in a queue; see ``docs/reference/spark.md``."""


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


# --- tables ------------------------------------------------------------------------------------
#
# From rows as they were read to the record batches that Spark takes.


ROWS: Final = 10_000
"""Of one record batch at most; Spark passes them on as they are."""


def shaped(batches: Iterable[Any], target: pa.Schema, limit: int | None) -> Iterator[Any]:
    """Yield the same rows with the columns, names and types of *target*, *limit* at most.

    Args:
        batches: Have the columns of *target*, in any order and in types that can be cast.
        target: What Spark takes the rows as.
        limit: None for all rows.
    """
    left = limit
    for batch in batches:
        for start in range(0, batch.num_rows, ROWS):
            rows = batch.slice(start, ROWS if left is None else min(ROWS, left))
            if rows.num_rows:
                columns = [rows.column(field.name).cast(field.type) for field in target]
                yield pa.RecordBatch.from_arrays(columns, schema=target)
            if left is not None:
                left -= rows.num_rows
                if left <= 0:
                    return


# --- splitting ---------------------------------------------------------------------------------
#
# How a batch read is cut into parts that are read side by side.


_T = TypeVar("_T")
_FEWEST: Final = 2
_MOST: Final = 16


def part_count(wanted: int | None, limit: int | None, size: int, worthwhile: int) -> int:
    """Return in how many parts to read.

    Args:
        wanted: What the user says, if anything.
        limit: With one, a single part: only whoever reads it all can stop in time.
        size: How much there is, in any unit.
        worthwhile: So much should be in a part at least, unless the user says how many.
    """
    if limit is not None or size <= 1:
        return 1
    if wanted is not None:
        return min(wanted, size)
    processors = min(max(os.cpu_count() or _FEWEST, _FEWEST), _MOST)
    return max(1, min(processors, size // worthwhile))


def ranges(first: int, end: int, count: int) -> Iterator[tuple[int, int]]:
    """Yield *count* ranges of numbers of equal length, the end not included."""
    length = end - first
    yield from pairwise(first + length * number // count for number in range(count + 1))


def groups(items: Sequence[tuple[_T, int]], count: int) -> list[list[_T]]:
    """Return items with sizes in groups of about the same size, in their order; none is empty."""
    whole = sum(size for _, size in items) or 1
    found: list[list[_T]] = [[] for _ in range(count)]
    before = 0
    for item, size in items:
        found[min(before * count // whole, count - 1)].append(item)
        before += size
    return [group for group in found if group]


def first_where(holds: Callable[[int], bool], low: int, high: int) -> int:
    """Return the first number of ``low..high`` for which *holds*, or *high*.

    Args:
        holds: False up to some number and true from there on.
        low: The first number.
        high: The last one; it is not asked for.
    """
    while low < high:
        middle = (low + high) // 2
        if holds(middle):
            high = middle
        else:
            low = middle + 1
    return low
