"""What those see who watch a run: its handle, its listeners, and the pages of Spark."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from pyspark.sql import SparkSession

from leasehold.client import Client
from leasehold.spark.pipeline import Pipeline, PipelineFailed, PipelineListener
from leasehold.testing import InProcessServer
from tests.patience import PATIENCE_S


class Heard(PipelineListener):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.events: list[Any] = []
        self.has_progress = threading.Event()

    def onPipelineStarted(self, event: Any) -> None:  # noqa: N802 - of Spark
        self.events.append(event)

    def onPipelineProgress(self, event: Any) -> None:  # noqa: N802 - of Spark
        self.events.append(event)
        if event.progress.done:
            self.has_progress.set()
        raise RuntimeError("a listener that fails does no harm")

    def onPipelineTerminated(self, event: Any) -> None:  # noqa: N802 - of Spark
        self.events.append(event)


def films() -> Pipeline:
    """Return a pipeline whose second stage fails once for one film."""

    def scan(message: Any, state: Any) -> Any:
        return state

    def encode(message: Any, state: Any) -> None:
        if message.text == "film-3" and message.attempt == 1:
            raise RuntimeError("a bad reel")

    return Pipeline("films").stage("scan", scan).stage("encode", encode, retries=1)


def test_a_handle_can_be_used_as_a_streaming_query(
    spark: SparkSession, server: InProcessServer, client: Client
) -> None:
    """Its listener hears of the start, of progress and of the end; results are a DataFrame."""
    client.queue("films").put_many([f"film-{number}" for number in range(10)])
    heard = Heard()
    run = films().start(
        spark,
        connection=server.connection_string,
        tasks=1,  # of two, so that there is room for the query of the results
        continuous=True,
        listeners=[heard],
        progress_s=0.1,
    )
    assert run.isActive
    assert run.awaitTermination(0.01) is False
    assert heard.has_progress.wait(PATIENCE_S)
    last = run.lastProgress
    assert last is not None
    assert last.done
    while run.progress().done < 10:
        run.wait(0.05)
    results = run.dataframe()
    assert results.where("outcome = 'done'").select("message_id").distinct().count() == 10
    run.stop(10)
    assert run.awaitTermination() is None
    assert (run.isActive, run.exception()) == (False, None)
    assert run.recentProgress[-1].done == 10
    kinds = [type(each).__name__ for each in heard.events]
    assert kinds[0] == "PipelineStartedEvent"
    assert kinds[-1] == "PipelineTerminatedEvent"
    assert set(kinds[1:-1]) == {"PipelineProgressEvent"}
    assert {(each.id, each.name) for each in heard.events} == {(run.id, "films")}
    assert heard.events[-1].progress.done == 10
    run.result().close()


def test_a_run_that_fails_says_so_to_whoever_waits_for_it(
    spark: SparkSession, server: InProcessServer, client: Client
) -> None:
    """The listener is told the reason, too."""
    queue = client.queue("films")
    queue.put("a film that somebody else has, so that the run waits for it")
    queue.receive(visibility_timeout_s=600)
    heard = Heard()
    run = films().start(spark, connection=server.connection_string, restarts=0, listeners=[heard])
    while run.progress().tasks == 0:
        run.wait(0.05)
    queue.delete()
    with pytest.raises(PipelineFailed, match="QueueMissing"):
        run.awaitTermination()
    assert "QueueMissing" in str(run.exception())
    assert "QueueMissing" in heard.events[-1].exception


def test_the_pages_of_spark_name_the_jobs_and_count_messages_by_stage(
    spark: SparkSession, server: InProcessServer, client: Client
) -> None:
    """Of the figures that the stage shows none is missing when it is over."""
    client.queue("films").put_many([f"film-{number}" for number in range(10)])
    run = films().start(spark, connection=server.connection_string, tasks=2)
    run.result().close()
    context: Any = spark.sparkContext
    tracker = context.statusTracker()
    (job,) = tracker.getJobIdsForGroup(run.id)
    store = context._jsc.sc().statusStore()
    assert store.job(job).description().get() == "pipeline films: scan, encode"
    (stage,) = tracker.getJobInfo(job).stageIds
    found = store.lastStageAttempt(stage).accumulatorUpdates()
    shown = {
        each.name(): float(each.value()) for each in (found.apply(i) for i in range(found.size()))
    }
    assert shown.pop("scan: seconds") > 0
    assert shown.pop("encode: seconds") > 0
    assert shown == {
        "scan: messages done": 10,
        "scan: messages failed": 0,
        "encode: messages done": 10,
        "encode: messages failed": 1,
    }
