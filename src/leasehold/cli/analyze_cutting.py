"""Lifecycle tables as they would have been at the end of a stretch of time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it

from leasehold.spark.analytics.schemas import Ending, Fate

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_STAY = ("account", "queue", "message_id")


def cut(
    attempts: DataFrame, messages: DataFrame, since_ms: int, until_ms: int, *, is_past: bool
) -> tuple[DataFrame, DataFrame]:
    """Return the attempts and messages that were there in a stretch of time, as they were then.

    What ended before it is left out, and what began after it. What ended after it goes on; when it
    was renewed meanwhile is not in the tables, so its renewals and its lease stay.

    Args:
        attempts: The table of attempts.
        messages: The table of messages.
        since_ms: Where the stretch begins, Unix milliseconds; included.
        until_ms: Where it ends; not included.
        is_past: Whether the tables can know more than what was then.
    """
    inside = f"ended_at_ms IS NULL OR ended_at_ms >= {since_ms}"
    then = attempts.where(f"leased_at_ms < {until_ms}")
    stays = messages.where(f"inserted_at_ms < {until_ms}").where(inside)
    if not is_past:
        return then.where(inside), stays
    return (
        _going_on(then.where(inside), str(Ending.OPEN), until_ms, ("seconds",)),
        _counted(stays, then, until_ms),
    )


def _counted(stays: DataFrame, attempts: DataFrame, until_ms: int) -> DataFrame:
    """Return messages with the deliveries that they had had by then."""
    names = stays.columns
    going_on = stays.where(f"ended_at_ms IS NULL OR ended_at_ms >= {until_ms}")
    # A message that went to another queue and came back has had two stays: hence the least.
    known = attempts.groupBy(*_STAY).agg(F.count("*").alias("had"))
    had = "least(deliveries, coalesce(had, 0))"
    was = going_on.join(known, list(_STAY), "left").withColumns(
        {
            "deliveries": F.expr(f"cast({had} AS int)"),
            "redeliveries": F.expr(f"cast(greatest(0, least(redeliveries, {had} - 1)) AS int)"),
            "wait_s": F.expr(f"IF(first_leased_at_ms < {until_ms}, wait_s, NULL)"),
            "first_leased_at_ms": F.expr(
                f"IF(first_leased_at_ms < {until_ms}, first_leased_at_ms, NULL)"
            ),
        }
    )
    gone = stays.where(f"ended_at_ms < {until_ms}")
    open_ = _going_on(was.select(*names), str(Fate.OPEN), until_ms, ("handling_s", "total_s"))
    return gone.unionByName(open_)


def _going_on(rows: DataFrame, outcome: str, until_ms: int, lengths: tuple[str, ...]) -> DataFrame:
    """Return rows of which those that ended later have not ended yet."""
    later = f"ended_at_ms >= {until_ms}"
    unknown = ("reason", "error_type", "error_fingerprint", *lengths)
    columns = {name: F.expr(f"IF({later}, NULL, {name})") for name in unknown}
    columns["outcome"] = F.expr(f"IF({later}, '{outcome}', outcome)")
    if "finished" in rows.columns:
        columns["finished"] = F.expr(f"IF({later}, FALSE, finished)")
    columns["ended_at_ms"] = F.expr(f"IF({later}, NULL, ended_at_ms)")
    return rows.withColumns(columns)
