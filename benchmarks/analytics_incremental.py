"""Lifecycle tables that keep up with a server: a log that comes in parts, and an update for each.

``python -m benchmarks.analytics_incremental --out benchmarks/results/analytics_incremental.json``
makes a log of 20 million events, as a server at ``--rate`` events a second would, and cuts it in
six by time, with messages between their events at each cut. Each part is put where a server exports
its files, in files of their size, and the tables are updated. What counts is how long an update
takes beside the stretch of time that its part covers, from the second one on. A last part, of a
second in which nothing is put any more, says what an update takes that has hardly anything to do.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, Final

import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it

from benchmarks.analytics_scale import peak_mib, processor_s
from benchmarks.single import Record, print_bars
from leasehold.advisor.tables.incremental import Folder, read_tables, update
from leasehold.advisor.tables.schemas import Fate
from leasehold.advisor.tables.sources import ExportedFiles
from leasehold.advisor.tables.synthetic import EVENTS_PER_MESSAGE, World, event_log
from leasehold.events.names import file_of, folder_of, hour_of
from leasehold.spark.session import local_session

EVENTS: Final = 20_000_000
RATE: Final = 20_000
"""Events a second: more than a server does in single operations."""
PARTS: Final = 6
FILE: Final = 131_072
"""Events in a file of a server's."""
BARS: Final = {"events_per_s": (">=", 100_000), "share": ("<=", 0.5), "memory_mib": ("<=", 8_192)}
"""Of the usual update: its events by its time, its time by the time covered, and Java's memory."""
_DAY_S: Final = 86_400
_LAST_MS: Final = 1_000
_PLANS: Final = "1000"
"""How much compiled code Spark keeps. Of itself it keeps 100 pieces, fewer than an update has, and
would compile all of them anew each time."""


def make(spark: SparkSession, events: int, rate: int, folder: Path) -> None:
    """Make a log, and write it down as it is made."""
    world = World(days=events / rate / _DAY_S)
    event_log(spark, round(events / EVENTS_PER_MESSAGE), world=world).write.parquet(str(folder))


def cuts(spark: SparkSession, log: Path, span_ms: int, parts: int) -> list[tuple[int, int]]:
    """Return the numbers with which parts begin, and those before which they end."""
    begin = spark.read.parquet(str(log)).agg(F.min("seq")).first()
    assert begin is not None
    # In generated logs a number is a millisecond.
    bounds = [int(begin[0]) + span_ms * number // parts for number in range(parts + 1)]
    return [*pairwise(bounds), (bounds[-1], bounds[-1] + _LAST_MS)]


def export(rows: DataFrame, count: int, folder: Path, work: Path) -> int:
    """Write a part of a log as a server would have exported it; return how many files that took."""
    parts = max(1, -(-count // FILE))
    ranges = rows.repartitionByRange(parts, "seq")
    ranges = ranges.sortWithinPartitions("message_id", "seq", "place")
    ranges.write.option("compression", "zstd").parquet(str(work))
    written = sorted(work.glob("part-*.parquet"))
    for path in written:
        seqs = pq.read_table(path, columns=["seq", "happened_at"])
        first, last = (int(getattr(seqs["seq"].to_numpy(), which)()) for which in ("min", "max"))
        at_ms = int(seqs["happened_at"].to_numpy().min().astype("datetime64[ms]").astype(int))
        home = folder / folder_of(hour_of(at_ms))
        home.mkdir(parents=True, exist_ok=True)
        path.rename(home / file_of(first, last))
    shutil.rmtree(work)
    return len(written)


def measure(spark: SparkSession, work: Path, bounds: tuple[int, int]) -> dict[str, Any]:
    """Put a part where it is exported to, update the tables, and say what that took."""
    rows = spark.read.parquet(str(work / "log")).where(
        (F.col("seq") >= bounds[0]) & (F.col("seq") < bounds[1])
    )
    count = rows.count()
    files = export(rows, count, work / "events", work / "part")
    began, worked_s = time.perf_counter(), processor_s(spark)
    updated = update(spark, ExportedFiles(work / "events"), work / "tables")
    update_s = time.perf_counter() - began
    run = updated.state.run
    kept = Folder(work / "tables").newest("open", run)
    span_s = (bounds[1] - bounds[0]) / 1000
    return {
        "events": updated.events,
        "files": files,
        "span_s": span_s,
        "update_s": update_s,
        "processor_s": processor_s(spark) - worked_s,
        "events_per_s": updated.events / update_s,
        "share": update_s / span_s,
        "runs": updated.runs,
        "events_kept": spark.read.parquet(str(kept)).count(),
        "memory_mib": peak_mib(spark),
    }


def usual(updates: list[dict[str, Any]]) -> dict[str, float]:
    """Return the figures of an update in the middle: not the first one, and not the small one."""
    steady = updates[1:-1]
    return {
        **{
            name: float(median(each[name] for each in steady))
            for name in ("events", "span_s", "update_s", "processor_s", "events_per_s", "share")
        },
        "memory_mib": float(updates[-1]["memory_mib"]),
        "smallest_update_s": updates[-1]["update_s"],
    }


def check(spark: SparkSession, work: Path) -> dict[str, int]:
    """Return how many messages there are in the tables, and how many there were in the log."""
    tables = read_tables(spark, work / "tables")
    # A message that went to a poison queue has a stay there as well.
    poison = F.col("queue").endswith("-poison")
    put = spark.read.parquet(str(work / "log")).where("type = 'put'").count()
    found = tables.messages.where(~poison).count()
    still = tables.messages.where(~poison & (F.col("outcome") == Fate.OPEN.value)).count()
    if found != put:
        raise SystemExit(f"{found} messages in the tables, and {put} were put")
    return {"messages": found, "open": still}


def main() -> int:
    """Measure, print, and keep the figures."""
    parser = argparse.ArgumentParser(description=__doc__, prog="benchmarks.analytics_incremental")
    parser.add_argument("--events", type=int, default=EVENTS)
    parser.add_argument("--rate", type=int, default=RATE, help="events a second in the log")
    parser.add_argument("--parts", type=int, default=PARTS, help="3 at least")
    parser.add_argument("--work", type=Path, help="folder for logs and tables")
    parser.add_argument("--memory", default="3g", help="of Java's heap")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    record = Record("analytics_incremental")
    work = Path(tempfile.mkdtemp(prefix="leasehold-incremental-", dir=options.work))
    conf = {
        "spark.driver.memory": options.memory,
        "spark.local.dir": str(work / "spark"),
        "spark.sql.codegen.cache.maxEntries": _PLANS,
    }
    updates: list[dict[str, Any]] = []
    try:
        with local_session(cores=2, name="leasehold-incremental", **conf) as spark:
            spark.sparkContext.setLogLevel("ERROR")
            make(spark, options.events, options.rate, work / "log")
            span_ms = 1000 * options.events // options.rate
            for bounds in cuts(spark, work / "log", span_ms, options.parts):
                updates.append(measure(spark, work, bounds))
                print(json.dumps(updates[-1]), flush=True)
            checked = check(spark, work)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    summary = usual(updates)
    print_bars(summary, BARS, 2)
    if options.out is not None:
        asked = {name: getattr(options, name) for name in ("events", "rate", "parts")}
        members = {"asked": asked, "updates": updates, "checked": checked, "summary": summary}
        record.write(options.out, members)
    return 0


if __name__ == "__main__":
    sys.exit(main())
