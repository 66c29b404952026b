"""Queries on a real Spark that read a queue."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, Row

from leasehold.client import Client, QueueHandle
from leasehold.spark import SettleListener
from leasehold.spark.stream.releases import TELLS_START
from leasehold.testing import InProcessServer
from tests.spark.stream.conftest import Queries, collecting, reader_processes, until

told_where_it_is = pytest.mark.skipif(
    not TELLS_START,
    reason="before PySpark 4.2 Trigger.AvailableNow is one batch, settled by the next start",
)


def fill(queue: QueueHandle, count: int, first: int = 0) -> list[bytes]:
    """Put messages whose bodies are numbers; return the bodies."""
    bodies = [b"%d" % number for number in range(first, first + count)]
    queue.put_many(bodies)
    return bodies


def bodies_of(batches: list[list[Row]]) -> list[bytes]:
    """Return the bodies of all rows, in their order."""
    return [bytes(row.body) for row in chain(*batches)]


@told_where_it_is
def test_available_now_takes_all_and_leaves_nothing(queries: Queries, queue: QueueHandle) -> None:
    """Every message comes once, in claims of the limit, and nothing is left leased."""
    sent = fill(queue, 50)
    seen = queries.run(queries.read(maxMessagesPerTrigger="20", numPartitions="3"))
    assert [len(batch) for batch in seen] == [20, 20, 10]
    assert bodies_of(seen) == sent
    assert {(row.queue, row.claim) for row in seen[1]} == {("orders", 2)}
    assert queue.counts().total == 0
    assert queue.stream("totals").get().claims == ()
    assert queries.run(queries.read()) == []


@told_where_it_is
def test_a_deleted_checkpoint_loses_nothing_to_files(queries: Queries, queue: QueueHandle) -> None:
    """Files skip the batch numbers they have: the query is refused before it takes a message."""
    folder = str(queries.folder / "table")

    def write(checkpoint: str, **options: str) -> None:
        writing = queries.read("body STRING", **options).writeStream.format("parquet")
        place = str(queries.folder / checkpoint)
        query = writing.trigger(availableNow=True).start(folder, checkpointLocation=place)
        query.awaitTermination(60)

    fill(queue, 3)
    write("first")
    fill(queue, 2, 3)
    with pytest.raises(StreamingQueryException, match="allowNewCheckpoint=true"):
        write("second")
    assert queue.counts().visible == 2
    write("first")
    assert queries.spark.read.parquet(folder).count() == 5


@told_where_it_is
def test_a_busy_queue_ends(queries: Queries, queue: QueueHandle) -> None:
    """AvailableNow takes what was there at the start although more comes with each batch."""
    fill(queue, 20)
    seen: list[list[Row]] = []

    def keep(batch: DataFrame, number: int) -> None:
        seen.append(batch.collect())
        fill(queue, 10, 100 * (number + 1))

    messages = queries.read(maxMessagesPerTrigger="10")
    queries.start(messages, keep, availableNow=True).awaitTermination(60)
    assert len(bodies_of(seen)) == 20
    counts = queue.counts()
    assert (counts.visible, counts.leased) == (20, 0)


@told_where_it_is
def test_a_killed_reader_replays_the_same_rows(
    queries: Queries, queue: QueueHandle, server: InProcessServer
) -> None:
    """Killed between opening and settling, the batch comes again from the checkpoint, equal."""
    sent = fill(queue, 30)
    before: list[list[Row]] = []

    def crash(batch: DataFrame, number: int) -> None:
        before.append(batch.collect())
        readers = reader_processes()
        assert readers
        for process in readers:
            process.kill()
        raise RuntimeError("crash in the middle of a batch")

    messages = queries.read(maxMessagesPerTrigger="20", visibilityTimeout="30")
    query = queries.start(messages, crash)
    with pytest.raises(StreamingQueryException, match="crash in the middle"):
        query.awaitTermination(60)
    server.advance(31)
    fill(queue, 1, 1000)
    after = queries.run(queries.read(maxMessagesPerTrigger="20"))
    assert after[0] == before[0]
    assert bodies_of(after) == [*sent, b"1000"]
    assert queue.counts().total == 0


def test_the_last_batch_is_settled_though_nothing_follows(
    queries: Queries, queue: QueueHandle
) -> None:
    """An idle query settles what it has done, and its stop leaves nothing parked."""
    fill(queue, 5)
    seen: list[list[Row]] = []
    query = queries.start(queries.read(), collecting(seen))
    until(lambda: queue.counts().total == 0)
    fill(queue, 5, 5)
    until(lambda: queue.counts().total == 0)
    query.stop()
    assert len(bodies_of(seen)) == 10
    assert queue.stream("totals").get().claims == ()


@told_where_it_is
def test_a_stop_in_between_parks(
    queries: Queries, queue: QueueHandle, server: InProcessServer
) -> None:
    """With a long interval the last batch is parked by a stop; a restart settles it unread."""
    fill(queue, 5)
    seen: list[list[Row]] = []
    messages = queries.read(replayWindow="1h")
    query = queries.start(messages, collecting(seen), processingTime="1 hour")
    until(lambda: len(query.recentProgress) > 0)
    query.stop()
    until(lambda: [claim.state for claim in queue.stream("totals").get().claims] == ["parked"])
    server.advance(3_000)
    assert queries.run(queries.read()) == []
    assert len(bodies_of(seen)) == 5
    assert queue.counts().total == 0


def test_a_listener_settles_at_once(queries: Queries, queue: QueueHandle) -> None:
    """With a long interval nothing stays leased that is done."""
    fill(queue, 5)
    listener = SettleListener(queries.options)
    queries.spark.streams.addListener(listener)
    try:
        query = queries.start(queries.read(), collecting([]), processingTime="1 hour")
        until(lambda: queue.counts().total == 0)
        query.stop()
    finally:
        queries.spark.streams.removeListener(listener)
        listener.close()
    assert queue.stream("totals").get().claims == ()


@pytest.mark.long
@told_where_it_is
def test_a_long_batch_keeps_its_messages(
    queries: Queries, queue: QueueHandle, server: InProcessServer
) -> None:
    """A batch of many leases loses nothing: the reader's thread extends the claim."""
    fill(queue, 5)
    seen: list[list[Row]] = []

    stream = queue.stream("totals")

    def extended_beyond(count: int) -> Callable[[], bool]:
        return lambda: stream.get_claim(1).extensions > count

    def work(batch: DataFrame, number: int) -> None:
        for _ in range(5):
            before = stream.get_claim(1).extensions
            server.advance(1.5)
            until(extended_beyond(before))
        seen.append(batch.collect())

    queries.start(queries.read(visibilityTimeout="2"), work, availableNow=True).awaitTermination(60)
    assert len(bodies_of(seen)) == 5
    assert queue.counts().total == 0


