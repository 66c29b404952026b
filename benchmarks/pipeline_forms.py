"""The two forms of a pipeline on Spark: workers on executors, and streaming queries.

``python -m benchmarks.pipeline_forms --out benchmarks/results/pipeline_forms.json`` starts
``leasehold serve`` with a store of its own and Spark with two cores beside it, on the same machine.
A queue of messages of 100 bytes goes through three stages that only count, in rounds:

- ``frame_arrow``, ``frame_message``: one streaming query, with functions of Arrow tables or of one
  message, that sends the last state of each message to another queue;
- ``frame_queues``: a streaming query for each stage, with queues between them;
- ``workers_arrow``, ``workers_message``: workers on executors.

The time is that from the start of the query or run until the queue is empty, planning included;
``later`` leaves out the first micro-batch of a query, in which Python processes start. ``cpu_us``
is the processor time of all processes, the server's too, for a message: on a machine that does
other work as well it says more than the time. All forms run once before anything is timed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import psutil
import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from benchmarks.keep_leases import connection
from benchmarks.long_poll import running_server
from benchmarks.single import Record, print_bars
from benchmarks.spark import session
from leasehold.client import Client
from leasehold.spark.pipeline import Pipeline, StageQueries

BODY: Final = b"x" * 100
STAGES: Final = ("one", "two", "three")
FORMS: Final = (
    "frame_arrow",
    "frame_message",
    "frame_queues",
    "workers_arrow",
    "workers_message",
)
BARS: Final = {"frame_arrow_messages_per_s": (">=", 5_000)}
_STAGE_ROWS: Final = 10_000


def count_table(table: Any) -> Any:
    """Count one more for each row."""
    states = [str(int(state) + 1 if state != "null" else 1) for state in table["state"].to_pylist()]
    return pa.table({"state": states})


def count_message(_message: Any, state: int | None) -> int:
    """Count one more."""
    return (state or 0) + 1


def pipeline(queue: str, *, batch: bool) -> Pipeline:
    """Return three stages that count."""
    made = Pipeline(queue)
    for name in STAGES:
        if batch:
            made.stage(name, count_table, batch="arrow", rows=5_000)
        else:
            made.stage(name, count_message)
    return made


class Bench:
    """A session, a server, and a folder.

    Args:
        spark: The session.
        port: Of the server.
        folder: For checkpoints.
        server: Its process.
    """

    def __init__(
        self, spark: SparkSession, port: int, folder: Path, server: psutil.Process
    ) -> None:
        self._spark = spark
        self._server = server
        self._text = connection(port)
        self._client = Client.from_connection_string(self._text)
        self._folder = folder
        self._runs = 0

    def cpu_s(self) -> float:
        """Return the processor time so far of all processes, in seconds."""
        own = psutil.Process()
        total = 0.0
        for process in {own, self._server, *own.children(recursive=True)}:
            with suppress(psutil.NoSuchProcess):
                times = process.cpu_times()
                total += times.user + times.system + times.children_user + times.children_system
        return total

    def frame(self, count: int, *, batch: bool) -> tuple[float, float]:
        """Return messages per second of one query, and without its first micro-batch."""
        queue = self._filled(count)
        out = f"{queue}-out"
        self._client.create_queue(out)
        began = time.perf_counter()
        query = self._stream(queue, batch=batch, to=out, trigger={"availableNow": True})
        assert isinstance(query, StreamingQuery)
        query.awaitTermination()
        took_s = time.perf_counter() - began
        self._check(out, count)
        later = [each for each in query.recentProgress if each["numInputRows"]][1:]
        rows = sum(each["numInputRows"] for each in later)
        later_s = sum(each["durationMs"]["triggerExecution"] for each in later) / 1000
        return count / took_s, rows / later_s if later else 0.0

    def queues(self, count: int) -> float:
        """Return messages per second of a query for each stage."""
        queue = self._filled(count)
        out = f"{queue}-out"
        self._client.create_queue(out)
        began = time.perf_counter()
        queries = self._stream(queue, batch=True, to=out, between="queues")
        assert isinstance(queries, StageQueries)
        try:
            while self._client.queue(out).counts().visible < count:
                if not queries.isActive:
                    queries.awaitTermination()
                threading.Event().wait(0.05)
            took_s = time.perf_counter() - began
        finally:
            queries.stop()
        self._check(out, count)
        return count / took_s

    def workers(self, count: int, *, batch: bool) -> float:
        """Return messages per second of workers on executors."""
        queue = self._filled(count)
        began = time.perf_counter()
        made = pipeline(queue, batch=batch)
        report = made.run(self._spark, connection=self._text, show=None)
        took_s = time.perf_counter() - began
        if report.totals["done"] != count:
            raise RuntimeError(f"{report.totals['done']} of {count} are done")
        return count / took_s

    def _stream(self, queue: str, *, batch: bool, **settings: Any) -> StreamingQuery | StageQueries:
        return pipeline(queue, batch=batch).stream(
            self._spark,
            connection=self._text,
            checkpoint=str(self._folder / queue),
            options={"numPartitions": "2"},
            **settings,
        )

    def _check(self, out: str, count: int) -> None:
        if (found := self._client.queue(out).counts().visible) != count:
            raise RuntimeError(f"{found} results of {count} messages")
        if any(message.body != b"3" for message in self._client.queue(out).peek(32)):
            raise RuntimeError("not all stages were done")

    def _filled(self, count: int) -> str:
        self._runs += 1
        queue = f"forms-{self._runs}"
        self._client.create_queue(queue)
        transaction = self._client.transaction(f"fill-{queue}")
        for start in range(0, count, _STAGE_ROWS):
            bodies = pa.array([BODY] * min(_STAGE_ROWS, count - start), pa.binary())
            transaction.stage_arrow(pa.record_batch({"body": bodies}), queue=queue)
        transaction.publish()
        return queue


def measure(
    bench: Bench, rounds: int, messages: int, workers: int, forms: Sequence[str]
) -> dict[str, list[float]]:
    """Warm everything up, then measure some rounds, in turn."""
    found: dict[str, list[float]] = {}

    def note(name: str, figure: float) -> None:
        found.setdefault(name, []).append(round(figure, 1))
        print(f"{name}: {figure:,.1f}", file=sys.stderr, flush=True)

    parts: dict[str, Callable[[int], tuple[float, ...]]] = {
        "frame_arrow": lambda count: bench.frame(count, batch=True),
        "frame_message": lambda count: bench.frame(count, batch=False),
        "frame_queues": lambda count: (bench.queues(count),),
        "workers_arrow": lambda count: (bench.workers(count, batch=True),),
        "workers_message": lambda count: (bench.workers(count, batch=False),),
    }

    def part(name: str, count: int) -> None:
        before_s = bench.cpu_s()
        whole, *later = parts[name](count)
        note(f"{name}_messages_per_s", whole)
        note(f"{name}_cpu_us", (bench.cpu_s() - before_s) / count * 1e6)
        for figure in later:
            note(f"{name}_later_messages_per_s", figure)

    for name in forms:
        part(name, 1_000)
    found.clear()
    for _ in range(rounds):
        for name in forms:
            part(name, messages if name.startswith("frame") else workers)
    return found


def main() -> None:
    """Measure, print the bars, and write everything down."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--messages", type=int, default=200_000, help="of streaming queries")
    parser.add_argument("--worker-messages", type=int, default=20_000)
    parser.add_argument("--forms", nargs="+", default=FORMS, choices=FORMS)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    record = Record("pipeline_forms")
    with (
        tempfile.TemporaryDirectory(prefix="bench-forms-") as folder,
        running_server(100, ()) as (port, server),
        session(None, {"spark.python.authenticate.socketTimeout": "300s"}) as spark,
    ):
        bench = Bench(spark, port, Path(folder), server)
        counts = (given.messages, given.worker_messages)
        found = measure(bench, given.rounds, *counts, given.forms)
    summary = {name: statistics.median(figures) for name, figures in found.items()}
    print(json.dumps(summary, indent=1))
    print_bars(summary, {name: BARS[name] for name in BARS if name in summary}, digits=1)
    if given.out:
        sizes = {"messages": given.messages, "worker_messages": given.worker_messages}
        record.write(given.out, {**sizes, "summary": summary, "rounds": found})


if __name__ == "__main__":
    main()
