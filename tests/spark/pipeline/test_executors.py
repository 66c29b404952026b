"""Executors that come and go: new ones get tasks, and those that leave hand over what they have."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pyspark.sql import SparkSession

from leasehold.client import Client
from leasehold.spark.cluster import Cluster, processes, running_cluster, with_descendants
from leasehold.spark.pipeline import Pipeline, PipelineRun
from leasehold.spark.session import cluster_session
from tests.e2e.server import Server
from tests.patience import PATIENCE_S

LEASE_S = 600
"""Far longer than the test may take: whatever comes again sooner did not wait for a lease."""
SMALL = {"spark.executor.memory": "512m", "spark.driver.memory": "512m"}


def wait_until(is_so: Callable[[], bool]) -> None:
    """Wait for what happens elsewhere; the test's time-out bounds it."""
    pause, tries = threading.Event(), 0
    while not is_so():
        assert (tries := tries + 1) < 3000, "it did not come to be so"
        pause.wait(0.02)


@contextmanager
def driver(cluster: Cluster, **conf: object) -> Iterator[SparkSession]:
    """Give a driver of the test's own; there must be no other session in the process."""
    assert SparkSession.getActiveSession() is None
    source = str(Path(__file__).parents[3] / "src")
    settings: dict[str, Any] = {**SMALL, "spark.executorEnv.PYTHONPATH": source, **conf}
    spark = cluster_session(cluster.master, quick=True, **settings)
    spark.sparkContext.setLogLevel("OFF")
    try:
        yield spark
    finally:
        spark.stop()


def rest(spark: SparkSession, what: str) -> Any:
    """Return what Spark's REST API says of its application."""
    context = spark.sparkContext
    address = f"{context.uiWebUrl}/api/v1/applications/{context.applicationId}/{what}"
    with urllib.request.urlopen(address, timeout=PATIENCE_S) as answer:
        return json.load(answer)


def scanned(stage: dict[str, Any]) -> float:
    """Return for how many messages the stage ``scan`` is done, as a stage of Spark shows it."""
    shown = {each["name"]: float(each["value"]) for each in stage["accumulatorUpdates"]}
    return shown.get("scan: messages done", 0)


def decommission(spark: SparkSession, executor: str) -> None:
    """Have an executor leave, as the master does when a machine is to go."""
    context: Any = spark.sparkContext
    java, backend = context._jvm, context._jsc.sc().schedulerBackend()
    why = java.org.apache.spark.scheduler.ExecutorDecommissionInfo(
        "its machine goes", java.scala.Option.apply(None)
    )
    backend.decommissionExecutor(executor, why, False, False)


def encoding(folder: Path, every_s: float) -> Pipeline:
    """Return a pipeline whose second stage saves after each step; each step leaves a line."""

    def scan(message: Any, state: Any) -> dict[str, int]:
        return {"step": 0}

    def encode(message: Any, state: Any) -> None:
        step = state["step"]
        while not (folder / "enough").exists():
            time.sleep(every_s)
            step += 1
            line = f"{message.text} {step} {message.fence} {os.getpid()} {time.monotonic()}\n"
            file = os.open(folder / "steps", os.O_APPEND | os.O_CREAT | os.O_WRONLY)
            os.write(file, line.encode())
            os.close(file)
            message.checkpoint({"step": step})

    return Pipeline("films").stage("scan", scan).stage("encode", encode)


class Step(NamedTuple):
    """A step that was done."""

    film: str
    number: int
    fence: int
    pid: int
    at_s: float


def steps(folder: Path) -> list[Step]:
    """Return what was done so far."""
    try:
        lines = (folder / "steps").read_text().splitlines()
    except OSError:
        return []
    parts = [line.split() for line in lines]
    return [Step(one[0], int(one[1]), int(one[2]), int(one[3]), float(one[4])) for one in parts]


def done_twice(folder: Path) -> list[tuple[str, int]]:
    """Return the steps that were done more than once."""
    counts = Counter((each.film, each.number) for each in steps(folder))
    return [step for step, count in counts.items() if count > 1]


@contextmanager
def encoding_run(
    spark: SparkSession, folder: Path, films: int, *, every_s: float = 0.5, **more: Any
) -> Iterator[tuple[PipelineRun, Client]]:
    """Give a run that encodes until there is a file ``enough``, which is there at the end."""
    with Server(folder / "data") as endpoint:
        client = Client.from_connection_string(endpoint.connection_string)
        queue = client.queue("films")
        queue.create()
        queue.put_many([f"film-{number}" for number in range(films)])
        run = encoding(folder, every_s).start(
            spark, connection=endpoint.connection_string, lease=LEASE_S, **more
        )
        try:
            yield run, client
            (folder / "enough").touch()
            report = run.result()
            assert report.totals["done"] == films
            assert queue.counts().total == 0
        finally:
            run.cancel()
            run.wait()
            client.close()


@pytest.mark.slow
@pytest.mark.parametrize("how", ["decommission", "SIGTERM"])
def test_an_executor_that_leaves_hands_over_and_no_step_is_done_twice(
    tmp_path: Path, how: str
) -> None:
    """Another executor goes on with the next step at once; only then does the first one end."""
    with (
        running_cluster(workers=2, memory="700m", folder=tmp_path / "cluster") as cluster,
        driver(cluster, spark_decommission_enabled="true") as spark,
        encoding_run(spark, tmp_path, 6, at_once=4, prefetch=1) as (_, client),
    ):
        wait_until(lambda: len({each.pid for each in steps(tmp_path)}) == 2)
        leaving = cluster.executors()[0]
        if how == "decommission":
            decommission(spark, leaving.id)
        else:
            os.kill(leaving.pid, signal.SIGTERM)
        wait_until(lambda: any(each.fence > 1 for each in steps(tmp_path)))
        wait_until(lambda: client.queue("films").counts().leased == 6)
        wait_until(lambda: leaving.pid not in {each.pid for each in cluster.executors()})
    assert not done_twice(tmp_path)


