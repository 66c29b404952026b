"""A server for queries on Spark, and what runs them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import psutil
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from leasehold.client import Client, QueueHandle
from leasehold.testing import InProcessServer
from tests.patience import PROGRAM_S

_LOOK_S: Final = 0.02


@pytest.fixture
def server() -> Iterator[InProcessServer]:
    """A server whose clock stands still."""
    with InProcessServer() as running:
        yield running


@pytest.fixture
def client(server: InProcessServer) -> Iterator[Client]:
    """A client of it."""
    with server.client() as made:
        yield made


@pytest.fixture
def queue(client: Client) -> QueueHandle:
    """An empty queue."""
    handle = client.queue("orders")
    handle.create()
    return handle


class Queries:
    """Queries that read the queue "orders", each file of a checkpoint in the test's folder."""

    def __init__(self, spark: SparkSession, connection_string: str, folder: Path) -> None:
        self.spark = spark
        self.folder = folder
        self.options = {
            "queueName": "orders",
            "streamId": "totals",
            "waitSeconds": "0.2",
            "connectionString": connection_string,
        }
        self._started: list[StreamingQuery] = []

    def read(self, schema: StructType | str | None = None, /, **options: str) -> DataFrame:
        """Return the messages as a stream."""
        reading = self.spark.readStream.format("leasehold").options(**self.options | options)
        return (reading if schema is None else reading.schema(schema)).load()

    def start(
        self,
        messages: DataFrame,
        batch: Callable[[DataFrame, int], None],
        checkpoint: str = "checkpoint",
        **trigger: Any,
    ) -> StreamingQuery:
        """Start a query that hands each micro-batch to a function of the test."""
        writing = messages.writeStream.option("checkpointLocation", str(self.folder / checkpoint))
        if trigger:
            writing = writing.trigger(**trigger)
        query = writing.foreachBatch(batch).start()
        self._started.append(query)
        return query

    def run(self, messages: DataFrame, checkpoint: str = "checkpoint") -> list[list[Any]]:
        """Run a query over what is there; return the rows of each micro-batch."""
        seen: list[list[Any]] = []
        query = self.start(messages, collecting(seen), checkpoint, availableNow=True)
        query.awaitTermination(PROGRAM_S)
        assert not query.isActive
        return seen

    def stop(self) -> None:
        """Stop all that run."""
        for query in self._started:
            query.stop()


def collecting(seen: list[list[Any]]) -> Callable[[DataFrame, int], None]:
    """Return a function for micro-batches that keeps their rows in order."""

    def keep(batch: DataFrame, number: int) -> None:
        del number
        seen.append(batch.collect())

    return keep


@pytest.fixture
def queries(spark: SparkSession, server: InProcessServer, tmp_path: Path) -> Iterator[Queries]:
    """What runs queries; all are stopped at the end."""
    made = Queries(spark, server.connection_string, tmp_path)
    yield made
    made.stop()


def until(holds: Callable[[], bool]) -> None:
    """Wait until something holds that another process brings about."""
    deadline = time.monotonic() + PROGRAM_S
    while not holds():
        assert time.monotonic() < deadline, "it does not come about"
        time.sleep(_LOOK_S)


def reader_processes() -> list[psutil.Process]:
    """Return the processes of the driver in which sources live."""
    return [each for each in psutil.Process().children(recursive=True) if _is_reader(each)]


def _is_reader(process: psutil.Process) -> bool:
    try:
        command = process.cmdline()
    except psutil.Error:  # it has just ended
        return False
    return "pyspark.sql.streaming.python_streaming_source_runner" in command
