"""One run of a streaming query, as a process that is made to be killed.

``python -m proof.spark.query SETTINGS``, with JSON of :class:`Settings`. It runs until it is
killed, or until the file ``stop`` is in its folder.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from examples.delta_table.__main__ import once_into
from examples.stateful import __main__ as stateful
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everywhere in Spark
from pyspark.sql.streaming.query import StreamingQuery
from tests.reliability.spark_query import _die, pipeline

from leasehold.spark import feedback
from leasehold.spark.session import LOCAL, cluster_session
from leasehold.worker.retry_policy import PoisonRule, RetryRule

MASTER: Final = "local-cluster[2,1,512]"
"""Two executors of 512 MiB, each a process with one core, started by the driver's own Java."""
STOP: Final = "stop"
"""Name of the file that ends the query."""
DIE: Final = "die"
"""Name of a file that has a planted sink kill its driver; it is removed first."""
_CONF: Final[dict[str, Any]] = {
    **LOCAL,
    "spark.driver.memory": "512m",
    "spark.executor.memory": "512m",
    "spark.sql.shuffle.partitions": "2",
    "spark.default.parallelism": "2",
    "spark.sql.streaming.stateStore.providerClass": stateful.ROCKSDB,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What the query reads, and where it writes."""

    row: str
    """A name in :data:`QUERIES`."""
    connection_string: str
    queue: str
    """From which it reads; stateful queries know their own."""
    root: str
    """Folder of the checkpoint, and of what is written."""
    limit: int
    """Messages of one micro-batch, or a tenth of the events."""
    lease_s: int

    def text(self) -> str:
        """Return what :func:`main` takes."""
        return json.dumps(asdict(self))

    @property
    def checkpoint(self) -> str:
        """Folder of the checkpoint."""
        return str(Path(self.root) / "checkpoint")

    @property
    def table(self) -> str:
        """Folder of the rows, where rows are written."""
        return str(Path(self.root) / "table")


def main() -> None:
    """Run the query until it is to stop."""
    given = Settings(**json.loads(sys.argv[1]))
    os.environ["QUEUES"] = given.connection_string  # for the examples, here and in executors
    spark = cluster_session(MASTER, name=f"kills-{given.row}", quick=True, **_CONF)
    query = QUERIES[given.row](spark, given)
    stop = Path(given.root) / STOP
    while not query.awaitTermination(1):
        if stop.exists():
            feedback.stop(query)
            break
    spark.stop()


def _read(spark: SparkSession, given: Settings) -> DataFrame:
    return (
        spark.readStream.format("leasehold")
        .option("connectionString", given.connection_string)
        .option("queueName", given.queue)
        .option("streamId", "kills")
        .option("maxMessagesPerTrigger", str(given.limit))
        .option("visibilityTimeout", f"{given.lease_s}s")
        .option("numPartitions", "2")
        .load()
    )


def _table(spark: SparkSession, given: Settings) -> StreamingQuery:
    rows = _read(spark, given).select(F.col("body").cast("string").alias("told"))
    writing = rows.writeStream.format("parquet")
    return writing.option("checkpointLocation", given.checkpoint).start(given.table)


def _delta(spark: SparkSession, given: Settings) -> StreamingQuery:
    rows = _read(spark, given).select(F.col("body").cast("string").alias("told"))
    writing = rows.writeStream.foreachBatch(once_into(given.table, given.queue))
    return writing.option("checkpointLocation", given.checkpoint).start()


def _sent_on(bodies: DataFrame, given: Settings, queue: str) -> StreamingQuery:
    return (
        bodies.select("body")
        .writeStream.format("leasehold")
        .option("connectionString", given.connection_string)
        .option("queueName", queue)
        .option("checkpointLocation", given.checkpoint)
        .start()
    )


def _queue(spark: SparkSession, given: Settings) -> StreamingQuery:
    return _sent_on(_read(spark, given), given, f"{given.queue}-out")


def _results(spark: SparkSession, given: Settings) -> StreamingQuery:
    rows = (
        spark.readStream.format("leasehold")
        .option("connectionString", given.connection_string)
        .option("view", "results")
        .option("queueName", given.queue)
        .option("maxEventsPerTrigger", str(10 * given.limit))
        .option("numPartitions", "2")
        .load()
        .select(F.expr("coalesce(error, trim(BOTH '\"' FROM output))").alias("told"))
    )
    writing = rows.writeStream.format("parquet")
    return writing.option("checkpointLocation", given.checkpoint).start(given.table)


def _feedback(spark: SparkSession, given: Settings) -> StreamingQuery:
    options = {
        "connectionString": given.connection_string,
        "waitSeconds": "0.2",
        "maxEventsPerTrigger": str(10 * given.limit),
    }
    return feedback.start(
        spark, options, checkpoint=given.checkpoint, every="0 seconds", notices=True
    )


def _dataframe_form(spark: SparkSession, given: Settings) -> StreamingQuery:
    query = pipeline(given.queue).stream(
        spark,
        connection=given.connection_string,
        stream="kills",
        checkpoint=given.checkpoint,
        to=f"{given.queue}-out",
        max_messages=given.limit,
        lease_s=given.lease_s,
        retries=RetryRule(kind="fixed", initial_s=0),
        poison=PoisonRule(max_failures=None),
        options={"numPartitions": "2"},
    )
    assert isinstance(query, StreamingQuery)  # without queues between the stages there is one
    return query


def _stateful(name: str) -> Callable[[SparkSession, Settings], StreamingQuery]:
    def start(spark: SparkSession, given: Settings) -> StreamingQuery:
        stateful.CONNECTION.update(
            maxMessagesPerTrigger=str(given.limit), visibilityTimeout=f"{given.lease_s}s"
        )
        results = stateful.QUERIES[name](spark)
        if name != "unique":
            results = results.select(F.to_json(F.struct("*")).alias("body"))
        return _sent_on(results, given, f"{name}-results")

    return start


# --- planted bugs --------------------------------------------------------------------------------


def _planted(given: Settings, write: Callable[[DataFrame, int, Callable[[], None]], None]) -> Any:
    """Return what ``foreachBatch`` takes: *write*, with a call at which the driver may die."""
    file = Path(given.root) / DIE

    def of_batch(batch: DataFrame, number: int) -> None:
        def may_die() -> None:
            if file.exists():
                file.unlink()
                _die(batch.sparkSession)

        write(batch.select(F.col("body").cast("string").alias("told")), number, may_die)

    return of_batch


def _appending(spark: SparkSession, given: Settings) -> StreamingQuery:
    """A sink that does not recognize a repeated micro-batch: it adds its rows again."""

    def write(rows: DataFrame, _: int, may_die: Callable[[], None]) -> None:
        rows.write.mode("append").parquet(given.table)
        may_die()

    return _for_each_batch(spark, given, write)


def _forgetting(spark: SparkSession, given: Settings) -> StreamingQuery:
    """A sink that notes a micro-batch as written before it is: what comes next may be lost."""

    def write(rows: DataFrame, number: int, may_die: Callable[[], None]) -> None:
        noted = Path(given.root) / f"noted-{number}"
        if noted.exists():
            return
        noted.touch()
        may_die()
        rows.write.mode("append").parquet(given.table)

    return _for_each_batch(spark, given, write)


def _for_each_batch(
    spark: SparkSession,
    given: Settings,
    write: Callable[[DataFrame, int, Callable[[], None]], None],
) -> StreamingQuery:
    writing = _read(spark, given).writeStream.foreachBatch(_planted(given, write))
    return writing.option("checkpointLocation", given.checkpoint).start()


QUERIES: Final[dict[str, Callable[[SparkSession, Settings], StreamingQuery]]] = {
    "queue to Parquet": _table,
    "queue to Delta": _delta,
    "queue to queue": _queue,
    "results stream": _results,
    "feedback": _feedback,
    "DataFrame form": _dataframe_form,
    "duplicates": _stateful("unique"),
    "sessions": _stateful("sessions"),
    "join": _stateful("payments"),
    "planted: appends again": _appending,
    "planted: notes too early": _forgetting,
}


if __name__ == "__main__":
    main()
