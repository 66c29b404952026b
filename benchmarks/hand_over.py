"""Planned hand-over: executors that are decommissioned within a stage of ten minutes.

``python -m benchmarks.hand_over --out benchmarks/results/hand_over.json`` starts ``leasehold
serve`` and a standalone Spark cluster with two workers of one core. A stage is ten minutes of work
by its own measure, in steps of a tenth of a second, and saves how far it is after each five seconds
of work; between them it only checks, as an encoder does that can save at few points. In each try an
executor that has such messages is decommissioned at a random moment, by turns

- with SIGPWR, as Kubernetes' script does it when a pod is to go;
- by the driver, as dynamic allocation does it.

The stages write down each step, so that the figures do not depend on what Leasehold says of itself:
``lost_s`` is the work that was done again, from the last checkpoint to the stop, ``lost_wall_s``
the time it had taken on this machine, and ``gap_s`` the time from the last step on one executor to
the first on the other. Leases last ten minutes, and an executor that ends without notice is missed
after 15 seconds: a gap below both has waited for neither. When all messages of the executor went on
elsewhere they are ended, and the next try begins with new ones in the same cluster, once Spark has
started another executor. ``--how kill`` is a control: SIGKILL, which nobody can hand over after.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyspark
from pyspark.sql import SparkSession

from benchmarks.keep_leases import connection
from benchmarks.long_poll import running_server
from benchmarks.single import Record, print_bars
from leasehold.client import Client
from leasehold.spark.cluster import (
    Cluster,
    Executor,
    processes,
    running_cluster,
    with_descendants,
)
from leasehold.spark.pipeline import Pipeline, PipelineRun
from leasehold.spark.session import cluster_session

STAGE_S: Final = 600.0
SAVED_EVERY_S: Final = 5.0
LEASE_S: Final = 600
FILMS: Final = 3
"""Messages of one try; an executor works on four at a time, so that one is enough for all."""
HOWS: Final = ("signal", "driver")
CONTROL: Final = "kill"
GAP_S: Final = 10.0
"""Longer gaps have waited for something."""
BARS: Final = {"lost_max_s": ("<=", SAVED_EVERY_S), "gap_max_s": ("<=", GAP_S)}
_STEP_S: Final = 0.1
_LATEST_S: Final = 12.0
"""An executor is decommissioned so long after its messages were begun, at most."""
_PATIENCE_S: Final = 300.0
_LOOK_EVERY_S: Final = 0.05
_QUEUE: Final = "films"
_ROOT: Final = Path(__file__).resolve().parents[1]


class Step(NamedTuple):
    """Work that was done."""

    fence: int
    pid: int
    number: int
    """Of the step in its stage, from 1."""
    at_s: float
    """When it was over, on the clock that all processes share."""


class HandedOver(NamedTuple):
    """What a hand-over has cost a message."""

    lost_s: float
    """Work that was done again, by the measure of the stage."""
    lost_wall_s: float
    """How long it had taken."""
    gap_s: float
    """From its last step on the one executor to its first on the other."""
    stop_s: float
    """From the decommissioning to its last step on the first; 0: there was none after it."""


def film(folder: Path) -> Callable[[Any, Any], None]:
    """Return the stage; a file ``MESSAGE.enough`` in *folder* ends a message."""
    step_s, place = _STEP_S, str(folder)
    steps, saved_every = round(STAGE_S / _STEP_S), round(SAVED_EVERY_S / _STEP_S)

    def encode(message: Any, state: Any) -> None:
        done = (state or {}).get("steps", 0)
        path = os.path.join(place, message.text)  # noqa: PTH118 - a string crosses to executors
        while done < steps and not os.path.exists(path + ".enough"):  # noqa: PTH110
            time.sleep(step_s)
            done += 1
            line = f"{message.fence} {os.getpid()} {done} {time.monotonic()}\n"
            file = os.open(path, os.O_APPEND | os.O_CREAT | os.O_WRONLY)
            os.write(file, line.encode())
            os.close(file)
            if done % saved_every == 0:
                message.checkpoint({"steps": done}, fraction=done / steps)
            else:
                message.check()

    return encode


def steps_of(path: Path) -> list[Step]:
    """Return what was done of a message so far."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return []
    parts = [line.split() for line in lines]
    return [Step(int(one[0]), int(one[1]), int(one[2]), float(one[3])) for one in parts]


