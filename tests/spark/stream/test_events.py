"""Queries on a real Spark over the event log."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from leasehold.client import QueueHandle
from leasehold.spark.stream.releases import TELLS_START
from leasehold.testing import InProcessServer
from tests.spark.stream.conftest import Queries, collecting, reader_processes, until


@pytest.fixture
def events(spark: SparkSession, server: InProcessServer) -> Callable[..., DataFrame]:
    """What reads the event log as a stream."""

    def read(**options: str) -> DataFrame:
        reading = spark.readStream.format("leasehold").option("read", "events")
        reading = reading.option("connectionString", server.connection_string)
        return reading.options(waitSeconds="0.2", **options).load()

    return read


def types_of(batches: list[list[Any]]) -> list[str]:
    return [row["type"] for row in chain(*batches)]


def test_available_now_goes_on_from_its_checkpoint(
    queries: Queries, queue: QueueHandle, events: Callable[..., DataFrame]
) -> None:
    """Each event comes once, in micro-batches of the limit, over two runs of a query."""
    for _ in range(5):
        queue.put("x")
    log = events(maxEventsPerTrigger="4", columns="type,message_id,happened_at")
    seen = queries.run(log)
    if not TELLS_START:  # one run takes one micro-batch
        seen += queries.run(log)
    assert [len(batch) for batch in seen] == [4, 2]
    assert types_of(seen) == ["queue-created", *["put"] * 5]
    queue.complete(queue.receive(1)[0])
    assert types_of(queries.run(log)) == ["received", "completed"]
    assert queries.run(log) == []


def test_a_killed_reader_replays_the_same_events(
    queries: Queries, queue: QueueHandle, events: Callable[..., DataFrame]
) -> None:
    """Killed in the middle of its first micro-batch, it repeats that from where it began."""
    before: list[list[Any]] = []

    def crash(batch: DataFrame, number: int) -> None:
        rows = batch.collect()
        if not rows:  # before PySpark 4.2 a query begins with a micro-batch of nothing
            return
        before.append(rows)
        for process in reader_processes():
            process.kill()
        raise RuntimeError("crash in the middle of a batch")

    log = events(queueName="orders", startingOffsets="latest")
    query = queries.start(log, crash)
    until(lambda: query.lastProgress is not None)
    queue.put_many(["x"] * 5)
    with pytest.raises(StreamingQueryException, match="crash in the middle"):
        query.awaitTermination(60)
    queue.put("y")
    after = queries.run(log)
    if not TELLS_START:  # a run that repeats a micro-batch ends with it
        after += queries.run(log)
    assert after[0] == before[0]
    assert types_of(after) == ["put"] * 6


def test_a_query_that_runs_hears_what_is_new(
    queries: Queries, queue: QueueHandle, events: Callable[..., DataFrame]
) -> None:
    """With the default trigger; what was there before is not read if the options say so."""
    queue.put("old")
    seen: list[list[Any]] = []
    query = queries.start(events(queueName="orders", startingOffsets="latest"), collecting(seen))
    until(lambda: query.lastProgress is not None)
    queue.put("new")
    until(lambda: bool(types_of(seen)))
    assert types_of(seen) == ["put"]
