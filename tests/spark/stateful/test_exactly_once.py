"""A stateful example on a real Spark: each result once when a micro-batch fails."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from examples.stateful import __main__ as example
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from leasehold.client import Client, QueueHandle
from leasehold.testing import InProcessServer

PATIENCE_S: Final = 900
"""A start takes seconds, and minutes on a machine with much else to do."""
KILLS: Final = 2
MINUTE_MS: Final = 60_000
DAY: Final = "2026-02-03"
PROVIDER: Final = "spark.sql.streaming.stateStore.providerClass"


def at(minute: int, day: str = DAY) -> str:
    """Return a time of a day, as bodies have it."""
    return f"{day}T{minute // 60:02}:{minute % 60:02}:00Z"


@pytest.fixture
def client() -> Iterator[Client]:
    """A client of a server whose clock stands still: no lease ends by itself."""
    with InProcessServer() as server, server.client() as made:
        os.environ["QUEUES"] = server.connection_string
        for name in ("clicks", "visits", "orders", "payments"):
            made.queue(name).create()
        yield made
        del os.environ["QUEUES"]


def put(queue: QueueHandle, *bodies: dict[str, Any]) -> None:
    queue.put_many([json.dumps(body) for body in bodies])


@pytest.mark.long
def test_a_batch_that_is_repeated_finds_the_state_as_it_was(
    spark: SparkSession, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A query fails when its second micro-batch is written: no pair is lost, none is told twice."""
    # Python workers of this session are older than the variable.
    monkeypatch.setattr(example, "CONNECTION", {"connectionString": os.environ["QUEUES"]})
    orders, paid = client.queue("orders"), client.queue("payments")
    table = tmp_path / "table"
    failing = [1]

    def write(batch: DataFrame, number: int) -> None:
        batch.write.mode("overwrite").parquet(f"{table}/batch={number}")
        if number in failing:
            failing.remove(number)
            raise RuntimeError("the driver dies here")

    def run() -> None:
        query = example.payments(spark).writeStream.foreachBatch(write)
        query.option("checkpointLocation", str(tmp_path / "c")).trigger(
            availableNow=True
        ).start().awaitTermination(PATIENCE_S)

    spark.conf.set(PROVIDER, example.ROCKSDB)
    try:
        put(orders, *({"order_id": str(n), "amount": n, "at": at(n)} for n in range(4)))
        run()
        put(paid, *({"order_id": str(n), "amount": n, "at": at(n + 5)} for n in range(3)))
        with pytest.raises(StreamingQueryException, match="the driver dies here"):
            run()
        run()
    finally:
        spark.conf.unset(PROVIDER)
    rows = spark.read.parquet(str(table)).collect()
    assert sorted((row.order_id, row.status) for row in rows) == [
        (str(number), "paid") for number in range(3)
    ]
    assert orders.counts().total + paid.counts().total == 0
