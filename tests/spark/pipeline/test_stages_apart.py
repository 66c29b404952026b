"""One declaration, of which a Spark session does some stages and a plain worker others."""

from __future__ import annotations

import os
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from leasehold.client import Client
from leasehold.spark.pipeline import Pipeline
from leasehold.testing import InProcessServer
from leasehold.worker.adapters.specs import QueueSpec
from leasehold.worker.worker import Worker


@pytest.mark.long
def test_executors_and_a_worker_share_the_stages_of_a_pipeline(
    spark: SparkSession, server: InProcessServer, client: Client
) -> None:
    """Each film is scanned by executors, encoded by the worker, shipped by executors, and once."""

    def scan(message: Any, state: Any) -> Any:
        return [message.queue]

    def encode(message: Any, state: Any) -> Any:
        return [*state, message.queue]

    def ship(table: Any) -> Any:
        table["state"] = [[*state, "shipped"] for state in table["state"]]
        return table[["message_id", "state"]]

    pipeline = (
        Pipeline("films")
        .stage("scan", scan)
        .stage("encode", encode, queue="films-gpu")
        .stage("ship", ship, queue="films-out", batch="pandas")
    )
    for name in ("films-gpu", "films-out"):
        client.queue(name).create()
    sent = {client.queue("films").put(f"film-{number}").id for number in range(40)}
    gpu = QueueSpec("leasehold", "films-gpu", server.connection_string)
    worker = Worker(pipeline.stages(results=True), gpu)
    working = threading.Thread(target=worker.run, kwargs={"install_signals": False})
    working.start()
    try:
        settings: dict[str, Any] = {"connection": server.connection_string, "tasks": 1}
        first = pipeline.start(spark, **settings)
        last = pipeline.start(spark, queue="films-out", **settings)  # it waits for the others
        totals = [run.result().totals for run in (first, last)]
    finally:
        worker.stop()
        working.join()
    assert [each["done"] for each in totals] == [40, 40]
    assert [each["resumed"] for each in totals] == [0, 0]
    assert worker.snapshot().done == 40
    context: Any = spark.sparkContext
    jobs = [context.statusTracker().getJobIdsForGroup(run.id)[-1] for run in (first, last)]
    store = context._jsc.sc().statusStore()
    assert [store.job(job).description().get() for job in jobs] == [
        "pipeline films:films: scan",
        "pipeline films:films-out: ship",
    ]
    rows = (
        first.results()
        .selectExpr("origin_id", "outcome", "output", "stages.stage AS stages")
        .collect()
    )
    assert {row.origin_id for row in rows} == sent
    assert len(rows) == 40
    assert {(row.outcome, row.output) for row in rows} == {
        ("done", '["films","films-gpu","shipped"]')
    }
    assert {tuple(row.stages) for row in rows} == {("scan", "encode", "ship")}


@pytest.mark.slow
def test_processes_of_tasks_that_are_killed_lose_and_repeat_no_message(
    spark: SparkSession, server: InProcessServer, client: Client, tmp_path: Path
) -> None:
    """Spark begins the jobs again, and each film comes to its end once, through both queues."""
    log = tmp_path / "log"

    def work(message: Any, state: Any) -> Any:
        with log.open("a") as file:
            file.write(f"{os.getpid()}\n")
        time.sleep(0.1)
        return [*(state or []), message.queue]

    pipeline = Pipeline("films").stage("scan", work).stage("encode", work, queue="films-gpu")
    client.queue("films-gpu").create()
    sent = {client.queue("films").put(f"film-{number}").id for number in range(400)}
    settings = {"connection": server.connection_string, "tasks": 1, "at_once": 4, "restarts": 50}
    runs = [pipeline.start(spark, queue=name, **settings) for name in ("films", "films-gpu")]
    killed: set[int] = set()
    while len(killed) < 6:
        time.sleep(0.5)
        alive = set(map(int, log.read_text().split()[-20:] if log.exists() else ())) - killed
        for pid in alive:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        killed |= alive
    for run in runs:
        run.result().close()
    rows = runs[0].results().select("origin_id", "outcome", "output").collect()
    assert sorted(row.origin_id for row in rows) == sorted(sent)
    assert {(row.outcome, row.output) for row in rows} == {("done", '["films","films-gpu"]')}
