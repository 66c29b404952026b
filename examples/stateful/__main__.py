"""Three stateful queries from queue to queue: ``python -m examples.stateful NAME FOLDER``.

NAME is ``unique``, ``sessions`` or ``payments``; FOLDER keeps the checkpoint. The connection string
is in the variable QUEUES. It runs until it is stopped, and can be killed and started at any time.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from examples.stateful.processors import FirstOfEach, Payments, Sessions
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everywhere in Spark

from leasehold.spark.session import local_session

CONNECTION: Final = {"connectionStringVariable": "QUEUES"}
ROCKSDB: Final = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
LATE: Final = "10 minutes"
"""How much later than others a message may come. Spark drops what is later still, silently."""


def read(spark: SparkSession, queue: str, columns: str) -> DataFrame:
    """Return the JSON bodies of a queue as a stream."""
    reading = spark.readStream.format("leasehold").options(**CONNECTION)
    return (
        reading.options(queueName=queue, streamId="stateful", format="json").schema(columns).load()
    )


def unique(spark: SparkSession) -> DataFrame:
    """Return the clicks of the queue "clicks" with each id once in an hour."""
    clicks = read(spark, "clicks", "id STRING, page STRING")
    keyed = clicks.select("id", F.to_json(F.struct("id", "page")).alias("body")).groupBy("id")
    return keyed.transformWithStateInPandas(
        FirstOfEach(keep_s=3600), FirstOfEach.OUTPUT, "append", "ProcessingTime"
    )


def sessions(spark: SparkSession) -> DataFrame:
    """Return the sessions of the users whose events are in the queue "visits"."""
    visits = read(spark, "visits", "user STRING, at TIMESTAMP").withWatermark("at", LATE)
    return visits.groupBy("user").transformWithStateInPandas(
        Sessions(gap_s=1800), Sessions.OUTPUT, "append", "EventTime"
    )


def payments(spark: SparkSession) -> DataFrame:
    """Return what became of each order, from the queues "orders" and "payments"."""
    columns = "order_id STRING, amount DOUBLE, at TIMESTAMP"
    sides = [
        read(spark, queue, columns).withWatermark("at", LATE).withColumn("side", F.lit(side))
        for queue, side in (("orders", "order"), ("payments", "payment"))
    ]
    return (
        sides[0]
        .unionByName(sides[1])
        .groupBy("order_id")
        .transformWithStateInPandas(Payments(wait_s=3600), Payments.OUTPUT, "append", "EventTime")
    )


QUERIES: Final[dict[str, Callable[[SparkSession], DataFrame]]] = {
    "unique": unique,
    "sessions": sessions,
    "payments": payments,
}


def main() -> None:
    """Run one of them."""
    parser = argparse.ArgumentParser(prog="python -m examples.stateful")
    parser.add_argument("name", choices=QUERIES)
    parser.add_argument("folder", type=Path)
    given = parser.parse_args()
    # The memory of a small driver; in production leave it out.
    memory = os.environ.get("DRIVER_MEMORY", "1g")
    conf: dict[str, Any] = {
        "spark.sql.streaming.stateStore.providerClass": ROCKSDB,
        "spark.driver.memory": memory,
    }
    with local_session(cores=2, **conf) as spark:
        results = QUERIES[given.name](spark)
        bodies = (
            results
            if given.name == "unique"
            else results.select(F.to_json(F.struct("*")).alias("body"))
        )
        query = (
            bodies.select("body")
            .writeStream.format("leasehold")
            .options(**CONNECTION, queueName=f"{given.name}-results")
            .option("checkpointLocation", str(given.folder.absolute()))
            .start()
        )
        query.awaitTermination()


if __name__ == "__main__":
    main()
