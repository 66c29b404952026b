"""What ``leasehold analyze`` makes of folders: logs and lifecycle tables tell the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from leasehold.advisor.summaries import LogSummary
from leasehold.advisor.tables.incremental import update
from leasehold.advisor.tables.sources import ExportedFiles
from leasehold.cli.analyze_input import Source, check, summarized
from tests.spark.analytics.exported import export
from tests.spark.analytics.logs import made

NAMES = ("completed", "messages", "deliveries", "late", "failed", "buried")


def figures(summary: LogSummary) -> dict[str, dict[str, int]]:
    """Return counts by queue that do not depend on when something was noticed."""
    return {
        queue.queue: {name: sum(getattr(each, name) for each in queue.works) for name in NAMES}
        | {"open": queue.open_messages}
        for queue in summary.queues
    }


@pytest.mark.slow
def test_tables_tell_what_the_log_told(spark: SparkSession, tmp_path: Path) -> None:
    """At any moment, although they know what came later; with details; and of one queue."""
    events = made(5, 120, first=40)[0]
    log, tables, details = (tmp_path / name for name in ("log", "tables", "details.parquet"))
    export(log, events)
    update(spark, ExportedFiles(log), tables, partitions=2)
    ids = sorted({each.message_id for each in events if each.message_id})
    pq.write_table(pa.table({"message_id": ids, "message_type": ["named"] * len(ids)}), details)

    def read(**members: Any) -> LogSummary:
        known: dict[str, Any] = {"log": None, "tables": None, "account": None, "queues": ()}
        known |= {"since_ms": events[0].at_ms, "until_ms": events[len(events) * 2 // 3].at_ms}
        known |= {"cores": None, "memory": "1g", "is_past": True, "details": details}
        source = Source(**known | members)
        check(source)
        return summarized(spark, {}, source)

    told = read(log=log)
    # In a log of several accounts a queue goes by both names, and may be named by both.
    chosen = told.queues[0].queue
    account, _, name = chosen.partition("/")
    assert account
    of_name = {
        queue: counts for queue, counts in figures(told).items() if queue.endswith(f"/{name}")
    }
    found = read(tables=tables, queues=(chosen,))
    assert figures(found) == of_name
    assert {each.message_type for queue in found.queues for each in queue.works} == {"named"}