TRIES = 50


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_fifty_decommissions_lose_no_step_and_wait_for_no_lease(tmp_path: Path) -> None:
    """The pattern of a long stage with a checkpoint every five seconds, ten times as fast."""
    gaps_s: list[float] = []
    with (
        running_cluster(workers=2, memory="700m", folder=tmp_path / "cluster") as cluster,
        driver(cluster, spark_decommission_enabled="true") as spark,
        encoding_run(spark, tmp_path, 4, at_once=4, prefetch=1) as (run, _),
    ):
        for _ in range(TRIES):
            wait_until(lambda: run.progress().tasks == 2 and run.progress().in_work == 4)
            gaps_s += one_try(spark, cluster, tmp_path)
    assert not done_twice(tmp_path)
    assert len(gaps_s) >= TRIES
    assert max(gaps_s) < LEASE_S / 2


def one_try(spark: SparkSession, cluster: Cluster, folder: Path) -> list[float]:
    """Have an executor leave that has films; return how long each of them stood still."""
    before = len(steps(folder))
    wait_until(lambda: len(steps(folder)) > before + 8)
    last = {each.film: each for each in steps(folder)}
    pid = next(iter(last.values())).pid
    every = processes()
    leaving = next(one for one in cluster.executors() if pid in with_descendants(every, one.pid))
    held = {each.film: each.fence for each in last.values() if each.pid == pid}
    decommission(spark, leaving.id)
    wait_until(lambda: leaving.id not in {each.id for each in cluster.executors()})

    def gone_on() -> set[str]:
        return {one.film for one in steps(folder) if one.fence > held.get(one.film, one.fence)}

    wait_until(lambda: gone_on() == set(held))
    return gaps(steps(folder), held)


def gaps(found: list[Step], held: dict[str, int]) -> list[float]:
    """Return how long each film stood still, from its last step here to its next elsewhere."""
    made = []
    for film, fence in held.items():
        before = max(one.at_s for one in found if one.film == film and one.fence == fence)
        after = min(one.at_s for one in found if one.film == film and one.fence > fence)
        made.append(after - before)
    return made


@pytest.mark.slow
def test_an_executor_that_comes_later_gets_a_task(tmp_path: Path) -> None:
    """The run begins with one executor; a machine that joins the cluster works with it.

    Spark's REST API shows the jobs and what each stage has done.
    """
    with running_cluster(workers=2, memory="700m", folder=tmp_path / "cluster") as cluster:
        late = cluster.daemons[-1]
        os.kill(late.pid, signal.SIGSTOP)  # the master waits for it to begin an executor
        try:
            with (
                driver(cluster, spark_ui_enabled="true", spark_ui_port="0") as spark,
                encoding_run(spark, tmp_path, 16, at_once=4) as (run, _),
            ):
                wait_until(lambda: run.progress().in_work == 4)
                assert run.progress().tasks == 1
                os.kill(late.pid, signal.SIGCONT)
                wait_until(lambda: run.progress().tasks == 2)
                wait_until(lambda: run.progress().in_work == 8)
                assert run.progress().executors == 2
                names = {
                    "pipeline films: scan, encode",
                    "pipeline films: scan, encode (1 more task)",
                }
                assert {each["description"] for each in rest(spark, "jobs")} == names
                wait_until(lambda: all(scanned(each) >= 8 for each in rest(spark, "stages")))
        finally:
            os.kill(late.pid, signal.SIGCONT)


@pytest.mark.slow
def test_a_stage_that_needs_two_cores_gets_half_as_many_tasks(tmp_path: Path) -> None:
    """Of the executors that are there a task takes what the stage asks for."""

    def encode(message: Any, state: Any) -> None:
        time.sleep(0.2)

    pipeline = Pipeline("films").stage("encode", encode, cores=2)
    with (
        running_cluster(workers=2, cores=2, memory="700m", folder=tmp_path / "cluster") as cluster,
        driver(cluster, spark_executor_cores="2") as spark,
        Server(tmp_path / "data") as endpoint,
    ):
        with Client.from_connection_string(endpoint.connection_string) as client:
            client.queue("films").create()
            client.queue("films").put_many([f"film-{number}" for number in range(200)])
            wait_until(lambda: len(cluster.executors()) == 2)
            run = pipeline.start(spark, connection=endpoint.connection_string, at_once=1)
            seen = {0}
            while not run.wait(0.1):
                seen.add(run.progress().tasks)
            assert run.result().totals["done"] == 200
        assert max(seen) == 2


@pytest.mark.slow
def test_with_dynamic_allocation_tasks_follow_the_backlog_up_and_down(tmp_path: Path) -> None:
    """Executors are taken for what waits, and let go when there is nothing for them."""
    elastic: dict[str, object] = {
        "spark.dynamicAllocation.enabled": "true",
        "spark.dynamicAllocation.executorIdleTimeout": "3s",
        "spark.executor.cores": "1",
    }
    with (
        running_cluster(workers=2, memory="700m", folder=tmp_path / "cluster") as cluster,
        driver(cluster, **elastic) as spark,
        encoding_run(spark, tmp_path, 8, at_once=4, prefetch=1, continuous=True) as (run, client),
    ):
        wait_until(lambda: run.progress().tasks == 2)
        (tmp_path / "enough").touch()
        wait_until(lambda: client.queue("films").counts().total == 0)
        wait_until(lambda: len(cluster.executors()) == 1)
        assert not run.is_over
        run.stop(5)
