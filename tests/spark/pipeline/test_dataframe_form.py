"""Pipelines as transformations of claims: each row's outcome, and what is settled with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from leasehold.client import Client
from leasehold.spark.pipeline import Pipeline, StageQueries
from leasehold.spark.stream.releases import TELLS_START
from leasehold.testing import InProcessServer
from leasehold.worker.errors import Poison, Retry
from leasehold.worker.retry_policy import RetryRule

NOW = {"availableNow": True}
LATER = RetryRule(kind="fixed", initial_s=3600)


def films() -> Pipeline:
    """Return stages of one message, and of many in Arrow and in pandas."""

    def scan(message: Any, _state: Any) -> Any:
        if message.text.endswith("7"):
            raise Poison("not a film")
        if message.text.endswith("3"):
            raise Retry(delay_s=3600, reason="not yet")
        return {"name": message.text}

    def measure(table: Any) -> Any:
        if any(body.as_py().endswith(b"5") for body in table["body"]):
            raise ValueError("cannot be measured")
        return table.select(["message_id", "state"])

    def ship(frame: Any) -> Any:
        frame["state"] = [{**state, "shipped": True} for state in frame["state"]]
        return frame[["message_id", "state"]]

    return (
        Pipeline("films")
        .stage("scan", scan)
        .stage("measure", measure, batch="arrow", rows=16)
        .stage("ship", ship, batch="pandas")
    )


@pytest.mark.long
@pytest.mark.skipif(not TELLS_START, reason="before PySpark 4.2 availableNow takes one micro-batch")
def test_a_claim_is_settled_with_the_outcome_of_each_message(
    spark: SparkSession, server: InProcessServer, client: Client, tmp_path: Path
) -> None:
    """Results are sent, and messages that failed wait or are set aside, in one transaction each."""
    client.queue("films").put_many([f"film {number}" for number in range(40)])
    client.queue("shipped").create()
    query = films().stream(
        spark,
        connection=server.connection_string,
        checkpoint=str(tmp_path / "checkpoint"),
        to="shipped",
        trigger=NOW,
        max_messages=25,
        retries=LATER,
    )
    assert not isinstance(query, StageQueries)
    query.awaitTermination()
    states = [message.json()["name"] for message in client.queue("shipped").inspect()]
    good = [f"film {number}" for number in range(40) if number % 10 not in {3, 5, 7}]
    assert sorted(states) == sorted(good)
    poisoned = list(client.queue("films-poison").inspect())
    assert sorted(each.text for each in poisoned) == [f"film {n}" for n in (17, 27, 37, 7)]
    assert {each.last_error.text for each in poisoned if each.last_error} == {"not a film"}
    left = client.queue("films").inspect(states=["visible", "deferred"])
    waiting = {each.text: each.last_error for each in left}
    assert sorted(waiting) == sorted(f"film {n}" for n in range(40) if n % 10 in {3, 5})
    assert {error.text for error in waiting.values() if error} == {"not yet", "cannot be measured"}
    [stream] = client.queue("films").streams()
    assert stream.settled_with is not None
    assert stream.settled_with.startswith(f"spark.{query.id}.")


@pytest.mark.long
def test_outcomes_are_written_elsewhere_and_settled_once_spark_has_them(
    spark: SparkSession, server: InProcessServer, client: Client, tmp_path: Path
) -> None:
    """A run that fails after it has written is repeated, and what it had noted does not count."""
    client.queue("films").put_many([f"film {number}" for number in range(8)])
    marker, table = tmp_path / "again", str(tmp_path / "table")
    commits = tmp_path / "checkpoint" / "commits"

    def scan(message: Any, _state: Any) -> Any:
        number = int(message.text.split()[1])
        if number in ({1, 2} if marker.exists() else {2, 3}):
            raise Poison("not a film")
        return number

    def write(batch: DataFrame, batch_id: int) -> None:
        done = batch.where("outcome = 'done'").select("message_id", "state")
        done.write.mode("overwrite").parquet(f"{table}/{batch_id}")
        if not marker.exists():
            commits.rmdir()
            commits.touch()  # so that Spark cannot write that the batch is done

    def run() -> None:
        Pipeline("films").stage("scan", scan).stream(
            spark,
            connection=server.connection_string,
            checkpoint=str(tmp_path / "checkpoint"),
            foreach_batch=write,
            trigger=NOW,
        ).awaitTermination()

    with pytest.raises(StreamingQueryException):
        run()
    commits.unlink()
    [stream] = client.queue("films").streams()
    assert [(claim.number, claim.noted) for claim in stream.claims] == [(1, 2)]
    marker.touch()
    run()
    client.queue("films").put("film 8")
    run()
    found = sorted(row.state for row in spark.read.parquet(f"{table}/0").collect())
    assert found == ["0", "3", "4", "5", "6", "7"]
    poisoned = [each.text for each in client.queue("films-poison").inspect()]
    assert sorted(poisoned) == ["film 1", "film 2"]
    assert [each.text for each in client.queue("films").inspect(states=["visible"])] == []


@pytest.mark.long
def test_a_queue_before_each_stage_keeps_what_the_one_before_has_made(
    spark: SparkSession, server: InProcessServer, client: Client, tmp_path: Path
) -> None:
    """A stage that fails is tried again by itself, with the message and the state as they were."""

    def scan(message: Any, _state: Any) -> Any:
        return {"id": message.id, "type": message.type}

    def ship(message: Any, state: Any) -> Any:
        if message.text == "film 1" and message.dequeue_count == 1:
            raise Retry(delay_s=0)
        assert (message.id, message.type) == (state["id"], state["type"])
        return {**state, "name": message.text, "tries": message.dequeue_count}

    films = client.queue("films")
    sent = {films.put(f"film {number}", type="t").id: number for number in range(3)}
    client.queue("shipped").create()
    queries = (
        Pipeline("films")
        .stage("scan", scan, must_save=True)
        .stage("ship", ship)
        .stream(
            spark,
            connection=server.connection_string,
            checkpoint=str(tmp_path / "checkpoint"),
            between="queues",
            to="shipped",
        )
    )
    assert isinstance(queries, StageQueries)
    try:
        assert queries.isActive
        while client.queue("shipped").counts().visible < len(sent):
            queries.processAllAvailable()
    finally:
        queries.stop()
    found = [message.json() for message in client.queue("shipped").inspect()]
    assert {each["id"]: int(each["name"].split()[1]) for each in found} == sent
    assert sorted(each["tries"] for each in found) == [1, 1, 2]
    assert client.queue("films").counts().total == client.queue("films-ship").counts().total == 0


def test_what_has_no_meaning_in_a_query_is_refused(spark: SparkSession) -> None:
    """Before anything is begun; the text says what to use instead."""

    def work(_message: Any, _state: Any) -> None:
        """Do nothing."""

    refused: tuple[tuple[dict[str, Any], str], ...]
    refused = (
        ({"retry_delay_s": 1}, "retry_delay_s would have the whole micro-batch wait"),
        ({"must_save": True}, 'between="queues"'),
        ({"timeout_s": 1, "batch": "arrow"}, "timeout_s has no meaning"),
        ({"isolate": "process", "timeout_s": 1}, "a process for each message"),
        ({"cores": 2}, "cores, gpus, memory and queue mean nothing"),
    )
    for settings, told in refused:
        made = Pipeline("films").stage("work", work, **settings)
        with pytest.raises(ValueError, match=told):
            made.stream(spark, checkpoint="/nowhere")
    made = Pipeline("films").stage("work", work)
    refused = (
        ({"checkpoint": ""}, "checkpoint is empty"),
        ({"checkpoint": "c", "max_messages": 10_001}, "max_messages is 10001; 1 to 10,000"),
        ({"checkpoint": "c", "between": "queues", "trigger": NOW}, "availableNow"),
        ({"checkpoint": "c", "options": {"streamid": "x"}}, "streamid are set by the pipeline"),
        ({"checkpoint": "c", "queue": "memory:///films"}, "has no claims"),
    )
    for settings, told in refused:
        with pytest.raises(ValueError, match=told):
            made.stream(spark, **settings)


def test_a_frame_of_messages_is_transformed_without_a_queue(spark: SparkSession) -> None:
    """It is plain Spark: of a table as well, and with what comes after it in one plan."""
    rows = spark.createDataFrame(
        [("a", "film 1"), ("b", "film 7")], "message_id string, body string"
    )
    made = rows.transform(films().transform).where("outcome = 'done'").select("message_id", "state")
    [row] = made.collect()
    assert (row.message_id, row.state) == ("a", '{"name": "film 1", "shipped": true}')
    with pytest.raises(ValueError, match="no column body"):
        rows.select("message_id").transform(films().transform)
