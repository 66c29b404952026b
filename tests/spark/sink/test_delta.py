"""A Delta table that is written exactly once, without Delta's Java part."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError
from examples.delta_table import __main__ as example
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from leasehold.client import Client
from leasehold.client.models import Completion
from leasehold.testing import InProcessServer

PATIENCE_S = 900
QUERY = "orders"


class Rows:
    """Stands for a micro-batch."""

    def __init__(self, *ids: str) -> None:
        self._table = pa.table({"message_id": ids})

    def toArrow(self) -> pa.Table:  # noqa: N802 - as Spark calls it
        """Return the rows."""
        return self._table


def told(table: Path) -> Counter[str]:
    """Return how often each message is in the table."""
    return Counter(pa.table(DeltaTable(table).to_pyarrow_table())["message_id"].to_pylist())


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Return an empty table."""
    path = tmp_path / "table"
    write_deltalake(path, pa.table({"message_id": pa.array([], pa.string())}))
    return path


def test_a_micro_batch_is_written_once(table: Path) -> None:
    """Its number is in the commit that has its rows; other queries have numbers of their own."""
    write: Callable[[Any, int], None] = example.once_into(str(table), QUERY)
    for number in (0, 1, 1, 0):
        write(Rows(f"message {number}"), number)
    other: Callable[[Any, int], None] = example.once_into(str(table), "another")
    other(Rows("message 0"), 0)
    assert told(table) == {"message 0": 2, "message 1": 1}


def test_a_driver_that_was_replaced_cannot_write(table: Path) -> None:
    """It looked at the table before its successor wrote, and is refused; its rows are not there."""
    write: Callable[[Any, int], None] = example.once_into(str(table), QUERY)
    write(Rows("before"), 0)
    old = DeltaTable(table)
    write(Rows("new"), 1)
    properties = CommitProperties(app_transactions=[Transaction(QUERY, 1)])
    with pytest.raises(CommitFailedError):
        write_deltalake(old, Rows("old").toArrow(), mode="append", commit_properties=properties)
    assert told(table) == {"before": 1, "new": 1}


@pytest.mark.long
def test_results_are_there_once_when_the_driver_fails_after_the_commit(
    spark: SparkSession,
    server: InProcessServer,
    client: Client,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The micro-batch is repeated; a sink without its number, as a control, has its rows twice."""
    queue = client.queue("out")
    queue.put_many([str(number) for number in range(20)])
    queue.complete_many([Completion(each, {"output": each.text}) for each in queue.receive(20)])
    # Python workers of this session are older than the variable.
    connection = {"connectionString": server.connection_string}
    monkeypatch.setattr(example, "CONNECTION", connection)
    rows = example.results(spark, "out", maxEventsPerTrigger="30")
    tables = [tmp_path / "once", tmp_path / "control"]
    for path in tables:
        example.create(spark, str(path), rows)
    once = example.once_into(str(tables[0]), QUERY)
    failing = [0]

    def write(batch: DataFrame, number: int) -> None:
        batch.persist()
        once(batch, number)
        write_deltalake(tables[1], batch.toArrow(), mode="append")
        if number in failing:
            failing.remove(number)
            raise RuntimeError("the driver dies here")

    def run() -> None:
        query = rows.writeStream.foreachBatch(write).trigger(availableNow=True)
        started = query.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
        started.awaitTermination(PATIENCE_S)

    with pytest.raises(StreamingQueryException, match="the driver dies here"):
        run()
    run()
    assert told(tables[0]) == dict.fromkeys(told(tables[1]), 1)
    assert told(tables[0]).total() == 20 < told(tables[1]).total()
