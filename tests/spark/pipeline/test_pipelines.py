"""Pipelines on executors: stages of one message and of many, stops, reports."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from leasehold.client import Client
from leasehold.spark.pipeline import Pipeline, PipelineFailed
from leasehold.testing import InProcessServer
from leasehold.worker.adapters import QueueMissing
from leasehold.worker.adapters.specs import QueueSpec
from leasehold.worker.errors import Poison
from leasehold.worker.retry_policy import PoisonRule
from leasehold.worker.worker import Worker
from tests.patience import PATIENCE_S


def wait_until(is_so: Callable[[], bool]) -> None:
    """Wait for what happens elsewhere; the test's time-out bounds it."""
    pause = threading.Event()
    while not is_so():
        pause.wait(0.02)


def three_stages() -> Pipeline:
    """Return a pipeline whose second stage takes many messages at once."""

    def scan(message: Any, state: Any) -> Any:
        if message.text.endswith("7"):
            raise Poison("not a film")
        return {"name": message.text}

    def measure(frame: Any) -> Any:
        frame["state"] = [{**state, "batch": len(frame)} for state in frame["state"]]
        return frame[["message_id", "state"]]

    def ship(message: Any, state: Any) -> None:
        assert state["name"] == message.text
        assert state["batch"] >= 1

    return (
        Pipeline("films")
        .stage("scan", scan, retries=1)
        .stage("measure", measure, batch="pandas", rows=64)
        .stage("ship", ship, timeout_s=60)
    )


