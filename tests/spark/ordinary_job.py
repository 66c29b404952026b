"""A job in the session that everybody writes. A test runs it by a Python that is not on the path.

Argument: a folder. Prints one line of JSON that begins with ``answers``.
"""

import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import SparkSession

from leasehold.spark import register

PLACE: Final = {
    "queueName": "orders",
    "connectionString": os.environ["AZURE_STORAGE_CONNECTION_STRING"],
}


def outcome(attempt: Callable[[], object]) -> object:
    """Return what comes of an attempt, or the text of its error."""
    try:
        return attempt()
    except Exception as error:  # noqa: BLE001 - which one it is, is the question
        return f"{type(error).__name__}: {error}"


def prefixes(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the folder of the environment in which this function runs."""
    for _ in batches:
        yield pa.RecordBatch.from_pydict({"prefix": [sys.prefix]})


def main() -> None:
    """Use the format before and after it is registered, and print what came of each."""
    folder = Path(sys.argv[1])
    spark = SparkSession.builder.getOrCreate()

    def snapshot() -> int:
        reading = spark.read.format("leasehold").options(**PLACE, read="snapshot")
        return reading.load().count()

    def send() -> int:
        rows = spark.sql("SELECT 'one more' AS body")
        rows.write.format("leasehold").options(**PLACE).mode("append").save()
        return snapshot()

    def stream() -> int:
        reading = spark.readStream.format("leasehold").options(**PLACE, streamId="ordinary")
        writing = reading.load().writeStream.format("parquet").trigger(availableNow=True)
        query = writing.start(str(folder / "out"), checkpointLocation=str(folder / "checkpoint"))
        query.awaitTermination()
        return spark.read.parquet(str(folder / "out")).count()

    def function() -> str:
        return str(spark.range(1).mapInArrow(prefixes, "prefix string").collect()[0].prefix)

    answers: dict[str, Any] = {"by_name": outcome(snapshot)}
    answers["is_same"] = register(spark) is spark
    for attempt in (snapshot, send, stream, function):
        answers[attempt.__name__] = outcome(attempt)
    sys.stdout.write(f"answers {json.dumps(answers)}\n")
    spark.stop()


if __name__ == "__main__":
    main()
