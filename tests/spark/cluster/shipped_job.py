"""A job that reads a queue as a stream. Tests run it on a cluster, in environments that differ.

Arguments: how the source is found (``by-name`` or ``registered``), then a folder for the
checkpoint. Prints one line of JSON that begins with ``told``.
"""

import json
import os
import sys

from pyspark.sql import SparkSession


def main() -> None:
    """Read what is in the queue ``shipped``, and tell how many rows came and from where."""
    how, folder = sys.argv[1:]
    spark = SparkSession.builder.getOrCreate()
    if how == "registered":
        from leasehold.spark import LeaseholdDataSource  # noqa: PLC0415 - that is what is tried

        spark.dataSource.register(LeaseholdDataSource)
    rows: list[str] = []
    stream = spark.readStream.format("leasehold").options(
        queueName="shipped",
        streamId=folder,
        connectionString=os.environ["AZURE_STORAGE_CONNECTION_STRING"],
    )

    def take(frame, batch_id):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202 - Spark's
        del batch_id
        rows.extend(row.body.decode() for row in frame.select("body").collect())

    writing = stream.load().writeStream.foreachBatch(take)
    checkpoint = writing.option("checkpointLocation", folder)
    checkpoint.trigger(availableNow=True).start().awaitTermination()

    def where(batches):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202 - Spark's
        import pyarrow as pa  # noqa: PLC0415 - asked on the executor

        import leasehold  # noqa: PLC0415

        yield from (pa.RecordBatch.from_pydict({"file": [leasehold.__file__]}) for _ in batches)

    found = {row.file for row in spark.range(2).mapInArrow(where, "file string").collect()}
    told = json.dumps({"rows": sorted(rows), "files": sorted(found)})
    sys.stdout.write(f"told {told}\n")
    spark.stop()


if __name__ == "__main__":
    main()
