"""From tables to a summary that fits on the driver, whatever the size of the log.

What :func:`leasehold.advisor.observe` does lease by lease is done here in SQL, for all messages at
once: one observation for each message, late completions in full, lapses and lost sessions as not
finished, and what says nothing about work apart.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, TypeVar

from pyspark import StorageLevel
from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it

from leasehold.advisor import summaries as s
from leasehold.advisor.attempts import LAST_DELIVERY, SILENT_AFTER_S, SILENT_AFTER_TIMEOUTS
from leasehold.advisor.tables import derive
from leasehold.advisor.tables.derive import REFUSED, at_once, split, well_compiled, with_details
from leasehold.advisor.tables.lifecycle import marks, normal, staged
from leasehold.advisor.tables.schemas import Ending, Fate
from leasehold.domain.failures import MAX_DELIVERIES, MAX_LAPSES

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Row


_HOUR_MS: Final = 3_600_000
_MOST_WORKERS: Final = 1_000
_MOST_CLUSTERS: Final = 200
_STRETCHES: Final = 120
"""Into which a log is cut to see how evenly groups were served."""
_FOREVER_S: Final = 1e12
_UNRENEWED: Final = (
    f"outcome IN ('{Ending.COMPLETED_LATE}', '{Ending.LAPSED}') AND coalesce(renewals, 0) = 0"
)
_T = TypeVar("_T")
_Collected: TypeAlias = dict[tuple[str, str | None], list[_T]]


class Made(NamedTuple):
    """Tables that were made of attempts and messages before."""

    workers: DataFrame
    queues: DataFrame


def summarize(  # noqa: PLR0913 - keyword-only but for the events
    events: DataFrame,
    *,
    since_ms: int,
    until_ms: int,
    queues: Iterable[str] | None = None,
    source: str = "",
    details: DataFrame | None = None,
) -> s.LogSummary:
    """Summarize an event log.

    Args:
        events: With the columns of ``docs/reference/event-log.md``, of that stretch of time.
        since_ms: Where the stretch begins, Unix milliseconds; included.
        until_ms: Where it ends; not included. Leases that go on then are not finished.
        queues: Only these; None for all. In a log with several accounts the summary calls a queue
            ``account/queue``, and here such a name chooses that one, a plain name each of them.
        source: Where the log came from, for people.
        details: See :func:`leasehold.advisor.tables.incremental.update`.
    """
    rows = normal(events)
    stages = staged(rows).persist(StorageLevel.DISK_ONLY)
    try:
        tables = split(stages, marks(rows))
        with well_compiled(events.sparkSession):
            return summarize_tables(
                with_details(tables.attempts.unionByName(tables.open_attempts), details),
                with_details(tables.messages.unionByName(tables.open_messages), details),
                since_ms=since_ms,
                until_ms=until_ms,
                queues=queues,
                source=source,
                events=events.count(),
            )
    finally:
        stages.unpersist()


def summarize_tables(  # noqa: PLR0913 - keyword-only but for the tables
    attempts: DataFrame,
    messages: DataFrame,
    *,
    since_ms: int,
    until_ms: int,
    queues: Iterable[str] | None = None,
    source: str = "",
    events: int = 0,
    made: Made | None = None,
) -> s.LogSummary:
    """Summarize lifecycle tables; the arguments are those of :func:`summarize`, and *made*.

    With it the tables of workers and queues need not be made anew. They have to be of these very
    attempts and messages.

    Attempts that ended, and messages that were put, before *since_ms* count as well if they are in
    the tables; hours before it are left out.
    """
    chosen = None if queues is None else [*queues]
    accounts, many_types = looked_over(messages)
    several = len(accounts) > 1
    if made is None:
        made = Made(derive.workers(attempts), derive.queues(attempts, messages))
    attempts, messages, all_workers, all_hours = (
        _named(table, chosen, by_account=several) for table in (attempts, messages, *made)
    )
    own, typed = attempts.where("claim IS NULL"), messages
    if many_types:
        largest = largest_types(messages)
        own, typed = (of_types(table, largest) for table in (own, messages))
    # All of it fits on the driver, and is made by a job or two each; the longest is the first.
    observed, counts, deliveries, hours, stays, timelines, poison, workers, groups = at_once(
        lambda: _observed(own, until_ms),
        lambda: _collected(_counts(own), _figures),
        lambda: _collected(_deliveries(typed), _figures),
        lambda: _hours(all_hours, since_ms, until_ms),
        lambda: _by_queue(_standing(messages), lambda row: row),
        lambda: _timelines(attempts, messages),
        lambda: _poison(messages),
        lambda: _workers(all_workers),
        lambda: _groups(messages, since_ms, until_ms),
    )
    works = _works(observed, counts, deliveries)
    names = {*works, *hours, *stays}
    return s.LogSummary(
        since_ms=since_ms,
        until_ms=until_ms,
        events=events,
        source=source,
        accounts=tuple(sorted(each for each in accounts if each is not None)),
        queues=tuple(
            s.QueueSummary(
                queue=name,
                works=tuple(works.get(name, ())),
                hours=tuple(hours.get(name, ())),
                timelines=tuple(timelines.get(name, ())),
                poison=tuple(poison.get(name, ())),
                workers=tuple(workers.get(name, ())),
                groups=groups.get(name),
                **_stock(stays.get(name, [None])[0]),
            )
            for name in sorted(names)
        ),
    )


def _named(table: DataFrame, chosen: Sequence[str] | None, *, by_account: bool) -> DataFrame:
    """Choose queues; those of several accounts go by both names."""
    full = F.concat_ws("/", "account", "queue")
    if chosen is not None:
        table = table.where(F.col("queue").isin(list(chosen)) | full.isin(list(chosen)))
    return table.withColumn("queue", full) if by_account else table


# --- work --------------------------------------------------------------------------------------


class _Observed(NamedTuple):
    """What there is to learn from work, by queue and type."""

    bins: _Collected[Row]
    repeats: _Collected[tuple[float, float]]


def _observed(own: DataFrame, until_ms: int) -> _Observed:
    leases = told(own, until_ms)
    together = observed_together(leases, until_ms).persist(StorageLevel.DISK_ONLY)
    try:
        seen = observed_alone(leases, until_ms).unionByName(together)
        return _Observed(
            _collected(_bins(seen), lambda row: row),
            _collected(_repeats(together), lambda row: (row.first_s, row.second_s)),
        )
    finally:
        together.unpersist()


def _works(
    observed: _Observed, counts: _Collected[dict[str, Any]], stays: _Collected[dict[str, Any]]
) -> dict[str, list[s.Work]]:
    found: dict[str, list[s.Work]] = defaultdict(list)
    for queue, message_type in sorted({*counts, *stays}, key=repr):
        of = queue, message_type
        figures = {
            name: value
            for part in (counts, stays)
            for row in part.get(of, [])
            for name, value in row.items()
        }
        rows = sorted(observed.bins.get(of, ()), key=_place)
        found[queue].append(
            s.Work(
                message_type=message_type,
                bins=tuple(_bin(row) for row in rows if row.bin is not None),
                repeats=tuple(observed.repeats.get(of, ())),
                crashes=float(sum(row.crashes for row in rows)),
                silent=float(sum(row.silent for row in rows)),
                work_s=math.fsum(row.work_s for row in rows),
                left_out=sum(row.left_out for row in rows),
                given_up=sum(row.given_up for row in rows),
                **figures,
            )
        )
    return found


def _bins(seen: DataFrame) -> DataFrame:
    """Return observations by day and length; those without a length have no ``bin``."""
    place = F.floor(
        F.log(F.greatest(F.col("seconds"), F.lit(s.SHORTEST_BIN_S)) / s.SHORTEST_BIN_S)
        / math.log(s.BIN_RATIO)
    )
    length = F.when(F.col("seconds").isNotNull(), place)
    return seen.groupBy("queue", "message_type", "day", "finished", length.alias("bin")).agg(
        F.avg("seconds").alias("seconds"),
        F.count("*").alias("n"),
        F.sum("crashes").alias("crashes"),
        F.sum("silent").alias("silent"),
        F.coalesce(F.sum("work_s"), F.lit(0.0)).alias("work_s"),
        F.sum("left_out").alias("left_out"),
        F.sum("given_up").alias("given_up"),
    )


def _place(row: Row) -> tuple[float, int, bool]:
    return -1 if row.day is None else row.day, -1 if row.bin is None else row.bin, row.finished


def _bin(row: Row) -> s.Bin:
    return s.Bin(seconds=row.seconds, finished=row.finished, count=float(row["n"]), day=row.day)


def _figures(row: Row) -> dict[str, Any]:
    return {k: v for k, v in row.asDict().items() if k not in {"queue", "message_type"}}


def _repeats(seen: DataFrame) -> DataFrame:
    order = Window.partitionBy("queue", "message_type").orderBy("message_id")
    return (
        seen.where("second_s IS NOT NULL")
        .withColumn("n", F.row_number().over(order))
        .where(F.col("n") <= s.MOST_REPEATS)
        .select("queue", "message_type", "first_s", "second_s")
    )


def _counts(own: DataFrame) -> DataFrame:
    """Return what became of attempts, counted."""
    refused = F.col("reason").eqNullSafe(REFUSED)
    lost = F.col("outcome") == Ending.SESSION_LOST.value
    hidden = F.when(
        (F.col("outcome") == Ending.LAPSED.value), F.col("ended_at_ms") - F.col("leased_at_ms")
    ).when(lost, F.col("ended_at_ms") - F.col("leased_at_ms") - 1000 * F.col("seconds"))
    outcomes = {
        "completed": Ending.COMPLETED,
        "late": Ending.COMPLETED_LATE,
        "lapsed": Ending.LAPSED,
        "session_lost": Ending.SESSION_LOST,
        "failed": Ending.FAILED,
        "returned": Ending.RETURNED,
        "interrupted": Ending.INTERRUPTED,
        "buried": Ending.BURIED,
    }
    # There are few lengths that leases begin with.
    hour = F.floor(F.col("leased_at_ms") / _HOUR_MS).alias("hour")
    by_hour = own.groupBy("queue", "message_type", "first_lease_s", hour).agg(
        F.count("*").alias("leases"),
        *(_counted(ending, name) for name, ending in outcomes.items()),
        F.count_if(F.col("renewals") > 0).alias("renewed"),
        F.count_if(F.expr(_UNRENEWED)).alias("unrenewed"),
        F.count_if((F.col("outcome") == Ending.COMPLETED_LATE.value) & ~refused).alias(
            "late_accepted"
        ),
        F.coalesce(F.sum(F.when(refused | lost, F.col("seconds"))), F.lit(0.0)).alias(
            "wasted_work_s"
        ),
        (F.coalesce(F.max(hidden), F.lit(0)) / 1000).alias("worst_hidden_s"),
    )
    added = (*outcomes, "late_accepted", "renewed", "unrenewed", "wasted_work_s")
    key = "queue", "message_type"
    by_lease = by_hour.groupBy(*key, "first_lease_s").agg(
        *(F.sum(name).alias(name) for name in ("leases", *added)),
        F.max("worst_hidden_s").alias("worst_hidden_s"),
        F.max(F.struct("hour", "leases")).alias("newest"),
    )
    usual, newest = (
        f"IF(first_lease_s IS NULL, NULL, struct({order}, -first_lease_s))"
        for order in ("leases", "newest")
    )
    return by_lease.groupBy(*key).agg(
        *(F.sum(name).alias(name) for name in added),
        F.max("worst_hidden_s").alias("worst_hidden_s"),
        F.max_by("first_lease_s", F.expr(usual)).alias("usual_lease_s"),
        F.max_by("first_lease_s", F.expr(newest)).alias("newest_lease_s"),
        F.max("newest.hour").alias("newest_hour"),
    )


def _counted(outcome: Ending, name: str) -> Column:
    return F.count_if(F.col("outcome") == outcome.value).alias(name)


def _deliveries(messages: DataFrame) -> DataFrame:
    return messages.groupBy("queue", "message_type").agg(
        F.count_if(F.col("deliveries") > 0).alias("messages"),
        F.sum("deliveries").alias("deliveries"),
        F.count_if(F.col("outcome") == Fate.COMPLETED.value).alias("done"),
        F.count_if(F.col("outcome") == Fate.POISONED.value).alias("set_aside"),
        F.count_if(F.col("deliveries") > 1).alias("redelivered"),
        F.sum("redeliveries").alias("redeliveries"),
    )


# --- hours and stock ---------------------------------------------------------------------------


def _hours(rows: DataFrame, since_ms: int, until_ms: int) -> dict[str, list[s.Hour]]:
    sums = rows.withColumn("start_ms", F.unix_millis("hour")).where(F.col("start_ms") < until_ms)
    found: dict[str, dict[int, Row]] = defaultdict(dict)
    for row in sums.orderBy("queue", "start_ms").collect():
        found[row.queue][row.start_ms] = row
    return {queue: _filled(hours, since_ms, until_ms) for queue, hours in found.items()}


def _filled(hours: dict[int, Row], since_ms: int, until_ms: int) -> list[s.Hour]:
    """Return hours without gaps, up to the last whole one before the end of the log at least.

    One in which nothing happened has the backlog of before.
    """
    names = ("put", "leased", "completed", "late", "lapsed", "failed", "buried", "expired")
    filled = []
    backlog = 0
    end_ms = max(max(hours) + _HOUR_MS, until_ms // _HOUR_MS * _HOUR_MS)
    for start_ms in range(min(hours), end_ms, _HOUR_MS):
        row = hours.get(start_ms)
        if row is not None:
            backlog = max(0, row.backlog_end)
        if start_ms + _HOUR_MS <= since_ms:
            continue
        figures: dict[str, Any] = {} if row is None else {name: row[name] for name in names}
        waited = 0.0 if row is None else row.oldest_wait_s
        filled.append(
            s.Hour(start_ms=start_ms, backlog_end=backlog, oldest_wait_s=waited, **figures)
        )
    return filled


def _standing(messages: DataFrame) -> DataFrame:
    is_open = F.col("outcome") == Fate.OPEN.value
    lives_s = F.coalesce(
        (F.col("expires_at_ms") - F.col("inserted_at_ms")) / 1000, F.lit(_FOREVER_S)
    )
    return messages.groupBy("queue").agg(
        F.count_if(is_open).alias("open_messages"),
        F.min(F.when(is_open, F.col("inserted_at_ms"))).alias("oldest_open_ms"),
        F.min(F.when(is_open, F.col("expires_at_ms"))).alias("next_expiry_ms"),
        F.percentile_approx(lives_s, 0.1).alias("time_to_live_s"),
    )


def _stock(row: Row | None) -> dict[str, Any]:
    if row is None:
        return {}
    found = {name: row[name] for name in ("open_messages", "oldest_open_ms", "next_expiry_ms")}
    lives_s = row.time_to_live_s
    return {**found, "time_to_live_s": None if lives_s >= _FOREVER_S else lives_s}


# --- examples ----------------------------------------------------------------------------------


def _timelines(attempts: DataFrame, messages: DataFrame) -> dict[str, list[s.Timeline]]:
    order = Window.partitionBy("queue").orderBy(F.desc("deliveries"), "message_id")
    worst = (
        messages.where("deliveries > 1")
        .withColumn("n", F.row_number().over(order))
        .where(F.col("n") <= s.MOST_TIMELINES)
        .orderBy("queue", "n")
        .collect()
    )
    if not worst:
        return {}
    spans: dict[tuple[str, str, int], list[s.Span]] = defaultdict(list)
    for row in _within(attempts, worst).orderBy("leased_at_ms", "attempt").collect():
        spans[row.queue, row.message_id, row.w_inserted].append(_span(row))
    found: dict[str, list[s.Timeline]] = defaultdict(list)
    for row in worst:
        found[row.queue].append(
            s.Timeline(
                message_id=row.message_id,
                message_type=row.message_type,
                inserted_at_ms=row.inserted_at_ms,
                outcome=row.outcome,
                attempts=tuple(spans[row.queue, row.message_id, row.inserted_at_ms]),
            )
        )
    return found


def _within(attempts: DataFrame, stays: Sequence[Row]) -> DataFrame:
    """Return the attempts of some stays, and ``w_inserted``, which is the beginning of the stay."""
    names = ("queue", "message_id", "inserted_at_ms", "ended_at_ms")
    chosen = attempts.sparkSession.createDataFrame(
        [tuple(row[name] for name in names) for row in stays],
        "w_queue string, w_id string, w_inserted long, w_ended long",
    )
    own = "queue = w_queue AND message_id = w_id"
    during = "leased_at_ms >= w_inserted AND (w_ended IS NULL OR leased_at_ms <= w_ended)"
    return attempts.join(F.broadcast(chosen), F.expr(f"{own} AND {during}"))


def _span(row: Row) -> s.Span:
    return s.Span(
        attempt=row.attempt,
        leased_at_ms=row.leased_at_ms,
        ended_at_ms=row.ended_at_ms,
        lease_s=row.lease_s or 0.0,
        outcome=row.outcome,
        holder=row.holder,
        renewals=row.renewals or 0,
        error_type=row.error_type,
    )


def _poison(messages: DataFrame) -> dict[str, list[s.PoisonCluster]]:
    key = ["queue", "error_type", "error_fingerprint", "message_type"]
    given_up = messages.where(F.col("outcome") == Fate.POISONED.value).withColumn(
        "error_type", F.coalesce("error_type", "reason")
    )
    newest = Window.partitionBy(*key).orderBy(F.desc("ended_at_ms"), "message_id")
    rows = (
        given_up.withColumn("n", F.row_number().over(newest))
        .groupBy(*key)
        .agg(
            F.count("*").alias("found"),
            F.min("ended_at_ms").alias("first_ms"),
            F.max("ended_at_ms").alias("last_ms"),
            F.array_sort(
                F.collect_list(F.when(F.col("n") <= s.MOST_SAMPLE_IDS, F.struct("n", "message_id")))
            ).alias("samples"),
        )
    )
    largest = Window.partitionBy("queue").orderBy(F.desc("found"), "error_type")
    chosen = rows.withColumn("n", F.row_number().over(largest)).where(F.col("n") <= _MOST_CLUSTERS)
    return _by_queue(chosen.orderBy("queue", "n"), _cluster)


def _cluster(row: Row) -> s.PoisonCluster:
    return s.PoisonCluster(
        error_type=row.error_type,
        fingerprint=row.error_fingerprint,
        message_type=row.message_type,
        count=row.found,
        first_ms=row.first_ms,
        last_ms=row.last_ms,
        sample_ids=tuple(each.message_id for each in row.samples),
    )


def _workers(rows: DataFrame) -> dict[str, list[s.Worker]]:
    busiest = Window.partitionBy("queue").orderBy(F.desc("attempts"), "holder")
    rows = rows.withColumn("n", F.row_number().over(busiest))
    chosen = rows.where(F.col("n") <= _MOST_WORKERS).drop("n", "account")
    return _by_queue(
        chosen.orderBy("queue", F.desc("attempts"), "holder"),
        lambda row: s.Worker(**{k: v for k, v in row.asDict().items() if k != "queue"}),
    )


def _groups(messages: DataFrame, since_ms: int, until_ms: int) -> dict[str, s.Groups]:
    """Return the message groups of queues, the largest of each, and how evenly they were served."""
    largest = Window.partitionBy("queue").orderBy(F.desc("messages"), "group_id")
    whole = Window.partitionBy("queue")
    is_received = F.col("wait_s").isNotNull()
    rows = (
        messages.where("group_id IS NOT NULL")
        .groupBy("queue", "group_id")
        .agg(
            F.count("*").alias("messages"),
            F.count_if(F.col("outcome") == Fate.OPEN.value).alias("open_messages"),
            F.count_if(is_received).alias("received"),
            F.percentile_approx("wait_s", [0.5, 0.99]).alias("dwell"),
            F.max("wait_s").alias("dwell_longest_s"),
            F.coalesce(F.sum("handling_s"), F.lit(0.0)).alias("work_s"),
        )
        .withColumns({"n": F.row_number().over(largest), "found": F.count("*").over(whole)})
        .where(F.col("n") <= s.MOST_GROUPS)
        .orderBy("queue", "n")
        .collect()
    )
    by_queue: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        by_queue[row.queue].append(row)
    even = _fairness(messages, rows, since_ms, until_ms)
    return {
        queue: s.Groups(
            found=own[0].found,
            largest=tuple(map(_group, own)),
            fairness=even.get(queue),
        )
        for queue, own in by_queue.items()
    }


def _group(row: Row) -> s.Group:
    p50_s, p99_s = row.dwell or (None, None)
    names = ("group_id", "messages", "open_messages", "received", "dwell_longest_s", "work_s")
    return s.Group(**{name: row[name] for name in names}, dwell_p50_s=p50_s, dwell_p99_s=p99_s)


def _fairness(
    messages: DataFrame, rows: Sequence[Row], since_ms: int, until_ms: int
) -> dict[str, float | None]:
    """Return by queue how evenly its largest groups were served while they waited."""
    if not rows:
        return {}
    stretch_s = max(1.0, (until_ms - since_ms) / 1000 / _STRETCHES)
    kept = messages.sparkSession.createDataFrame(
        [(row.queue, row.group_id) for row in rows], "queue string, group_id string"
    )
    stretch = F.floor((F.col("first_leased_at_ms") - since_ms) / (stretch_s * 1000))
    found = (
        messages.where(f"wait_s IS NOT NULL AND first_leased_at_ms >= {since_ms}")
        .join(F.broadcast(kept), ["queue", "group_id"])
        .groupBy("queue", "group_id", stretch.alias("stretch"))
        .agg(
            F.count("*").alias("given"),
            F.min("wait_s").alias("least_s"),
            F.max("wait_s").alias("most_s"),
        )
    )
    by_queue = _by_queue(
        found,
        lambda row: s.GroupStretch(
            **{name: value for name, value in row.asDict().items() if name != "queue"}
        ),
    )
    return {queue: s.fairness(own, stretch_s) for queue, own in by_queue.items()}


# --- parts -------------------------------------------------------------------------------------


def _by_queue(rows: DataFrame, make: Callable[[Row], _T]) -> dict[str, list[_T]]:
    found: dict[str, list[_T]] = defaultdict(list)
    for row in rows.collect():
        found[row.queue].append(make(row))
    return found


def _collected(
    rows: DataFrame, make: Callable[[Row], _T]
) -> dict[tuple[str, str | None], list[_T]]:
    found: dict[tuple[str, str | None], list[_T]] = defaultdict(list)
    for row in rows.collect():
        found[row.queue, row.message_type].append(make(row))
    return found


# --- kinds -------------------------------------------------------------------------------------
#
# Types of messages: as many of a queue as somebody may look at, and all others as one.
#
# Each type is an observation of its own, with lengths by day that come to the driver. There are
# few types as they are meant; but whoever takes an id for a type makes one for each message.


MOST_TYPES: Final = 200
OTHER_TYPES: Final = "other"
"""What all types of messages but the largest of a queue are put together as."""


def looked_over(messages: DataFrame) -> tuple[set[str | None], bool]:
    """Return whose messages these are, and whether a queue has too many types."""
    types = messages.groupBy("account", "queue", "message_type").agg(F.lit(1).alias("one"))
    rows = types.groupBy("account", "queue").agg(F.count("*").alias("types")).collect()
    return {row.account for row in rows}, any(row.types > MOST_TYPES for row in rows)


def largest_types(messages: DataFrame) -> list[Row]:
    """Return queues and types: of each queue those of the most messages."""
    order = Window.partitionBy("queue").orderBy(F.desc("found"), "message_type")
    return (
        messages.where("message_type IS NOT NULL")
        .groupBy("queue", "message_type")
        .agg(F.count("*").alias("found"))
        .withColumn("n", F.row_number().over(order))
        .where(F.col("n") <= MOST_TYPES)
        .select("queue", "message_type")
        .collect()
    )


def of_types(table: DataFrame, largest: Sequence[Row]) -> DataFrame:
    """Put all types but the largest of each queue together; what has none stays so."""
    schema = "k_queue string, k_type string"
    kept = table.sparkSession.createDataFrame([tuple(row) for row in largest], schema)
    joined = table.join(
        F.broadcast(kept), F.expr("queue = k_queue AND message_type = k_type"), "left"
    )
    known = F.col("message_type").isNull() | F.col("k_type").isNotNull()
    of_type = F.when(known, F.col("message_type")).otherwise(F.lit(OTHER_TYPES))
    return joined.withColumn("message_type", of_type).drop("k_queue", "k_type")


# --- observing ---------------------------------------------------------------------------------
#
# One observation for each message: :func:`leasehold.advisor.observe` in SQL.


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


def day_in_sql(until_ms: int) -> str:
    """Return :func:`leasehold.advisor.summaries.day_of` in SQL."""
    parts = f"floor(greatest(0, {until_ms} - over_ms) / {_DAY_MS // s.PARTS})"
    fine = f"{parts} < {s.PARTS * s.FINE_DAYS}"
    return f"cast(IF({fine}, {parts} / {s.PARTS}, floor({parts} / {s.PARTS})) AS double)"


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
        f"{day_in_sql(until_ms)} AS day",
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

    Its columns: ``queue``, ``message_type``, ``message_id``, ``day`` (days before
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
            F.expr(f"min({day_in_sql(until_ms)})").alias("day"),
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
