"""Tables made of attempts and messages: workers, and the hours of queues."""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it

from leasehold.spark.analytics.deriving import shaped
from leasehold.spark.analytics.schemas import QUEUES, WORKERS, Ending, Fate

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_KNOWN_WORK: Final = (
    Ending.COMPLETED,
    Ending.COMPLETED_LATE,
    Ending.FAILED,
    Ending.RETURNED,
    Ending.INTERRUPTED,
    Ending.BURIED,
    Ending.SESSION_LOST,
)
"""Endings that tell how long somebody worked."""
_ACCURACY: Final = 1_000
"""Of percentiles: they are off by 0.1 % of the rank at most."""


def workers(attempts: DataFrame) -> DataFrame:
    """Return one row for each holder in each queue; attempts without a holder are left out."""
    in_time = F.when(F.col("outcome") == Ending.COMPLETED.value, F.col("seconds"))
    finished = F.when(F.col("finished"), F.col("seconds"))
    seen = F.coalesce("ended_at_ms", "leased_at_ms")
    work = F.when(F.col("outcome").isin([*map(str, _KNOWN_WORK)]), F.col("seconds"))
    rows = (
        attempts.where("holder IS NOT NULL")
        .groupBy("account", "queue", "holder")
        .agg(
            F.count("*").alias("attempts"),
            F.count(in_time).alias("completed"),
            _count_of(Ending.COMPLETED_LATE).alias("late"),
            _count_of(Ending.LAPSED).alias("lapsed"),
            _count_of(Ending.FAILED).alias("failed"),
            _count_of(Ending.SESSION_LOST).alias("lost"),
            F.coalesce(F.sum(work), F.lit(0.0)).alias("work_s"),
            F.percentile_approx(finished, 0.5, _ACCURACY).alias("p50_s"),
            F.percentile_approx(finished, 0.99, _ACCURACY).alias("p99_s"),
            F.min("leased_at_ms").alias("first_seen_ms"),
            F.max(seen).alias("last_seen_ms"),
        )
    )
    return shaped(rows, WORKERS)


def queues(attempts: DataFrame, messages: DataFrame) -> DataFrame:
    """Return one row for each hour of each queue in which something happened."""
    gone = F.col("outcome") != Fate.OPEN.value
    waited = (F.col("first_leased_at_ms") - F.col("inserted_at_ms")) / 1000
    parts = [
        _by_hour(messages, "inserted_at_ms", put=F.count("*")),
        _by_hour(
            messages.where(gone),
            "ended_at_ms",
            gone=F.count("*"),
            **{
                each.value: _count_of(each)
                for each in (Fate.COMPLETED, Fate.POISONED, Fate.EXPIRED, Fate.REMOVED)
            },
        ),
        _by_hour(
            messages.where("first_leased_at_ms IS NOT NULL"),
            "first_leased_at_ms",
            oldest_wait_s=F.max(waited),
        ),
        _by_hour(attempts, "leased_at_ms", leased=F.count("*")),
        _by_hour(
            attempts.where("ended_at_ms IS NOT NULL"),
            "ended_at_ms",
            late=_count_of(Ending.COMPLETED_LATE),
            lapsed=_count_of(Ending.LAPSED),
            failed=_count_of(Ending.FAILED),
            lost=_count_of(Ending.SESSION_LOST),
            buried=_count_of(Ending.BURIED),
        ),
    ]
    together = reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), parts)
    key = ["account", "queue", "hour"]
    counted = [name for name in together.columns if name not in {*key, "oldest_wait_s"}]
    hours = together.groupBy(*key).agg(
        *(F.coalesce(F.sum(name), F.lit(0)).alias(name) for name in counted),
        F.greatest(F.coalesce(F.max("oldest_wait_s"), F.lit(0.0)), F.lit(0.0)).alias(
            "oldest_wait_s"
        ),
    )
    upto = (
        Window.partitionBy("account", "queue")
        .orderBy("hour")
        .rowsBetween(Window.unboundedPreceding, Window.currentRow)
    )
    backlog = F.sum(F.col("put") - F.col("gone")).over(upto)
    return shaped(hours.withColumn("backlog_end", backlog), QUEUES)


def _by_hour(rows: DataFrame, moment: str, **figures: Column) -> DataFrame:
    hour = F.timestamp_millis(F.floor(F.col(moment) / 3_600_000) * 3_600_000).alias("hour")
    return rows.groupBy("account", "queue", hour).agg(
        *(figure.alias(name) for name, figure in figures.items())
    )


def _count_of(outcome: Ending | Fate) -> Column:
    return F.count_if(F.col("outcome") == outcome.value)
