"""One observation for each message: :func:`leasehold.tuning.observe` in SQL."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it

from leasehold.domain.failures import MAX_DELIVERIES, MAX_LAPSES
from leasehold.spark.analytics.schemas import Ending
from leasehold.tuning.observing import LAST_DELIVERY, SILENT_AFTER_S, SILENT_AFTER_TIMEOUTS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_DAY_MS: Final = 86_400_000
_DONE: Final = f"('{Ending.COMPLETED}', '{Ending.COMPLETED_LATE}')"
_RAN_OUT_MS: Final = "(leased_at_ms + lease_s * 1000)"
_WORD: Final = f"""
CASE WHEN outcome IN {_DONE} THEN 'done'
     WHEN outcome = '{Ending.OPEN}' AND {_RAN_OUT_MS} > {{until_ms}} THEN 'going'
     WHEN outcome = '{Ending.SESSION_LOST}' THEN 'died'
     WHEN outcome IN ('{Ending.LAPSED}', '{Ending.OPEN}') THEN 'lapsed'
     ELSE 'left' END
"""


_ALONE: Final = "(attempt = 1 AND word = 'done' AND coalesce(reason, '') <> 'refused')"


_GAVE_UP: Final = (
    f"(word = 'lapsed' AND coalesce(reason IN ('{MAX_DELIVERIES}', '{MAX_LAPSES}'), FALSE))"
)
# Each of its leases lapsed, and then it was given up: slow work and dead workers look alike.
_GIVEN_UP: Final = (
    "exists(all_leases, l -> l.gave_up) AND forall(all_leases, l -> l.word IN ('lapsed', 'left'))"
)
_USED: Final = f"""
filter(all_leases, l -> l.word <> 'left'
                        AND (l.attempt <= {LAST_DELIVERY} OR known IS NOT NULL OR given_up))
"""


def _day(until_ms: int) -> str:
    return f"cast(greatest(0, floor(({until_ms} - over_ms) / {_DAY_MS})) AS int)"


def told(attempts: DataFrame, until_ms: int) -> DataFrame:
    """Return attempts as leases that have ended, one way or another, by *until_ms*.

    One that goes on has lasted until then, and is no crash, whatever is known of its message; one
    whose lease has run out, without anybody having noticed, has lapsed.
    """
    until = f"IF(outcome = '{Ending.OPEN}', least({until_ms}, {_RAN_OUT_MS}), NULL)"
    return attempts.withColumns(
        {
            "word": F.expr(_WORD.format(until_ms=until_ms)),
            "over_ms": F.expr(f"coalesce(ended_at_ms, {until})"),
        }
    ).withColumn(
        "seconds",
        F.expr("coalesce(seconds, IF(over_ms < leased_at_ms, 0, over_ms - leased_at_ms) / 1000)"),
    )


def observed_alone(leases: DataFrame, until_ms: int) -> DataFrame:
    """Return what there is to learn from messages that were done at their first delivery.

    Most are, and they are an observation as they are. Columns and arguments are those of
    :func:`observed_together`.
    """
    return leases.where(_ALONE).selectExpr(
        "queue",
        "message_type",
        "message_id",
        f"{_day(until_ms)} AS day",
        "seconds",
        "TRUE AS finished",
        "0L AS crashes",
        "0L AS silent",
        "seconds AS work_s",
        "0L AS left_out",
        "0L AS given_up",
        "cast(NULL AS double) AS first_s",
        "cast(NULL AS double) AS second_s",
    )


def observed_together(leases: DataFrame, until_ms: int) -> DataFrame:
    """Return one row for each stay of the other messages, with what there is to learn from it.

    Its columns: ``queue``, ``message_type``, ``message_id``, ``day`` (whole days before
    *until_ms*), ``seconds`` and ``finished`` of the observation or null, ``crashes``, ``silent``,
    ``work_s``, ``left_out``, ``given_up``, and ``first_s`` and ``second_s`` of two finished
    attempts.

    Args:
        leases: As :func:`told` makes them. Late completions are among them as far as there are any.
        until_ms: The end of the log.
    """
    lease = f"struct(leased_at_ms, word, seconds, over_ms, attempt, {_GAVE_UP} AS gave_up)"
    groups = (
        leases.where(f"NOT ({_ALONE})")
        .groupBy("queue", "message_type", "message_id")
        .agg(
            F.expr(f"min({_day(until_ms)})").alias("day"),
            F.expr("min(IF(word = 'done', seconds, NULL))").alias("known"),
            F.expr(f"array_sort(collect_list({lease}))").alias("all_leases"),
        )
        .withColumn("given_up", F.expr(_GIVEN_UP))
        .withColumn("leases", F.expr(_USED))
        .withColumn("left_out", F.expr("cast(size(all_leases) - size(leases) AS long)"))
    )
    silent_after = f"greatest({SILENT_AFTER_TIMEOUTS} * l.seconds, {SILENT_AFTER_S})"
    # Where late completions are in the log, whoever says nothing for long is dead.
    is_dead = (
        "NOT given_up AND (l.word = 'died' OR (l.word = 'lapsed'"
        " AND (coalesce(known <= l.seconds, FALSE)"
        f" OR ({until_ms} - l.over_ms) / 1000 >= {silent_after})))"
    )
    seen = f"filter(leases, l -> NOT ({is_dead}) OR l.word = 'died')"
    zero = "cast(0 AS double)"
    done = "transform(filter(leases, l -> l.word = 'done'), l -> l.seconds)"
    return groups.where("size(leases) > 0 OR left_out > 0").selectExpr(
        "queue",
        "message_type",
        "message_id",
        "day",
        f"coalesce(known, array_max(transform({seen}, l -> l.seconds))) AS seconds",
        "known IS NOT NULL AS finished",
        f"cast(size(filter(leases, l -> {is_dead})) AS long) AS crashes",
        f"cast(IF(size(leases) > 0 AND known IS NULL AND size({seen}) = 0, 1, 0) AS long)"
        " AS silent",
        f"aggregate({seen}, {zero}, (sum, l) -> sum + l.seconds) AS work_s",
        "left_out",
        "cast(IF(given_up, 1, 0) AS long) AS given_up",
        f"get({done}, 0) AS first_s",
        f"get({done}, 1) AS second_s",
    )
