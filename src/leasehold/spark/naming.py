"""Names that the source and the sink of one query must agree on."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

FORMAT_NAME: Final = "leasehold"
_NOT_IN_NAMES: Final = re.compile(r"[^A-Za-z0-9._:~-]")


def transaction_name(query_id: str, batch_id: str | int) -> str:
    """Return under which name a micro-batch stages what it sends.

    It is the same at a replay: Spark keeps both ids in the checkpoint.

    Args:
        query_id: Of the streaming query, or what the user gave as ``txnAppId``.
        batch_id: Of the micro-batch.
    """
    return f"spark.{_NOT_IN_NAMES.sub('-', query_id)}.{batch_id}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskIdentity:
    """Who a task is: which query and batch it works for, and which attempt at it this is."""

    query_id: str | None
    """None in a batch job."""
    batch_id: int | None
    run_id: str
    """New at each start of the query, unlike the others, as attempts are numbered anew then."""
    partition: int
    attempt: int
    """0 for the first attempt at this partition in this run."""
    task: int
    """Number of the attempt among all of the application."""

    @property
    def part(self) -> str:
        """Name of what this attempt stages within its transaction."""
        return f"{self.partition}.{self.run_id}.{self.task}"

    @property
    def transaction(self) -> str | None:
        """Name of the micro-batch's transaction; None in a batch job."""
        if self.query_id is None or self.batch_id is None:
            return None
        return transaction_name(self.query_id, self.batch_id)


def current_task() -> TaskIdentity:
    """Return who the running task is.

    Raises:
        RuntimeError: This is not a task of Spark.
    """
    from pyspark import TaskContext  # noqa: PLC0415 - names are used where Spark is not

    context: Any = TaskContext.get()
    if context is None:
        raise RuntimeError("there is no task here: this runs on executors only")
    batch_id = context.getLocalProperty("streaming.sql.batchId")
    return TaskIdentity(
        query_id=context.getLocalProperty("sql.streaming.queryId"),
        batch_id=None if batch_id is None else int(batch_id),
        run_id=context.getLocalProperty("spark.jobGroup.id") or "",
        partition=context.partitionId(),
        attempt=context.attemptNumber(),
        task=context.taskAttemptId(),
    )
