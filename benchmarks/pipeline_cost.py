"""What a pipeline on Spark costs for each message, by process: driver, JVM, executors, server.

``python -m benchmarks.pipeline_cost --out benchmarks/results/pipeline_cost.json`` starts
``leasehold serve`` with a store of its own and Spark with two cores beside it, on the same machine,
and in each round has a queue worked off by pipelines of three stages that do nothing:

- ``messages``: functions of one message, as pipelines are by default;
- ``saved``: the same with ``must_save`` for each stage, so that each message is saved twice;
- ``arrow``: functions of a table of Arrow.

Processor time is that of the processes: this one, which is the driver's Python; the JVM; the Python
processes below it, which do the stages; and the server. Local mode has one JVM for driver and
executors. The time for the start of the run, its tasks and their imports is in it, so there have to
be enough messages.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import psutil
from pyspark.sql import SparkSession

from benchmarks.keep_leases import connection
from benchmarks.long_poll import running_server
from benchmarks.single import Record, print_bars
from benchmarks.worker_overhead import QUEUE, STAGES, cpu_s, fill, spec_of
from leasehold.spark.pipeline import Pipeline
from leasehold.spark.session import local_session
from leasehold.worker.adapters import QueueClient

MESSAGES: Final = 40_000
TASKS: Final = 2
_CONNECTIONS: Final = 100
_WARM: Final = 2_000

BARS: Final = {
    "messages_messages_per_s": (">=", 1_000),
    "arrow_messages_per_s": (">=", 5_000),
}


def pipeline_of(kind: str) -> Pipeline:
    """Return a pipeline of stages that do nothing; the functions travel to the executors."""

    def run(_message: Any, _state: Any) -> dict[str, bool]:
        return {"done": True}

    def run_table(_table: Any) -> None:
        return

    pipeline = Pipeline(QUEUE)
    for name in STAGES:
        if kind == "arrow":
            pipeline.stage(name, run_table, batch="arrow")
        else:
            pipeline.stage(name, run, must_save=kind == "saved")
    return pipeline


KINDS: Final = ("messages", "saved", "arrow")


class Processes:
    """The processor time of everything that takes part, in seconds.

    Python processes of Spark may end before they are looked at: their time is that of their parents
    then, which a process tells as that of its children.
    """

    def __init__(self, server: psutil.Process) -> None:
        self._server = server
        self._own = psutil.Process()

    def times(self) -> dict[str, float]:
        """Return what each part has used so far."""
        jvm, executors = 0.0, 0.0
        for each in self._own.children(recursive=True):
            if each.pid == self._server.pid:
                continue
            with contextlib.suppress(psutil.NoSuchProcess):
                spent = each.cpu_times()
                if "java" in each.name():
                    jvm += spent.user + spent.system
                else:
                    executors += sum(spent[:4])
        return {
            "driver": cpu_s(self._own),
            "jvm": jvm,
            "executors": executors,
            "server": cpu_s(self._server),
        }


def measure(
    client: QueueClient, processes: Processes, count: int, act: Callable[[], Any]
) -> dict[str, float]:
    """Fill the queue, have it worked off, and say what that took."""
    fill(client, count)
    time.sleep(1.5)  # the server's maintenance after the fill is no part of this
    before, began = processes.times(), time.perf_counter()
    act()
    seconds, after = time.perf_counter() - began, processes.times()
    if left := client.depth().total:
        raise RuntimeError(f"{left} messages were left over")
    costs = {f"{part}_cpu_us": (after[part] - before[part]) / count * 1e6 for part in before}
    return {name: round(each, 2) for name, each in {"per_s": count / seconds, **costs}.items()}


def _session() -> SparkSession:
    return local_session(cores=TASKS, name="pipeline-cost", spark_driver_memory="512m")


def measure_all(rounds: int, count: int, kinds: Sequence[str]) -> dict[str, list[dict[str, float]]]:
    """Measure everything against one server and in one session, by turns."""
    found: dict[str, list[dict[str, float]]] = {kind: [] for kind in kinds}
    with running_server(_CONNECTIONS, ()) as (port, server), _session() as spark:
        client = spec_of(port).open()
        client.create()
        processes = Processes(server)
        for number in range(-1, rounds):
            for kind, figures in found.items():

                def act(kind: str = kind) -> object:
                    settings = {"connection": connection(port), "tasks": TASKS, "show": None}
                    return pipeline_of(kind).run(spark, **settings)

                seen = measure(client, processes, _WARM if number < 0 else count, act)
                if number >= 0:
                    figures.append(seen)
                    print(kind, json.dumps(seen), file=sys.stderr, flush=True)
        client.close()
    return found


def main() -> None:
    """Measure, print the bars, and write everything down."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--messages", type=int, default=MESSAGES)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    record = Record("pipeline-cost")
    found = measure_all(given.rounds, given.messages, given.kinds)
    summary = {
        f"{kind}_{'messages_per_s' if name == 'per_s' else name}": round(
            statistics.median(each[name] for each in rounds), 2
        )
        for kind, rounds in found.items()
        for name in rounds[0]
    }
    print_bars(summary, {name: bar for name, bar in BARS.items() if name in summary}, digits=1)
    if given.out:
        record.write(given.out, {"messages": given.messages, "summary": summary, **found})


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
