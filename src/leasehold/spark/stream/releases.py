"""What differs between the releases of PySpark: 4.1 tells a source less than 4.2 and later do.

In 4.1 a source is asked for its latest offset without being told where the query is, and without a
limit. What Spark does tell is enough to know it, see :class:`WithoutStart`. Readers are written for
later releases, and the names that 4.1 lacks are made here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, Protocol

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

TELLS_START: Final = find_spec("pyspark.sql.streaming.datasource") is not None
"""Whether this PySpark tells a source where the query is, and how much to take: from 4.2 on."""

if TYPE_CHECKING or TELLS_START:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxBytes,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )
else:

    class ReadLimit:
        """How much to take."""

    class ReadAllAvailable(ReadLimit):
        """All that is there."""

    @dataclass
    class ReadMaxRows(ReadLimit):
        """At most so many rows."""

        max_rows: int

    @dataclass
    class ReadMaxBytes(ReadLimit):
        """At most so many bytes."""

        max_bytes: int

    class SupportsTriggerAvailableNow:
        """Would be told of Trigger.AvailableNow."""


__all__ = (
    "TELLS_START",
    "ReadAllAvailable",
    "ReadLimit",
    "ReadMaxBytes",
    "ReadMaxRows",
    "Reader",
    "SupportsTriggerAvailableNow",
    "WithoutStart",
)


class Reader(Protocol):
    """A reader as later releases of Spark call it, which can also say more of its offsets."""

    def initialOffset(self) -> dict[str, Any]: ...  # noqa: N802, D102 - Spark's
    def getDefaultReadLimit(self) -> ReadLimit: ...  # noqa: N802, D102 - Spark's
    def latestOffset(  # noqa: N802, D102 - Spark's
        self, start: dict[str, Any], limit: ReadLimit
    ) -> dict[str, Any]: ...
    def partitions(  # noqa: D102 - Spark's
        self, start: dict[str, Any], end: dict[str, Any]
    ) -> list[InputPartition]: ...
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]: ...  # noqa: D102
    def commit(self, end: dict[str, Any]) -> None: ...  # noqa: D102 - Spark's
    def stop(self) -> None: ...  # noqa: D102 - Spark's

    def offset_before(self, end: dict[str, Any]) -> dict[str, Any]:
        """Return where the micro-batch begins that ends at *end*."""
        ...

    def with_identity(self, end: dict[str, Any]) -> dict[str, Any]:
        """Return an offset that says whose it is, where the progress report does not."""
        ...


class WithoutStart(DataSourceStreamReader):
    """A reader for PySpark 4.1, which asks ``latestOffset()`` without saying where the query is.

    Measured order of the calls: a query with a checkpoint begins with ``partitions(end, end)`` of
    the last micro-batch that was planned; if that is not in the commit log, ``partitions(start,
    end)`` of it comes next, and only when it is done ``latestOffset()``. A query without a
    checkpoint begins with ``latestOffset()``, then asks for the initial offset, when it plans its
    first micro-batch. What ``latestOffset()`` returned is always planned, and asked again only
    when that micro-batch is in the commit log. So the offset last seen is where the query is, and
    all up to it can be settled, as in later releases.

    Trigger.AvailableNow is one micro-batch there, and nothing is asked after it: it is settled by
    the next start, or by a listener.

    Args:
        reader: What does it all.
    """

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._initial: dict[str, Any] | None = None
        self._seen: dict[str, Any] | None = None
        """The end of the micro-batch that was planned last."""

    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override]  # noqa: N802 - 4.1's form
        """Settle what is done, and return the end of the next micro-batch."""
        if self._seen is None:
            self._seen = self._initial = self._reader.initialOffset()
        start = self._seen
        end = self._reader.latestOffset(start, self._reader.getDefaultReadLimit())
        if end != start:
            self._seen = self._reader.with_identity(end)
        return self._seen

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's
        """Return where a query without a checkpoint began: its first micro-batch begins there."""
        if self._initial is None:
            # There is a checkpoint, whose first micro-batch was planned and not completed.
            known = self._seen
            self._initial = (
                self._reader.initialOffset() if known is None else self._reader.offset_before(known)
            )
        return self._initial

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return the parts of a micro-batch; none where Spark only tells where the query is."""
        self._seen = end
        return [] if start == end else self._reader.partitions(start, end)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a part."""
        return self._reader.read(partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Settle what ends at *end*; it is called a micro-batch late."""
        self._reader.commit(end)

    def stop(self) -> None:
        """Let go of what is held."""
        self._reader.stop()
