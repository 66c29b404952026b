"""What Spark calls: tasks stage, the driver publishes what won, once, all together.

Spark makes a stream's writer anew for each batch, and pickles both kinds: they hold options only.
``write`` runs on executors, perhaps several times at once for the same rows; ``commit`` and
``abort`` run on the driver's machine. When ``commit`` fails, ``abort`` is called with the same
messages, although the publishing may have succeeded; so dropping never touches what is published.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from leasehold.client.errors import LeaseholdClientError, StagedNotFound
from leasehold.spark.connecting import connect, missing_queue_named, patient
from leasehold.spark.naming import current_task, transaction_name
from leasehold.spark.options import WriteOptions
from leasehold.spark.sink.columns import Rows
from leasehold.spark.sink.staging import Stager, TaskDone

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from leasehold.client import Client
    from leasehold.client.models import Published

Messages = Sequence[WriterCommitMessage | None]
"""One for each task that finished; None for those that did not."""

MAX_PARTS: Final = 10_000
"""Parts that one publish can name, as documented for the native API."""
_TASK_SHARE: Final = 0.2
"""Of the patience: a task that fails is tried again by Spark, a commit is not."""
log: Final = logging.getLogger("leasehold.spark")
_GIVE_UP_S: Final = 10.0
"""Patience of what only tidies up."""


class StagedRowsGone(RuntimeError):
    """Rows that were staged are not there any more, so nothing of the batch was published."""


class _Writer:
    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        self._options = options
        self._names_queues = "queue" in (name.lower() for name in schema.names)
        self._stager = Stager(
            rows=Rows.of(options, schema),
            queue=options.place.queue,
            chunk_rows=options.stage_rows,
            timeout_s=options.staging_timeout,
        )

    def _stage(self, name: str, part: str, batches: Iterator[pa.RecordBatch]) -> TaskDone:
        policy = patient(self._options.retry_patience * _TASK_SHARE)
        with connect(self._options.place, policy) as client, self._missing_queue_named(client):
            return self._stager.stage(client.transaction(name), part, batches)

    def _missing_queue_named(self, client: Client) -> AbstractContextManager[None]:
        """Say which queue is missing, if rows name none of their own."""
        return missing_queue_named(
            None if self._names_queues else self._options.place.queue, client
        )

    def _publish(self, name: str, parts: list[str], patience_s: float | None = None) -> Published:
        if len(parts) > MAX_PARTS:
            raise RuntimeError(
                f"{len(parts):,} tasks have staged rows, and {MAX_PARTS:,} can be published "
                "together: use fewer partitions (coalesce)"
            )
        policy = patient(self._options.retry_patience if patience_s is None else patience_s)
        with connect(self._options.place, policy) as client:
            try:
                return client.transaction(name).publish(parts)
            except StagedNotFound as refusal:
                raise StagedRowsGone(
                    f"{refusal} Rows that nobody publishes vanish after the option stagingTimeout "
                    f"({self._options.staging_timeout} s), or somebody has discarded them. Nothing "
                    "was published."
                ) from refusal

    def _discard(self, name: str, parts: list[str] | None) -> None:
        """Drop what is staged, if that can be done now; otherwise it vanishes in time."""
        with (
            connect(self._options.place, patient(_GIVE_UP_S)) as client,
            contextlib.suppress(LeaseholdClientError),
        ):
            client.transaction(name).discard(parts)


class StreamWriter(_Writer, DataSourceStreamArrowWriter):
    """Sends the rows of each micro-batch, once however often the batch is run."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskDone:
        """Stage the rows of one task, on an executor."""
        task = current_task()
        if task.query_id is None or task.batch_id is None:
            raise RuntimeError("this is no task of a streaming query")
        query = self._options.txn_app_id or task.query_id
        return self._stage(transaction_name(query, task.batch_id), task.part, iterator)

    def commit(self, messages: Messages, batch_id: int) -> None:
        """Publish what the tasks have staged; a batch that is published already stays as it is.

        That is told of: Spark runs a batch again only right after a crash, so at any other time
        the name was somebody else's. A batch without rows is published too: claims may be bound
        to its name, and are settled by that.
        """
        done = _finished(messages)
        if not done:
            return
        found = self._publish(done[0].transaction, _parts(done))
        if any(each.already for each in done):
            log.warning(
                "micro-batch %d was published before, as %s with %d rows, so its rows are dropped. "
                "That is right after a crash. At any other time the checkpoint is an old one, or "
                "txnAppId is that of another query or checkpoint",
                batch_id,
                done[0].transaction,
                found.rows,
            )

    def abort(self, messages: Messages, _batch_id: int) -> None:
        """Drop what finished tasks have staged, unless it is published.

        Others have dropped theirs, or died. What those leave is dropped when the batch is
        published by its next run.
        """
        done = _finished(messages)
        parts = _parts(done)
        if parts:
            self._discard(done[0].transaction, parts)


class BatchWriter(_Writer, DataSourceArrowWriter):
    """Sends the rows of a table, all together or not at all."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        self._run = uuid4().hex
        self._name = options.txn_id or f"spark.batch.{self._run}"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskDone:
        """Stage the rows of one task, on an executor."""
        # Tasks are numbered from 0 in every application, and two may write under one name.
        part = replace(current_task(), run_id=self._run).part
        return self._stage(self._name, part, iterator)

    def commit(self, messages: Messages) -> None:
        """Publish what the tasks have staged."""
        done = _finished(messages)
        parts = _parts(done)
        if not parts and not self._options.txn_id:
            return
        found = self._publish(self._name, parts)
        if any(each.already for each in done):
            log.warning(
                "nothing is sent: under txnId %s %d rows were published before",
                self._name,
                found.rows,
            )

    def abort(self, messages: Messages) -> None:
        """Drop what was staged, unless it is published."""
        if self._options.txn_id:
            # Another job may be writing under the same name.
            parts = _parts(_finished(messages))
            if parts:
                self._discard(self._name, parts)
            return
        # To publish nothing drops it all and closes the name to tasks that are still running.
        with contextlib.suppress(LeaseholdClientError):
            self._publish(self._name, [], _GIVE_UP_S)


def _finished(messages: Messages) -> list[TaskDone]:
    return [each for each in messages if isinstance(each, TaskDone)]


def _parts(done: list[TaskDone]) -> list[str]:
    return [each.part for each in done if each.rows]
