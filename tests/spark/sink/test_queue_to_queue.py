"""From a queue through a query into a queue: input and output change together."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from leasehold.client import Client
from leasehold.client.models import NewMessage
from leasehold.spark.stream.releases import TELLS_START

pytestmark = pytest.mark.skipif(
    not TELLS_START, reason="before PySpark 4.2 availableNow takes one micro-batch"
)


def run(spark: SparkSession, options: dict[str, str], checkpoint: Path) -> str:
    frame = (
        spark.readStream.format("leasehold")
        .options(**{**options, "queueName": "input"})
        .options(streamId="upper", maxMessagesPerTrigger="40", settleWithSink="true")
        .load()
    )
    query = (
        frame.selectExpr("upper(string(body)) AS body", "message_type", "properties")
        .where("body <> 'DROPPED'")
        .writeStream.format("leasehold")
        .options(**options)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return str(query.id)


@pytest.fixture
def filled(client: Client) -> list[str]:
    """Return what comes of a queue ``input`` with 60 messages, and 60 that are dropped."""
    source = client.queue("input")
    source.create()
    source.put_many([f"m{number}" for number in range(60)])
    source.put_many(["dropped"] * 60)
    return sorted(f"M{number}" for number in range(60))


@pytest.mark.long
def test_publishing_settles_the_claim(
    spark: SparkSession, client: Client, out: dict[str, str], filled: list[str], tmp_path: Path
) -> None:
    """Each message is sent once, and completed by the very publishing of its batch.

    The last batch has no rows: its claim is settled all the same.
    """
    query = run(spark, out, tmp_path / "checkpoint")
    assert sorted(each.text for each in client.queue("out").inspect()) == filled
    assert client.queue("input").counts().total == 0
    [stream] = client.queue("input").streams()
    assert stream.claims == ()
    assert stream.settled_with == f"spark.{query}.{stream.last_settled - 1}"
    published = [each for each in client.transactions() if each.state == "published"]
    assert sum(each.rows for each in published) == 60


@pytest.mark.long
def test_replay_after_a_crash_sends_nothing_twice(
    spark: SparkSession, client: Client, out: dict[str, str], filled: list[str], tmp_path: Path
) -> None:
    """A batch that was published, and not yet noted by Spark, is recognised at both ends."""
    checkpoint = tmp_path / "checkpoint"
    run(spark, out, checkpoint)
    last = max(int(note.name) for note in (checkpoint / "commits").iterdir() if note.name[0] != ".")
    (checkpoint / "commits" / f".{last}.crc").unlink(missing_ok=True)
    (checkpoint / "commits" / str(last)).unlink()
    client.queue("input").put("later")
    run(spark, out, checkpoint)
    sent = sorted(each.text for each in client.queue("out").inspect())
    assert sent == sorted([*filled, "LATER"])
    counts = client.queue("input").counts()
    assert (counts.total, client.queue("out").counts().staged) == (0, 0)


@pytest.mark.long
def test_groups_go_from_queue_to_queue_in_order(
    spark: SparkSession, client: Client, out: dict[str, str], tmp_path: Path
) -> None:
    """Whole groups in one task, rows in the order of a task, micro-batch after micro-batch."""
    in_order = {"groups": {"order": "fifo"}}
    client.queue("out").update(settings=in_order)
    source = client.queue("input")
    source.create(settings=in_order)
    source.put_many(
        [
            NewMessage(f"{number:03}", group_id=f"group {number % 5}", priority=16 - number % 16)
            for number in range(200)
        ]
    )
    frame = (
        spark.readStream.format("leasehold")
        .options(**{**out, "queueName": "input"})
        .options(streamId="groups", maxMessagesPerTrigger="60", settleWithSink="true")
        .options(wholeGroups="true", numPartitions="3")
        .load()
    )
    query = (
        frame.selectExpr("body", "group_id", "CAST(1 + hash(body) % 8 + 8 AS INT) AS priority")
        .writeStream.format("leasehold")
        .options(**out, stageRows="7")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert source.counts().total == 0
    found: dict[str | None, list[str]] = {}
    while messages := client.queue("out").receive(1_000):
        for message in messages:
            found.setdefault(message.group_id, []).append(message.text)
            client.queue("out").complete(message)
    assert found == {
        f"group {group}": [f"{number:03}" for number in range(group, 200, 5)] for group in range(5)
    }
