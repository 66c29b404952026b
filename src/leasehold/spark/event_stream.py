"""The event log as a stream: what Spark calls, and where micro-batches of events end.

The offset is the number of the last batch of changes that was read (``seq``), and that of the
micro-batch before (``from``). The log is never changed, only deleted from its oldest end, so a
micro-batch is read again by reading the same numbers again: nothing is leased, and nothing has to
be settled.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from leasehold.client import Client
from leasehold.client.models import EventPage
from leasehold.clock import Clock, SystemClock
from leasehold.spark.batch.events import (
    PAGE,
    WORTHWHILE,
    Condition,
    EventPart,
    Pages,
    View,
    batch_of,
    read_pages,
    together,
    within,
)
from leasehold.spark.connection import connect, patient, show_sentences
from leasehold.spark.options import DataLost, ReadOptions, log
from leasehold.spark.schemas import part_count, ranges
from leasehold.spark.stream.releases import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

_LOOK_S: Final = 0.2
"""Between two looks at a log that has nothing new."""
_LEAST_PAGE: Final = 500
_MOST_UNWANTED: Final = 400_000
"""Events looked at after which a micro-batch ends even if hardly any of them is wanted, so that
Spark gets an answer and the offset goes on."""
_PASSED_S: Final = 600.0
"""How long the offset may stay where it is while the log goes on with what is not wanted: after
a restart, what was deleted in between counts as lost."""


@show_sentences
class EventStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads on in the event log; the offset is ``{"seq": N, "from": M}``, after M up to N.

    Spark makes two of these: one lives in a process of its own on the driver as long as the query,
    the other is pickled at once and read with on executors. So no request is made here.

    Args:
        options: Of the read.
        schema: What Spark expects.

    Raises:
        BadOption: The schema has columns that events do not have, or a time is not one.
    """

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._view = View(options, schema)
        self._position: LogPosition | None = None

    # --- on the driver, in the process of the query ----------------------------------------------

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name, as all that follow
        """Return where a query without a checkpoint begins. Called twice; changes nothing."""
        return {"seq": self._driver.begin()}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return what the options say. Called once, before all else."""
        return ReadMaxRows(self._options.max_events_per_trigger)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Note where the log ends now. Called once, with Trigger.AvailableNow only."""
        self._driver.limit_to_now()

    def latestOffset(  # noqa: N802
        self, start: dict[str, Any], limit: ReadLimit
    ) -> dict[str, Any]:
        """Return the end of the next micro-batch; *start* itself if there is nothing to read.

        Called at every trigger; with the default trigger and no events, again at once. See
        :meth:`LogPosition.next` for the errors.
        """
        most: int | None = self._options.max_events_per_trigger
        if isinstance(limit, ReadMaxRows):
            most = max(1, limit.max_rows)
        elif isinstance(limit, ReadAllAvailable):  # Spark's contract for Trigger.Once
            most = None
        end = self._driver.next(start["seq"], most)
        return start if end == start["seq"] else {"seq": end, "from": start["seq"]}

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Return where the log ends, for the query's progress. Called at every trigger."""
        return self._driver.report()

    def partitions(  # noqa: N802, RUF100 - Spark's
        self, start: dict[str, Any], end: dict[str, Any]
    ) -> list[InputPartition]:
        """Return the parts of a micro-batch. Called once for each; after a crash, before all.

        Spark keeps no initial offset: where the first micro-batch is repeated, *start* is what is
        initial now, and only *end* tells where it began.
        """
        low, high = end.get("from", start["seq"]) + 1, end["seq"] + 1
        if start == end or low >= high:
            return []
        count = part_count(self._options.num_partitions, None, high - low, WORTHWHILE)
        return [EventPart(Pages(first - 1, last - 1)) for first, last in ranges(low, high, count)]

    def offset_before(self, end: dict[str, Any]) -> dict[str, Any]:
        """Return where the micro-batch begins that ends at *end*."""
        return {"seq": end["from"]} if "from" in end else self.initialOffset()

    def with_identity(self, end: dict[str, Any]) -> dict[str, Any]:
        """Return *end*: a log has no streams."""
        return end

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: the server keeps no position of this query."""

    def stop(self) -> None:
        """Close the connections. Called when the process ends, unless it is killed."""
        if self._position is not None:
            self._position.close()

    @property
    def _driver(self) -> LogPosition:
        if self._position is None:
            self._position = LogPosition(self._options, self._view.conditions)
        return self._position

    # --- on executors ----------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a part. Called at each attempt, maybe twice at once.

        Raises:
            DataLost: Some were deleted since the micro-batch was planned, and the options do not
                accept that.
        """
        assert isinstance(partition, EventPart)
        assert isinstance(partition.value, Pages)
        found = read_pages(
            partition.value,
            self._options.place,
            self._view.columns,
            self._view.conditions,
            lambda page, after: check_kept(self._options, page, after),
        )
        return self._view.rows(found, None)


# --- position ------------------------------------------------------------------------------------