def test_two_queries_share_a_queue(queries: Queries, queue: QueueHandle) -> None:
    """Queries with names of their own get disjoint messages at the same time."""
    sent = fill(queue, 100)
    seen: list[list[list[Row]]] = [[], []]
    started = [
        queries.start(
            queries.read(streamId=f"stream-{number}", maxMessagesPerTrigger="25"),
            collecting(seen[number]),
            checkpoint=f"checkpoint-{number}",
        )
        for number in range(2)
    ]
    until(lambda: queue.counts().total == 0)
    for query in started:
        query.stop()
    assert sorted(bodies_of(seen[0]) + bodies_of(seen[1])) == sorted(sent)


def test_a_second_query_of_the_same_name_ends_the_first(
    queries: Queries, queue: QueueHandle
) -> None:
    """The error says why and what to do, and shows no key."""
    stream = queue.stream("totals")
    first = queries.start(queries.read(), collecting([]), checkpoint="one")
    until(lambda: bool(queue.streams()))
    second = queries.start(queries.read(), collecting([]), checkpoint="two")
    until(lambda: not first.isActive)
    error = first.exception()
    assert error is not None
    assert "another query with streamId=totals has attached" in str(error)
    assert queries.options["connectionString"].split("AccountKey=")[1][:20] not in str(error)
    assert second.isActive
    assert stream.get().last_settled == 0