def test_a_queue_is_worked_off_by_executors_and_each_message_is_accounted_for(
    spark: SparkSession,
    server: InProcessServer,
    client: Client,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Good messages are done, bad ones set aside with the reason; the report has all of them."""
    queue = client.queue("films")
    queue.put_many([f"film-{number}" for number in range(200)])
    report = three_stages().run(spark, connection=server.connection_string, tasks=2, show="json")
    try:
        counts = queue.counts()
        assert (counts.total, counts.poisoned) == (0, 20)
        frame = report.dataframe(spark)
        assert frame.count() == 200
        outcomes = {
            row["outcome"]: row["count"] for row in frame.groupBy("outcome").count().collect()
        }
        assert outcomes == {"done": 180, "poisoned": 20}
        poisoned = frame.filter("outcome = 'poisoned'").select("reason", "attempts").distinct()
        assert [tuple(row) for row in poisoned.collect()] == [("not a film", 1)]
        stages = frame.filter("outcome = 'done'").selectExpr("stages.stage").distinct().collect()
        assert [row["stage"] for row in stages] == [["scan", "measure", "ship"]]
        assert {each["task"] for each in report.deliveries().to_pylist()} <= {0, 1}
    finally:
        report.close()
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (last["event"], last["done"], last["poisoned"]) == ("end", 180, 20)
    assert last["stages"]["ship"]["done"] == 180


def test_a_continuous_run_goes_on_until_it_is_stopped(
    spark: SparkSession, server: InProcessServer, client: Client
) -> None:
    """What comes later is worked on as well; a stop ends it with nothing left on a lease.

    The results are those of this run, with what the stage returned.
    """
    queue = client.queue("films")
    queue.put("before")
    queue.complete(queue.receive(1)[0])
    pipeline = Pipeline("films").stage("scan", lambda message, state: {"film": message.text})
    run = pipeline.start(spark, connection=server.connection_string, tasks=1, continuous=True)
    for sent in (10, 20):
        queue.put_many([f"film-{number}" for number in range(10)])
        wait_until(lambda sent=sent: run.progress().done == sent)  # type: ignore[misc]  # bound now
    assert not run.is_over
    assert run.progress().tasks == 1
    run.stop(10)
    report = run.result()
    report.close()
    assert run.is_over
    assert report.totals["done"] == 20
    assert queue.counts().total == 0
    rows = run.results().selectExpr("outcome", "output", "stages.stage[0] AS stage").collect()
    assert {(row.outcome, row.stage) for row in rows} == {("done", "scan")}
    made = [json.loads(row.output)["film"] for row in rows]
    assert sorted(made) == sorted([f"film-{number}" for number in range(10)] * 2)


def test_sigterm_lets_what_is_in_work_finish_and_gives_back_the_rest(
    spark: SparkSession, server: InProcessServer, client: Client, tmp_path: Path
) -> None:
    """The signal reaches the executors, and the run returns its report."""
    queue = client.queue("films")
    queue.put_many([f"film-{number}" for number in range(30)])
    begun, go_on = tmp_path / "begun", tmp_path / "go-on"

    def scan(message: Any, state: Any) -> None:
        begun.touch()
        while not go_on.exists():
            time.sleep(0.02)

    def stop() -> None:
        wait_until(begun.exists)
        os.kill(os.getpid(), signal.SIGTERM)
        wait_until(lambda: queue.counts().leased <= 2)
        go_on.touch()

    thread = threading.Thread(target=stop)
    thread.start()
    pipeline = Pipeline("films").stage("scan", scan)
    report = pipeline.run(
        spark, connection=server.connection_string, tasks=1, at_once=2, prefetch=4, show=None
    )
    thread.join()
    report.close()
    counts = queue.counts()
    assert (counts.leased, counts.deferred) == (0, 0)
    assert 1 <= report.totals["done"] <= 2
    assert counts.visible == 30 - report.totals["done"]


def test_a_queue_that_is_not_there_is_said_before_spark_begins(
    spark: SparkSession, server: InProcessServer
) -> None:
    """And one that goes away meanwhile ends the run with the reason."""
    pipeline = Pipeline("books").stage("scan", lambda message, state: state)
    with pytest.raises(QueueMissing):
        pipeline.run(spark, connection=server.connection_string, show=None)
    with server.client() as client:
        books = client.queue("books")
        books.create()
        books.put("a book that somebody else reads, so that the run waits for it")
        books.receive(visibility_timeout_s=600)
        run = pipeline.start(spark, connection=server.connection_string, tasks=1, restarts=0)
        wait_until(lambda: run.progress().tasks == 1)
        books.delete()
        with pytest.raises(PipelineFailed, match="QueueMissing"):
            run.result()


def test_a_stage_that_never_looks_at_its_time_is_killed_with_its_process(
    spark: SparkSession, server: InProcessServer, client: Client
) -> None:
    """On an executor as well, with a function that no module has; others are not disturbed."""
    client.queue("films").put_many(["short", "endless"])

    def encode(message: Any, state: Any) -> dict[str, int]:
        while message.text == "endless":
            time.sleep(0.01)
        return {"pid": os.getpid()}

    def ship(message: Any, state: Any) -> None:
        assert state["pid"] != os.getpid()

    pipeline = Pipeline("films").stage("encode", encode, isolate="process", timeout_s=3)
    report = pipeline.stage("ship", ship).run(
        spark,
        connection=server.connection_string,
        poison=PoisonRule(max_failures=1),
        show=None,
    )
    rows = {row["outcome"]: row for row in report.messages().to_pylist()}
    report.close()
    assert set(rows) == {"done", "poisoned"}
    assert "took longer than 3 s" in rows["poisoned"]["reason"]


def test_a_run_and_a_plain_worker_share_a_queue_and_go_on_with_each_others_messages(
    spark: SparkSession, server: InProcessServer, client: Client
) -> None:
    """The same declaration is the handler of a worker without Spark."""
    queue = client.queue("films")
    queue.put("film")
    spec = QueueSpec("leasehold", "films", server.connection_string)
    here, begun = os.getpid(), threading.Event()

    def scan(message: Any, state: Any) -> dict[str, int]:
        return {"scanned": os.getpid()}

    def encode(message: Any, state: Any) -> None:
        if os.getpid() == state["scanned"]:  # whoever has it first stops in the middle
            begun.set()
            while True:
                message.check()
                time.sleep(0.02)

    whole = Pipeline("films").stage("scan", scan).stage("encode", encode)
    worker = Worker(whole.stages(), spec)
    worker.start()
    assert begun.wait(PATIENCE_S)
    worker.stop(0)

    def ship(message: Any, state: Any) -> None:
        assert state["scanned"] != os.getpid()
        assert state["scanned"] == here

    same = Pipeline("films").stage("scan", scan).stage("encode", ship)
    report = same.run(spark, connection=server.connection_string, tasks=1, show=None)
    (row,) = report.deliveries().to_pylist()
    report.close()
    assert (row["outcome"], row["resumed_at"]) == ("done", "encode")
