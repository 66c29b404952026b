"""Spark on a queue, measured against Spark on other things in the same run.

``python -m benchmarks.spark --out benchmarks/results/spark.json`` starts ``leasehold serve`` with a
store of its own and Spark with two cores beside it, on the same machine, and measures in rounds:

- ``read``: a queue of a million messages of 1 KiB, taken in claims of 100,000 into Spark's noop
  sink, settled; beside it the same rows made in memory by a Python source, in Parquet and in JSON;
- ``write``: a table of the same rows sent to a queue, staged and published;
- ``small``: what a micro-batch of 10 messages takes, beside one of 10 rows from memory;
- ``jdbc``, with ``--jdbc-jar`` and ``--jdbc-url``: the same rows in a table of a database, such as
  PostgreSQL, through Spark's own source. The table ``leasehold_bench`` is made anew.

Sessions, first queries and plans are warm before anything is timed. Beside each rate of ``read``,
``memory`` and ``write`` stands what a row took of the processors: of the server, until it has freed
the rows too, of Spark's Java, and of its Python workers. These hold on a machine with other work as
well, where the rates do not. With ``--rounds 3`` it takes some six minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

import psutil
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from benchmarks.exactly_once import cpu_s, wait_until_idle
from benchmarks.keep_leases import connection
from benchmarks.long_poll import running_server
from benchmarks.single import Record, print_bars
from benchmarks.spark_peers import BODY_BYTES, MemorySource
from benchmarks.workspace import MEASURED_PYTHON, environment
from leasehold.client import Client
from leasehold.spark.session import local_session

CLAIM: Final = 100_000
SMALL: Final = 10
SMALL_BATCHES: Final = 40
_STAGE: Final = 10_000
_TABLE: Final = "leasehold_bench"

BARS: Final = {
    "read_messages_per_s": (">=", 160_000),
    "write_messages_per_s": (">=", 120_000),
    "small_batch_over_memory_ms": ("<=", 30),
}


class Processors(NamedTuple):
    """Seconds of processor time."""

    server: float
    java: float
    workers: dict[int, float]
    """By process. Spark ends those that were idle for a minute, and nobody adds up what they had
    used."""

    @classmethod
    def now(cls, server: psutil.Process) -> Processors:
        """Return what a server, this process' Java and the Python below that have used."""
        java = next(each for each in psutil.Process().children() if "java" in each.name())
        workers = {}
        for each in java.children(recursive=True):
            with suppress(psutil.Error):
                workers[each.pid] = cpu_s(each)
        return cls(cpu_s(server), cpu_s(java), workers)

    def us_a_row(self, since: Processors, rows: int) -> dict[str, float]:
        """Return the microseconds of a row by process."""
        workers = [used - since.workers.get(pid, 0) for pid, used in self.workers.items()]
        spent = {
            "server": self.server - since.server,
            "java": self.java - since.java,
            "workers": sum(workers),
        }
        return {name: seconds / rows * 1e6 for name, seconds in spent.items()}