def handed_over(found: Sequence[Step], fence: int, asked_at_s: float) -> HandedOver | None:
    """Return what it has cost to hand over a message that was held with *fence*.

    None: No other executor has worked on it so far.
    """
    before = [each for each in found if each.fence <= fence]
    after = [each for each in found if each.fence > fence]
    if not after:
        return None
    last, first = before[-1], after[0]
    again = last.number - first.number + 1
    kept_at_s = max(
        (each.at_s for each in before if each.number < first.number),
        default=before[0].at_s - _STEP_S,
    )
    return HandedOver(
        lost_s=again * _STEP_S,
        lost_wall_s=last.at_s - kept_at_s if again else 0.0,
        gap_s=first.at_s - last.at_s,
        stop_s=max(last.at_s - asked_at_s, 0.0),
    )


def wait_until(is_so: Callable[[], bool], what: str) -> None:
    """Wait for what happens elsewhere.

    Raises:
        TimeoutError: It does not.
    """
    give_up_at_s = time.monotonic() + _PATIENCE_S
    while not is_so():
        if time.monotonic() > give_up_at_s:
            raise TimeoutError(what)
        time.sleep(_LOOK_EVERY_S)


class Bench:
    """A cluster, a run, and who decommissions executors.

    Args:
        spark: The driver.
        cluster: On which it is.
        client: Of the server.
        run: The pipeline.
        folder: To which the stages write.
        seed: Of the moments.
    """

    def __init__(  # noqa: PLR0913 - what there is in a try
        self,
        spark: SparkSession,
        cluster: Cluster,
        client: Client,
        *,
        run: PipelineRun,
        folder: Path,
        seed: int,
    ) -> None:
        self._spark = spark
        self._cluster = cluster
        self._queue = client.queue(_QUEUE)
        self._run = run
        self._folder = folder
        self._random = random.Random(seed)

    def one_try(self, number: int, how: str) -> dict[str, Any]:
        """Decommission an executor that has messages; return what became of them."""
        began_s = time.monotonic()
        wait_until(lambda: self._run.progress().tasks == 2, "there are not two tasks")
        names = [f"film-{number}-{place}" for place in range(FILMS)]
        self._queue.put_many(names)
        paths = [self._folder / name for name in names]
        wait_until(lambda: all(map(steps_of, paths)), "not all messages were begun")
        time.sleep(self._random.uniform(0, _LATEST_S))

        leaving, held = self._held(paths)
        asked_at_s = time.monotonic()
        if how == CONTROL:
            self._cluster.kill(leaving)
        elif how == "signal":
            os.kill(leaving.pid, signal.SIGPWR)
        else:
            self._decommission(leaving.id)

        def costs() -> list[HandedOver | None]:
            return [handed_over(steps_of(path), fence, asked_at_s) for path, fence in held.items()]

        try:
            wait_until(lambda: all(costs()), "they were not handed over")
        finally:
            for path in paths:
                path.with_name(f"{path.name}.enough").touch()
        wait_until(lambda: self._queue.counts().total == 0, "they did not end")
        wait_until(lambda: leaving not in self._cluster.executors(), "the executor did not end")
        messages = [cost._asdict() for cost in costs() if cost is not None]
        return {
            "how": how,
            "messages": [
                {name: round(value, 3) for name, value in each.items()} for each in messages
            ],
            "seconds": round(time.monotonic() - began_s, 1),
        }

    def _held(self, paths: Sequence[Path]) -> tuple[Executor, dict[Path, int]]:
        """Return an executor, and the messages on which it works with their fences."""
        last = {path: steps_of(path)[-1] for path in paths}
        pid = self._random.choice(sorted({each.pid for each in last.values()}))
        every = processes()
        leaving = next(
            each for each in self._cluster.executors() if pid in with_descendants(every, each.pid)
        )
        own = with_descendants(every, leaving.pid)
        return leaving, {path: each.fence for path, each in last.items() if each.pid in own}

    def _decommission(self, executor: str) -> None:
        context: Any = self._spark.sparkContext
        java, backend = context._jvm, context._jsc.sc().schedulerBackend()  # noqa: SLF001 - no other way
        why = java.org.apache.spark.scheduler.ExecutorDecommissionInfo(
            "it is not needed", java.scala.Option.apply(None)
        )
        backend.decommissionExecutor(executor, why, False, False)


