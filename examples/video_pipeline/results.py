"""The results of the pipeline as a streaming DataFrame: a Parquet table, and counts by window."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rich import box
from rich.table import Table

from leasehold.client import Client

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

WINDOW_S: Final = 5
"""Length of the windows of the streamed aggregates, seconds."""
NO_STAGE: Final = "(no stage)"
"""Stands in aggregates for messages that ended without a result."""
_TRIGGER: Final = "2 seconds"
_STARTS: Final = 20
"""How often a query is started until it runs."""
_LOOK_S: Final = 0.1
_BEGINNING: Final = frozenset({"Initializing StreamExecution", "Initializing sources"})
_SUMMARY: Final = f"""
    SELECT coalesce(each.stage, '{NO_STAGE}') AS stage, outcome, count(*) AS messages,
           round(avg(each.seconds), 2) AS mean_s, round(max(each.seconds), 2) AS longest_s,
           max(dequeue_count) AS most_deliveries
    FROM results LATERAL VIEW OUTER explode(stages) AS each
    GROUP BY 1, 2 ORDER BY min(each.began_at) NULLS LAST, outcome
"""
_WIDTH: Final = 1120
_LEFT: Final = 150
_ROW: Final = 26
_TOP: Final = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """What Spark knows of the results in the end."""

    rows: tuple[dict[str, Any], ...]
    """Of the Parquet table: ``message_id``, ``outcome``, ``reason``, ``stages``, ``output``."""
    windows: tuple[dict[str, Any], ...]
    """Of the aggregates that were made as the results came: ``begin_s``, ``stage``, ``outcome``,
    ``messages``, ``mean_s``."""
    summary: tuple[dict[str, Any], ...]
    """What Spark SQL says of the table: ``stage``, ``outcome``, ``messages``, ``mean_s``,
    ``longest_s``, ``most_deliveries``."""


class ResultQueries:
    """Two streaming queries over the results of a queue, from now on.

    Args:
        spark: The session of the pipeline; it needs a core that the pipeline leaves free.
        root: Folder of the run; the table is in ``results`` there.
        connection_string: Of the server.
        queue: Name of the queue.
    """

    def __init__(self, spark: SparkSession, root: Path, connection_string: str, queue: str) -> None:
        self._spark = spark
        self._table = str(root / "results")
        self._checkpoints = root / "spark" / "checkpoints"
        with Client.from_connection_string(connection_string) as client:
            newest = client.event_page(limit=1).last_seq or 0
        self._options = {
            "connectionString": connection_string,
            "view": "results",
            "queueName": queue,
            "startingSeq": str(newest),
        }
        self._writing: dict[str, DataStreamWriter] = {}
        self._queries: dict[str, StreamingQuery] = {}
        self._thread = ThreadPoolExecutor(1)
        self._starting: Future[None] | None = None

    def start(self) -> None:
        """Begin both queries, one after the other, while others go on."""
        self._starting = self._thread.submit(self._start)

    def _start(self) -> None:
        from pyspark.sql import functions as F  # noqa: N812, PLC0415 - workers need no Spark

        results = self._spark.readStream.format("leasehold").options(**self._options).load()
        table = results.writeStream.format("parquet").option("path", self._table)
        per_stage = (
            results.withWatermark("ended_at", "1 minute")
            .select("ended_at", "outcome", F.explode_outer("stages").alias("each"))
            .groupBy(
                F.window("ended_at", f"{WINDOW_S} seconds").alias("window"),
                F.coalesce("each.stage", F.lit(NO_STAGE)).alias("stage"),
                "outcome",
            )
            .agg(
                F.count(F.lit(1)).alias("messages"),
                F.round(F.avg("each.seconds"), 2).alias("mean_s"),
            )
        )
        windows = per_stage.writeStream.format("memory").outputMode("complete")
        for name, writing in (("results_table", table), ("results_per_stage", windows)):
            place = str(self._checkpoints / name)
            writing = writing.queryName(name).option("checkpointLocation", place)  # noqa: PLW2901
            self._writing[name] = writing.trigger(processingTime=_TRIGGER)
            self._begin(name)

    def _begin(self, name: str) -> StreamingQuery:
        """Start a query, and again if it fails before it runs.

        Spark gives the process of a source ten seconds to start, which a machine that is busy with
        everything else at the same time may not have.
        """
        for _ in range(_STARTS):
            query = self._queries[name] = self._writing[name].start()
            while query.isActive and query.status["message"] in _BEGINNING:
                time.sleep(_LOOK_S)
            if query.isActive:
                break
        return query

    def _caught_up(self, name: str) -> None:
        """Wait until a query has seen all there is; one that has failed goes on where it was."""
        from pyspark.errors import StreamingQueryException  # noqa: PLC0415 - as above

        for _ in range(_STARTS):
            query = self._queries[name]
            if not query.isActive:
                query = self._begin(name)
            try:
                query.processAllAvailable()
            except StreamingQueryException:
                continue
            return

    def read(self) -> Results:
        """Wait until both have seen all there is, end them, and ask the table."""
        assert self._starting is not None
        self._starting.result()
        for name in self._queries:
            self._caught_up(name)
        windows = self._spark.table("results_per_stage").orderBy("window", "stage", "outcome")
        found = tuple(
            {
                "begin_s": row["window"].start.timestamp(),
                **{name: row[name] for name in ("stage", "outcome", "messages", "mean_s")},
            }
            for row in windows.collect()
        )
        self.stop()
        table: DataFrame = self._spark.read.parquet(self._table)
        table.createOrReplaceTempView("results")
        rows = table.select("message_id", "outcome", "reason", "stages", "output").collect()
        return Results(
            rows=tuple(_row(each.asDict(recursive=True)) for each in rows),
            windows=found,
            summary=tuple(row.asDict() for row in self._spark.sql(_SUMMARY).collect()),
        )

    def stop(self) -> None:
        """End both."""
        self._thread.shutdown()
        for query in self._queries.values():
            query.stop()


def _row(row: dict[str, Any]) -> dict[str, Any]:
    output = row["output"]
    return {**row, "output": None if output is None else json.loads(output)}


def results_table(results: Results) -> Table:
    """Return what Spark SQL says of the results, for a terminal."""
    table = Table(
        title="What became of them: Spark SQL over the Parquet table of the results",
        title_style="bold",
        title_justify="left",
        box=box.HORIZONTALS,
        padding=(0, 1, 0, 0),
    )
    for heading, justify in _HEADINGS.items():
        table.add_column(heading, justify="right" if justify else "left")
    for row in results.summary:
        table.add_row(*_cells(row))
    return table


_HEADINGS: Final = {
    "Stage": False,
    "Outcome": False,
    "Messages": True,
    "Mean s": True,
    "Longest s": True,
    "Most deliveries": True,
}
"""And whether it is a column of numbers."""


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    times = ("" if row[name] is None else f"{row[name]:.2f}" for name in ("mean_s", "longest_s"))
    return (
        row["stage"],
        row["outcome"],
        str(row["messages"]),
        *times,
        str(row["most_deliveries"]),
    )


# --- the page ------------------------------------------------------------------------------------


_ABOUT: Final = (
    '<p class="dim">A query over <code>option("view", "results")</code> ran on the same Spark '
    f"session. It counted stages and ends in windows of {WINDOW_S} s as they came; another wrote "
    "each result into a Parquet table, once. Below, Spark SQL over that table.</p>"
)


def section(results: Results | None, began_s: float) -> str:
    """Return the part of the page on the results; an empty text if there are none.

    Args:
        results: Of the run.
        began_s: When the story began, Unix seconds.
    """
    if results is None:
        return ""
    head = "".join(f"<th>{escape(each)}</th>" for each in _HEADINGS)
    lines = [
        "<tr>" + "".join(f"<td>{escape(each)}</td>" for each in _cells(row)) + "</tr>"
        for row in results.summary
    ]
    return "\n".join(
        (
            "<h2>What became of them, as a streaming DataFrame</h2>",
            _ABOUT,
            f'<div class="wide">{_windows(results, began_s)}</div>',
            f"<table><tr>{head}</tr>",
            *lines,
            "</table>",
        )
    )


def _windows(results: Results, began_s: float) -> str:
    """Return a picture of the windows: a row for each stage and outcome, a bar for each count."""
    groups = list(dict.fromkeys((row["stage"], row["outcome"]) for row in results.summary))
    begins = sorted({row["begin_s"] for row in results.windows})
    if not groups or not begins:
        return ""
    slots = int((begins[-1] - begins[0]) / WINDOW_S) + 1
    width = (_WIDTH - _LEFT) / slots
    most = max(row["messages"] for row in results.windows)
    height = _TOP + _ROW * len(groups) + 4
    head = f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="Counts by window">'
    parts = [
        head,
        *_axis(begins[0] - began_s, slots, width, height),
    ]
    for place, (stage, outcome) in enumerate(groups):
        y = _TOP + _ROW * place
        label = outcome if stage == NO_STAGE else stage
        parts.append(f'<text x="0" y="{y + 16}">{escape(label)}</text>')
        for row in results.windows:
            if (row["stage"], row["outcome"]) != (stage, outcome):
                continue
            x = _LEFT + (row["begin_s"] - begins[0]) / WINDOW_S * width
            count = row["messages"]
            tall = max(3.0, (_ROW - 6) * count / most)
            took = "" if row["mean_s"] is None else f", {row['mean_s']:.2f} s on average"
            kind = stage if stage != NO_STAGE else "waiting"
            parts.append(
                f'<rect class="{escape(kind)}" x="{x + 1:.1f}" y="{y + _ROW - 4 - tall:.1f}" '
                f'width="{width - 2:.1f}" height="{tall:.1f}" rx="2">'
                f"<title>{escape(f'{label}: {count}{took}')}</title></rect>"
                f'<text class="dim" x="{x + width / 2:.1f}" y="{y + 16}">{count}</text>'
            )
    return "\n".join([*parts, "</svg>"])


def _axis(first_s: float, slots: int, width: float, height: int) -> Iterable[str]:
    for number in range(slots + 1):
        x = _LEFT + number * width
        yield f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="16" y2="{height}"/>'
        if number < slots:
            yield (
                f'<text class="tick" x="{x + 12:.1f}" y="12">{first_s + number * WINDOW_S:.0f} s'
                "</text>"
            )
