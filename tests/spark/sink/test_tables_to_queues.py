"""Tables written to queues by Spark."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from leasehold.client import Client


def write(frame: DataFrame, options: dict[str, str], **more: str) -> None:
    frame.write.format("leasehold").options(**options, **more).mode("append").save()


def bodies(client: Client, queue: str = "out") -> list[str]:
    return sorted(each.text for each in client.queue(queue).inspect())


def test_rows_become_messages(spark: SparkSession, client: Client, out: dict[str, str]) -> None:
    """Each row is a message, with all that its columns say of it."""
    client.queue("later").create()
    rows = spark.sql(
        """
        SELECT * FROM VALUES
          ('{"n":1}', 'out', 0, 60, 1, 'order', map('tenant', 'a'), NULL),
          ('{"n":2}', 'later', 30, -1, NULL, NULL, NULL,
           '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01')
        AS t(body, queue, delay_s, time_to_live_s, priority, message_type, properties, traceparent)
        """
    )
    write(rows, out)
    [first] = client.queue("out").inspect()
    assert (first.text, first.state, first.priority, first.type) == (
        '{"n":1}',
        "visible",
        1,
        "order",
    )
    assert first.properties == {"tenant": "a"}
    assert first.expires_at_ms == first.inserted_at_ms + 60_000
    [second] = client.queue("later").inspect()
    assert (second.text, second.state, second.priority) == ('{"n":2}', "delayed", 8)
    assert second.visible_at_ms == second.inserted_at_ms + 30_000
    assert second.expires_at_ms is None
    assert second.traceparent is not None


def test_rows_with_keys_are_sent_once(
    spark: SparkSession, client: Client, out: dict[str, str]
) -> None:
    """A key that was used is dropped: by a put, within the table, or by an earlier table."""
    client.queue("out").put("0", dedup_key="key 0")
    frame = spark.range(60).selectExpr(
        "cast(id % 20 as string) AS body",
        "if(id % 20 < 15, concat('key ', id % 20), NULL) AS dedup_key",
    )
    write(frame.repartition(3), out, stageRows="7", txnId="first")
    write(frame.repartition(2), out, txnId="second")
    keyed, plain = range(15), range(15, 20)
    assert bodies(client) == sorted(map(str, [*keyed, *(n for n in plain for _ in range(6))]))
    first, second = client.transactions()
    assert (first.rows, first.duplicates) == (14 + 15, 31)
    assert (second.rows, second.duplicates) == (15, 45)
    assert client.queue("out").put("again", dedup_key="key 14").duplicate


def test_many_rows_of_many_tasks(spark: SparkSession, client: Client, out: dict[str, str]) -> None:
    """All rows of all tasks arrive, in requests of any size, published as one."""
    frame = spark.range(3_000).selectExpr("cast(id as string) AS body").repartition(5)
    write(frame, out, stageRows="250")
    assert bodies(client) == sorted(map(str, range(3_000)))
    [transaction] = client.transactions()
    assert (transaction.state, transaction.rows) == ("published", 3_000)


def _fails_at_first(batches: Iterator[Any]) -> Iterator[Any]:
    context: Any = TaskContext.get()
    yield from batches
    if context.attemptNumber() == 0 and context.partitionId() == 0:
        raise ArithmeticError("the first attempt fails")


def test_repeated_task_sends_once(spark: SparkSession, client: Client, out: dict[str, str]) -> None:
    """A task that fails after its last row and is tried again sends its rows once."""
    frame = spark.range(40).selectExpr("cast(id as string) AS body").repartition(2)
    write(frame.mapInArrow(_fails_at_first, "body string"), out, stageRows="5")
    assert bodies(client) == sorted(map(str, range(40)))
    assert client.queue("out").counts().staged == 0


def test_failed_job_sends_nothing(spark: SparkSession, client: Client, out: dict[str, str]) -> None:
    """If one row of a table cannot be computed, none is sent, and nothing stays staged."""
    frame = spark.range(40).repartition(2).selectExpr("raise_error('no') AS body", "id")
    good = spark.range(40).selectExpr("'good' AS body")
    with pytest.raises(PySparkException):
        write(good.union(frame.select("body")), out)
    counts = client.queue("out").counts()
    assert (counts.total, counts.staged) == (0, 0)


def test_named_write_happens_once(spark: SparkSession, client: Client, out: dict[str, str]) -> None:
    """A job with txnId that is run again, in full, sends nothing a second time."""
    frame = spark.range(2_000).selectExpr("cast(id as string) AS body").repartition(2)
    for _ in range(2):
        write(frame, out, txnId="import-1", stageRows="100")
    assert client.queue("out").counts().total == 2_000


def test_refusals_reach_the_user(spark: SparkSession, client: Client, out: dict[str, str]) -> None:
    """What cannot be written is said in our words, before a task has run."""
    with pytest.raises(PySparkException, match=r"no amount.*to_json\(struct\(\*\)\) AS body"):
        write(spark.sql("SELECT 'a' AS body, 1 AS amount"), out)
    with pytest.raises(PySparkException, match="a queue is not overwritten"):
        spark.sql("SELECT 'a' AS body").write.format("leasehold").options(**out).mode(
            "overwrite"
        ).save()
    with pytest.raises(PySparkException, match="Did you mean stageRows"):
        write(spark.sql("SELECT 'a' AS body"), out, stageRow="5")
    assert client.transactions() == []


def test_server_refusals_reach_the_user(
    spark: SparkSession, client: Client, out: dict[str, str]
) -> None:
    """A queue that is not there fails the job with the server's words."""
    with pytest.raises(PySparkException, match="QueueNotFound"):
        write(spark.sql("SELECT 'a' AS body, 'nowhere' AS queue"), out)
    assert client.queue("out").counts().staged == 0


