"""Snapshots and the event log, read by Spark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from leasehold.testing import InProcessServer


def fill(server: InProcessServer) -> None:
    """Put 30 messages, of which 10 are leased then and 5 are done."""
    with server.client() as client:
        queue = client.queue("orders")
        queue.create()
        queue.put_many([f'{{"n":{number}}}' for number in range(30)])
        taken = queue.receive(max_messages=15, holder="worker-1")
        queue.complete_many(taken[:5])


@pytest.fixture(scope="module")
def server() -> Iterator[InProcessServer]:
    """Return a server with such a queue, which tests do not change."""
    with InProcessServer() as started:
        fill(started)
        yield started


@pytest.fixture
def exported(tmp_path: Path) -> str:
    """Return the folder of the exported log of such a server."""
    with InProcessServer(events_folder=tmp_path / "events") as started:
        fill(started)
    return str(tmp_path / "events")


def read(spark: SparkSession, **options: str) -> DataFrame:
    return spark.read.format("leasehold").options(**options).load()


def here(server: InProcessServer, what: str) -> dict[str, str]:
    return {
        "connectionString": server.connection_string,
        "queueName": "orders",
        "read": what,
    }


def test_snapshot(spark: SparkSession, server: InProcessServer) -> None:
    """All messages with all columns, in as many tasks as asked for."""
    frame = read(spark, **here(server, "snapshot"), numPartitions="3")
    assert frame.rdd.getNumPartitions() == 3
    rows = frame.collect()
    assert len({row.message_id for row in rows}) == 25
    assert sorted({(row.state, row.holder) for row in rows}) == [
        ("leased", "worker-1"),
        ("visible", None),
    ]
    grouped = frame.selectExpr("get_json_object(string(body), '$.n') AS n").distinct().count()
    assert grouped == 25


def test_snapshot_in_sql(spark: SparkSession, server: InProcessServer) -> None:
    """A view of a queue can be made in SQL."""
    options = ", ".join(f"{name} '{value}'" for name, value in here(server, "snapshot").items())
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW waiting USING leasehold OPTIONS ({options})")
    [row] = spark.sql("SELECT count_if(state = 'leased') AS held FROM waiting").collect()
    assert row.held == 10


def test_events(spark: SparkSession, server: InProcessServer, exported: str) -> None:
    """The log of the server and its files are one table."""
    for options in (here(server, "events"), {"read": "events", "eventLog": exported}):
        counts = read(spark, **options).groupBy("type").count().collect()
        assert {row["type"]: row["count"] for row in counts} == {
            "queue-created": 1,
            "put": 30,
            "received": 15,
            "completed": 5,
        }


def test_filters_are_pushed(spark: SparkSession, server: InProcessServer) -> None:
    """With pushdown on, handled filters vanish from the plan, and the answer is the same."""
    condition = (
        "type IN ('put', 'received') AND happened_at >= timestamp'2000-01-01 00:00:00' "
        "AND seq > 1 AND dequeue_count < 1 AND message_id LIKE '%-%'"
    )
    plain = read(spark, **here(server, "events")).where(condition)
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        pushed = read(spark, **here(server, "events"), pushdown="true").where(condition)
        plan = pushed._jdf.queryExecution().executedPlan().toString()
        assert "Filter" in plan
        assert "Contains(message_id" in plan
        assert "dequeue_count#" not in plan.partition("Filter")[2].partition("BatchScan")[0]
        assert pushed.count() == 30
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")
    assert plain.count() == 30


def test_mistakes_reach_the_user(spark: SparkSession, server: InProcessServer) -> None:
    """What is asked for wrongly is said in our words."""
    with pytest.raises(PySparkException, match=r"no column stat\. Did you mean state"):
        read(spark, **here(server, "snapshot"), columns="stat")
    with pytest.raises(PySparkException, match="there is no queue"):
        read(spark, **{**here(server, "snapshot"), "queueName": "nowhere"}).count()
