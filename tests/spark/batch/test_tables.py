"""Tables that went through a queue are compared with Spark's own means."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession
from pyspark.testing import assertDataFrameEqual, assertSchemaEqual

from leasehold.spark.schemas import EVENTS, MESSAGE, SNAPSHOT
from leasehold.testing import InProcessServer


@pytest.fixture
def place() -> Iterator[dict[str, str]]:
    """Return where an empty queue is."""
    with InProcessServer() as server:
        with server.client() as client:
            client.queue("orders").create()
        yield {"connectionString": server.connection_string, "queueName": "orders"}


def test_a_table_comes_back_as_it_was_sent(spark: SparkSession, place: dict[str, str]) -> None:
    """What a row says of its message is what a snapshot says of it."""
    sent = spark.sql(
        """
        SELECT cast(id AS string) AS body, cast(id % 3 + 1 AS tinyint) AS priority,
               if(id % 2 = 0, 'even', NULL) AS message_type,
               map('id', cast(id AS string)) AS properties
        FROM range(40)
        """
    )
    sent.write.format("leasehold").options(**place).mode("append").save()
    found = spark.read.format("leasehold").options(**place, read="snapshot").load()
    columns = ("string(body) AS body", "priority", "message_type", "properties")
    assertDataFrameEqual(found.selectExpr(*columns), sent)


def test_schemas_are_those_documented(spark: SparkSession, place: dict[str, str]) -> None:
    """Of a stream, a snapshot and the event log; Spark has each column nullable in batches."""
    stream = spark.readStream.format("leasehold").options(**place, streamId="s").load()
    assertSchemaEqual(stream.schema, MESSAGE, ignoreNullable=True)
    for what, schema in (("snapshot", SNAPSHOT), ("events", EVENTS)):
        found = spark.read.format("leasehold").options(**place, read=what).load()
        assertSchemaEqual(found.schema, schema, ignoreNullable=True)
