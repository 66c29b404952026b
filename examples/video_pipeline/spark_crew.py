"""The executors: a Spark cluster of our own, a pipeline on it, and the accidents that happen."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final, Self

from examples.video_pipeline.crew import REPOSITORY
from examples.video_pipeline.on_spark import Stage
from examples.video_pipeline.results import ResultQueries, Results
from examples.video_pipeline.work import STAGES, WEIGHTS
from examples.video_pipeline.worker import HOLD_AT_MOST_S, MAX_DELIVERIES, RETRY_DELAY_S

from leasehold.spark.cluster import Cluster, Executor, running_cluster
from leasehold.spark.pipeline import Pipeline, PipelineFailed, PipelineRun
from leasehold.spark.session import cluster_session
from leasehold.worker.leases import LeaseSettings
from leasehold.worker.retry_policy import PoisonRule, RetryRule

STAGE_TIMEOUT_S: Final = 600.0
EXECUTOR_MEMORY: Final = "512m"
_TOUCH_S: Final = 0.5


class SparkCrew:
    """A master and workers with one executor each, on which a pipeline runs; ends with the block.

    Executors are called ``executor-0``, ``executor-1``, … A worker starts a successor for one that
    dies, which has a new number.
    """

    def __init__(
        self, root: Path, *, connection_string: str, queue: str, lease_s: int, workers: int
    ) -> None:
        self._root = root
        self._connection_string = connection_string
        self._queue = queue
        self._lease_s = lease_s
        self._workers = workers
        self._stack = ExitStack()
        self._cluster: Cluster
        self._spark: Any = None
        self._run: PipelineRun | None = None
        self._results: ResultQueries | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._run is not None and not self._run.is_over:
            self._run.cancel()
        self._stack.close()

    def prepare(self, say: Callable[[str], None]) -> None:
        """Start cluster and driver, and tell of each step: all of them take long."""
        workers = self._workers + 1
        say(f"Starting a Spark cluster of a master and {workers} workers …")
        folder = self._root / "spark"
        self._cluster = self._stack.enter_context(
            # One more, for what is asked of the results while all others are busy.
            running_cluster(workers=workers, cores=1, folder=folder)
        )
        say(f"Starting a driver for {self._cluster.master} …")
        paths = os.pathsep.join((str(REPOSITORY), str(REPOSITORY / "src")))
        with _stderr_to(self._root / "logs" / "spark-driver.log"):
            session = cluster_session(
                self._cluster.master,
                name="video pipeline",
                quick=True,
                **{
                    "spark.driver.host": "127.0.0.1",
                    "spark.driver.bindAddress": "127.0.0.1",
                    "spark.executor.memory": EXECUTOR_MEMORY,
                    "spark.executor.cores": 1,
                    "spark.executorEnv.PYTHONPATH": paths,
                    "spark.sql.shuffle.partitions": 1,
                },
            )
        self._spark = self._stack.enter_context(session)
        say(f"Starting the executors of Spark {session.version} …")
        self._warm_up()
        self._results = ResultQueries(self._spark, self._root, self._connection_string, self._queue)
        self._stack.callback(self._results.stop)
        self._results.start()
        say(f"{workers} executors are ready.")

    def _warm_up(self) -> None:
        """Let every executor start its Python and import what the stages need.

        The first task of a Python worker waits some seconds for that, which would be told as the
        time that messages wait.
        """
        width = self._workers + 1

        def touch(batches: Iterator[Any]) -> Iterator[Any]:
            from leasehold.spark.pipeline import task  # noqa: F401, PLC0415 - to have it imported

            time.sleep(_TOUCH_S)  # so that one executor does not get through all tasks
            yield from batches

        self._spark.range(0, width, 1, width).mapInArrow(touch, "id long").toArrow()

    def begin(self, began_s: float) -> None:
        """Let the pipeline run on all executors until it is told to stop."""
        # It tells of restarts there; what has become of messages is told by the story.
        log = logging.FileHandler(self._root / "logs" / "pipeline.log")
        self._stack.callback(log.close)
        logging.getLogger("leasehold.spark").addHandler(log)
        pipeline = Pipeline(self._queue)
        for name in STAGES:
            pipeline.stage(
                name,
                Stage(name, self._root, began_s),
                timeout_s=STAGE_TIMEOUT_S,
                weight=WEIGHTS[name],
            )
        self._run = pipeline.start(
            self._spark,
            connection=self._connection_string,
            continuous=True,
            tasks=self._workers,
            at_once=1,
            prefetch=0,
            lease=LeaseSettings.of(self._lease_s, HOLD_AT_MOST_S),
            retries=RetryRule(kind="fixed", initial_s=RETRY_DELAY_S, jitter=0),
            poison=PoisonRule(max_failures=MAX_DELIVERIES),
        )

    def replace(self) -> None:
        """Do nothing: Spark starts an executor in place of one that died."""

    def kill(self, name: str) -> None:
        """End an executor, its Python and its ffmpeg at once."""
        self._cluster.kill(self._named(name))

    def suspend(self, name: str) -> None:
        """Let an executor, its Python and its ffmpeg stand still, as a machine that hangs."""
        self._cluster.suspend(self._named(name))

    def wake(self, name: str) -> None:
        """Let a suspended executor go on as if no time had passed."""
        self._cluster.wake(self._named(name))

    def vanished(self) -> list[str]:
        """Return what has ended although nobody wanted it."""
        return ["pipeline"] if self._run is not None and self._run.is_over else []

    def dismiss(self, within_s: float) -> list[str]:
        """Ask the pipeline to stop; return what is wrong with how it did."""
        assert self._run is not None
        self._run.stop(within_s)
        if not self._run.wait(within_s):
            return [f"the pipeline did not end within {within_s:g} s"]
        try:
            self._run.result()
        except PipelineFailed as error:
            return [f"the pipeline failed: {error}"]
        return []

    def report(self) -> list[dict[str, Any]]:
        """Return what the pipeline says of each delivery, once it is over."""
        if self._run is None or not self._run.is_over:
            return []
        try:
            rows: list[dict[str, Any]] = self._run.result().deliveries().to_pylist()
        except PipelineFailed:
            return []
        return rows

    def results(self) -> Results | None:
        """Return what became of the messages, once the pipeline is over."""
        return None if self._results is None else self._results.read()

    def _named(self, name: str) -> Executor:
        number = name.removeprefix("executor-")
        return next(each for each in self._cluster.executors() if each.id == number)


@contextmanager
def _stderr_to(path: Path) -> Iterator[None]:
    """Let programs started within the block write their complaints to a file.

    The driver's Java keeps it for its whole life. It complains at length of executors that die,
    which here is part of the story.
    """
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        with path.open("ab") as file:
            os.dup2(file.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
