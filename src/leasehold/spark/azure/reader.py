"""What Spark calls where the queue is a plain Azure Queue Storage."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from leasehold.spark.azure.batches import Batches
from leasehold.spark.azure.opening import open_batches
from leasehold.spark.azure.pages import page_of
from leasehold.spark.naming import TaskIdentity, current_task
from leasehold.spark.options import ReadOptions
from leasehold.spark.stream.admission import part_count
from leasehold.spark.stream.decoding import Decoder
from leasehold.spark.stream.keeping import end_on_sigterm, outlast_sigterm
from leasehold.spark.stream.problems import BadRecord, log

MOST_MESSAGES: Final = 5_000
"""Of one micro-batch: each has a lease of its own, which a request of its own renews."""
MOST_BYTES: Final = 64 << 20
"""Of one micro-batch: bodies travel from the driver to the executors."""
_OFFSET: Final = "batch"


@dataclass(frozen=True)
class Rows(InputPartition):
    """What one task yields: the rows themselves, since an executor could not receive them again."""

    stream: bytes
    """An Arrow stream."""
    is_once: bool = False
    """A second attempt at the task is not to have them."""

    @property
    def count(self) -> int:
        """How many there are."""
        with pa.ipc.open_stream(self.stream) as stream:
            return sum(batch.num_rows for batch in stream)


class AzureReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a queue in micro-batches that the driver holds on leases. The offset is their number.

    Args:
        options: Of the read.
        schema: What Spark expects.
        open_queue: Opens the queue with a manager of leases, when it is first used.

    Raises:
        BadOption: The options do not fit the columns.
    """

    def __init__(
        self,
        options: ReadOptions,
        schema: StructType,
        open_queue: Callable[[ReadOptions], Batches] = open_batches,
    ) -> None:
        # The SDK's adapter takes bodies out of their encoding.
        self._decoder = Decoder(dataclasses.replace(options, message_encoding="none"), schema)
        self._options = options
        self._open_queue = open_queue
        self._opened: Batches | None = None
        self._left: int | None = None
        """Messages that a query with Trigger.AvailableNow may still take; None: any number."""
        self.task: Callable[[], TaskIdentity] = current_task
        """Tells which task reads."""

    # --- on the driver, in the process of the query ----------------------------------------------

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's names, here and below
        """Return where a query without a checkpoint begins."""
        return {_OFFSET: 0}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return what the options say, within what leases can be kept of."""
        return ReadMaxRows(min(self._options.max_messages_per_trigger, MOST_MESSAGES))

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Note how much there is to take in all, as the service estimates it."""
        self._left = self._batches.depth().total or 0

    def latestOffset(  # noqa: N802
        self, start: dict[str, Any], limit: ReadLimit
    ) -> dict[str, Any]:
        """Complete what ends at *start*, and receive the next micro-batch.

        Raises:
            QueueError: The service refused, or did not answer for too long.
        """
        number = _batch_in(start)
        batches = self._batches
        batches.settle(number)
        if batches.has(number + 1):
            return {_OFFSET: number + 1}
        asked = limit.max_rows if isinstance(limit, ReadMaxRows) else MOST_MESSAGES
        most = min(asked, MOST_MESSAGES if self._left is None else self._left)
        if most < 1:
            return start
        wait_s = self._options.wait_seconds if self._left is None else 0
        most_bytes = min(self._options.max_bytes_per_trigger or MOST_BYTES, MOST_BYTES)
        taken = batches.take(number + 1, most, most_bytes, wait_s)
        if self._left is not None:
            self._left = self._left - taken if taken else 0
        return {_OFFSET: number + 1} if taken else start

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Return numbers for the query's progress; the service's own are estimates."""
        batches = self._batches
        return {"messages": batches.estimate(), "held": batches.held, "lost": batches.lost}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return the rows of a micro-batch in parts.

        Raises:
            BadRecord: A message cannot be decoded, and the options want an error.
        """
        number = _batch_in(end)
        if start == end:
            return []
        batches = self._batches
        if not batches.has(number):
            log.warning(
                "micro-batch %d was received by an earlier run and is empty now: its messages come "
                "again when their leases end",
                number,
            )
            return []
        is_once = self._options.delivery == "atMostOnce"
        rows = self._completed(number) if is_once else self._decoded(number)
        parts: list[InputPartition] = []
        count = part_count(rows.num_rows, self._options.num_partitions, os.cpu_count() or 1)
        for part in range(count):
            first, last = rows.num_rows * part // count, rows.num_rows * (part + 1) // count
            parts.append(Rows(_stream_of(rows.slice(first, last - first)), is_once))
        return parts

    def commit(self, end: dict[str, Any]) -> None:
        """Complete what ends at *end*; it is called a micro-batch late."""
        self._batches.settle(_batch_in(end))

    def stop(self) -> None:
        """Let the leases go; called when the process ends, also by SIGTERM."""
        if self._opened is not None:
            outlast_sigterm()
            self._opened.close()

    @property
    def _batches(self) -> Batches:
        if self._opened is None:
            end_on_sigterm()
            self._opened = self._open_queue(self._options)
            if self._options.delivery != "atMostOnce":
                log.warning(
                    "queue %s is read at least once: Azure Queue Storage cannot give the messages "
                    "of a micro-batch again after a crash, so some may be written twice",
                    self._options.queue,
                )
        return self._opened

    def _completed(self, number: int) -> pa.RecordBatch:
        """Return the rows of the messages that can be completed before they are written."""
        deliveries = self._batches.deliveries(number)
        rows = self._decoded(number)
        left = self._batches.settle(number)
        if not left:
            return rows
        readable = [each for each in deliveries if each.body_problem is None]
        page = page_of([each for each in readable if each.message_id not in left])
        return self._decoder.decode(page, number).batch

    def _decoded(self, number: int) -> pa.RecordBatch:
        deliveries = self._batches.deliveries(number)
        unread = {each.message_id: each.body_problem for each in deliveries if each.body_problem}
        page = page_of([each for each in deliveries if each.message_id not in unread])
        found = self._decoder.decode(page, number)
        bad = {**unread, **{each.message_id: each.error for each in found.bad}}
        how = self._options.on_bad_record
        if bad and how == "fail":
            message_id, error = next(iter(bad.items()))
            raise BadRecord(f"message {message_id}: {error}. It is one of {len(bad)}")
        # A message of which there is no body at all can only be set aside.
        self._batches.note_bad(number, bad if how == "poison" else unread)
        return found.batch

    # --- on executors ----------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a part."""
        assert isinstance(partition, Rows)
        if partition.is_once and self.task().attempt:
            log.warning("%d messages are not read a second time", partition.count)
            return
        with pa.ipc.open_stream(partition.stream) as stream:
            yield from (batch for batch in stream if batch.num_rows)


def _batch_in(offset: Any) -> int:
    """Return the number of the micro-batch at which an offset ends.

    Raises:
        ValueError: It is not an offset of this source.
    """
    number = offset.get(_OFFSET) if isinstance(offset, dict) else None
    if not isinstance(number, int):
        raise ValueError(  # noqa: TRY004 - it is what a checkpoint says, not what a caller passes
            f"the checkpoint's offset {offset!r} is none of service=azure: it is of another source"
        )
    return number


def _stream_of(rows: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_batch(rows)
    return bytes(sink.getvalue())
