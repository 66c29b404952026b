"""From stages to tables: attempts, messages, and the events to be kept."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import reduce
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it

from leasehold.advisor.tables.lifecycle import CLEARING, DONE, MOVING, OVER, TO_BE_CHECKED, T, codes
from leasehold.advisor.tables.schemas import (
    ATTEMPTS,
    DETAILS,
    HOLDER_TALLIES,
    HOUR_TALLIES,
    MESSAGES,
    OPEN,
    QUEUES,
    WORKERS,
    Ending,
    Fate,
)
from leasehold.domain.failures import MAX_LAPSES

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import Column, SparkSession
    from pyspark.sql.types import StructType


REFUSED: Final = "refused"
"""Reason of an attempt whose completion came too late and was refused."""
_DAY_MS: Final = 86_400_000


class BadDetails(ValueError):
    """What was given as details of messages tells nothing of them."""


class Lifecycle(NamedTuple):
    """What became of messages; lazily."""

    attempts: DataFrame
    """Of stays that have ended."""
    messages: DataFrame
    """Stays that have ended."""
    open_attempts: DataFrame
    """Of messages that are still in a queue: those that have ended, and those that go on."""
    open_messages: DataFrame
    """Their stays: those that have ended, and those that go on."""
    open_events: DataFrame
    """The events of messages that are still there, of all their stays."""


def split(stages: DataFrame, marks: DataFrame, plain: DataFrame | None = None) -> Lifecycle:
    """Make tables of stages.

    Args:
        stages: As :func:`leasehold.advisor.tables.lifecycle.staged` makes them. They are read
            several times.
        marks: The sessions that were over by then, and the queues that were cleared since the
            oldest of the messages came; few.
        plain: The stages of messages that were done at their first delivery, where they are apart.
    """
    sessions = _sessions(marks)
    gone = stages.where("NOT is_open")
    still = _with_clearing(stages.where("is_open"), marks)
    # An attempt of a message that is still there is not final, even one in a queue that the message
    # has left for the poison queue: a late completion may be to come.
    ended = _attempts(_of_ended(gone), sessions)
    ended_still = _attempts(_of_ended(still), sessions)
    going_on = _going_on(still)
    cleared = "clearing IS NOT NULL"
    last, over_still = still.where("is_last"), _messages(still.where("m_outcome IS NOT NULL"))
    alone = [] if plain is None else [plain]
    return Lifecycle(
        attempts=_united(
            ATTEMPTS,
            *(_attempts(_of_ended(each)) for each in alone),
            ended,
            ended_still.where(cleared),
            going_on.where(cleared),
        ),
        messages=_united(
            MESSAGES,
            *map(_messages, alone),
            _messages(gone.where("m_outcome IS NOT NULL")),
            over_still.where(cleared),
            _staying(last.where(cleared)),
        ),
        open_attempts=_united(
            ATTEMPTS,
            ended_still.where(f"NOT ({cleared})"),
            going_on.where(f"NOT ({cleared})"),
        ),
        open_messages=_united(
            MESSAGES,
            over_still.where(f"NOT ({cleared})"),
            _staying(last.where(f"NOT ({cleared})")),
        ),
        open_events=shaped(still.where(f"NOT ({cleared})"), OPEN),
    )


def are_details(columns: Iterable[str]) -> bool:
    """Tell whether columns say anything of messages: those have the key, and something else."""
    has = {*columns}
    key, *others = DETAILS.names
    return key in has and not has.isdisjoint(others)


def with_details(rows: DataFrame, details: DataFrame | None) -> DataFrame:
    """Fill in what the log does not tell of messages; what is given wins over the log.

    Args:
        rows: Attempts or messages.
        details: With ``message_id`` and any other columns of
            :data:`~leasehold.advisor.tables.schemas.DETAILS`, one row for a message at most; None
            for nothing. An error is put down to what it was the end of: the message in the poison
            queue, and the attempts that failed or were buried.

    Raises:
        BadDetails: They lack the key, or everything else.
    """
    if details is None:
        return rows
    if not are_details(details.columns):
        key, *others = DETAILS.names
        raise BadDetails(
            f"details have the columns {', '.join(details.columns)}; they need {key}, and one or "
            f"more of {', '.join(others)}"
        )
    has = {*details.columns}
    known = details.select(
        *(
            (F.col(name) if name in has else F.lit(None).cast("string")).alias(f"d_{name}")
            for name in DETAILS.names
        )
    )
    blamed = f"outcome IN ('{Ending.FAILED}', '{Ending.BURIED}', '{Fate.POISONED}')"
    return (
        rows.join(known, F.expr("message_id = d_message_id"), "left")
        .withColumns(
            _computed(
                message_type="coalesce(d_message_type, message_type)",
                error_type=f"coalesce(IF({blamed}, d_error_type, NULL), error_type)",
                error_fingerprint=f"coalesce(IF({blamed}, d_error_fingerprint, NULL),"
                " error_fingerprint)",
            )
        )
        .select(*rows.columns)
    )


# --- what is known of many messages at once ----------------------------------------------------


def _with_clearing(stages: DataFrame, marks: DataFrame) -> DataFrame:
    """Add what cleared the queue where the message is, after it had come there."""
    cleared = (
        marks.where(f"t IN ({codes(CLEARING)})")
        .groupBy(F.col("account").alias("c_account"), F.col("queue").alias("c_queue"))
        .agg(F.expr("array_sort(collect_list(struct(seq, place, at, t)))").alias("clearings"))
    )
    joined = stages.join(
        F.broadcast(cleared), F.expr("account = c_account AND stay = c_queue"), "left"
    )
    came = "coalesce(entry_seq, seq)", "IF(entry_seq IS NULL, place, entry_place)"
    later = "get(filter(clearings, c -> c.seq > {0} OR (c.seq = {0} AND c.place > {1})), 0)"
    clearing = F.expr(later.format(*came))
    return joined.withColumn("clearing", clearing).drop("c_account", "c_queue", "clearings")


def _sessions(marks: DataFrame) -> DataFrame:
    """Return how sessions ended, and how long nothing had been heard of them."""
    silence = "try_cast(regexp_extract(reason, 'no heartbeat for ([0-9]+) s', 1) AS long)"
    return (
        marks.where(f"t IN ({codes(OVER)})")
        .groupBy(F.col("session").alias("s_session"))
        .agg(
            F.expr("min_by(t, struct(seq, place))").alias("s_t"),
            F.expr("min(struct(seq, place))").alias("s_pos"),
            F.expr("min(at)").alias("s_at"),
            F.expr(f"min({silence})").alias("s_silent_s"),
        )
    )


# --- attempts ----------------------------------------------------------------------------------


def _of_ended(stages: DataFrame) -> DataFrame:
    return stages.where("a_outcome IS NOT NULL AND a_leased IS NOT NULL")


_LATE_AT: Final = f"""
IF(told IN ('{Ending.LAPSED}', '{Ending.SESSION_LOST}'), a_refused, NULL)
"""
_CHECKED: Final = f"""
CASE WHEN a_outcome <> '{TO_BE_CHECKED}' THEN a_outcome
     WHEN s_t = {T["SESSION_LOST"]} THEN '{Ending.SESSION_LOST}'
     WHEN s_t = {T["SESSION_ENDED"]} THEN '{Ending.INTERRUPTED}'
     WHEN reason = '{MAX_LAPSES}' THEN '{Ending.LAPSED}'
     ELSE '{Ending.FAILED}' END
