"""What Spark calls: each method says in which process, when and how often."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from leasehold.spark.naming import TaskIdentity, current_task
from leasehold.spark.options import BadOption, ReadOptions
from leasehold.spark.stream import admission
from leasehold.spark.stream.consumer import Consumer
from leasehold.spark.stream.decoding import Decoder
from leasehold.spark.stream.keeping import end_on_sigterm, outlast_sigterm
from leasehold.spark.stream.numbers import claim_in, offset_of
from leasehold.spark.stream.opening import Taking
from leasehold.spark.stream.parts import Part, read_part


class ClaimReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a queue claim by claim: the offset is the number of the last claim.

    Spark makes two of these. One lives in a process of its own on the driver as long as the query;
    the other is pickled at once and read with on executors. So nothing is begun before it is used.

    Args:
        options: Of the read.
        schema: What Spark expects.

    Raises:
        BadOption: The options do not fit each other or the columns.
    """

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        if options.stream_id is None:
            raise BadOption(
                "option streamId is missing: a name for this query, which stays the same when it "
                "is started anew, and which no other query has"
            )
        if options.min_messages_per_trigger > options.max_messages_per_trigger:
            raise BadOption("option minMessagesPerTrigger is above maxMessagesPerTrigger")
        self._options = options
        self._decoder = Decoder(options, schema)
        self._consumer: Consumer | None = None
        self._taking = self._most(self.getDefaultReadLimit())
        self.task: Callable[[], TaskIdentity] = current_task
        """Tells which task reads."""

    # --- on the driver, in the process of the query ----------------------------------------------

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name, as all that follow
        """Return where a query without a checkpoint begins. Called twice; changes nothing.

        Not called where there is a checkpoint. See :meth:`Consumer.begin` for the errors.
        """
        return offset_of(self._driver.begin())

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return what the options say. Called once, before all else."""
        return ReadMaxRows(self._options.max_messages_per_trigger)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Note how much there is to take in all. Called once, with Trigger.AvailableNow only."""
        self._driver.limit_to_now()

    def latestOffset(  # noqa: N802
        self, start: dict[str, Any], limit: ReadLimit
    ) -> dict[str, Any]:
        """Settle what ends at *start*, and return the end of the next micro-batch.

        Called at every trigger; with the default trigger and no messages, again at once. It is
        *start* itself if there is nothing to take. See :meth:`Consumer.next` for the errors.
        """
        self._taking = self._most(limit)
        number = self._driver.next(claim_in(start), self._taking)
        return start if number is None else offset_of(number)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Return numbers for the query's progress. Called at every trigger."""
        return self._driver.report()

    def partitions(  # noqa: N802, RUF100 - Spark's
        self, start: dict[str, Any], end: dict[str, Any]
    ) -> list[InputPartition]:
        """Return the parts of a micro-batch; begin opening the next claim.

        Called once for each micro-batch; after a crash, for the one that was under way, before
        anything else. See :meth:`Consumer.adopt` for the errors.
        """
        if start == end:
            return []  # the first micro-batch of a query of which only another source has rows
        found = self._driver.adopt(claim_in(end))
        self._driver.prepare_next(self._taking)
        count = self._driver.parts(found.rows)
        token = self._driver.token
        return [Part(found, place, count, token) for place in range(count)]

    def commit(self, end: dict[str, Any]) -> None:
        """Settle what ends at *end*. Called a micro-batch late, and never when there is no next."""
        self._driver.settle(claim_in(end))

    def stop(self) -> None:
        """Let the claims go. Called when the process ends, also by SIGTERM."""
        if self._consumer is not None:
            outlast_sigterm()
            self._consumer.stop()

    def _most(self, limit: ReadLimit) -> Taking:
        options = self._options
        return Taking(admission.most_messages(limit, options), admission.most_bytes(limit, options))

    @property
    def _driver(self) -> Consumer:
        if self._consumer is None:
            end_on_sigterm()
            self._consumer = Consumer(self._options)
        return self._consumer

    # --- on executors ----------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the messages of a part. Called at each attempt, maybe twice at once.

        See :func:`read_part` for the errors.
        """
        assert isinstance(partition, Part)
        return read_part(self._options, self._decoder, partition, self.task())
