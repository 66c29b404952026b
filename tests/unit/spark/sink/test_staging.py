"""How a task cuts its rows into requests."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import pytest

from leasehold.client import ConnectionFailed
from leasehold.spark import sink
from leasehold.spark.options import write_options
from leasehold.spark.sink import Rows, Stager, in_chunks
from tests.unit.spark.sink.tables import table_of


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
    monkeypatch.setattr(sink, "CHUNK_BYTES", 8 * 10)
    chunks = list(in_chunks([batch(0, 10), batch(10, 10), batch(20, 1)], 10_000))
    assert [chunk.num_rows for chunk in chunks] == [10, 10, 1]


class Transaction:
    """Refuses what is staged from the second chunk on; notes what is dropped."""

    name = "t"

    def __init__(self, failure: Exception) -> None:
        self.failure = failure
        self.chunks = 0
        self.dropped: list[str] = []

    def stage_arrow(
        self, batch: Any, *, queue: str | None, part: str, timeout_s: int | None
    ) -> None:
        self.chunks += 1
        if self.chunks > 1:
            raise self.failure

    def discard(self, parts: Iterable[str] | None = None) -> None:
        self.dropped += parts or ()


@pytest.mark.parametrize(
    ("failure", "dropped"),
    [
        (ArithmeticError("the query has failed"), ["p"]),
        (ConnectionFailed("http://there", "gone", outcome_unknown=False), []),
    ],
)
def test_a_task_that_fails_drops_its_rows_if_somebody_answers(
    failure: Exception, dropped: list[str]
) -> None:
    """Whoever was waited for in vain is not waited for a second time; the rows vanish by age."""
    rows = Rows.of(write_options({"queueName": "orders"}), table_of("body string"))
    stager = Stager(rows=rows, queue="orders", chunk_rows=1, timeout_s=60)
    transaction = Transaction(failure)
    batches = [pa.RecordBatch.from_pydict({"body": [body]}) for body in "ab"]
    with pytest.raises(type(failure)):
        stager.stage(transaction, "p", batches)
    assert transaction.dropped == dropped