"""
_RAN_OUT: Final = f"told = '{Ending.LAPSED}' AND t NOT IN ({T['LEASE_ENDED']}, {T['POISONED']})"
_ENDED_AT: Final = f"""
CASE WHEN late_at IS NOT NULL THEN late_at
     WHEN {_RAN_OUT} THEN least(a_lease_end, m_ended)
     ELSE m_ended END
"""
_WORKED_UNTIL: Final = f"""
CASE WHEN late_at IS NULL AND told = '{Ending.SESSION_LOST}'
       THEN least(m_ended, coalesce(s_at - 1000 * s_silent_s, m_ended))
     ELSE ended_at_ms END
"""
_WHY: Final = f"""
CASE WHEN late_at IS NOT NULL THEN '{REFUSED}'
     WHEN t IN ({T["POISONED"]}, {T["LEASE_ENDED"]}, {T["REMOVED"]}, {T["LAPSED"]}) THEN a_why
     WHEN t = {T["EXPIRED"]} THEN 'expired' WHEN t = {T["REDRIVEN"]} THEN 'redriven'
     WHEN t = {T["AMENDED"]} THEN 'operator' END
"""


def _attempts(ended: DataFrame, sessions: DataFrame | None = None) -> DataFrame:
    """Return attempts; without sessions, of those that ended as it is told already."""
    asked = f"a_outcome IN ('{Ending.SESSION_LOST}', '{TO_BE_CHECKED}')"
    if sessions is None:
        joined = ended.withColumns(_computed(s_t="NULL", s_at="NULL", s_silent_s="NULL"))
    else:
        joined = ended.join(
            F.broadcast(sessions),
            F.expr(f"{asked} AND a_session = s_session AND s_pos <= struct(seq, place)"),
            "left",
        )
    told = joined.withColumn("told", F.expr(_CHECKED))
    told = told.withColumn("late_at", F.expr(_LATE_AT))
    told = told.withColumn("ended_at_ms", F.expr(_ENDED_AT))
    return told.withColumn("worked_until", F.expr(_WORKED_UNTIL)).withColumns(
        _computed(
            attempt="a_count",
            holder="a_holder",
            session_id="a_session",
            claim="a_claim",
            leased_at_ms="a_leased",
            seconds=_seconds("worked_until - a_leased"),
            lease_s=_seconds("a_lease_end - a_leased"),
            first_lease_s="a_first_ms / 1000",
            outcome=f"IF(late_at IS NOT NULL, '{Ending.COMPLETED_LATE}', told)",
            reason=_WHY,
            finished="late_at IS NOT NULL"
            f" OR told IN ('{Ending.COMPLETED}', '{Ending.COMPLETED_LATE}')",
            renewals="a_renewals",
            day=day_of("ended_at_ms"),
        )
    )


def _going_on(stages: DataFrame) -> DataFrame:
    """Return the leases that no event has ended, of messages that have not ended by one."""
    told = stages.where("g_leased IS NOT NULL").withColumn("told", F.expr(_LEFT_OPEN))
    is_late = f"(told = '{Ending.COMPLETED_LATE}')"
    return told.withColumns(
        _computed(
            ended_at_ms=f"""
            CASE WHEN {is_late} THEN g_refused WHEN told = '{Ending.LAPSED}' THEN visible
                 WHEN told = '{Ending.REMOVED}' THEN clearing.at END""",
        )
    ).withColumns(
        _computed(
            queue="stay",
            attempt="count",
            session_id="session",
            claim="g_claim",
            leased_at_ms="g_leased",
            seconds=_seconds("ended_at_ms - g_leased"),
            lease_s=_seconds("visible - g_leased"),
            first_lease_s="g_first_ms / 1000",
            outcome="told",
            reason=f"""
            CASE WHEN {is_late} THEN '{REFUSED}'
                 WHEN told = '{Ending.REMOVED}' THEN {_CLEARED_BY} END""",
            finished=is_late,
            day=day_of("coalesce(ended_at_ms, g_leased)"),
        )
    )


_CLEARED_BY: Final = f"IF(clearing.t = {T['QUEUE_CLEARED']}, 'queue-cleared', 'queue-deleted')"
_LEFT_OPEN: Final = f"""
CASE WHEN g_refused IS NOT NULL AND (visible <= clearing.at OR g_refused_last >= visible)
       THEN '{Ending.COMPLETED_LATE}'
     WHEN clearing IS NULL THEN '{Ending.OPEN}'
     WHEN visible <= clearing.at THEN '{Ending.LAPSED}'
     ELSE '{Ending.REMOVED}' END