@pytest.mark.long
@told_where_it_is
def test_a_union_of_two_queues(queries: Queries, queue: QueueHandle, client: Client) -> None:
    """Two sources in one query; one of them may have nothing at first."""
    other = client.queue("returns")
    other.create()
    sent = fill(queue, 5)
    both = queries.read().union(queries.read(queueName="returns", streamId="more"))
    assert bodies_of(queries.run(both)) == sent
    late = fill(other, 5, 100)
    assert bodies_of(queries.run(both)) == late
    assert (queue.counts().total, other.counts().total) == (0, 0)


@told_where_it_is
def test_json_bodies_become_columns(queries: Queries, queue: QueueHandle) -> None:
    """With the columns that the user names; a bad body goes to the poison queue."""
    queue.put_many(['{"id": 1, "tags": ["a"]}', "oops", '{"id": 2, "at": "2026-02-03T04:05:06Z"}'])
    columns = "id BIGINT, tags ARRAY<STRING>, at TIMESTAMP, _dequeue_count INT"
    (rows,) = queries.run(queries.read(columns, format="json"))
    assert [(row.id, row.tags, row._dequeue_count) for row in rows] == [(1, ["a"], 1), (2, None, 1)]
    assert rows[1]["at"].year == 2026
    counts = queue.counts()
    assert (counts.total, counts.poisoned) == (0, 1)


@told_where_it_is
def test_the_progress_tells_the_backlog(queries: Queries, queue: QueueHandle) -> None:
    """What is still to come stands in the progress of each batch, without any key."""
    fill(queue, 10)
    messages = queries.read(maxMessagesPerTrigger="4", prefetchClaim="false")
    query = queries.start(messages, collecting([]), availableNow=True)
    query.awaitTermination(60)
    told: list[dict[str, Any]] = [batch["sources"][0] for batch in query.recentProgress]
    shown = str([query.recentProgress, queries.spark.sparkContext.appName])
    assert '"visible": 6' in told[0]["latestOffset"]
    assert '"completed": 4' in told[1]["latestOffset"]
    key = queries.options["connectionString"].split("AccountKey=")[1].split(";")[0]
    assert key not in shown


def test_plans_and_errors_show_no_key(
    queries: Queries, queue: QueueHandle, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Not with the redaction that the manual asks for, and not if a file holds the secret."""
    text = queries.options.pop("connectionString")
    key = text.split("AccountKey=")[1].split(";")[0]
    held = tmp_path / "connection-string"
    held.write_text(text)
    queries.read(connectionStringFile=str(held)).explain(extended=True)
    setting = "spark.sql.redaction.options.regex"
    queries.spark.conf.set(setting, "(?i)url|connectionString|credential")
    try:
        queries.read(connectionString=text).explain(extended=True)
    finally:
        queries.spark.conf.unset(setting)
    shown = capsys.readouterr().out
    assert shown.count("StreamingRelation") >= 4
    assert key not in shown
    query = queries.start(queries.read(queueName="nowhere", connectionString=text), collecting([]))
    with pytest.raises(StreamingQueryException, match="there is no queue nowhere") as refusal:
        query.awaitTermination(60)
    assert key not in str(refusal.value)


def test_a_stream_id_is_asked_for(queries: Queries) -> None:
    """A query without one is refused when it starts."""
    del queries.options["streamId"]
    with pytest.raises(StreamingQueryException, match="streamId is missing"):
        queries.start(queries.read(), collecting([])).awaitTermination(60)


@told_where_it_is
def test_a_queue_to_queue_query_leaves_nothing_open(
    queries: Queries, queue: QueueHandle, client: Client
) -> None:
    """With settleWithSink, results appear and messages are completed in one transaction."""
    sums = client.queue("sums")
    sums.create()
    sent = fill(queue, 20)
    writing = (
        queries.read(settleWithSink="true", maxMessagesPerTrigger="10")
        .select("body")
        .writeStream.format("leasehold")
        .option("connectionString", queries.options["connectionString"])
        .option("queueName", "sums")
        .option("checkpointLocation", str(queries.folder / "to-sums"))
    )
    # There is no second trigger that could settle anything.
    query = writing.trigger(once=True).start()
    query.awaitTermination(60)
    assert queue.stream("totals").get().settled_with == f"spark.{query.id}.0"
    assert queue.stream("totals").get().claims == ()
    assert sorted(message.body for message in sums.receive(32)) == sorted(sent)
    assert queue.counts().total == 0