class LogPosition:
    """Finds where micro-batches end, in the one process that drives a query.

    Connections that fail are tried again for as long as the options say.

    Args:
        options: Of the read.
        conditions: Which events are wanted.
        clock: Tells how long it has waited.
    """

    def __init__(
        self, options: ReadOptions, conditions: tuple[Condition, ...], clock: Clock | None = None
    ) -> None:
        self._options = options
        self._conditions = conditions
        self._wanted = together(conditions)
        self._columns = [*dict.fromkeys(["seq", *(each.column for each in conditions)])]
        self._clock = clock or SystemClock()
        self._client: Client = connect(options.place, patient(options.retry_patience))
        self._began: int | None = None
        self._upto: int | None = None
        """Where a query with Trigger.AvailableNow ends."""
        self._passed = (0, 0)
        """An offset, and up to where there is nothing behind it that is wanted."""
        self._moved_s = self._clock.monotonic_s()
        """When the offset was given out that Spark has."""
        self._last_seq: int | None = None

    def begin(self) -> int:
        """Return the number of the batch after which a query without a checkpoint begins."""
        if self._began is None:  # the same answer each time: what is latest moves
            self._began = self._find_beginning()
        return self._began

    def _find_beginning(self) -> int:
        options = self._options
        for number in (options.starting_seq, options.starting_offsets):
            if isinstance(number, int):
                return number
        page = self._client.event_page(after=0, limit=1)
        last, first = page.last_seq or 0, page.first_seq or 0
        if options.starting_offsets == "latest":
            return last
        earliest = max(0, first - 1)
        if options.starting_time is None or not last:
            return earliest
        low, _ = within(self._client, self._conditions, earliest + 1, last + 1)
        return low - 1

    def limit_to_now(self) -> None:
        """Read from now on only up to the newest event there is now."""
        self._upto = self._client.event_page(after=0, limit=1).last_seq or 0

    def next(self, start: int, most: int | None) -> int:
        """Return the number of the last batch of the next micro-batch.

        Args:
            start: The last one that was read.
            most: Events after which the micro-batch ends; None: with the log.

        Returns:
            *start* if there is nothing to read, after waiting for it as the options say.

        Raises:
            DataLost: Events were deleted before they were read, or the log is another one, and the
                options do not accept that.
            LeaseholdClientError: The server refuses, or could not be reached for long.
        """
        until_s = self._clock.monotonic_s() + self._options.wait_seconds
        while True:
            end = self._look(start, most)
            left_s = until_s - self._clock.monotonic_s()
            if end != start or self._upto is not None or left_s <= 0:
                break
            threading.Event().wait(min(_LOOK_S, left_s))
        if end != start:
            self._moved_s = self._clock.monotonic_s()
        return end

    def report(self) -> dict[str, Any] | None:
        """Return where the log ended when it was looked at last."""
        return None if self._last_seq is None else {"seq": self._last_seq}

    def close(self) -> None:
        """Close the connections."""
        with contextlib.suppress(Exception):
            self._client.close()

    def _look(self, start: int, most: int | None) -> int:
        """Return where the next micro-batch ends if it is taken from what there is now."""
        known_for, passed = self._passed
        after = max(start, passed) if known_for == start else start
        found = looked_at = 0
        while True:
            if self._upto is not None and after >= self._upto:
                break
            left = PAGE if most is None else most - found
            limit = min(PAGE, max(_LEAST_PAGE, left))
            page = self._client.event_page(after=after, limit=limit)
            self._last_seq = page.last_seq
            if not check_kept(self._options, page, after):
                self._passed = (0, 0)
                return page.last_seq or 0
            seqs = self._wanted_in(page)
            if most is not None and len(seqs) > left:
                return seqs[left - 1]  # the rest of that batch comes along, and no other
            found += len(seqs)
            looked_at += len(page.events)
            after = max(after, page.next_after)
            if self._upto is not None:
                after = min(after, self._upto)
            if page.finished:
                break
            if most is not None and (found >= most or looked_at >= _MOST_UNWANTED):
                break
        is_far = most is not None and looked_at >= _MOST_UNWANTED
        is_old = after > start and self._clock.monotonic_s() - self._moved_s > _PASSED_S
        if found or is_far or is_old:
            return after
        self._passed = (start, after)
        return start

    def _wanted_in(self, page: EventPage) -> list[int]:
        """Return of each event of a page that is wanted the number of its batch."""
        last = page.next_after if self._upto is None else self._upto
        events = [each for each in page.events if each.seq <= last]
        rows = batch_of(events, self._client.account, self._columns)
        rows = rows if self._wanted is None else rows.filter(self._wanted)
        seqs: list[int] = rows.column("seq").to_pylist()
        return seqs


def check_kept(options: ReadOptions, page: EventPage, after: int) -> bool:
    """Tell whether the log goes on behind *after* without a gap that the options do not accept.

    Args:
        options: Of the read.
        page: Of the log, asked for after that number.
        after: The number of the last batch that was read.

    Returns:
        Whether the log has a batch of that number or a later one. If not, and that is accepted,
        reading goes on at the end of the log.

    Raises:
        DataLost: Events were deleted, or the log ends before that number, and the options say that
            the query is to fail then.
    """
    if page.last_seq is not None and page.last_seq < after:
        _report_loss(
            options,
            f"the event log ends at batch {page.last_seq}, and this query has read up to {after}: "
            "the database was restored from a backup, or the checkpoint is of another server",
        )
        return False
    if page.first_seq is not None and page.first_seq > after + 1:
        _report_loss(
            options,
            f"events behind batch {after} were deleted before they were read: the oldest batch "
            f"that is kept is {page.first_seq} (server settings events_retention_s and "
            "events_max_bytes)",
        )
    return True


def _report_loss(options: ReadOptions, what: str) -> None:
    if options.fail_on_data_loss:
        raise DataLost(
            f"{what}. Option failOnDataLoss=false goes on with what there is; or start the query "
            "with a new checkpoint"
        )
    log.warning("%s; going on", what)
