"""One run of a streaming query, as a process that is made to be killed.

``python -m tests.reliability.spark_query SETTINGS``, with JSON of :class:`Settings`.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from leasehold.spark.session import cluster_session, local_session


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What the query reads and writes, and whether it dies by itself."""

    connection_string: str
    queue: str
    stream: str
    root: str
    """Folder of the checkpoint and of what is written."""
    sink: str
    """``table``: Parquet by foreachBatch, one folder for each batch; ``queue``: our own sink."""
    limit: int
    """Messages of one micro-batch."""
    lease_s: int
    die_after_write: bool = False
    """Whether to be killed when a batch is written and Spark does not know it yet."""
    master: str = "local"
    """``local``, or the address of a cluster."""

    def text(self) -> str:
        """Return what :func:`main` takes."""
        return json.dumps(asdict(self))


def main() -> None:
    """Run the query until the queue is empty."""
    settings = Settings(**json.loads(sys.argv[1]))
    spark = _session(settings)
    source = (
        spark.readStream.format("leasehold")
        .option("connectionString", settings.connection_string)
        .option("queueName", settings.queue)
        .option("streamId", settings.stream)
        .option("maxMessagesPerTrigger", str(settings.limit))
        .option("visibilityTimeout", f"{settings.lease_s}s")
        .option("numPartitions", "2")
        .load()
    )
    _start(source, settings).awaitTermination()
    spark.stop()


def _session(settings: Settings) -> SparkSession:
    if settings.master.startswith("local"):
        return local_session(cores=2, name="kill-matrix")
    conf: dict[str, Any] = {"spark.executor.memory": "512m", "spark.sql.shuffle.partitions": 2}
    return cluster_session(settings.master, name="kill-matrix", **conf)


def _start(source: DataFrame, settings: Settings) -> Any:
    root = Path(settings.root)
    if settings.sink == "table":

        def write(batch: DataFrame, batch_id: int) -> None:
            folder = root / "table" / f"batch={batch_id}"
            batch.select("message_id", "body").write.mode("overwrite").parquet(str(folder))
            if settings.die_after_write:
                _die(batch.sparkSession)

        started = source.writeStream.foreachBatch(write)
    else:
        started = (
            source.select("body")
            .writeStream.format("leasehold")
            .option("connectionString", settings.connection_string)
            .option("queueName", f"{settings.queue}-out")
        )
    return (
        started.option("checkpointLocation", str(root / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )


def _die(spark: SparkSession) -> None:
    """Kill the driver, its JVM first."""
    jvm: Any = spark._jvm
    os.kill(jvm.java.lang.ProcessHandle.current().pid(), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
