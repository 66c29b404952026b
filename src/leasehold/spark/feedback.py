"""The feedback loop as a streaming query: from late deletes to a visibility timeout that fits.

::

    from leasehold.spark import feedback

    query = feedback.start(spark, {"connectionString": "..."}, checkpoint="/data/feedback")

The event log is read as a stream; what it says of the work of each queue and type of message is
kept as state (:func:`estimates`); a timeout that is advised by it is written into the queue's
settings, within guard rails (:class:`TimeoutFeedback`), and told in a queue that producers and
operators can read. ``leasehold analyze --undo`` sets the queues back.

The estimates are those of the batch job, ``leasehold analyze``, over the same events: see
:meth:`leasehold.advisor.live_summary.LiveSummary.works`.
"""

from __future__ import annotations

import json
import logging
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import numpy as np
from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it
from pyspark.sql.streaming.state import GroupStateTimeout
from pyspark.sql.types import (
    BinaryType,
    DoubleType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from leasehold.advisor import Bounds, Prices
from leasehold.advisor.apply import Change, Current, change_for, current_of, settings_of
from leasehold.advisor.live_summary import Happened, LiveSummary
from leasehold.advisor.recommendation import Asked, recommend, today_in
from leasehold.advisor.rules import ENOUGH_FINISHED
from leasehold.advisor.statistics import kaplan_meier
from leasehold.advisor.summaries import QueueSummary, Work, sample_of
from leasehold.advisor.tables.lifecycle import FOLLOWED, normal
from leasehold.advisor.tallies import WEEK_MS
from leasehold.client.errors import QueueNotFound
from leasehold.client.models import QueueInfo
from leasehold.clock import Clock, SystemClock
from leasehold.domain.queue_settings import QueueSettings
from leasehold.spark.connection import FORMAT_NAME, connect, patient
from leasehold.spark.options import read_options

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import DataFrame, Row, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.state import GroupState

    from leasehold.client import Client

log = logging.getLogger("leasehold.spark")

NOTICES: Final = "-notices"
"""What follows a queue's name in that of the queue in which changes of its timeout are told."""
NOTICE_TYPE: Final = "timeout-changed"
"""Type of the messages there."""
NOTICE_LIVES_S: Final = 86_400
AFTER_UNDO_S: Final = 86_400.0
"""How long a queue is left alone of which advice was taken back."""
LONGEST_NAME: Final = 63
"""Of a queue, characters; a queue of a longer name than leaves room has no notices."""
_PATIENCE_S: Final = 60.0
_LOOK_S: Final = 0.1
_NO_NUMBER: Final = -1
_TEXTS: Final = frozenset({"queue", "message_id", "session", "reason", "target", "message_type"})


def _columns(*columns: tuple[str, Any]) -> StructType:
    return StructType([StructField(name, kind) for name, kind in columns])


ESTIMATES: Final = _columns(
    ("account", StringType()),
    ("queue", StringType()),
    ("message_type", StringType()),
    ("until", TimestampType()),
    ("events", LongType()),
    ("messages", LongType()),
    ("deliveries", LongType()),
    ("completed", LongType()),
    ("late", LongType()),
    ("late_share", DoubleType()),
    ("lapsed", LongType()),
    ("crashes", DoubleType()),
    ("p50_s", DoubleType()),
    ("p99_s", DoubleType()),
    ("lease_s", DoubleType()),
    ("changed_at", TimestampType()),
    ("advised_at", TimestampType()),
    ("done_since", LongType()),
    ("late_since", LongType()),
    ("work", BinaryType()),
)
"""The columns of :func:`estimates`; ``docs/reference/spark.md`` says what they mean."""
LATE_DELETES: Final = ("account", "queue", "message_type", "message_id", "leased_at", "deleted_at",
                       "seconds", "refused")  # fmt: skip
"""The columns of :func:`late_deletes`."""


def late_deletes(events: DataFrame) -> DataFrame:
    """Return the deletes that came when the lease was over, with the lease's own times.

    Args:
        events: With the columns of the event log, of a stream or not.

    Returns:
        A row for each: ``account``, ``queue``, ``message_type``, ``message_id``, ``leased_at``,
        ``deleted_at``, ``seconds`` from one to the other, and ``refused``, which is false for those
        that still counted since nobody else had received the message.
    """
    refused = "type = 'refused' AND since IS NOT NULL"
    accepted = "type = 'completed' AND phase = 'leased' AND visible_at <= happened_at"
    return events.where(f"({refused}) OR ({accepted})").selectExpr(
        "account",
        "queue",
        "message_type",
        "message_id",
        "since AS leased_at",
        "happened_at AS deleted_at",
        "(unix_millis(happened_at) - unix_millis(since)) / 1000 AS seconds",
        "type = 'refused' AS refused",
    )


def estimates(events: DataFrame, *, keep_ms: int = WEEK_MS) -> DataFrame:
    """Return what the work of queues is like, kept up as events come.

    It is a stateful operator, to be written in update mode: each micro-batch has the rows of those
    queues of which there were events. The state of an account is what its log has told so far:
    messages that were received and are not gone, and of each queue and type counts and lengths by
    the hour, the lengths in bins of 2 %.

    Args:
        events: The event log as a stream, with the columns ``docs/reference/event-log.md`` names.
            Each event once, in their order from one micro-batch to the next.
        keep_ms: Hours older than this are forgotten, milliseconds, an hour or more.

    Returns:
        A row for each queue and type of message with the columns of :data:`ESTIMATES`.
    """
    rows = normal(events, FOLLOWED).select("account", *map(_plain, Happened._fields))
    folding = rows.groupBy("account")
    return folding.applyInPandasWithState(
        _Fold(keep_ms),
        ESTIMATES,
        _columns(("summary", BinaryType())),
        "update",
        GroupStateTimeout.NoTimeout,
    )


def _plain(name: str) -> Any:
    """Return a column without nulls, if it is of numbers: pandas has no whole numbers with them."""
    if name in _TEXTS:
        return F.col(name)
    column = "count" if name == "dequeue_count" else name
    return F.coalesce(F.col(column).cast("long"), F.lit(_NO_NUMBER)).alias(name)


class _Fold:
    """Feeds the state of an account, and says what there is to say of queues with new events."""

    def __init__(self, keep_ms: int) -> None:
        self._keep_ms = keep_ms

    def __call__(
        self, key: tuple[Any, ...], parts: Iterator[pd.DataFrame], state: GroupState
    ) -> Iterator[pd.DataFrame]:
        """Use the events of a micro-batch."""
        import pandas as pd  # noqa: PLC0415 - on executors only

        # Spark puts what is yielded together, and pandas warns of columns without a value.
        warnings.filterwarnings("ignore", "The behavior of DataFrame concat", FutureWarning)
        summary = LiveSummary(self._keep_ms)
        if state.exists:
            summary = LiveSummary.from_bytes(bytes(state.get[0]), self._keep_ms)
        rows = sorted((row for part in parts for row in _rows(part)), key=itemgetter(0, 1))
        touched = summary.feed(_happened(row) for row in rows)
        state.update((summary.to_bytes(),))
        found = [row for queue in sorted(touched) for row in estimate_rows(key[0], queue, summary)]
        yield pd.DataFrame(found, columns=ESTIMATES.names)


def _rows(part: pd.DataFrame) -> Iterator[tuple[Any, ...]]:
    """Yield the events of a part; the first two columns tell them apart and give their order."""
    columns = [part[name] for name in Happened._fields]
    return zip(*columns, strict=True)


def _happened(row: tuple[Any, ...]) -> Happened:
    # No text is a number, so what is less than 0 is none in any column.
    return Happened._make(None if each == _NO_NUMBER else each for each in row)


def estimate_rows(account: str, queue: str, summary: LiveSummary) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of a queue, with the columns of :data:`ESTIMATES`."""
    settings = summary.settings(queue)
    for work in summary.works(queue):
        since = summary.since(queue, work.message_type)
        deletes = work.completed + work.late
        yield (
            account,
            queue,
            work.message_type,
            _moment(summary.until_ms),
            summary.events,
            work.messages,
            work.deliveries,
            work.completed,
            work.late,
            work.late / deletes if deletes else None,
            work.lapsed,
            work.crashes,
            *_quantiles(work),
            work.newest_lease_s,
            _moment(settings.changed_ms),
            _moment(settings.advised_ms),
            since.done,
            since.late,
            msgspec.msgpack.encode(work),
        )


def _quantiles(work: Work) -> tuple[float | None, float | None]:
    """Return how long half of the work takes at most, and 99 %; None beyond what was seen."""
    curve = kaplan_meier(sample_of(work.bins))

    def of(share: float) -> float | None:
        place = int(np.searchsorted(-curve.survival, -(1 - share) - 1e-12))
        return float(curve.times[place]) if place < len(curve.times) else None

    return of(0.5), of(0.99)


def _moment(at_ms: int) -> datetime | None:
    return datetime.fromtimestamp(at_ms / 1000, tz=UTC) if at_ms > 0 else None


# --- applying ----------------------------------------------------------------------------------


class _Estimate(NamedTuple):
    """The rows of one queue."""

    summary: QueueSummary
    until_ms: int
    changed_ms: int
    advised_ms: int
    rows: Sequence[Row]


class TimeoutFeedback:
    """For ``foreachBatch`` of :func:`estimates`: writes advice into queues, within guard rails.

    A timeout is changed only if

    - there are data enough, 30 finished attempts, and the change saves more than 3 % of the cost;
    - since the last change of the timeout 30 deletes came of leases that began after it, so that
      each step is judged before the next one;
    - it is within *floor_s* and *cap_s*, and at most twice or half of the one in force, unless
      *at_once*; and no shorter while messages are given up whose work may take longer;
    - nobody has taken advice back within a day: an undone queue is left alone for as long;
    - the workers do not renew. Those that do are told a plan for it, and the timeout stays.

    A micro-batch that is run again after a crash changes nothing a second time: what is written
    into the settings (``advised.at_ms``) is not older than the newest event that it rests on, and
    from estimates that are no newer than that nothing is changed.

    Each change is told in the queue ``QUEUE-notices``: old, new, and the late share of each type.

    Args:
        options: Of the data source, that say where the server is.
        queues: Only these; None for all.
        floor_s: No timeout shorter than this, whole seconds.
        cap_s: No timeout longer than this.
        at_once: Whether to go to the best timeout in one step.
        by_type: Whether message types get timeouts of their own, and the queue's stays.
        late_share: For the promise, see ``leasehold analyze --late-share``.
        duplicate_s: What work done twice costs, see there.
        after_undo_s: How long an undone queue is left alone, seconds.
        notices: Whether changes are told.
        clock: For the moment of a change.
    """

    def __init__(  # noqa: PLR0913 - keyword-only, and each is a choice of its own
        self,
        options: Mapping[str, str],
        *,
        queues: Sequence[str] | None = None,
        floor_s: int = 1,
        cap_s: int = 43_200,
        at_once: bool = False,
        by_type: bool = False,
        late_share: float = 0.01,
        duplicate_s: float | None = None,
        after_undo_s: float = AFTER_UNDO_S,
        notices: bool = True,
        clock: Clock | None = None,
    ) -> None:
        self._place = read_options({**options, "read": "events"}).place
        self._queues = None if queues is None else frozenset(queues)
        self._floor_s, self._cap_s, self._at_once = floor_s, cap_s, at_once
        self._by_type = by_type
        self._asked = Asked(
            prices=Prices(duplicate=duplicate_s),
            bounds=Bounds(floor_s=floor_s, cap_s=cap_s),
            late_share=late_share,
            at_once=at_once,
        )
        self._after_undo_ms = 1000 * after_undo_s
        self._notices = notices
        self._clock = clock or SystemClock()
        self._looked = False

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        """Look at the estimates of a micro-batch."""
        with connect(self._place, patient(_PATIENCE_S)) as client:
            for each in _by_queue(batch.collect(), client.account):
                name = each.summary.queue
                if self._queues is not None and name not in self._queues:
                    continue
                try:
                    self._look_at(each, client)
                except QueueNotFound:
                    log.info("micro-batch %d: the queue %s is gone", batch_id, name)
        self._looked = True

    def _look_at(self, each: _Estimate, client: Client) -> None:
        queue = client.queue(each.summary.queue)
        info = queue.info()
        settings = settings_of(info)
        kinds = self._kinds(each)
        if any(_is_done(each, current_of(settings, kind)) for kind in kinds):
            if not self._looked:
                # A crash may have come between the change and the notice of it.
                self._tell(each, client, info)
            return
        if self._is_undone(each, settings):
            log.debug("%s: advice was taken back, so it is left alone", queue.name)
            return
        changes = [self._change(each, settings, kind) for kind in kinds]
        patch = _together(changes)
        if not patch:
            log.debug("%s: %s", queue.name, " ".join(one.sentence for one in changes))
            return
        queue.update(settings=patch)
        told = " ".join(one.sentence for one in changes if one.patch is not None)
        log.warning("%s: %s", queue.name, told)
        self._tell(each, client, queue.info())

    def _kinds(self, each: _Estimate) -> list[str | None]:
        """Return the types of message to look at one by one; None for the queue as a whole."""
        types = [work.message_type for work in each.summary.works]
        typed: list[str | None] = [kind for kind in types if kind is not None]
        return typed if self._by_type and typed else [None]

    def _is_undone(self, each: _Estimate, settings: QueueSettings) -> bool:
        """Tell whether a person has taken advice back a short while ago."""
        if settings.advised is not None or settings.advised_by_type or not each.advised_ms:
            return False
        return each.until_ms < each.advised_ms + self._after_undo_ms

    def _change(self, each: _Estimate, settings: QueueSettings, kind: str | None) -> Change:
        """Return what to change for a type, or for the queue."""
        summary = each.summary
        done = sum(row.done_since for row in each.rows if kind is None or row.message_type == kind)
        if each.changed_ms and done < ENOUGH_FINISHED:
            told = f"{done} deletes since its last change are too few."
            return Change(queue=summary.queue, patch=None, sentence=told)
        only = next((work for work in summary.works if work.message_type == kind), None)
        types = [work.message_type for work in summary.works]
        asked = replace(self._asked, today={summary.queue: today_in(settings, types)})
        return change_for(
            recommend(summary, asked, None if kind is None else only),
            current_of(settings, kind),
            # No older than what it rests on: so the same estimates change nothing again.
            now_ms=max(each.until_ms, self._clock.now_ms()),
            floor_s=self._floor_s,
            cap_s=self._cap_s,
            at_once=self._at_once,
        )

    def _tell(self, each: _Estimate, client: Client, info: QueueInfo) -> None:
        """Tell producers and operators of a change; again for the same one changes nothing."""
        name, told = f"{info.name}{NOTICES}", notice(each.rows, info)
        if not self._notices or not told["at_ms"] or len(name) > LONGEST_NAME:
            return
        queue = client.queue(name)
        queue.create()
        queue.put(
            json.dumps(told),
            type=NOTICE_TYPE,
            time_to_live_s=NOTICE_LIVES_S,
            dedup_key=f"{info.name}-{told['at_ms']}",
        )


def _is_done(each: _Estimate, current: Current) -> bool:
    """Tell whether what these estimates ask for was done, or done since."""
    advised = current.advised
    return advised is not None and (advised.at_ms or 0) >= each.until_ms


def _together(changes: Sequence[Change]) -> dict[str, Any]:
    """Return several changes of a queue's settings as one, so that it is one step."""
    patch: dict[str, Any] = {}
    for each in changes:
        for name, value in (each.patch or {}).items():
            if name.endswith("_by_type"):
                patch.setdefault(name, {}).update(value)
            else:
                patch[name] = value
    return patch


def notice(rows: Sequence[Row], info: QueueInfo) -> dict[str, Any]:
    """Return what a change is told as: plain data, for JSON.

    Args:
        rows: The estimates of the queue that it rests on.
        info: The queue, with the advice in its settings.
    """
    settings = info.settings
    whole, by_type = settings.advised, settings.advised_by_type
    told = []
    for row in rows:
        # Of the leases under the timeout that was changed, if the log tells them apart.
        done, late = row.done_since, row.late_since
        if not done:
            done, late = row.completed + row.late, row.late
        own = by_type.get(row.message_type or "")
        told.append(
            {
                "type": row.message_type,
                "old_s": None if own is None else own.before_s,
                "new_s": None if own is None else own.visibility_timeout_s,
                "deletes": done,
                "late": late,
                "late_share": round(late / done, 4) if done else None,
                "p50_s": row.p50_s,
                "p99_s": row.p99_s,
            }
        )
    dates = [each.at_ms or 0 for each in (whole, *by_type.values()) if each is not None]
    return {
        "queue": info.name,
        "old_s": None if whole is None else whole.before_s,
        "new_s": settings.visibility_timeout_s,
        "first_lease_s": None if whole is None else whole.first_lease_s,
        "renew_every_s": None if whole is None else whole.renew_every_s,
        "because": None if whole is None else whole.because,
        "at_ms": max(dates, default=0),
        "types": told,
        "undo": f"leasehold analyze --undo --queue {info.name}",
    }


def _by_queue(rows: Sequence[Row], account: str) -> Iterator[_Estimate]:
    """Yield the estimates of an account's queues."""

    def key(row: Row) -> tuple[str, str]:
        return row.queue, row.message_type or ""

    own = sorted((row for row in rows if row.account == account), key=key)
    for queue, grouped in groupby(own, key=lambda row: str(row.queue)):
        of_queue = [*grouped]
        first = of_queue[0]
        works = tuple(msgspec.msgpack.decode(row.work, type=Work) for row in of_queue)
        yield _Estimate(
            summary=QueueSummary(queue=queue, works=works),
            until_ms=_millis(first.until),
            changed_ms=_millis(first.changed_at),
            advised_ms=_millis(first.advised_at),
            rows=of_queue,
        )


def _millis(moment: datetime | None) -> int:
    # Spark hands moments on in the zone of this process, without saying so.
    return 0 if moment is None else round(moment.timestamp() * 1000)


# --- the query ---------------------------------------------------------------------------------


def start(  # noqa: PLR0913 - keyword-only but for the first two
    spark: SparkSession,
    options: Mapping[str, str],
    *,
    checkpoint: str,
    every: str | None = "1 minute",
    events: DataFrame | None = None,
    keep_ms: int = WEEK_MS,
    **guard_rails: Any,
) -> StreamingQuery:
    """Start the feedback loop, and return its query.

    Args:
        spark: The session.
        options: Of the data source, that say where the server is. Others, such as
            ``maxEventsPerTrigger``, are those of the stream of events.
        checkpoint: Where Spark keeps state and progress. A query that is started anew with it goes
            on where this one ended.
        every: From one look at the log to the next, as ``1 minute``. None: use what there is now,
            and end, as a job that is started again and again does.
        events: The log as a stream, in place of the server's own; such as exported files.
        keep_ms: See :func:`estimates`.
        guard_rails: See :class:`TimeoutFeedback`.

    Raises:
        BadOption: The options are malformed.
    """
    if events is None:
        reading = spark.readStream.format(FORMAT_NAME).options(**options)
        events = reading.option("read", "events").load()
    writing = estimates(events, keep_ms=keep_ms).writeStream.queryName("leasehold-feedback")
    if every is None:
        writing = writing.trigger(availableNow=True)
    else:
        writing = writing.trigger(processingTime=every)
    return (
        writing.outputMode("update")
        .option("checkpointLocation", checkpoint)
        .foreachBatch(TimeoutFeedback(options, **guard_rails))
        .start()
    )


def stop(query: StreamingQuery, within_s: float = 60.0) -> bool:
    """Stop a query between two micro-batches, and return whether that was possible in time.

    One that is stopped in the middle of a micro-batch does it again at its next start, which is
    harmless, too.

    Args:
        query: As :func:`start` returns it.
        within_s: How long to wait for the micro-batch that is running, seconds.
    """
    clock = SystemClock()
    give_up_at_s = clock.monotonic_s() + within_s
    while query.isActive and query.status["isTriggerActive"]:
        if clock.monotonic_s() > give_up_at_s:
            query.stop()
            return False
        time.sleep(_LOOK_S)
    query.stop()
    return True
