"""The results of a queue in a Delta table: ``python -m examples.delta_table QUEUE TABLE FOLDER``.

TABLE is a folder, or the URL of an object store; FOLDER keeps the checkpoint. The connection string
is in the variable QUEUES. It runs until it is stopped, and can be killed and started at any time:
each outcome is one row. It needs ``deltalake`` (delta-rs), and no Java package beside Spark's own.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from typing import Any, Final

from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from pyspark.sql import DataFrame, SparkSession

from leasehold.spark.session import local_session

CONNECTION: Final = {"connectionStringVariable": "QUEUES"}
COLUMNS: Final = ("queue", "message_id", "outcome", "output", "error")


def once_into(table: str, query: str) -> Callable[[DataFrame, int], None]:
    """Return what ``foreachBatch`` takes: it appends each micro-batch to a table exactly once.

    The rows and the number of the micro-batch are one commit of the table. A micro-batch that is
    repeated after a crash finds its number there. A driver that was replaced and still runs cannot
    write it, either: of two commits for the same query, the table refuses the second.

    Args:
        table: A folder or URL. It must exist, as two writers would both create it.
        query: Name of the query, which no other query uses for this table; a new checkpoint needs
            a new name, as Spark counts from 0 again.

    Returns:
        A function that raises ``deltalake.exceptions.CommitFailedError`` if another driver has
        written for the same query meanwhile.
    """

    def write(batch: DataFrame, number: int) -> None:
        known = DeltaTable(table)
        last = known.transaction_version(query)
        if last is None or number > last:
            done = CommitProperties(app_transactions=[Transaction(query, number)])
            write_deltalake(known, batch.toArrow(), mode="append", commit_properties=done)

    return write


def results(spark: SparkSession, queue: str, **options: str) -> DataFrame:
    """Return what became of the messages of a queue, as a stream."""
    reading = spark.readStream.format("leasehold").options(**CONNECTION | options)
    return reading.options(view="results", queueName=queue).load().select(*COLUMNS)


def create(spark: SparkSession, table: str, like: DataFrame) -> None:
    """Create an empty table with the columns of a stream, unless it is there."""
    if not DeltaTable.is_deltatable(table):
        nothing = spark.createDataFrame([], like.schema).toArrow()
        write_deltalake(table, nothing, mode="ignore")


def main() -> None:
    """Run the query."""
    parser = argparse.ArgumentParser(prog="python -m examples.delta_table")
    parser.add_argument("queue")
    parser.add_argument("table")
    parser.add_argument("folder")
    given = parser.parse_args()
    conf: dict[str, Any] = {"spark.driver.memory": os.environ.get("DRIVER_MEMORY", "1g")}
    with local_session(cores=2, **conf) as spark:
        rows = results(spark, given.queue)
        create(spark, given.table, rows)
        query = (
            rows.writeStream.foreachBatch(once_into(given.table, f"{given.queue} results"))
            .option("checkpointLocation", os.path.abspath(given.folder))  # noqa: PTH100 - or a URL
            .start()
        )
        query.awaitTermination()


if __name__ == "__main__":
    main()
