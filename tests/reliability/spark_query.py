"""One run of a streaming query, as a process that is made to be killed.

``python -m tests.reliability.spark_query SETTINGS``, with JSON of :class:`Settings`.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession

from leasehold.spark.pipeline import Pipeline
from leasehold.spark.session import cluster_session, local_session
from leasehold.worker.errors import Poison
from leasehold.worker.retry_policy import PoisonRule, RetryRule


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What the query reads and writes, and whether it dies by itself."""

    connection_string: str
    queue: str
    stream: str
    root: str
    """Folder of the checkpoint and of what is written."""
    sink: str
    """``table``: Parquet by foreachBatch, one folder for each batch; ``queue``: our own sink;
    ``groups``: as ``table``, by tasks that read whole groups and fold each into a state;
    ``results``: what became of the messages, by Spark's own sink for Parquet;
    ``pipeline``: our own sink, by the stages of :func:`pipeline`."""
    limit: int
    """Messages of one micro-batch."""
    lease_s: int
    die_after_write: bool = False
    """Whether to be killed when a batch is written and Spark does not know it yet."""
    master: str = "local"
    """``local``, or the address of a cluster."""

    def text(self) -> str:
        """Return what :func:`main` takes."""
        return json.dumps(asdict(self))


def main() -> None:
    """Run the query until the queue is empty."""
    settings = Settings(**json.loads(sys.argv[1]))
    spark = _session(settings)
    if settings.sink in {"results", "pipeline"}:
        start = _start_results if settings.sink == "results" else _stream
        start(spark, settings).awaitTermination()
        spark.stop()
        return
    source = (
        spark.readStream.format("leasehold")
        .option("connectionString", settings.connection_string)
        .option("queueName", settings.queue)
        .option("streamId", settings.stream)
        .option("maxMessagesPerTrigger", str(settings.limit))
        .option("visibilityTimeout", f"{settings.lease_s}s")
        .option("numPartitions", "2")
        .option("wholeGroups", str(settings.sink == "groups").lower())
        .load()
    )
    _start(source, settings).awaitTermination()
    spark.stop()


