"""What one task does: stage its rows in few requests, and clean up after itself if it fails."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Protocol

import pyarrow as pa
from pyspark.sql.datasource import WriterCommitMessage

from leasehold.client.errors import AlreadyPublished, ConnectionFailed, LeaseholdClientError
from leasehold.spark.sink.columns import Rows

CHUNK_BYTES: Final = 8 * 1024 * 1024
"""Of one request, about; the client splits what is more."""


@dataclass(frozen=True, slots=True)
class TaskDone(WriterCommitMessage):
    """What a task tells the driver."""

    transaction: str
    part: str
    """What it staged its rows as."""
    rows: int
    """0 if it staged nothing: then there is no such part."""
    already: bool = False
    """The transaction had been published before; the rows were dropped."""


class Staging(Protocol):
    """What is needed of a transaction."""

    @property
    def name(self) -> str:
        """The transaction's name."""

    def stage_arrow(
        self, batch: Any, *, queue: str | None, part: str, timeout_s: int | None
    ) -> Any:
        """Stage rows; see :meth:`leasehold.client.handles.Transaction.stage_arrow`."""

    def discard(self, parts: Iterable[str] | None = None) -> Any:
        """Drop what is staged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stager:
    """How the rows of a task are staged. It can be pickled."""

    rows: Rows
    queue: str | None
    """Of rows that name none."""
    chunk_rows: int
    """Most rows of one request."""
    timeout_s: int
    """When staged rows vanish that nobody publishes, seconds."""

    def stage(self, transaction: Staging, part: str, batches: Iterable[pa.RecordBatch]) -> TaskDone:
        """Stage all rows as one part.

        If the transaction has been published already, by an earlier run of the same batch or by
        another attempt at this task, the rows are dropped: they are there. Whatever else goes
        wrong, what was staged is dropped as far as the server can be reached.

        Raises:
            BadColumns: A row cannot be a message.
            LeaseholdClientError: The server refuses a row, or cannot be reached.
        """
        count = 0
        try:
            for chunk in in_chunks(map(self.rows.messages, batches), self.chunk_rows):
                transaction.stage_arrow(
                    chunk, queue=self.queue, part=part, timeout_s=self.timeout_s
                )
                count += chunk.num_rows
        except AlreadyPublished:
            return TaskDone(transaction.name, part, 0, already=True)
        except BaseException as error:
            # Whoever cannot be reached has been waited for long enough.
            if count and not isinstance(error, ConnectionFailed):
                with contextlib.suppress(LeaseholdClientError):
                    transaction.discard([part])
            raise
        return TaskDone(transaction.name, part, count)


def in_chunks(batches: Iterable[pa.RecordBatch], most_rows: int) -> Iterator[pa.RecordBatch]:
    """Yield the same rows in batches of a size that is worth a request.

    Args:
        batches: In any sizes.
        most_rows: Of a chunk, 1 or more. It may also end at about CHUNK_BYTES.
    """
    gathered: list[pa.RecordBatch] = []
    rows = size = 0
    for whole in batches:
        rest = whole
        while rest.num_rows:
            piece = rest.slice(0, most_rows - rows)
            rest = rest.slice(piece.num_rows)
            gathered.append(piece)
            rows += piece.num_rows
            size += piece.nbytes
            if rows >= most_rows or size >= CHUNK_BYTES:
                yield _joined(gathered)
                gathered, rows, size = [], 0, 0
    if gathered:
        yield _joined(gathered)


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    return pa.Table.from_batches(batches).combine_chunks().to_batches()[0]
