"""A query whose checkpoint and table are in an object store, as a process that is killed.

``python object_store_job.py SETTINGS``, JSON with the connection string of the queues, the address
of the store and whether this is the last run: that one ends when the queue is empty, and writes how
often each body is in the table.
"""

from __future__ import annotations

import json
import sys
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

from leasehold.spark.session import local_session

BUCKET: Final = "orders"
_PLACE: Final = f"gs://{BUCKET}"
_SIZES: Final = {
    "block.size": 64 << 20,
    "rewrite.max.chunk.size": 512 << 20,
    "outputstream.buffer.size": 8 << 20,
    "inputstream.inplace.seek.limit": 8 << 20,
    "inputstream.min.range.request.size": 2 << 20,
}
"""Hadoop 3.5 has defaults such as ``64m``, which a connector that is older cannot read."""


def settings(address: str) -> dict[str, Any]:
    """Return settings of Spark for Google's connector and a store that asks for no credentials."""
    [connector] = Path(str(files("pyspark_gcs"))).glob("jars/*.jar")
    google = "com.google.cloud.hadoop.fs.gcs"
    return {
        "spark.driver.memory": "768m",
        "spark.jars": str(connector),
        "spark.sql.streaming.checkpointFileManagerClass": (
            "org.apache.spark.sql.execution.streaming.checkpointing."
            "FileContextBasedCheckpointFileManager"
        ),
        "spark.hadoop.fs.gs.impl": f"{google}.GoogleHadoopFileSystem",
        "spark.hadoop.fs.AbstractFileSystem.gs.impl": f"{google}.GoogleHadoopFS",
        "spark.hadoop.fs.gs.storage.root.url": f"{address}/",
        "spark.hadoop.fs.gs.auth.service.account.enable": "false",
        "spark.hadoop.fs.gs.auth.null.enable": "true",
        "spark.hadoop.fs.gs.project.id": "tests",
        **{f"spark.hadoop.fs.gs.{name}": str(size) for name, size in _SIZES.items()},
    }


def main() -> None:
    """Run the query."""
    given = json.loads(sys.argv[1])
    with local_session(cores=2, quick=True, **settings(given["store"])) as spark:
        reading = spark.readStream.format("leasehold").option("queueName", "orders")
        reading = reading.option("connectionString", given["queues"]).option("streamId", "table")
        messages = reading.option("maxMessagesPerTrigger", "5").option("waitSeconds", "0.2").load()
        writing = messages.selectExpr("CAST(body AS string) AS body").writeStream.format("parquet")
        writing = writing.option("checkpointLocation", f"{_PLACE}/checkpoint")
        if given["last"]:
            writing = writing.trigger(availableNow=True)
        writing.start(f"{_PLACE}/table").awaitTermination()
        rows = spark.read.parquet(f"{_PLACE}/table").groupBy("body").count().collect()
        sys.stdout.write(json.dumps({row["body"]: row["count"] for row in rows}))


if __name__ == "__main__":
    main()
