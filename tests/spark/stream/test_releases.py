"""A source as PySpark 4.1 calls it, which later releases still do with readers of that form."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.types import StructType

from leasehold.client import QueueHandle
from leasehold.spark import LeaseholdDataSource, SettleListener
from leasehold.spark.stream.releases import WithoutStart
from leasehold.testing import InProcessServer
from tests.spark.stream.conftest import Queries, collecting, reader_processes, until


class OlderSource(LeaseholdDataSource):
    """The source with the reader that PySpark 4.1 gets."""

    @classmethod
    def name(cls) -> str:
        """Return a name of its own."""
        return "leasehold-older"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's
        """Return the reader of 4.1 in every release."""
        reader = super().streamReader(schema)
        return reader if isinstance(reader, WithoutStart) else WithoutStart(reader)  # type: ignore[arg-type]


class OlderQueries(Queries):
    """Queries that read by such a reader."""

    def read(self, schema: StructType | str | None = None, /, **options: str) -> DataFrame:
        reading = self.spark.readStream.format("leasehold-older").options(**self.options | options)
        return (reading if schema is None else reading.schema(schema)).load()


@pytest.fixture
def queries(spark: SparkSession, server: InProcessServer, tmp_path: Path) -> Iterator[OlderQueries]:
    """What runs them; all are stopped at the end."""
    spark.dataSource.register(OlderSource)
    made = OlderQueries(spark, server.connection_string, tmp_path)
    yield made
    made.stop()


def bodies(seen: list[list[Row]]) -> list[list[bytes]]:
    return [[bytes(row.body) for row in rows] for rows in seen]


@pytest.mark.long
def test_a_running_query_settles_each_batch_at_the_next_trigger(
    queries: OlderQueries, queue: QueueHandle
) -> None:
    """The last one too, although nothing follows it."""
    queue.put_many(str(number) for number in range(5))
    seen: list[list[Row]] = []
    query = queries.start(queries.read(maxMessagesPerTrigger="2"), collecting(seen))
    until(lambda: queue.counts().total == 0)
    query.stop()
    assert bodies(seen) == [[b"0", b"1"], [b"2", b"3"], [b"4"]]


@pytest.mark.parametrize("fails", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_batch_that_failed_comes_again_as_it_was(
    queries: OlderQueries, queue: QueueHandle, fails: int
) -> None:
    """The first one, whose begin Spark asks for again, and a later one."""
    queue.put_many(str(number) for number in range(6))
    failed: list[list[Row]] = []

    def fail(batch: DataFrame, number: int) -> None:
        failed.append(batch.collect())
        if number == fails:
            raise RuntimeError("the sink is broken")

    messages = queries.read(maxMessagesPerTrigger="2")
    with pytest.raises(StreamingQueryException):
        queries.start(messages, fail).awaitTermination(60)
    queue.put_many(["6", "7"])
    assert queue.counts().leased >= 2, "the batch that failed is kept for its restart"

    seen: list[list[Row]] = []
    query = queries.start(messages, collecting(seen))
    until(lambda: queue.counts().total == 0)
    query.stop()
    assert bodies(seen)[0] == bodies(failed)[fails]
    assert sorted(chain(*bodies(failed)[:fails], *bodies(seen))) == [
        str(number).encode() for number in range(8)
    ]


@pytest.mark.slow
def test_a_killed_reader_replays_the_same_rows(queries: OlderQueries, queue: QueueHandle) -> None:
    """Its process has no memory: the offset in the checkpoint says where the query is."""
    queue.put_many(str(number) for number in range(4))
    killed: list[list[Row]] = []

    def kill(batch: DataFrame, number: int) -> None:
        killed.append(batch.collect())
        if number:
            for process in reader_processes():
                process.kill()
            raise RuntimeError("the reader is dead")

    messages = queries.read(maxMessagesPerTrigger="2")
    with pytest.raises(StreamingQueryException):
        queries.start(messages, kill).awaitTermination(60)
    seen: list[list[Row]] = []
    query = queries.start(messages, collecting(seen))
    until(lambda: queue.counts().total == 0)
    query.stop()
    assert bodies(killed) == [[b"0", b"1"], [b"2", b"3"]]
    assert bodies(seen) == [[b"2", b"3"]]


@pytest.mark.slow
def test_a_listener_settles_without_a_trigger(queries: OlderQueries, queue: QueueHandle) -> None:
    """The offset says whose it is, as there is no report; and the restart takes it as done."""
    queue.put_many(["0", "1"])
    listener = SettleListener(queries.options)
    queries.spark.streams.addListener(listener)
    seen: list[list[Row]] = []
    messages = queries.read()
    try:
        query = queries.start(messages, collecting(seen), processingTime="1 hour")
        until(lambda: queue.counts().total == 0)
        query.stop()
    finally:
        queries.spark.streams.removeListener(listener)
        listener.close()
    queue.put("2")
    query = queries.start(messages, collecting(seen))
    until(lambda: queue.counts().total == 0)
    query.stop()
    assert bodies(seen) == [[b"0", b"1"], [b"2"]]


def test_a_new_checkpoint_is_refused(queries: OlderQueries, queue: QueueHandle) -> None:
    """Although 4.1 asks for the latest offset first."""
    queue.put("0")
    query = queries.start(queries.read(), collecting([]))
    until(lambda: queue.counts().total == 0)
    query.stop()
    queue.put("1")
    with pytest.raises(StreamingQueryException, match="this query has no checkpoint"):
        queries.start(queries.read(), collecting([]), "another").awaitTermination(60)
    assert queue.counts().visible == 1
