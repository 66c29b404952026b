"""A job that is a client of Spark Connect. Tests run it in a process of its own.

Argument: a folder. Prints one line of JSON that begins with ``told``.
"""

import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any, Final

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from leasehold.client import Client, QueueHandle
from leasehold.spark import LeaseholdDataSource, SettleListener
from leasehold.spark.session import prepare

CONNECTION: Final = os.environ.get("AZURE_STORAGE_CONNECTION_STRING", "")
COUNT: Final = 50
_PATIENCE_S: Final = 60


class Job:
    """What is tried, each by a method that returns what came of it."""

    def __init__(self, spark: SparkSession, client: Client, folder: Path) -> None:
        self.spark = spark
        self.folder = folder
        self.orders = client.queue("orders")
        self.results = client.queue("results")
        for queue in (self.orders, self.results):
            queue.create()

    def fill(self) -> None:
        """Put messages into the first queue."""
        self.orders.put_many(str(number) for number in range(COUNT))

    def reading(self, stream: str, **options: str) -> Any:
        """Return the first queue as a stream."""
        given = {"queueName": "orders", "connectionString": CONNECTION, "streamId": stream}
        return self.spark.readStream.format("leasehold").options(**given, **options).load()

    def from_queue_to_queue(self) -> dict[str, int]:
        """Source and sink in one query: the publishing settles."""
        self.fill()
        writing = self.reading("one", settleWithSink="true").select("body").writeStream
        query = (
            writing.format("leasehold")
            .options(queueName="results", connectionString=CONNECTION)
            .option("checkpointLocation", str(self.folder / "one"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return {"left": self.orders.counts().total, "sent": self.results.counts().visible}

    def registered_and_by_hand(self) -> dict[str, Any]:
        """A class that is registered, and a function of the client's for each micro-batch."""
        self.spark.dataSource.register(LeaseholdDataSource)
        self.fill()
        target = str(self.folder / "two.parquet")

        def keep(batch: Any, batch_id: int) -> None:
            batch.write.mode("overwrite").parquet(f"{target}/batch={batch_id}")

        writing = self.reading("two").selectExpr("string(body) AS body").writeStream
        checkpoint = writing.option("checkpointLocation", str(self.folder / "two"))
        checkpoint.foreachBatch(keep).trigger(availableNow=True).start().awaitTermination()
        rows = self.spark.read.parquet(target).collect()
        return {"left": self.orders.counts().total, "bodies": sorted(row.body for row in rows)}

    def table_and_snapshot(self) -> dict[str, int]:
        """Batch reads and writes."""
        place = {"queueName": "results", "connectionString": CONNECTION}
        before = self.spark.read.format("leasehold").options(**place, read="snapshot").load()
        seen = before.count()
        one = self.spark.sql("SELECT 'one more' AS body")
        one.write.format("leasehold").options(**place).mode("append").save()
        return {"seen": seen, "then": self.results.counts().visible}

    def misspelt(self) -> str:
        """What the client is told of an option that there is not."""
        try:
            self.reading("three", maxMesagesPerTrigger="5").printSchema()
        except AnalysisException as error:
            return str(error)
        return ""

    def listened_to(self) -> dict[str, int]:
        """A listener, which lives in the client, settles although no trigger comes any more."""
        self.fill()
        options = {"queueName": "orders", "connectionString": CONNECTION, "streamId": "four"}
        listener = SettleListener(options)
        self.spark.streams.addListener(listener)
        writing = self.reading("four").writeStream.format("noop")
        query = (
            writing.option("checkpointLocation", str(self.folder / "four"))
            .trigger(processingTime="1 hour")
            .start()
        )
        until_empty(self.orders)
        query.stop()
        self.spark.streams.removeListener(listener)
        listener.close()
        return {"left": self.orders.counts().total}


def until_empty(queue: QueueHandle) -> None:
    """Wait until a queue has no messages, or for long enough."""
    deadline = time.monotonic() + _PATIENCE_S
    pause = threading.Event()
    while queue.counts().total and time.monotonic() < deadline:
        pause.wait(0.1)


def main() -> None:
    """Try everything, and tell what came of it."""
    prepare(os.environ)
    spark = SparkSession.builder.remote("local[2]").getOrCreate()
    with Client.from_connection_string(CONNECTION) as client:
        job = Job(spark, client, Path(sys.argv[1]))
        told = {
            "session": type(spark).__module__,
            "queues": job.from_queue_to_queue(),
            "by_hand": job.registered_and_by_hand(),
            "table": job.table_and_snapshot(),
            "misspelt": job.misspelt(),
            "listener": job.listened_to(),
        }
    sys.stdout.write(f"told {json.dumps(told)}\n")
    spark.stop()


if __name__ == "__main__":
    main()
