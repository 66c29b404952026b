"""From a large event log to lifecycle tables and advice, in two sizes, in one run.

``python -m benchmarks.analytics_scale --out benchmarks/results/analytics_scale.json`` makes logs of
10 and 100 million events with Spark, and measures for each, on two cores: making the tables of
attempts, messages, workers and queues, the summary, and the advice for each queue. Making the log
itself is not counted. It takes half an hour, 40 GB of disk and 8 GB of memory;
``--events 1000000 2000000`` is a small one.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it

from benchmarks.single import Record, print_bars
from leasehold.advisor.recommendation import Asked, recommend
from leasehold.advisor.summaries import LogSummary
from leasehold.advisor.tables.incremental import Tables, read_tables, update
from leasehold.advisor.tables.sources import Given
from leasehold.advisor.tables.summarize import Made, summarize_tables
from leasehold.advisor.tables.synthetic import EVENTS_PER_MESSAGE, event_log
from leasehold.spark.session import local_session

SIZES: Final = (10_000_000, 100_000_000)
BARS: Final = {
    "total_s": ("<=", 600),
    "ratio": ("<=", 11),
    "memory_mib": ("<=", 8_192),
}
"""For 100 million events, their time in times that of a tenth of them, and Java's memory."""
_WARM: Final = 200_000
_MEMORY: Final = "5g"
"""Of Java's heap; the rest of the 8 GB is Java's own and Python's."""


def measure(spark: SparkSession, events: int, folder: Path) -> dict[str, Any]:
    """Make a log, then its tables, summary and advice; return seconds and sizes."""
    log = str(folder / "log")
    began = time.perf_counter()
    event_log(spark, round(events / EVENTS_PER_MESSAGE)).write.parquet(log)
    generated_s = time.perf_counter() - began
    rows = spark.read.parquet(log)
    count = rows.count()
    began, worked_s = time.perf_counter(), processor_s(spark)
    update(spark, Given(rows, "synthetic", count, distinct=True), folder / "tables")
    tables_s = time.perf_counter() - began
    tables = read_tables(spark, folder / "tables")
    began = time.perf_counter()
    summary = _summary(tables, count)
    summary_s = time.perf_counter() - began
    began = time.perf_counter()
    advised = _advise(summary)
    advice_s = time.perf_counter() - began
    return {
        "events": count,
        "generated_s": generated_s,
        "tables_s": tables_s,
        "summary_s": summary_s,
        "advice_s": advice_s,
        "total_s": tables_s + summary_s + advice_s,
        "events_per_s": count / (tables_s + summary_s + advice_s),
        "processor_s": processor_s(spark) - worked_s,
        "advised": advised,
        "log_bytes": _size(folder / "log"),
        "tables_bytes": _size(folder / "tables"),
    }


def _summary(tables: Tables, count: int) -> LogSummary:
    attempts, messages = tables.attempts, tables.messages
    ends = attempts.agg(F.min("leased_at_ms"), F.max("ended_at_ms")).first()
    assert ends is not None
    return summarize_tables(
        attempts,
        messages,
        since_ms=ends[0],
        until_ms=ends[1] + 1,
        events=count,
        made=Made(tables.workers, tables.queues),
    )


def _advise(summary: LogSummary) -> dict[str, int]:
    """Return the timeout advised for each queue that had work, as ``leasehold analyze`` does."""
    return {
        queue.queue: recommend(queue, Asked()).timeout_s
        for queue in summary.queues
        if any(work.bins for work in queue.works)
    }


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _java(spark: SparkSession) -> Path:
    jvm: Any = spark._jvm  # noqa: SLF001 - there is no public way to ask
    return Path(f"/proc/{jvm.java.lang.ProcessHandle.current().pid()}")


def processor_s(spark: SparkSession) -> float:
    """Return the seconds of processor time that Java has had so far."""
    fields = (_java(spark) / "stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def peak_mib(spark: SparkSession) -> int:
    """Return the most memory that Java has had so far."""
    status = (_java(spark) / "status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) // 1024


def main() -> int:
    """Measure, print, and keep the figures."""
    parser = argparse.ArgumentParser(description=__doc__, prog="benchmarks.analytics_scale")
    parser.add_argument("--events", type=int, nargs="+", default=list(SIZES))
    parser.add_argument("--work", type=Path, help="folder for logs and tables")
    parser.add_argument("--memory", default=_MEMORY, help="of Java's heap")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    record = Record("analytics_scale")
    work = Path(tempfile.mkdtemp(prefix="leasehold-scale-", dir=options.work))
    conf = {"spark.driver.memory": options.memory, "spark.local.dir": str(work / "spark")}
    found: list[dict[str, Any]] = []
    try:
        with local_session(cores=2, name="leasehold-scale", **conf) as spark:
            spark.sparkContext.setLogLevel("ERROR")
            measure(spark, _WARM, work / "warm")
            for events in options.events:
                folder = work / f"{events}"
                found.append(measure(spark, events, folder))
                print(json.dumps(found[-1], indent=1), flush=True)
                shutil.rmtree(folder)
            memory_mib = peak_mib(spark)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    summary = {
        "total_s": found[-1]["total_s"],
        "ratio": found[-1]["total_s"] / found[0]["total_s"],
        "memory_mib": float(memory_mib),
    }
    print_bars(summary, BARS, 1)
    if options.out is not None:
        record.write(options.out, {"runs": found, "summary": summary})
    return 0


if __name__ == "__main__":
    sys.exit(main())
