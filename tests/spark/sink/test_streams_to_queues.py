"""Streams written to queues by Spark, each micro-batch once."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from leasehold.client import Client


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Return a folder with two files, of which a stream reads one in each batch."""
    folder = tmp_path / "in"
    folder.mkdir()
    for number in range(2):
        lines = (f"{number}.{line}" for line in range(50))
        file = folder / f"{number}.txt"
        file.write_text("\n".join(lines))
        os.utime(file, (1_700_000_000 + number,) * 2)  # the order in which Spark reads them
    return folder


def lines_of(spark: SparkSession, folder: Path) -> DataFrame:
    read = spark.readStream.format("text").option("maxFilesPerTrigger", 1).load(str(folder))
    return read.selectExpr("value AS body").repartition(2)


def run(frame: DataFrame, checkpoint: Path, options: dict[str, str]) -> Any:
    query = (
        frame.writeStream.format("leasehold")
        .options(**options)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return query


EXPECTED = sorted(f"{number}.{line}" for number in range(2) for line in range(50))


def bodies(client: Client) -> list[str]:
    """Return what was sent; a task that was killed may leave rows staged until the next run."""
    found = client.queue("out").inspect()
    return sorted(each.text for each in found if each.state != "staged")


def test_batches_are_published_by_query_and_number(
    spark: SparkSession, client: Client, out: dict[str, str], files: Path, tmp_path: Path
) -> None:
    """Each micro-batch is one transaction, named after the query and the batch."""
    query = run(lines_of(spark, files), tmp_path / "checkpoint", out)
    assert bodies(client) == EXPECTED
    found = {each.name: (each.state, each.rows) for each in client.transactions()}
    assert found == {f"spark.{query.id}.{number}": ("published", 50) for number in range(2)}


def test_batch_that_is_replayed_after_a_crash_sends_nothing(
    spark: SparkSession, client: Client, out: dict[str, str], files: Path, tmp_path: Path
) -> None:
    """A crash between publishing and Spark's own note of it repeats the batch, and no message."""
    checkpoint = tmp_path / "checkpoint"
    run(lines_of(spark, files), checkpoint, out)
    for note in (checkpoint / "commits").iterdir():
        if note.name in {"1", ".1.crc"}:
            note.unlink()
    again = run(lines_of(spark, files), checkpoint, out)
    assert [each["batchId"] for each in again.recentProgress] == [1]
    assert bodies(client) == EXPECTED
    assert client.queue("out").counts().staged == 0


def test_failed_batch_is_sent_once_by_the_next_run(
    spark: SparkSession, client: Client, out: dict[str, str], files: Path, tmp_path: Path
) -> None:
    """A batch that fails sends nothing; run again without the mistake it sends each row once."""
    broken = lines_of(spark, files).selectExpr(
        "CASE WHEN body = '1.49' THEN raise_error('no') ELSE body END AS body"
    )
    with pytest.raises(StreamingQueryException):
        run(broken, tmp_path / "checkpoint", out)
    assert bodies(client) == EXPECTED[:50]
    run(lines_of(spark, files), tmp_path / "checkpoint", out)
    assert bodies(client) == EXPECTED
    assert client.queue("out").counts().staged == 0


def test_complete_mode_is_refused(
    spark: SparkSession, out: dict[str, str], files: Path, tmp_path: Path
) -> None:
    """A result that is written anew with each batch does not fit a queue, and that is said."""
    counted = lines_of(spark, files).groupBy("body").count().select("body")
    query = (
        counted.writeStream.format("leasehold")
        .options(**out)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .outputMode("complete")
    )
    with pytest.raises(Exception, match="not overwritten"):
        query.trigger(availableNow=True).start().awaitTermination()
