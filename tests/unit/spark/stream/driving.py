"""Queries without Spark: readers whose methods are called as Spark calls them."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterable
from typing import Any

import pyarrow as pa
from pyspark.sql.types import StructType

from leasehold.client import QueueHandle
from leasehold.client.handles import Stream
from leasehold.spark.connection import TaskIdentity
from leasehold.spark.options import read_options
from leasehold.spark.source import LeaseholdDataSource
from leasehold.spark.stream.reader import ClaimReader

BASE = {"queueName": "orders", "streamId": "totals", "waitSeconds": "0"}


def task(batch_id: int = 0, **members: Any) -> TaskIdentity:
    """Return who a task of the query "q" is."""
    given: dict[str, Any] = {"query_id": "q", "run_id": "r", "partition": 0, "attempt": 0}
    return TaskIdentity(batch_id=batch_id, **({**given, "task": 0} | members))


class ByHand:
    """One run of a query."""

    def __init__(self, options: dict[str, str], schema: StructType | None = None) -> None:
        source = LeaseholdDataSource(options)
        made = source.streamReader(schema or source.schema())
        if not isinstance(made, ClaimReader):
            made.initialOffset()
        assert isinstance(made, ClaimReader)
        self.reader = made
        # What executors read with is pickled before it was ever used.
        self.on_executors: ClaimReader = pickle.loads(pickle.dumps(made))
        self.limit = made.getDefaultReadLimit()

    def begin(self) -> dict[str, Any]:
        """Return where a query without a checkpoint begins."""
        first = self.reader.initialOffset()
        assert self.reader.initialOffset() == first
        return first

    def trigger(self, start: dict[str, Any]) -> dict[str, Any]:
        """Ask for the next offset; a new one comes from JSON, as Spark keeps it."""
        end = self.reader.latestOffset(start, self.limit)
        return end if end is start else dict(json.loads(json.dumps(end)))

    def batches(
        self, start: dict[str, Any], end: dict[str, Any], who: TaskIdentity | None = None
    ) -> list[pa.RecordBatch]:
        """Plan a micro-batch and read all its parts."""
        found: list[pa.RecordBatch] = []
        for part in self.reader.partitions(start, end):
            self.on_executors.task = lambda: who or task()
            found += self.on_executors.read(pickle.loads(pickle.dumps(part)))
        return found

    def bodies(
        self, start: dict[str, Any], end: dict[str, Any], who: TaskIdentity | None = None
    ) -> list[bytes]:
        """Plan a micro-batch, and return the bodies of its messages in their order."""
        return column(self.batches(start, end, who), "body")

    def kill(self) -> None:
        """End the run as SIGKILL would: nothing is given back, nobody extends anything."""
        driver = self.reader._driver
        driver._keeper.end(5)
        driver._ahead.leave(5)
        driver._is_stopped = True
        driver._client.close()
        driver._brisk.close()


class Driving:
    """Makes queries, and ends them."""

    def __init__(self, connection_string: str) -> None:
        self.connection_string = connection_string
        self._made: list[ByHand] = []

    def query(self, schema: StructType | None = None, /, **options: str) -> ByHand:
        """Return a new run of a query; options replace and add to the usual ones."""
        made = ByHand(self.options(**options), schema)
        self._made.append(made)
        return made

    def options(self, **options: str) -> dict[str, str]:
        """Return the options of a query."""
        return {**BASE, "connectionString": self.connection_string, **options}

    def close(self) -> None:
        """Stop all that run."""
        for each in self._made:
            each.reader.stop()


def column(batches: Iterable[pa.RecordBatch], name: str) -> list[Any]:
    """Return the values of a column."""
    return [value for batch in batches for value in batch.column(name).to_pylist()]


def claims_of(stream: Stream) -> list[tuple[int, str]]:
    """Return the numbers and states of a stream's claims."""
    return [(claim.number, claim.state) for claim in stream.get().claims]


def parsed(**options: str) -> Any:
    """Return options of a read of the queue "orders" as stream "totals"."""
    return read_options({**BASE, **options})


def fill(queue: QueueHandle, count: int, first: int = 0) -> list[bytes]:
    """Put messages whose bodies are numbers; return the bodies."""
    bodies = [b"%d" % number for number in range(first, first + count)]
    queue.put_many(bodies)
    return bodies