class Bench:
    """A session, a server, and a folder.

    Args:
        spark: The session.
        port: Of the server.
        server: Its process.
        folder: For checkpoints and files.
        messages: Of the large measurements.
    """

    def __init__(
        self, spark: SparkSession, port: int, server: psutil.Process, folder: Path, messages: int
    ) -> None:
        self._spark = spark
        self._server = server
        self.us: dict[str, float] = {}
        """What a row took of the processors the last time, by process."""
        self._text = connection(port)
        self._client = Client.from_connection_string(self._text)
        self._folder = folder
        self._messages = messages
        self._runs = 0

    # --- reading -------------------------------------------------------------------------------

    def read(self, count: int | None = None) -> float:
        """Take a queue's messages in large claims; return messages per second."""
        count = count or self._messages
        queue = self._filled(count)
        with self._processors(count):
            took_s, _ = self._stream(self._source(queue, CLAIM))
        if left := self._client.queue(queue).counts().total:
            raise RuntimeError(f"{left} messages were left")
        return count / took_s

    def memory(self) -> float:
        """Read the same rows from a Python source that makes them."""
        with self._processors(self._messages):
            took_s, _ = self._stream(self._memory(self._messages, CLAIM))
        return self._messages / took_s

    def table(self, form: str) -> float:
        """Read the same rows from files, as a batch."""
        path = str(self._folder / form)
        if not Path(path).exists():
            self._rows(self._messages).write.format(form).save(path)
        reader = self._spark.read.format(form)
        # Without the columns given, JSON would be read twice.
        return self._noop(reader.schema("body binary").load(path))

    def fill_table(self, url: str) -> None:
        """Make the table that :meth:`jdbc` reads."""
        rows = self._spark.range(0, self._messages, 1, 2)
        body = f"cast(repeat('x', {BODY_BYTES}) as binary) as body"
        rows.selectExpr("id", body).write.jdbc(url, _TABLE, "overwrite")

    def jdbc(self, url: str) -> float:
        """Read the same rows from a table of a database."""
        options = {"url": url, "dbtable": _TABLE, "fetchsize": "10000", "numPartitions": "2"}
        bounds = {"partitionColumn": "id", "lowerBound": "0", "upperBound": str(self._messages)}
        return self._noop(self._spark.read.format("jdbc").options(**options, **bounds).load())

    # --- writing -------------------------------------------------------------------------------

    def write(self, count: int | None = None) -> float:
        """Send a table; return messages per second."""
        count = count or self._messages
        queue = self._new_queue()
        rows = self._rows(count)
        with self._processors(count):
            began = time.perf_counter()
            rows.write.format("leasehold").options(**self._at(queue)).mode("append").save()
            took_s = time.perf_counter() - began
        if (found := self._client.queue(queue).counts().visible) != count:
            raise RuntimeError(f"{found} messages of {count} are there")
        self._client.queue(queue).delete()
        return count / took_s

    # --- small batches -------------------------------------------------------------------------

    def small(self) -> tuple[float, float]:
        """Return the milliseconds of a micro-batch of a queue, and of memory."""
        rows = SMALL * SMALL_BATCHES
        _, ours = self._stream(self._source(self._filled(rows), SMALL))
        _, theirs = self._stream(self._memory(rows, SMALL))
        return statistics.median(ours), statistics.median(theirs)

    # --- parts ---------------------------------------------------------------------------------

    @contextmanager
    def _processors(self, rows: int) -> Iterator[None]:
        """Note what a row takes of the processors, with what is left to do afterwards."""
        wait_until_idle(self._server)
        since = Processors.now(self._server)
        yield
        wait_until_idle(self._server)
        self.us = Processors.now(self._server).us_a_row(since, rows)

    def _at(self, queue: str) -> dict[str, str]:
        return {"connectionString": self._text, "queueName": queue}

    def _source(self, queue: str, limit: int) -> DataFrame:
        options = {"streamId": "bench", "maxMessagesPerTrigger": str(limit), "numPartitions": "2"}
        return (
            self._spark.readStream.format("leasehold").options(**self._at(queue), **options).load()
        )

    def _memory(self, rows: int, limit: int) -> DataFrame:
        options = {"rows": str(rows), "limit": str(limit)}
        return self._spark.readStream.format("memory-rows").options(**options).load()

    def _rows(self, count: int) -> DataFrame:
        rows = self._spark.range(0, count, 1, 2)
        return rows.selectExpr(f"cast(repeat('x', {BODY_BYTES}) as binary) as body")

    def _stream(self, rows: DataFrame) -> tuple[float, list[float]]:
        """Run a query to its end; return its seconds and the milliseconds of its batches."""
        self._runs += 1
        began = time.perf_counter()
        query = (
            rows.writeStream.format("noop")
            .option("checkpointLocation", str(self._folder / f"checkpoint-{self._runs}"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        took_s = time.perf_counter() - began
        batches = [each for each in query.recentProgress if each["numInputRows"]]
        return took_s, [float(each["durationMs"]["triggerExecution"]) for each in batches[1:]]

    def _noop(self, rows: DataFrame) -> float:
        began = time.perf_counter()
        rows.write.format("noop").mode("overwrite").save()
        return self._messages / (time.perf_counter() - began)

    def _new_queue(self) -> str:
        self._runs += 1
        name = f"spark-{self._runs}"
        self._client.create_queue(name)
        return name

    def _filled(self, count: int) -> str:
        queue = self._new_queue()
        transaction = self._client.transaction(f"fill-{queue}")
        for start in range(0, count, _STAGE):
            bodies = pa.array([b"x" * BODY_BYTES] * min(_STAGE, count - start), pa.binary())
            transaction.stage_arrow(pa.record_batch({"body": bodies}), queue=queue)
        transaction.publish()
        return queue


@contextmanager
def session(jar: Path | None, more: Mapping[str, str] | None = None) -> Iterator[SparkSession]:
    """Run Spark with two cores; its Python processes find this package."""
    os.environ["PYTHONPATH"] = environment()["PYTHONPATH"]
    os.environ.setdefault("PYSPARK_PYTHON", MEASURED_PYTHON)
    conf: dict[str, Any] = {"spark.driver.memory": "4g", **(more or {})}
    if jar:
        conf["spark.jars"] = str(jar)
    spark = local_session(cores=2, name="bench", **conf)
    spark.dataSource.register(MemorySource)
    try:
        yield spark
    finally:
        spark.stop()


def measure(bench: Bench, rounds: int, url: str | None) -> dict[str, list[float]]:
    """Warm everything up, then measure some rounds, in turn."""
    bench.read(CLAIM)
    bench.write(CLAIM)
    bench.memory()
    found: dict[str, list[float]] = {}

    def note(name: str, figure: float) -> None:
        found.setdefault(name, []).append(round(figure, 2))
        print(f"{name}: {figure:,.2f}", file=sys.stderr, flush=True)

    parts: dict[str, Callable[[], float]] = {
        "read_messages_per_s": bench.read,
        "memory_rows_per_s": bench.memory,
        "parquet_rows_per_s": lambda: bench.table("parquet"),
        "json_rows_per_s": lambda: bench.table("json"),
        "write_messages_per_s": bench.write,
    }
    if url is not None:
        bench.fill_table(url)
        parts["jdbc_rows_per_s"] = lambda: bench.jdbc(url)
    for _ in range(rounds):
        for name, part in parts.items():
            note(name, part())
            for process, figure in bench.us.items():
                note(f"{name.partition('_')[0]}_{process}_us", figure)
            bench.us = {}
        ours, theirs = bench.small()
        note("small_batch_ms", ours)
        note("small_batch_of_memory_ms", theirs)
        note("small_batch_over_memory_ms", ours - theirs)
    return found


def main() -> None:
    """Measure, print the bars, and write everything down."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--jdbc-jar", type=Path, help="the driver of a database")
    parser.add_argument("--jdbc-url", help="where the database is: jdbc:postgresql://...")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    record = Record("spark")
    with (
        tempfile.TemporaryDirectory(prefix="bench-spark-") as folder,
        running_server(100, ()) as (port, server),
        session(given.jdbc_jar) as spark,
    ):
        bench = Bench(spark, port, server, Path(folder), given.messages)
        found = measure(bench, given.rounds, given.jdbc_url)
    summary = {name: statistics.median(figures) for name, figures in found.items()}
    print(json.dumps(summary, indent=1))
    bars = print_bars(summary, BARS, digits=1)
    if given.out:
        members = {"messages": given.messages, "summary": summary, "rounds": found}
        record.write(given.out, members, bars)


if __name__ == "__main__":
    main()
