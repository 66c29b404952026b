"""Tables made of attempts and messages: workers, and the hours of queues.

Both are made in two steps. Tallies are small, and can be added to each other: those of what has
ended for good are kept between runs, and each run adds its own. The tables are made of tallies.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it

from leasehold.spark.analytics.deriving import shaped
from leasehold.spark.analytics.schemas import (
    HOLDER_TALLIES,
    HOUR_TALLIES,
    QUEUES,
    WORKERS,
    Ending,
    Fate,
)

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
_SHORTEST_S: Final = 0.001
_RATIO: Final = 1.01
"""Of one bin of lengths to the next."""
_HOUR_MS: Final = 3_600_000


def workers(attempts: DataFrame) -> DataFrame:
    """Return one row for each holder in each queue; attempts without a holder are left out."""
    return workers_of(holder_tallies(attempts))


def queues(attempts: DataFrame, messages: DataFrame) -> DataFrame:
    """Return one row for each hour of each queue in which something happened."""
    return queues_of(hour_tallies(attempts, messages))


# --- workers -----------------------------------------------------------------------------------


def holder_tallies(attempts: DataFrame) -> DataFrame:
    """Count attempts by holder and length of work: :data:`HOLDER_TALLIES`."""
    seconds = F.col("seconds")
    place = F.log(F.greatest(seconds, F.lit(_SHORTEST_S)) / _SHORTEST_S) / math.log(_RATIO)
    length = F.when(F.col("finished"), F.floor(place).cast("int"))
    work = F.when(F.col("outcome").isin([*map(str, _KNOWN_WORK)]), seconds)
    rows = (
        attempts.where("holder IS NOT NULL")
        .groupBy("account", "queue", "holder", length.alias("bin"))
        .agg(
            F.count("*").alias("attempts"),
            _count_of(Ending.COMPLETED).alias("completed"),
            _count_of(Ending.COMPLETED_LATE).alias("late"),
            _count_of(Ending.LAPSED).alias("lapsed"),
            _count_of(Ending.FAILED).alias("failed"),
            _count_of(Ending.SESSION_LOST).alias("lost"),
            F.coalesce(F.sum(work), F.lit(0.0)).alias("work_s"),
            F.max(seconds).alias("longest_s"),
            F.min("leased_at_ms").alias("first_seen_ms"),
            F.max(F.coalesce("ended_at_ms", "leased_at_ms")).alias("last_seen_ms"),
        )
    )
    return shaped(rows, HOLDER_TALLIES)


def added_holders(tallies: DataFrame) -> DataFrame:
    """Return tallies of which each may be there several times, each once."""
    rows = tallies.groupBy("account", "queue", "holder", "bin").agg(
        *_sums("attempts", "completed", "late", "lapsed", "failed", "lost", "work_s"),
        F.max("longest_s").alias("longest_s"),
        F.min("first_seen_ms").alias("first_seen_ms"),
        F.max("last_seen_ms").alias("last_seen_ms"),
    )
    return shaped(rows, HOLDER_TALLIES)


def workers_of(tallies: DataFrame) -> DataFrame:
    """Make the table of workers."""
    key = ["account", "queue", "holder"]
    one = Window.partitionBy(*key)
    upto = one.orderBy("bin").rowsBetween(Window.unboundedPreceding, Window.currentRow)
    finished = F.when(F.col("bin").isNotNull(), F.col("attempts"))
    ranked = (
        added_holders(tallies)
        .withColumn("upto", F.sum(finished).over(upto))
        .withColumn("all", F.sum(finished).over(one))
    )

    def quantile(share: float) -> Column:
        reached = (F.col("bin").isNotNull()) & (F.col("upto") >= share * F.col("all"))
        return F.min_by("longest_s", F.when(reached, F.col("bin")))

    rows = ranked.groupBy(*key).agg(
        *_sums("attempts", "completed", "late", "lapsed", "failed", "lost", "work_s"),
        quantile(0.5).alias("p50_s"),
        quantile(0.99).alias("p99_s"),
        F.min("first_seen_ms").alias("first_seen_ms"),
        F.max("last_seen_ms").alias("last_seen_ms"),
    )
    return shaped(rows, WORKERS)


# --- hours -------------------------------------------------------------------------------------


def hour_tallies(attempts: DataFrame, messages: DataFrame) -> DataFrame:
    """Count by queue and hour: :data:`HOUR_TALLIES`."""
    # There are few ways in which hours come together, so each table is read once.
    stays = messages.groupBy(
        "account",
        "queue",
        "outcome",
        _hour("inserted_at_ms").alias("put_at"),
        _hour("first_leased_at_ms").alias("first_at"),
        _hour("ended_at_ms").alias("ended_at"),
    ).agg(
        F.count("*").alias("n"),
        (F.max(F.col("first_leased_at_ms") - F.col("inserted_at_ms")) / 1000).alias("waited_s"),
    )
    leases = attempts.groupBy(
        "account",
        "queue",
        "outcome",
        _hour("leased_at_ms").alias("leased_at"),
        _hour("ended_at_ms").alias("ended_at"),
    ).agg(F.count("*").alias("n"))
    fates = (Fate.COMPLETED, Fate.POISONED, Fate.EXPIRED, Fate.REMOVED)
    endings = {
        "late": Ending.COMPLETED_LATE,
        "lapsed": Ending.LAPSED,
        "failed": Ending.FAILED,
        "lost": Ending.SESSION_LOST,
        "buried": Ending.BURIED,
    }
    told = _told(
        stays,
        [
            ("put_at", {"put": "n"}),
            ("first_at", {"oldest_wait_s": "waited_s"}),
            (
                "ended_at",
                {"gone": "n", **{each.value: f"IF(outcome = '{each}', n, 0)" for each in fates}},
            ),
        ],
    ).unionByName(
        _told(
            leases,
            [
                ("leased_at", {"leased": "n"}),
                (
                    "ended_at",
                    {name: f"IF(outcome = '{each}', n, 0)" for name, each in endings.items()},
                ),
            ],
        )
    )
    return added_hours(told)


def added_hours(tallies: DataFrame) -> DataFrame:
    """Return tallies of which each may be there several times, each once."""
    key = {"account", "queue", "hour_ms", "oldest_wait_s"}
    counted = [name for name in HOUR_TALLIES.names if name not in key]
    rows = tallies.groupBy("account", "queue", "hour_ms").agg(
        *_sums(*counted), F.max("oldest_wait_s").alias("oldest_wait_s")
    )
    return shaped(rows, HOUR_TALLIES)


def queues_of(tallies: DataFrame) -> DataFrame:
    """Make the table of queues."""
    upto = (
        Window.partitionBy("account", "queue")
        .orderBy("hour_ms")
        .rowsBetween(Window.unboundedPreceding, Window.currentRow)
    )
    zero = F.lit(0.0)
    rows = added_hours(tallies).withColumns(
        {
            "hour": F.timestamp_millis("hour_ms"),
            "backlog_end": F.sum(F.col("put") - F.col("gone")).over(upto),
            "oldest_wait_s": F.greatest(F.coalesce("oldest_wait_s", zero), zero),
        }
    )
    return shaped(rows, QUEUES)


def _hour(moment: str) -> Column:
    return F.expr(f"{moment} DIV {_HOUR_MS}")


def _told(counted: DataFrame, parts: Sequence[tuple[str, Mapping[str, str]]]) -> DataFrame:
    """Return what is to be added up: each part in the hour that its column says, if there is one.

    As one step, so that what was counted is read once.
    """
    figures = [each for each in HOUR_TALLIES if each.name not in {"account", "queue", "hour_ms"}]
    structs = []
    for hour, own in parts:
        columns = (
            f"'{each.name}', cast({own.get(each.name, 'NULL')} AS {each.dataType.simpleString()})"
            for each in figures
        )
        structs.append(f"named_struct('hour_ms', {hour} * {_HOUR_MS}, {', '.join(columns)})")
    told = f"filter(array({', '.join(structs)}), each -> each.hour_ms IS NOT NULL)"
    return counted.select("account", "queue", F.inline(F.expr(told)))


def _sums(*names: str) -> list[Column]:
    return [F.coalesce(F.sum(name), F.lit(0)).alias(name) for name in names]


def _count_of(outcome: Ending | Fate) -> Column:
    return F.count_if(F.col("outcome") == outcome.value)
