"""From rows as they were read to the record batches that Spark takes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

import pyarrow as pa

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
