"""The check of an event log on Spark: the same rules, each part of the messages by itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it

from leasehold.events.check import Checker
from leasehold.events.check_input import columns_read, rows_in
from leasehold.events.check_state import Place, Report

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_PART: Final = "_part"
RESULT: Final = (
    "part int, rule string, seq long, place int, at_ms long, account string, queue string, "
    "message_id string, sentence string, events long, consumed long, known_from long"
)
"""Columns of the result, see :func:`check_events`."""
_ARROW: Final = pa.schema(
    [
        ("part", pa.int32()),
        ("rule", pa.string()),
        ("seq", pa.int64()),
        ("place", pa.int32()),
        ("at_ms", pa.int64()),
        ("account", pa.string()),
        ("queue", pa.string()),
        ("message_id", pa.string()),
        ("sentence", pa.string()),
        ("events", pa.int64()),
        ("consumed", pa.int64()),
        ("known_from", pa.int64()),
    ]
)


def check_events(
    events: DataFrame,
    *,
    parts: int = 16,
    settings: Mapping[Place, Mapping[str, Any]] | None = None,
    whole: bool | None = None,
) -> DataFrame:
    """Check an event log against the rules of the queue.

    ::

        events = spark.read.parquet("/data/events")
        check_events(events).where("rule is not null").show(truncate=False)

    The rules are those of ``leasehold events check``. Messages are judged in parts, those of a
    message group together; a part is sorted and read through once, by one task, which keeps in
    memory those of its messages that are there at a time, some 600 bytes each.

    Args:
        events: With the columns of exported files, of the whole log or of a span of it. Those of
            an account may be left out, those of a queue may not: messages move between queues.
        parts: In how many parts messages are judged, 1 to 10,000.
        settings: What queues were set to when the log began, by account and name, as JSON has it:
            order, limits and budgets are judged by it.
        whole: Whether the log begins with the store; None: it does if its first number is 1.

    Returns:
        A row for each violation, at most 100 of a rule and part: ``rule``, ``seq``, ``place``,
        ``at_ms``, ``account``, ``queue``, ``message_id``, ``sentence``. And one without a rule for
        each part that has events: ``events`` read, ``consumed``, and ``known_from``, messages that
        are known from their first event on only.

    Added in 0.2.
    """
    wanted = [name for name in columns_read() if name in events.columns]
    events = events.select(*wanted)
    if whole is None:
        first = events.agg(F.min("seq")).first()
        whole = first is not None and first[0] == 1
    key = F.coalesce(F.col("group_id"), F.col("message_id"))
    own = F.array(F.pmod(F.crc32(F.encode(key, "UTF-8")), F.lit(parts)).cast("int"))
    everywhere = F.sequence(F.lit(0), F.lit(parts - 1))
    part = F.explode(F.when(F.col("message_id").isNull(), everywhere).otherwise(own))
    sharded = events.select(part.alias(_PART), *wanted)
    ordered = sharded.repartition(parts, _PART).sortWithinPartitions(_PART, "seq", "place")
    return ordered.mapInArrow(_Task(parts, dict(settings or {}), whole), RESULT)


class _Task:
    """Checks the parts that one task has."""

    def __init__(
        self, parts: int, settings: Mapping[Place, Mapping[str, Any]], whole: bool
    ) -> None:
        self._parts = parts
        self._settings = settings
        self._whole = whole

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Read sorted events; yield what was found."""
        for part, pieces in groupby(_pieces(batches), key=itemgetter(0)):
            checker = Checker(
                settings=self._settings,
                whole=self._whole,
                all_accounts=False,
                shard=(self._parts, part),
            )
            for _, table in pieces:
                checker.feed(rows_in(table, is_sorted=True))
            yield _result(part, checker.end())


def _pieces(batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[int, pa.Table]]:
    """Yield the events of one part at a time."""
    for batch in batches:
        table = pa.Table.from_batches([batch])
        parts = table[_PART].to_pylist()
        start = 0
        for part, run in groupby(parts):
            length = len(list(run))
            yield part, table.slice(start, length)
            start += length


def _result(part: int, report: Report) -> pa.RecordBatch:
    rows: list[dict[str, Any]] = [
        {"part": part, **each._asdict(), "rule": str(each.rule)} for each in report.violations
    ]
    totals = {name: getattr(report, name) for name in ("events", "consumed", "known_from")}
    rows.append({"part": part, **totals})
    return pa.RecordBatch.from_pylist(rows, schema=_ARROW)
