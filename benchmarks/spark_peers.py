"""What Spark reads in place of a queue, to know what of the time is Spark's own."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import BinaryType, LongType, StructField, StructType

BODY_BYTES = 1024
_PAGE = 10_000
_SCHEMA = StructType([StructField("number", LongType()), StructField("body", BinaryType())])
_ARROW = pa.schema([("number", pa.int64()), ("body", pa.binary())])


class Rows(InputPartition):
    """Some consecutive rows."""

    def __init__(self, start: int, end: int) -> None:
        super().__init__(None)
        self.start = start
        self.end = end


class MemoryReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Yields rows that it makes as it goes."""

    def __init__(self, rows: int, limit: int, parts: int) -> None:
        self._rows = rows
        self._limit = limit
        self._parts = parts

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's names, here and below
        """Begin with the first row."""
        return {"row": 0}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Give as many rows as the option says."""
        return ReadMaxRows(self._limit)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Do nothing: the number of rows is fixed."""

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
        """Return where the next batch ends."""
        most = self._rows if isinstance(limit, ReadAllAvailable) else self._limit
        end = min(start["row"] + most, self._rows)
        return start if end == start["row"] else {"row": end}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        """Split the rows of a batch."""
        first, count = start["row"], end["row"] - start["row"]
        ends = [first + count * part // self._parts for part in range(self._parts + 1)]
        return [Rows(*pair) for pair in pairwise(ends)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yield record batches."""
        assert isinstance(partition, Rows)
        body = b"x" * BODY_BYTES
        for start in range(partition.start, partition.end, _PAGE):
            numbers = range(start, min(start + _PAGE, partition.end))
            yield pa.record_batch(
                [pa.array(numbers, pa.int64()), pa.array([body] * len(numbers), pa.binary())],
                schema=_ARROW,
            )

    def commit(self, end: dict[str, int]) -> None:
        """Do nothing."""


class MemorySource(DataSource):
    """Rows that are made as they are read: what a Python source costs without a queue."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return "memory-rows"

    def schema(self) -> StructType:
        """Return the columns."""
        return _SCHEMA

    def streamReader(self, schema: StructType) -> MemoryReader:  # noqa: ARG002, N802 - Spark's
        """Return the reader."""
        options = self.options
        return MemoryReader(
            int(options["rows"]), int(options["limit"]), int(options.get("parts", "2"))
        )