"""


# --- messages ----------------------------------------------------------------------------------


def _messages(ended: DataFrame) -> DataFrame:
    """Return the stays that an event has ended."""
    done = f"t IN ({DONE}) AND a_outcome IS NOT NULL"
    told = ended.withColumns(
        _computed(ended_at_ms="m_ended", inserted_at_ms="m_inserted", deliveries="m_deliveries")
    )
    return _told_of_stay(told).withColumns(
        _computed(
            outcome="m_outcome",
            reason=f"CASE WHEN t IN ({T['POISONED']}, {T['REMOVED']}) THEN reason"
            f" WHEN t = {T['REDRIVEN']} THEN 'redriven' END",
            handling_s=f"IF({done}, {_seconds('m_ended - a_leased')}, NULL)",
            expires_at_ms="m_expires",
            day=day_of("ended_at_ms"),
        )
    )


def _staying(last: DataFrame) -> DataFrame:
    """Return the stays that no event has ended; of a message that is there, or was cleared."""
    told = last.withColumns(
        _computed(
            ended_at_ms="clearing.at",
            # With an event of moving one stay ends, and this one begins.
            inserted_at_ms=f"IF(t IN ({codes(MOVING)}), at, m_inserted)",
            deliveries=f"IF(t IN ({codes(MOVING)}), 0, m_deliveries)",
        )
    )
    return _told_of_stay(told).withColumns(
        _computed(
            queue="stay",
            outcome=f"IF(clearing IS NULL, '{Fate.OPEN}', '{Fate.REMOVED}')",
            reason=f"IF(clearing IS NULL, NULL, {_CLEARED_BY})",
            handling_s="NULL",
            expires_at_ms="expires",
            # Those of the event would be of an attempt, and another one may follow.
            error_type="NULL",
            error_fingerprint="NULL",
            day=day_of("coalesce(ended_at_ms, inserted_at_ms)"),
        )
    )


def _told_of_stay(told: DataFrame) -> DataFrame:
    return told.withColumns(
        _computed(
            first_leased_at_ms="IF(deliveries > 0, m_first_at, NULL)",
            wait_s=f"IF(deliveries > 0, {_seconds('m_wait_ms')}, NULL)",
            redeliveries="greatest(0, deliveries - 1)",
            total_s=_seconds("ended_at_ms - inserted_at_ms"),
        )
    )


# --- parts -------------------------------------------------------------------------------------


def _computed(**columns: str) -> dict[str, Column]:
    return {name: F.expr(text) for name, text in columns.items()}


def _seconds(length_ms: str) -> str:
    """Return a length; a clock that was set back must not make it less than nothing."""
    return f"(IF({length_ms} < 0, 0, {length_ms}) / 1000)"


def day_of(moment: str) -> str:
    """Return the day of a moment, UTC, in whatever zone the session is."""
    return f"date_from_unix_date(cast(floor({moment} / {_DAY_MS}) AS int))"


def _united(schema: StructType, *parts: DataFrame) -> DataFrame:
    return reduce(DataFrame.unionByName, (shaped(part, schema) for part in parts))


def shaped(rows: DataFrame, schema: StructType) -> DataFrame:
    """Return the columns of a schema, in its types."""
    return rows.select(
        *(F.col(field.name).cast(field.dataType).alias(field.name) for field in schema)
    )


# --- derived -----------------------------------------------------------------------------------
#
# Tables made of attempts and messages: workers, and the hours of queues.
#
# Both are made in two steps. Tallies are small, and can be added to each other: those of what has
# ended for good are kept between runs, and each run adds its own. The tables are made of tallies.


_KNOWN_WORK: Final = (
    Ending.COMPLETED,
    Ending.COMPLETED_LATE,
    Ending.FAILED,
    Ending.RETURNED,
    Ending.INTERRUPTED,
    Ending.BURIED,
    Ending.SESSION_LOST,
)
"""Endings that tell how long a worker worked."""
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


# --- atonce ------------------------------------------------------------------------------------
#
# Several things for Spark to do at the same time, so that no core waits for another's last task.
#
# The last tasks of a job leave cores without work, and so does planning the next one. Jobs that do
# not need each other fill these gaps for each other.


def at_once(*jobs: Callable[[], Any]) -> list[Any]:
    """Do all of *jobs* at the same time, and return what they return, in their order.

    Each begins in its place in the order, so the longest should be the first. All have come to
    their end when this returns or raises.

    Raises:
        Exception: What the first of them in the order raised that did not succeed.
    """
    with ThreadPoolExecutor(max_workers=len(jobs)) as pool:
        begun = [pool.submit(job) for job in jobs]
    return [each.result() for each in begun]


# --- compiling ---------------------------------------------------------------------------------
#
# Settings of Spark's for plans as wide as ours.


# Spark makes one Java method of several steps of a plan. HotSpot never compiles methods of more
# than 8,000 bytes, and interprets them, which takes twice as long as the whole plan otherwise. With
# this limit Spark makes smaller methods of such plans.
_WHILE_AT_IT: Final = {
    "spark.sql.codegen.hugeMethodLimit": "8000",
    # Rows need not be sorted by day to be written by day, as long as a task has few days.
    "spark.sql.maxConcurrentOutputFileWriters": "16",
}


@contextmanager
def well_compiled(spark: SparkSession) -> Iterator[None]:
    """Have plans of this session compiled so that Java is quick with them, as long as it lasts."""
    before = {name: str(spark.conf.get(name)) for name in _WHILE_AT_IT}
    _set(spark, _WHILE_AT_IT)
    try:
        yield
    finally:
        _set(spark, before)


def _set(spark: SparkSession, values: Mapping[str, str]) -> None:
    for name, value in values.items():
        spark.conf.set(name, value)