def _start_results(spark: SparkSession, settings: Settings) -> Any:
    root = Path(settings.root)
    if settings.die_after_write:
        threading.Thread(target=_die_when_written, args=(spark, root), daemon=True).start()
    results = (
        spark.readStream.format("leasehold")
        .option("connectionString", settings.connection_string)
        .option("view", "results")
        .option("queueName", settings.queue)
        .option("maxEventsPerTrigger", str(settings.limit))
        .option("numPartitions", "2")
        .load()
    )
    return (
        results.writeStream.format("parquet")
        .option("checkpointLocation", str(root / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(root / "table"))
    )


def _die_when_written(spark: SparkSession, root: Path) -> None:
    """Be killed when the sink has committed one more micro-batch, most often before Spark notes it.

    The sink's own log of what belongs to the table is the commit.
    """
    log = root / "table" / "_spark_metadata"
    before = {each.name for each in log.glob("*")} if log.exists() else set()
    while {each.name for each in log.glob("[0-9]*")} <= before:
        time.sleep(0.002)
    _die(spark)


def _session(settings: Settings) -> SparkSession:
    if settings.master.startswith("local"):
        return local_session(cores=2, name="kill-matrix")
    conf: dict[str, Any] = {"spark.executor.memory": "512m", "spark.sql.shuffle.partitions": 2}
    return cluster_session(settings.master, name="kill-matrix", **conf)


def _start(source: DataFrame, settings: Settings) -> Any:
    root = Path(settings.root)
    if settings.sink == "groups":
        started = source.writeStream.foreachBatch(_writer_of_groups(settings))
    elif settings.sink == "table":

        def write(batch: DataFrame, batch_id: int) -> None:
            folder = root / "table" / f"batch={batch_id}"
            batch.select("message_id", "body").write.mode("overwrite").parquet(str(folder))
            if settings.die_after_write:
                _die(batch.sparkSession)

        started = source.writeStream.foreachBatch(write)
    else:
        started = (
            source.select("body")
            .writeStream.format("leasehold")
            .option("connectionString", settings.connection_string)
            .option("queueName", f"{settings.queue}-out")
        )
    return (
        started.option("checkpointLocation", str(root / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )


# --- pipeline ------------------------------------------------------------------------------------


def is_bad(body: str) -> bool:
    """Return whether a message is set aside."""
    return int(body.split()[1]) % 10 == _BAD


_BAD = 7
_FAILING = 0.3
"""Of all that are delivered for the first time. Another run of a micro-batch has others fail."""


def pipeline(queue: str) -> Pipeline:
    """Return stages that set some messages aside, and have others tried again, at random."""

    def sort_out(message: Any, _state: Any) -> Any:
        if is_bad(message.text):
            raise Poison("bad")
        return message.text

    def fail_some(table: pa.Table) -> pa.Table:
        counts = table["dequeue_count"].to_pylist()
        failing = [each == 1 and random.random() < _FAILING for each in counts]
        verdicts = ["not now" if each else None for each in failing]
        return pa.table({"state": table["state"], "retry": pa.array(verdicts, pa.string())})

    return Pipeline(queue).stage("sort", sort_out).stage("fail", fail_some, batch="arrow")


def _stream(spark: SparkSession, settings: Settings) -> Any:
    return pipeline(settings.queue).stream(
        spark,
        connection=settings.connection_string,
        stream=settings.stream,
        checkpoint=str(Path(settings.root) / "checkpoint"),
        to=f"{settings.queue}-out",
        trigger={"availableNow": True},
        max_messages=settings.limit,
        lease_s=settings.lease_s,
        retries=RetryRule(kind="fixed", initial_s=0),
        poison=PoisonRule(max_failures=None),
        options={"numPartitions": "2"},
    )


# --- groups --------------------------------------------------------------------------------------


def chained(state: str, body: bytes) -> str:
    """Return the state of a group after one more message: it tells of all, and of their order."""
    return hashlib.sha256(state.encode() + body).hexdigest()


def state_file(root: Path, batch_id: int) -> Path:
    """Return where the states of all groups are kept as they are after a micro-batch."""
    return root / "states" / f"{batch_id}.json"


def _writer_of_groups(settings: Settings) -> Callable[[DataFrame, int], None]:
    root = Path(settings.root)

    def write(batch: DataFrame, batch_id: int) -> None:
        before = state_file(root, batch_id - 1)
        states = json.loads(before.read_text()) if before.exists() else {}
        folder = str(root / "table" / f"batch={batch_id}")
        rows = batch.select("group_id", "body").mapInArrow(_folder_of(states), _FOLDED)
        rows.write.mode("overwrite").parquet(folder)
        for row in batch.sparkSession.read.parquet(folder).orderBy("task", "place").collect():
            states[row.group_id] = row.state
        after = state_file(root, batch_id)
        after.parent.mkdir(exist_ok=True)
        made = after.with_suffix(".new")
        made.write_text(json.dumps(states))
        made.replace(after)
        if settings.die_after_write:
            _die(batch.sparkSession)

    return write


_FOLDED = "task int, place int, group_id string, body binary, state string"


def _folder_of(states: dict[str, str]) -> Callable[[Any], Iterator[pa.RecordBatch]]:
    """Return what a task does with its rows: each is folded into the state of its group."""

    def fold(batches: Any) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        task = -1 if context is None else context.partitionId()
        own, place = dict(states), 0
        for batch in batches:
            groups, bodies = batch.column("group_id").to_pylist(), batch.column("body").to_pylist()
            seen = []
            for group, body in zip(groups, bodies, strict=True):
                own[group] = chained(own.get(group, ""), body)
                seen.append(own[group])
            count = len(bodies)
            columns = [[task] * count, list(range(place, place + count)), groups, bodies, seen]
            types = [pa.int32(), pa.int32(), pa.string(), pa.binary(), pa.string()]
            arrays = [pa.array(*each) for each in zip(columns, types, strict=True)]
            names = ["task", "place", "group_id", "body", "state"]
            yield pa.RecordBatch.from_arrays(arrays, names=names)
            place += count

    return fold


def _die(spark: SparkSession) -> None:
    """Kill the driver, its JVM first."""
    jvm: Any = spark._jvm
    os.kill(jvm.java.lang.ProcessHandle.current().pid(), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
