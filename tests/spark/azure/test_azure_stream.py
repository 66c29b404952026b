"""Plain Azure mode under Spark, against the server's Azure dialect with the official SDK."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from leasehold.client import Client
from tests.e2e.server import Endpoint, Server

QUEUE = "plain"


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    """Return a server."""
    with Server(tmp_path_factory.mktemp("plain") / "data") as started:
        yield started


@pytest.mark.long
def test_a_queue_is_read_through_the_official_sdk(
    spark: SparkSession, endpoint: Endpoint, tmp_path: Path
) -> None:
    """Every message comes out, and nothing is left."""
    with Client.from_connection_string(endpoint.connection_string) as client:
        client.create_queue(QUEUE)
        bodies = [f"message {number}" for number in range(100)]
        encoded = [base64.b64encode(body.encode()).decode() for body in bodies]
        client.queue(QUEUE).put_many(encoded)
        stream = (
            spark.readStream.format("leasehold")
            .option("service", "azure")
            .option("connectionString", endpoint.connection_string)
            .option("queueName", QUEUE)
            .option("messageEncoding", "base64")
            .option("maxMessagesPerTrigger", "60")
            .load()
        )
        query = (
            stream.selectExpr("cast(body as string) as text")
            .writeStream.format("parquet")
            .option("path", str(tmp_path / "out"))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        found = [row.text for row in spark.read.parquet(str(tmp_path / "out")).collect()]
        assert sorted(found) == sorted(bodies)
        assert client.queue(QUEUE).counts().total == 0