@contextmanager
def running(folder: Path, seed: int) -> Iterator[Bench]:
    """Run server, cluster and pipeline while the block runs."""
    films = folder / "films"
    films.mkdir()
    paths = os.pathsep.join((str(_ROOT / "src"), str(_ROOT)))
    conf = {
        "spark.executor.memory": "512m",
        "spark.driver.memory": "512m",
        "spark.decommission.enabled": "true",
        "spark.executorEnv.PYTHONPATH": paths,
        # Each executor that ends would count as a failure of the application.
        "spark.deploy.maxExecutorRetries": "-1",
    }
    with (
        running_server(256, ()) as (port, _),
        running_cluster(workers=2, memory="700m", folder=folder / "cluster") as cluster,
        Client.from_connection_string(connection(port)) as client,
    ):
        client.queue(_QUEUE).create()
        spark = cluster_session(cluster.master, name="hand-over", quick=True, **conf)
        spark.sparkContext.setLogLevel("OFF")
        run = (
            Pipeline(_QUEUE)
            .stage("encode", film(films))
            .start(
                spark,
                connection=connection(port),
                lease=LEASE_S,
                at_once=4,
                prefetch=1,
                continuous=True,
            )
        )
        try:
            yield Bench(spark, cluster, client, run=run, folder=films, seed=seed)
        finally:
            run.stop(1)
            run.wait(_PATIENCE_S)
            spark.stop()


def summary(tries: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Return what matters of all tries."""
    messages = [each for one in tries for each in one["messages"]]
    found: dict[str, float] = {"tries": len(tries), "messages": len(messages)}
    for name in HandedOver._fields:
        values = [each[name] for each in messages]
        found[name.replace("_s", "_median_s")] = round(statistics.median(values), 3)
        found[name.replace("_s", "_max_s")] = max(values)
    found["tries_that_met_both"] = sum(
        all(
            0 <= each["lost_s"] <= SAVED_EVERY_S and each["gap_s"] <= GAP_S
            for each in one["messages"]
        )
        for one in tries
    )
    return found


def main() -> int:
    """Do all tries, and say whether each was good enough; what failed is in the record."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.hand_over", description=__doc__)
    parser.add_argument("--tries", type=int, default=50, help="how many (50)")
    parser.add_argument("--seed", type=int, default=1, help="of the moments (1)")
    parser.add_argument("--how", choices=[*HOWS, CONTROL], action="append", help="only like this")
    parser.add_argument("--out", type=Path, help="write the record to this file")
    options = parser.parse_args()
    hows = options.how or HOWS
    record = Record("hand_over")
    tries: list[dict[str, Any]] = []
    with (
        tempfile.TemporaryDirectory(prefix="hand-over-") as folder,
        running(Path(folder), options.seed) as bench,
    ):
        for number in range(options.tries):
            tries.append(bench.one_try(number, hows[number % len(hows)]))
            print(json.dumps(tries[-1]), flush=True)
            if options.out:
                content = {"seed": options.seed, "pyspark": pyspark.__version__}
                content |= {"summary": summary(tries), "tries": tries}
                record.write(options.out, content)
    found = summary(tries)
    print_bars(found, BARS, 2)
    return int(found["tries_that_met_both"] < options.tries)


if __name__ == "__main__":
    sys.exit(main())