# --- groups --------------------------------------------------------------------------------------


def groups_of(client: Client, queue: str = "out") -> dict[str | None, list[str]]:
    """Receive all messages, and return the bodies of each group in their order."""
    found: dict[str | None, list[str]] = {}
    while messages := client.queue(queue).receive(1_000):
        for message in messages:
            found.setdefault(message.group_id, []).append(message.text)
            client.queue(queue).complete(message)
    return found


@pytest.mark.parametrize("partitions", [1, 4])
def test_groups_keep_the_order_of_a_partition(
    spark: SparkSession, client: Client, out: dict[str, str], partitions: int
) -> None:
    """Rows of a group in one partition are in its order, in however many requests they go."""
    client.queue("out").update(settings={"groups": {"order": "fifo"}})
    frame = spark.range(600).selectExpr(
        "id",
        "format_string('%03d', id) AS body",
        "if(id % 7 = 0, NULL, concat('group ', id % 7)) AS group_id",
        "cast(1 + id % 16 AS int) AS priority",
    )
    by_group = frame.repartition(partitions, "group_id").sortWithinPartitions("id").drop("id")
    write(by_group, out, stageRows="11")
    found = groups_of(client)
    assert {len(each) for each in found.values()} == {85, 86}
    for number in range(1, 7):
        assert found[f"group {number}"] == [
            f"{each:03}" for each in range(600) if each % 7 == number
        ]


def test_a_group_that_cannot_be(spark: SparkSession, client: Client, out: dict[str, str]) -> None:
    """Names that are too long, and columns of another type, are refused before anything is sent."""
    rows = spark.range(3).selectExpr("cast(id AS string) AS body", "id AS group_id")
    with pytest.raises(PySparkException, match="column group_id is bigint, and has to be string"):
        write(rows, out)
    named = rows.selectExpr("body", "repeat('a', 128 + cast(body AS int)) AS group_id")
    with pytest.raises(PySparkException, match="group_id of 129 characters"):
        write(named, out)
    assert client.queue("out").counts().total == 0
    write(rows.select("body"), out)
    assert [each.group_id for each in client.queue("out").inspect()] == [None] * 3
