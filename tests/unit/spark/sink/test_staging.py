"""How a task cuts its rows into requests."""

from __future__ import annotations

import pyarrow as pa
import pytest

from leasehold.spark.sink import staging
from leasehold.spark.sink.staging import in_chunks


def batch(first: int, count: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"n": list(range(first, first + count))})


@pytest.mark.parametrize("sizes", [(), (0,), (1, 0, 1), (5, 5), (4, 4, 4), (23,), (9, 2, 9)])
def test_chunks_are_full_and_lose_nothing(sizes: tuple[int, ...]) -> None:
    """However rows arrive, all chunks but the last have as many as they may, in the same order."""
    batches, first = [], 0
    for size in sizes:
        batches.append(batch(first, size))
        first += size
    chunks = [chunk.column("n").to_pylist() for chunk in in_chunks(batches, 5)]
    assert [row for chunk in chunks for row in chunk] == list(range(first))
    assert all(len(chunk) == 5 for chunk in chunks[:-1])
    assert all(chunks)


def test_chunks_end_when_they_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Large rows make chunks of few rows."""
    monkeypatch.setattr(staging, "CHUNK_BYTES", 8 * 10)
    chunks = list(in_chunks([batch(0, 10), batch(10, 10), batch(20, 1)], 10_000))
    assert [chunk.num_rows for chunk in chunks] == [10, 10, 1]
